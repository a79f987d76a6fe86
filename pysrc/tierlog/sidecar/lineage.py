"""Completes the leader epochs of a log whose oldest segments the broker has deleted.

A broker without tiering cuts its leader-epoch-checkpoint at its own log start offset. It deletes
earlier epochs, and the first remaining epoch seems to start at this offset. The tiered segments
still have the earlier epochs. Without these epochs, the older part of the archive would belong to
no lineage. No reader could read it, and clean-up would treat it as a copy of a deposed leader.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState

__all__ = ["STORED", "ambiguous", "from_remote_segments"]

# Segments whose records may be in the store. Even an unfinished copy has only committed records.
STORED = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)


def from_remote_segments(
    local: LeaderEpochs, segments: Iterable[RemoteLogSegmentMetadata]
) -> LeaderEpochs:
    """Return ``local``, extended below its first entry by remote segments.

    The extension goes backwards from the first entry. Among the segments that reach the present
    start, the function takes the segment with the latest epoch that is not later than the epoch of
    the next entry. If no segment reaches the start, it takes the nearest segment below.
    """
    if not local.entries:
        return local
    below = sorted(
        (
            (end, epoch, start)
            for segment in segments
            if segment.state in STORED
            for epoch, start, end in _served_ranges(segment)
        ),
        reverse=True,
    )
    epoch, cursor = local.entries[0]
    history = list(local.entries)
    reaching: list[tuple[int, int]] = []
    row = 0
    while True:
        while row < len(below) and (below[row][0] >= cursor - 1 or not reaching):
            _, of_epoch, start = below[row]
            row += 1
            if start < cursor and of_epoch <= epoch:
                heapq.heappush(reaching, (-of_epoch, start))
        if not reaching:
            return LeaderEpochs(tuple(history))
        negative, start = heapq.heappop(reaching)
        if start >= cursor or -negative > epoch:
            continue
        if -negative == epoch:
            history[0] = EpochEntry(epoch, start)
        else:
            history.insert(0, EpochEntry(-negative, start))
        epoch, cursor = -negative, start


def ambiguous(segments: Iterable[RemoteLogSegmentMetadata]) -> bool:
    """Return whether segments of two epochs have the same offset. Only the leader epochs that were
    uploaded with a segment then tell which epoch is right."""
    ranges = sorted(
        (start, end, epoch)
        for segment in segments
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        for epoch, start, end in _served_ranges(segment)
    )
    reach, of_epoch = -1, -1
    for start, end, epoch in ranges:
        if start <= reach and epoch != of_epoch:
            return True
        if end > reach:
            reach, of_epoch = end, epoch
    return False


def _served_ranges(segment: RemoteLogSegmentMetadata) -> Iterable[tuple[int, int, int]]:
    """Return (epoch, first offset, last offset) of the segment's readable part."""
    last = segment.served_end_offset
    for epoch, start, end in segment.epoch_ranges():
        if start <= last:
            yield epoch, start, min(end, last)
