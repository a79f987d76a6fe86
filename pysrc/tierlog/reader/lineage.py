"""Which offsets of a remote segment belong to a log's history.

A leader that was deposed may have gone on writing where its successor wrote too; what it uploaded
from there on is not part of the log (kafka-behaviour, "inside the lineage", is Kafka's test for a
whole segment; a segment is cut here, not dropped).
"""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata

__all__ = ["newest_segment", "ranges_archived", "ranges_in_lineage"]


def newest_segment(segments: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogSegmentMetadata:
    """The one whose leader epochs are the log's history as far as these segments tell: of the
    latest leader the last one. ValueError without any."""
    return max(segments, key=lambda one: (one.leader_epochs[-1][0], one.end_offset))


def ranges_in_lineage(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs
) -> list[tuple[int, int]]:
    """The inclusive offset ranges of `segment` written in the epochs that `lineage` names."""
    ranges: list[tuple[int, int]] = []
    for epoch, start, end in segment.served_epoch_ranges():
        known = lineage.offsets_of(epoch, end + 1)
        if known is None:
            continue
        # A lineage that begins inside the segment: what is before it was deleted.
        first, last = max(start, known[0]), min(end, known[1] - 1)
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        elif first <= last:
            ranges.append((first, last))
    return ranges


def ranges_archived(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs
) -> list[tuple[int, int]]:
    """The inclusive offset ranges of `segment` that need no other copy.

    As `ranges_in_lineage`, and the offsets of the segment before the lineage begins: two logs that
    have the same offset in the same leader epoch have the same records before it. A broker moves
    the beginning of its lineage at once when records are deleted, and the log start offset later.
    """
    ranges = ranges_in_lineage(segment, lineage)
    if ranges and ranges[0][0] == lineage.entries[0].start_offset:
        ranges[0] = (segment.start_offset, ranges[0][1])
    return ranges
