"""Checks that opened files belong to the log that was listed.

A broker deletes a topic by renaming its directory, and may create another topic of that name at
once. Segments of both topics have the same paths. So, after a file is opened, the topic id of its
directory and its device, inode and size are compared with the listing. If they are equal, the files
that were opened before the comparison belong to the listed log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from tierlog.errors import CorruptDataError, TierlogError
from tierlog.log.checkpoint import PARTITION_METADATA, read_partition_metadata
from tierlog.log.files import FileIdentity, SegmentHandle, printable
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment_files import SegmentFiles

__all__ = ["VanishedError", "open_listed_segment", "require_same_topic"]


class VanishedError(TierlogError):
    """A file of the log was deleted or replaced after the listing. The caller lists the log
    again."""

    retriable = True


def require_same_topic(log: PartitionLog) -> None:
    """Raise VanishedError when the directory belongs to another topic than in the listing.

    Otherwise files that were opened before this call belong to the listed topic. A log that had no
    topic id in the listing is not checked.
    """
    if log.topic_id is None:
        return
    path = os.path.join(log.directory, PARTITION_METADATA)
    try:
        found = _topic_id(path, FileIdentity.of(os.stat(path, follow_symlinks=False)))
    except FileNotFoundError as error:
        raise VanishedError(f"{printable(path)}: gone since the log was listed") from error
    except CorruptDataError as error:
        raise VanishedError(f"damaged since the log was listed: {error}") from error
    if found != log.topic_id:
        raise VanishedError(f"{printable(path)}: expected topic {log.topic_id}, found {found}")


@lru_cache(maxsize=4096)
def _topic_id(path: str, _identity: FileIdentity) -> str:
    """Return the topic id in a partition.metadata. The file is read again when the path has another
    file."""
    return read_partition_metadata(path)


@contextmanager
def open_listed_segment(segment: SegmentFiles) -> Iterator[SegmentHandle]:
    """Open the `.log` file that was listed.

    Raises FileNotFoundError when it is gone, and VanishedError when the path has another file or
    the file has another size. The caller compares the topic with `require_same_topic`.
    """
    with segment.open() as handle:
        listed, found = segment.identity, handle.identity
        if listed is not None and listed[:3] != found[:3]:
            raise VanishedError(
                f"{printable(segment.log_path)}: expected the file that was listed (device "
                f"{listed.device}, inode {listed.inode}, {listed.size_bytes} bytes), found device "
                f"{found.device}, inode {found.inode}, {found.size_bytes} bytes"
            )
        yield handle
