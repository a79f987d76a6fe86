"""Several stores behind one storage manager: the topic of a segment tells its store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from tierlog._core import ReadFile
from tierlog.errors import RemoteStorageError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.remote.store.object_store import Draft, storage_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RoutedStorage"]

_ID_LENGTH = 22


class RoutedStorage(RemoteStorageManager):
    """Reads each segment from the storage manager that ``find`` returns for its topic id."""

    def __init__(
        self, find: Callable[[str], RemoteStorageManager | None], *, is_local: bool
    ) -> None:
        self._find = find
        self._is_local = is_local

    @property
    def url(self) -> str:
        """See `RemoteStorageManager`."""
        return "the stores of the archive"

    @property
    def is_local(self) -> bool:
        """See `RemoteStorageManager`."""
        return self._is_local

    def open_file(self, key: str) -> ReadFile | None:
        """See `RemoteStorageManager`."""
        return self._of(key.partition("/")[0][-_ID_LENGTH:]).open_file(key)

    def copy_log_segment_data(
        self,
        metadata: RemoteLogSegmentMetadata,
        log: int | str | os.PathLike[str] | Draft,
        indexes: Buffer,
        *,
        before_chunk: Callable[[int], None] | None = None,
    ) -> NoReturn:
        """Refuse: an archive is only read."""
        raise _read_only(metadata)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> NoReturn:
        """Refuse: an archive is only read."""
        raise _read_only(metadata)

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Buffer:
        """See `RemoteStorageManager`."""
        storage = self._of(metadata.topic_id_partition.topic_id)
        return storage.fetch_log_segment(metadata, start_position, end_position)

    def fetch_index_object(self, metadata: RemoteLogSegmentMetadata) -> Buffer:
        """See `RemoteStorageManager`."""
        return self._of(metadata.topic_id_partition.topic_id).fetch_index_object(metadata)

    def resolve_data_id(self, data_id: bytes, metadata: RemoteLogSegmentMetadata) -> int:
        """See `RemoteStorageManager`."""
        storage = self._of(metadata.topic_id_partition.topic_id)
        return storage.resolve_data_id(data_id, metadata)

    def _of(self, topic_id: str) -> RemoteStorageManager:
        found = self._find(topic_id)
        if found is None:
            raise storage_error(f"topic {topic_id} is in no store any more")
        return found


def _read_only(metadata: RemoteLogSegmentMetadata) -> RemoteStorageError:
    return storage_error(f"{metadata.segment_id}: an archive is only read", retriable=False)
