"""Measures how idle a pool of threads was in the last minute."""

from __future__ import annotations

from collections.abc import Iterable

from tierlog._hot import QuotaSensor

__all__ = ["BusyMeter"]

_WINDOW_S = 60
_WINDOW_MS = _WINDOW_S * 1000


class BusyMeter:
    """Computes the share of the last minute in which threads were busy with runs. Any thread."""

    def __init__(self) -> None:
        # A rate of busy microseconds per second.
        self._busy = QuotaSensor(num_samples=_WINDOW_S, window_ms=1000)

    def ran(self, duration_ms: int, now_ms: int) -> None:
        """Record the duration of a run that has ended."""
        self._busy.record(min(duration_ms, _WINDOW_MS) * 1000, now_ms)

    def idle_ratio(self, threads: int, under_way_ms: Iterable[int], now_ms: int) -> float:
        """Return the share of time in which the `threads` were idle, from 0 to 1. `under_way_ms`
        has the durations of the active runs."""
        busy_ms = self._busy.rate(now_ms) * _WINDOW_S / 1000
        busy_ms += sum(min(one, _WINDOW_MS) for one in under_way_ms)
        return min(1.0, max(0.0, 1 - busy_ms / (_WINDOW_MS * max(1, threads))))
