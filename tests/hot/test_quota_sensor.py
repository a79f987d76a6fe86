"""The quota sensor from Python: Kafka's arithmetic, bad input, reservations, threads, memory."""

from __future__ import annotations

import array
import copy
import gc
import math
import pickle
import sys
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.hot.support import in_child, together
from tierlog import ClosedError, QuotaSensor, QuotaSnapshot, Reservation

TEN_YEARS_MS = 10 * 365 * 86_400_000
GIB, MIB = 1 << 30, 1 << 20


def record(amount: int, now_ms: int) -> tuple[int, int, None, None]:
    return now_ms, amount, None, None


def check(
    now_ms: int, rate: float | None = None, throttle_ms: int | None = None
) -> tuple[int, None, float | None, int | None]:
    return now_ms, None, rate, throttle_ms


# What Kafka's own classes answer: 11 samples (F: 3) of 1 s, a bound of 1,000 (G: 10 MiB).
KAFKA_CASES: dict[str, tuple[int, int, list[Any]]] = {
    "A": (
        11,
        1000,
        [
            check(0, 0, 0),
            record(5000, 0),
            *(check(now, 5000, 4000) for now in (0, 500, 1000)),
            check(2000, 2500, 3000),
            check(5000, 1000, 0),
            check(10_999, 454.587, 0),
            check(11_000, 0, 0),
        ],
    ),
    "B": (
        11,
        1000,
        [
            record(5000, 300),
            check(300, 5000, 4000),
            check(1300, 5000, 4000),
            check(5300, 1000, 0),
        ],
    ),
    "C": (
        11,
        1000,
        [
            record(500, 0),
            record(500, 500),
            check(999, 1000, 0),
            record(500, 1000),
            record(500, 1500),
            check(2000, 1000, 0),
            record(500, 2000),
            record(500, 2500),
            check(3000, 1000, 0),
        ],
    ),
    "D": (
        11,
        1000,
        [
            *(record(1000, now) for now in (0, 900, 1000, 11_800)),
            check(11_800, 338.983),
            check(11_899, 336.163),
            check(11_900, 183.486),
            check(12_000, 1000),
        ],
    ),
    "E": (
        11,
        1000,
        [
            record(20_000, 0),
            check(50_000),
            record(20_000, 60_000),
            check(60_000, 2000, 10_000),
            check(60_999, 1818.347),
            check(61_000, 20_000, 19_000),
            check(65_000, 4000, 15_000),
        ],
    ),
    "E2": (
        11,
        1000,
        [
            record(20_000, 0),
            record(20_000, 60_000),
            check(60_000, 20_000, 19_000),
            check(61_000, 20_000, 19_000),
            check(65_000, 4000, 15_000),
        ],
    ),
    "F": (
        3,
        1000,
        [*(record(1000, now) for now in (0, 1000, 2000, 3000)), check(3000, 1500, 1000)],
    ),
    "G": (
        11,
        10 * MIB,
        [
            record(GIB, 0),
            check(0, None, 101_400),
            check(10_000, 107_374_182.4, 92_400),
            check(10_999, None, 91_401),
            check(11_000, 0, 0),
        ],
    ),
    "H": (11, 1000, [record(1000, 0), check(0, 1000, 0), record(1, 0), check(0, 1001, 1)]),
}


@pytest.mark.parametrize("case", KAFKA_CASES)
def test_elapsed_mode_answers_as_kafka_does(case: str) -> None:
    num_samples, limit, steps = KAFKA_CASES[case]
    sensor = QuotaSensor(num_samples, 1000, limit, rate="elapsed")
    for now_ms, amount, rate, throttle_ms in steps:
        if amount is not None:
            sensor.record(amount, now_ms)
            continue
        found = sensor.throttle_ms(now_ms)
        assert throttle_ms is None or found == throttle_ms, (case, now_ms)
        assert rate is None or sensor.rate(now_ms) == pytest.approx(rate, abs=5e-4), (case, now_ms)


def test_window_mode_divides_by_the_whole_window() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    assert sensor.record_and_throttle_ms(11_000, 0) == 0
    assert sensor.rate(0) == 1000.0
    assert sensor.record_and_throttle_ms(1, 0) == 11_000
    assert sensor.throttle_ms(10_999) == 1
    assert sensor.throttle_ms(11_000) == 0
    assert sensor.rate(11_000) == 0.0
    assert sensor.total() == 11_001


