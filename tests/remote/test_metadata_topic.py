"""The metadata manager over the topic of a real cluster, beside the one in Kafka's broker."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import KafkaBroker, run_tool, wait_until
from tests.remote.builders import DELETING, FINISHED, GONE, PARTITION, segment
from tests.remote.metadata_conformance import MetadataConformance, finish, move
from tierlog.errors import (
    ClosedError,
    CorruptDataError,
    MetadataNotReadyError,
    RemoteMetadataError,
)
from tierlog.remote.metadata import (
    RemoteLogMetadataManager,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata_records import MetadataRecord, encode_record, metadata_partition
from tierlog.remote.metadata_topic import METADATA_TOPIC, TopicBasedRemoteLogMetadataManager
from tierlog.types import TopicIdPartition

pytestmark = pytest.mark.integration

FORMATTER = (
    "org.apache.kafka.server.log.remote.metadata.storage.serialization."
    "RemoteLogMetadataSerde$RemoteLogMetadataFormatter"
)
NAMES = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    folder = tmp_path_factory.mktemp("kafka")
    with KafkaBroker(folder / "broker", tiered_dir=folder / "tier") as running:
        yield running
        # Its own metadata consumer would hold up a clean stop for half a minute.
        running.kill()


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    name = f"metadata-{next(NAMES)}"
    broker.create_topic(name, partitions=3)
    return name


def opened(broker: KafkaBroker, topic: str, **settings: Any) -> TopicBasedRemoteLogMetadataManager:
    manager = TopicBasedRemoteLogMetadataManager(broker.bootstrap_servers, topic=topic, **settings)
    manager.wait_until_ready(timeout_s=30)
    return manager


@pytest.fixture
def manager(broker: KafkaBroker, topic: str) -> Iterator[TopicBasedRemoteLogMetadataManager]:
    with opened(broker, topic) as running:
        yield running


def deaf(message: Any) -> None:
    """Instead of taking in what was read."""


def produce(broker: KafkaBroker, topic: str, partition: int, value: bytes) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value=value, partition=partition)
    assert producer.flush(30) == 0


class TestConformance(MetadataConformance):
    @pytest.fixture
    def manager(self, manager: RemoteLogMetadataManager) -> RemoteLogMetadataManager:
        return manager


def test_a_second_manager_learns_everything_from_the_topic(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    finish(manager, segment("a", 0, 9), segment("b", 10, 19), segment("c", 20, 29))
    move(manager, segment("a", 0, 9), DELETING, GONE)
    manager.add(segment("d", 30, 39))
    with opened(broker, topic) as second:
        assert second.list(PARTITION) == manager.list(PARTITION)
        assert second.highest_offset_for_epoch(PARTITION, 0) == 29
        assert second.remote_log_size(PARTITION, 0) == manager.remote_log_size(PARTITION, 0) == 200
        move(second, segment("d", 30, 39), FINISHED)
        wait_until(lambda: manager.lookup(PARTITION, 0, 35) is not None, 30, what="the other's")
        assert second.dropped_count == manager.dropped_count == 0


def test_of_two_writers_the_later_one_is_told(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    """A writer that has not heard yet wants what has become impossible: the topic's order rules."""
    metadata = segment("a", 0, 9)
    heard, deaf = threading.Event(), threading.Event()
    heard.set()

    class Slow(TopicBasedRemoteLogMetadataManager):
        def _follow(self) -> None:
            consume = self._client.consume

            def when_allowed(records: int, timeout_s: float) -> list[Any]:
                if not heard.is_set():
                    deaf.set()
                heard.wait(30)
                return consume(records, timeout_s)

            self._client.consume = when_allowed  # type: ignore[method-assign]
            super()._follow()

    manager.add(metadata)
    with Slow(broker.bootstrap_servers, topic=topic) as zombie:
        zombie.wait_until_ready(timeout_s=30)
        heard.clear()
        assert deaf.wait(30)
        outcome: list[str] = []

        def finish_late() -> None:
            try:
                move(zombie, metadata, FINISHED)
            except RemoteMetadataError as error:
                outcome.append(str(error))

        move(manager, metadata, DELETING)
        thread = threading.Thread(target=finish_late)
        thread.start()
        wait_until(lambda: manager.dropped_count == 1, 30, what="the late event")
        heard.set()
        thread.join(30)
        assert len(outcome) == 1
        assert "no way from DELETE_SEGMENT_STARTED to COPY_SEGMENT_FINISHED" in outcome[0]
        assert manager.list(PARTITION) == zombie.list(PARTITION)


