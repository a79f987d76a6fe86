"""The other views of the data source, and how little of a log a narrow read touches."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benches.corpus import FIRST_TIMESTAMP_MS, LEADER_EPOCH, Corpora
from spark_udfs.datasource import TierlogDataSource
from spark_udfs.schemas import schema_of
from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tests.oracle import build, compression
from tests.oracle.model import Record
from tests.spark.source import rows_of
from tests.tools.conftest import tier_golden
from tierlog.columns import RecordColumns
from tierlog.log.rebuild import rebuild_indexes
from tierlog.log.segment import scan_segment
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.local_store import LocalStore
from tierlog.sidecar import Sidecar
from tierlog.tables.catalog import open_catalog
from tierlog.tables.filters import Wanted
from tierlog.tables.options import parse_options
from tierlog.tables.plan import ReadRange, partition_offsets, plan_read
from tierlog.tables.segments import read_range

if TYPE_CHECKING:
    from typing_extensions import Buffer

TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"
LOGS = str(DATA_DIR / "clean" / "disk1")
SEGMENTS = golden_segments("epochs", "clean")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("tiered")
    assert tier_golden(place / "store", place / "state").ok
    return (place / "store").as_uri()


def test_segments(store: str) -> None:
    given = {"subscribe": "epochs", "view": "segments"}
    local = rows_of({"path": LOGS, **given})
    assert [(row["base_offset"], row["size_bytes"]) for row in local] == [
        (one.base_offset, one.size_bytes) for one in SEGMENTS
    ]
    assert [row["end_offset"] for row in local] == [
        one.next_base_offset - 1 if one.rolled else None for one in SEGMENTS
    ]
    tiered = rows_of({"path": store, **given})
    names = ("topic", "topic_id", "partition", "base_offset", "end_offset", "size_bytes")
    assert [[row[name] for name in names] for row in tiered] == [
        [row[name] for name in names] for row in local[:-1]
    ]


def test_batches(store: str) -> None:
    expected = [
        (one.base_offset, position, base, last, count)
        for one in SEGMENTS
        for table in [scan_segment(one.path)]
        for position, base, last, count in zip(
            table.position.tolist(),
            table.base_offset.tolist(),
            table.last_offset.tolist(),
            table.record_count.tolist(),
            strict=True,
        )
    ]
    for path in (LOGS, store):
        rows = rows_of({"path": path, "subscribe": "epochs", "view": "batches"})
        found = [
            (row["position"], row["base_offset"], row["last_offset"], row["record_count"])
            for row in rows
        ]
        rolled = [one[1:] for one in expected if one[0] < SEGMENTS[-1].base_offset]
        assert found == (rolled if path == store else [one[1:] for one in expected])


def test_the_state_of_a_task_is_small() -> None:
    options = {"path": LOGS, "subscribePattern": ".*"}
    reader = TierlogDataSource(options).reader(schema_of(parse_options(options)))
    tasks = reader.partitions()
    assert len(pickle.dumps(reader)) < 10_000
    assert max(len(pickle.dumps(task)) for task in tasks) < 100_000


# -- how much is read


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with one segment of 64 MiB and its indexes, and an empty one after it."""
    folder = tmp_path_factory.mktemp("large")
    segment = Corpora(directory=tmp_path_factory.mktemp("corpora")).path("none-100-16k-64m")
    made = folder / "orders-0"
    made.mkdir()
    segment.rename(made / f"{0:020d}.log")
    built = rebuild_indexes(made / f"{0:020d}.log", base_offset=0)
    (made / f"{0:020d}.index").write_bytes(built.offset_index)
    (made / f"{0:020d}.timeindex").write_bytes(built.time_index)
    (made / f"{built.end_offset:020d}.log").touch()
    (made / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    (made / "leader-epoch-checkpoint").write_text(f"0\n1\n{LEADER_EPOCH} 0\n")
    (folder / "meta.properties").write_text(f"version=1\ncluster.id={TOPIC_ID}\nnode.id=1\n")
    (folder / "replication-offset-checkpoint").write_text(f"0\n1\norders 0 {built.end_offset}\n")
    return folder


def end_offset_of(given: dict[str, str]) -> int:
    (one,) = partition_offsets(parse_options(given), open_catalog(parse_options(given)))
    return one.end_offset


def read_bytes(work: Callable[[], object]) -> int:
    """Bytes that this process asks the system for meanwhile."""

    def counted() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).split()[1])

    before = counted()
    work()
    return counted() - before


