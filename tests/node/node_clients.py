"""Writes to a node and reads it back with librdkafka."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.kafka_tools import wait_until
from tests.node.nodes import NodeProcess

__all__ = ["PRODUCER", "SMALL", "consume", "create", "produce", "values"]

SMALL = {"internal.segment.bytes": "100000"}
# Small requests: a batch must fit into a small segment.
PRODUCER = {"enable.idempotence": True, "batch.size": 20_000, "linger.ms": 5}


def create(
    node: NodeProcess, topic: str, partitions: int = 1, settings: dict[str, str] | None = None
) -> None:
    wanted = NewTopic(topic, partitions, 1, config=settings or {})
    for future in node.admin.create_topics([wanted]).values():
        future.result(30)


def produce(node: NodeProcess, topic: str, values: list[bytes], **more: Any) -> list[int]:
    """Write the values to partition 0 and return the offsets that the node acknowledged."""
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, **PRODUCER, **more})
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    return offsets


def consume(
    node: NodeProcess, topic: str, count: int, *, start: int = 0, isolation: str = "read_committed"
) -> list[tuple[int, bytes]]:
    """Offset and value of `count` records from `start` on."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation,
            # There are no groups here, and a commit at the end would wait for one.
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    found: list[tuple[int, bytes]] = []

    def has_all() -> bool:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
        return len(found) >= count

    try:
        wait_until(has_all, 60, what="all records")
    finally:
        consumer.close()
    return found


def values(first: int, count: int) -> list[bytes]:
    return [b"%08d" % number * 10 for number in range(first, first + count)]
