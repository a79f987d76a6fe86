"""Finds the truncation offset of remote segments after an unclean election: a pure function.

The new leader lacks records that the previous leader had tiered, and writes other records at the
same offsets. KIP-405 proposes to record the truncation offset in the metadata of a segment, and to
serve the segment only up to this offset. Kafka itself uses the lineage of the replica that reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState

__all__ = ["truncation_offset", "truncations"]


def truncations(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: LeaderEpochs
) -> list[tuple[RemoteLogSegmentMetadata, int]]:
    """Return the finished segments to truncate, with their truncation offsets.

    A segment that already ends at or below its truncation offset is left out.
    """
    found = []
    for segment in segments:
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            continue
        cut = truncation_offset(segment, lineage)
        if cut is not None and cut <= segment.served_end_offset:
            found.append((segment, cut))
    return found


def truncation_offset(segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs) -> int | None:
    """Return the first offset of `segment` that is not part of `lineage`, or None.

    Epochs before the first epoch of the lineage count as part of it, because their records were
    deleted. Epochs after its last epoch do, too, because another leader may know them.
    """
    entries = lineage.entries
    if not entries:
        return None
    earliest, latest = entries[0].epoch, entries[-1].epoch
    if segment.leader_epochs[0][0] >= latest:
        return None
    for epoch, start, end in segment.epoch_ranges():
        if epoch < earliest:
            continue
        if epoch >= latest:
            return None
        after = lineage.end_offset(epoch, end + 1)
        if after is None:
            return start
        if after <= end:
            return max(start, after)
    return None
