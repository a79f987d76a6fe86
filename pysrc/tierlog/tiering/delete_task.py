"""Deletes all segments of a partition of a deleted topic (Kafka's delete-partition states).
The deletion continues after failures and restarts until no segment is left."""

from __future__ import annotations

from tierlog.errors import ClosedError, FencedLeaderError, RemoteStorageError
from tierlog.remote.metadata.manager import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.tiering.partition_work import Happened, SegmentEvent, Tier
from tierlog.tiering.task_pool import Again, Task
from tierlog.types import TopicIdPartition

__all__ = ["PARTITION_DELETED", "DeletePartitionTask"]

# Reason of a deletion: the topic was deleted.
PARTITION_DELETED = "partition_deleted"

_MAX_FAILURES = 10


class DeletePartitionTask:
    """Deletes every segment of a partition marked for deletion, then the partition."""

    def __init__(self, partition: TopicIdPartition, tier: Tier, broker_id: int) -> None:
        self._partition = partition
        self._tier = tier
        self._broker_id = broker_id

    def __call__(self, task: Task) -> Again:
        metadata = self._tier.metadata
        if not metadata.is_ready(self._partition):
            return Again.LATER
        try:
            state = metadata.partition_delete_state(self._partition)
            if state is None:
                return Again.NEVER
            if state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
                self._advance(RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
            if not self._delete_segments(task):
                return Again.NEVER
            self._delete_index_files()
            self._advance(RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)
        except (ClosedError, FencedLeaderError):
            return Again.NEVER
        self._tier.metrics.forget_topic(self._partition.topic)
        return Again.NEVER

    def _delete_segments(self, task: Task) -> bool:
        """Delete all segments, then raise the first error of the store. Return False when the task
        was cancelled."""
        failures: list[RemoteStorageError] = []
        for segment in self._tier.metadata.list(self._partition):
            if task.cancelled:
                return False
            self._tier.metrics.delete_started(self._partition.topic)
            try:
                self._tier.copier.delete(segment)
            except RemoteStorageError as error:
                self._tier.metrics.delete_failed(self._partition.topic)
                failures.append(error)
                if len(failures) >= _MAX_FAILURES:
                    break
                continue
            self._tier.metrics.deleted(segment.segment_size_bytes)
            if self._tier.index_cache is not None:
                self._tier.index_cache.remove(segment.segment_id)
            self._tier.listener.on_segment(
                SegmentEvent(
                    partition=self._partition,
                    base_offset=segment.start_offset,
                    size_bytes=segment.segment_size_bytes,
                    happened=Happened.DELETED,
                    reason=PARTITION_DELETED,
                    text=f"topic {self._partition.topic_id} is deleted",
                )
            )
        if failures:
            raise failures[0]
        return True

    def _delete_index_files(self) -> None:
        # An error makes the task run again. This is needed because no other task removes these
        # files once the metadata has forgotten the partition.
        if self._tier.open_index_files is not None:
            self._tier.open_index_files(self._partition).delete()

    def _advance(self, state: RemotePartitionDeleteState) -> None:
        self._tier.metadata.update_partition_delete(
            RemotePartitionDeleteMetadata(
                partition=self._partition,
                broker_id=self._broker_id,
                event_timestamp_ms=self._tier.clock.now_ms(),
                state=state,
            )
        )
