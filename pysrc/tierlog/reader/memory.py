"""One budget for the bytes that all reads of a process hold (KAFKA-19763: five partitions of one
fetch took a broker down).

    memory = FetchMemory(256 << 20)
    permit = memory.acquire(size_bytes, wait_ms=500)      None when there was no room in time
    records = permit.hold(data)                           the bytes, and with them their room

Room is asked for before the bytes are. `Permit.hold` ties the two together: the room is given back
when nobody has a view of the bytes any more, neither a response nor a read-ahead, and no sooner. So
a response need not be closed, only dropped.

Whoever waits is served in the order of arrival, so that a large read does not starve. What is read
ahead takes a share of the budget at most, never waits, and is given up first (`on_shortage`). More
than the whole budget - one batch that is larger - is had by one reader that is alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tierlog._hot import ByteBudget, Permit
from tierlog.clock import Clock, SystemClock
from tierlog.errors import ClosedError

__all__ = ["FetchMemory", "Permit"]

_READ_AHEAD_SHARE = 0.5
# A waiter looks again after so long at the latest, should nobody have been able to tell it.
_LOOK_MS = 50


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
        if not 0 <= read_ahead_share <= 1:
            raise ValueError(f"read_ahead_share must be in 0..1, not {read_ahead_share}")
        self._read_ahead_share = read_ahead_share
        self._clock = clock or SystemClock()
        self.budget = ByteBudget(limit_bytes, self._ahead_limit(limit_bytes), self._admit_at_once)
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self._look_again = False
        self._on_shortage: list[Callable[[int], object]] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"FetchMemory({self.used_bytes} of {self.limit_bytes} bytes)"

    # -- what is there

    @property
    def limit_bytes(self) -> int:
        """The budget."""
        return self.budget.limit_bytes

    @property
    def used_bytes(self) -> int:
        """Room that is taken now."""
        return self.budget.used_bytes

    @property
    def read_ahead_bytes(self) -> int:
        """How much of it is for what nobody has asked for yet, or was when it was read."""
        return self.budget.ahead_bytes

    @property
    def most_bytes(self) -> int:
        """The most that was ever taken."""
        return self.budget.most_bytes

    @property
    def waiting(self) -> int:
        """How many readers wait."""
        return len(self._waiters)

    # -- taking

    def acquire(self, size_bytes: int, wait_ms: int) -> Permit | None:
        """Room for `size_bytes`, after waiting up to `wait_ms` for it; None when there was none.

        ClosedError when the memory was closed, also while waiting.
        """
        permit = self.try_acquire(size_bytes)
        if permit is not None:
            return permit
        waiter = _Waiter(size_bytes)
        with self._lock:
            self._check_open()
            self._waiters.append(waiter)
            self.budget.guarded = True
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
        if self._closed:
            self._check_open()
        return self.budget.take(size_bytes, ahead)

    def on_shortage(self, give_up: Callable[[int], object]) -> None:
        """`give_up` is told how many bytes a reader lacks before it waits."""
        self._on_shortage.append(give_up)

    def remove_on_shortage(self, give_up: Callable[[int], object]) -> None:
        """The opposite of `on_shortage`; may be repeated."""
        if give_up in self._on_shortage:
            self._on_shortage.remove(give_up)

    def resize(self, limit_bytes: int) -> None:
        """Another budget from now on; what is taken already stays taken."""
        self.budget.set_limits(limit_bytes, self._ahead_limit(limit_bytes))
        self._admit()

    def close(self) -> None:
        """Nobody gets room any more, who waits gets ClosedError; what is held stays good."""
        self._closed = self.budget.closed = True
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()

    # -- inside

    def _ahead_limit(self, limit_bytes: int) -> int:
        return int(limit_bytes * self._read_ahead_share)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the memory of fetches was closed")

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

    def _admit(self) -> None:
        """Let those in who now fit."""
        with self._lock:
            granted = self._grant()
        for waiter in granted:
            waiter.wake()
        if self._look_again:
            self._admit_at_once()

    def _admit_at_once(self) -> None:
        """The same when room came back while somebody waits.

        A finalizer may run anywhere, also in a thread that holds the lock: so nobody waits for it
        here, and everybody who had it looks again afterwards.
        """
        self._look_again = True
        while self._look_again and self._lock.acquire(blocking=False):
            try:
                granted = self._grant()
            finally:
                self._lock.release()
            for waiter in granted:
                waiter.wake()

    def _grant(self) -> list[_Waiter]:
        self._look_again = False
        granted = []
        while self._waiters:
            waiter = self._waiters[0]
            waiter.permit = self.budget.take(waiter.size_bytes, waited=True)
            if waiter.permit is None:
                break
            granted.append(self._waiters.popleft())
        self.budget.guarded = bool(self._waiters)
        return granted
