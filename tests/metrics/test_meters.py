"""Meters and sampled statistics against references that take every step one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.metrics.meters import Meter, SampledAvgMax

MINUTES = (1, 5, 15)
MOMENTS = st.lists(
    st.tuples(st.integers(0, 40_000) | st.integers(0, 600_000), st.integers(0, 1 << 40)),
    max_size=20,
)


class SteppedMeter:
    """A meter whose ticks are all made, as by a timer that fires every 5 seconds."""

    def __init__(self, started_ms: int) -> None:
        self.started_ms = self.next_ms = started_ms
        self.next_ms += 5000
        self.count = self.fresh = 0
        self.rates: dict[int, float] = {}

    def until(self, now_ms: int) -> None:
        while self.next_ms <= now_ms:
            for minutes in MINUTES:
                share = 1 - math.exp(-5 / (60 * minutes))
                seen = self.fresh / 5
                old = self.rates.get(minutes, seen)
                self.rates[minutes] = share * seen + (1 - share) * old
            self.fresh = 0
            self.next_ms += 5000

    def mark(self, amount: int, now_ms: int) -> None:
        self.until(now_ms)
        self.count += amount
        self.fresh += amount


@given(started_ms=st.integers(0, 10_000), moments=MOMENTS, rest_ms=st.integers(0, 3_600_000))
def test_meter_follows_the_stepped_one(
    started_ms: int, moments: list[tuple[int, int]], rest_ms: int
) -> None:
    meter, reference = Meter(started_ms), SteppedMeter(started_ms)
    now_ms = started_ms
    for pause_ms, amount in moments:
        now_ms += pause_ms
        meter.mark(amount, now_ms)
        reference.mark(amount, now_ms)
    now_ms += rest_ms
    reference.until(now_ms)
    found = meter.snapshot(now_ms)
    assert found.count == reference.count
    rates = (found.one_minute_rate, found.five_minute_rate, found.fifteen_minute_rate)
    expected = [reference.rates.get(minutes, 0.0) for minutes in MINUTES]
    assert rates == pytest.approx(expected, rel=1e-9, abs=1e-9)
    if now_ms > started_ms:
        expected_mean = reference.count / ((now_ms - started_ms) / 1000)
        assert found.mean_rate == pytest.approx(expected_mean)
    assert meter.snapshot(now_ms) == found


def test_rates_of_one_burst_fade_by_e_each_window() -> None:
    meter = Meter(0)
    meter.mark(3, 100)
    assert meter.snapshot(4_999).one_minute_rate == 0
    assert meter.snapshot(5_000).one_minute_rate == pytest.approx(0.6)
    for minutes in range(1, 16):
        found = meter.snapshot(5_000 + minutes * 60_000)
        assert found.one_minute_rate == pytest.approx(0.6 * math.exp(-minutes))
        assert found.five_minute_rate == pytest.approx(0.6 * math.exp(-minutes / 5))
        assert found.fifteen_minute_rate == pytest.approx(0.6 * math.exp(-minutes / 15))


def test_a_meter_just_made_has_no_mean() -> None:
    meter = Meter(7)
    meter.mark(10, 7)
    assert meter.snapshot(7).mean_rate == 0
    assert meter.snapshot(1_007).mean_rate == 10


class ListedSamples:
    """Kafka's sampled statistics, with every value kept in the sample it fell into."""

    def __init__(self) -> None:
        self.samples: list[list[float]] = []
        self.starts: list[int] = []
        self.lasts: list[int] = []
        self.current = 0

    def record(self, value: float, now_ms: int) -> None:
        if not self.samples:
            self.put(0, now_ms)
        if now_ms - self.starts[self.current] >= 30_000:
            self.current = (self.current + 1) % 3
            self.put(self.current, now_ms)
        self.samples[self.current].append(value)
        self.lasts[self.current] = now_ms

    def put(self, place: int, now_ms: int) -> None:
        if place == len(self.samples):
            for column in (self.samples, self.starts, self.lasts):
                column.append([])  # type: ignore[arg-type]
        self.samples[place] = []
        self.starts[place] = self.lasts[place] = now_ms

    def measure(self, now_ms: int) -> tuple[float, float] | None:
        for place, last_ms in enumerate(self.lasts):
            if now_ms - last_ms >= 60_000:
                self.put(place, now_ms)
        values = [value for sample in self.samples for value in sample]
        return (sum(values) / len(values), max(values)) if values else None


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 70_000), st.integers(0, 10_000) | st.none()), max_size=40
    )
)
def test_sampled_statistics_follow_the_listed_ones(steps: list[tuple[int, int | None]]) -> None:
    ours, reference = SampledAvgMax(), ListedSamples()
    now_ms = 0
    for pause_ms, value in steps:
        now_ms += pause_ms
        if value is None:
            found, expected = ours.measure(now_ms), reference.measure(now_ms)
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert found == pytest.approx(expected)
        else:
            ours.record(value, now_ms)
            reference.record(value, now_ms)


def test_samples_count_until_two_windows_after_their_last_event() -> None:
    stat = SampledAvgMax()
    assert stat.measure(0) is None
    stat.record(10, 0)
    stat.record(20, 30_000)
    assert stat.measure(59_999) == (15, 20)
    assert stat.measure(60_000) == (20, 20)
    assert stat.measure(90_000) is None
