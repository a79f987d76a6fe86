"""The metadata manager over the topic of a real cluster, beside the one in Kafka's broker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random
from typing import Any

import pytest

from tests.kafka_tools import KafkaBroker, wait_until
from tests.proofs import usually
from tests.remote.metadata_topics import (
    NUMBER,
    TOPIC_PARTITIONS,
    HeldManager,
    everything_about,
    opened,
    opened_as,
    produce,
    records_of,
)
from tierlog.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    FencedLeaderError,
    MetadataNotReadyError,
    RemoteMetadataError,
)
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.records import MetadataRecord, metadata_partition
from tierlog.remote.metadata.topic import TopicBasedRemoteLogMetadataManager
from tierlog.testing.events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    cut,
    delete_partition,
    finish,
    move,
)
from tierlog.testing.fencing import EmbeddedConformance
from tierlog.testing.metadata import MetadataConformance
from tierlog.testing.segments import DELETING, FINISHED, GONE, PARTITION, partition_of, segment

pytestmark = pytest.mark.integration

ELSEWHERE = next(
    one
    for one in (partition_of(number=number) for number in range(1, 99))
    if metadata_partition(one, TOPIC_PARTITIONS) != NUMBER
)
# How often it is closed at some moment.
CLOSED_TIMES = usually(40, thorough=1_000)
CLOSED_WITHIN_S = 30.0


@pytest.fixture
def manager(broker: KafkaBroker, topic: str) -> Iterator[TopicBasedRemoteLogMetadataManager]:
    with opened(broker, topic) as running:
        yield running


def deaf(message: Any) -> None:
    """Instead of taking in what was read."""


class TestConformance(MetadataConformance):
    test_the_log_start_goes_up = EmbeddedConformance.test_the_log_start_goes_up

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
    manager.add(metadata)
    with opened_as(HeldManager, broker, topic) as zombie:
        zombie.hold()
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
        zombie.release()
        thread.join(30)
        assert len(outcome) == 1
        assert "cannot go from DELETE_SEGMENT_STARTED to COPY_SEGMENT_FINISHED" in outcome[0]
        assert manager.list(PARTITION) == zombie.list(PARTITION)


def test_a_partition_that_is_gone_is_forgotten(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    finish(manager, segment("a", 0, 9))
    for state in RemotePartitionDeleteState:
        event = RemotePartitionDeleteMetadata(
            partition=PARTITION, broker_id=1, event_timestamp_ms=9_000, state=state
        )
        produce(broker, topic, NUMBER, MetadataRecord(event))
    wait_until(lambda: manager.partitions() == (), 30, what="the partition to be forgotten")
    assert manager.list(PARTITION) == ()


def test_nothing_is_told_of_a_deleted_partition(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    """Kafka's reader would end there. Steps of the deletion are repeats, as after a crash."""
    finish(manager, segment("a", 0, 9), leader_epoch=2)
    delete_partition(manager, *RemotePartitionDeleteState, leader_epoch=2)
    length = len(records_of(broker, topic, NUMBER))
    calls: list[Callable[[], object]] = [
        lambda: manager.add(segment("b", 10, 19)),
        lambda: manager.claim_leadership(PARTITION, 3),
        lambda: manager.advance_log_start_offset(PARTITION, 5),
    ]
    for call in calls:
        with pytest.raises(RemoteMetadataError, match="is deleted"):
            call()
    with pytest.raises(FencedLeaderError):
        manager.claim_leadership(PARTITION, 1)
    delete_partition(manager, *RemotePartitionDeleteState)
    move(manager, segment("a", 0, 9), GONE)
    assert len(records_of(broker, topic, NUMBER)) == length
    # What somebody tells nevertheless changes nothing, for whoever reads it.
    produce(broker, topic, NUMBER, MetadataRecord(segment("c", 0, 9), 4))
    wait_until(lambda: manager.dropped_count == 1, 30, what="the event to be dropped")
    with opened(broker, topic) as fresh:
        assert everything_about(fresh) == everything_about(manager)
        assert fresh.partitions() == ()
        assert fresh.leader_epoch(PARTITION) == 2


