"""Finds the offsets of a remote segment that belong to the log's history.

A deposed leader may have written and uploaded offsets that the next leader wrote again. The records
of the deposed leader are then not part of the log. Kafka drops the whole segment; tierlog leaves
out only the offsets of the deposed leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata

__all__ = ["extended", "newest_segment", "ranges_archived", "ranges_in_lineage"]


def extended(local: LeaderEpochs, known: LeaderEpochs) -> LeaderEpochs:
    """Return ``local``, extended below its first entry by the ``known`` epochs of the same log.
    From the first entry of ``local`` on, only ``local`` is used, because the log has truncated any
    other epoch there.
    """
    if not local.entries:
        return local
    first = local.entries[0]
    before = [entry for entry in known if entry.start_offset < first.start_offset]
    while before and before[-1].epoch > first.epoch:
        before.pop()
    if before and before[-1].epoch == first.epoch:
        return LeaderEpochs((*before, *local.entries[1:]))
    return LeaderEpochs((*before, *local.entries))


def newest_segment(segments: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogSegmentMetadata:
    """Return the last segment of the latest leader. The leader epochs of this segment are the
    history of the log, as far as the segments show the history. Raises ValueError if there are no
    segments."""
    return max(segments, key=lambda one: (one.leader_epochs[-1][0], one.end_offset))


def ranges_in_lineage(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs
) -> list[tuple[int, int]]:
    """Return the inclusive offset ranges of `segment` that were written in the epochs of
    `lineage`."""
    ranges: list[tuple[int, int]] = []
    for epoch, start, end in segment.served_epoch_ranges():
        known = lineage.offsets_of(epoch, end + 1)
        if known is None:
            continue
        # If the lineage begins inside the segment, the earlier records of the segment were deleted.
        first, last = max(start, known[0]), min(end, known[1] - 1)
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        elif first <= last:
            ranges.append((first, last))
    return ranges


def ranges_archived(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs
) -> list[tuple[int, int]]:
    """Return the inclusive offset ranges of `segment` that need no other copy.

    The result has `ranges_in_lineage`, and the offsets of the segment before the beginning of the
    lineage. Offsets before the lineage count because two logs that have the same offset in the same
    leader epoch also have the same records before this offset. A broker that deletes records
    advances the start of its lineage at once, and the log start offset later.
    """
    ranges = ranges_in_lineage(segment, lineage)
    if ranges and ranges[0][0] == lineage.entries[0].start_offset:
        ranges[0] = (segment.start_offset, ranges[0][1])
    return ranges
