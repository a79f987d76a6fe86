"""Real clients write to a node with topics of its own, and read it back."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka_tools import dump_log_segments, wait_until
from tests.node.node_clients import PRODUCER, SMALL, consume, create, produce, values
from tests.node.nodes import NodeProcess, running_node
from tierlog.log import checkpoint
from tierlog.log.checkpoint import CLEANER_OFFSETS


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_writes_is_read_back(codec: str, tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders", settings=SMALL)
        data = values(0, 3000)
        key = "compression.type"
        assert produce(node, "orders", data, **{key: codec}) == list(range(3000))
        assert consume(node, "orders", 3000) == list(enumerate(data))
        assert consume(node, "orders", 1, start=2999) == [(2999, data[2999])]
        assert node.stop() == 0
    folder = tmp_path / "data" / "logs" / "orders-0"
    logs = sorted(folder.glob("*.log"))
    said = dump_log_segments(logs, "--deep-iteration")
    assert said.count("isvalid: true") > 0
    assert "isvalid: false" not in said


def test_aiokafka_and_kafka_python_write_and_read(tmp_path: Path) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka import TopicPartition as AioPartition
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PlainPartition

    async def with_aiokafka(address: str) -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        await producer.start()
        for number in range(50):
            await producer.send_and_wait("orders", b"a%d" % number, partition=0)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        consumer.assign([AioPartition("orders", 0)])
        consumer.seek(AioPartition("orders", 0), 0)
        found = [(await consumer.getone()).value for _ in range(50)]
        await consumer.stop()
        return found

    with running_node(tmp_path) as node:
        create(node, "orders")
        address = node.bootstrap_servers
        assert asyncio.run(with_aiokafka(address)) == [b"a%d" % number for number in range(50)]
        producer = KafkaProducer(bootstrap_servers=address, acks="all")
        sent = [producer.send("orders", b"k%d" % number, partition=0) for number in range(50)]
        assert [one.get(30).offset for one in sent] == list(range(50, 100))
        producer.close()
        consumer = KafkaConsumer(bootstrap_servers=address)
        consumer.assign([PlainPartition("orders", 0)])
        consumer.seek(PlainPartition("orders", 0), 50)
        assert [next(consumer).value for _ in range(50)] == [b"k%d" % n for n in range(50)]
        consumer.close()


def test_a_waiting_consumer_gets_new_records(tmp_path: Path) -> None:
    """The fetch waits up to ten minutes; the append ends it."""
    with running_node(tmp_path) as node:
        create(node, "orders")
        consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": "reader",
                "fetch.wait.max.ms": 300_000,
                "socket.timeout.ms": 300_000,
                "fetch.min.bytes": 1,
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consumer.poll(1) is None
        produce(node, "orders", [b"at last"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"at last"
        consumer.close()


def error_of(call: Callable[[], Any]) -> Any:
    with pytest.raises(KafkaException) as caught:
        call()
    return caught.value.args[0].code()


def test_topics_are_created_and_deleted(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        client = node.admin
        create(node, "orders", 3)
        described = client.describe_topics(TopicCollection(["orders"]))
        assert described is not None
        assert len(client.list_topics("orders", 30).topics["orders"].partitions) == 3
        for wanted, code in (
            (NewTopic("orders", 1, 1), KafkaError.TOPIC_ALREADY_EXISTS),
            (NewTopic("other", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
            (NewTopic("other", 1, 1, config={"retention.mss": "1"}), KafkaError.INVALID_CONFIG),
            (NewTopic("a/b", 1, 1), KafkaError.TOPIC_EXCEPTION),
            (
                NewTopic("cold", 1, 1, config={"remote.storage.enable": "true"}),
                KafkaError.INVALID_CONFIG,
            ),
        ):
            (future,) = client.create_topics([wanted]).values()
            assert error_of(partial(future.result, 30)) == code
        produce(node, "orders", [b"old"])
        client.delete_topics(["orders"])["orders"].result(30)
        assert "orders" not in client.list_topics(timeout=30).topics
        assert list((tmp_path / "data" / "logs").glob("orders-*")) == []
        create(node, "orders", 1)
        assert produce(node, "orders", [b"new"]) == [0]
        assert consume(node, "orders", 1) == [(0, b"new")]


def test_added_partitions_take_records_and_survive_a_crash(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders", 1)
        assert produce(node, "orders", [b"first"]) == [0]
        (future,) = node.admin.create_partitions([NewPartitions("orders", 3)]).values()
        future.result(30)
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, **PRODUCER})
        producer.produce("orders", b"new", partition=2)
        assert producer.flush(60) == 0
        node.kill()
    with running_node(tmp_path) as node:
        assert len(node.admin.list_topics("orders", 30).topics["orders"].partitions) == 3
        assert consume(node, "orders", 1) == [(0, b"first")]
        latest = {TopicPartition("orders", 2): OffsetSpec.latest()}
        (found,) = node.admin.list_offsets(latest).values()
        assert found.result(30).offset == 1


def test_deleted_records_are_gone_after_a_restart(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders")
        produce(node, "orders", values(0, 100))
        (future,) = node.admin.delete_records([TopicPartition("orders", 0, 40)]).values()
        assert future.result(30).low_watermark == 40
        (future,) = node.admin.delete_records([TopicPartition("orders", 0, 101)]).values()
        assert error_of(lambda: future.result(30)) == KafkaError.OFFSET_OUT_OF_RANGE
        node.kill()
    with running_node(tmp_path) as node:
        earliest = {TopicPartition("orders", 0): OffsetSpec.earliest()}
        (found,) = node.admin.list_offsets(earliest).values()
        assert found.result(30).offset == 40
        assert consume(node, "orders", 60, start=40)[0] == (40, values(40, 1)[0])


def test_cold_records_come_from_the_store(tmp_path: Path) -> None:
    """Rolled segments are tiered, leave the local disk, and are read back across the border."""
    settings = {
        "remote.log.manager.task.interval.ms": 200,
        "tierlog.retention.max.deleted.ratio": 1,
    }
    store = tmp_path / "store"
    folder = tmp_path / "data" / "logs" / "orders-0"
    data = values(0, 8000)
    tiered = SMALL | {"remote.storage.enable": "true", "local.retention.bytes": "0"}
    with running_node(tmp_path, settings, store=store.as_uri()) as node:
        create(node, "orders", settings=tiered)
        produce(node, "orders", data)
        wait_until(lambda: len(list(folder.glob("*.log"))) == 1, 60, what="local retention")
        assert not (folder / f"{0:020d}.log").exists()
        assert consume(node, "orders", 8000) == list(enumerate(data))
        node.kill()
    with running_node(tmp_path, settings, store=store.as_uri()) as node:
        assert consume(node, "orders", 8000) == list(enumerate(data))
        assert produce(node, "orders", [b"more"]) == [8000]
        # Without its store a local partition goes on, and cold records are an error.
        node.admin.delete_topics(["orders"])["orders"].result(30)
        wait_until(lambda: not list(store.glob("orders-*/0/*.log")), 60, what="deleted objects")


@pytest.mark.parametrize("round_count", [int(os.environ.get("CRASHES", "4"))])
def test_nothing_acknowledged_is_lost_by_crashes(round_count: int, tmp_path: Path) -> None:
    """kill -9 while a producer writes; what was acknowledged is there, once, in order."""
    acknowledged: dict[int, bytes] = {}
    for number in range(round_count):
        with running_node(tmp_path) as node:
            if not number:
                create(node, "orders", settings=SMALL)
            before = len(acknowledged)
            producer = Producer({"bootstrap.servers": node.bootstrap_servers, **PRODUCER})

            def delivered(error: KafkaError | None, message: Any) -> None:
                if error is None:
                    assert message.offset() not in acknowledged
                    acknowledged[message.offset()] = message.value()

            row = 0
            while len(acknowledged) < before + 1000:
                value = b"%d-%d" % (number, row) * 5
                try:
                    producer.produce("orders", value, partition=0, on_delivery=delivered)
                    row += 1
                except BufferError:
                    producer.poll(0.1)
                producer.poll(0)
            node.kill()
            producer.purge()
            producer.poll(0)
    with running_node(tmp_path) as node:
        last = max(acknowledged)
        found = dict(consume(node, "orders", last + 1))
        assert sorted(found)[: last + 1] == list(range(last + 1))
        assert {offset: found[offset] for offset in acknowledged} == acknowledged
        # Also nothing that was not acknowledged came twice.
        assert len(set(found.values())) == len(found)


def test_a_full_disk_stops_the_partition_and_says_so(tmp_path: Path) -> None:
    with running_node(tmp_path, limit_bytes=200_000) as node:
        create(node, "orders", settings={"segment.bytes": "10000000"})
        create(node, "other")
        acknowledged: list[int] = []
        codes: set[int] = set()

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                acknowledged.append(message.offset())
            else:
                codes.add(error.code())

        producer = Producer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "message.timeout.ms": 3000,
                "linger.ms": 1,
                "batch.size": 20_000,
            }
        )
        for number in range(5000):
            producer.produce("orders", b"%08d" % number * 10, partition=0, on_delivery=delivered)
            producer.poll(0)
        producer.flush(60)
        assert acknowledged
        assert codes
        wait_until(lambda: "has stopped" in node.errors.read_text(), 30, what="a line")
        assert "orders-0: this partition has stopped" in node.errors.read_text()
        # Other partitions go on.
        assert produce(node, "other", [b"fine"]) == [0]
        node.stop()
    with running_node(tmp_path) as node:
        found = dict(consume(node, "orders", len(acknowledged)))
        assert set(acknowledged) <= set(found)
        assert produce(node, "orders", [b"after"]) == [max(found) + 1]


COMPACTED = {"internal.segment.bytes": "20000", "min.cleanable.dirty.ratio": "0"}


def produce_keys(node: NodeProcess, rows: list[tuple[bytes, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, **PRODUCER})
    for key, value in rows:
        producer.produce("orders", value, key, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


def rounds_end(folder: Path) -> int:
    path = folder / "data" / "logs" / CLEANER_OFFSETS
    at = checkpoint.TopicPartition("orders", 0)
    return checkpoint.read_offset_checkpoint(path).get(at, -1)


def change_policy(node: NodeProcess, policy: str, **more: str) -> None:
    entries = {"cleanup.policy": policy} | more
    resource = ConfigResource(
        ResourceType.TOPIC,
        "orders",
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in entries.items()
        ],
    )
    (future,) = node.admin.incremental_alter_configs([resource]).values()
    future.result(30)


def test_a_topic_is_compacted_from_the_change_of_its_policy_on(tmp_path: Path) -> None:
    rows: list[tuple[bytes, bytes | None]] = [
        (b"%d" % (number % 70), b"%d " % number * 10) for number in range(3000)
    ]
    rows += [(b"gone", b"a value"), (b"gone", None)]
    with running_node(tmp_path) as node:
        create(node, "orders", settings=COMPACTED)
        produce_keys(node, rows)
        change_policy(node, "compact")
        folder = tmp_path / "data" / "logs" / "orders-0"
        active = max(int(one.stem) for one in folder.glob("*.log"))
        assert active > 2000
        wait_until(lambda: rounds_end(tmp_path) == active, 60, what="a round of compaction")
        last = {key: offset for offset, (key, _) in enumerate(rows[:active])}
        expected = {*last.values(), *range(active, len(rows))}
        found = consume(node, "orders", len(expected))
        assert {offset for offset, _ in found} == expected
        assert all(value == (rows[offset][1] or None) for offset, value in found)
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, **PRODUCER})
        refused: list[int] = []
        producer.produce(
            "orders", b"x", partition=0, on_delivery=lambda error, _: refused.append(error.code())
        )
        producer.flush(60)
        assert refused == [KafkaError.INVALID_RECORD]
        assert error_of(
            lambda: change_policy(node, "compact,delete", **{"remote.storage.enable": "true"})
        ) == (KafkaError.INVALID_CONFIG)
        node.kill()
    with running_node(tmp_path) as node:
        assert consume(node, "orders", len(expected)) == found
        assert node.stop() == 0
    logs = sorted(folder.glob("*.log"))
    said = dump_log_segments(logs, "--deep-iteration")
    assert said.count("isvalid: true") > 0
    assert "isvalid: false" not in said


def test_one_process_owns_a_data_directory(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders")
        with pytest.raises(AssertionError, match="another process owns this log directory"):
            NodeProcess(tmp_path)
    shutil.rmtree(tmp_path / "data")
