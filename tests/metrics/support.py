"""A recorder with every metric set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tierlog.metrics import PartitionMetrics
from tierlog.types import TopicIdPartition, random_kafka_uuid

TOPIC_ID = random_kafka_uuid()


def partition(topic: str = "orders", number: int = 0, topic_id: str = TOPIC_ID) -> TopicIdPartition:
    return TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)


def set_all(handle: PartitionMetrics) -> None:
    handle.copy_started()
    handle.copied(10)
    handle.set_copy_lag(size_bytes=900, segments=9)
    handle.set_delete_lag(size_bytes=800, segments=8)
    handle.set_remote_log(size_bytes=700, metadata_count=7, computation_ms=6)
    handle.set_retention_percent(total_percent=50, local_percent=40)


@dataclass
class Run:
    running_ms: int


class Pool:
    size = 4
    runs = 17

    def __init__(self, *running_ms: int) -> None:
        self._running = [Run(each) for each in running_ms]

    def idle_ratio(self) -> float:
        return 0.25

    def queued(self) -> int:
        return 3

    def running(self) -> Sequence[Run]:
        return self._running
