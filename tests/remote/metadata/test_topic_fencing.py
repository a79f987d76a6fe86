"""Leaders over one metadata topic: of two that believe to lead, the log's order knows one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.kafka_tools import KafkaBroker, wait_until
from tests.remote.metadata_topics import (
    NUMBER,
    HeldManager,
    everything_about,
    opened,
    opened_as,
    produce,
    records_of,
    same_for_everybody,
)
from tierlog.errors import FencedLeaderError, RemoteMetadataError
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
)
from tierlog.remote.metadata.records import MetadataRecord
from tierlog.remote.metadata.topic import TopicBasedRemoteLogMetadataManager
from tierlog.remote.urls import ObjectStore, open_store
from tierlog.testing.events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    cut,
    delete_partition,
    finish,
    move,
)
from tierlog.testing.segments import DELETING, FINISHED, GONE, PARTITION, STARTED, segment

pytestmark = pytest.mark.integration


@pytest.fixture
def old(broker: KafkaBroker, topic: str) -> Iterator[HeldManager]:
    with opened_as(HeldManager, broker, topic) as running:
        yield running


@pytest.fixture
def new(broker: KafkaBroker, topic: str) -> Iterator[TopicBasedRemoteLogMetadataManager]:
    with opened(broker, topic) as running:
        yield running


def in_background(work: Callable[[], object]) -> Future[object]:
    """What comes of `work` in a thread of its own."""
    with_thread = ThreadPoolExecutor(1)
    outcome: Future[object] = with_thread.submit(work)
    with_thread.shutdown(wait=False)
    return outcome


# -- claims and what they stop


def test_a_claim_is_on_the_topic(
    broker: KafkaBroker,
    topic: str,
    old: HeldManager,
    new: TopicBasedRemoteLogMetadataManager,
) -> None:
    old.claim_leadership(PARTITION, 3)
    wait_until(lambda: new.leader_epoch(PARTITION) == 3, 30, what="the claim")
    with pytest.raises(FencedLeaderError, match="leader epoch 2 is over, epoch 3 owns"):
        new.claim_leadership(PARTITION, 2)
    new.claim_leadership(PARTITION, 4)
    for _ in range(3):
        new.claim_leadership(PARTITION, 4)
    same_for_everybody(broker, topic, old, new)
    assert [record.leader_epoch for record in records_of(broker, topic, NUMBER)] == [3, 4]
    assert new.partitions() == ()


EVENTS: dict[str, Callable[[RemoteLogMetadataManager], None]] = {
    "add": lambda manager: manager.add(segment("late", 20, 29), leader_epoch=1),
    "finish": lambda manager: move(manager, segment("b", 10, 19), FINISHED, leader_epoch=1),
    "delete": lambda manager: move(manager, segment("a", 0, 9), DELETING, leader_epoch=1),
    "cut": lambda manager: manager.update(
        segment("a", 0, 9).update_to(FINISHED, event_timestamp_ms=7_000, truncation_offset=5),
        leader_epoch=1,
    ),
    "drop": lambda manager: delete_partition(manager, MARKED, leader_epoch=1),
    "claim": lambda manager: manager.claim_leadership(PARTITION, 1),
}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("first", ["claim", "event"])
def test_a_leader_that_has_not_heard_is_fenced_by_the_topic(
    broker: KafkaBroker,
    topic: str,
    old: HeldManager,
    new: TopicBasedRemoteLogMetadataManager,
    name: str,
    first: str,
) -> None:
    """Its record is written after the later leader's, and dropped by everybody."""
    finish(old, segment("a", 0, 9), leader_epoch=None if name == "claim" else 1)
    old.add(segment("b", 10, 19))
    wait_until(lambda: len(new.list(PARTITION)) == 2, 30, what="the segments")
    old.hold()
    if first == "claim":
        new.claim_leadership(PARTITION, 2)
    else:
        new.add(segment("c", 40, 49), leader_epoch=2)
    before = everything_about(new)
    late = in_background(lambda: EVENTS[name](old))
    wait_until(lambda: new.fenced_count == 1, 30, what="the late event")
    assert not late.done()
    old.release()
    assert isinstance(late.exception(30), FencedLeaderError)
    assert everything_about(new) == before
    assert (old.fenced_count, old.dropped_count, new.dropped_count) == (1, 0, 0)
    same_for_everybody(broker, topic, old, new)
    # Now it knows, and writes no more.
    length = len(records_of(broker, topic, NUMBER))
    with pytest.raises(FencedLeaderError):
        EVENTS[name](old)
    assert len(records_of(broker, topic, NUMBER)) == length