def test_illegal_events_of_others_are_dropped_and_counted(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    manager.add(segment("a", 0, 9))
    wrong = segment("a", 0, 9).update_to(GONE, event_timestamp_ms=7_000)
    produce(broker, topic, NUMBER, MetadataRecord(wrong))
    wait_until(lambda: manager.dropped_count == 1, 30, what="the event to be dropped")
    assert manager.get(segment("a", 0, 9).segment_id) is not None


@pytest.mark.parametrize("value", [b"", b"\2\0\0", b"\1\0\0garbage"])
def test_a_record_nobody_can_read_stops_its_partition_alone(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager, value: bytes
) -> None:
    finish(manager, segment("a", 0, 9), segment("b", 0, 9, partition=ELSEWHERE))
    produce(broker, topic, NUMBER, value)
    wait_until(lambda: not manager.is_ready(PARTITION), 30, what="the reader to stop")
    with pytest.raises(CorruptDataError, match=rf"{topic}-{NUMBER} offset 2"):
        manager.list(PARTITION)
    with pytest.raises(CorruptDataError):
        manager.add(segment("c", 10, 19))
    assert len(manager.list(ELSEWHERE)) == 1


def test_nothing_is_empty_before_it_is_read(broker: KafkaBroker, topic: str) -> None:
    with opened(broker, topic) as writer:
        finish(writer, segment("a", 0, 9))
    started = threading.Event()

    class Held(TopicBasedRemoteLogMetadataManager):
        def _read_topic(self) -> None:
            started.wait(30)
            super()._read_topic()

    with Held(broker.bootstrap_servers, topic=topic) as manager:
        assert not manager.is_ready(PARTITION)
        calls: list[Callable[[], object]] = [
            lambda: manager.list(PARTITION),
            lambda: manager.lookup(PARTITION, 0, 5),
            lambda: manager.highest_offset_for_epoch(PARTITION, 0),
            lambda: manager.remote_log_size(PARTITION, 0),
            lambda: manager.leader_epoch(PARTITION),
            lambda: manager.log_start_offset(PARTITION),
            lambda: manager.partition_delete_state(PARTITION),
            lambda: manager.changes(PARTITION),
            lambda: manager.add(segment("b", 10, 19)),
            lambda: move(manager, segment("a", 0, 9), DELETING),
            lambda: manager.claim_leadership(PARTITION, 1),
            lambda: manager.advance_log_start_offset(PARTITION, 1),
            lambda: delete_partition(manager, MARKED),
        ]
        for call in calls:
            with pytest.raises(MetadataNotReadyError, match="read up to 0 of 2"):
                call()
        with pytest.raises(MetadataNotReadyError, match="all partitions"):
            manager.partitions()
        with pytest.raises(MetadataNotReadyError):
            manager.wait_until_ready(timeout_s=0)
        started.set()
        manager.wait_until_ready(timeout_s=30)
        assert len(manager.list(PARTITION)) == 1


def test_a_write_to_a_partition_that_stops_ends(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    """What follows a record that nobody can read is never applied; its writer does not wait."""
    with opened_as(HeldManager, broker, topic) as late:
        late.hold()
        produce(broker, topic, NUMBER, b"\2\0\0")
        with ThreadPoolExecutor(1) as pool:
            write = pool.submit(late.add, segment("a", 0, 9))
            wait_until(lambda: len(late._writes) == 1, 30, what="the write")
            late.release()
            assert isinstance(write.exception(30), CorruptDataError)
        other = next(
            n for n in range(1, 99) if metadata_partition(partition_of(number=n), 3) != NUMBER
        )
        late.add(segment("b", 0, 9, partition=partition_of(number=other)))


def test_leaders_cuts_deletions_and_log_starts_are_replayed(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    finish(manager, segment("a", 0, 99), leader_epoch=6)
    cut(manager, segment("a", 0, 99), 40)
    manager.advance_log_start_offset(PARTITION, 17)
    manager.advance_log_start_offset(PARTITION, 5)
    manager.claim_leadership(PARTITION, 8)
    delete_partition(manager, MARKED, leader_epoch=8)
    delete_partition(manager, DELETION_STARTED, leader_epoch=8)
    with opened(broker, topic) as second:
        assert everything_about(second) == everything_about(manager)
        assert second.leader_epoch(PARTITION) == 8
        assert second.log_start_offset(PARTITION) == 17
        assert second.highest_offset_for_epoch(PARTITION, 0) == 39
        assert second.lookup(PARTITION, 0, 40) is None
        assert second.partition_delete_state(PARTITION) is DELETION_STARTED
        delete_partition(second, DELETION_FINISHED, leader_epoch=8)
        wait_until(lambda: manager.partitions() == (), 30, what="the partition to be forgotten")
    with opened(broker, topic) as third:
        assert everything_about(third) == everything_about(manager)
        assert third.leader_epoch(PARTITION) == 8
        assert third.log_start_offset(PARTITION) is None
    # A repeat and a step back wrote nothing.
    assert len(records_of(broker, topic, NUMBER)) == 8


def test_a_topic_that_was_cut_stops_its_reader(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    """Records that nobody read are gone: what they told is unknown, which is not nothing."""
    from confluent_kafka import TopicPartition

    finish(manager, segment("a", 0, 9))
    with opened_as(HeldManager, broker, topic) as late:
        late.hold()
        place = [TopicPartition(topic, NUMBER)]
        # What the client library has fetched ahead is thrown away.
        late._client._consumer.pause(place)
        finish(manager, *(segment(f"s{number}", number, number) for number in range(10, 30)))
        broker.delete_records(topic, NUMBER, 30)
        late._client._consumer.resume(place)
        late.release()
        wait_until(lambda: not late.is_ready(PARTITION), 30, what="the reader to notice")
        calls: list[Callable[[], object]] = [
            lambda: late.list(PARTITION),
            lambda: late.add(segment("c", 50, 59)),
        ]
        for call in calls:
            with pytest.raises(RemoteMetadataError, match="offset 2 on were removed") as caught:
                call()
            assert not caught.value.retriable
    # Who was fast enough knows it all.
    assert len(manager.list(PARTITION)) == 21


def test_reading_over_again_changes_nothing(
    broker: KafkaBroker, topic: str, manager: TopicBasedRemoteLogMetadataManager
) -> None:
    """Whoever starts in the middle of a history ends where everybody else does."""
    for step in range(4):
        metadata = segment(f"s{step}", 10 * step, 10 * step + 9)
        finish(manager, metadata, leader_epoch=step)
        with opened(broker, topic) as fresh:
            assert everything_about(fresh) == everything_about(manager)
            finish(fresh, segment(f"f{step}", 10 * step, 10 * step + 5), leader_epoch=step + 1)
            expected = everything_about(fresh)
        with opened(broker, topic) as fresh:
            assert everything_about(fresh) == expected
            fresh.claim_leadership(PARTITION, step + 1)
        move(manager, metadata, DELETING, *([GONE] if step % 2 else []))
    with opened(broker, topic) as fresh:
        assert everything_about(fresh) == everything_about(manager)
        assert len(fresh.list(PARTITION)) == 6


def test_close_ends_a_write_that_waits(broker: KafkaBroker, topic: str) -> None:
    manager = opened(broker, topic)
    manager._apply_message = deaf  # type: ignore[method-assign]
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


def outcome_of(call: Callable[..., object], *arguments: object, **settings: object) -> object:
    try:
        return call(*arguments, **settings)
    except (ClosedError, FencedLeaderError, MetadataNotReadyError) as error:
        return error


def test_close_at_any_time_ends_soon(broker: KafkaBroker, topic: str) -> None:
    """While it starts, reads, writes and answers: nobody waits for anybody for ever."""
    random = Random(6)
    segments = [segment(f"s{number}", number, number) for number in range(300)]
    produce(broker, topic, NUMBER, *(MetadataRecord(metadata) for metadata in segments))
    with ThreadPoolExecutor(6) as pool:
        for _ in range(CLOSED_TIMES):
            manager = TopicBasedRemoteLogMetadataManager(broker.bootstrap_servers, topic=topic)
            under_way = [
                pool.submit(outcome_of, manager.wait_until_ready, timeout_s=30),
                pool.submit(outcome_of, manager.claim_leadership, PARTITION, random.randrange(999)),
                pool.submit(outcome_of, manager.partitions),
            ]
            wait(under_way, random.random() / 10)
            closing = [pool.submit(manager.close) for _ in range(2)]
            for future in closing + under_way:
                future.result(CLOSED_WITHIN_S)
            manager._reader.join(CLOSED_WITHIN_S)
            assert not manager._reader.is_alive()
            with pytest.raises(ClosedError):
                manager.list(PARTITION)


def test_close_does_not_wait_for_a_cluster_that_pauses(topic: str, broker: KafkaBroker) -> None:
    manager = opened(broker, topic)
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as pool:
            write = pool.submit(manager.add, segment("a", 0, 9))
            wait_until(lambda: len(manager._writes) == 1, 30, what="the write")
            pool.submit(manager.close).result(CLOSED_WITHIN_S)
            assert isinstance(write.exception(CLOSED_WITHIN_S), ClosedError)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_write_that_is_never_read_back_says_so(broker: KafkaBroker, topic: str) -> None:
    with opened(broker, topic, write_timeout_s=0.2) as manager:
        manager._apply_message = deaf  # type: ignore[method-assign]
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


def test_a_reader_that_fails_tells_everybody(broker: KafkaBroker, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException

    with opened(broker, topic) as manager:
        finish(manager, segment("a", 0, 9))

        def broken(records: int, timeout_s: float) -> list[Any]:
            wait_until(lambda: bool(manager._writes), 30, what="the write")
            raise KafkaException(KafkaError(KafkaError._FATAL, "gone"))

        manager._apply_message = deaf  # type: ignore[method-assign]
        manager._client.consume = broken  # type: ignore[method-assign]
        for work in (
            lambda: manager.add(segment("b", 10, 19)),
            lambda: manager.list(PARTITION),
        ):
            with pytest.raises(RemoteMetadataError, match="no longer followed") as caught:
                work()
            assert caught.value.retriable
        assert not manager.is_ready(PARTITION)


def test_a_producer_that_is_beyond_help_is_replaced(
    manager: TopicBasedRemoteLogMetadataManager,
) -> None:
    from confluent_kafka import KafkaError, KafkaException

    class Dead:
        def produce(self, *_: object, **__: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL, "sequence lost", fatal=True))

        def poll(self, timeout_s: float) -> int:
            return 0

    manager._client._producer = Dead()
    with pytest.raises(RemoteMetadataError, match="sequence lost") as caught:
        manager.add(segment("a", 0, 9))
    assert caught.value.retriable
    manager.add(segment("a", 0, 9))
    assert len(manager.list(PARTITION)) == 1


@pytest.mark.parametrize("settings", [{"no.such.setting": "1"}, {"acks": "1"}])
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="refuses a setting"):
        TopicBasedRemoteLogMetadataManager("127.0.0.1:1", settings=settings, timeout_s=0.5)