def test_defaults_are_the_copy_quotas_window_without_a_limit() -> None:
    sensor = QuotaSensor()
    assert (sensor.num_samples, sensor.window_ms, sensor.rate_mode) == (61, 1000, "window")
    assert sensor.limit is None
    assert sensor.record_and_throttle_ms(1 << 40) == 0
    assert sensor.rate() == pytest.approx((1 << 40) / 61)
    assert "limit_bytes_per_second=None" in repr(sensor)


@pytest.mark.parametrize("rate", ["window", "elapsed"])
def test_limits_change_at_once(rate: Any) -> None:
    sensor = QuotaSensor(2, 1000, None, rate)
    assert sensor.record_and_throttle_ms(10_000, 5000) == 0
    limits: list[tuple[int | None, bool]] = [(1000, True), (0, True), (2**63 - 1, False)]
    for limit, throttled in [*limits, (None, False), *limits]:
        sensor.set_limit(limit, 5000)
        assert sensor.limit == limit
        assert (sensor.throttle_ms(5000) > 0) is throttled
    assert sensor.total() == 10_000


AMOUNT_CALLS: list[Callable[[QuotaSensor, Any], object]] = [
    lambda sensor, amount: sensor.record(amount, 0),
    lambda sensor, amount: sensor.record_and_throttle_ms(amount, 0),
    lambda sensor, amount: sensor.try_reserve(amount, 0),
]
BAD_AMOUNTS: list[tuple[Any, type[Exception]]] = [
    (math.nan, TypeError),
    (math.inf, TypeError),
    (1.0, TypeError),
    (Fraction(1), TypeError),
    ("1", TypeError),
    (None, TypeError),
    (True, TypeError),
    (np.float64(1), TypeError),
    (-1, ValueError),
    (-(2**63), ValueError),
    (-(2**63) - 1, ValueError),
    (-(2**200), ValueError),
    (2**48 + 1, OverflowError),
    (2**63 - 1, OverflowError),
    (2**63, OverflowError),
    (2**64, OverflowError),
    (10**400, OverflowError),
]


@pytest.mark.parametrize("call", AMOUNT_CALLS)
@pytest.mark.parametrize(("amount", "error"), BAD_AMOUNTS, ids=lambda value: repr(value)[:30])
def test_bad_amounts_are_refused_and_count_nothing(
    call: Callable[[QuotaSensor, Any], object], amount: Any, error: type[Exception]
) -> None:
    sensor = QuotaSensor(limit_bytes_per_second=1000)
    with pytest.raises(error):
        call(sensor, amount)
    assert sensor.total() == 0
    assert sensor.snapshot(0).reserved_bytes == 0


def test_bad_settled_amounts_leave_the_reservation_open() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    reservation = granted(sensor, 500, 0)
    for amount, error in BAD_AMOUNTS:
        with pytest.raises(error):
            reservation.settle(amount, 0)
    assert sensor.snapshot(0).reserved_bytes == 500
    reservation.settle(500, 0)
    assert sensor.snapshot(0).reserved_bytes == 0


def test_odd_but_whole_amounts_are_fine() -> None:
    sensor = QuotaSensor()
    for amount in (0, np.int64(7), np.uint8(3), 2**48):
        sensor.record(amount, np.int32(5))
    assert sensor.total() == 10 + 2**48


@pytest.mark.parametrize("now_ms", [math.nan, 1.5, "now", True, 2**63, -(2**63) - 1])
def test_bad_times_are_refused(now_ms: Any) -> None:
    sensor = QuotaSensor(limit_bytes_per_second=1)
    calls: list[Callable[[], object]] = [
        lambda: sensor.record(1, now_ms),
        lambda: sensor.record_and_throttle_ms(1, now_ms),
        lambda: sensor.record_many(array.array("q", [1]), now_ms),
        lambda: sensor.rate(now_ms),
        lambda: sensor.throttle_ms(now_ms),
        lambda: sensor.snapshot(now_ms),
        lambda: sensor.try_reserve(1, now_ms),
        lambda: sensor.set_limit(5, now_ms),
    ]
    for call in calls:
        with pytest.raises((TypeError, OverflowError, ValueError)):
            call()
    assert (sensor.total(), sensor.limit) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"num_samples": 0}, ValueError),
        ({"num_samples": 3601}, ValueError),
        ({"num_samples": -1}, ValueError),
        ({"num_samples": 1.0}, TypeError),
        ({"num_samples": True}, TypeError),
        ({"num_samples": 2**70}, OverflowError),
        ({"window_ms": 0}, ValueError),
        ({"window_ms": 86_400_001}, ValueError),
        ({"window_ms": math.nan}, TypeError),
        ({"limit_bytes_per_second": -1}, ValueError),
        ({"limit_bytes_per_second": 0.5}, TypeError),
        ({"limit_bytes_per_second": False}, TypeError),
        ({"limit_bytes_per_second": 2**63}, OverflowError),
        ({"rate": "average"}, ValueError),
        ({"rate": None}, ValueError),
        ({"speed": 1}, TypeError),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        QuotaSensor(**settings)