def test_who_claims_knows_what_was_decided_before(
    broker: KafkaBroker, topic: str, old: HeldManager, new: TopicBasedRemoteLogMetadataManager
) -> None:
    """The one that takes over has been deaf for a while; after its claim it is not."""
    old.hold()
    finish(new, *(segment(f"s{number}", number * 10, number * 10 + 9) for number in range(30)))
    threading.Timer(0.2, old.release).start()
    old.claim_leadership(PARTITION, 1)
    assert len(old.list(PARTITION)) == 30


def test_events_without_an_epoch_pass(
    broker: KafkaBroker, topic: str, new: TopicBasedRemoteLogMetadataManager
) -> None:
    new.claim_leadership(PARTITION, 9)
    kafkas = segment("a", 0, 9)
    update = kafkas.update_to(FINISHED, event_timestamp_ms=6_000)
    produce(broker, topic, NUMBER, MetadataRecord(kafkas), MetadataRecord(update))
    wait_until(lambda: new.lookup(PARTITION, 0, 5) is not None, 30, what="Kafka's segment")
    assert (new.fenced_count, new.dropped_count, new.leader_epoch(PARTITION)) == (0, 0, 9)


# -- a zombie


class Leader:
    """Copies and expires; a segment is one object."""

    def __init__(self, manager: RemoteLogMetadataManager, epoch: int, store: ObjectStore) -> None:
        self.manager, self.epoch, self.store = manager, epoch, store

    def copy(self, metadata: RemoteLogSegmentMetadata, pause: Callable[[], object]) -> None:
        self.manager.add(metadata, leader_epoch=self.epoch)
        self.store.put_bytes(metadata.segment_id.id, b"log")
        pause()
        move(self.manager, metadata, FINISHED, leader_epoch=self.epoch)

    def expire(self, metadata: RemoteLogSegmentMetadata, pause: Callable[[], object]) -> None:
        pause()
        move(self.manager, metadata, DELETING, leader_epoch=self.epoch)
        self.store.delete(metadata.segment_id.id)
        move(self.manager, metadata, GONE, leader_epoch=self.epoch)


def at_once() -> None:
    """Instead of a pause."""


@pytest.mark.parametrize("heard", ["nothing", "everything"])
@pytest.mark.parametrize("work", ["copy", "expire"])
def test_a_zombie_commits_nothing_and_deletes_nothing(
    broker: KafkaBroker,
    topic: str,
    old: HeldManager,
    new: TopicBasedRemoteLogMetadataManager,
    work: str,
    heard: str,
) -> None:
    store = open_store(f"memory:///{topic}")
    zombie, leader = Leader(old, 1, store), Leader(new, 2, store)
    old.claim_leadership(PARTITION, 1)
    first, second = segment("first", 0, 9), segment("second", 10, 19)
    third, fourth = segment("third", 20, 29), segment("fourth", 30, 39)
    zombie.copy(first, at_once)
    zombie.copy(second, at_once)
    paused, woken = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        assert woken.wait(30)

    if work == "copy":
        late = in_background(lambda: zombie.copy(third, pause))
    else:
        late = in_background(lambda: zombie.expire(second, pause))
    assert paused.wait(30)
    if heard == "nothing":
        old.hold()
    new.claim_leadership(PARTITION, 2)
    for known in new.list(PARTITION):
        if known.state is STARTED:
            leader.expire(known, at_once)
    leader.copy(fourth, at_once)
    leader.expire(first, at_once)
    state, objects = everything_about(new), {info.key for info in store.list()}
    woken.set()
    if heard == "nothing":
        wait_until(lambda: new.fenced_count == 1, 30, what="the zombie's event")
        old.release()
    assert isinstance(late.exception(30), FencedLeaderError)
    assert everything_about(new) == state
    assert {info.key for info in store.list()} == objects
    assert {known.segment_id.id for known in new.list(PARTITION)} == objects
    same_for_everybody(broker, topic, old, new)


