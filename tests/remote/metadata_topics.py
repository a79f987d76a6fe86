"""Managers of a metadata topic on a real broker, and what lies in the topic, for tests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.kafka_tools import KafkaBroker, wait_until
from tierlog.remote.metadata.records import (
    MetadataRecord,
    decode_record,
    encode_record,
    metadata_partition,
)
from tierlog.remote.metadata.topic import TopicBasedRemoteLogMetadataManager
from tierlog.remote.metadata.topic_client import write_token
from tierlog.testing.segments import PARTITION
from tierlog.types import TopicIdPartition

__all__ = [
    "NUMBER",
    "TOPIC_PARTITIONS",
    "HeldManager",
    "everything_about",
    "new_topic",
    "opened",
    "opened_as",
    "produce",
    "records_of",
    "same_for_everybody",
    "tiering_broker",
    "written",
]

Manager = TypeVar("Manager", bound=TopicBasedRemoteLogMetadataManager)

TOPIC_PARTITIONS = 3
# The one of a topic's that has the records about `PARTITION`.
NUMBER = metadata_partition(PARTITION, TOPIC_PARTITIONS)
_NAMES = itertools.count()


@contextmanager
def tiering_broker(folder: Path) -> Iterator[KafkaBroker]:
    with KafkaBroker(folder / "broker", tiered_dir=folder / "tier") as running:
        yield running
        # Its own metadata consumer would hold up a clean stop for half a minute.
        running.kill()


def new_topic(broker: KafkaBroker) -> str:
    """An empty metadata topic that nobody has had before."""
    name = f"metadata-{next(_NAMES)}"
    broker.create_topic(name, partitions=TOPIC_PARTITIONS)
    return name


class HeldManager(TopicBasedRemoteLogMetadataManager):
    """One whose reader may be held up: as long as it is, the topic goes on without it."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._allowed, self._idle = threading.Event(), threading.Event()
        self._allowed.set()
        super().__init__(*arguments, **settings)

    def hold(self) -> None:
        self._idle.clear()
        self._allowed.clear()
        assert self._idle.wait(30)

    def release(self) -> None:
        self._allowed.set()

    def close(self) -> None:
        self.release()
        super().close()

    def _read_topic(self) -> None:
        consume = self._client.consume

        def when_allowed(records: int, timeout_s: float) -> list[Any]:
            if not self._allowed.is_set():
                self._idle.set()
                self._allowed.wait()
            return consume(records, timeout_s)

        self._client.consume = when_allowed  # type: ignore[method-assign]
        super()._read_topic()


def opened_as(kind: type[Manager], broker: KafkaBroker, topic: str, **settings: Any) -> Manager:
    manager = kind(broker.bootstrap_servers, topic=topic, **settings)
    manager.wait_until_ready(timeout_s=30)
    return manager


def opened(broker: KafkaBroker, topic: str, **settings: Any) -> TopicBasedRemoteLogMetadataManager:
    return opened_as(TopicBasedRemoteLogMetadataManager, broker, topic, **settings)


def produce(broker: KafkaBroker, topic: str, number: int, *values: bytes | MetadataRecord) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        data = encode_record(value) if isinstance(value, MetadataRecord) else value
        producer.produce(topic, value=data, partition=number)
    assert producer.flush(30) == 0


def written(broker: KafkaBroker, topic: str, number: int) -> list[tuple[bytes, MetadataRecord]]:
    """The records of one partition of the topic in their order, each after its write's token."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "looking"})
    place = TopicPartition(topic, number, OFFSET_BEGINNING)
    _, end = consumer.get_watermark_offsets(place, timeout=30)
    consumer.assign([place])
    found: list[tuple[bytes, MetadataRecord]] = []
    while len(found) < end:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append((write_token(message), decode_record(message.value() or b"")))
    consumer.close()
    return found


def records_of(broker: KafkaBroker, topic: str, number: int) -> list[MetadataRecord]:
    return [record for _, record in written(broker, topic, number)]


def everything_about(
    manager: TopicBasedRemoteLogMetadataManager,
    partitions: Sequence[TopicIdPartition] = (PARTITION,),
) -> list[object]:
    """All that does not depend on who is asked."""
    return [
        (
            manager.list(partition),
            manager.leader_epoch(partition),
            manager.partition_delete_state(partition),
            manager.log_start_offset(partition),
            [manager.remote_log_size(partition, epoch) for epoch in range(8)],
            [manager.highest_offset_for_epoch(partition, epoch) for epoch in range(8)],
        )
        for partition in partitions
    ]


def same_for_everybody(
    broker: KafkaBroker,
    topic: str,
    *managers: TopicBasedRemoteLogMetadataManager,
    partitions: Sequence[TopicIdPartition] = (PARTITION,),
) -> None:
    """Whoever read along knows what a fresh replay tells."""
    with opened(broker, topic) as fresh:
        expected = everything_about(fresh, partitions)
        wait_until(
            lambda: all(everything_about(one, partitions) == expected for one in managers),
            30,
            what="the same state everywhere",
        )
