"""Quotas for the remote tier, which limit the bytes per second that are copied to it and read from
it (KIP-956).

A `QuotaManager` is one quota that threads share. A manager has a native sensor, which counts bytes,
and a queue of waiting threads. A unit is the copy of a segment, or a ranged read. Every unit uses
`QuotaManager.transfer`, which waits and counts in one of three modes (`QuotaMode`):

* ``check``, as in KIP-956: a unit starts while the rate is not above the quota, and is counted at
  its end. Threads that check at the same moment all start. A unit larger than the quota of a whole
  window no longer counts when the window has passed.
* ``reserve``: a unit's bytes are counted atomically before it starts; unused bytes are given back
  at its end. Every sliding window is within the quota; a large unit counts in several windows.
* ``pace``: like ``check``; in addition, every chunk is reserved and waits until the chunks before
  it have been sent at the quota's rate, so there is no burst after an idle time.

Waiting threads are admitted in the order of their arrival. So small units do not overtake a large
unit, and the chunks of several paced copies alternate.

The quota counts the bytes that each attempt sends to the store or requests from it. If a copy or a
read fails, its bytes stay counted, and the bytes of the retry are counted again. Retries inside the
store's client are not counted. All times are monotonic, so jumps of the wall clock do not matter.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tierlog._hot import QuotaSensor
from tierlog.clock import Clock, SystemClock
from tierlog.config.sections import QuotaConfig, QuotaMode, QuotaRateMode
from tierlog.errors import ClosedError, ConfigError, TierlogError

if TYPE_CHECKING:
    from tierlog._hot import QuotaSnapshot, Reservation

__all__ = ["PACE_SLACK_MS", "QuotaManager", "QuotaWaitCancelledError", "Transfer"]

# Waiting threads check at least this often whether they were cancelled.
LOOK_UP_MS = 1_000
# If a thread wakes up late, later chunks may catch up, but only for a delay up to this limit. So a
# burst is smaller than a part of an upload, unless a clock tick is longer than the limit.
PACE_SLACK_MS = 20
_PACE_SLACK_BYTES = 7 << 20
_TICKS_MS = 2
# A reservation counts for one sample longer than the window, so short samples waste less of the
# quota. For paced copies, each sample is split into the largest of these numbers of samples that a
# sensor can hold.
_PACE_BUCKETS = (10, 5, 2, 1)
_MAX_BUCKETS = 3_600


class QuotaWaitCancelledError(TierlogError):
    """A wait for a quota ended because its ``cancelled`` returned True. Nothing was counted."""


class QuotaManager:
    """One quota that threads share. The limit may change at any time.

        quota = QuotaManager.for_fetches(QuotaConfig(fetch_max_bytes_per_second=10 << 20))
        for records in tierlog.read(url, "orders", 0, fetch_quota=quota): ...

    ``name`` appears in errors. No other object may use the sensor, because all its times must come
    from ``clock``. Raises ConfigError when the mode reserves bytes but the sensor measures the rate
    over the elapsed time.
    """

    def __init__(
        self,
        name: str,
        sensor: QuotaSensor,
        clock: Clock | None = None,
        *,
        mode: QuotaMode = QuotaMode.CHECK,
    ) -> None:
        self.name = name
        self._sensor = sensor
        self.set_mode(mode)
        self._clock = clock or SystemClock()
        self._charging = threading.Lock()
        self._changed = threading.Condition()
        self._changes = 0
        self._line: deque[object] = deque()
        self._first: object | None = None
        self._spread = _Spread()
        self._closed = False

    @classmethod
    def for_copies(cls, config: QuotaConfig, clock: Clock | None = None) -> QuotaManager:
        """Return the quota of copies to the remote tier."""
        return _manager(
            "copy",
            config.copy_max_bytes_per_second,
            config.copy_quota_window_num,
            config.copy_quota_window_size_seconds * 1000,
            config.copy_quota_mode,
            config.quota_rate_mode,
            clock,
        )

    @classmethod
    def for_fetches(cls, config: QuotaConfig, clock: Clock | None = None) -> QuotaManager:
        """Return the quota of ranged reads from the remote tier."""
        mode = config.fetch_quota_mode
        return _manager(
            "fetch",
            config.fetch_max_bytes_per_second,
            config.fetch_quota_window_num,
            config.fetch_quota_window_size_seconds * 1000,
            QuotaMode.RESERVE if mode is QuotaMode.PACE else mode,
            config.quota_rate_mode,
            clock,
        )

    def __repr__(self) -> str:
        return f"QuotaManager({self.name!r}, limit={self.limit}, mode={self.mode.value!r})"

    # -- without waiting

    @property
    def limit(self) -> int | None:
        """The limit in bytes per second; None means unlimited."""
        return self._sensor.limit

    @property
    def paces(self) -> bool:
        """Whether each chunk is reserved before it is sent."""
        return self.mode is QuotaMode.PACE and self.limit is not None

    def set_limit(self, bytes_per_second: int | None) -> None:
        """Set the limit. The bytes that were already counted are kept, and waiting threads check
        again. None removes the limit; 0 stops all transfers until the next change.
        """
        with self._changed:
            now_ms = self._clock.monotonic_ms()
            self._spread.drain(self._sensor.limit, now_ms)
            self._sensor.set_limit(bytes_per_second, now_ms)
        self.wake()

    def set_mode(self, mode: QuotaMode) -> None:
        """Set the mode for all later waits. Raises ConfigError as the constructor does."""
        if mode is not QuotaMode.CHECK and self._sensor.rate_mode != "window":
            raise ConfigError(
                f"{self.name} quota: mode {mode.value} needs remote.log.manager.quota.rate.mode "
                f"window, found {self._sensor.rate_mode}"
            )
        self.mode = mode

    def throttle_ms(self) -> int:
        """Return the time in ms until the rate is not above the limit, if no further bytes are
        counted."""
        return self._sensor.throttle_ms(self._clock.monotonic_ms())

    def record(self, size_bytes: int) -> None:
        """Count bytes. Active transfers may call this method even after `close`."""
        self._sensor.record(size_bytes, self._clock.monotonic_ms())

    def try_reserve(self, size_bytes: int) -> Reservation | int:
        """Return a reservation, or the time in ms until a reservation may be granted. The caller
        settles the reservation with the number of moved bytes. A reservation that is dropped gives
        its bytes back. The call ignores the queue."""
        return self._sensor.try_reserve(size_bytes, self._clock.monotonic_ms())

    @property
    def is_limited(self) -> bool:
        """Whether a request needs permission, because there is a limit or the quota is closed."""
        return self._closed or self._sensor.limit is not None

    def try_charge(self, size_bytes: int) -> int:
        """Count a request and return 0, or count nothing and return the time in ms until the next
        attempt. The call never blocks and ignores the queue. Check and count are one step, so of
        several threads that charge at the same moment only one can exceed the limit."""
        with self._charging:
            if self._closed:
                return LOOK_UP_MS
            answer = self.admit_charge(size_bytes)
            if isinstance(answer, int) and answer > 0:
                return answer
            self.book_charge(answer, size_bytes)
            return 0

    def admit_charge(self, size_bytes: int) -> Reservation | int:
        """If a request is allowed, return 0 or a reservation for `book_charge`, else the time to
        wait in ms."""
        if self.mode is QuotaMode.CHECK:
            return self.throttle_ms()
        return self.try_reserve(size_bytes)

    def book_charge(self, admitted: Reservation | int, size_bytes: int) -> None:
        """Count `size_bytes` for a request that `admit_charge` allowed; 0 if the request was not
        made."""
        if not isinstance(admitted, int):
            admitted.settle(size_bytes, self._clock.monotonic_ms())
        elif size_bytes:
            self.record(size_bytes)

    def snapshot(self) -> QuotaSnapshot:
        """Return rate, limit, totals and throttled time for metrics. The call does not block other
        threads."""
        snapshot = self._sensor.snapshot(self._clock.monotonic_ms())
        return snapshot._replace(throttled_ms=snapshot.throttled_ms + self._spread.held_ms)

    def oversize_warning(self, unit_bytes: int) -> str | None:
        """Return a warning if units of `unit_bytes` exceed the quota in its mode, else None.

        Unless it is reserved, a unit larger than the quota of all samples no longer counts when
        these samples have passed. So a series of such units exceeds the quota (as in Kafka).
        """
        limit = self.limit
        if not limit or self.mode is not QuotaMode.CHECK:
            return None
        span_ms = self._sensor.num_samples * self._sensor.window_ms
        allowed_bytes = limit * span_ms // 1000
        if unit_bytes <= allowed_bytes:
            return None
        return (
            f"{self.name} quota: {unit_bytes} bytes in one piece are more than the "
            f"{allowed_bytes} that {limit} bytes per second allow in {span_ms} ms, and are "
            "forgotten after that time: the quota will not hold; mode reserve or pace keeps it"
        )

    # -- waiting

    def wait(
        self,
        *,
        cancelled: Callable[[], bool] | None = None,
        on_wait: Callable[[int], None] | None = None,
    ) -> int:
        """Block while the quota is exceeded; return the waiting time in ms.

        ``cancelled`` is called at least once a second and at once after `wake`. If ``cancelled``
        returns True, QuotaWaitCancelledError is raised. ``on_wait`` is called as often, with the
        estimated remaining time in ms. Raises ClosedError after `close`.
        """
        return self._until_admitted(self._sensor.throttle_ms, cancelled, on_wait)[1]

    def reserve(
        self,
        size_bytes: int,
        *,
        cancelled: Callable[[], bool] | None = None,
        on_wait: Callable[[int], None] | None = None,
    ) -> Reservation:
        """Return a reservation as `try_reserve` does, but block, as `wait` does, until it is
        granted."""
        return self._reserve(size_bytes, cancelled, on_wait)[0]

    @contextmanager
    def transfer(
        self,
        size_bytes: int,
        *,
        cancelled: Callable[[], bool] | None = None,
        on_wait: Callable[[int], None] | None = None,
    ) -> Iterator[Transfer]:
        """Open one unit of about ``size_bytes``. Wait, as `wait` does, until it may start. At the
        end of the unit, the moved bytes are counted, even after an error."""
        unit = Transfer(self, self._clock, cancelled, on_wait)
        unit.begin(size_bytes)
        try:
            yield unit
        finally:
            unit.end()

    def wake(self) -> None:
        """Make waiting threads check at once whether they may continue or were cancelled."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Close the quota. Present and later waits raise ClosedError."""
        self._closed = True
        self.wake()

    def _reserve(
        self,
        size_bytes: int,
        cancelled: Callable[[], bool] | None,
        on_wait: Callable[[int], None] | None,
    ) -> tuple[Reservation, int]:
        granted, waited_ms = self._until_admitted(
            lambda now_ms: self._sensor.try_reserve(size_bytes, now_ms), cancelled, on_wait
        )
        assert granted is not None, "a sensor grants, or tells how long to wait"
        return granted, waited_ms

    def _pace(
        self,
        size_bytes: int,
        cancelled: Callable[[], bool] | None,
        on_wait: Callable[[int], None] | None,
    ) -> int:
        """Wait until a chunk may be sent, and count it; return the waiting time in ms."""
        granted, waited_ms = self._until_admitted(
            lambda now_ms: self._try_reserve_piece(size_bytes, now_ms), cancelled, on_wait
        )
        assert granted is not None, "a sensor grants, or tells how long to wait"
        granted.settle(size_bytes, self._clock.monotonic_ms())
        return waited_ms

    def _try_reserve_piece(self, size_bytes: int, now_ms: int) -> Reservation | int:
        """Return a reservation for a chunk, or the time to wait in ms. A chunk also waits until the
        chunks before it have been sent at the quota's rate."""
        with self._changed:
            limit = self._sensor.limit
            wait_ms = self._spread.wait_ms(limit, now_ms)
            answer = wait_ms or self._sensor.try_reserve(size_bytes, now_ms)
            if not isinstance(answer, int):
                self._spread.add(size_bytes)
            return answer

    def _until_admitted(
        self,
        attempt: Callable[[int], Reservation | int],
        cancelled: Callable[[], bool] | None,
        on_wait: Callable[[int], None] | None,
    ) -> tuple[Reservation | None, int]:
        """Call ``attempt(now_ms)``, which returns the time to wait in ms, until it returns 0 or a
        reservation. Return the reservation, or None, and the waiting time in ms. Only the first
        thread of the queue may attempt, or any thread when the queue is empty."""
        place: object | None = None
        waiting_since_ms = 0
        sleep_ms: int | None
        try:
            while True:
                changes = self._changes
                if self._closed:
                    raise ClosedError(f"{self.name} quota: closed")
                if cancelled is not None and cancelled():
                    raise QuotaWaitCancelledError(f"{self.name} quota: no longer waited for")
                now_ms = self._clock.monotonic_ms()
                # This thread is the first of the queue, or the queue is empty (both are None).
                if self._first is place:
                    answer = attempt(now_ms)
                    if not isinstance(answer, int) or answer == 0:
                        waited_ms = 0 if place is None else now_ms - waiting_since_ms
                        return None if isinstance(answer, int) else answer, waited_ms
                    sleep_ms = answer
                else:
                    answer = max(1, self._sensor.throttle_ms(now_ms))
                    sleep_ms = None
                if place is None:
                    waiting_since_ms = now_ms
                    place = self._line_up()
                if on_wait is not None:
                    on_wait(answer)
                self._sleep(changes, sleep_ms)
        finally:
            if place is not None:
                self._leave(place)

    def _sleep(self, changes: int, duration_ms: int | None) -> None:
        """Wait for a change. The first thread in the queue waits at most `duration_ms`, and then
        wakes the other threads, so that they check whether they were cancelled."""
        # Callbacks and the sensor ran without the lock, so a change since `changes` was read ends
        # the wait.
        with self._changed:
            if self._changes != changes:
                return
            if duration_ms is None:
                self._changed.wait()
            else:
                self._clock.wait(self._changed, min(duration_ms, LOOK_UP_MS))
                self._changed.notify_all()

    def _line_up(self) -> object:
        place = object()
        with self._changed:
            self._line.append(place)
            self._first = self._line[0]
        return place

    def _leave(self, place: object) -> None:
        with self._changed:
            self._line.remove(place)
            self._first = self._line[0] if self._line else None
            self._changes += 1
            self._changed.notify_all()