def test_the_largest_settings_hold() -> None:
    sensor = QuotaSensor(3600, 86_400_000, 2**63 - 1)
    assert sensor.record_and_throttle_ms(2**48, 2**63 - 1) == 0
    assert sensor.record_and_throttle_ms(2**48, -(2**63)) == 0
    assert sensor.total() == 2**49


@pytest.mark.parametrize("rate", ["window", "elapsed"])
def test_a_full_window_refuses_before_it_counts(rate: Any) -> None:
    sensor = QuotaSensor(1, 1000, None, rate)
    for _ in range(2**62 // 2**48):
        sensor.record(2**48, 0)
    with pytest.raises(OverflowError, match="window"):
        sensor.record(2**48, 0)
    assert sensor.total() == 2**62
    sensor.record(1, 10_000)


@pytest.mark.parametrize("rate", ["window", "elapsed"])
def test_clocks_that_jump_by_ten_years(rate: Any) -> None:
    sensor = QuotaSensor(11, 1000, 1000, rate)
    now_ms = 1_700_000_000_000
    assert sensor.record_and_throttle_ms(20_000, now_ms) > 0
    # Forward: what was counted is long gone.
    assert sensor.throttle_ms(now_ms + TEN_YEARS_MS) == 0
    assert sensor.record_and_throttle_ms(20_000, now_ms + TEN_YEARS_MS) > 0
    # Back: nothing is forgotten, and nothing is frozen for ten years.
    wait_ms = sensor.throttle_ms(now_ms)
    assert 0 < wait_ms <= 20_000
    assert sensor.throttle_ms(now_ms + wait_ms) == 0
    assert sensor.total() == 40_000


def test_a_clock_that_is_a_little_late_counts_as_now() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    sensor.record(12_000, 50_000)
    assert sensor.throttle_ms(49_000) == sensor.throttle_ms(50_000) == 11_000


# ---- Many at once -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "amounts",
    [
        array.array("q", [1, 2, 3]),
        np.array([1, 2, 3], dtype=np.int64),
        memoryview(array.array("q", [1, 2, 3])),
        np.array([[1], [2], [3]], dtype=np.int64),
    ],
    ids=["array", "numpy", "memoryview", "two-dimensional"],
)
def test_many_amounts_count_as_one_at_a_time(amounts: Any) -> None:
    together, single = QuotaSensor(11, 1000, 0), QuotaSensor(11, 1000, 0)
    found = together.record_many(amounts, 100)
    assert found == [single.record_and_throttle_ms(amount, 100) for amount in (1, 2, 3)][-1]
    assert together.total() == single.total() == 6
    assert together.snapshot(100) == single.snapshot(100)


@pytest.mark.parametrize(
    ("amounts", "error"),
    [
        ([1, 2], TypeError),
        (b"12345678", TypeError),
        (np.array([1.0, math.nan]), TypeError),
        (np.array([1], dtype=np.uint64), TypeError),
        (np.array([1], dtype=np.int32), TypeError),
        (np.array([1], dtype=">i8"), TypeError),
        (np.arange(10)[::2], BufferError),
        (np.array([5, -1, 5]), ValueError),
        (np.array([-(2**63)]), ValueError),
        (np.array([2**48, 1]), OverflowError),
        (np.full(8, 2**63 - 1), OverflowError),
    ],
)
def test_bad_amounts_among_many_count_nothing(amounts: Any, error: type[Exception]) -> None:
    sensor = QuotaSensor(limit_bytes_per_second=1)
    # numpy says that an array is not contiguous as a ValueError.
    with pytest.raises((error, ValueError)):
        sensor.record_many(amounts, 0)
    assert sensor.total() == 0


