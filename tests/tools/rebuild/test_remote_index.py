"""The remote index files that a rebuild makes of a store: those that the copying node keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remote.index_files.model import Model, Tiered, folder, tiered
from tests.tools.audit.bucket_damage import rewrite
from tests.tools.golden_copy import overwrite
from tests.tools.rebuild.stored import header_of, indexes_of, lost
from tierlog.cli import main
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes
from tierlog.remote.segment.layout import claim_cluster, indexes_key, log_key
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import LocalStore
from tierlog.tools.rebuild.index import RebuildReport, rebuild_index
from tierlog.tools.rebuild.remote_index import RemoteIndexRow
from tierlog.tools.rebuild.segment import Outcome
from tierlog.tools.rebuild.store import sections_of
from tierlog.types import TopicIdPartition

# Late enough that no copy is still under way.
LATER_MS = 1 << 50


@pytest.fixture
def kept(golden_store: Path) -> dict[str, bytes]:
    """What the node that filled the store keeps."""
    return tree(golden_store.parent / "state" / "index")


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones, too."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def rebuild(
    store: Path, target: Path | str, *, jobs: int = 1, dry_run: bool = False
) -> RebuildReport:
    return rebuild_index(
        store.as_uri(), target=str(target), now_ms=LATER_MS, jobs=jobs, dry_run=dry_run
    )


def outcomes(report: RebuildReport) -> set[Outcome]:
    return {row.outcome for row in report.remote_indexes}


def row_of(report: RebuildReport, topic: str) -> RemoteIndexRow:
    (row,) = (row for row in report.remote_indexes if row.topic == topic)
    return row


def without(files: dict[str, bytes], topic: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.startswith(f"{topic}-")}


def test_the_files_are_those_that_the_copying_node_keeps(
    golden_store: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    report = rebuild(golden_store, tmp_path / "index")
    assert report.ok, report.findings
    assert outcomes(report) == {Outcome.WRITTEN}
    assert tree(tmp_path / "index") == kept
    assert len(kept) == 3 * sum(row.files for row in report.remote_indexes) > 0
    again = rebuild(golden_store, tmp_path / "index")
    assert again.ok
    assert outcomes(again) == {Outcome.SAME}
    assert tree(tmp_path / "index") == kept


def by_partition(
    store: ObjectStore,
) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    found: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for segment in list_segments(store):
        found.setdefault(segment.topic_id_partition, []).append(segment)
    return found


def opened(index_dir: Path, partition: TopicIdPartition) -> RemoteIndexFiles:
    return RemoteIndexFiles(index_dir, partition, rotate_bytes=16 << 20, rotate_ms=-1)


def test_a_node_goes_on_from_them(golden_store: Path, tmp_path: Path) -> None:
    rebuild(golden_store, tmp_path)
    store = LocalStore(golden_store)
    for partition, segments in by_partition(store).items():
        with closing(opened(tmp_path, partition)) as files:
            assert files.findings == ()
            for segment in segments:
                for offset in (segment.start_offset, segment.end_offset):
                    entry = files.lookup_offset(offset)
                    assert entry is not None
                    assert str(entry.log_key) == log_key(segment)
                    assert entry.last_offset >= offset
            # It asks for nothing: all of it is there.
            assert files.catch_up(segments, lambda one: pytest.fail(str(one))) == 0


def test_objects_that_were_lost_are_mended_first(
    store_copy: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    gone = indexes_of(store_copy)[::2]
    lost(store_copy, gone)
    report = rebuild(store_copy, tmp_path / "index", jobs=2)
    assert report.ok, report.findings
    assert report.summary.written == len(gone)
    assert tree(tmp_path / "index") == kept


def test_a_partition_without_a_sound_segment_is_left_alone(
    store_copy: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    for path in indexes_of(store_copy, "epochs"):
        quarantine(path)
    report = rebuild(store_copy, tmp_path / "index")
    row = row_of(report, "epochs")
    assert (row.outcome, row.files, row.findings) == (Outcome.LEFT_ALONE, 0, ())
    assert tree(tmp_path / "index") == without(kept, "epochs")


def quarantine(path: Path) -> None:
    """A log with a wrong batch, and an `.indexes` object of which only the offset index is bad."""
    overwrite(path.with_suffix(".log"), 40, b"\xff\xff")
    overwrite(path, header_of(path.read_bytes()).section(IndexKind.OFFSET).position, b"\xee")


def test_a_quarantined_segment_is_a_gap_until_it_is_back(
    golden_store: Path, store_copy: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    _, second, third = indexes_of(store_copy, "epochs")
    quarantine(second)
    index = tmp_path / "index"
    report = rebuild(store_copy, index, jobs=2)
    assert not report.ok
    assert row_of(report, "epochs").findings == ("gap",)
    (gap,) = (found for found in report.findings if found.what == "gap")
    bases = int(second.name[:20]), int(third.name[:20])
    assert (gap.first_offset, gap.last_offset) == (bases[0], bases[1] - 1)
    assert without(tree(index), "epochs") == without(kept, "epochs")

    whole = LocalStore(golden_store)
    (segments,) = (found for one, found in by_partition(whole).items() if one.topic == "epochs")
    partition = segments[0].topic_id_partition
    node = Path(shutil.copytree(golden_store.parent / "state" / "index", tmp_path / "node"))
    with (
        closing(opened(index, partition)) as files,
        closing(opened(node, partition)) as expected,
    ):
        assert files.findings == ()
        assert files.lookup_offset(bases[0]) is None
        assert files.catch_up(segments, lambda one: entries_of(whole, one)) > 0
        assert list(files.entries()) == list(expected.entries())


def entries_of(store: ObjectStore, segment: RemoteLogSegmentMetadata) -> memoryview:
    return sections_of(store, segment, IndexKind.REMOTE_LOG)[IndexKind.REMOTE_LOG]


def test_entries_of_another_segment_are_left_out(
    store_copy: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    """Every checksum of the object holds."""
    first, second, _ = indexes_of(store_copy, "epochs")
    data = first.read_bytes()
    rewrite(second, REMOTE_LOG=bytes(header_of(data).read_section(IndexKind.REMOTE_LOG, data)))
    report = rebuild(store_copy, tmp_path / "index")
    assert not report.ok
    row = row_of(report, "epochs")
    assert (row.outcome, len(row.findings)) == (Outcome.WRITTEN, 1)
    (found,) = report.findings
    assert found.path == second.relative_to(store_copy).as_posix()
    assert without(tree(tmp_path / "index"), "epochs") == without(kept, "epochs")


@pytest.mark.parametrize("some_lost", [False, True])
def test_a_dry_run_writes_nothing(some_lost: bool, store_copy: Path, tmp_path: Path) -> None:
    if some_lost:
        lost(store_copy, indexes_of(store_copy)[::2])
    before = tree(store_copy)
    report = rebuild(store_copy, tmp_path / "index", dry_run=True)
    assert report.ok
    assert report.findings == ()
    assert outcomes(report) == {Outcome.WOULD_WRITE}
    assert not (tmp_path / "index").exists()
    assert tree(store_copy) == before


def test_a_run_that_was_interrupted_is_taken_up_again(
    golden_store: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    rebuild(golden_store, tmp_path)
    paths = sorted(tmp_path.rglob("epochs-*/*/*"))
    files = [path for path in paths if path.is_file()]
    for path in files[1:]:
        path.unlink()
    before = files[0].stat().st_ino
    report = rebuild(golden_store, tmp_path)
    assert row_of(report, "epochs").outcome is Outcome.WRITTEN
    assert tree(tmp_path) == kept
    assert files[0].stat().st_ino == before


@pytest.mark.parametrize("what", ["other bytes", "another file"])
def test_what_a_node_has_made_of_it_stays(
    what: str, golden_store: Path, kept: dict[str, bytes], tmp_path: Path
) -> None:
    rebuild(golden_store, tmp_path)
    log, offset, _ = sorted(tmp_path.rglob("epochs-*/0/*.remote*"))
    if what == "other bytes":
        overwrite(log, 30, b"\xee")
    else:
        shutil.copy(log, log.with_name(f"{4711:020d}.remoteLogIndex"))
    offset.unlink()
    before = tree(tmp_path)
    report = rebuild(golden_store, tmp_path)
    assert not report.ok
    assert row_of(report, "epochs").outcome is Outcome.CONFLICT
    assert {found.what for found in report.findings} == {"conflict"}
    assert tree(tmp_path) == before
    assert without(before, "epochs") == without(kept, "epochs")


def put(store: LocalStore, source: Tiered, lineage: LeaderEpochs) -> None:
    """A segment's two objects; of its log only the size counts here."""
    store.put_bytes(log_key(source.metadata), bytes(source.metadata.segment_size_bytes))
    sections = dict.fromkeys(set(IndexKind) - {IndexKind.METADATA}, b"")
    sections |= {
        IndexKind.REMOTE_LOG: source.data,
        IndexKind.LEADER_EPOCH: lineage.up_to(source.metadata.end_offset + 1).encode(),
    }
    description = SegmentDescription(metadata=source.metadata)
    store.put_bytes(indexes_key(source.metadata), encode_indexes(description, sections))


