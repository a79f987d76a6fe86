"""A pass over a broker's directories under a copy quota, in time that moves when told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import ClosedError
from tierlog.quota import QuotaManager
from tierlog.sidecar import Outcome, Progress, Sidecar, TierReport

CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
# The largest golden segment has a million bytes: less than a window's quota.
LIMIT = 20_000
WINDOW_S = 61


class Run:
    """One pass, its clock and its quota."""

    def __init__(self, limit: int | None, mode: QuotaMode = QuotaMode.CHECK) -> None:
        self.clock = ManualClock()
        config = QuotaConfig(copy_max_bytes_per_second=limit, copy_quota_mode=mode)
        self.quota = QuotaManager.for_copies(config, self.clock)

    def tier(
        self,
        dirs: list[str],
        folder: Path,
        on_progress: Callable[[Progress], None] | None = None,
        topics: tuple[str, ...] = (),
    ) -> TierReport:
        (folder / "store").mkdir(exist_ok=True)
        with Sidecar(
            dirs,
            (folder / "store").as_uri(),
            state_dir=str(folder / "state"),
            config=tier_config(topics=topics),
            copy_quota=self.quota,
            clock=self.clock,
        ) as sidecar:
            return sidecar.run_once(on_progress)


def object_bytes(folder: Path) -> int:
    sizes = [path.stat().st_size for path in (folder / "store").rglob("*.log")]
    return sum(sizes) + sum(path.stat().st_size for path in (folder / "store").rglob("*.indexes"))


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_pass_keeps_to_the_quota_and_says_how_long_it_waited(
    mode: QuotaMode, tmp_path: Path
) -> None:
    run = Run(LIMIT, mode)
    sent: list[tuple[int, int]] = []
    waits: list[int] = []

    def watch(progress: Progress) -> None:
        sent.append((run.clock.monotonic_ms() // 1000, progress.done_bytes))
        waits.append(progress.quota_wait_ms)

    report = run.tier(CLEAN, tmp_path, watch)
    assert report.ok
    assert report.warnings == ()
    assert report.quota_wait_ms == run.clock.monotonic_ms()
    snapshot = run.quota.snapshot()
    assert snapshot.total_bytes == object_bytes(tmp_path)
    assert snapshot.reserved_bytes == 0
    largest = max(row.size_bytes for row in report.of(Outcome.COPIED))
    for second, done in sent:
        before = max((old for when, old in sent if when <= second - WINDOW_S), default=0)
        assert done - before <= LIMIT * WINDOW_S + largest
    assert max(waits) > 0
    assert waits[-1] == 0


def test_without_a_quota_nobody_waits(tmp_path: Path) -> None:
    run = Run(None)
    report = run.tier(CLEAN, tmp_path)
    assert report.ok
    assert report.quota_wait_ms == run.clock.monotonic_ms() == 0
    assert run.quota.snapshot().total_bytes == object_bytes(tmp_path)


def test_segments_too_large_for_the_quota_are_warned_of(tmp_path: Path) -> None:
    (warning,) = Run(100).tier(CLEAN, tmp_path, topics=("epochs",)).warnings
    assert "copy quota: 24359 bytes in one piece are more than the 6100" in warning
    nothing_left = Run(100).tier(CLEAN, tmp_path, topics=("epochs",))
    assert nothing_left.warnings == ()
    other = tmp_path / "paced"
    other.mkdir()
    assert Run(100, QuotaMode.PACE).tier(CLEAN, other, topics=("epochs",)).warnings == ()


def test_a_segment_deleted_during_the_wait_was_never_open(
    tmp_path: Path, broker_copy: list[str]
) -> None:
    folder = Path(broker_copy[0]) / "epochs-0"
    victim = sorted(folder.glob("*.log"))[1]

    def delete(progress: Progress) -> None:
        if progress.quota_wait_ms:
            victim.unlink(missing_ok=True)

    run = Run(100)
    report = run.tier(broker_copy, tmp_path, delete, topics=("epochs",))
    outcomes = [(row.outcome, row.reason) for row in report.rows]
    assert outcomes[:3] == [
        (Outcome.COPIED, ""),
        (Outcome.SKIPPED, "vanished"),
        (Outcome.COPIED, ""),
    ]
    assert run.quota.snapshot().total_bytes == object_bytes(tmp_path)


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_segment_that_is_refused_counts_nothing(
    mode: QuotaMode, tmp_path: Path, broker_copy: list[str]
) -> None:
    for path in (Path(broker_copy[0]) / "epochs-0").glob("*.log"):
        data = bytearray(path.read_bytes())
        data[100:104] = b"\0\0\0\0"
        path.write_bytes(data)
    run = Run(1, mode)
    report = run.tier(broker_copy, tmp_path, topics=("epochs",))
    assert len(report.of(Outcome.REFUSED)) == 3
    snapshot = run.quota.snapshot()
    assert (snapshot.total_bytes, snapshot.reserved_bytes, report.quota_wait_ms) == (0, 0, 0)


@pytest.mark.parametrize("mode", QuotaMode)
def test_closing_the_quota_ends_the_pass(mode: QuotaMode, tmp_path: Path) -> None:
    run = Run(100, mode)

    def close(progress: Progress) -> None:
        if progress.quota_wait_ms:
            run.quota.close()

    with pytest.raises(ClosedError, match="copy quota"):
        run.tier(CLEAN, tmp_path, close, topics=("epochs",))
    rest = Run(None).tier(CLEAN, tmp_path, topics=("epochs",))
    assert rest.ok
    assert len(list((tmp_path / "store").rglob("*.indexes"))) == 3
    assert len(list((tmp_path / "store").rglob("*.log"))) == 3


def test_a_change_of_the_limit_holds_for_the_running_pass(tmp_path: Path) -> None:
    run = Run(1)

    def lift(progress: Progress) -> None:
        if progress.quota_wait_ms:
            run.quota.set_limit(None)

    report = run.tier(CLEAN, tmp_path, lift, topics=("epochs",))
    assert len(report.of(Outcome.COPIED)) == 3
    assert report.quota_wait_ms == 0
