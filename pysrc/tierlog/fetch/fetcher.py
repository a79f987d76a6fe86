"""Answers fetches over many partitions, local and remote.

    fetcher = Fetcher(host, reads, pool=ReaderPool(...), quotas=FetchQuotas(...))
    response = await fetcher.fetch(request)          # or fetcher.fetch_sync(request)

A local partition is read on the thread that calls `fetch_sync`. An event loop itself reads a local
partition if the read needs neither the disk nor a lock. Other local partitions of an event loop are
read by a thread of its executor. Remote partitions are read by the threads of a bounded pool. A
request with remote partitions is answered when all of them are read. After ``max_remote_wait_ms``
the request is answered without the partitions that are not read yet. A result that arrives after
its request was answered is kept for the next request for the same data. While a sequential client
takes an answer, an idle thread of the pool reads the data of the next answer. An error of one
partition does not affect the answers for other partitions.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tierlog.clock import Clock, SystemClock
from tierlog.errors import ClosedError, GapError
from tierlog.fetch.decision import decide_fetch, decide_leader_epoch
from tierlog.fetch.failure_lines import FailureLines
from tierlog.fetch.offsets import (
    OffsetAnswer,
    OffsetReader,
    SpecialTimestamp,
    TimeSearch,
)
from tierlog.fetch.partition_fetch import PartitionFetch, error_code, error_text
from tierlog.fetch.pool import ReaderPool, ReaderPoolFullError, ReadTicket
from tierlog.fetch.quotas import FetchPayer, FetchQuotas
from tierlog.log.same_log import VanishedError
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.local_batches import LocalBatchReader, MemoryFullError
from tierlog.reader.memory import FetchMemory
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import (
    CONSUMER,
    FetchError,
    FetchHost,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)
from tierlog.types import TopicIdPartition

__all__ = ["Fetcher"]

MAX_REMOTE_WAIT_MS = 500
LIST_OFFSETS_TIMEOUT_MS = 30_000
# The shortest and the longest wait before a used-up quota is checked again. The wait is bounded
# because the limit of the quota may change.
_QUOTA_CHECKS_MS = (100, 1_000)
_MEMORY_CHECK_MS = 50
# The number of bytes that an event loop may read itself, which takes up to a millisecond.
_AT_ONCE_BYTES = 2 << 20
# The number of end positions of reads that are remembered: about one for each client of a
# partition.
_MAX_ENDS = 1024
# The number of attempts to read a partition whose files are deleted during the read.
_ATTEMPTS = 3
# The answer for a read that a closed pool never started.
_CLOSED = FetchError.KAFKA_STORAGE_ERROR
_CLOSED_TEXT = "the fetcher was closed before the read began"
_NOT_LEADER = FetchError.NOT_LEADER_OR_FOLLOWER
_NOT_LEADER_TEXT = "this host does not lead the partition"


class _Reading(NamedTuple):
    """A remote read that was submitted to the pool, and the payer of this read."""

    fetch: PartitionFetch
    payer: FetchPayer
    ticket: ReadTicket[PartitionData]


@dataclass(slots=True)
class _Attempt:
    """One attempt to answer all partitions of a request: the answers, and the remote reads that
    were started."""

    answers: list[PartitionData]
    tickets: dict[int, _Reading]
    size_bytes: int = 0
    failed: bool = False

    def take(self, row: int) -> bool:
        """Use the result of a remote read as the answer. Return False when the read is not
        finished."""
        ticket = self.tickets.pop(row).ticket
        if not ticket.future.done():
            ticket.give_up()
            return False
        now = self.answers[row]
        if ticket.future.cancelled():
            data = replace(now, source=FetchSource.ERROR, error=_CLOSED, text=_CLOSED_TEXT)
        else:
            data = ticket.future.result()
        # The read may have been started earlier or by another request, so its answer gets the
        # present offsets of the log.
        self.answers[row] = replace(
            data,
            high_watermark=now.high_watermark,
            last_stable_offset=now.last_stable_offset,
            log_start_offset=now.log_start_offset,
        )
        self.failed = self.failed or data.error is not FetchError.NONE
        return True

    def give_up(self) -> None:
        """Stop waiting for the reads."""
        for reading in self.tickets.values():
            reading.ticket.give_up()


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for an offset, and the progress of the search."""

    partition: TopicIdPartition
    timestamp: int
    isolation_level: IsolationLevel
    follower: bool
    client_id: str
    progress: TimeSearch = field(default_factory=TimeSearch)


