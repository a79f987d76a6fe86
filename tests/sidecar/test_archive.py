"""An archive outlives what its broker does to the log: local retention, deletion, a new disk."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tierlog
from tests.kafka_tools.golden import golden_segments
from tests.sidecar.configs import tier_config
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.config import Config, RemoteLogConfig
from tierlog.errors import GapError
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.gaps import OnGap
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.layout import indexes_key
from tierlog.remote.urls import open_store
from tierlog.sidecar import Outcome, Sidecar, TierReport
from tierlog.tools.ls import list_store
from tierlog.tools.verify.source import verify_store

PARTITION = "epochs-0"
ROLLED = [one.base_offset for one in golden_segments(topic="epochs") if one.rolled]
END = 410


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return copy_log_dir(tmp_path, "clean/disk1", PARTITION)


def tier(
    log_dir: Path, state: str = "state", config: Config | None = None, *, dry_run: bool = False
) -> TierReport:
    with Sidecar(
        [str(log_dir)],
        (log_dir.parent / "store").as_uri(),
        state_dir=str(log_dir.parent / state),
        clock=ManualClock(),
        config=config,
        dry_run=dry_run,
    ) as sidecar:
        return sidecar.run_once()


def local_retention(log_dir: Path, start_offset: int) -> None:
    """What a broker without tiering does: files go, and its leader epochs begin there."""
    for segment in open_log_dir(log_dir).partition("epochs", 0).segments:
        if segment.next_base_offset is not None and segment.next_base_offset <= start_offset:
            for path in (log_dir / PARTITION).glob(f"{segment.base_offset:020d}.*"):
                path.unlink()
    epochs = open_log_dir(log_dir).partition("epochs", 0).leader_epochs
    assert epochs is not None
    cut = epochs.clipped(start_offset, 10_000)
    (log_dir / PARTITION / "leader-epoch-checkpoint").write_bytes(cut.encode())
    (log_dir / "log-start-offset-checkpoint").write_text(f"0\n1\nepochs 0 {start_offset}\n")


def offsets(log_dir: Path, start_offset: int = 0, on_gap: OnGap = "fail") -> list[int]:
    store = (log_dir.parent / "store").as_uri()
    pieces = tierlog.read(store, "epochs", 0, start_offset, on_gap=on_gap)
    return [offset for piece in pieces for offset in piece.offset.tolist()]


@pytest.mark.parametrize("state", ["state", "lost"])
def test_local_retention_takes_nothing_from_the_archive(log_dir: Path, state: str) -> None:
    """Retention by size looks at everything, and the leader epochs that are left begin late."""
    segment = log_dir / PARTITION / "00000000000000000410.log"
    active = segment.read_bytes()
    for path in (log_dir / PARTITION).glob(f"{END:020d}.*"):
        path.rename(log_dir.parent / path.name)
    assert len(tier(log_dir).of(Outcome.COPIED)) == 2
    for path in log_dir.parent.glob(f"{END:020d}.*"):
        path.rename(log_dir / PARTITION / path.name)
    local_retention(log_dir, 285)
    keep = tier_config(retention_bytes=1 << 40)
    report = tier(log_dir, state, config=keep)
    assert report.ok
    assert [row.base_offset for row in report.of(Outcome.COPIED)] == [285]
    assert report.of(Outcome.EXPIRED) == ()
    assert offsets(log_dir) == list(range(END))
    assert offsets(log_dir, 150)[0] == 150
    assert segment.read_bytes() == active


def only_first_segment(log_dir: Path) -> None:
    """Tier the first segment, while the broker has nothing after the second one."""
    away = log_dir.parent / "away"
    away.mkdir()
    later = [path for base in (285, END) for path in (log_dir / PARTITION).glob(f"{base:020d}.*")]
    for path in later:
        path.rename(away / path.name)
    assert [row.base_offset for row in tier(log_dir).of(Outcome.COPIED)] == [0]
    for path in away.iterdir():
        path.rename(log_dir / PARTITION / path.name)


@pytest.mark.parametrize("state", ["state", "lost"])
def test_what_was_deleted_before_it_was_copied_is_no_gap(log_dir: Path, state: str) -> None:
    """By retention or by DeleteRecords, while no sidecar ran."""
    only_first_segment(log_dir)
    local_retention(log_dir, 285)
    assert [row.base_offset for row in tier(log_dir, state).of(Outcome.COPIED)] == [285]
    assert offsets(log_dir) == [*range(146), *range(285, END)]
    store = log_dir.parent / "store"
    assert list_store(store.as_uri()).gaps == ()
    report = verify_store(store.as_uri(), now_ms=1 << 50)
    assert report.sound
    (note,) = [one for one in report.findings if one.what == "deleted_before_copy"]
    assert (note.first_offset, note.last_offset) == (146, 284)


def test_a_segment_that_was_refused_is_a_gap(log_dir: Path) -> None:
    """The broker still has it: its offsets were not deleted."""
    damaged = log_dir / PARTITION / f"{146:020d}.log"
    data = bytearray(damaged.read_bytes())
    data[300] ^= 1
    damaged.write_bytes(data)
    assert [row.base_offset for row in tier(log_dir).of(Outcome.COPIED)] == [0, 285]
    with pytest.raises(GapError, match="offsets 146 to 284 are in no segment"):
        offsets(log_dir)


def test_the_archive_expires_from_its_own_beginning(log_dir: Path) -> None:
    tier(log_dir)
    local_retention(log_dir, 285)
    sizes = [one.size_bytes for one in golden_segments(topic="epochs")]
    report = tier(log_dir, config=tier_config(retention_bytes=sum(sizes) - sizes[0]))
    (row,) = report.of(Outcome.EXPIRED)
    assert (row.base_offset, row.reason) == (0, "retention_size")
    assert offsets(log_dir) == list(range(146, END))
    # That start is kept in the state directory, whatever the broker's own.
    everything = Config(remote_log=RemoteLogConfig(retention_max_deleted_ratio=1))
    report = tier(log_dir, config=tier_config(everything, retention_bytes=1))
    assert report.of(Outcome.EXPIRED) != ()
    assert list((log_dir.parent / "store").rglob("*.log")) == []


def test_a_log_that_begins_anew_leaves_the_archive_alone(log_dir: Path) -> None:
    """The same topic on an empty disk: its broker restarts it at offset 0 in a later epoch."""
    tier(log_dir)
    folder = log_dir / PARTITION
    for path in folder.glob("0*"):
        path.unlink()
    (folder / f"{0:020d}.log").write_bytes(b"")
    anew = LeaderEpochs((EpochEntry(7, 0),))
    (folder / "leader-epoch-checkpoint").write_bytes(anew.encode())
    report = tier(log_dir, config=tier_config(retention_ms=10**15))
    (warning,) = report.warnings
    assert "begins anew at offset 0 in leader epoch 7" in warning
    assert "offsets up to 409 of earlier epochs" in warning
    assert report.of(Outcome.EXPIRED) == ()
    assert offsets(log_dir) == list(range(END))


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_expired_and_is_still_on_the_brokers_disk_says_so(
    log_dir: Path, dry_run: bool
) -> None:
    """Its log start is the broker's own business: nothing is copied again."""
    sizes = [one.size_bytes for one in golden_segments(topic="epochs")]
    keep = tier_config(retention_bytes=sum(sizes) - sizes[0])
    tier(log_dir)
    assert [row.base_offset for row in tier(log_dir, config=keep).of(Outcome.EXPIRED)] == [0]
    before = sorted((path, path.stat().st_mtime_ns) for path in log_dir.parent.rglob("*"))
    report = tier(log_dir, config=keep, dry_run=dry_run)
    rows = {row.base_offset: (row.outcome, row.reason, row.text) for row in report.rows}
    assert rows[0] == (
        Outcome.SKIPPED,
        "below_log_start",
        "expired: all offsets lie below the archive's log start offset 146",
    )
    assert [reason for _, reason, _ in rows.values()][1:] == ["copied", "copied", "active"]
    if dry_run:
        now = sorted((path, path.stat().st_mtime_ns) for path in log_dir.parent.rglob("*"))
        assert now == before


