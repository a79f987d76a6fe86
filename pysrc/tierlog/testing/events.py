"""Functions that send events to a metadata manager, for tests."""

from __future__ import annotations

from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.testing.segments import FINISHED, PARTITION
from tierlog.types import TopicIdPartition

__all__ = [
    "DELETION_FINISHED",
    "DELETION_STARTED",
    "MARKED",
    "cut",
    "delete_partition",
    "finish",
    "found_at",
    "move",
]

MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
DELETION_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
DELETION_FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


def move(
    manager: RemoteLogMetadataManager,
    metadata: RemoteLogSegmentMetadata,
    *states: RemoteLogSegmentState,
    leader_epoch: int | None = None,
) -> None:
    for number, state in enumerate(states):
        event = metadata.update_to(state, event_timestamp_ms=6_000 + number)
        manager.update(event, leader_epoch=leader_epoch)


def finish(
    manager: RemoteLogMetadataManager,
    *segments: RemoteLogSegmentMetadata,
    leader_epoch: int | None = None,
) -> None:
    for metadata in segments:
        manager.add(metadata, leader_epoch=leader_epoch)
        move(manager, metadata, FINISHED, leader_epoch=leader_epoch)


def cut(
    manager: RemoteLogMetadataManager,
    metadata: RemoteLogSegmentMetadata,
    offset: int,
    state: RemoteLogSegmentState = FINISHED,
) -> None:
    manager.update(
        metadata.update_to(state, event_timestamp_ms=7_000, truncation_offset=offset),
    )


def delete_partition(
    manager: RemoteLogMetadataManager,
    *states: RemotePartitionDeleteState,
    partition: TopicIdPartition = PARTITION,
    leader_epoch: int | None = None,
) -> None:
    for number, state in enumerate(states):
        event = RemotePartitionDeleteMetadata(
            partition=partition, broker_id=1, event_timestamp_ms=8_000 + number, state=state
        )
        manager.update_partition_delete(event, leader_epoch=leader_epoch)


def found_at(manager: RemoteLogMetadataManager, offset: int, epoch: int = 0) -> str | None:
    found = manager.lookup(PARTITION, epoch, offset)
    return None if found is None else found.segment_id.id
