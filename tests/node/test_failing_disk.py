"""The disk of one partition fails: it stops, others go on, and no acknowledged record is lost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.kafka_tools import wait_until
from tests.node.node_clients import SMALL, consume, create, produce, values
from tests.node.nodes import NodeProcess, running_node
from tests.reliability.disk import build_library

# Each append is synced before its answer.
SYNCED = SMALL | {"flush.messages": "1"}
BEFORE = 500


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


def write_until_refused(node: NodeProcess) -> tuple[dict[int, bytes], set[int]]:
    """Write to orders until a record fails; the acknowledged records, and the other answers."""
    settings = {"message.timeout.ms": 3000, "linger.ms": 1, "batch.size": 20_000}
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, **settings})
    acknowledged: dict[int, bytes] = {}
    codes: set[int] = set()

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is None:
            acknowledged[message.offset()] = message.value()
        else:
            codes.add(error.code())

    number = BEFORE
    while not codes:
        for value in values(number, 100):
            producer.produce("orders", value, partition=0, on_delivery=delivered)
            producer.poll(0)
        number += 100
        producer.flush(60)
    return acknowledged, codes


def end_of(node: NodeProcess) -> int:
    latest = {TopicPartition("orders", 0): OffsetSpec.latest()}
    (found,) = node.admin.list_offsets(latest).values()
    return int(found.result(30).offset)


def commit(node: NodeProcess, offset: int) -> int | None:
    """Commit an offset of the group of readers; return the code of the error."""
    settings = {"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"}
    with closing(Consumer(settings)) as consumer:
        try:
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        except KafkaException as error:
            return int(error.args[0].code())
        return None


def committed(node: NodeProcess) -> int:
    settings = {"bootstrap.servers": node.bootstrap_servers, "group.id": "readers"}
    with closing(Consumer(settings)) as consumer:
        (found,) = consumer.committed([TopicPartition("orders", 0)], 30)
        return int(found.offset)


@pytest.mark.parametrize(
    ("call", "error"),
    [("write", "ENOSPC"), ("write", "EIO"), ("sync", "EIO"), ("create", "ENOSPC")],
)
def test_a_failing_disk_stops_one_partition(
    call: str, error: str, library: Path, tmp_path: Path
) -> None:
    with running_node(tmp_path, disk_library=library) as node:
        create(node, "orders", settings=SYNCED)
        create(node, "other", settings=SYNCED)
        data = values(0, BEFORE)
        assert produce(node, "orders", data) == list(range(BEFORE))
        node.break_disk(tmp_path / "data" / "logs" / "orders-0", call, error)
        acknowledged, codes = write_until_refused(node)
        # librdkafka tries again until its time is up.
        assert codes <= {KafkaError._MSG_TIMED_OUT, KafkaError.KAFKA_STORAGE_ERROR}
        wait_until(lambda: "has stopped" in node.errors.read_text(), 30, what="a line")
        (line,) = [one for one in node.errors.read_text().splitlines() if "orders-0" in one]
        assert "orders-0: this partition has stopped: [Errno" in line
        # Other partitions go on, and so do consumers.
        assert produce(node, "other", data) == list(range(BEFORE))
        assert consume(node, "other", BEFORE) == list(enumerate(data))
        expected = [*enumerate(data), *sorted(acknowledged.items())]
        # A record that was not acknowledged may be lost, so no consumer gets it.
        assert consume(node, "orders", len(expected)) == expected
        assert end_of(node) == len(expected)
        assert node.stop() == 0
    with running_node(tmp_path) as node:
        found = dict(consume(node, "orders", len(expected)))
        assert [(offset, found[offset]) for offset, _ in expected] == expected
        assert produce(node, "orders", [b"after"]) == [max(found) + 1]
        assert consume(node, "other", BEFORE) == list(enumerate(data))


@pytest.mark.parametrize(("call", "error"), [("write", "ENOSPC"), ("sync", "EIO")])
def test_a_commit_that_cannot_be_stored_is_an_error(
    call: str, error: str, library: Path, tmp_path: Path
) -> None:
    data = values(0, 10)
    with running_node(tmp_path, disk_library=library) as node:
        create(node, "orders", settings=SYNCED)
        assert commit(node, 3) is None
        node.break_disk(tmp_path / "data" / "state", call, error)
        assert commit(node, 7) is not None
        # Records are none of it.
        assert produce(node, "orders", data) == list(range(10))
        assert consume(node, "orders", 10) == list(enumerate(data))
        node.kill()
    with running_node(tmp_path) as node:
        # A sync that failed may have stored it all the same.
        assert committed(node) in ((3, 7) if call == "sync" else (3,))
        assert commit(node, 7) is None
        assert committed(node) == 7
        assert consume(node, "orders", 10) == list(enumerate(data))
