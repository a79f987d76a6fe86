"""What the remote index files of a partition say to readers."""

from __future__ import annotations

from collections.abc import Callable

from tierlog.errors import ClosedError, CorruptDataError
from tierlog.remote.index_files.file import RemoteLogIndexEntry
from tierlog.remote.index_files.lookups import RemoteIndexLookups
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import TopicIdPartition

__all__ = ["IndexFilesOf", "has_offset", "offset_by_time", "position_of"]

# The files of a partition, None where there are none.
IndexFilesOf = Callable[[TopicIdPartition], "RemoteIndexLookups | None"]


def position_of(
    entry: RemoteLogIndexEntry | None,
    segment: RemoteLogSegmentMetadata,
    storage: RemoteStorageManager,
) -> int | None:
    """Return the byte position in `segment` that an entry points at; None for another segment's."""
    if entry is None:
        return None
    try:
        return storage.resolve_data_id(entry.rdi, segment)
    except CorruptDataError:
        return None


def offset_by_time(
    storage: RemoteStorageManager,
    index_files: IndexFilesOf | None,
    segment: RemoteLogSegmentMetadata,
    first_offset: int,
    timestamp_ms: int,
) -> int | None:
    """Return an offset before which, from `first_offset` on, the segment has no record of
    `timestamp_ms` or later; None when the files do not say."""
    files = None if index_files is None else index_files(segment.topic_id_partition)
    if files is None:
        return None
    try:
        start, found = files.lookup_offset(first_offset), files.lookup_timestamp(timestamp_ms)
    except (CorruptDataError, OSError, ClosedError):
        return None
    # Entries of the segment on both sides: the files lack nothing between them.
    if found is None or None in [position_of(one, segment, storage) for one in (start, found)]:
        return None
    return max(first_offset, found.first_offset)


def has_offset(
    storage: RemoteStorageManager,
    index_files: IndexFilesOf | None,
    segment: RemoteLogSegmentMetadata,
    offset: int,
) -> bool:
    """Return whether the files lead to `offset` in that segment."""
    files = None if index_files is None else index_files(segment.topic_id_partition)
    try:
        entry = None if files is None else files.lookup_offset(offset)
    except (CorruptDataError, OSError, ClosedError):
        return False
    return position_of(entry, segment, storage) is not None
