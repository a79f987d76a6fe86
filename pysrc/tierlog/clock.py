"""The only module that reads clocks. Code that needs the time takes a `Clock` as an argument."""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Time in milliseconds."""

    def now_ms(self) -> int:
        """Return the wall clock: milliseconds since 1970-01-01 UTC. It may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since a fixed moment; the value never decreases."""
        ...

    def sleep(self, duration_ms: int) -> None:
        """Wait `duration_ms`; return at once for 0 or less."""
        ...

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        """Wait as `sleep` does, or until `condition`, which the caller holds, is notified."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep(self, duration_ms: int) -> None:
        if duration_ms > 0:
            time.sleep(duration_ms / 1000)

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        if duration_ms > 0:
            condition.wait(duration_ms / 1000)


class ManualClock:
    """A clock for tests. `sleep`, `wait` and `advance` move the time forward and return at once.

    `jump_wall` moves only the wall clock, as an operator or a time server does.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def sleep(self, duration_ms: int) -> None:
        if duration_ms > 0:
            self.advance(duration_ms)

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        self.sleep(duration_ms)

    def advance(self, duration_ms: int) -> None:
        """Advance both clocks by `duration_ms`; raise ValueError when it is negative."""
        if duration_ms < 0:
            raise ValueError(f"time does not go back: {duration_ms} ms")
        with self._lock:
            self._now_ms += duration_ms
            self._monotonic_ms += duration_ms

    def jump_wall(self, by_ms: int) -> None:
        """Move the wall clock by `by_ms`, forward or back. The monotonic clock does not change."""
        with self._lock:
            self._now_ms += by_ms
