"""What the remote index files of a partition say to readers."""

from __future__ import annotations

from collections.abc import Callable

from tierlog.errors import ClosedError, CorruptDataError
from tierlog.remote.layout import log_key
from tierlog.remote.metadata import RemoteLogSegmentMetadata
from tierlog.remote.remote_index_lookups import RemoteIndexLookups
from tierlog.types import TopicIdPartition

__all__ = ["IndexFilesOf", "has_offset", "offset_by_time"]

# The files of a partition, None where there are none.
IndexFilesOf = Callable[[TopicIdPartition], "RemoteIndexLookups | None"]


def offset_by_time(
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
    key = log_key(segment)
    # Entries of the segment on both sides: the files lack nothing between them.
    if start is None or found is None or not (key == str(start.log_key) == str(found.log_key)):
        return None
    return max(first_offset, found.first_offset)


def has_offset(
    index_files: IndexFilesOf | None, segment: RemoteLogSegmentMetadata, offset: int
) -> bool:
    """Return whether the files lead to `offset` in that segment."""
    files = None if index_files is None else index_files(segment.topic_id_partition)
    try:
        entry = None if files is None else files.lookup_offset(offset)
    except (CorruptDataError, OSError, ClosedError):
        return False
    return entry is not None and str(entry.log_key) == log_key(segment)
