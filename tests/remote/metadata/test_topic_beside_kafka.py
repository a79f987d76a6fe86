"""Kafka's own readers and writers of the metadata topic, beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_tools import KafkaBroker, run_tool, wait_until
from tests.remote.metadata_topics import opened, produce
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.records import MetadataRecord, metadata_partition
from tierlog.remote.metadata.topic import METADATA_TOPIC, TopicBasedRemoteLogMetadataManager
from tierlog.testing.events import cut, delete_partition, finish
from tierlog.testing.segments import FINISHED, PARTITION, segment
from tierlog.types import TopicIdPartition

pytestmark = pytest.mark.integration

FORMATTER = (
    "org.apache.kafka.server.log.remote.metadata.storage.serialization."
    "RemoteLogMetadataSerde$RemoteLogMetadataFormatter"
)
# Of its metadata topic, as `KafkaBroker` sets it up.
KAFKAS_PARTITIONS = 5


def create_tiered(broker: KafkaBroker, topic: str) -> None:
    broker.create_topic(
        topic,
        config={
            "remote.storage.enable": "true",
            "internal.segment.bytes": "16384",
            "local.retention.bytes": "1",
        },
    )


def fill(broker: KafkaBroker, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 2000})
    for number in range(count):
        producer.produce(topic, value=f"{number} ".encode() * 20, partition=0)
    assert producer.flush(30) == 0


def read_back(broker: KafkaBroker, topic: str, count: int) -> list[tuple[int | None, bytes | None]]:
    """The first `count` records by Kafka's own client, wherever the broker has them."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reading"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int | None, bytes | None]] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


def finished(
    manager: RemoteLogMetadataManager, partition: TopicIdPartition
) -> list[RemoteLogSegmentMetadata]:
    return [one for one in manager.list(partition) if one.state is FINISHED]


def tiered_partition(manager: RemoteLogMetadataManager, topic: str, count: int) -> TopicIdPartition:
    """The only partition of `topic`, as soon as so many of its segments are finished."""

    def enough() -> TopicIdPartition | None:
        ours = [one for one in manager.partitions() if one.topic == topic]
        return ours[0] if ours and len(finished(manager, ours[0])) >= count else None

    wait_until(lambda: enough() is not None, 90, what=f"the broker to tier {count} segments")
    found = enough()
    assert found is not None
    return found


def formatted(broker: KafkaBroker, topic: str, count: int) -> list[str]:
    """What Kafka's console consumer shows of the topic."""
    text = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--formatter", FORMATTER, "--max-messages", str(count), "--timeout-ms", "20000"),
    )
    return [line for line in text.splitlines() if "Remote" in line]


@pytest.fixture
def manager(broker: KafkaBroker, topic: str) -> Iterator[TopicBasedRemoteLogMetadataManager]:
    with opened(broker, topic) as running:
        yield running


def test_kafkas_formatter_reads_what_we_wrote(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    finish(manager, segment("a", 0, 9, log_crc32c=7, bytes_per_epoch=((0, 100),)))
    lines = formatted(broker, topic, 2)
    assert [("COPY_SEGMENT_STARTED" in x, "COPY_SEGMENT_FINISHED" in x) for x in lines] == [
        (True, False),
        (False, True),
    ]
    assert PARTITION.topic_id in lines[0]


def test_kafkas_formatter_passes_over_notes(
    broker: KafkaBroker, manager: TopicBasedRemoteLogMetadataManager, topic: str
) -> None:
    manager.claim_leadership(PARTITION, 7)
    manager.advance_log_start_offset(PARTITION, 5)
    finish(manager, segment("a", 0, 9), leader_epoch=7)
    cut(manager, segment("a", 0, 9), 5)
    delete_partition(manager, *RemotePartitionDeleteState, leader_epoch=7)
    lines = formatted(broker, topic, 8)
    assert ["DELETE_SEGMENT_FINISHED" in line for line in lines] == [True] * 2 + [False] * 6
    assert ["DELETE_PARTITION" in line for line in lines] == [False] * 5 + [True] * 3


def test_we_read_what_kafkas_own_manager_wrote(broker: KafkaBroker, tmp_path: Path) -> None:
    """A broker tiers a topic of its own; its records tell the segments that lie in its tier."""

    create_tiered(broker, "tiered")
    fill(broker, "tiered", 800)
    with opened(broker, METADATA_TOPIC) as manager:
        rolled = {int(path.stem) for path in broker.partition_dir("tiered", 0).glob("*.log")}
        assert rolled
        partition = tiered_partition(manager, "tiered", 3)
        found = finished(manager, partition)
        ends = [one.end_offset for one in found]
        assert [one.start_offset for one in found] == [0, *(end + 1 for end in ends[:-1])]
        tiered = [path.name for path in (broker.root.parent / "tier").rglob("*.log")]
        # Not those that it has begun to copy meanwhile.
        for one in found:
            assert any(one.segment_id.id in name for name in tiered), tiered
            assert manager.lookup(partition, 0, one.start_offset) == one
        assert manager.dropped_count == 0


def test_a_broker_that_tiers_lives_with_what_only_we_write(broker: KafkaBroker) -> None:
    """Claims, log starts, cuts and what a fenced leader wrote, among its own records: it goes on
    copying and serving, before and after a restart."""
    create_tiered(broker, "shared")
    fill(broker, "shared", 800)
    with opened(broker, METADATA_TOPIC) as manager:
        partition = tiered_partition(manager, "shared", 3)
        manager.claim_leadership(partition, 7)
        manager.advance_log_start_offset(partition, 2)
        first = finished(manager, partition)[0]
        again = first.update_to(FINISHED, event_timestamp_ms=1, truncation_offset=first.end_offset)
        manager.update(again, leader_epoch=7)
        number = metadata_partition(partition, KAFKAS_PARTITIONS)
        late = first.update_to(FINISHED, event_timestamp_ms=2, truncation_offset=1)
        produce(broker, METADATA_TOPIC, number, MetadataRecord(late, 6))
        fill(broker, "shared", 800)
        tiered_partition(manager, "shared", 6)
        assert (manager.fenced_count, manager.dropped_count) == (1, 0)
        assert manager.lookup(partition, 0, first.end_offset) is None
    broker.kill()
    broker.start()
    fill(broker, "shared", 800)
    with opened(broker, METADATA_TOPIC) as manager:
        assert manager.leader_epoch(partition) == 7
        tiered_partition(manager, "shared", 9)
    expected = [f"{number} ".encode() * 20 for number in range(800)] * 3
    assert read_back(broker, "shared", 2400) == list(enumerate(expected))
    log = broker.log_path.read_text()
    assert "Exited from consumer task thread" not in log
    assert "Error occurred while processing the records" not in log
