"""One budget for the bytes that all reads of a process hold. A broker without such a budget ran out
of memory at a fetch of five partitions (KAFKA-19763).

    memory = FetchMemory(256 << 20)
    permit = memory.acquire(size_bytes, wait_ms=500)      None when the memory stays full
    records = permit.hold(data)                           a view of the bytes that keeps the permit

A reader acquires a permit before it requests bytes. `Permit.hold` ties the permit to the bytes. The
permit returns to the budget when the last view of the bytes is freed, in a response or in
read-ahead. So the receiver of a response need not close the response.

Waiting readers are served in the order of arrival, so that a large read does not starve. Read-ahead
takes at most a share of the budget, never waits, and is dropped first (`on_shortage`). A batch that
is larger than the whole budget gets a permit when no other permit is held.
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
# A waiter checks again after this time, in case a finalizer could not wake it.
_LOOK_MS = 50


class _Waiter:
    __slots__ = ("condition", "permit", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.permit: Permit | None = None
        self.condition = threading.Condition()

    def wake(self) -> None:
        """Wake the waiter, but never wait for its lock, because a finalizer may run anywhere."""
        if self.condition.acquire(blocking=False):
            try:
                self.condition.notify_all()
            finally:
                self.condition.release()


class FetchMemory:
    """A budget of `limit_bytes` for all readers together. Any thread.

    Read-ahead may take ``read_ahead_share`` of the budget. Only the monotonic time of `clock` is
    used.
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

    # -- counts

    @property
    def limit_bytes(self) -> int:
        """The size of the budget."""
        return self.budget.limit_bytes

    @property
    def used_bytes(self) -> int:
        """The number of bytes of all permits that are held now."""
        return self.budget.used_bytes

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes of the permits that read-ahead has acquired, even if a reader uses them now."""
        return self.budget.ahead_bytes

    @property
    def most_bytes(self) -> int:
        """The highest `used_bytes` so far."""
        return self.budget.most_bytes

    @property
    def waiting(self) -> int:
        """The number of waiting readers."""
        return len(self._waiters)

    # -- taking

    def acquire(self, size_bytes: int, wait_ms: int) -> Permit | None:
        """Return a permit for `size_bytes`, after a wait of up to `wait_ms`; None when the memory
        stays full.

        Raises ClosedError when the memory was closed, before or during the wait.
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
        # The next waiter may fit.
        self._admit()
        if waiter.permit is None:
            self._check_open()
        return waiter.permit

    def try_acquire(self, size_bytes: int, *, ahead: bool = False) -> Permit | None:
        """Return a permit if there is room now and no reader waits, else None. If `ahead` is true,
        the share for read-ahead must have room, too."""
        if self._closed:
            self._check_open()
        return self.budget.take(size_bytes, ahead)

    def on_shortage(self, give_up: Callable[[int], object]) -> None:
        """Before a reader waits for memory, call `give_up` with the number of bytes that the reader
        needs."""
        self._on_shortage.append(give_up)

    def remove_on_shortage(self, give_up: Callable[[int], object]) -> None:
        """Undo `on_shortage`. The call may be repeated."""
        if give_up in self._on_shortage:
            self._on_shortage.remove(give_up)

    def resize(self, limit_bytes: int) -> None:
        """Set the size of the budget. Permits that are held remain valid."""
        self.budget.set_limits(limit_bytes, self._ahead_limit(limit_bytes))
        self._admit()

    def close(self) -> None:
        """Grant no more permits. Waiting readers get ClosedError. Permits that are held remain
        valid."""
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
            # Ask again for chunks to be dropped, because chunks that were in use may be idle now.
            for give_up in tuple(self._on_shortage):
                give_up(waiter.size_bytes)
            self._admit()
            with waiter.condition:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if waiter.permit is not None or self._closed or left_ms <= 0:
                    return
                self._clock.wait(waiter.condition, min(left_ms, _LOOK_MS))

    def _admit(self) -> None:
        """Grant permits to the waiters that now fit."""
        with self._lock:
            granted = self._grant()
        for waiter in granted:
            waiter.wake()
        if self._look_again:
            self._admit_at_once()

    def _admit_at_once(self) -> None:
        """Grant permits when one was returned while a reader waits.

        This method runs in finalizers, which may interrupt a thread that holds the lock. So the
        method never waits for the lock. Instead, every thread checks for waiters again after it has
        released the lock.
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