# -- answers that are late or lost


def lose_answers(manager: TopicBasedRemoteLogMetadataManager) -> Callable[[], None]:
    """Records are written, and their writer is told that they may not be; undone by the result."""
    produce_for_real = manager._client.produce

    def produce_and_lose(
        number: int, value: bytes, token: bytes, delivered: Callable[[object, object], None]
    ) -> None:
        produce_for_real(number, value, b"lost" + token, lambda _, message: delivered("?", message))

    def undo() -> None:
        manager._client.produce = produce_for_real  # type: ignore[method-assign]

    manager._client.produce = produce_and_lose  # type: ignore[method-assign]
    return undo


REPEATS: list[Callable[[RemoteLogMetadataManager], None]] = [
    lambda manager: manager.claim_leadership(PARTITION, 5),
    lambda manager: manager.add(segment("a", 0, 9), leader_epoch=5),
    lambda manager: move(manager, segment("a", 0, 9), FINISHED, leader_epoch=5),
    lambda manager: cut(manager, segment("a", 0, 9), 5),
    lambda manager: move(manager, segment("a", 0, 9), DELETING, leader_epoch=5),
    lambda manager: move(manager, segment("a", 0, 9), GONE, leader_epoch=5),
    lambda manager: delete_partition(manager, MARKED, leader_epoch=5),
    lambda manager: delete_partition(manager, DELETION_STARTED, leader_epoch=5),
    lambda manager: delete_partition(manager, DELETION_FINISHED, leader_epoch=5),
]


def lost_and_repeated(
    broker: KafkaBroker, topic: str, manager: HeldManager, repeat: Callable[[HeldManager], None]
) -> None:
    """Its answer is lost, and it is told again."""
    undo = lose_answers(manager)
    length = len(records_of(broker, topic, NUMBER))
    with pytest.raises(RemoteMetadataError, match="may still take effect") as caught:
        repeat(manager)
    assert caught.value.retriable
    undo()
    wait_until(lambda: len(records_of(broker, topic, NUMBER)) > length, 30, what="the record")
    repeat(manager)
    repeat(manager)


@pytest.mark.parametrize("doubled", [False, True])
def test_an_event_told_twice_counts_once(
    broker: KafkaBroker, topic: str, old: HeldManager, doubled: bool
) -> None:
    for repeat in REPEATS:
        lost_and_repeated(broker, topic, old, repeat)
        if doubled:
            produce(broker, topic, NUMBER, records_of(broker, topic, NUMBER)[-1])
    assert (old.fenced_count, old.dropped_count) == (0, 0)
    assert old.partitions() == ()
    assert old.leader_epoch(PARTITION) == 5
    same_for_everybody(broker, topic, old)


def test_a_cluster_that_pauses_loses_and_doubles_nothing(broker: KafkaBroker, topic: str) -> None:
    import os
    import signal

    with opened(broker, topic, write_timeout_s=1.0) as manager:
        manager.claim_leadership(PARTITION, 1)
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(RemoteMetadataError, match="may still take effect"):
                manager.add(segment("a", 0, 9), leader_epoch=1)
        finally:
            os.kill(broker.pid, signal.SIGCONT)

        def added() -> bool:
            try:
                manager.add(segment("a", 0, 9), leader_epoch=1)
            except RemoteMetadataError:
                return False
            return True

        wait_until(added, 60, what="the event to be repeated")
        move(manager, segment("a", 0, 9), FINISHED, leader_epoch=1)
        assert len(manager.list(PARTITION)) == 1
        assert (manager.fenced_count, manager.dropped_count) == (0, 0)
        same_for_everybody(broker, topic, manager)