def test_a_dry_run_beside_a_sidecar_at_work_reads_its_state(log_dir: Path) -> None:
    store, state = (log_dir.parent / "store").as_uri(), str(log_dir.parent / "state")
    with Sidecar([str(log_dir)], store, state_dir=state, clock=ManualClock()) as sidecar:
        assert len(sidecar.run_once().of(Outcome.COPIED)) == 3
        report = tier(log_dir, dry_run=True)
    assert report.ok
    assert report.of(Outcome.WOULD_COPY) == ()


def test_records_deleted_by_request_are_not_copied(log_dir: Path) -> None:
    (log_dir / "log-start-offset-checkpoint").write_text("0\n1\nepochs 0 146\n")
    report = tier(log_dir)
    assert [row.base_offset for row in report.of(Outcome.COPIED)] == ROLLED[1:]
    assert {row.base_offset: row.reason for row in report.of(Outcome.SKIPPED)} == {
        0: "below_log_start",
        END: "active",
    }


def test_a_copy_lag_holds_segments_back(log_dir: Path) -> None:
    lag = tier_config(copy_lag_ms=-1, copy_lag_bytes=30_000)
    report = tier(log_dir, config=lag)
    assert [row.base_offset for row in report.of(Outcome.COPIED)] == ROLLED[:2]
    reasons = {row.base_offset: row.reason for row in report.of(Outcome.SKIPPED)}
    assert reasons == {285: "copy_lag", END: "active"}


def test_a_deleted_topic_stays_and_its_interrupted_copies_are_settled(log_dir: Path) -> None:
    """A copy that was whole is finished, one that was not is removed, as if it still had a log."""
    tier(log_dir)
    store = open_store((log_dir.parent / "store").as_uri())
    segments = sorted(list_segments(store), key=lambda one: one.start_offset)
    shutil.rmtree(log_dir / PARTITION)
    (log_dir.parent / "store" / indexes_key(segments[1])).unlink()
    metadata = SqliteRemoteLogMetadataManager(log_dir.parent / "half" / "metadata.sqlite")
    started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    metadata.load(replace(one, state=started) for one in segments[:2])
    metadata.close()
    report = tier(log_dir, "half", config=tier_config(retention_ms=1))
    assert report.ok
    assert report.warnings == (
        f"{segments[0].segment_id}: interrupted copy finished",
        f"{segments[1].segment_id}: interrupted copy removed",
    )
    with pytest.raises(GapError, match="offsets 146 to 284 are in no segment"):
        offsets(log_dir)
    assert offsets(log_dir, on_gap="skip") == [*range(146), *range(285, END)]
    assert len(list((log_dir.parent / "store").rglob("*.log"))) == 2
