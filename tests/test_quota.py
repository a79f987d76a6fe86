"""Quotas over the native sensor, in time that moves when told: bounds, changes, waits, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog import QuotaManager
from tierlog.clock import ManualClock
from tierlog.config import Config, QuotaConfig, QuotaMode, QuotaRateMode
from tierlog.errors import ClosedError, ConfigError
from tierlog.quota import LOOK_UP_MS, QuotaWaitCancelledError

MAX_LONG = 2**63 - 1
GUARD_S = 60.0
COPY_SAMPLES = 61
FETCH_SAMPLES = 11


class StillClock(ManualClock):
    """Whoever waits is woken by a notification, as on a machine where time hardly passes."""

    def __init__(self) -> None:
        super().__init__()
        self.somebody_waits = threading.Event()

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        self.somebody_waits.set()
        assert condition.wait(GUARD_S), "nobody notified"


class NoWaiting(ManualClock):
    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        raise AssertionError("nothing to wait for")


def copies(
    limit: int | None, clock: ManualClock, mode: QuotaMode = QuotaMode.CHECK
) -> QuotaManager:
    config = QuotaConfig(copy_max_bytes_per_second=limit, copy_quota_mode=mode)
    return QuotaManager.for_copies(config, clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ms=123_456)


@pytest.fixture
def in_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


# -- settings


def test_kip_956_names_and_defaults(clock: ManualClock) -> None:
    config = Config.from_properties(
        {
            "remote.log.manager.write.quota.default": "1000",
            "remote.log.manager.read.quota.default": "2000",
        }
    ).quota
    copy, fetch = QuotaManager.for_copies(config, clock), QuotaManager.for_fetches(config, clock)
    assert (copy.name, copy.limit, copy.mode) == ("copy", 1000, QuotaMode.CHECK)
    assert (fetch.name, fetch.limit, fetch.mode) == ("fetch", 2000, QuotaMode.CHECK)
    for quota, samples in ((copy, COPY_SAMPLES), (fetch, FETCH_SAMPLES)):
        allowed = quota.limit * samples  # type: ignore[operator]
        quota.record(allowed)
        assert quota.throttle_ms() == 0
        quota.record(1)
        assert quota.throttle_ms() == samples * 1000 - clock.monotonic_ms() % 1000


def test_window_settings_count(clock: ManualClock) -> None:
    config = QuotaConfig(
        copy_max_bytes_per_second=100,
        copy_quota_window_num=3,
        copy_quota_window_size_seconds=2,
    )
    quota = QuotaManager.for_copies(config, clock)
    quota.record(601)
    assert quota.throttle_ms() == 6000 - clock.monotonic_ms() % 2000


def test_unlimited_by_default(clock: ManualClock) -> None:
    quota = QuotaManager.for_copies(QuotaConfig(), clock)
    quota.record(1 << 48)
    assert quota.limit is None
    assert (quota.throttle_ms(), quota.wait()) == (0, 0)


def test_in_force_before_the_first_unit(clock: ManualClock) -> None:
    """No moment with another limit, and what moved in the first bucket counts."""
    quota = copies(1, clock)
    quota.record(COPY_SAMPLES + 1)
    assert quota.throttle_ms() > 0


def test_only_whole_windows_can_be_reserved() -> None:
    config = QuotaConfig(
        quota_rate_mode=QuotaRateMode.ELAPSED,
        copy_quota_mode=QuotaMode.RESERVE,
        fetch_quota_mode=QuotaMode.PACE,
    )
    for make in (QuotaManager.for_copies, QuotaManager.for_fetches):
        with pytest.raises(ConfigError, match=r"quota: mode reserve needs .* found elapsed"):
            make(config)


def test_a_ranged_read_is_one_piece() -> None:
    config = QuotaConfig(fetch_quota_mode=QuotaMode.PACE)
    assert QuotaManager.for_fetches(config).mode is QuotaMode.RESERVE


def test_the_warning_names_both_sides_and_the_way_out(clock: ManualClock) -> None:
    quota = copies(1000, clock)
    assert quota.oversize_warning(61_000) is None
    warning = quota.oversize_warning(61_001)
    assert warning is not None
    assert all(word in warning for word in ("copy quota", "61001", "61000", "1000 bytes", "pace"))
    for mode in (QuotaMode.RESERVE, QuotaMode.PACE):
        assert copies(1000, clock, mode).oversize_warning(1 << 30) is None
    assert copies(None, clock).oversize_warning(MAX_LONG) is None
    for nothing_is_forgotten in (None, 0):
        quota.set_limit(nothing_is_forgotten)
        assert quota.oversize_warning(61_001) is None


# -- bounds


Units = list[tuple[int, int]]
units = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 100_000)), min_size=1, max_size=60)


def run_units(quota: QuotaManager, clock: ManualClock, units: Units, pieces: int) -> Units:
    """Each unit in so many pieces after its pause: what moved, and when."""
    moved: Units = []
    for size, pause_ms in units:
        clock.advance(pause_ms)
        with quota.transfer(size) as transfer:
            for piece in range(pieces):
                part = size * (piece + 1) // pieces - size * piece // pieces
                transfer.before_piece(part)
                moved.append((clock.monotonic_ms(), part))
    assert quota.snapshot().total_bytes == sum(size for size, _ in units)
    return moved


def most_in_any_window(moved: Units, *, aligned: bool) -> int:
    """Most bytes in 61 consecutive seconds, whole ones of the clock or any."""
    step = 1000 if aligned else 1
    times = [moment // step for moment, _ in moved]
    window = COPY_SAMPLES * 1000 // step
    return max(
        sum(size for when, (_, size) in zip(times, moved, strict=True) if 0 <= end - when < window)
        for end in times
    )


@given(units=units, limit=st.integers(20, 200), start_ms=st.integers(0, 10**7))
@settings(deadline=None)
def test_checked_bytes_stay_below_the_quota_and_one_unit(
    units: Units, limit: int, start_ms: int
) -> None:
    clock = ManualClock(monotonic_ms=start_ms)
    moved = run_units(copies(limit, clock), clock, units, 1)
    assert most_in_any_window(moved, aligned=True) <= limit * COPY_SAMPLES + max(units)[0]


@given(units=units, limit=st.integers(20, 200), start_ms=st.integers(0, 10**7))
@settings(deadline=None)
def test_reserved_bytes_stay_below_it_in_every_window(
    units: Units, limit: int, start_ms: int
) -> None:
    clock = ManualClock(monotonic_ms=start_ms)
    moved = run_units(copies(limit, clock, QuotaMode.RESERVE), clock, units, 1)
    assert most_in_any_window(moved, aligned=False) <= limit * COPY_SAMPLES + max(units)[0]


@given(units=units, limit=st.integers(20, 200), start_ms=st.integers(0, 10**7))
@settings(deadline=None)
def test_paced_bytes_stay_below_it_and_one_piece(units: Units, limit: int, start_ms: int) -> None:
    clock = ManualClock(monotonic_ms=start_ms)
    moved = run_units(copies(limit, clock, QuotaMode.PACE), clock, units, 10)
    largest = max(part for _, part in moved)
    assert most_in_any_window(moved, aligned=False) <= limit * COPY_SAMPLES + largest


@pytest.mark.parametrize("mode", QuotaMode)
def test_units_larger_than_the_window_progress(mode: QuotaMode, clock: ManualClock) -> None:
    """Checked ones as often as the window ends (Kafka's way too); reserved ones are paid off."""
    quota = copies(10, clock, mode)
    unit = 10 * COPY_SAMPLES * 20
    start_ms = clock.monotonic_ms()
    run_units(quota, clock, [(unit, 0)] * 5, 1)
    passed_s = (clock.monotonic_ms() - start_ms) / 1000
    if mode is QuotaMode.CHECK:
        assert passed_s <= 4 * COPY_SAMPLES
    else:
        assert passed_s >= (4 * unit) / 10 - COPY_SAMPLES
        assert passed_s <= (4 * unit) / 10 + COPY_SAMPLES


def test_nothing_passes_a_quota_of_nothing(clock: ManualClock) -> None:
    quota = copies(1, clock)
    quota.set_limit(0)
    seen: list[int] = []

    def lift_after_ten(wait_ms: int) -> None:
        seen.append(wait_ms)
        if len(seen) == 10:
            quota.set_limit(1)

    assert quota.wait(on_wait=lift_after_ten) == 9 * LOOK_UP_MS
    assert set(seen) == {COPY_SAMPLES * 1000}


def test_one_byte_per_second(clock: ManualClock) -> None:
    quota = copies(1, clock)
    moved = run_units(quota, clock, [(1, 0)] * 200, 1)
    assert most_in_any_window(moved, aligned=True) == COPY_SAMPLES + 1


@pytest.mark.parametrize("mode", QuotaMode)
def test_the_largest_quota_never_waits(mode: QuotaMode) -> None:
    clock = NoWaiting()
    quota = copies(1, clock, mode)
    quota.set_limit(MAX_LONG)
    run_units(quota, clock, [(1 << 47, 0)] * 100, 2)
    assert quota.limit == MAX_LONG


def test_kafkas_arithmetic_by_setting(clock: ManualClock) -> None:
    """Case A of its vectors: 5000 bytes at once and 1000 per second."""
    config = QuotaConfig(
        copy_max_bytes_per_second=1000,
        copy_quota_window_num=11,
        quota_rate_mode=QuotaRateMode.ELAPSED,
    )
    quota = QuotaManager.for_copies(config, clock)
    assert quota.throttle_ms() == 0
    quota.record(5000)
    assert quota.throttle_ms() == 4000
    assert quota.wait() == 5000


# -- waiting


def test_a_change_wakes_who_waits(in_thread: ThreadPoolExecutor) -> None:
    clock = StillClock()
    quota = copies(1, clock)
    quota.record(1000)
    waiting = [in_thread.submit(quota.wait) for _ in range(8)]
    assert clock.somebody_waits.wait(GUARD_S)
    assert not any(one.done() for one in waiting)
    clock.advance(77)
    quota.set_limit(None)
    assert {one.result(GUARD_S) for one in waiting} <= {0, 77}


@pytest.mark.parametrize("mode", [QuotaMode.CHECK, QuotaMode.RESERVE])
def test_a_change_to_a_limit_that_is_still_exceeded(
    mode: QuotaMode, in_thread: ThreadPoolExecutor
) -> None:
    clock = StillClock()
    quota = copies(1, clock, mode)
    quota.record(1000)

    def unit() -> None:
        with quota.transfer(1) as transfer:
            transfer.moved(1)

    waiting = in_thread.submit(unit)
    for limit in (2, 3):
        assert clock.somebody_waits.wait(GUARD_S)
        clock.somebody_waits.clear()
        quota.set_limit(limit)
    assert clock.somebody_waits.wait(GUARD_S)
    assert not waiting.done()
    quota.set_limit(1000)
    waiting.result(GUARD_S)
    assert quota.snapshot().total_bytes == 1001


def test_a_change_before_the_wait_is_not_slept_over() -> None:
    quota = copies(1, NoWaiting())
    quota.record(1000)
    assert quota.wait(on_wait=lambda _: quota.set_limit(None)) == 0


def test_close_ends_every_wait(in_thread: ThreadPoolExecutor) -> None:
    clock = StillClock()
    quota = copies(1, clock, QuotaMode.RESERVE)
    quota.record(1000)
    calls: list[Callable[[], object]] = [quota.wait, lambda: quota.reserve(1)]
    waiting = [in_thread.submit(call) for call in calls]
    assert clock.somebody_waits.wait(GUARD_S)
    quota.close()
    for one in waiting:
        with pytest.raises(ClosedError, match="copy quota"):
            one.result(GUARD_S)
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    quota.record(1)
    assert quota.snapshot().total_bytes == 1001
    quota.close()


def test_a_wait_can_be_cancelled(in_thread: ThreadPoolExecutor) -> None:
    clock = StillClock()
    quota = copies(1, clock, QuotaMode.RESERVE)
    quota.record(1000)
    stop = threading.Event()
    waiting = in_thread.submit(lambda: quota.reserve(5, cancelled=stop.is_set))
    assert clock.somebody_waits.wait(GUARD_S)
    stop.set()
    quota.wake()
    with pytest.raises(QuotaWaitCancelledError, match="copy quota"):
        waiting.result(GUARD_S)
    assert quota.snapshot().total_bytes == 1000


def test_a_cancelled_wait_is_noticed_within_a_second(clock: ManualClock) -> None:
    quota = copies(1, clock)
    quota.record(1 << 40)
    until_ms = clock.monotonic_ms() + 4321
    with pytest.raises(QuotaWaitCancelledError):
        quota.wait(cancelled=lambda: clock.monotonic_ms() >= until_ms)
    assert clock.monotonic_ms() - until_ms <= LOOK_UP_MS


def test_the_wall_clock_does_not_matter(clock: ManualClock) -> None:
    quota = copies(10, clock)
    quota.record(5000)
    expected = quota.throttle_ms()
    for jump_ms in (10 * 365 * 86_400_000, -20 * 365 * 86_400_000):
        clock.jump_wall(jump_ms)
        assert quota.throttle_ms() == expected
    assert quota.wait() == expected


# -- what counts


class BrokenUploadError(Exception):
    pass


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_failed_unit_counts_what_it_moved(mode: QuotaMode, clock: ManualClock) -> None:
    quota = copies(1000, clock, mode)

    def broken_upload() -> None:
        with quota.transfer(500) as transfer:
            transfer.before_piece(100)
            transfer.before_piece(100)
            raise BrokenUploadError

    for _ in range(2):
        with pytest.raises(BrokenUploadError):
            broken_upload()
    snapshot = quota.snapshot()
    assert (snapshot.total_bytes, snapshot.reserved_bytes) == (400, 0)


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_unit_may_be_larger_than_announced(mode: QuotaMode, clock: ManualClock) -> None:
    quota = copies(1000, clock, mode)
    with quota.transfer(100) as transfer:
        transfer.before_piece(100)
        transfer.before_piece(11)
    snapshot = quota.snapshot()
    assert (snapshot.total_bytes, snapshot.reserved_bytes) == (111, 0)


def test_a_paced_unit_that_names_no_pieces_is_checked(clock: ManualClock) -> None:
    quota = copies(1, clock, QuotaMode.PACE)
    for expected_s in (0, COPY_SAMPLES):
        with quota.transfer(1000) as transfer:
            transfer.moved(1000)
        assert transfer.waited_ms // 1000 == pytest.approx(expected_s, abs=1)
    assert quota.snapshot().total_bytes == 2000


def test_a_unit_that_moved_nothing_costs_nothing(clock: ManualClock) -> None:
    for mode in QuotaMode:
        quota = copies(1, clock, mode)
        with quota.transfer(1 << 40):
            pass
        assert quota.snapshot().total_bytes == 0
        assert quota.wait() == 0


def test_what_a_reservation_gives_back_wakes_who_waits(in_thread: ThreadPoolExecutor) -> None:
    clock = StillClock()
    quota = copies(1, clock, QuotaMode.RESERVE)
    with quota.transfer(1000):
        waiting = in_thread.submit(lambda: quota.reserve(1))
        assert clock.somebody_waits.wait(GUARD_S)
    waiting.result(GUARD_S).settle(1, clock.monotonic_ms())
    assert quota.snapshot().total_bytes == 1


def test_one_permit_and_64_threads(in_thread: ThreadPoolExecutor) -> None:
    """All look at once: a check lets all of them pass, a reservation one."""
    clock = ManualClock()
    start = threading.Barrier(64)

    def together(attempt: Callable[[], object]) -> object:
        start.wait(GUARD_S)
        return attempt()

    checked = copies(1, clock)
    waits = list(in_thread.map(together, [checked.throttle_ms] * 64))
    assert waits == [0] * 64
    reserved = copies(1, clock, QuotaMode.RESERVE)
    answers = list(in_thread.map(together, [lambda: reserved.try_reserve(COPY_SAMPLES)] * 64))
    granted = [one for one in answers if not isinstance(one, int)]
    assert len(granted) == 1
    assert reserved.snapshot().reserved_bytes == COPY_SAMPLES
    assert all(isinstance(one, int) and one > 0 for one in answers if one is not granted[0])


@pytest.mark.parametrize("mode", QuotaMode)
def test_every_byte_of_every_thread_counts(mode: QuotaMode, in_thread: ThreadPoolExecutor) -> None:
    """Half of the units fail half way; time moves because somebody waits."""
    clock = ManualClock()
    quota = copies(1000, clock, mode)

    def work(number: int) -> int:
        moved = 0
        for unit in range(20):
            try:
                with quota.transfer(200) as transfer:
                    for piece in (100, 100):
                        transfer.before_piece(piece)
                        moved += piece
                        if (unit + number) % 2:
                            raise BrokenUploadError
            except BrokenUploadError:
                continue
        return moved

    moved = sum(in_thread.map(work, range(64)))
    snapshot = quota.snapshot()
    assert (snapshot.total_bytes, snapshot.reserved_bytes) == (moved, 0)
    assert moved == 64 * 10 * (200 + 100)
