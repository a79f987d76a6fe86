"""Kafka's own layout read as a store: the golden segments under the names Kafka gives them."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tierlog
from tests.fetch.views import Row, oracle_batches, truth
from tests.kafka_tools.golden import golden_segments
from tests.oracle import batches as oracle
from tests.remote.kafka_layouts import kafka_url, lay_out_golden
from tierlog.cli import main
from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment import scan_segment
from tierlog.reader.gaps import OnGap
from tierlog.reader.open import Isolation, open_reader
from tierlog.reader.sources import source_of
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.segment import kafka_layout
from tierlog.remote.segment.bucket import Problem, ProblemReason, list_segments
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.kafka_layout import KAFKA_FOLDER
from tierlog.remote.segment.layout import parse_rdi
from tierlog.remote.segment.log_index import decode_remote_log_index
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import ObjectStore, open_store
from tierlog.testing.stores import HOSTILE_KEYS
from tierlog.tools.findings import Severity
from tierlog.tools.ls import list_store
from tierlog.tools.verify.source import verify


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PartitionLog]]:
    """The folder that a broker was given, not to be changed, and the logs it is of."""
    folder = tmp_path_factory.mktemp("kafka-layout")
    return folder, lay_out_golden(folder)


@pytest.fixture
def damaged(golden: tuple[Path, list[PartitionLog]], tmp_path: Path) -> Path:
    """The epochs topic alone, to be damaged."""
    (source,) = (golden[0] / KAFKA_FOLDER).glob("epochs-0-*")
    shutil.copytree(source, tmp_path / KAFKA_FOLDER / source.name)
    return tmp_path


def second_segment(folder: Path, suffix: str) -> Path:
    return sorted((folder / KAFKA_FOLDER).glob(f"*/*{suffix}"))[1]


def problems(folder: Path) -> list[Problem]:
    found: list[Problem] = []
    list(list_segments(open_store(kafka_url(folder)), on_problem=found.append))
    return found


def offsets(folder: Path) -> list[int]:
    pieces = tierlog.read(
        kafka_url(folder), "epochs", 0, on_problem=lambda _problem: None, on_gap="skip"
    )
    return [offset for piece in pieces for offset in piece.offset.tolist()]


def gaps_of(log: PartitionLog) -> OnGap:
    """Kafka tiers no compacted topic: in its layout a compacted tail looks like a gap."""
    return "skip" if log.compacted else "fail"


def tiered_rows(log: PartitionLog, *, committed: bool) -> list[Row]:
    """What the oracle says the rolled segments hold."""
    end = log.rolled_segments[-1].next_base_offset or 0
    return [row for row in truth(log, committed=committed) if row[0] < end]


def test_the_listing_is_that_of_the_broker(golden: tuple[Path, list[PartitionLog]]) -> None:
    listed = list_store(kafka_url(golden[0]), segments=True)
    known = {
        (one.topic, one.partition, one.base_offset): one
        for one in golden_segments(data_set="clean")
        if one.rolled
    }
    assert listed.skipped == ()
    assert listed.segments is not None
    assert len(listed.segments) == sum(len(log.rolled_segments) for log in golden[1])
    for row in listed.segments:
        segment = known[row.topic, row.partition, row.base_offset]
        table = scan_segment(segment.path)
        assert row.last_offset == segment.last_offset
        assert row.size_bytes == segment.size_bytes
        assert row.max_timestamp_ms == int(table.max_timestamp_ms.max())
        assert row.leader_epochs == segment.leader_epochs


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_every_record_of_every_log(
    golden: tuple[Path, list[PartitionLog]], isolation: Isolation
) -> None:
    """All of them; committed ones as far as the tier knows how they ended."""
    url = kafka_url(golden[0])
    for log in golden[1]:
        reader = open_reader(
            url,
            topic=log.topic,
            partition=log.partition,
            isolation_level=isolation,
            on_gap=gaps_of(log),
        )
        committed = isolation == "read_committed"
        begin, end = reader.bounds(log.topic, log.partition)
        assert begin == max(log.log_start_offset or 0, log.segments[0].base_offset)
        rows = [
            (record.offset, record.key, record.value)
            for piece in reader.read(log.topic, log.partition, 0)
            for record in piece.records()
        ]
        known = [row for row in tiered_rows(log, committed=committed) if row[0] >= begin]
        assert rows == [row for row in known if row[0] < end]
        assert committed or rows == known


@pytest.mark.parametrize("run_bytes", [1, 5_000, 4 << 20])
def test_runs_begin_where_batches_do(
    golden: tuple[Path, list[PartitionLog]], monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    monkeypatch.setattr(kafka_layout, "_ENTRY_BYTES", run_bytes)
    store = open_store(kafka_url(golden[0]))
    storage = ObjectStorageManager(store)
    runs = 0
    for metadata in list_segments(store):
        table = scan_segment(bytes(storage.fetch_log_segment(metadata, 0)))
        kind = IndexKind.REMOTE_LOG
        entries = decode_remote_log_index(storage.fetch_indexes(metadata, [kind])[kind])
        starts = [parse_rdi(one, metadata.topic_id_partition)[1] for one in entries.rdi]
        rows = np.searchsorted(table.position, starts)
        assert table.position[rows].tolist() == starts
        assert entries.first_offset.tolist() == table.base_offset[rows].tolist()
        assert entries.first_timestamp_ms.tolist() == table.base_timestamp_ms[rows].tolist()
        for number, (first, last) in enumerate(pairwise([*rows.tolist(), len(table)])):
            assert entries.last_offset[number] >= table.last_offset[first:last].max()
            assert entries.last_timestamp_ms[number] >= table.max_timestamp_ms[first:last].max()
        runs += len(entries)
    segments = sum(len(log.rolled_segments) for log in golden[1])
    assert runs == segments if run_bytes > 1 << 20 else runs > 2 * segments


@pytest.mark.parametrize("run_bytes", [2_000, 4 << 20])
def test_reads_from_any_offset_and_time(
    golden: tuple[Path, list[PartitionLog]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    run_bytes: int,
) -> None:
    monkeypatch.setattr(kafka_layout, "_ENTRY_BYTES", run_bytes)
    url = kafka_url(golden[0])
    storage = ObjectStorageManager(open_store(url))
    with RemoteIndexCache(storage, tmp_path / "cache") as cache:
        for log in golden[1]:
            reader = open_reader(
                url,
                topic=log.topic,
                partition=log.partition,
                index_cache=cache,
                on_gap=gaps_of(log),
            )
            begin, _ = reader.bounds(log.topic, log.partition)
            rows = [
                (one.offset, one.timestamp_ms)
                for base, batch in oracle_batches(log)
                if not batch.is_control and base != log.segments[-1].base_offset
                for one in oracle.records(batch)
                if one.offset >= begin
            ]
            for offset in range(0, rows[-1][0] + 1, 37):
                piece = next(reader.read(log.topic, log.partition, offset))
                assert piece.offset[0] == next(one for one, _ in rows if one >= offset)
            # As a broker does, the search by time answers with control records as well.
            rows = [
                (one.offset, one.timestamp_ms)
                for base, batch in oracle_batches(log)
                if base != log.segments[-1].base_offset
                for one in oracle.records(batch)
                if one.offset >= begin
            ]
            for _, timestamp_ms in rows[::53]:
                found = reader.offset_for_timestamp(log.topic, log.partition, timestamp_ms)
                assert found == next(one for one, at in rows if at >= timestamp_ms)


@pytest.mark.parametrize(
    "suffix", [".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"]
)
def test_a_segment_that_lacks_a_file_is_not_there_and_said(damaged: Path, suffix: str) -> None:
    whole = offsets(damaged)
    path = second_segment(damaged, suffix)
    log = path.with_suffix("").with_suffix(".log")
    base, following = (int(one.name[:20]) for one in sorted(path.parent.glob("*.log"))[1:3])
    path.unlink()
    (problem,) = problems(damaged)
    lacking = ProblemReason.LOG_WITHOUT_INDEXES
    if suffix == ".log":
        lacking = ProblemReason.INDEXES_WITHOUT_LOG
    assert problem.reason is lacking
    assert log.stem in problem.key
    assert offsets(damaged) == [one for one in whole if not base <= one < following]


def test_a_last_file_that_is_just_being_written(damaged: Path) -> None:
    path = second_segment(damaged, ".snapshot")
    data = path.read_bytes()
    path.write_bytes(b"")
    (problem,) = problems(damaged)
    assert problem.reason is ProblemReason.LOG_WITHOUT_INDEXES
    store = open_store(kafka_url(damaged))
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptDataError, match="verify to list all such objects"):
        list(list_segments(store))
    path.write_bytes(data)
    assert len(list(list_segments(store))) == len(list(damaged.rglob("*.log")))


def test_without_aborts_there_is_no_transaction_index(damaged: Path) -> None:
    assert not list(damaged.rglob("*.txnindex"))
    assert problems(damaged) == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def garble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-90] ^= 1
    path.write_bytes(data)


def point_past_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4] + (1 << 30).to_bytes(4, "big"))


def point_into_a_batch(path: Path) -> None:
    data = path.read_bytes()
    position = int.from_bytes(data[-4:], "big") + 3
    path.write_bytes(data[:-4] + position.to_bytes(4, "big"))


def say_nothing(path: Path) -> None:
    path.write_bytes(b"0\n0\n")


def say_anything(path: Path) -> None:
    path.write_bytes(b"\xff" * 40)


@pytest.mark.parametrize(
    ("suffix", "damage", "named"),
    [
        (".log", cut, ".log"),
        (".log", garble, ".log"),
        (".index", point_past_the_end, ".index"),
        (".index", point_into_a_batch, ".log"),
        (".index", cut, ".index"),
        (".timeindex", cut, ".timeindex"),
        (".snapshot", say_anything, ".snapshot"),
        (".leader_epoch_checkpoint", say_nothing, ".log"),
        (".leader_epoch_checkpoint", say_anything, ".leader_epoch_checkpoint"),
    ],
)
def test_files_that_do_not_fit_together_are_named(
    damaged: Path, suffix: str, damage: Callable[[Path], object], named: str
) -> None:
    path = second_segment(damaged, suffix)
    damage(path)
    (problem,) = problems(damaged)
    assert problem.reason is ProblemReason.CORRUPT_INDEXES
    store = open_store(kafka_url(damaged))
    with pytest.raises(CorruptDataError, match=path.name.split(".")[0]) as raised:
        store.get_range(problem.key, 0, 1)
    assert raised.value.path is not None
    assert raised.value.path.endswith(named)
    with pytest.raises(CorruptDataError, match="run tierlog verify to list all such objects"):
        next(tierlog.read(kafka_url(damaged), "epochs", 0))


def test_an_index_of_any_size_is_not_loaded(damaged: Path) -> None:
    with second_segment(damaged, ".timeindex").open("r+b") as file:
        file.truncate(1 << 40)
    (problem,) = problems(damaged)
    assert "too_large" in problem.found


def test_other_files_are_foreign(damaged: Path) -> None:
    place = damaged / KAFKA_FOLDER
    names = ["notes.txt", "epochs-0/00000000000000000000.log", "epochs-0-short/x.log"]
    for name in names:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"x")
    found = problems(damaged)
    assert {one.reason for one in found} == {ProblemReason.FOREIGN_OBJECT}
    assert {one.key for one in found} == set(names)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_it_is_never_written_to(damaged: Path) -> None:
    before = tree(damaged)
    store = open_store(kafka_url(damaged))
    (first, *_) = list_segments(store)
    key = next(one.key for one in store.list() if one.key.endswith(".log"))
    for write in (
        lambda: store.put_bytes("a", b"x"),
        lambda: store.put_stream("a", [b"x"], 1, overwrite=True),
        lambda: store.put_if_absent("cluster.json", b"{}"),
        lambda: store.delete(key),
        lambda: ObjectStorageManager(store).delete_log_segment_data(first),
    ):
        with pytest.raises(RemoteStorageError, match="read-only") as raised:
            write()
        assert not raised.value.retriable
    assert tree(damaged) == before


def test_keys_that_are_none_of_ours(damaged: Path) -> None:
    store: ObjectStore = open_store(kafka_url(damaged))
    for key in HOSTILE_KEYS:
        with pytest.raises(ValueError, match=r"object key|absolute"):
            store.get_range(key, 0, 1)
    for path in damaged.rglob("*.log"):
        with pytest.raises(RemoteResourceNotFoundError):
            store.head(str(path.relative_to(damaged / KAFKA_FOLDER)))


def test_a_copy_in_another_process_opens_its_own_files(damaged: Path) -> None:
    store = pickle.loads(pickle.dumps(open_store(kafka_url(damaged))))
    assert len(list(list_segments(store))) == len(list(damaged.rglob("*.log")))


def test_folders_list_their_own(golden: tuple[Path, list[PartitionLog]]) -> None:
    store = open_store(kafka_url(golden[0]))
    keys = [one.key for one in store.list()]
    for folder in {key.rsplit("/", 1)[0] for key in keys}:
        below = [one.key for one in store.list(folder)]
        assert below == [key for key in keys if key.startswith(folder + "/")]


def test_the_same_in_a_bucket(damaged: Path) -> None:
    """Whoever has copied the folder there: listed in any order, under another clock."""
    bucket = open_store("memory:///kafka-layout")
    for path in sorted(damaged.rglob("*.*"), reverse=True):
        bucket.put_bytes(str(path.relative_to(damaged / KAFKA_FOLDER)), path.read_bytes())
    copied = list_segments(open_store("kafka+memory:///kafka-layout"))
    known = {one.segment_id: one for one in list_segments(open_store(kafka_url(damaged)))}
    found = {
        one.segment_id: replace(one, event_timestamp_ms=known[one.segment_id].event_timestamp_ms)
        for one in copied
    }
    assert found == known


def test_the_folder_by_its_path(
    golden: tuple[Path, list[PartitionLog]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the broker's setting, or the one in it."""
    folder = golden[0]
    for path in (folder, folder / KAFKA_FOLDER):
        assert source_of(str(path)).location == kafka_url(folder)
    assert main(["ls", str(folder)]) == 0
    assert "orders.eu-west_1" in capsys.readouterr().out
    assert main(["cat", str(folder), "epochs:0", "-o", "beginning", "-e", "-c", "1"]) == 0


@pytest.mark.parametrize("deep", [False, True])
def test_verify_finds_what_compaction_took_and_nothing_else(
    golden: tuple[Path, list[PartitionLog]], deep: bool
) -> None:
    """Of offsets at the end of a segment that no record holds any more, only the name of the next
    one speaks."""
    report = verify(source_of(kafka_url(golden[0])), now_ms=1 << 50, deep=deep)
    problems = [one for one in report.findings if one.severity is Severity.PROBLEM]
    assert {one.what for one in problems} <= {"missing_offsets"}
    assert all("compacted" in one.path for one in problems)
