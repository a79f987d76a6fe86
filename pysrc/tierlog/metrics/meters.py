"""Meters and sampled statistics, computed as in Kafka. Not thread-safe; the recorder holds its
lock.

`Meter` is the Yammer (Dropwizard) meter behind Kafka's ``...PerSec`` MBeans. `SampledAvgMax`
combines Kafka's own ``Avg`` and ``Max`` over a few windows. Times are milliseconds of a clock that
never goes back.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Histogram", "HistogramSnapshot", "Meter", "MeterSnapshot", "SampledAvgMax"]

TICK_MS = 5_000
_TICK_S = TICK_MS / 1000
# The weight of a new tick in the averages over 1, 5 and 15 minutes.
_ALPHAS = tuple(1 - math.exp(-_TICK_S / 60 / minutes) for minutes in (1, 5, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterSnapshot:
    """A meter at one moment; rates are per second."""

    count: int
    mean_rate: float
    one_minute_rate: float
    five_minute_rate: float
    fifteen_minute_rate: float


class Meter:
    """A count and its rate, exponentially weighted over ticks of 5 s.

    Ticks follow the meter's creation in a fixed interval. Missed ticks are applied at the next
    call, so an idle meter needs no work. The first tick sets the rate.
    """

    __slots__ = ("_rates", "_started_ms", "_ticked_ms", "_uncounted", "count")

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self._uncounted = 0
        self._started_ms = now_ms
        self._ticked_ms = now_ms
        self._rates: tuple[float, ...] | None = None

    def mark(self, amount: int, now_ms: int) -> None:
        """Add `amount` to the count."""
        if now_ms - self._ticked_ms >= TICK_MS:
            self._tick(now_ms)
        self.count += amount
        self._uncounted += amount

    def snapshot(self, now_ms: int) -> MeterSnapshot:
        """Return counts and rates at `now_ms`."""
        if now_ms - self._ticked_ms >= TICK_MS:
            self._tick(now_ms)
        one, five, fifteen = self._rates or (0.0, 0.0, 0.0)
        elapsed_ms = now_ms - self._started_ms
        return MeterSnapshot(
            count=self.count,
            mean_rate=self.count * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0,
            one_minute_rate=one,
            five_minute_rate=five,
            fifteen_minute_rate=fifteen,
        )

    def _tick(self, now_ms: int) -> None:
        ticks = (now_ms - self._ticked_ms) // TICK_MS
        self._ticked_ms += ticks * TICK_MS
        rate = self._uncounted / _TICK_S
        self._uncounted = 0
        if self._rates is None:
            first = tuple(rate for _ in _ALPHAS)
        else:
            pairs = zip(self._rates, _ALPHAS, strict=True)
            first = tuple(old + alpha * (rate - old) for old, alpha in pairs)
        # The ticks after the first one had no events.
        idle = ticks - 1
        pairs = zip(first, _ALPHAS, strict=True)
        self._rates = tuple(value * (1 - alpha) ** idle for value, alpha in pairs)


class _Sample:
    __slots__ = ("count", "last_event_ms", "maximum", "started_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.restart(now_ms)

    def restart(self, now_ms: int) -> None:
        self.started_ms = self.last_event_ms = now_ms
        self.count = 0
        self.total = 0.0
        self.maximum = -math.inf


class SampledAvgMax:
    """Average and maximum of recent values (``SampledStat`` of Kafka's own metrics).

    It has a ring of ``samples + 1`` samples. A sample collects values for ``window_ms`` after its
    first value, and counts for ``samples`` windows after its last value. The defaults are the
    defaults of a broker (``metrics.num.samples``, ``metrics.sample.window.ms``).
    """

    __slots__ = ("_current", "_ring", "_samples", "_window_ms")

    def __init__(self, samples: int = 2, window_ms: int = 30_000) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._ring: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        if not self._ring:
            self._ring.append(_Sample(now_ms))
        sample = self._ring[self._current]
        if now_ms - sample.started_ms >= self._window_ms:
            sample = self._advance(now_ms)
        sample.count += 1
        sample.total += value
        sample.maximum = max(sample.maximum, value)
        sample.last_event_ms = now_ms

    def measure(self, now_ms: int) -> tuple[float, float] | None:
        """Return average and maximum; None when there are no recent values."""
        expire_ms = self._samples * self._window_ms
        for sample in self._ring:
            if now_ms - sample.last_event_ms >= expire_ms:
                sample.restart(now_ms)
        count = sum(sample.count for sample in self._ring)
        if not count:
            return None
        total = sum(sample.total for sample in self._ring)
        return total / count, max(sample.maximum for sample in self._ring)

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self._samples + 1)
        if self._current == len(self._ring):
            self._ring.append(_Sample(now_ms))
        else:
            self._ring[self._current].restart(now_ms)
        return self._ring[self._current]


class HistogramSnapshot(NamedTuple):
    """``counts_up_to``: for each of the ``bounds``, the number of values at or below it, then the
    number of all values. ``total``: the sum of all values."""

    bounds: tuple[float, ...]
    counts_up_to: tuple[int, ...]
    total: float


class Histogram:
    """Counts values by size. Not thread-safe."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot | None:
        """Return the present counts; None before the first value."""
        counts = tuple(accumulate(self._counts))
        return HistogramSnapshot(self._bounds, counts, self._total) if counts[-1] else None
