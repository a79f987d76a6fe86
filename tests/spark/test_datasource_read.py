"""The data source's plan and tasks against what consumers of the real broker got, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dump_text import parse_log_dump
from tests.fetch.views import truth as oracle_truth
from tests.kafka_tools.golden import DATA_DIR, golden_segments, manifest, truth_text
from tests.remote.kafka_layouts import kafka_url, lay_out_golden
from tests.sidecar.configs import tier_config
from tests.spark.source import as_truth, batches_of, rows_of, tasks_of, truth
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.errors import OutOfRangeError
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.open import open_reader
from tierlog.sidecar import Sidecar
from tierlog.tables.catalog import open_catalog
from tierlog.tables.filters import Wanted
from tierlog.tables.options import parse_options
from tierlog.tables.plan import partition_offsets, plan_tasks

DISKS = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
LOGS = ",".join(DISKS)
PARTITIONS = [
    (row["topic"], row["partition"])
    for row in manifest()["data_sets"]["clean"]["partitions"]
    if not row["topic"].startswith("__")
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with every segment of the golden logs that may be copied."""
    folder = tmp_path_factory.mktemp("store")
    with Sidecar(
        DISKS,
        folder.as_uri(),
        state_dir=str(tmp_path_factory.mktemp("state")),
        config=tier_config(include_compacted_topics=True),
        clock=ManualClock(),
    ) as sidecar:
        assert sidecar.run_once().ok
    return folder.as_uri()


def options(path: str, topic: str, partition: int, **more: str) -> dict[str, str]:
    assign = f'{{"{topic}": [{partition}]}}'
    return {"path": path, "assign": assign, "includeHeaders": "true", **more}


@pytest.mark.parametrize(("topic", "partition"), PARTITIONS)
def test_a_directory_reads_as_a_consumer_did(topic: str, partition: int) -> None:
    rows = rows_of(options(LOGS, topic, partition))
    assert [as_truth(row) for row in rows] == truth(topic, partition)
    assert {(row["topic"], row["partition"]) for row in rows} <= {(topic, partition)}
    # Without headers most rows come another way.
    fewer = rows_of(options(LOGS, topic, partition, includeHeaders="false"))
    assert fewer == [{k: v for k, v in row.items() if k != "headers"} for row in rows]


def test_headers_are_null_where_there_are_none() -> None:
    rows = rows_of(options(LOGS, "headers", 0))
    known = [bool(row["headers"]) for row in truth("headers", 0)]
    assert [row["headers"] is not None for row in rows] == known
    assert len(set(known)) == 2


@pytest.mark.parametrize("topic", ["epochs", "idempotent", "times-appended", "transactions"])
def test_rows_have_the_fields_that_kafkas_tool_prints(topic: str) -> None:
    dumped = {
        record.offset: (
            batch.leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            int(batch.is_log_append_time),
        )
        for segment in golden_segments(topic, "clean")
        if segment.partition == 0
        for batch in parse_log_dump(truth_text(segment.path))
        for record in batch.records
    }
    rows = rows_of(options(LOGS, topic, 0))
    assert rows
    for row in rows:
        found = [row[name] for name in ("leader_epoch", "producer_id", "producer_epoch")]
        found += [row["base_sequence"], row["timestampType"]]
        assert tuple(found) == dumped[row["offset"]]


@pytest.mark.parametrize(("topic", "partition"), PARTITIONS)
def test_a_store_reads_as_a_consumer_did(topic: str, partition: int, store: str) -> None:
    reader = open_reader(store)
    if all((one.topic, one.partition) != (topic, partition) for one in reader.partitions()):
        # Every segment of it is active or held back by an open transaction.
        with pytest.raises(OutOfRangeError, match="no such topic"):
            tasks_of(options(store, topic, partition))
        return
    start, end = reader.bounds(topic, partition)
    expected = [row for row in truth(topic, partition) if start <= row["offset"] < end]
    assert [as_truth(row) for row in rows_of(options(store, topic, partition))] == expected


