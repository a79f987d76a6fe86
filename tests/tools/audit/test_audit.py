"""An audit of a bucket that the real copier filled, of every damage to it, and of its retention."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sidecar.configs import tier_config
from tests.tools.audit.bucket_damage import DAMAGES, Bucket, Damage, Expected
from tests.tools.conftest import LOG_DIRS, tier_golden
from tests.tools.golden_copy import overwrite
from tierlog.cli import main
from tierlog.clock import ManualClock
from tierlog.config import Config, RemoteLogConfig
from tierlog.errors import ConfigError, RemoteMetadataError
from tierlog.log.checkpoint import EpochEntry
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar
from tierlog.testing.segments import PARTITION, segment
from tierlog.tools.audit.metadata import read_metadata
from tierlog.tools.audit.partition import PartitionAudit, audit_partition
from tierlog.tools.audit.plan import plan_audit
from tierlog.tools.audit.rows import (
    FINISHED,
    AuditedSegment,
    AuditRules,
    OpenTransaction,
    segment_of,
)
from tierlog.tools.audit.store import StoreAudit, audit_store
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.verify.source import verify_store

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def second_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same logs, copied once more: other segment ids, the same bytes."""
    place = tmp_path_factory.mktemp("second")
    assert tier_golden(place / "store", place / "state").ok
    return place / "store"


@pytest.fixture
def bucket(golden_store: Path, second_store: Path, store_copy: Path, tmp_path: Path) -> Bucket:
    """May be damaged, but for `second`."""
    metadata = shutil.copy(golden_store.parent / "state" / "metadata.sqlite", tmp_path)
    return Bucket(store=store_copy, metadata=Path(metadata), second=second_store)


def audited(bucket: Bucket, *, age_ms: int = HOUR_MS, **rules: object) -> StoreAudit:
    """With the metadata, as of an hour after the last change."""
    newest_ms = max(path.stat().st_mtime_ns for path in bucket.store.rglob("*")) // 1_000_000
    return audit_store(
        bucket.store.as_uri(),
        AuditRules(now_ms=newest_ms + age_ms, **rules),  # type: ignore[arg-type]
        metadata=str(bucket.metadata),
    )


def kinds(found: tuple[Finding, ...]) -> set[tuple[str, str]]:
    """Without what is open at the end of every live log."""
    return {(one.what, one.topic or "") for one in found if one.what != "txn_open"}


@pytest.mark.parametrize("deep", [False, True])
def test_what_was_copied_is_what_the_metadata_says(bucket: Bucket, deep: bool) -> None:
    audit = audited(bucket, deep=deep)
    assert kinds(audit.findings) == set()
    assert {row.state for row in audit.segments} == {FINISHED}
    assert len(audit.segments) == len(list(bucket.store.rglob("*.log")))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_each_damage_is_found_and_nothing_else(bucket: Bucket, damage: Damage) -> None:
    damage.do(bucket)
    assert kinds(audited(bucket, deep=True).findings) == damage.found | damage.deep
    if damage.deep:
        assert kinds(audited(bucket).findings) == damage.found


