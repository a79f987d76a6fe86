"""What settings change in the compaction of a node's own topics."""

from __future__ import annotations

from tests.oracle import build
from tests.oracle.model import Record
from tests.settings.observing import Place
from tierlog.clock import ManualClock
from tierlog.log.checkpoint import CLEANER_OFFSETS, TopicPartition, read_offset_checkpoint
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.local.cluster import LocalCluster
from tierlog.types import TopicIdPartition

__all__ = ["ends_of_rounds"]

SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0",
}


def ends_of_rounds(place: Place) -> list[int]:
    """Up to which offset each round compacts a log of 200 keys."""
    clock = ManualClock()
    data_dir = str(place.folder / "data")
    cluster = LocalCluster(
        data_dir, config=place.config, clock=clock, metrics=RemoteLogMetrics(clock)
    )
    topic = cluster.create_topic("keyed", 1, SETTINGS)
    partition = TopicIdPartition(topic_id=topic.topic_id, topic="keyed", partition=0)
    for number in range(210):
        record = Record(offset=0, timestamp_ms=clock.now_ms(), key=b"%d" % number, value=bytes(100))
        cluster.append(partition, build.batch([record]))
    ends: list[int] = []
    for _ in range(20):
        cluster.compact()
        path = f"{cluster.logs.path}/{CLEANER_OFFSETS}"
        ends.append(read_offset_checkpoint(path)[TopicPartition("keyed", 0)])
    cluster.close()
    return ends