class _Spread:
    """The bytes of chunks that were sent ahead of the quota's rate. The number of these bytes
    decreases at the quota's rate."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._at_ms = 0
        self._held_until_ms = 0
        # The time during which any chunk had to wait.
        self.held_ms = 0

    def drain(self, limit: int | None, now_ms: int) -> None:
        """Subtract the bytes that pass at the rate `limit` in the time since the last call."""
        passed_ms, self._at_ms = max(0, now_ms - self._at_ms), now_ms
        left = 0.0 if limit is None else self._bytes - limit * passed_ms / 1000
        self._bytes = max(0.0, left)

    def wait_ms(self, limit: int | None, now_ms: int) -> int:
        """Return the time in ms until the next chunk may be sent."""
        self.drain(limit, now_ms)
        if not limit:
            return 0
        slack = min(limit * PACE_SLACK_MS / 1000, _PACE_SLACK_BYTES)
        early = self._bytes - max(slack, limit * _TICKS_MS / 1000)
        wait_ms = max(0, math.ceil(early * 1000 / limit))
        # A thread that waits longer calls this again.
        until_ms = now_ms + min(wait_ms, LOOK_UP_MS)
        self.held_ms += max(0, until_ms - max(now_ms, self._held_until_ms))
        self._held_until_ms = max(self._held_until_ms, until_ms)
        return wait_ms

    def add(self, size_bytes: int) -> None:
        """Add a chunk that is sent now."""
        self._bytes += size_bytes


class Transfer:
    """An active unit, opened by `QuotaManager.transfer`. ``waited_ms`` is how long it has
    waited."""

    def __init__(
        self,
        manager: QuotaManager,
        clock: Clock,
        cancelled: Callable[[], bool] | None,
        on_wait: Callable[[int], None] | None,
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._cancelled = cancelled
        self._on_wait = on_wait
        self._reservation: Reservation | None = None
        self._moved_bytes = 0
        self.waited_ms = 0

    def begin(self, size_bytes: int) -> None:
        """Wait until the unit may start."""
        if self._manager.mode is QuotaMode.RESERVE:
            self._reservation, waited_ms = self._manager._reserve(
                size_bytes, self._cancelled, self._on_wait
            )
            self.waited_ms += waited_ms
        else:
            self.waited_ms += self._manager.wait(cancelled=self._cancelled, on_wait=self._on_wait)

    def before_piece(self, size_bytes: int) -> None:
        """Register a chunk before it is sent. In mode ``pace``, wait until the chunk may be
        sent."""
        if self._manager.mode is QuotaMode.PACE:
            self.waited_ms += self._manager._pace(size_bytes, self._cancelled, self._on_wait)
        else:
            self.moved(size_bytes)

    def moved(self, size_bytes: int) -> None:
        """Add moved bytes, which are counted at the end of the unit."""
        self._moved_bytes += size_bytes

    def end(self) -> None:
        """Count the moved bytes, and give unused reserved bytes back."""
        if self._reservation is not None:
            self._reservation.settle(self._moved_bytes, self._clock.monotonic_ms())
            self._manager.wake()
        elif self._moved_bytes:
            self._manager.record(self._moved_bytes)
        self._moved_bytes = 0


def _manager(
    name: str,
    limit: int | None,
    num_samples: int,
    window_ms: int,
    mode: QuotaMode,
    rate: QuotaRateMode,
    clock: Clock | None,
) -> QuotaManager:
    paced = mode is QuotaMode.PACE
    finer = next(n for n in _PACE_BUCKETS if n == 1 or (paced and num_samples * n <= _MAX_BUCKETS))
    sensor = QuotaSensor(
        num_samples=num_samples * finer,
        window_ms=window_ms // finer,
        limit_bytes_per_second=limit,
        rate="window" if rate is QuotaRateMode.WINDOW else "elapsed",
    )
    return QuotaManager(name, sensor, clock, mode=mode)