def test_no_amounts_are_a_check() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    assert sensor.record_many(array.array("q"), 0) == 0
    sensor.record(12_000, 0)
    assert sensor.record_many(array.array("q"), 0) == sensor.throttle_ms(0) > 0


# ---- Reservations -----------------------------------------------------------------------------


def granted(sensor: QuotaSensor, amount: int, now_ms: int | None = None) -> Reservation:
    reservation = sensor.try_reserve(amount, now_ms)
    assert isinstance(reservation, Reservation), reservation
    assert reservation.amount == amount
    return reservation


def test_reserve_and_settle() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    reservation = granted(sensor, 6000, 0)
    assert sensor.snapshot(0).reserved_bytes == 6000
    other = granted(sensor, 6000, 0)
    wait_ms = sensor.try_reserve(1, 0)
    assert isinstance(wait_ms, int)
    assert wait_ms > 0
    other.cancel(0)
    reservation.settle(5000, 0)
    assert sensor.total() == 5000
    assert sensor.snapshot(0).reserved_bytes == 0
    assert granted(sensor, 6000, 0).amount == 6000


def test_settling_more_than_was_reserved_counts_the_rest() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    granted(sensor, 100, 0).settle(250, 10)
    assert sensor.total() == 250
    assert sensor.snapshot(10).window_bytes == 250


def test_waiting_as_told_is_enough() -> None:
    sensor = QuotaSensor(5, 100, 1000)
    now_ms, grants = 0, 0
    while now_ms < 5000:
        answer = sensor.try_reserve(300, now_ms)
        if isinstance(answer, Reservation):
            answer.settle(300, now_ms)
            grants += 1
            continue
        assert answer > 0
        assert not isinstance(sensor.try_reserve(300, now_ms + answer - 1), Reservation)
        now_ms += answer
    assert sensor.total() == grants * 300 <= 1000 * 5.5 + 300


def test_a_unit_larger_than_the_window_is_granted_and_not_forgotten() -> None:
    sensor = QuotaSensor(11, 1000, 10)
    granted(sensor, 11_000, 0).settle(11_000, 0)
    now_ms = 0
    while not isinstance(answer := sensor.try_reserve(11_000, now_ms), Reservation):
        now_ms += answer
    # 10 bytes a second: 11,000 take 1,100 seconds, whatever the window holds.
    assert now_ms >= 1_000_000
    answer.settle(11_000, now_ms)


def test_a_reservation_is_settled_once() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    reservation = granted(sensor, 10, 0)
    reservation.settle(10, 0)
    with pytest.raises(ClosedError, match="settled or cancelled"):
        reservation.settle(10, 0)
    reservation.cancel(0)
    assert (sensor.total(), sensor.snapshot(0).reserved_bytes) == (10, 0)
    cancelled = granted(sensor, 10, 0)
    cancelled.cancel(0)
    cancelled.cancel(0)
    with pytest.raises(ClosedError):
        cancelled.settle(1, 0)
    assert sensor.total() == 10


def test_a_with_block_gives_back_what_was_not_settled() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    with pytest.raises(OSError, match="upload"), granted(sensor, 500, 0):
        raise OSError("upload failed")
    with granted(sensor, 500, 0) as reservation:
        reservation.settle(300, 0)
    assert (sensor.total(), sensor.snapshot(0).reserved_bytes) == (300, 0)


def test_a_dropped_reservation_returns_itself() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    reservation = granted(sensor, 500, 0)
    watcher = weakref.ref(sensor)
    del reservation
    assert (sensor.total(), sensor.snapshot(0).reserved_bytes) == (0, 0)
    # A reservation keeps its sensor.
    kept = granted(sensor, 500, 0)
    del sensor
    assert watcher() is not None
    del kept
    assert watcher() is None


