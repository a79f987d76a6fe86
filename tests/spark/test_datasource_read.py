"""The data source's plan and tasks against what consumers of the real broker got, without Spark."""

from __future__ import annotations

import pytest

from tests.kafka_tools.golden import DATA_DIR, manifest
from tests.spark.source import as_truth, rows_of, tasks_of, truth
from tierlog.clock import ManualClock
from tierlog.errors import OutOfRangeError
from tierlog.sidecar import Sidecar
from tierlog.tiering.reader import open_reader

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
        include_compacted=True,
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