def test_all_damage_at_once(bucket: Bucket) -> None:
    expected: set[Expected] = set()
    for damage in DAMAGES.values():
        damage.do(bucket)
        expected |= damage.found | damage.deep
    audit = audited(bucket, deep=True)
    assert kinds(audit.findings) == expected
    assert list(audit.findings) == sorted(
        audit.findings,
        key=lambda one: (one.path, -1 if one.position is None else one.position, one.what),
    )


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_how_many_neighbours_are_packed_together_does_not_show(
    bucket: Bucket, neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of segments that only the metadata has, either, wherever they stand."""
    for damage in DAMAGES.values():
        damage.do(bucket)
    for path in sorted(bucket.store.rglob("*.log"))[::3]:
        path.unlink()
        path.with_suffix(".indexes").unlink(missing_ok=True)
    together = audited(bucket)
    assert len([one for one in together.findings if one.what == "missing"]) > 10
    monkeypatch.setattr("tierlog.tools.listed_segments.MAX_LISTED", neighbours)
    assert audited(bucket) == together


def test_an_object_that_is_alone_hides_nothing_of_its_folder(bucket: Bucket) -> None:
    folder = next(path.parent.parent for path in bucket.store.rglob("epochs-*/0/*.log"))
    topic_id = folder.name.removeprefix("epochs-")
    other = Path(shutil.copytree(folder, folder.with_name(f"renamed-{topic_id}")))
    sorted(other.rglob("*.indexes"))[0].unlink()
    plan = plan_audit(open_store(bucket.store.as_uri()), now_ms=1 << 50)
    found = {one.path.partition("/")[0] for one in plan.findings if one.what == "name_mismatch"}
    assert found == {other.name}
    # What progress comes to.
    assert plan.size_bytes == sum(task.size_bytes for task in plan.tasks()) > 0
    assert plan.size_bytes < sum(path.stat().st_size for path in bucket.store.rglob("*.log"))


def test_the_bucket_alone_says_what_it_can(bucket: Bucket) -> None:
    for damage in DAMAGES.values():
        damage.do(bucket)
    report = verify_store(bucket.store.as_uri(), now_ms=1 << 50)
    only_by_metadata = {"orphan", "dangling", "metadata_mismatch", "bad_row_checksum"}
    assert not only_by_metadata & {one.what for one in report.findings}
    assert {"missing_offsets", "name_mismatch", "txn_state"} <= {
        one.what for one in report.findings
    }


def test_findings_say_where(bucket: Bucket) -> None:
    DAMAGES["gap"].do(bucket)
    (gap,) = [one for one in audited(bucket).findings if one.what == "missing_offsets"]
    assert (gap.topic, gap.partition, gap.first_offset, gap.last_offset) == (
        "codec-none",
        0,
        134,
        268,
    )
    assert gap.path == bucket.object("codec-none", 269).relative_to(bucket.store).as_posix()


def test_what_is_young_may_be_on_its_way(bucket: Bucket) -> None:
    DAMAGES["unknown"].do(bucket)
    (orphan,) = [one for one in audited(bucket).findings if one.what == "orphan"]
    assert orphan.severity is Severity.PROBLEM
    now_ms = os.stat(bucket.object("epochs", 0)).st_mtime_ns // 1_000_000
    for path in bucket.store.rglob("*370-*"):
        os.utime(path, (now_ms / 1000, now_ms / 1000))
    (orphan,) = [one for one in audited(bucket, age_ms=0).findings if one.what == "orphan"]
    assert orphan.severity is Severity.NOTE


def test_the_command_holds_a_store_against_its_metadata(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(bucket.store), "--metadata", str(bucket.metadata)]
    assert main(command) == 0
    assert ": no problems" in capsys.readouterr().out
    DAMAGES["lost"].do(bucket)
    assert main(command) == 1
    assert "missing: expected the object of a segment" in capsys.readouterr().out
    assert main(["verify", LOG_DIRS[0], "--metadata", str(bucket.metadata)]) == 2


# -- sizes and retention, against what the manager itself knows and does


@pytest.mark.parametrize("damages", [(), ("half deleted", "never copied", "unknown", "lost")])
def test_epoch_sizes_are_those_of_the_metadata_manager(
    bucket: Bucket, damages: tuple[str, ...]
) -> None:
    """What is being copied or deleted does not count, nor what the metadata does not know."""
    for damage in damages:
        DAMAGES[damage].do(bucket)
    rows = {
        (row.topic_id, row.partition, row.leader_epoch): row.size_bytes
        for row in audited(bucket).epoch_sizes
    }
    with closing(SqliteRemoteLogMetadataManager(bucket.metadata)) as manager:
        epochs = {
            (one.topic_id, one.partition, epoch): manager.remote_log_size(one, epoch)
            for one in manager.partitions()
            for metadata in manager.list(one)
            for epoch, _ in metadata.leader_epochs
        }
    assert rows == epochs
    assert len({epoch for _, _, epoch in rows}) > 1


@pytest.mark.parametrize("with_metadata", [False, True])
def test_what_would_be_deleted_is_what_the_sidecar_then_deletes(
    tmp_path: Path, with_metadata: bool
) -> None:
    """The golden records bear times of a few seconds; they are copied a little later."""
    store, state = tmp_path / "store", tmp_path / "state"
    clock = ManualClock(now_ms=1_700_000_010_000)

    def logs_after_a_pass(retention_ms: int | None) -> set[str]:
        # Most of the archive is to go here, which the sidecar holds back otherwise.
        everything = Config(remote_log=RemoteLogConfig(retention_max_deleted_ratio=1))
        unlimited = -1 if retention_ms is None else retention_ms
        config = tier_config(everything, retention_ms=unlimited)
        with Sidecar(
            LOG_DIRS,
            store.as_uri(),
            state_dir=str(state),
            clock=clock,
            config=config,
        ) as sidecar:
            sidecar.run_once()
        return {path.relative_to(store).as_posix() for path in store.rglob("*.log")}

    held = logs_after_a_pass(None)
    for retention_ms in (7_000, 6_000, 1):
        audit = audit_store(
            store.as_uri(),
            AuditRules(now_ms=clock.now_ms(), retention_ms=retention_ms),
            metadata=str(state / "metadata.sqlite") if with_metadata else None,
        )
        left = logs_after_a_pass(retention_ms)
        assert held - left == {row.path for row in audit.deletions} != set()
        assert {row.reason for row in audit.deletions} == {"retention_time"}
        assert sum(row.deleted_segments for row in audit.retention) == len(audit.deletions)
        held = left


def test_the_size_rule_and_the_log_start(bucket: Bucket) -> None:
    audit = audited(bucket, retention_bytes=30_000)
    assert {row.reason for row in audit.deletions} == {"retention_size"}
    for row in audit.retention:
        assert row.size_bytes is not None
        left_bytes = row.size_bytes - row.deleted_bytes
        assert left_bytes >= min(row.size_bytes, 30_000)
    audit = audited(bucket, log_start_offset=300)
    assert {row.reason for row in audit.deletions} == {"log_start_offset"}
    held = {row.path: row.end_offset for row in audit.segments}
    assert {row.path for row in audit.deletions} == {key for key, end in held.items() if end < 300}
    assert audited(bucket).deletions == ()


def test_why_something_is_not_deleted(bucket: Bucket) -> None:
    DAMAGES["other epochs"].do(bucket)
    audit = audited(bucket, retention_ms=0)
    (row,) = [one for one in audit.retention if one.topic == "broker-snappy"]
    assert (row.deleted_segments, row.held_back) == (
        0,
        ("the leader epochs are unknown: no segment describes them",),
    )
    DAMAGES["unknown"].do(bucket)
    audit = audited(bucket, retention_ms=0)
    (orphan,) = [one.path for one in audit.segments if one.state is None]
    assert orphan not in {one.path for one in audit.deletions}
    DAMAGES["epochs gone"].do(bucket)
    gone = [one.reason for one in audited(bucket).deletions if one.topic == "epochs"]
    assert gone == ["unreferenced_epochs", "unreferenced_epochs"]


# -- the metadata file


def test_metadata_is_read_while_its_owner_writes_and_nothing_is_touched(bucket: Bucket) -> None:
    folder = bucket.metadata.parent
    with closing(SqliteRemoteLogMetadataManager(bucket.metadata)) as owner:
        (partition, *_) = owner.partitions()
        known = owner.list(partition)
        owner.advance_log_start_offset(partition, 7)
        before = {path: (path.stat(), path.read_bytes()) for path in folder.glob("metadata*")}
        assert len(before) > 2
        seen = read_metadata(bucket.metadata.as_uri())
        after = {path: (path.stat(), path.read_bytes()) for path in folder.glob("metadata*")}
    assert {path: (one[0].st_mtime_ns, one[1]) for path, one in before.items()} == {
        path: (one[0].st_mtime_ns, one[1]) for path, one in after.items()
    }
    rows = [row for row in seen.segments.values() if row.topic_id == partition.topic_id]
    assert [row.metadata() for row in rows] == list(known)
    assert {row.log_start_offset for row in rows} == {7}


def test_metadata_that_changes_while_it_is_copied_is_not_believed(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner commits just between the copies of the file and of its log."""
    copy_file = shutil.copyfile
    with closing(SqliteRemoteLogMetadataManager(bucket.metadata)) as owner:
        partition, commits = owner.partitions()[0], count(1)

        def copy_and_commit(source: str, target: str) -> None:
            copy_file(source, target)
            if source == str(bucket.metadata):
                owner.advance_log_start_offset(partition, next(commits))

        monkeypatch.setattr(shutil, "copyfile", copy_and_commit)
        with pytest.raises(RemoteMetadataError, match="changed each time it was read"):
            read_metadata(str(bucket.metadata))
        monkeypatch.undo()
        rows = read_metadata(str(bucket.metadata)).segments.values()
    tries = next(commits) - 1
    assert tries > 1
    assert {row.log_start_offset for row in rows} == {None, tries}


def test_a_file_that_is_no_metadata(bucket: Bucket, tmp_path: Path) -> None:
    overwrite(bucket.metadata, 0, b"NOT SQLITE")
    audit = audited(bucket)
    assert kinds(audit.findings) == {("bad_database", "")}
    assert [one.path for one in audit.findings if one.what == "bad_database"] == [
        str(bucket.metadata)
    ]
    with pytest.raises(FileNotFoundError):
        read_metadata(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="as a path or file"):
        read_metadata("s3://bucket/metadata.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database, database:
        database.execute("CREATE TABLE other (number INTEGER)")
    assert [one.what for one in _with_metadata(bucket, tmp_path / "other.sqlite")] == [
        "unknown_version"
    ]


def _with_metadata(bucket: Bucket, metadata: Path) -> list[Finding]:
    found = audited(replace(bucket, metadata=metadata)).findings
    return [one for one in found if one.what != "txn_open"]


# -- partitions as rows


def row_of(
    name: str,
    first: int,
    last: int,
    epochs: tuple[tuple[int, int], ...] | None = None,
    lineage: tuple[tuple[int, int], ...] = ((0, 0),),
    *,
    log_crc32c: int | None = None,
    truncation_offset: int | None = None,
    **more: object,
) -> AuditedSegment:
    metadata = segment(
        name,
        first,
        last,
        epochs=epochs,
        log_crc32c=log_crc32c,
        truncation_offset=truncation_offset,
    )
    return segment_of(
        metadata,
        state=FINISHED,
        stored=True,
        truncation_offset=truncation_offset,
        lineage=tuple(EpochEntry(*entry) for entry in lineage),
        **more,
    )


def judged(*rows: AuditedSegment) -> PartitionAudit:
    return audit_partition(rows, AuditRules(now_ms=0))


def found_in(*rows: AuditedSegment) -> list[tuple[str, Severity, int | None, int | None]]:
    return [
        (one.what, one.severity, one.first_offset, one.last_offset)
        for one in judged(*rows).findings
    ]


def test_overlaps_and_duplicates() -> None:
    whole, inside = row_of("a", 0, 99), row_of("b", 10, 20)
    after = row_of("c", 100, 199)
    assert found_in(whole, inside, after) == [("overlap", Severity.NOTE, 10, 20)]
    assert found_in(whole, row_of("d", 50, 149), after) == [
        ("overlap", Severity.NOTE, 50, 99),
        ("overlap", Severity.NOTE, 100, 149),
    ]
    same = [row_of(name, 0, 99, log_crc32c=7) for name in ("a", "b")]
    assert found_in(*same) == [("duplicate", Severity.NOTE, 0, 99)]
    other = replace(same[1], log_crc32c=8)
    assert found_in(same[0], other) == [("duplicate", Severity.PROBLEM, 0, 99)]


def test_what_a_deposed_leader_wrote_neither_fills_a_gap_nor_overlaps() -> None:
    lineage = ((0, 0), (2, 100))
    log = [
        row_of("a", 0, 99, ((0, 0),), lineage),
        row_of("b", 100, 149, ((2, 100),), lineage),
        row_of("d", 200, 249, ((2, 200),), lineage),
    ]
    zombie = row_of("z", 100, 299, ((0, 0),), ((0, 0),))
    assert found_in(*log, zombie) == [
        ("missing_offsets", Severity.PROBLEM, 150, 199),
        ("epoch_regression", Severity.NOTE, 100, 299),
    ]


def test_transactions_from_one_segment_to_the_next() -> None:
    open_ = (OpenTransaction(7, 50),)
    first = row_of("a", 0, 99, open_transactions=open_, ended_producers=())
    kept = row_of("b", 100, 199, open_transactions=open_, ended_producers=())
    ended = row_of("b", 100, 199, open_transactions=(), ended_producers=(7,))
    assert found_in(first, ended) == []
    assert found_in(first, kept) == [("txn_open", Severity.NOTE, 50, 199)]
    assert found_in(first, replace(ended, ended_producers=())) == [
        ("txn_state", Severity.PROBLEM, 50, 199)
    ]
    assert found_in(first, replace(ended, ended_producers=None)) == []
    unknown = replace(first, open_transactions=())
    assert ("txn_state", Severity.PROBLEM, 50, 199) in found_in(unknown, kept)
    assert found_in(replace(first, open_transactions=None), kept) == [
        ("txn_open", Severity.NOTE, 50, 199)
    ]


@st.composite
def st_partition(draw: st.DrawFn) -> list[AuditedSegment]:
    """Up to eight segments anywhere in a short log of up to three leader epochs."""
    starts = sorted(draw(st.sets(st.integers(1, 60), max_size=2)))
    lineage = ((0, 0), *((2 * row, start) for row, start in enumerate(starts, 1)))
    rows = [row_of("newest", 61, 64, ((lineage[-1][0], 61),), lineage)]
    for number in range(draw(st.integers(0, 8))):
        first = draw(st.integers(0, 60))
        last = draw(st.integers(first, 60))
        epoch = draw(st.integers(0, 4))
        cut = draw(st.none() | st.integers(0, 64))
        epochs = ((epoch, first),)
        rows.append(row_of(f"s{number}", first, last, epochs, lineage, truncation_offset=cut))
    return rows


@settings(max_examples=200, deadline=None)
@given(st_partition())
def test_gaps_against_a_log_known_offset_by_offset(rows: list[AuditedSegment]) -> None:
    lineage = rows[0].lineage
    assert lineage is not None
    held = set()
    for row in rows:
        cut = 99 if row.truncation_offset is None else row.truncation_offset
        for offset in range(row.base_offset, min(row.end_offset, cut - 1) + 1):
            epoch = max(entry for entry in lineage if entry.start_offset <= offset).epoch
            if epoch == row.leader_epochs[0].epoch:
                held.add(offset)
    audit = judged(*rows)
    missing = {
        offset
        for one in audit.findings
        if one.what == "missing_offsets"
        for offset in range(one.first_offset or 0, (one.last_offset or 0) + 1)
    }
    newest = max(rows, key=lambda row: (row.leader_epochs[-1].epoch, row.end_offset))
    if newest is rows[0]:
        assert missing == set(range(min(held), max(held) + 1)) - held


def test_no_segment_is_no_finding() -> None:
    assert judged() == PartitionAudit()
    assert PARTITION.topic == row_of("a", 0, 9).topic
