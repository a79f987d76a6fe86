"""The metadata manager that keeps everything in memory; the durable one builds on it."""

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
    """A `RemoteLogMetadataManager` without a disk.

    With ``ready=False`` it has to be filled by `load` first and refuses every question until
    `mark_ready`. A subclass makes changes durable in `_persist`.
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
        """Take `segments` as they are, in whatever state; nothing is checked or persisted."""
        with self._lock:
            for metadata in segments:
                self._partition(metadata.topic_id_partition).put(metadata)
            self.change_count.changed()

    def mark_ready(self) -> None:
        """Everything is loaded: from now on what is not here does not exist."""
        with self._lock:
            self._ready = True
            self.change_count.changed()

    def _persist(self, partition: TopicIdPartition, change: PartitionChange) -> None:
        """Make `change` durable; what raises here has not happened."""

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        with self._lock:
            known = self._loaded(metadata.topic_id_partition)
            self._commit(known, known.change_of_add(metadata, leader_epoch))

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        with self._lock:
            known = self._loaded(update.segment_id.topic_id_partition)
            self._commit(known, known.change_of_update(update, leader_epoch))

    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        with self._lock:
            known = self._known(partition)
            self._commit(known, known.change_of_claim(leader_epoch))

    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """See `RemoteLogMetadataManager`. The leader epoch outlives the partition, so that an old
        leader cannot bring it back."""
        with self._lock:
            known = self._loaded(metadata.partition)
            self._commit(known, known.change_of_delete(metadata, leader_epoch))

    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int) -> None:
        """The log starts at `offset` from now on; durable when this returns, and never back."""
        with self._lock:
            known = self._known(partition)
            self._commit(known, known.change_of_log_start(offset))

    def _commit(self, known: PartitionMetadata, change: PartitionChange | None) -> None:
        if change is not None:
            self._persist(known.partition, change)
            self._partitions.setdefault(known.partition, known).apply(change)
            self.change_count.changed()

    # -- questions

    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._loaded(segment_id.topic_id_partition).get(segment_id)

    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._loaded(partition).lookup(epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._loaded(partition).next_segment_with_txn_index(epoch, offset)

    def segments_by_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, start_offset: int = 0
    ) -> Iterator[RemoteLogSegmentMetadata]:
        with self._lock:
            return self._loaded(partition).segments_by_timestamp(timestamp_ms, start_offset)

    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._loaded(partition).list(epoch)

    def outline(self, partition: TopicIdPartition) -> ArchiveOutline:
        with self._lock:
            return self._loaded(partition).outline()

    def segments_from(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._loaded(partition).segments_from(offset)

    def segments_by_offset(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        with self._lock:
            first = self._loaded(partition).finished_after(None)
        return self._finished_from(partition, first)

    def overlapping_segments(
        self, partition: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._loaded(partition).overlapping_segments()

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        with self._lock:
            return self._known(partition).highest_offset_for_epoch(epoch)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        with self._lock:
            return self._known(partition).remote_log_size(epoch)

    def leader_epoch(self, partition: TopicIdPartition) -> int:
        with self._lock:
            return self._known(partition).leader_epoch

    def partition_delete_state(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteState | None:
        with self._lock:
            return self._known(partition).delete_state

    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """What `advance_log_start_offset` was last told, None before the first time."""
        with self._lock:
            return self._known(partition).log_start_offset

    def changes(self, partition: TopicIdPartition) -> int:
        # Every read asks this. Without the lock it is the number before a change or after it.
        return self._known(partition).change_number

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        with self._lock:
            self._check_usable(None)
            return tuple(
                sorted(
                    name
                    for name, known in self._partitions.items()
                    if known.has_segments() or known.delete_state is not None
                )
            )

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self._ready and not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.change_count.changed()

    # -- inside

    def _check_usable(self, partition: TopicIdPartition | None) -> None:
        if self._closed:
            raise ClosedError("the metadata manager is closed")
        if not self._ready:
            raise MetadataNotReadyError(
                f"metadata of {partition or 'all partitions'} is not loaded yet; try again"
            )

    def _finished_from(
        self, partition: TopicIdPartition, segment: RemoteLogSegmentMetadata | None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        while segment is not None:
            yield segment
            with self._lock:
                segment = self._loaded(partition).finished_after(segment)

    def _known(self, partition: TopicIdPartition) -> PartitionMetadata:
        """The partition to ask; a name nobody added is one without segments."""
        self._check_usable(partition)
        known = self._partitions.get(partition)
        return PartitionMetadata(partition, self._change_numbers) if known is None else known

    def _loaded(self, partition: TopicIdPartition) -> PartitionMetadata:
        """As `_known`, and its segments may be asked for."""
        return self._known(partition)

    def _partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = PartitionMetadata(partition, self._change_numbers)
        return known