@pytest.mark.parametrize("place", ["directory", "store"])
def test_cut_into_many_tasks_it_is_the_same(place: str, store: str) -> None:
    path = LOGS if place == "directory" else store
    for topic in ("epochs", "codec-zstd", "sizes-zstd", "transactions", "compacted"):
        given = options(path, topic, 0)
        tasks = tasks_of({**given, "taskBytes": "1"})
        assert max(map(len, tasks)) == 1
        assert len(tasks) >= len(tasks_of(given)[0])
        assert rows_of({**given, "taskBytes": "1"}) == rows_of(given)


@pytest.mark.parametrize("place", ["directory", "store"])
def test_from_any_offset_to_any_later_one(place: str, store: str) -> None:
    """Ranges of offsets as filters leave them, of one catalog."""
    for topic in ("codec-lz4", "epochs", "compacted"):
        given = parse_options(options(LOGS if place == "directory" else store, topic, 0))
        catalog = open_catalog(given)
        (whole,) = partition_offsets(given, catalog)
        offsets = [row["offset"] for row in rows_of(options(given.path, topic, 0))]
        end = whole.end_offset
        for start in range(whole.start_offset, end, end // 11):
            for stop in (start + 1, start + 37, end):
                wanted = Wanted(start_offset=start, end_offset=stop)
                tasks = plan_tasks(given, catalog, [whole], wanted)
                found = batches_of(options(given.path, topic, 0), tasks, wanted)
                expected = [one for one in offsets if start <= one < stop]
                assert [one for batch in found for one in batch["offset"].to_pylist()] == expected


@pytest.mark.parametrize("name", ["transactions", "transactions-java", "compacted-transactions"])
@pytest.mark.parametrize("place", ["directory", "store"])
def test_committed_records_are_those_of_the_oracle(place: str, name: str, store: str) -> None:
    (log,) = [one for one in open_log_dir(*DISKS).partitions() if one.topic == name]
    expected = [offset for offset, _, _ in oracle_truth(log, committed=True)]
    path = LOGS if place == "directory" else store
    given = options(path, name, 0, **{"isolation.level": "read_committed"})
    if place == "store":
        reader = open_reader(store, isolation_level="read_committed")
        if all(one.topic != name for one in reader.partitions()):
            return
        expected = [one for one in expected if one < reader.bounds(name, 0)[1]]
    for more in ({}, {"taskBytes": "1"}):
        assert [row["offset"] for row in rows_of({**given, **more})] == expected


@pytest.mark.parametrize("index", ["none", "garbage", "astray", "ahead", "zeros"])
def test_the_offset_index_is_a_hint(index: str, tmp_path: Path) -> None:
    folder = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    for path in (folder / "epochs-0").glob("*.index"):
        data = path.read_bytes()
        if index == "none":
            path.unlink()
        elif index == "garbage":
            path.write_bytes(b"\xff" * 80)
        elif index == "zeros":
            path.write_bytes(bytes(len(data)))
        elif index == "ahead":
            path.write_bytes(data[:4] + data[-4:])
        else:
            entries = [data[at : at + 8] for at in range(0, len(data), 8)]
            path.write_bytes(b"".join(one[:4] + bytes([0, 0, 0, 99]) for one in entries[:1]))
    whole = rows_of(options(str(folder), "epochs", 0))
    assert [as_truth(row) for row in whole] == truth("epochs", 0)
    for start in range(0, len(whole), 50):
        bounds = {"startingOffsets": f'{{"epochs": {{"0": {start}}}}}', "taskBytes": "1"}
        found = rows_of(options(str(folder), "epochs", 0, **bounds))
        assert found == [row for row in whole if row["offset"] >= start]


def test_kafkas_own_layout_reads_as_a_consumer_did(tmp_path: Path) -> None:
    """By its URL, and by the folder that a broker was given."""
    logs = [one for one in lay_out_golden(tmp_path) if not one.topic.startswith("__")]
    for number, log in enumerate(logs):
        path = kafka_url(tmp_path) if number % 2 else str(tmp_path)
        # Kafka tiers no compacted topic: in its layout a compacted tail looks like a gap.
        more = {"onGap": "skip"} if log.compacted else {}
        rows = rows_of({**options(path, log.topic, log.partition), **more})
        first, end = rows[0]["offset"], log.segments[-1].base_offset
        expected = [row for row in truth(log.topic, log.partition) if first <= row["offset"] < end]
        assert [as_truth(row) for row in rows] == expected
        assert first <= max(log.log_start_offset or 0, expected[0]["offset"])
