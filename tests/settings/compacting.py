"""What settings change in the compaction of a node's own topics."""

from __future__ import annotations

from typing import Any

from tests.oracle import build
from tests.oracle.model import Record
from tests.settings.observing import Place
from tests.settings.topics import NOW_MS, change, open_cluster
from tierlog import decode_records
from tierlog.clock import ManualClock
from tierlog.log.checkpoint import CLEANER_OFFSETS, TopicPartition, read_offset_checkpoint
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.local.cluster import LocalCluster
from tierlog.types import TopicIdPartition

__all__ = ["compacted_log", "ends_of_rounds"]

HOUR_MS = 3_600_000
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


def compacted_log(place: Place) -> Any:
    """The records of a topic after each of some rounds, an hour apart, with a tombstone in ten."""
    clock = ManualClock(NOW_MS)
    cluster = open_cluster(place.folder / "data", clock, None)
    try:
        cluster.create_topic("orders", 1, {})
        change(cluster, place.properties)
        (partition,) = (one.stored_as for one in cluster.cluster_view().topics[0].partitions)
        writer = cluster.logs.writer("orders", 0)
        found = []
        for turn in range(4):
            for number in range(60):
                is_tombstone = number % 10 == 9
                record = Record(
                    offset=0,
                    timestamp_ms=clock.now_ms(),
                    key=b"gone %d %d" % (turn, number) if is_tombstone else b"%d" % (number % 20),
                    value=None if is_tombstone else bytes(100),
                )
                cluster.append(partition, build.batch([record]))
            clock.advance(HOUR_MS)
            cluster.compact()
            logs = [decode_records(one.log_path) for one in writer.view().segments]
            found.append([offset for one in logs for offset in one.offset.tolist()])
        return found
    finally:
        cluster.close()
