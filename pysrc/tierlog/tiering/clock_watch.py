"""Decides whether the wall clock can be trusted for deletions by age."""

from __future__ import annotations

from tierlog.clock import Clock

__all__ = ["ClockWatch"]

TOLERANCE_MS = 600_000


class ClockWatch:
    """Compares the wall clock with the monotonic clock since this object was created.

    After a jump of more than ``tolerance_ms`` the wall clock is not trusted until it jumps back or
    `trust` accepts it. Otherwise segments could be deleted too early: their timestamps may have
    been recorded while the clock was wrong.
    """

    def __init__(self, clock: Clock, tolerance_ms: int = TOLERANCE_MS) -> None:
        self._clock = clock
        self._tolerance_ms = tolerance_ms
        self._difference_ms = self._now_difference_ms()

    def jumped_ms(self) -> int:
        """Return the jump of the wall clock in ms; 0 while the clock is trusted."""
        jump_ms = self._now_difference_ms() - self._difference_ms
        return jump_ms if abs(jump_ms) > self._tolerance_ms else 0

    def trust(self) -> None:
        """Accept the present wall clock as correct."""
        self._difference_ms = self._now_difference_ms()

    def _now_difference_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()
