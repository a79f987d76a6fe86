"""Where remote segments end after a leader with less of the log took over: a pure function.

After an unclean election the new leader lacks records that its predecessor had tiered, and writes
others at their offsets. KIP-405 proposes that the segment's metadata records the truncation point
and that the segment is served only up to there; Kafka itself goes by the lineage of whoever reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState

__all__ = ["truncation_offset", "truncations"]


def truncations(
    segments: Iterable[RemoteLogSegmentMetadata], lineage: LeaderEpochs
) -> list[tuple[RemoteLogSegmentMetadata, int]]:
    """The finished segments that reach beyond the log's history, and the offset where each is cut.

    Those that are cut there, or earlier, already are left out.
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
    """The first offset of `segment` that `lineage` says was written otherwise; None for none.

    Unknown is not cut: epochs from before the lineage begins (their records were deleted, and the
    checkpoint with them), and epochs after it ends (then another leader knows more).
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