def test_offsets_are_found_by_the_index(large: Path) -> None:
    given = {"path": str(large), "subscribe": "orders"}
    end = end_offset_of(given)
    middle = end // 2
    wanted = Wanted(start_offset=middle, end_offset=middle + 10)
    rows = rows_of(given, wanted)
    assert [row["offset"] for row in rows] == list(range(middle, middle + 10))
    assert read_bytes(lambda: rows_of(given, wanted)) < 4 << 20
    for nothing in (Wanted(start_offset=end), Wanted(partitions=frozenset({1}))):
        assert read_bytes(partial(rows_of, given, nothing)) < 3 << 20


def test_times_leave_out_what_is_older(large: Path) -> None:
    given = {"path": str(large), "subscribe": "orders"}
    rows = rows_of(given, Wanted(start_offset=0, end_offset=1))
    first_ms = round(rows[0]["timestamp"].timestamp() * 1000)
    end = end_offset_of(given)
    found = rows_of(given, Wanted(min_timestamp_ms=first_ms + end - 100))
    assert found[-1]["offset"] == end - 1
    assert 100 <= len(found) < 20_000


class CountingStore(LocalStore):
    """Counts the bytes that are read of `.log` objects."""

    log_bytes = 0

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        if key.endswith(".log"):
            self.log_bytes += size_bytes
        return super().get_range(key, start_position, size_bytes)


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (Wanted(start_offset=300_000, end_offset=300_010), 10),
        (Wanted(end_offset=500_010, min_timestamp_ms=FIRST_TIMESTAMP_MS + 500_000), 10),
        (Wanted(min_timestamp_ms=FIRST_TIMESTAMP_MS + (1 << 30)), 0),
    ],
)
def test_of_a_store_little_is_read(wanted: Wanted, rows: int, large: Path, tmp_path: Path) -> None:
    """Some groups of the remoteLogIndex, of 64 MiB."""
    place = tmp_path / "store"
    place.mkdir()
    with Sidecar([str(large)], place.as_uri(), state_dir=str(tmp_path / "state")) as sidecar:
        assert sidecar.run_once().ok
    options = parse_options({"path": place.as_uri(), "subscribe": "orders"})
    store = CountingStore(place)
    found = 0
    for task in plan_read(options, open_catalog(options), wanted):
        for one in task:
            assert isinstance(one, ReadRange)
            for piece in read_range(
                one, ObjectStorageManager(store), min_timestamp_ms=wanted.min_timestamp_ms
            ):
                assert isinstance(piece, RecordColumns)
                late = piece.timestamp_ms >= (wanted.min_timestamp_ms or 0)
                found += int(late.sum())
    assert found == rows
    assert (store.log_bytes > 0) is (rows > 0)
    assert store.log_bytes < 4 << 20


def test_what_compresses_well_is_opened_bit_by_bit(tmp_path: Path) -> None:
    """200 batches of 2 MiB each, in a few KiB."""
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    log.parent.mkdir()
    with log.open("wb") as file:
        for number in range(200):
            record = Record(offset=number, timestamp_ms=0, key=None, value=bytes(2 << 20))
            file.write(build.batch([record], codec=compression.ZSTD, base_offset=number))
    options = parse_options({"path": str(tmp_path), "subscribe": "orders"})
    ((one,),) = plan_read(options, open_catalog(options))
    assert isinstance(one, ReadRange)
    offsets, opened_bytes = [], []
    for piece in read_range(one, None):
        assert isinstance(piece, RecordColumns)
        offsets += piece.offset.tolist()
        opened_bytes.append(int(piece.values.lengths.sum()))
    assert offsets == list(range(200))
    assert max(opened_bytes) <= 4 << 20