def in_epoch(source: Tiered, epoch: int) -> Tiered:
    epochs = ((epoch, source.metadata.start_offset),)
    return replace(source, metadata=replace(source.metadata, leader_epochs=epochs))


def test_what_a_later_leader_wrote_otherwise_is_cut_off(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    claim_cluster(store, "cluster")
    first, second, lost_one = (in_epoch(tiered(at, at + 49), 1) for at in (0, 50, 100))
    later = in_epoch(tiered(75, 160, per_entry=7, name="later"), 3)
    old, new = (
        LeaderEpochs(tuple(EpochEntry(*one) for one in entries))
        for entries in ([(1, 0)], [(1, 0), (3, 75)])
    )
    for source, lineage in ((first, old), (second, old), (lost_one, old), (later, new)):
        put(store, source, lineage)
    model = Model(rotate_bytes=16 << 20)
    model.catch_up([first, second.cut(75), later])
    report = rebuild(tmp_path / "store", tmp_path / "index")
    assert report.ok, report.findings
    found = folder(tmp_path / "index")
    assert {path.name: path.read_bytes() for path in found.iterdir()} == model.on_disk()


def refused(store: Path, tmp_path: Path) -> Iterator[Path | str]:
    yield store
    yield store / "index"
    yield store.parent
    yield "s3://bucket/index"
    broker = tmp_path / "broker"
    broker.mkdir()
    (broker / "meta.properties").touch()
    yield broker / "index"


def test_targets_that_are_refused(store_copy: Path, tmp_path: Path) -> None:
    before = tree(tmp_path)
    wanted = list(refused(store_copy, tmp_path))
    for target in wanted:
        with pytest.raises(ConfigError, match="expected a folder"):
            rebuild(store_copy, target)
    (tmp_path / "broker" / "meta.properties").unlink()
    assert tree(tmp_path) == before


def test_the_command(
    golden_store: Path, kept: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["index", "rebuild", str(golden_store), "--to", str(tmp_path), "--jobs", "1"]
    assert main(command) == 0
    partitions = len({Path(name).parent for name in kept})
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == f"remote index files of {partitions} partitions: {partitions} written"
    assert main([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["remote_indexes"]
    assert [row["outcome"] for row in rows] == ["same"] * partitions
    assert tree(tmp_path) == kept
