"""Access to single objects under tierlog's keys, for checks and repairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, read_indexes_header, read_sections
from tierlog.remote.segment.layout import CLUSTER_KEY, indexes_key, log_key, partition_prefix
from tierlog.remote.store.object_store import ObjectStore, storage_error
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["StoredObjects", "seems_whole"]

_CHUNK_BYTES = 4 << 20


class StoredObjects:
    """The objects of one store. Calls raise RemoteStorageError when the store does not answer."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list_partition(self, partition: TopicIdPartition) -> dict[str, int]:
        """Return the sizes of all objects of `partition`, by key."""
        prefix = partition_prefix(partition)
        return {info.key: info.size_bytes for info in self._store.list(prefix)}

    def require_marker(self) -> None:
        """Raise RemoteStorageError when the store has no cluster marker: then it is another store,
        and the missing objects may exist."""
        try:
            self._store.head(CLUSTER_KEY)
        except RemoteResourceNotFoundError as error:
            raise storage_error(
                f"{self._store.url}: expected {CLUSTER_KEY}, found none: objects may be missing "
                "because this is not the store that was written to, or it is not mounted"
            ) from error

    def describe(self, key: str) -> SegmentDescription | None:
        """Return the description in an `.indexes` object; None when it is missing or damaged."""
        try:
            header, first = read_indexes_header(self._store, key)
            sections = read_sections(self._store, key, header, first, [IndexKind.METADATA])
            return header.description(sections[IndexKind.METADATA])
        except (CorruptDataError, RemoteResourceNotFoundError):
            return None

    def read(self, key: str, size_bytes: int) -> Iterator[Buffer]:
        """Yield the first `size_bytes` of an object in chunks."""
        for position in range(0, size_bytes, _CHUNK_BYTES):
            expected = min(_CHUNK_BYTES, size_bytes - position)
            data = self._store.get_range(key, position, expected)
            if memoryview(data).nbytes != expected:
                raise storage_error(
                    f"{self._store.url}: {key}: expected {expected} bytes from position "
                    f"{position}, got {memoryview(data).nbytes}"
                )
            yield data

    def replace_indexes(self, metadata: RemoteLogSegmentMetadata, indexes: Buffer) -> None:
        """Store the `.indexes` object of a segment; overwrite an existing one."""
        self._store.put_bytes(indexes_key(metadata), indexes, overwrite=True)

    def delete(self, key: str) -> None:
        """Remove one object; a missing object is no error."""
        self._store.delete(key)


def seems_whole(metadata: RemoteLogSegmentMetadata, listed: Mapping[str, int]) -> bool:
    """Return whether a listing has both objects of the segment, the `.log` with its size."""
    log_bytes = listed.get(log_key(metadata))
    return log_bytes == metadata.segment_size_bytes and indexes_key(metadata) in listed
