"""The metadata of an archive's segments: partition by partition, loaded when it is first used."""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.errors import MetadataNotReadyError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.partition import PartitionMetadata
from tierlog.types import TopicIdPartition

__all__ = ["ArchiveMetadata"]


class ArchiveMetadata(InMemoryRemoteLogMetadataManager):
    """A metadata manager of loaded partitions; the others are not ready, which is not empty."""

    def replace(
        self, partition: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]
    ) -> None:
        """Show these segments of `partition` from now on, and no others."""
        loaded = PartitionMetadata(partition, self._change_numbers)
        # An empty partition has changed, too.
        loaded.change_number = next(self._change_numbers)
        for segment in segments:
            loaded.put(segment)
        with self._lock:
            self._partitions[partition] = loaded
            self.change_count.changed()

    def forget(self, partition: TopicIdPartition) -> None:
        """Free what is known of `partition`."""
        with self._lock:
            self._partitions.pop(partition, None)
            self.change_count.changed()

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """See `RemoteLogMetadataManager`."""
        return partition in self._partitions and super().is_ready(partition)

    def _find_partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        self._check_usable(partition)
        found = self._partitions.get(partition)
        if found is None:
            raise MetadataNotReadyError(f"{partition}: its segments are not loaded; try again")
        return found