@pytest.mark.parametrize("end", ["drop", "cancel", "settle", "with"])
@pytest.mark.parametrize("now_ms", [5000, 10**14])
def test_giving_back_without_a_time_does_not_mix_clocks(now_ms: int, end: str) -> None:
    """The clock of these calls is far from the machine's: time must not leap."""
    sensor = QuotaSensor(11, 1000, 1000)
    sensor.record(12_000, now_ms)
    sensor.set_limit(2000)
    reservation = granted(sensor, 500, now_ms)
    if end == "cancel":
        reservation.cancel()
    elif end == "settle":
        reservation.settle(0)
    elif end == "with":
        with reservation:
            pass
    del reservation
    sensor.set_limit(1000)
    assert sensor.throttle_ms(now_ms) == 11_000
    assert sensor.throttle_ms(now_ms + 5000) == 6000
    assert sensor.snapshot(now_ms + 5000).window_bytes == 12_000


def test_elapsed_mode_refuses_reservations() -> None:
    sensor = QuotaSensor(rate="elapsed")
    with pytest.raises(ValueError, match="rate='window'"):
        sensor.try_reserve(1, 0)


def test_a_reservation_is_made_by_its_sensor_only() -> None:
    orphan = Reservation()
    assert orphan.amount == 0
    with pytest.raises(ClosedError):
        orphan.settle(1, 0)
    orphan.cancel()


# ---- Snapshots, threads, memory, processes ----------------------------------------------------


def test_snapshot() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    sensor.record(22_000, 0)
    wait_ms = sensor.throttle_ms(0)
    seen = sensor.snapshot(0)
    assert isinstance(seen, QuotaSnapshot)
    assert seen == QuotaSnapshot(
        rate_bytes_per_second=2000.0,
        limit_bytes_per_second=1000,
        total_bytes=22_000,
        window_bytes=22_000,
        reserved_bytes=0,
        throttled_ms=wait_ms,
        overshoot_bytes=11_000,
    )
    assert QuotaSensor().snapshot().limit_bytes_per_second is None


def test_threads_lose_nothing_while_windows_roll() -> None:
    sensor = QuotaSensor(3, 10, 1000)

    def work(number: int) -> None:
        for step in range(2000):
            sensor.record_and_throttle_ms(number + 1, step)
            if step % 100 == number:
                sensor.set_limit(step, step)

    together(64, work)
    assert sensor.total() == 2000 * sum(range(1, 65))


def test_one_permit_among_many_threads() -> None:
    sensor = QuotaSensor(11, 1000, 1)
    kept: list[Reservation] = []

    def work(_: int) -> None:
        answer = sensor.try_reserve(11, 0)
        if isinstance(answer, Reservation):
            kept.append(answer)

    together(64, work)
    assert len(kept) == 1
    assert sensor.snapshot(0).reserved_bytes == 11


def test_reservations_of_many_threads_return_to_zero() -> None:
    sensor = QuotaSensor(11, 1000, 1_000_000)

    def work(number: int) -> None:
        for step in range(500):
            answer = sensor.try_reserve(10, step)
            if isinstance(answer, Reservation) and (step + number) % 3:
                answer.settle(number % 20, step)

    together(16, work)
    assert sensor.snapshot(500).reserved_bytes == 0


def test_sensors_and_reservations_leave_no_references() -> None:
    sensor = QuotaSensor(11, 1000, 10**6)
    before = sys.getrefcount(sensor)
    for now_ms in range(100):
        granted(sensor, 1, now_ms)
        granted(sensor, 1, now_ms).settle(1, now_ms)
        with granted(sensor, 1, now_ms):
            pass
        for amount, error in BAD_AMOUNTS:
            with pytest.raises(error):
                sensor.record(amount)
    gc.collect()
    assert sys.getrefcount(sensor) == before
    amounts = array.array("q", [1])
    sensor.record_many(amounts)
    amounts.append(2)  # refused while somebody still looks at it


def test_neither_pickles_nor_copies() -> None:
    sensor = QuotaSensor()
    for thing in (sensor, granted(sensor, 1)):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.copy(thing)
        with pytest.raises(TypeError):
            copy.deepcopy(thing)


def test_a_forked_child_counts_for_itself() -> None:
    sensor = QuotaSensor(11, 1000, 1000)
    sensor.record(100, 0)
    reservation = granted(sensor, 50, 0)

    def check() -> bool:
        sensor.record(1000, 0)
        reservation.settle(50, 0)
        return sensor.total() == 1150

    in_child(check)
    assert sensor.snapshot(0).reserved_bytes == 50
    reservation.cancel(0)
    assert sensor.total() == 100
