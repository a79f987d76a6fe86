"""Tells whether the wall clock can be believed when something is to be deleted by its age."""

from __future__ import annotations

from tierlog.clock import Clock

__all__ = ["ClockWatch"]

TOLERANCE_MS = 600_000


class ClockWatch:
    """The wall clock against the monotonic one, from the moment this was made.

    A wall clock that has jumped by more than ``tolerance_ms`` is not believed until it is back, or
    `trust` accepts it: an operator who mends a wrong clock should not thereby delete what a wrong
    one kept, or the other way round.
    """

    def __init__(self, clock: Clock, tolerance_ms: int = TOLERANCE_MS) -> None:
        self._clock = clock
        self._tolerance_ms = tolerance_ms
        self._difference_ms = self._now_difference_ms()

    def jumped_ms(self) -> int:
        """How far the wall clock is from where it should be; 0 while it is believed."""
        jump_ms = self._now_difference_ms() - self._difference_ms
        return jump_ms if abs(jump_ms) > self._tolerance_ms else 0

    def trust(self) -> None:
        """The wall clock is right as it is now."""
        self._difference_ms = self._now_difference_ms()

    def _now_difference_ms(self) -> int:
        return self._clock.now_ms() - self._clock.monotonic_ms()
