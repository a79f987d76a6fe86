"""The metadata manager that keeps all metadata in memory. The managers in `sqlite` and `topic` are
subclasses of this manager."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator

from tierlog._hot import ChangeCount
from tierlog.errors import ClosedError, MetadataNotReadyError
from tierlog.remote.metadata.manager import (
    ArchiveOutline,
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.partition import PartitionChange, PartitionMetadata
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["InMemoryRemoteLogMetadataManager"]


class InMemoryRemoteLogMetadataManager(RemoteLogMetadataManager):
    """A `RemoteLogMetadataManager` that stores nothing on disk.

    With ``ready=False``, the caller must fill the manager by `load`; the manager refuses every
    query until `mark_ready` is called. A subclass makes changes durable in `_persist`.
    """

    def __init__(self, *, ready: bool = True) -> None:
        self._lock = threading.RLock()
        self._partitions: dict[TopicIdPartition, PartitionMetadata] = {}
        self._change_numbers = itertools.count(1)
        self.change_count = ChangeCount()
        self._ready = ready
        self._closed = False

    # -- filling

    def load(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Add `segments` in their present states, without checking or storing them."""
        with self._lock:
            for metadata in segments:
                self._find_or_add_partition(metadata.topic_id_partition).put(metadata)
            self.change_count.changed()

    def mark_ready(self) -> None:
        """Declare that all segments are loaded, so that a segment that was not loaded does not
        exist."""
        with self._lock:
            self._ready = True
            self.change_count.changed()

    def _persist(self, partition: TopicIdPartition, change: PartitionChange) -> None:
        """Make `change` durable. When this method raises, the change is not applied."""

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        with self._lock:
            state = self._find_loaded_partition(metadata.topic_id_partition)
            self._commit(state, state.change_of_add(metadata, leader_epoch))

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        with self._lock:
            state = self._find_loaded_partition(update.segment_id.topic_id_partition)
            self._commit(state, state.change_of_update(update, leader_epoch))

    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        with self._lock:
            state = self._find_partition(partition)
            self._commit(state, state.change_of_claim(leader_epoch))

    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """See `RemoteLogMetadataManager`. The leader epoch outlives the partition, so an old leader
        cannot recreate the partition."""
        with self._lock:
            state = self._find_loaded_partition(metadata.partition)
            self._commit(state, state.change_of_delete(metadata, leader_epoch))

    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int) -> None:
        """See `RemoteLogMetadataManager`. The change is durable when this method returns."""
        with self._lock:
            state = self._find_partition(partition)
            self._commit(state, state.change_of_log_start(offset))

    def _commit(self, state: PartitionMetadata, change: PartitionChange | None) -> None:
        if change is not None:
            self._persist(state.partition, change)
            self._partitions.setdefault(state.partition, state).apply(change)
            self.change_count.changed()

    # -- queries

    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._find_loaded_partition(segment_id.topic_id_partition).get(segment_id)

    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._find_loaded_partition(partition).lookup(epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._find_loaded_partition(partition).next_segment_with_txn_index(epoch, offset)

    def segments_by_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, start_offset: int = 0
    ) -> Iterator[RemoteLogSegmentMetadata]:
        with self._lock:
            return self._find_loaded_partition(partition).segments_by_timestamp(
                timestamp_ms, start_offset
            )

    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._find_loaded_partition(partition).list(epoch)

    def outline(self, partition: TopicIdPartition) -> ArchiveOutline:
        with self._lock:
            return self._find_loaded_partition(partition).outline()

    def segments_from(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._find_loaded_partition(partition).segments_from(offset)

    def segments_by_offset(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        with self._lock:
            first = self._find_loaded_partition(partition).finished_after(None)
        return self._iterate_finished(partition, first)

    def overlapping_segments(
        self, partition: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._find_loaded_partition(partition).overlapping_segments()

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        with self._lock:
            return self._find_partition(partition).highest_offset_for_epoch(epoch)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        with self._lock:
            return self._find_partition(partition).remote_log_size(epoch)

    def leader_epoch(self, partition: TopicIdPartition) -> int:
        with self._lock:
            return self._find_partition(partition).leader_epoch

    def partition_delete_state(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteState | None:
        with self._lock:
            return self._find_partition(partition).delete_state

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        with self._lock:
            return self._find_partition(partition).log_start_offset

    def changes(self, partition: TopicIdPartition) -> int:
        # Every read calls this method, so it takes no lock. During a change, the method returns
        # either the old or the new number.
        return self._find_partition(partition).change_number

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        with self._lock:
            self._check_usable(None)
            return tuple(
                sorted(
                    name
                    for name, state in self._partitions.items()
                    if state.has_segments() or state.delete_state is not None
                )
            )

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self._ready and not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.change_count.changed()

    # -- internals

    def _check_usable(self, partition: TopicIdPartition | None) -> None:
        if self._closed:
            raise ClosedError("the metadata manager is closed")
        if not self._ready:
            raise MetadataNotReadyError(
                f"metadata of {partition or 'all partitions'} is not loaded yet; try again"
            )

    def _iterate_finished(
        self, partition: TopicIdPartition, segment: RemoteLogSegmentMetadata | None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        while segment is not None:
            yield segment
            with self._lock:
                segment = self._find_loaded_partition(partition).finished_after(segment)

    def _find_partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        """Return the partition's metadata, which is empty for an unknown partition."""
        self._check_usable(partition)
        state = self._partitions.get(partition)
        return PartitionMetadata(partition, self._change_numbers) if state is None else state

    def _find_loaded_partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        """Return the partition's metadata with loaded segments."""
        return self._find_partition(partition)

    def _find_or_add_partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = PartitionMetadata(partition, self._change_numbers)
        return state
