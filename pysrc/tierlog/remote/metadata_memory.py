"""The metadata manager that keeps everything in memory; the durable one builds on it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from tierlog.errors import ClosedError, MetadataNotReadyError
from tierlog.remote.metadata import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tierlog.remote.partition_metadata import PartitionMetadata
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["InMemoryRemoteLogMetadataManager"]


class InMemoryRemoteLogMetadataManager:
    """A `RemoteLogMetadataManager` without a disk.

    With ``ready=False`` it has to be filled by `load` first and refuses every question until
    `mark_ready`. A subclass makes changes durable in `_persist`.
    """

    def __init__(self, *, ready: bool = True) -> None:
        self._lock = threading.RLock()
        self._partitions: dict[TopicIdPartition, PartitionMetadata] = {}
        self._ready = ready
        self._closed = False

    # -- filling

    def load(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Take `segments` as they are, in whatever state; nothing is checked or persisted."""
        with self._lock:
            for metadata in segments:
                self._partition(metadata.topic_id_partition).put(metadata)

    def mark_ready(self) -> None:
        """Everything is loaded: from now on what is not here does not exist."""
        with self._lock:
            self._ready = True

    def _persist(self, after: RemoteLogSegmentMetadata) -> None:
        """Make the new state of a segment durable; what raises here has not happened."""

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        with self._lock:
            self._check_usable(metadata.topic_id_partition)
            partition = self._partition(metadata.topic_id_partition)
            after = partition.after_add(metadata)
            if partition.get(metadata.segment_id) is None:
                self._persist(after)
                partition.put(after)

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        with self._lock:
            self._check_usable(update.segment_id.topic_id_partition)
            partition = self._partition(update.segment_id.topic_id_partition)
            after = partition.after_update(update)
            if after is not None:
                self._persist(after)
                partition.put(after)

    # -- questions

    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._known(segment_id.topic_id_partition).get(segment_id)

    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._known(partition).lookup(epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        with self._lock:
            return self._known(partition).next_segment_with_txn_index(epoch, offset)

    def segments_by_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, start_offset: int = 0
    ) -> Iterator[RemoteLogSegmentMetadata]:
        with self._lock:
            return self._known(partition).segments_by_timestamp(timestamp_ms, start_offset)

    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        with self._lock:
            return self._known(partition).list(epoch)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        with self._lock:
            return self._known(partition).highest_offset_for_epoch(epoch)

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        with self._lock:
            return self._known(partition).remote_log_size(epoch)

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        with self._lock:
            self._check_usable(None)
            return tuple(sorted(name for name, known in self._partitions.items() if len(known)))

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self._ready and not self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True

    # -- inside

    def _check_usable(self, partition: TopicIdPartition | None) -> None:
        if self._closed:
            raise ClosedError("the metadata manager is closed")
        if not self._ready:
            raise MetadataNotReadyError(
                f"metadata of {partition or 'all partitions'} is not loaded yet; try again"
            )

    def _known(self, partition: TopicIdPartition) -> PartitionMetadata:
        """The partition to ask; a name nobody added is one without segments."""
        self._check_usable(partition)
        known = self._partitions.get(partition)
        return PartitionMetadata(partition) if known is None else known

    def _partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = PartitionMetadata(partition)
        return known
