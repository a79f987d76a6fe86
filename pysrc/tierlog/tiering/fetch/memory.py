"""One budget for the bytes that all reads of a process hold (KAFKA-19763: five partitions of one
fetch took a broker down).

    memory = FetchMemory(256 << 20)
    permit = memory.acquire(size_bytes, wait_ms=500)      None when there was no room in time
    records = memory.hold(data, permit)                   the bytes, and with them their room

Room is asked for before the bytes are. `hold` ties the two together: the room is given back when
nobody has a view of the bytes any more, neither a response nor a read-ahead, and no sooner. So a
response need not be closed, only dropped.

Whoever waits is served in the order of arrival, so that a large read does not starve. What is read
ahead takes a share of the budget at most, never waits, and is given up first (`on_shortage`). More
than the whole budget - one batch that is larger - is had by one reader that is alone.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tierlog.clock import Clock, SystemClock
from tierlog.errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["FetchMemory", "Permit"]

_READ_AHEAD_SHARE = 0.5
# A waiter looks again after so long at the latest, should nobody have been able to tell it.
_LOOK_MS = 50


class Permit:
    """Room for `size_bytes`; `release` gives it back, once, however often it is called."""

    __slots__ = ("_memory", "_owed", "ahead", "size_bytes")

    def __init__(self, memory: FetchMemory, size_bytes: int, ahead: bool) -> None:
        self.size_bytes = size_bytes
        self.ahead = ahead
        self._memory = memory
        # Taking an element out is one step: of two threads one has it.
        self._owed = [size_bytes]

    def release(self) -> None:
        """The room is free for others. From any thread, also from a finalizer."""
        try:
            self._owed.pop()
        except IndexError:
            return
        self._memory._give_back(self)


class _Held(weakref.ref["np.ndarray[tuple[int], np.dtype[np.uint8]]"]):
    """The exporter of held bytes; it goes with the last view of them."""

    __slots__ = ("permit",)

    permit: Permit


class _Waiter:
    __slots__ = ("condition", "permit", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.permit: Permit | None = None
        self.condition = threading.Condition()

    def wake(self) -> None:
        """Without waiting for its lock: a finalizer may call this wherever it pleases."""
        if self.condition.acquire(blocking=False):
            try:
                self.condition.notify_all()
            finally:
                self.condition.release()


class FetchMemory:
    """`limit_bytes` for everybody together. Any thread.

    ``read_ahead_share`` of it may be read ahead. Time is `clock`'s monotonic one.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        clock: Clock | None = None,
        read_ahead_share: float = _READ_AHEAD_SHARE,
    ) -> None:
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes must be at least 1, not {limit_bytes}")
        if not 0 <= read_ahead_share <= 1:
            raise ValueError(f"read_ahead_share must be in 0..1, not {read_ahead_share}")
        self._limit_bytes = limit_bytes
        self._read_ahead_share = read_ahead_share
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._read_ahead_bytes = 0
        self._most_bytes = 0
        self._waiters: deque[_Waiter] = deque()
        # What came back while somebody held the lock; a finalizer must not wait for it.
        self._returned: deque[Permit] = deque()
        # By id: a reference to an array has no hash.
        self._held: dict[int, _Held] = {}
        self._on_shortage: list[Callable[[int], object]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"FetchMemory({self._used_bytes} of {self._limit_bytes} bytes)"

    # -- what is there

    @property
    def limit_bytes(self) -> int:
        """The budget."""
        return self._limit_bytes

    @property
    def used_bytes(self) -> int:
        """Room that is taken now."""
        self._settle()
        return self._used_bytes

    @property
    def read_ahead_bytes(self) -> int:
        """How much of it is for what nobody has asked for yet, or was when it was read."""
        self._settle()
        return self._read_ahead_bytes

    @property
    def most_bytes(self) -> int:
        """The most that was ever taken."""
        return self._most_bytes

    @property
    def waiting(self) -> int:
        """How many readers wait."""
        return len(self._waiters)

    # -- taking

    def acquire(self, size_bytes: int, wait_ms: int) -> Permit | None:
        """Room for `size_bytes`, after waiting up to `wait_ms` for it; None when there was none.

        ClosedError when the memory was closed, also while waiting.
        """
        permit = self._take(size_bytes, ahead=False)
        if permit is not None:
            return permit
        waiter = _Waiter(size_bytes)
        with self._lock:
            self._check_open()
            self._waiters.append(waiter)
        self._wait(waiter, wait_ms)
        with self._lock:
            if waiter.permit is None and waiter in self._waiters:
                self._waiters.remove(waiter)
        # Who stood behind it may fit.
        self._admit()
        if waiter.permit is None:
            self._check_open()
        return waiter.permit

    def try_acquire(self, size_bytes: int, *, ahead: bool = False) -> Permit | None:
        """Room if there is some now and nobody waits for it; `ahead`: within the share for
        read-ahead."""
        return self._take(size_bytes, ahead)

    def hold(self, data: Buffer, permit: Permit) -> memoryview:
        """A read-only view of `data`, whose room is given back when neither it nor a view made
        from it is left. `data` itself is to be forgotten by the caller."""
        exporter = np.frombuffer(memoryview(data), np.uint8)
        if exporter.flags.writeable:
            exporter.flags.writeable = False
        held = _Held(exporter, self._dropped)
        held.permit = permit
        self._held[id(held)] = held
        return exporter.data

    def on_shortage(self, give_up: Callable[[int], object]) -> None:
        """`give_up` is told how many bytes a reader lacks before it waits."""
        self._on_shortage.append(give_up)

    def remove_on_shortage(self, give_up: Callable[[int], object]) -> None:
        """The opposite of `on_shortage`; may be repeated."""
        if give_up in self._on_shortage:
            self._on_shortage.remove(give_up)

    def resize(self, limit_bytes: int) -> None:
        """Another budget from now on; what is taken already stays taken."""
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes must be at least 1, not {limit_bytes}")
        self._limit_bytes = limit_bytes
        self._admit()

    def close(self) -> None:
        """Nobody gets room any more, who waits gets ClosedError; what is held stays good."""
        self._closed = True
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()
        self._settle()

    # -- inside

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the memory of fetches was closed")

    def _take(self, size_bytes: int, ahead: bool) -> Permit | None:
        if size_bytes < 0:
            raise ValueError(f"no room of {size_bytes} bytes")
        if self._returned:
            self._settle()
        with self._lock:
            self._check_open()
            fits = not self._waiters and self._fits(size_bytes, ahead)
            permit = self._grant(size_bytes, ahead) if fits else None
        if self._returned:
            self._settle()
        return permit

    def _fits(self, size_bytes: int, ahead: bool) -> bool:
        if ahead:
            share = int(self._limit_bytes * self._read_ahead_share)
            if self._read_ahead_bytes + size_bytes > share:
                return False
            return self._used_bytes + size_bytes <= self._limit_bytes
        return self._used_bytes + size_bytes <= self._limit_bytes or self._used_bytes == 0

    def _grant(self, size_bytes: int, ahead: bool) -> Permit:
        self._used_bytes += size_bytes
        if ahead:
            self._read_ahead_bytes += size_bytes
        if self._used_bytes > self._most_bytes:
            self._most_bytes = self._used_bytes
        return Permit(self, size_bytes, ahead)

    def _wait(self, waiter: _Waiter, wait_ms: int) -> None:
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            # Again and again: what was in use may lie idle now.
            for give_up in tuple(self._on_shortage):
                give_up(waiter.size_bytes)
            self._admit()
            with waiter.condition:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if waiter.permit is not None or self._closed or left_ms <= 0:
                    return
                self._clock.wait(waiter.condition, min(left_ms, _LOOK_MS))

    def _dropped(self, held: _Held) -> None:
        self._held.pop(id(held), None)
        held.permit.release()

    def _give_back(self, permit: Permit) -> None:
        self._returned.append(permit)
        self._settle()

    def _settle(self) -> None:
        """Count what came back and let those in who now fit.

        A finalizer may run anywhere, also in a thread that holds the lock: so nobody waits for it
        here, and everybody who had it looks again afterwards.
        """
        while self._returned or self._waiters:
            if not self._lock.acquire(blocking=False):
                return
            try:
                granted = self._count_and_grant()
            finally:
                self._lock.release()
            for waiter in granted:
                waiter.wake()
            if not self._returned:
                return

    def _admit(self) -> None:
        with self._lock:
            granted = self._count_and_grant()
        for waiter in granted:
            waiter.wake()
        self._settle()

    def _count_and_grant(self) -> list[_Waiter]:
        while True:
            try:
                permit = self._returned.popleft()
            except IndexError:
                break
            self._used_bytes -= permit.size_bytes
            if permit.ahead:
                self._read_ahead_bytes -= permit.size_bytes
        granted = []
        while self._waiters and self._fits(self._waiters[0].size_bytes, False):
            waiter = self._waiters.popleft()
            waiter.permit = self._grant(waiter.size_bytes, False)
            granted.append(waiter)
        return granted
