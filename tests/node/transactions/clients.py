"""Transactional clients of a node."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.kafka_tools import wait_until
from tests.node.nodes import NodeProcess

__all__ = ["QUIET", "Reader", "begin", "create", "transactional"]

# A node that was killed is no news.
QUIET = {"log_level": 0}


def create(
    node: NodeProcess, topic: str, partitions: int = 1, settings: dict[str, str] | None = None
) -> None:
    wanted = NewTopic(topic, partitions, 1, config=settings or {})
    node.admin.create_topics([wanted])[topic].result(30)


def transactional(node: NodeProcess, name: str, **settings: object) -> Producer:
    """A librdkafka producer that has started."""
    config = {"bootstrap.servers": node.bootstrap_servers, "transactional.id": name}
    producer = Producer({**config, **QUIET, **settings})
    producer.init_transactions(60)
    return producer


def begin(producer: Producer, topic: str, values: list[bytes], partition: int = 0) -> None:
    """Begin a transaction, and have the node store these records."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0


class Reader:
    """Reads a partition from its start, committed records only unless told otherwise."""

    def __init__(
        self, node: NodeProcess, topic: str, partition: int = 0, isolation: str = "read_committed"
    ) -> None:
        self._at = TopicPartition(topic, partition, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": "reader",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                **QUIET,
            }
        )

    def values(self) -> list[bytes]:
        """The values that a reader gets now, up to the end that it may see."""
        self._consumer.assign([self._at])
        found: list[bytes] = []

        def is_at_end() -> bool:
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is not None:
                    return True
                found.append(message.value() or b"")
            return False

        wait_until(is_at_end, 60, what="the end of the partition")
        return found

    def end(self) -> int:
        """The offset after the last record that a reader may see."""
        return int(self._consumer.get_watermark_offsets(self._at, 30)[1])

    def close(self) -> None:
        self._consumer.close()