def test_a_partition_that_is_gone_is_forgotten(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    finish(manager, segment("a", 0, 9))
    number = metadata_partition(PARTITION, 3)
    for state in RemotePartitionDeleteState:
        event = RemotePartitionDeleteMetadata(
            partition=PARTITION, broker_id=1, event_timestamp_ms=9_000, state=state
        )
        produce(broker, topic, number, encode_record(MetadataRecord(event)))
    wait_until(lambda: manager.partitions() == (), 30, what="the partition to be forgotten")
    assert manager.list(PARTITION) == ()


def test_illegal_events_of_others_are_dropped_and_counted(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    manager.add(segment("a", 0, 9))
    wrong = segment("a", 0, 9).update_to(GONE, event_timestamp_ms=7_000)
    produce(broker, topic, metadata_partition(PARTITION, 3), encode_record(MetadataRecord(wrong)))
    wait_until(lambda: manager.dropped_count == 1, 30, what="the event to be dropped")
    assert manager.get(segment("a", 0, 9).segment_id) is not None


@pytest.mark.parametrize("value", [b"", b"\2\0\0", b"\1\0\0garbage"])
def test_a_record_nobody_can_read_stops_its_partition_alone(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager, value: bytes
) -> None:
    number = metadata_partition(PARTITION, 3)
    other = next(
        one
        for one in (
            TopicIdPartition(topic_id=PARTITION.topic_id, topic=PARTITION.topic, partition=n)
            for n in range(1, 99)
        )
        if metadata_partition(one, 3) != number
    )
    finish(manager, segment("a", 0, 9), segment("b", 0, 9, partition=other))
    produce(broker, topic, number, value)
    wait_until(lambda: not manager.is_ready(PARTITION), 30, what="the reader to stop")
    with pytest.raises(CorruptDataError, match=rf"{topic}-{number} offset 2"):
        manager.list(PARTITION)
    with pytest.raises(CorruptDataError):
        manager.add(segment("c", 10, 19))
    assert len(manager.list(other)) == 1


def test_nothing_is_empty_before_it_is_read(broker: KafkaBroker, topic: str) -> None:
    with opened(broker, topic) as writer:
        finish(writer, segment("a", 0, 9))
    started = threading.Event()

    class Held(TopicBasedRemoteLogMetadataManager):
        def _follow(self) -> None:
            started.wait(30)
            super()._follow()

    with Held(broker.bootstrap_servers, topic=topic) as manager:
        assert not manager.is_ready(PARTITION)
        for ask in (manager.list, lambda p: manager.lookup(p, 0, 5)):
            with pytest.raises(MetadataNotReadyError, match="read up to 0 of 2"):
                ask(PARTITION)
        with pytest.raises(MetadataNotReadyError):
            manager.add(segment("b", 10, 19))
        with pytest.raises(MetadataNotReadyError):
            manager.wait_until_ready(timeout_s=0)
        started.set()
        manager.wait_until_ready(timeout_s=30)
        assert len(manager.list(PARTITION)) == 1


def test_close_ends_a_write_that_waits(broker: KafkaBroker, topic: str) -> None:
    manager = opened(broker, topic)
    manager._take = deaf  # type: ignore[method-assign]
    ended: list[str] = []

    def write() -> None:
        try:
            manager.add(segment("a", 0, 9))
        except ClosedError as error:
            ended.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: bool(manager._writes), 30, what="the write")
    manager.close()
    thread.join(30)
    assert ended == ["the metadata manager is closed"]


def test_a_write_that_is_never_read_back_says_so(broker: KafkaBroker, topic: str) -> None:
    with opened(broker, topic, write_timeout_s=0.2) as manager:
        manager._take = deaf  # type: ignore[method-assign]
        with pytest.raises(RemoteMetadataError, match="may still take effect") as caught:
            manager.add(segment("a", 0, 9))
        assert caught.value.retriable


def test_a_cluster_that_does_not_answer() -> None:
    with pytest.raises(RemoteMetadataError) as caught:
        TopicBasedRemoteLogMetadataManager("127.0.0.1:1", timeout_s=0.5)
    assert caught.value.retriable


def test_a_topic_that_is_not_there(broker: KafkaBroker) -> None:
    with pytest.raises(RemoteMetadataError, match="no-such-topic"):
        TopicBasedRemoteLogMetadataManager(
            broker.bootstrap_servers, topic="no-such-topic", timeout_s=5
        )


def test_kafkas_formatter_reads_what_we_wrote(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    finish(manager, segment("a", 0, 9, log_crc32c=7, bytes_per_epoch=((0, 100),)))
    text = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--formatter", FORMATTER, "--max-messages", "2", "--timeout-ms", "20000"),
    )
    lines = [line for line in text.splitlines() if "RemoteLogSegmentMetadata" in line]
    assert [("COPY_SEGMENT_STARTED" in x, "COPY_SEGMENT_FINISHED" in x) for x in lines] == [
        (True, False),
        (False, True),
    ]
    assert PARTITION.topic_id in lines[0]


def test_we_read_what_kafkas_own_manager_wrote(broker: KafkaBroker, tmp_path: Path) -> None:
    """A broker tiers a topic of its own; its records tell the segments that lie in its tier."""
    from confluent_kafka import Producer

    broker.create_topic(
        "tiered",
        config={
            "remote.storage.enable": "true",
            "internal.segment.bytes": "16384",
            "local.retention.bytes": "1",
        },
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 2000})
    for number in range(800):
        producer.produce("tiered", value=f"{number} ".encode() * 20, partition=0)
    assert producer.flush(30) == 0

    with opened(broker, METADATA_TOPIC) as manager:

        def finished() -> list[tuple[int, int]]:
            return [
                (one.start_offset, one.end_offset)
                for partition in manager.partitions()
                for one in manager.list(partition)
                if one.state is FINISHED
            ]

        rolled = {int(path.stem) for path in broker.partition_dir("tiered", 0).glob("*.log")}
        assert rolled
        wait_until(lambda: len(finished()) >= 3, 60, what="the broker to tier three segments")
        found = finished()
        (partition,) = manager.partitions()
        assert partition.topic == "tiered"
        ends = [end for _, end in found]
        assert [start for start, _ in found] == [0, *(end + 1 for end in ends[:-1])]
        tiered = [path.name for path in (broker.root.parent / "tier").rglob("*.log")]
        for one in manager.list(partition):
            assert any(one.segment_id.id in name for name in tiered), tiered
            assert manager.lookup(partition, 0, one.start_offset) == one
        assert manager.dropped_count == 0


def test_a_reader_that_fails_tells_everybody(broker: KafkaBroker, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException

    with opened(broker, topic) as manager:
        finish(manager, segment("a", 0, 9))

        def broken(records: int, timeout_s: float) -> list[Any]:
            wait_until(lambda: bool(manager._writes), 30, what="the write")
            raise KafkaException(KafkaError(KafkaError._FATAL, "gone"))

        manager._take = deaf  # type: ignore[method-assign]
        manager._client.consume = broken  # type: ignore[method-assign]
        for work in (
            lambda: manager.add(segment("b", 10, 19)),
            lambda: manager.list(PARTITION),
        ):
            with pytest.raises(RemoteMetadataError, match="no longer followed") as caught:
                work()
            assert caught.value.retriable
        assert not manager.is_ready(PARTITION)
