"""Two remote log managers, each with a metadata manager of its own, over one metadata topic of a
real broker: one of them sleeps through its deposition."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import KafkaBroker, wait_until
from tests.remote.metadata_topics import (
    HeldManager,
    everything_about,
    new_topic,
    opened_as,
    same_for_everybody,
    tiering_broker,
)
from tests.tiering.hosts import GoldenLog
from tierlog.clock import ManualClock
from tierlog.config import RemoteLogConfig
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import ManagerListener
from tierlog.types import TopicIdPartition

pytestmark = pytest.mark.integration

EPOCH = 4
DAY_MS = 86_400_000
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with tiering_broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


class SleepyManager(HeldManager):
    """Its caller falls asleep on the way to one kind of event."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.sleeps_before: RemoteLogSegmentState | None = None
        self.asleep, self.woken = threading.Event(), threading.Event()
        super().__init__(*arguments, **settings)

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        if update.state is self.sleeps_before and not self.asleep.is_set():
            self.asleep.set()
            assert self.woken.wait(60)
        super().update(update, leader_epoch=leader_epoch)


class Node(ManagerListener):
    """A remote log manager by hand, of one replica."""

    def __init__(self, broker: KafkaBroker, topic: str, folder: Path, url: str) -> None:
        self.store = open_store(url)
        self.metadata = opened_as(SleepyManager, broker, topic, write_timeout_s=20)
        self.clock = ManualClock()
        self.fenced: list[int] = []
        self.log = GoldenLog(folder, "epochs-0")
        self.manager = RemoteLogManager(
            ObjectStorageManager(self.store),
            self.metadata,
            broker_id=1,
            clock=self.clock,
            options=ManagerOptions(
                config=RemoteLogConfig(retention_max_deleted_ratio=1), listener=self
            ),
        )

    def on_fenced(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        self.fenced.append(leader_epoch)

    def work(self) -> None:
        self.clock.advance(DAY_MS)
        self.manager.run_until_idle()

    def lead(self, epoch: int) -> None:
        self.manager.become_leader(self.log.partition, epoch, self.log)
        self.manager.run_until_idle()

    def tier(self) -> tuple[list[object], list[str]]:
        """What the partition consists of, by metadata and by the store."""
        objects = sorted(info.key for info in self.store.list())
        return everything_about(self.metadata, [self.log.partition]), objects

    def close(self) -> None:
        self.metadata.woken.set()
        self.manager.close()
        self.metadata.close()


@pytest.fixture
def nodes(broker: KafkaBroker, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two replicas of a log of three rolled segments, one store, one topic."""
    topic = new_topic(broker)
    (tmp_path / "store").mkdir()
    url = (tmp_path / "store").as_uri()
    both = tuple(Node(broker, topic, tmp_path / name, url) for name in ("old", "new"))
    yield both[0], both[1]
    for node in both:
        node.close()


def falls_asleep(node: Node, pool: ThreadPoolExecutor, *, heard: bool) -> Future[None]:
    """Its work, which goes on in its sleep as little as its reader unless that has `heard`."""
    under_way = pool.submit(node.work)
    assert node.metadata.asleep.wait(60)
    if not heard:
        node.metadata.hold()
    return under_way


def wakes(broker: KafkaBroker, old: Node, new: Node, under_way: Future[None], heard: bool) -> None:
    before = new.tier()
    old.metadata.woken.set()
    if not heard:
        wait_until(lambda: new.metadata.fenced_count > 0, 30, what="the zombie's event")
        old.metadata.release()
    under_way.result(60)
    old.work()
    assert old.fenced == [EPOCH]
    assert new.tier() == before
    assert new.fenced == []
    partition = [old.log.partition]
    topic = old.metadata._topic
    same_for_everybody(broker, topic, old.metadata, new.metadata, partitions=partition)


@pytest.mark.parametrize("heard", [True, False])
def test_a_zombie_between_put_and_commit_commits_nothing(
    broker: KafkaBroker, nodes: tuple[Node, Node], heard: bool
) -> None:
    old, new = nodes
    old.metadata.sleeps_before = FINISHED
    with ThreadPoolExecutor(1) as pool:
        old.manager.become_leader(old.log.partition, EPOCH, old.log)
        under_way = falls_asleep(old, pool, heard=heard)
        new.lead(EPOCH + 1)
        new.work()
        states = {one.state for one in new.metadata.list(new.log.partition)}
        assert states == {FINISHED}
        assert len(new.metadata.list(new.log.partition)) == len(new.log.log.segments) - 1
        expired, *kept = new.log.log.segments
        new.log.configure(retention_bytes=sum(one.size_bytes for one in kept))
        new.work()
        left = [one.start_offset for one in new.metadata.list(new.log.partition)]
        assert left == [one.base_offset for one in kept[:-1]]
        assert new.log.starts == [expired.next_base_offset]
        wakes(broker, old, new, under_way, heard)
        assert len(new.tier()[1]) == 2 * len(left)


@pytest.mark.parametrize("heard", [True, False])
def test_a_zombie_about_to_expire_deletes_nothing(
    broker: KafkaBroker, nodes: tuple[Node, Node], heard: bool
) -> None:
    old, new = nodes
    old.lead(EPOCH)
    old.work()
    count = len(old.log.log.segments) - 1
    old.metadata.sleeps_before = DELETING
    old.log.configure(retention_bytes=0)
    with ThreadPoolExecutor(1) as pool:
        under_way = falls_asleep(old, pool, heard=heard)
        new.lead(EPOCH + 1)
        new.work()
        assert len(new.tier()[1]) == 2 * count
        wakes(broker, old, new, under_way, heard)
        assert [one.state for one in new.metadata.list(new.log.partition)] == [FINISHED] * count
