"""Who waits for a quota is admitted in the order of arrival, and paced pieces are spread evenly."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tierlog import QuotaManager, QuotaSensor
from tierlog.clock import Clock, ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import ClosedError
from tierlog.quota import LOOK_UP_MS, PACE_SLACK_MS, QuotaWaitCancelledError

GUARD_S = 60.0
SAMPLES = 61
LIMIT = 10 << 20
PIECE = 1 << 20
MINUTE_MS = 60_000


class HeldClock(ManualClock):
    """Time stands still; whoever waits for it looks again when something changes."""

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        assert condition.wait(GUARD_S), "nobody notified"


class GatheringClock(ManualClock):
    """Time passes only when all the uploads that are not done stand in line."""

    def __init__(self, uploads: int) -> None:
        super().__init__()
        self.uploads = uploads
        self.quota = copies(LIMIT, self, QuotaMode.PACE)

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        while len(self.quota._line) < self.uploads:
            condition.wait(0.001)
        self.advance(duration_ms)

    def done(self) -> None:
        with self.quota._changed:
            self.uploads -= 1


def copies(limit: int | None, clock: ManualClock, mode: QuotaMode) -> QuotaManager:
    config = QuotaConfig(copy_max_bytes_per_second=limit, copy_quota_mode=mode)
    return QuotaManager.for_copies(config, clock)


class Watched(QuotaManager):
    """Keeps the names of the threads in the order in which they were admitted."""

    def __init__(self, name: str, sensor: QuotaSensor, clock: Clock, *, mode: QuotaMode) -> None:
        super().__init__(name, sensor, clock, mode=mode)
        self.admitted: list[str] = []
        self.unit = threading.local()

    def _leave(self, place: object) -> None:
        # Nobody else can be admitted before this thread has left the line.
        self.admitted.append(self.unit.name)
        super()._leave(place)


class Line:
    """Units that line up one after the other, and the order in which they began."""

    def __init__(self, pool: ThreadPoolExecutor, mode: QuotaMode = QuotaMode.RESERVE) -> None:
        self.pool = pool
        self.clock = HeldClock()
        sensor = QuotaSensor(num_samples=SAMPLES, limit_bytes_per_second=10)
        self.quota = Watched("copy", sensor, self.clock, mode=mode)
        self.cancelled: set[str] = set()

    @property
    def began(self) -> list[str]:
        return [name for name in self.quota.admitted if name not in self.cancelled]

    def join(self, name: str, size_bytes: int) -> Future[None]:
        """A unit that has to wait, and now does."""
        waits = threading.Event()

        def unit() -> None:
            self.quota.unit.name = name
            with self.quota.transfer(
                size_bytes,
                cancelled=lambda: name in self.cancelled,
                on_wait=lambda _: waits.set(),
            ) as transfer:
                transfer.moved(size_bytes)

        future = self.pool.submit(unit)
        assert waits.wait(GUARD_S), f"{name} did not wait"
        return future

    def pass_s(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)
        self.quota.wake()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


@pytest.mark.parametrize("mode", [QuotaMode.CHECK, QuotaMode.RESERVE])
def test_the_order_of_arrival(mode: QuotaMode, pool: ThreadPoolExecutor) -> None:
    """A check lets all of them begin that look before the first one has ended."""
    line = Line(pool, mode)
    line.quota.record(10 * SAMPLES + 1)
    names = [f"unit {number}" for number in range(8)]
    units = [line.join(name, 10 * SAMPLES + 1) for name in names]
    for unit in units:
        assert mode is QuotaMode.CHECK or not unit.done()
        line.pass_s(SAMPLES + 1)
        unit.result(GUARD_S)
    assert line.began == names


def test_a_large_unit_is_not_overtaken_by_small_ones(pool: ThreadPoolExecutor) -> None:
    """They keep coming, and each leaves enough room for another small one at once."""
    line = Line(pool)
    line.quota.record(10 * SAMPLES + 1)
    large = line.join("large", 1 << 20)
    small = [line.join(f"small {number}", 1) for number in range(5)]
    line.pass_s(SAMPLES + 1)
    large.result(GUARD_S)
    assert line.began == ["large"]
    line.quota.set_limit(None)
    for unit in small:
        unit.result(GUARD_S)
    assert line.began == ["large", *(f"small {number}" for number in range(5))]


def test_a_newcomer_stands_in_line_though_there_is_room(pool: ThreadPoolExecutor) -> None:
    """The time is up for the first one, but its thread has not yet looked."""
    line = Line(pool)
    line.quota.reserve(10 * SAMPLES + 1).settle(10 * SAMPLES + 1, 0)
    first = line.join("first", 1)
    line.clock.advance((SAMPLES + 1) * 1000)
    second = line.join("second", 1)
    assert line.began == []
    line.quota.wake()
    first.result(GUARD_S)
    second.result(GUARD_S)
    assert line.began == ["first", "second"]


def test_who_is_cancelled_leaves_the_line(pool: ThreadPoolExecutor) -> None:
    line = Line(pool)
    line.quota.record(1000)
    units = {name: line.join(name, 10 * SAMPLES + 1) for name in ("a", "b", "c", "d")}
    for name in ("c", "a"):
        line.cancelled.add(name)
        line.quota.wake()
        with pytest.raises(QuotaWaitCancelledError):
            units[name].result(GUARD_S)
    for name in ("b", "d"):
        line.pass_s(2 * SAMPLES)
        units[name].result(GUARD_S)
    assert line.began == ["b", "d"]


def test_who_waits_behind_notices_a_cancellation_within_a_second() -> None:
    """Nobody wakes it: the first in the line does, whenever it looks up."""
    clock = ManualClock()
    quota = copies(1, clock, QuotaMode.RESERVE)
    quota.record(1 << 20)
    stop, behind = threading.Event(), threading.Event()
    cancelled_at_ms: list[int] = []

    def second() -> None:
        with pytest.raises(QuotaWaitCancelledError):
            quota.reserve(1, cancelled=stop.is_set, on_wait=lambda _: behind.set())
        cancelled_at_ms.append(clock.monotonic_ms())

    thread = threading.Thread(target=second)

    def look(_: int) -> None:
        if not thread.ident:
            thread.start()
            assert behind.wait(GUARD_S)
        elif not stop.is_set():
            stop.set()
        else:
            thread.join(0.1)

    with pytest.raises(QuotaWaitCancelledError):
        quota.reserve(1, cancelled=lambda: bool(cancelled_at_ms), on_wait=look)
    thread.join(GUARD_S)
    assert clock.monotonic_ms() <= 100 * LOOK_UP_MS


def test_closing_ends_the_whole_line(pool: ThreadPoolExecutor) -> None:
    line = Line(pool)
    line.quota.record(1000)
    units = [line.join(str(number), 1) for number in range(4)]
    line.quota.close()
    for unit in units:
        with pytest.raises(ClosedError):
            unit.result(GUARD_S)
    assert line.quota.snapshot().total_bytes == 1000


def test_lifting_the_limit_admits_the_whole_line_in_order(pool: ThreadPoolExecutor) -> None:
    line = Line(pool)
    line.quota.record(1 << 40)
    units = [line.join(str(number), 1 << 20) for number in range(4)]
    line.quota.set_limit(None)
    for unit in units:
        unit.result(GUARD_S)
    assert line.began == ["0", "1", "2", "3"]


# -- paced


Sent = list[tuple[int, str]]


def paced(uploads: int, duration_ms: int) -> Sent:
    """When which of so many uploads, that always have more, sent a piece."""
    clock = GatheringClock(uploads)
    sent: Sent = []

    def upload(name: str) -> None:
        try:
            with clock.quota.transfer(1 << 40) as transfer:
                while clock.monotonic_ms() < duration_ms:
                    transfer.before_piece(PIECE)
                    sent.append((clock.monotonic_ms(), name))
        finally:
            clock.done()

    with ThreadPoolExecutor(uploads) as pool:
        list(pool.map(upload, [str(number) for number in range(uploads)]))
    return sent


def bytes_in_windows(sent: Sent, window_ms: int, until_ms: int) -> tuple[int, int]:
    """Fewest and most bytes in any window of that length, up to then."""
    times = [moment for moment, _ in sent]
    edges = {moment + after for moment in times for after in (0, 1)}
    starts = sorted(edge for edge in {0, *edges} if edge + window_ms <= until_ms)
    found = [
        (bisect_left(times, start + window_ms) - bisect_left(times, start)) * PIECE
        for start in starts
    ]
    return min(found), max(found)


@pytest.mark.parametrize("uploads", [1, 4])
def test_paced_copies_keep_to_the_quota_exactly(uploads: int) -> None:
    """With a backlog, over three minutes."""
    sent = paced(uploads, 3 * MINUTE_MS)
    fewest, most = bytes_in_windows(sent, MINUTE_MS, 3 * MINUTE_MS)
    assert fewest >= 0.995 * 60 * LIMIT
    assert most <= 1.005 * 60 * LIMIT
    assert bytes_in_windows(sent, SAMPLES * 1000, 3 * MINUTE_MS)[1] <= SAMPLES * LIMIT + PIECE
    for window_ms in (100, 1000, 10_000, MINUTE_MS):
        _, most = bytes_in_windows(sent, window_ms, 3 * MINUTE_MS)
        assert most <= LIMIT * (window_ms + PACE_SLACK_MS) // 1000 + PIECE


def test_pieces_of_paced_copies_take_turns() -> None:
    names = [name for _, name in paced(4, MINUTE_MS)]
    in_line = names[8:-8]
    for turn in range(len(in_line) // 4):
        assert len(set(in_line[turn * 4 : turn * 4 + 4])) == 4
    assert in_line[:4] * (len(in_line) // 4) == in_line[: len(in_line) // 4 * 4]


def test_a_quiet_time_saves_up_nothing() -> None:
    clock = ManualClock()
    quota = copies(LIMIT, clock, QuotaMode.PACE)
    for _ in range(3):
        clock.advance(10 * MINUTE_MS)
        start_ms = clock.monotonic_ms()
        with quota.transfer(1 << 30) as transfer:
            for _ in range(100):
                transfer.before_piece(PIECE)
        assert 99 * 100 - PACE_SLACK_MS <= clock.monotonic_ms() - start_ms <= 99 * 100


def test_another_limit_counts_for_what_was_sent_before() -> None:
    """A piece that would have to wait for days goes soon when the limit is raised."""
    clock = ManualClock()
    quota = copies(1, clock, QuotaMode.PACE)
    waits: list[int] = []

    def on_wait(wait_ms: int) -> None:
        waits.append(wait_ms)
        if len(waits) == 1:
            quota.set_limit(LIMIT)

    with quota.transfer(3 * PIECE, on_wait=on_wait) as transfer:
        transfer.before_piece(PIECE)
        clock.advance(MINUTE_MS)
        transfer.before_piece(PIECE)
    assert waits[0] > 86_400_000
    assert quota.snapshot().throttled_ms <= LOOK_UP_MS
    assert 100 - PACE_SLACK_MS <= clock.monotonic_ms() - MINUTE_MS <= 100
    assert quota.snapshot().total_bytes == 2 * PIECE


def test_time_under_another_limit_counts_at_that_limit() -> None:
    clock = ManualClock()
    quota = copies(1, clock, QuotaMode.PACE)
    with quota.transfer(2 * PIECE) as transfer:
        transfer.before_piece(PIECE)
        clock.advance(MINUTE_MS)
        quota.set_limit(LIMIT)
        transfer.before_piece(PIECE)
    assert 99 - PACE_SLACK_MS <= transfer.waited_ms <= 100
    assert quota.snapshot().throttled_ms == transfer.waited_ms


def test_an_unlimited_paced_quota_never_waits() -> None:
    clock = ManualClock()
    quota = copies(None, clock, QuotaMode.PACE)
    with quota.transfer(1 << 40) as transfer:
        for _ in range(1000):
            transfer.before_piece(1 << 30)
    assert clock.monotonic_ms() == 0


def test_the_longest_window_can_be_paced() -> None:
    config = QuotaConfig(
        copy_max_bytes_per_second=1, copy_quota_window_num=3600, copy_quota_mode=QuotaMode.PACE
    )
    assert QuotaManager.for_copies(config, ManualClock()).limit == 1
