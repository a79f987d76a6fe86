"""Readers of committed records over both tiers, against the oracle, wherever the border is."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import tierlog
from tests.fetch.views import Row, oracle_batches, truth, whole_view
from tests.kafka_tools.golden import DATA_DIR
from tests.oracle import build
from tests.oracle.model import Record
from tests.tiering.hosts import GoldenLog
from tierlog.clock import ManualClock
from tierlog.columns import RecordColumns
from tierlog.errors import ConfigError, CorruptDataError
from tierlog.log.index_files import AbortedTransaction
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.rebuild import rebuild_indexes
from tierlog.log.records import decode_records
from tierlog.reader.committed import committed_rows
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import LogReader
from tierlog.reader.open import open_reader
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.store_reader import StoreReader
from tierlog.reader.tiered_reader import TieredReader
from tierlog.reader.types import IsolationLevel
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.layout import claim_cluster
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.testing.segments import uuid_of
from tierlog.tiering.copy import SegmentCopier, prepare

NAMES = ("transactions-0", "transactions-java-0", "compacted-transactions-0")


class Both:
    """A golden partition with transactions, tiered as far as it is stable."""

    def __init__(self, folder: Path, name: str) -> None:
        self.log = GoldenLog(folder, name)
        self.topic = self.log.partition.topic
        self.logs = str(self.log.directory.parent)
        self.whole = self.log.log
        self.truth = truth(self.whole, committed=True)
        self.stable_end = whole_view(Path(self.logs), name).last_stable_offset
        (folder / "store").mkdir()
        self.url = (folder / "store").as_uri()
        store = open_store(self.url)
        claim_cluster(store, "a-cluster")
        self.metadata = InMemoryRemoteLogMetadataManager()
        # Not by a manager: it leaves compacted partitions alone.
        copier = SegmentCopier(
            ObjectStorageManager(store), self.metadata, clock=ManualClock(), broker_id=1
        )
        for segment in self.whole.segments:
            end = segment.next_base_offset
            if end is not None and end <= self.stable_end:
                with segment.open() as handle:
                    snapshot = ProducerStates(self.whole).before(segment)
                    prepared = prepare(
                        self.whole, segment, handle, producer_snapshot=snapshot, allow_gaps=True
                    )
                    copier.copy(prepared, handle)
        ends = [one.end_offset + 1 for one in self.metadata.list(self.log.partition)]
        self.copied_end = max(ends)
        self.bases = [one.base_offset for one in self.whole.segments]
        self.borders = [one for one in self.bases if one <= self.copied_end]
        self.store_end = self._first_open(self.copied_end)

    def _first_open(self, end: int) -> int:
        """Where the first transaction begins that has no marker below `end`; else `end`."""
        first: dict[int, int] = {}
        for _, batch in oracle_batches(self.whole):
            if batch.last_offset >= end:
                continue
            if batch.is_control:
                first.pop(batch.producer_id, None)
            elif batch.is_transactional:
                first.setdefault(batch.producer_id, batch.base_offset)
        return min(first.values(), default=end)

    def reader(self, *, cache: RemoteIndexCache | None = None) -> LogReader:
        return open_reader(
            self.logs, store=self.url, index_cache=cache, isolation_level="read_committed"
        )


@pytest.fixture(params=NAMES)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Both:
    return Both(tmp_path, request.param)


def rows_of(pieces: Iterable[RecordColumns]) -> list[Row]:
    return [(one.offset, one.key, one.value) for piece in pieces for one in piece.records()]


def between(rows: list[Row], start: int, end: int | None) -> list[Row]:
    return [row for row in rows if row[0] >= start and (end is None or row[0] < end)]


def test_the_golden_logs_have_what_this_is_about(both: Both) -> None:
    everything = truth(both.whole, committed=False)
    if both.topic != "transactions-java":
        assert len(both.truth) < len(everything)
    assert len(both.borders) > 2
    plain = open_reader(both.logs, store=both.url)
    both.log.delete_local_segments(both.borders[-1])
    assert rows_of(plain.read(both.topic, 0, 0)) == everything


@pytest.mark.parametrize("cached", [False, True])
def test_wherever_the_border_is(both: Both, cached: bool, tmp_path: Path) -> None:
    storage = ObjectStorageManager(open_store(both.url))
    with RemoteIndexCache(storage, tmp_path / "cache", clock=ManualClock()) as cache:
        for border in both.borders:
            both.log.delete_local_segments(border)
            reader = both.reader(cache=cache if cached else None)
            assert reader.bounds(both.topic, 0) == (both.bases[0], both.stable_end)
            starts = {0, border - 1, border, border + 1, *range(0, both.stable_end + 9, 71)}
            for start in sorted(max(one, 0) for one in starts):
                for end in (None, border, border + 9, both.stable_end - 1):
                    found = rows_of(reader.read(both.topic, 0, start, end))
                    assert found == between(both.truth, start, end), (border, start, end)


def test_a_directory_alone(both: Both) -> None:
    for border in both.borders:
        both.log.delete_local_segments(border)
        reader = open_reader(both.logs, isolation_level="read_committed")
        assert reader.bounds(both.topic, 0) == (border, both.stable_end)
        for start in (0, border, border + 20):
            found = rows_of(reader.read(both.topic, 0, start))
            assert found == between(both.truth, max(start, border), None)


def test_a_store_alone_stops_before_what_it_does_not_know(both: Both) -> None:
    reader = open_reader(both.url, isolation_level="read_committed")
    assert reader.bounds(both.topic, 0) == (both.bases[0], both.store_end)
    for start in range(0, both.store_end + 20, 37):
        found = rows_of(reader.read(both.topic, 0, start))
        assert found == between(both.truth, start, both.store_end)
    # A directory that is empty by now knows no more.
    for path in both.log.directory.glob("0*"):
        path.unlink()
    assert rows_of(both.reader().read(both.topic, 0, 0)) == between(both.truth, 0, both.store_end)


def test_the_border_moves_meanwhile(both: Both) -> None:
    pieces = both.reader().read(both.topic, 0, 0)
    seen = rows_of([next(pieces)])
    both.log.delete_local_segments(both.borders[-1])
    assert seen + rows_of(pieces) == both.truth


def test_the_short_way(both: Both) -> None:
    pieces = tierlog.read(
        both.logs, both.topic, 0, 5, 90, store=both.url, isolation_level="read_committed"
    )
    assert rows_of(pieces) == between(both.truth, 5, 90)
    with pytest.raises(ConfigError, match="expected read_uncommitted or read_committed"):
        open_reader(both.logs, isolation_level="serializable")  # type: ignore[arg-type]


def test_after_a_crash() -> None:
    """Files as a killed broker left them; the last transaction never ended."""
    (folder,) = (path.parent for path in (DATA_DIR / "unclean").glob("disk*/crash-transactions-0"))
    (log,) = [
        one for one in open_log_dir(str(folder)).partitions() if one.name == "crash-transactions-0"
    ]
    reader = open_reader(str(folder), isolation_level="read_committed")
    assert rows_of(reader.read("crash-transactions", 0, 0)) == truth(log, committed=True)


def test_a_damaged_active_segment_is_an_error_not_an_end(tmp_path: Path) -> None:
    both = Both(tmp_path, NAMES[0])
    path = Path(both.whole.segments[-1].log_path)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    reader = open_reader(both.logs, isolation_level="read_committed")
    with pytest.raises(CorruptDataError, match=path.name):
        rows_of(reader.read(both.topic, 0, 0))


def test_rows_of_many_transactions() -> None:
    """Whatever is aborted: the rows left are those of batches that no transaction names."""
    log = _partition("transactions-0")
    chosen = random.Random(7)
    for segment in log.segments:
        records = decode_records(segment.log_path)
        batches = records.batches
        producers = sorted(set(batches.producer_id.tolist()))
        for _ in range(20):
            cuts = sorted(chosen.sample(range(records_end(batches) + 2), 6))
            aborted = [
                AbortedTransaction(chosen.choice(producers), first, last, 0)
                for first, last in pairwise(cuts)
            ]
            expected = list(_left(records, aborted))
            found = [int(one) for run in committed_rows(records, aborted) for one in run.offset]
            assert found == expected


def records_end(batches: object) -> int:
    return int(batches.last_offset[-1])  # type: ignore[attr-defined]


def _left(records: RecordColumns, aborted: list[AbortedTransaction]) -> Iterator[int]:
    table = records.batches
    for row in range(len(table)):
        base, producer = int(table.base_offset[row]), int(table.producer_id[row])
        transactional = int(table.attributes[row]) & 0x10
        out = transactional and any(
            one.producer_id == producer and one.first_offset <= base <= one.last_offset
            for one in aborted
        )
        if not out:
            begin, end = int(records.batch_starts[row]), int(records.batch_starts[row + 1])
            yield from records.offset[begin:end].tolist()


def _partition(name: str) -> PartitionLog:
    (folder,) = (path.parent for path in (DATA_DIR / "clean").glob(f"disk*/{name}"))
    (log,) = [one for one in open_log_dir(str(folder)).partitions() if one.name == name]
    return replace(log)


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_marker_that_only_the_active_segment_has(tmp_path: Path, snapshot: bool) -> None:
    """The broker has not written its transaction index down yet, and may have lost its snapshot:
    then the store's tells which transactions were open."""
    folder = tmp_path / "logs" / "made-0"
    folder.mkdir(parents=True)
    begun = [_made(base, producer_id=7, transactional=True) for base in (0, 2)]
    other = _made(4, producer_id=8, transactional=True)
    ends = [
        build.end_transaction_marker(
            offset=offset,
            timestamp_ms=1,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=producer_id == 8,
        )
        for offset, producer_id in ((6, 7), (7, 8))
    ]
    pending = [_made(8, producer_id=-1), _made(10, producer_id=9, transactional=True)]
    (folder / f"{0:020d}.log").write_bytes(b"".join([*begun, other]))
    (folder / f"{6:020d}.log").write_bytes(b"".join([*ends, *pending]))
    state = rebuild_indexes(folder / f"{0:020d}.log").producer_snapshot
    if snapshot:
        (folder / f"{6:020d}.snapshot").write_bytes(state)
    (folder / "leader-epoch-checkpoint").write_bytes(b"0\n1\n0 0\n")
    (log,) = open_log_dir(str(folder.parent)).partitions()
    storage = ObjectStorageManager(_claimed(tmp_path / "store"))
    metadata = InMemoryRemoteLogMetadataManager()
    copier = SegmentCopier(storage, metadata, clock=ManualClock(), broker_id=1)
    with log.segments[0].open() as handle:
        topic_id = uuid_of("made")
        copier.copy(prepare(replace(log, topic_id=topic_id), log.segments[0], handle), handle)
    committed = IsolationLevel.READ_COMMITTED
    local = LocalReader(open_log_dir(str(folder.parent)), isolation_level=committed)
    remote = StoreReader(storage, metadata, isolation_level=committed)
    reader = TieredReader(local, remote, isolation_level=committed)
    expected = [4, 5, 8, 9]
    assert [row[0] for row in rows_of(reader.read("made", 0, 0))] == expected
    assert reader.bounds("made", 0) == (0, 10)
    # The store knows no end of the first transaction.
    assert rows_of(remote.read("made", 0, 0)) == []
    (folder / f"{0:020d}.log").unlink()
    assert [row[0] for row in rows_of(reader.read("made", 0, 0))] == expected


def _made(base_offset: int, *, producer_id: int, transactional: bool = False) -> bytes:
    return build.batch(
        [
            Record(offset=base_offset + one, timestamp_ms=1, key=None, value=b"v", headers=())
            for one in range(2)
        ],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if transactional and base_offset != 2 else 2 if transactional else -1,
        transactional=transactional,
    )


def _claimed(folder: Path) -> ObjectStore:
    folder.mkdir()
    store = open_store(folder.as_uri())
    claim_cluster(store, "a-cluster")
    return store
