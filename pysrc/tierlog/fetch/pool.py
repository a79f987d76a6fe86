"""Threads that read from the tier: a bounded number with a bounded queue, as Kafka's
``RemoteStorageThreadPool``.

A request for the same bytes joins a read that is queued or running. When all waiters of a queued
read have given up, the read is dropped. A running read is never interrupted. The late result of a
read is kept for some time, because a client whose wait has ended requests the same bytes again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from tierlog.clock import Clock, SystemClock
from tierlog.errors import ClosedError, TierlogError
from tierlog.metrics.busy import BusyMeter

__all__ = ["ReadTicket", "ReaderPool", "ReaderPoolFullError", "RunningRead"]

T = TypeVar("T")

_LONG_MS = 3_600_000
LATE_RESULT_MS = 30_000
LATE_RESULT_BYTES = 64 << 20


class ReaderPoolFullError(TierlogError):
    """All threads are busy and the queue is full."""

    retriable = True


class _State(Enum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"


class _Read(Generic[T]):
    """A read with the ``futures`` of all its waiters. ``result`` is set while the result is kept
    for a later request."""

    __slots__ = (
        "began_ms",
        "ended_ms",
        "futures",
        "is_ahead",
        "key",
        "read",
        "result",
        "size_bytes",
        "state",
    )

    def __init__(self, key: Hashable, read: Callable[[], T]) -> None:
        self.key = key
        self.read = read
        self.futures: set[Future[T]] = set()
        self.is_ahead = False
        self.result: Any = None
        self.state = _State.PENDING
        self.began_ms = 0
        self.ended_ms = 0
        self.size_bytes = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRead:
    """A read that has been running for `running_ms`."""

    key: Hashable
    running_ms: int


class ReadTicket(Generic[T]):
    """A request for a read. Each ticket has its own ``future``. ``joined``: another request has
    started the read.

    After `give_up`, no reference to the ticket is kept, even if the read hangs.
    """

    __slots__ = ("_pool", "_read", "future", "joined")

    def __init__(self, pool: ReaderPool, read: _Read[T], *, joined: bool) -> None:
        self._pool = pool
        self._read = read
        self.future: Future[T] = Future()
        self.joined = joined

    def give_up(self) -> None:
        """Stop waiting for the read. The call may be repeated."""
        self._pool._give_up(self._read, self.future)


class ReaderPool:
    """A pool of ``threads`` threads. At most ``max_pending`` reads wait for a thread.

    A late result is a result for which no request waits any more. The youngest late results, up to
    ``late_result_bytes``, are kept for ``late_result_ms``. A result has the attributes
    ``size_bytes`` and ``is_worth_keeping``. The second is True when a later request can use the
    result.
    """

    def __init__(
        self,
        threads: int = 10,
        max_pending: int = 100,
        *,
        late_result_ms: int = LATE_RESULT_MS,
        late_result_bytes: int = LATE_RESULT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._size = threads
        self._max_pending = max_pending
        self._late_result_ms = late_result_ms
        self._late_result_bytes = late_result_bytes
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._reads: dict[Hashable, _Read[Any]] = {}
        self._pending: deque[_Read[Any]] = deque()
        self._running: set[_Read[Any]] = set()
        # Late results in the order of arrival.
        self._late: deque[_Read[Any]] = deque()
        self._late_bytes = 0
        self._threads: set[threading.Thread] = set()
        # The number of threads that have no read. This includes threads that have just been
        # started.
        self._idle = 0
        self._runs = 0
        self._closed = False
        self._process_id = os.getpid()
        self._busy = BusyMeter()

    def __repr__(self) -> str:
        return f"ReaderPool({self._size} threads, {len(self._pending)} pending)"

    def submit(self, key: Hashable, read: Callable[[], T]) -> ReadTicket[T]:
        """Let a thread call `read`, or join a read with the same key that is queued, running or
        kept.

        Raises ReaderPoolFullError when the queue is full. Raises ClosedError after `close`, and in
        a child of the process that created the pool, because the child does not have the threads.
        """
        if os.getpid() != self._process_id:
            raise ClosedError("the reader pool belongs to another process: open one after the fork")
        with self._lock:
            if self._closed:
                raise ClosedError("the reader pool is closed")
            self._drop_old()
            known = self._reads.get(key)
            if known is not None:
                ticket: ReadTicket[T] = ReadTicket(self, known, joined=True)
                if known.state is _State.DONE:
                    self._forget_late(known)
                    ticket.future.set_result(known.result)
                else:
                    known.futures.add(ticket.future)
                return ticket
            if len(self._pending) >= self._max_pending + self._idle + self._count_missing():
                raise ReaderPoolFullError(
                    f"{self._size} reader threads are busy and {len(self._pending)} reads wait "
                    "(remote.log.reader.threads, remote.log.reader.max.pending.tasks)"
                )
            made: _Read[T] = _Read(key, read)
            ticket = ReadTicket(self, made, joined=False)
            made.futures.add(ticket.future)
            self._reads[key] = made
            self._pending.append(made)
            self._wake_thread()
            return ticket

    def read_ahead(self, key: Hashable, read: Callable[[], object]) -> None:
        """Have an idle thread call `read` for a request that is expected. Does nothing if the pool
        already has this read, or unless more than half of the threads, and at least two threads,
        are free."""
        with self._lock:
            self._drop_old()
            spare = self._idle + self._count_missing() - len(self._pending)
            is_busy = spare <= max(1, self._size // 2)
            if self._closed or is_busy or key in self._reads:
                return
            made: _Read[Any] = _Read(key, read)
            made.is_ahead = True
            self._reads[key] = made
            self._pending.append(made)
            self._wake_thread()

    def drop_late(self, size_bytes: int) -> None:
        """Drop `size_bytes` of late results, the oldest first, for a read that needs the memory."""
        with self._lock:
            while self._late and size_bytes > 0:
                size_bytes -= self._late[0].size_bytes
                self._drop_oldest()

    def resize(self, threads: int) -> None:
        """Set the number of threads. Threads above this number end after their present read."""
        with self._lock:
            self._size = threads
            for _ in self._pending:
                self._wake_thread()
            self._work.notify_all()

    def close(self, timeout_ms: int = 30_000) -> bool:
        """Start no more reads and wait for the running ones. Return whether all ended in time."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._lock:
            self._closed = True
            for read in self._pending:
                for future in read.futures:
                    future.cancel()
                    # This call is needed because `concurrent.futures.wait` would otherwise continue
                    # to wait.
                    future.set_running_or_notify_cancel()
            self._pending.clear()
            self._late.clear()
            self._late_bytes = 0
            self._reads = {read.key: read for read in self._running}
            self._work.notify_all()
            while self._running:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    return False
                self._clock.wait(self._settled, left_ms)
            return True

    # -- counts

    def __contains__(self, key: Hashable) -> bool:
        """Whether a read of that key is queued or running, or its result is kept."""
        with self._lock:
            self._drop_old()
            return key in self._reads

    @property
    def size(self) -> int:
        """The configured number of threads."""
        return self._size

    @property
    def runs(self) -> int:
        """The number of reads that have ended."""
        return self._runs

    @property
    def late_bytes(self) -> int:
        """The number of bytes of all late results that are kept."""
        return self._late_bytes

    def queued(self) -> int:
        """The number of reads that wait for a thread."""
        return len(self._pending)

    def running(self) -> tuple[RunningRead, ...]:
        """The running reads, the longest first."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            found = [
                RunningRead(key=read.key, running_ms=now_ms - read.began_ms)
                for read in self._running
            ]
        return tuple(sorted(found, key=lambda one: -one.running_ms))

    def idle_ratio(self) -> float:
        """Return the share of the last minute in which the threads were idle, from 0 to 1."""
        under_way_ms = [one.running_ms for one in self.running()]
        return self._busy.idle_ratio(self._size, under_way_ms, self._clock.monotonic_ms())

    # -- inside; the caller holds the lock unless the docstring says otherwise

    def _count_missing(self) -> int:
        """Return how many more threads may be started."""
        return max(0, self._size - len(self._threads))

    def _wake_thread(self) -> None:
        """Wake an idle thread for the next read, or start a new thread."""
        if self._idle >= len(self._pending) or not self._count_missing():
            self._work.notify()
            return
        name = f"tierlog-reader-{len(self._threads)}"
        # A store call that hangs must not keep the process from ending.
        thread = threading.Thread(target=self._run_reads, name=name, daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _run_reads(self) -> None:
        """Run one read after the other until this thread has to end. The caller does not hold the
        lock."""
        while True:
            with self._lock:
                read = self._wait_for_read()
            if read is None:
                return
            self._run(read)
            # An idle thread must not keep the bytes of its last read in memory.
            del read

    def _wait_for_read(self) -> _Read[Any] | None:
        """Wait for the next read; None when this thread has to end."""
        while not self._closed and len(self._threads) <= self._size:
            if self._pending:
                read = self._pending.popleft()
                if not read.is_ahead and all(future.cancelled() for future in read.futures):
                    self._reads.pop(read.key, None)
                    continue
                read.state = _State.RUNNING
                read.began_ms = self._clock.monotonic_ms()
                self._running.add(read)
                self._idle -= 1
                return read
            self._clock.wait(self._work, _LONG_MS)
        self._idle -= 1
        self._threads.discard(threading.current_thread())
        return None

    def _run(self, read: _Read[Any]) -> None:
        """Without the lock."""
        result: Any = None
        failure: BaseException | None = None
        try:
            result = read.read()
            read.size_bytes = getattr(result, "size_bytes", 0)
        except BaseException as error:  # noqa: BLE001 - the waiters get it, the thread goes on
            failure = error
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            read.state, read.ended_ms = _State.DONE, now_ms
            self._running.discard(read)
            self._idle += 1
            self._runs += 1
            self._busy.ran(now_ms - read.began_ms, now_ms)
            keep = failure is None and getattr(result, "is_worth_keeping", True)
            futures, read.futures = read.futures, set()
            if keep and not futures and not self._closed:
                self._keep_late(read, result)
            else:
                self._reads.pop(read.key, None)
            self._settled.notify_all()
        # Callbacks of the waiters run here.
        for future in futures:
            if not future.set_running_or_notify_cancel():
                continue
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

    def _give_up(self, read: _Read[Any], future: Future[Any]) -> None:
        """Without the lock."""
        with self._lock:
            read.futures.discard(future)
            if not read.futures and read in self._pending:
                self._pending.remove(read)
                self._reads.pop(read.key, None)
        future.cancel()

    def _keep_late(self, read: _Read[Any], result: Any) -> None:
        """Keep a late result."""
        read.result = result
        self._late.append(read)
        self._late_bytes += read.size_bytes
        self._drop_old()

    def _drop_old(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - self._late_result_ms
        while self._late and (
            self._late[0].ended_ms < oldest_ms or self._late_bytes > self._late_result_bytes
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        read = self._late.popleft()
        self._late_bytes -= read.size_bytes
        self._reads.pop(read.key, None)

    def _forget_late(self, read: _Read[Any]) -> None:
        """Drop a late result that a request has taken."""
        self._late.remove(read)
        self._late_bytes -= read.size_bytes
        self._reads.pop(read.key, None)
