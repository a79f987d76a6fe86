"""Functions that make remote segments for tests."""

from __future__ import annotations

import hashlib
from typing import Any

from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, kafka_uuid

__all__ = [
    "DELETING",
    "FINISHED",
    "GONE",
    "PARTITION",
    "STARTED",
    "partition_of",
    "segment",
    "uuid_of",
]

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def uuid_of(name: str) -> str:
    """Return an id that depends on `name` alone."""
    return kafka_uuid(hashlib.sha256(name.encode()).digest()[:16])


def partition_of(topic: str = "orders", number: int = 0) -> TopicIdPartition:
    return TopicIdPartition(topic_id=uuid_of(f"topic {topic}"), topic=topic, partition=number)


PARTITION = partition_of()


def segment(
    name: str,
    start_offset: int,
    end_offset: int,
    *,
    epochs: tuple[tuple[int, int], ...] | None = None,
    partition: TopicIdPartition = PARTITION,
    size_bytes: int = 100,
    **fields: Any,
) -> RemoteLogSegmentMetadata:
    """Return a segment of one epoch, number 0, unless `epochs` says otherwise."""
    values: dict[str, Any] = {
        "segment_id": RemoteLogSegmentId(topic_id_partition=partition, id=uuid_of(name)),
        "start_offset": start_offset,
        "end_offset": end_offset,
        "max_timestamp_ms": 1_000_000 + end_offset,
        "broker_id": 1,
        "event_timestamp_ms": 5_000,
        "segment_size_bytes": size_bytes,
        "leader_epochs": ((0, start_offset),) if epochs is None else epochs,
        **fields,
    }
    return RemoteLogSegmentMetadata(**values)