class _Wait(NamedTuple):
    """A step that waits for futures. If there are no futures, the step only waits for the time to
    pass."""

    futures: Sequence[concurrent.futures.Future[Any]]
    wait_ms: int


_Answer = TypeVar("_Answer")
# The steps to an answer. A step is a wait, or a call whose result is sent back to the generator. A
# thread and an event loop take the same steps.
_Steps: TypeAlias = Generator[_Wait | Callable[[], Any], Any, _Answer]


class Fetcher:
    """Answers fetches of one host's partitions. Any thread, any number of event loops.

    If ``remote`` is None, no partition is tiered here. The host calls `notify` when a partition has
    new records. If the host does not call `notify`, a request that waits for ``min_bytes`` waits
    for its full time. ``report`` receives lines about errors of this host and its store.
    """

    def __init__(
        self,
        host: FetchHost,
        remote: RemoteBatchReader | None,
        *,
        pool: ReaderPool,
        quotas: FetchQuotas,
        transactions: TransactionReader,
        offsets: OffsetReader | None = None,
        metrics: RemoteLogMetrics | None = None,
        local_memory: FetchMemory | None = None,
        max_remote_wait_ms: int = MAX_REMOTE_WAIT_MS,
        on_close: Callable[[], object] | None = None,
        report: Callable[[str], object] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._on_close = on_close
        self._host = host
        self._remote = remote
        self._pool = pool
        # The limits for all reads together, by topic and by client id. The limits may change at any
        # time.
        self.quotas = quotas
        self._transactions = transactions
        self._offsets = offsets or OffsetReader()
        self._clock = clock or SystemClock()
        self._metrics = metrics or RemoteLogMetrics(self._clock)
        self.max_remote_wait_ms = max_remote_wait_ms
        self._failures = FailureLines(report, self._clock)
        self._local = LocalBatchReader(memory=local_memory)
        # Like the host's `view`, but raises BlockingIOError instead of waiting. An event loop that
        # has this function reads small local fetches from the page cache itself.
        self.view_at_once: Callable[[TopicIdPartition], FetchView | None] | None = None
        self._lock = threading.Lock()
        # The partitions and offsets at which reads of the tier have ended.
        self._ends: OrderedDict[tuple[TopicIdPartition, int], bool] = OrderedDict()
        self._waiting: dict[TopicIdPartition, set[concurrent.futures.Future[None]]] = {}

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything that `open_fetcher` opened for this fetcher. The call may be
        repeated."""
        if self._on_close is not None:
            self._on_close()

    def resize(self, threads: int) -> None:
        """Set the number of threads that read from the tier."""
        self._pool.resize(threads)

    # -- asking

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Return the answer without blocking the event loop. Cancelling gives up all reads."""
        return await self._run_async(self._fetch_steps(request, at_once=True))

    def fetch_sync(self, request: FetchRequest) -> FetchResponse:
        """Return the answer; blocks the calling thread."""
        return self._run_here(self._fetch_steps(request))

    async def list_offset(
        self,
        partition: TopicIdPartition,
        timestamp: int,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
        client_id: str = "",
        timeout_ms: int = LIST_OFFSETS_TIMEOUT_MS,
    ) -> OffsetAnswer:
        """Return the offset for a time or for a `SpecialTimestamp`. A thread of the pool searches
        the offset for a time. The requests of a search to the store are charged to the quotas of
        `client_id` and the topic. The search waits while one of these quotas is used up."""
        search = _Search(partition, timestamp, isolation_level, replica_id != CONSUMER, client_id)
        answer = await self._run_async(self._offset_steps(search, timeout_ms))
        self._failures.add(partition, answer.error, answer.text)
        return answer

    def list_offset_sync(
        self,
        partition: TopicIdPartition,
        timestamp: int,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
        client_id: str = "",
        timeout_ms: int = LIST_OFFSETS_TIMEOUT_MS,
    ) -> OffsetAnswer:
        """See `list_offset`; blocks the calling thread."""
        search = _Search(partition, timestamp, isolation_level, replica_id != CONSUMER, client_id)
        answer = self._run_here(self._offset_steps(search, timeout_ms))
        self._failures.add(partition, answer.error, answer.text)
        return answer

    def _fetch_steps(
        self, request: FetchRequest, *, at_once: bool = False
    ) -> _Steps[FetchResponse]:
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms
        while True:
            with self._notified_of_more(request) as more:
                attempt = self._attempt_at_once(request) if at_once else None
                if attempt is None:
                    attempt = yield lambda: self._attempt(request)
                try:
                    reads = [one.ticket.future for one in attempt.tickets.values()]
                    if not all(future.done() for future in reads):
                        yield _Wait(reads, self.max_remote_wait_ms)
                finally:
                    response = self._finish(attempt)
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if self._is_answer(request, attempt) or left_ms <= 0:
                    return response
                wait_ms = self._wait_ms(request, attempt, left_ms)
                yield _Wait([more], wait_ms)
                if not more.done() and wait_ms >= left_ms:
                    return response

    def _offset_steps(self, search: _Search, timeout_ms: int) -> _Steps[OffsetAnswer]:
        if search.timestamp < 0 and search.timestamp != SpecialTimestamp.MAX_TIMESTAMP:
            # The answer needs no record, so a store that hangs must not delay the answer.
            answer: OffsetAnswer = yield lambda: self._find_offset(search)
            return answer
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            ticket = self._submit_search(search)
            if isinstance(ticket, OffsetAnswer):
                return ticket
            try:
                yield _Wait([ticket.future], max(0, deadline_ms - self._clock.monotonic_ms()))
            finally:
                answer = _in_time(ticket, timeout_ms)
            if answer.error is not FetchError.THROTTLING_QUOTA_EXCEEDED:
                return answer
            wait_ms = self._quota_wait_ms(search, deadline_ms)
            if wait_ms <= 0:
                return _timed_out(timeout_ms)
            yield _Wait([], wait_ms)

    def _run_here(self, steps: _Steps[_Answer]) -> _Answer:
        """Take the steps one after the other on the calling thread."""
        result: Any = None
        with closing(steps):
            while True:
                try:
                    step = steps.send(result)
                except StopIteration as end:
                    answer: _Answer = end.value
                    return answer
                if not isinstance(step, _Wait):
                    result = step()
                elif step.futures:
                    concurrent.futures.wait(step.futures, timeout=_seconds(step.wait_ms))
                else:
                    self._clock.sleep(step.wait_ms)

    async def _run_async(self, steps: _Steps[_Answer]) -> _Answer:
        """Take the steps without blocking the event loop."""
        result: Any = None
        with closing(steps):
            while True:
                try:
                    step = steps.send(result)
                except StopIteration as end:
                    answer: _Answer = end.value
                    return answer
                if not isinstance(step, _Wait):
                    result = await self._call_in_thread(step)
                elif step.futures:
                    futures = [asyncio.wrap_future(future) for future in step.futures]
                    await asyncio.wait(futures, timeout=_seconds(step.wait_ms))
                else:
                    await asyncio.sleep(_seconds(step.wait_ms))

    async def _call_in_thread(self, step: Callable[[], object]) -> object:
        call = asyncio.get_running_loop().run_in_executor(None, step)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # The cancelled call continues on its thread, but nothing waits for the reads that it
            # begins.
            call.add_done_callback(self._give_up)
            raise

    def _give_up(self, call: asyncio.Future[object]) -> None:
        if not call.cancelled() and call.exception() is None:
            attempt = call.result()
            if isinstance(attempt, _Attempt):
                self._finish(attempt)

    def notify(self, partition: TopicIdPartition) -> None:
        """Make waiting requests read the partition again, because the partition may have new
        records."""
        with self._lock:
            for future in self._waiting.pop(partition, ()):
                # The request may wait for several partitions, and another partition may have
                # notified it already.
                if not future.done():
                    future.set_result(None)

    # -- looking

    def _attempt_at_once(self, request: FetchRequest) -> _Attempt | None:
        """Make the attempt without waiting for anything. Return None when this is not possible."""
        if self.view_at_once is None:
            return None
        size_bytes = sum(one.max_bytes for one in request.partitions)
        if min(size_bytes, request.max_bytes) > _AT_ONCE_BYTES:
            return None
        try:
            return self._attempt(request, at_once=True)
        except BlockingIOError:
            return None

    def _attempt(self, request: FetchRequest, *, at_once: bool = False) -> _Attempt:
        """Read all partitions. With `at_once`, raise BlockingIOError instead of waiting."""
        attempt = _Attempt(answers=[], tickets={})
        try:
            self._read_all(request, attempt, at_once)
        except BaseException:
            attempt.give_up()
            raise
        return attempt

    def _read_all(self, request: FetchRequest, attempt: _Attempt, at_once: bool) -> None:
        left_bytes = request.max_bytes
        minimum_one = True
        for row, asked in enumerate(request.partitions):
            try:
                answer, ticket, used_bytes = self._read_partition(
                    request, asked, left_bytes, minimum_one, at_once
                )
            except BlockingIOError:
                raise
            except Exception as failed:  # noqa: BLE001 - the answer for one partition
                answer, ticket, used_bytes = _failure_without_view(asked, failed), None, 0
            attempt.answers.append(answer)
            if ticket is not None:
                attempt.tickets[row] = ticket
            left_bytes -= used_bytes
            attempt.size_bytes += used_bytes
            attempt.failed = attempt.failed or answer.error is not FetchError.NONE
            minimum_one = minimum_one and used_bytes == 0 and ticket is None

    def _read_partition(
        self,
        request: FetchRequest,
        asked: FetchPartition,
        left_bytes: int,
        minimum_one: bool,
        at_once: bool,
        attempts: int = _ATTEMPTS,
    ) -> tuple[PartitionData, _Reading | None, int]:
        """Return the present answer, the remote read that will give a better answer, and the bytes
        of the response that the answer may take."""
        view = self._view(asked.partition, at_once=at_once)
        if view is None:
            return _failure_without_view(asked, FetchError.UNKNOWN_TOPIC_OR_PARTITION), None, 0
        fetch = PartitionFetch.of(
            request, asked, view, left_bytes, minimum_one=minimum_one, at_once=at_once
        )
        wrong = decide_leader_epoch(asked.current_leader_epoch, view.leader_epoch)
        if wrong is not None:
            text = f"leader epoch {asked.current_leader_epoch}, here {view.leader_epoch}"
            return fetch.failure(wrong[1], text), None, 0
        if fetch.is_of_follower and not view.leads:
            return fetch.failure(_NOT_LEADER, _NOT_LEADER_TEXT), None, 0
        source, error = decide_fetch(
            fetch.offset,
            view.log_start_offset,
            view.local_log_start_offset,
            view.log_end_offset,
            view.tiered and self._remote is not None,
            fetch.is_of_follower,
            False,
            1 if minimum_one else fetch.max_bytes,
        )
        if source is FetchSource.REMOTE:
            return self._submit(fetch)
        if source is not FetchSource.LOCAL:
            return fetch.answer(source, error, _range_text(fetch, error)), None, 0
        try:
            answer = self._read_local(fetch, fetch.offset)
        except VanishedError as vanished:
            # The log changed after the view was taken. A new view shows where to read now.
            if attempts > 1:
                return self._read_partition(
                    request, asked, left_bytes, minimum_one, at_once, attempts - 1
                )
            answer = fetch.failure(vanished)
        except BlockingIOError:
            raise
        except Exception as failed:  # noqa: BLE001 - the answer for one partition
            answer = fetch.failure(failed)
        return answer, None, answer.size_bytes

    def _view(self, partition: TopicIdPartition, *, at_once: bool = False) -> FetchView | None:
        """Return the host's view. Return None if there is no view, or if the view shows another
        topic of the same name."""
        at_once_view = self.view_at_once if at_once else None
        view = (at_once_view or self._host.view)(partition)
        same = view is None or view.log.archive_id in (None, partition.topic_id)
        return view if same else None

    # -- local

    def _read_local(self, fetch: PartitionFetch, offset: int) -> PartitionData:
        try:
            read = self._local.read_batches(
                fetch.view,
                offset,
                fetch.max_bytes,
                fetch.upper_offset,
                minimum_one=fetch.minimum_one,
                at_once=fetch.at_once,
            )
        except MemoryFullError as full:
            return fetch.answer(FetchSource.NO_MEMORY, text=str(full))
        aborted = None
        if fetch.wants_aborted:
            aborted = self._transactions.of_local(fetch.view, read, at_once=fetch.at_once)
        return fetch.answer(FetchSource.LOCAL, records=read.records, aborted=aborted)

    # -- remote

    def _submit(self, fetch: PartitionFetch) -> tuple[PartitionData, _Reading | None, int]:
        """Let the pool read from the tier. The result has the same parts as the result of
        `_read_partition`."""
        topic, client_id = fetch.partition.topic, fetch.request.client_id
        payer = self.quotas.payer(topic, client_id)
        key = fetch.read_key(self.quotas.limits_client(client_id))
        wait_ms = payer.throttle_ms()
        if wait_ms > 0 and not self._is_paid(key, fetch):
            self._metrics.fetch_throttled(wait_ms)
            return fetch.answer(FetchSource.THROTTLED), None, 0
        try:
            ticket = self._pool.submit(key, lambda: self._read_counted(fetch, payer))
        except (ReaderPoolFullError, ClosedError) as error:
            return fetch.failure(error), None, 0
        reading = _Reading(fetch, payer, ticket)
        return fetch.answer(FetchSource.REMOTE), reading, fetch.max_bytes

    def _read_next(self, reading: _Reading, next_offset: int) -> None:
        """Begin the next read of a sequential client while the client still processes the last
        answer.

        A client counts as sequential when its read begins at the offset at which an earlier read
        ended. No next read is begun for a client that has a quota.
        """
        fetch, payer = reading.fetch, reading.payer
        with self._lock:
            is_second = self._ends.pop((fetch.partition, fetch.offset), None) is not None
            self._ends[fetch.partition, next_offset] = True
            if len(self._ends) > _MAX_ENDS:
                self._ends.popitem(last=False)
        next_fetch = fetch.at_offset(next_offset)
        is_remote = next_offset < min(fetch.upper_offset, fetch.view.local_log_start_offset)
        if is_second and is_remote and not payer.is_limited:
            key = next_fetch.read_key(limits_client=False)
            self._pool.read_ahead(key, lambda: self._read_counted(next_fetch, payer))

    def _is_paid(self, key: Hashable, fetch: PartitionFetch) -> bool:
        """Whether the bytes were requested from the store before."""
        if key in self._pool:
            return True
        remote = self._remote
        return remote is not None and remote.has_ready(fetch.partition, fetch.offset)

    def _read_again(self, fetch: PartitionFetch, payer: FetchPayer) -> PartitionData:
        """Read from the tier. If the log has changed, repeat the read with a later view. Return an
        error as an answer."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return self._read_tier(fetch, payer)
            except (VanishedError, GapError) as error:
                # The read continued in a local log that has changed since the view was taken, or
                # retention has moved the log start past the gap.
                latest = self._view(fetch.partition)
                if not left or latest is None:
                    return fetch.failure(error)
                if isinstance(error, GapError) and latest.log_start_offset <= error.first_offset:
                    return fetch.failure(error)
                fetch = fetch.with_view(latest)
            except BaseException as failed:  # noqa: BLE001 - the answer for one partition
                return fetch.failure(failed)
        raise AssertionError("the last look answers")

    def _read_tier(self, fetch: PartitionFetch, payer: FetchPayer) -> PartitionData:
        remote, view, lineage = self._remote, fetch.view, fetch.view.log.leader_epochs
        if remote is None or lineage is None:
            text = "the leader epochs of the log are unknown"
            return fetch.failure(FetchError.KAFKA_STORAGE_ERROR, text)
        found = remote.read_batches(
            fetch.partition,
            lineage,
            fetch.offset,
            fetch.max_bytes,
            fetch.upper_offset,
            minimum_one=fetch.minimum_one,
            log_start_offset=view.log_start_offset,
            tier_end_offset=view.local_log_start_offset,
            payer=payer,
        )
        if found.throttled:
            self._metrics.fetch_throttled(payer.throttle_ms())
            return fetch.answer(FetchSource.THROTTLED)
        if found.first_offset < 0 and found.next_offset >= view.local_log_start_offset:
            # The tier has only a gap after this offset, and the local log has the next records.
            return self._read_local(fetch, found.next_offset)
        aborted = None
        if fetch.wants_aborted:
            aborted = self._transactions.of_remote(view, fetch.partition, found)
        return fetch.answer(
            FetchSource.REMOTE,
            records=found.records,
            aborted=aborted,
            next_offset=found.next_offset,
        )

    def _read_counted(self, fetch: PartitionFetch, payer: FetchPayer) -> PartitionData:
        """Read from the tier, and count the result in the metrics."""
        topic = fetch.partition.topic
        self._metrics.fetch_started(topic)
        began_ms = self._clock.monotonic_ms()
        data = self._read_again(fetch, payer)
        if data.source is FetchSource.REMOTE and data.size_bytes:
            self._metrics.fetch_took(self._clock.monotonic_ms() - began_ms)
        if data.error is FetchError.NONE:
            self._metrics.fetched(topic, data.size_bytes, fetch.request.client_id)
        elif data.error is not FetchError.OFFSET_OUT_OF_RANGE:
            self._metrics.fetch_failed(topic)
        return data

    # -- offsets

    def _submit_search(self, search: _Search) -> OffsetAnswer | ReadTicket[OffsetAnswer]:
        def find() -> OffsetAnswer:
            try:
                return self._find_offset(search)
            except BaseException as failed:  # noqa: BLE001 - the thread belongs to the pool
                return OffsetAnswer(error=error_code(failed), text=error_text(failed))

        # The newest record may be another one for the next request.
        key: Hashable = object()
        if search.timestamp >= 0 and not self.quotas.limits_client(search.client_id):
            level, follower = search.isolation_level, search.follower
            key = ("offset", search.partition, search.timestamp, level, follower)
        try:
            return self._pool.submit(key, find)
        except (ReaderPoolFullError, ClosedError) as error:
            return OffsetAnswer(error=error_code(error), text=str(error))

    def _quota_wait_ms(self, search: _Search, deadline_ms: int) -> int:
        """Return the milliseconds that a search waits before it checks its quotas again; 0 when the
        time of the search is up."""
        least_ms, most_ms = _QUOTA_CHECKS_MS
        free_ms = self.quotas.throttle_ms(search.partition.topic, search.client_id)
        left_ms = deadline_ms - self._clock.monotonic_ms()
        return max(0, min(left_ms, max(least_ms, free_ms), most_ms))

    def _find_offset(self, search: _Search, attempts: int = 2) -> OffsetAnswer:
        partition = search.partition
        try:
            view = self._view(partition)
            if view is None:
                error = FetchError.UNKNOWN_TOPIC_OR_PARTITION
                return OffsetAnswer(error=error, text="not here")
            if not view.leads:
                return OffsetAnswer(error=_NOT_LEADER, text=_NOT_LEADER_TEXT)
            return self._offsets.look_up(
                view,
                partition,
                search.timestamp,
                isolation_level=search.isolation_level,
                follower=search.follower,
                payer=self.quotas.payer(partition.topic, search.client_id),
                search=search.progress,
            )
        except Exception as failed:  # noqa: BLE001 - that is the answer, whatever it is
            if not isinstance(failed, VanishedError) or attempts == 1:
                return OffsetAnswer(error=error_code(failed), text=error_text(failed))
        # The log has changed, so search the current view of the log.
        return self._find_offset(search, attempts - 1)

    # -- answering

    def _finish(self, attempt: _Attempt) -> FetchResponse:
        for row, reading in list(attempt.tickets.items()):
            if not attempt.take(row):
                self._metrics.fetch_expired()
            elif attempt.answers[row].size_bytes:
                self._read_next(reading, attempt.answers[row].next_offset)
        for answer in attempt.answers if attempt.failed else ():
            self._failures.add(answer.partition, answer.error, answer.text)
        return FetchResponse(partitions=tuple(attempt.answers))

    def _is_answer(self, request: FetchRequest, attempt: _Attempt) -> bool:
        """Whether to answer at once. A request is answered at once if there is enough data or an
        error. A request with a remote partition is also answered, because it has already waited for
        the remote read."""
        if not request.partitions or attempt.failed or attempt.size_bytes >= request.min_bytes:
            return True
        return any(one.source is FetchSource.REMOTE for one in attempt.answers)

    def _wait_ms(self, request: FetchRequest, attempt: _Attempt, left_ms: int) -> int:
        """Return how long to wait for new records before the next attempt."""
        if any(one.source is FetchSource.NO_MEMORY for one in attempt.answers):
            return min(left_ms, _MEMORY_CHECK_MS)
        throttled = [one for one in attempt.answers if one.source is FetchSource.THROTTLED]
        if not throttled:
            return left_ms
        topics = {one.partition.topic for one in throttled}
        free_ms = min(self.quotas.throttle_ms(topic, request.client_id) for topic in topics)
        least_ms, most_ms = _QUOTA_CHECKS_MS
        return min(left_ms, max(least_ms, free_ms), most_ms)

    @contextmanager
    def _notified_of_more(self, request: FetchRequest) -> Iterator[concurrent.futures.Future[None]]:
        """Yield a future that `notify` of any of the partitions completes. The future is registered
        before the attempt, so that no notification is lost."""
        more: concurrent.futures.Future[None] = concurrent.futures.Future()
        wanted: Sequence[TopicIdPartition] = [one.partition for one in request.partitions]
        with self._lock:
            for partition in wanted:
                self._waiting.setdefault(partition, set()).add(more)
        try:
            yield more
        finally:
            with self._lock:
                for partition in wanted:
                    waiting = self._waiting.get(partition)
                    if waiting is not None:
                        waiting.discard(more)
                        if not waiting:
                            del self._waiting[partition]


def _in_time(ticket: ReadTicket[OffsetAnswer], timeout_ms: int) -> OffsetAnswer:
    if ticket.future.cancelled():
        return OffsetAnswer(error=_CLOSED, text=_CLOSED_TEXT)
    if ticket.future.done():
        return ticket.future.result()
    ticket.give_up()
    return _timed_out(timeout_ms)


def _timed_out(timeout_ms: int) -> OffsetAnswer:
    return OffsetAnswer(
        error=FetchError.REQUEST_TIMED_OUT, text=f"not found within {timeout_ms} ms"
    )


def _seconds(wait_ms: int) -> float:
    """Return a timeout in seconds, cut to the largest value that the system permits."""
    return min(wait_ms / 1000, threading.TIMEOUT_MAX)


def _failure_without_view(asked: FetchPartition, error: FetchError | Exception) -> PartitionData:
    """Return the answer for a partition for which the host has no view."""
    if isinstance(error, Exception):
        code, text = error_code(error), error_text(error)
    else:
        code, text = error, "not here"
    return PartitionData(partition=asked.partition, source=FetchSource.ERROR, error=code, text=text)


def _range_text(fetch: PartitionFetch, error: FetchError) -> str:
    view = fetch.view
    if error is FetchError.NONE:
        return ""
    return (
        f"offset {fetch.offset}: the log has {view.log_start_offset} to {view.log_end_offset}, "
        f"here from {view.local_log_start_offset} on"
    )
