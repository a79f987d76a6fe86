"""Quotas without tierlog: Kafka's arithmetic in Python, the sensor of kafka-python, and a token
bucket."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable

import token_bucket

with warnings.catch_warnings():
    # kafka-python reads its own files in a way that Python 3.11 deprecates and Python 3.13 does
    # not.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import QuotaViolationError
    from kafka.metrics import MetricConfig, Metrics, Quota
    from kafka.metrics.stats import Rate
    from kafka.metrics.stats.sensor import Sensor


class _Sample:
    __slots__ = ("last_event_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_event_ms = now_ms
        self.value = 0


class SampledRate:
    """A thread-safe quota in plain Python. The class has the ring of samples of Kafka's SampledStat
    and the window of its SimpleRate, behind a lock."""

    __slots__ = ("_current", "_limit", "_lock", "_num_samples", "_samples", "_window_ms")

    def __init__(self, num_samples: int, window_ms: int, limit_bytes_per_second: float) -> None:
        self._num_samples = num_samples
        self._window_ms = window_ms
        self._limit = limit_bytes_per_second
        self._samples: list[_Sample] = []
        self._current = 0
        self._lock = threading.Lock()

    def record_and_throttle_ms(self, amount: int, now_ms: int) -> int:
        with self._lock:
            self._record(amount, now_ms)
            return self._throttle_ms(now_ms)

    def record(self, amount: int, now_ms: int) -> None:
        with self._lock:
            self._record(amount, now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        with self._lock:
            return self._throttle_ms(now_ms)

    def rate(self, now_ms: int) -> float:
        with self._lock:
            return self._measure(now_ms)[0]

    def _record(self, amount: int, now_ms: int) -> None:
        samples = self._samples
        if not samples:
            samples.append(_Sample(now_ms))
        sample = samples[self._current]
        if now_ms - sample.start_ms >= self._window_ms:
            sample = self._advance(now_ms)
        sample.value += amount
        sample.last_event_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self._num_samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def _measure(self, now_ms: int) -> tuple[float, int]:
        """Return the bytes per second, and the milliseconds over which they were counted."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        horizon_ms = now_ms - self._num_samples * self._window_ms
        total, oldest_ms = 0, now_ms
        for sample in self._samples:
            if sample.last_event_ms <= horizon_ms:
                sample.reset(now_ms)
            total += sample.value
            if sample.start_ms < oldest_ms:
                oldest_ms = sample.start_ms
        elapsed_ms = max(now_ms - oldest_ms, self._window_ms)
        return total / (elapsed_ms / 1000), elapsed_ms

    def _throttle_ms(self, now_ms: int) -> int:
        rate, elapsed_ms = self._measure(now_ms)
        if rate <= self._limit:
            return 0
        return round((rate - self._limit) / self._limit * elapsed_ms)


def kafka_python_sensor(num_samples: int, window_ms: int, limit: float) -> Sensor:
    """Return the sensor of kafka-python. Each record also checks the quota, and raises an error
    when it is exceeded."""
    config = MetricConfig(
        quota=Quota.upper_bound(limit), samples=num_samples, time_window_ms=window_ms
    )
    metrics = Metrics(config)
    sensor = metrics.sensor("bytes")
    sensor.add(metrics.metric_name("rate", "bench"), Rate())
    return sensor


def kafka_python_records(sensor: Sensor, amount: int, span: range, per_ms: int) -> int:
    """Record `per_ms` times in each millisecond. Return how many records exceeded the quota."""
    exceeded = 0
    record = sensor.record
    for now_ms in span:
        for _ in range(per_ms):
            try:
                record(amount, now_ms)
            except QuotaViolationError:
                exceeded += 1
    return exceeded


def token_bucket_records(amount: int, limit: int, records: int) -> int:
    """Take bytes from a token bucket that holds the bytes of one second. The bucket reads the clock
    itself."""
    consume = token_bucket.Limiter(limit, limit, token_bucket.MemoryStorage()).consume
    exceeded = 0
    for _ in range(records):
        if not consume("bytes", amount):
            exceeded += 1
    return exceeded


def clocked_records(sensor: SampledRate, amount: int, records: int) -> int:
    """Record at the time of the clock. Return how many records exceeded the quota."""
    record_and_throttle_ms: Callable[[int, int], int] = sensor.record_and_throttle_ms
    clock_ns = time.monotonic_ns
    exceeded = 0
    for _ in range(records):
        if record_and_throttle_ms(amount, clock_ns() // 1_000_000):
            exceeded += 1
    return exceeded
