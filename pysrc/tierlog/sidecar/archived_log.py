"""Checks whether the log in a directory is the one that was archived under the same id.

A derived topic id depends only on the name, so a topic that was deleted and created again has the
same id. Its offsets and leader epochs start again and look like the ones of the old topic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.storage import RemoteStorageManager

__all__ = ["difference_from_archive"]

# Bytes of the newest archived batch to compare. They include offsets, times and a checksum.
_COMPARED_BYTES = 64


def difference_from_archive(
    log: PartitionLog,
    finished: Sequence[RemoteLogSegmentMetadata],
    storage: RemoteStorageManager,
) -> str:
    """Return why `log` is not the log of the `finished` segments. The text is empty when no
    difference was found.

    Compares the first batch of the newest archived segment, if the log still has this batch. Raises
    OSError when a segment is gone, and RemoteStorageError when the store does not answer.
    """
    if not finished or not log.segments:
        return ""
    newest = max(finished, key=lambda one: one.end_offset)
    if log.segments[0].base_offset > newest.start_offset:
        # Deleted since the listing: nothing is left to compare.
        return ""
    here = _batch_at(log.segment_for(newest.start_offset), newest.start_offset)
    if here is None:
        return f"it ends below offset {newest.start_offset}, which the archive has"
    archived = bytes(storage.fetch_log_segment(newest, 0, _COMPARED_BYTES))
    size_bytes = min(len(here), len(archived))
    if here[:size_bytes] == archived[:size_bytes]:
        return ""
    return f"the batch at offset {newest.start_offset} is another one than in the archive"


def _batch_at(segment: SegmentFiles, offset: int) -> bytes | None:
    """Return the first bytes of the batch that holds `offset`, or of the next one."""
    with segment.open() as handle:
        table = scan_segment(handle, verify_crc=False)
        rows = np.flatnonzero(table.last_offset >= offset)
        if not len(rows):
            return None
        return handle.read_at(int(table.position[rows[0]]), _COMPARED_BYTES)
