"""Decides which remote segments have expired without reading all of them (KIP-852).

The size comes from `remote_log_size`. Segments are read in order, from the oldest up to the first
segment that no rule deletes. For these segments, `decide_retention` returns the same decisions as
if it were given all segments. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tierlog.reader.lineage import ranges_in_lineage
from tierlog.remote.metadata.manager import ArchiveOutline, RemoteLogSegmentMetadata
from tierlog.tiering.retention import (
    LogFacts,
    RetentionFacts,
    local_only_bytes,
    size_in_lineage,
    written_ms,
)

__all__ = ["OutlineFacts", "expires_nothing", "facts_of_front", "may_be_cut", "take_front"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineFacts(LogFacts):
    """Facts that can be read without reading all segments.

    ``remote_bytes``: the sum of `remote_log_size` over the epochs of the lineage.
    ``highest_offsets``: by epoch, for epochs in both the outline and the lineage.
    ``unreferenced``: the segments whose last epoch is older than the lineage.
    """

    outline: ArchiveOutline
    remote_bytes: int
    highest_offsets: Mapping[int, int]
    unreferenced: Sequence[RemoteLogSegmentMetadata]


def expires_nothing(facts: OutlineFacts) -> bool:
    """Return True when no segment has to be deleted or truncated. Return False also when the
    segments must be read to decide this."""
    outline, first = facts.outline, facts.outline.first
    if any(one.segment_id.id not in facts.being_copied for one in outline.unfinished):
        return False
    if outline.epochs and outline.epochs[-1] > facts.leader_epoch:
        return False
    if facts.unreferenced or may_be_cut(facts):
        return False
    if first is None:
        return True
    ranges = ranges_in_lineage(first, facts.lineage)
    if not ranges or ranges[-1][1] < facts.log_start_offset:
        return False
    if facts.retention_ms is not None and (
        not facts.clock_trusted or written_ms(first) < facts.now_ms - facts.retention_ms
    ):
        return False
    if facts.retention_bytes is None:
        return True
    local_bytes = local_only_bytes(facts)
    if local_bytes is None:
        return False
    # Overlapping segments count twice, so the sum is never too low.
    size_bytes = facts.remote_bytes + local_bytes
    return size_bytes - size_in_lineage(first, ranges) < facts.retention_bytes


def may_be_cut(facts: OutlineFacts) -> bool:
    """Return whether a segment may have offsets above the end of one of its epochs."""
    entries = facts.lineage.entries
    if not entries:
        return True
    end_offsets = {one.epoch: after.start_offset for one, after in pairwise(entries)}
    for epoch in facts.outline.epochs:
        if entries[0].epoch <= epoch < entries[-1].epoch:
            end_offset = end_offsets.get(epoch)
            if end_offset is None or end_offset <= facts.highest_offsets.get(epoch, -1):
                return True
    return False


def take_front(
    facts: OutlineFacts, segments: Iterable[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    """Return the finished segments that may have expired, and the first segment that is kept. All
    later segments that do not overlap these are kept, too.

    `segments` are sorted by start offset. No segment after the first that is kept is read. The
    caller has checked that no segment must be truncated (`may_be_cut`).
    """
    front: list[RemoteLogSegmentMetadata] = []
    epochs = {entry.epoch for entry in facts.lineage}
    left_bytes = facts.remote_bytes + (local_only_bytes(facts) or 0)
    by_time = facts.retention_ms is not None and facts.clock_trusted
    by_size = facts.retention_bytes is not None and local_only_bytes(facts) is not None
    cutoff_ms, limit_bytes = facts.now_ms - (facts.retention_ms or 0), facts.retention_bytes or 0
    # Up to this offset, a segment may be served only in part, or not in the order of the start
    # offsets. The order in which these segments expire is known only when all have been read.
    unsure_to = expired_to = facts.log_start_offset - 1
    for segment in segments:
        front.append(segment)
        left_bytes -= _counted_bytes(segment, epochs)
        ranges = ranges_in_lineage(segment, facts.lineage)
        whole = ranges == [(segment.start_offset, segment.end_offset)]
        if segment.start_offset <= unsure_to or not whole:
            unsure_to = max(unsure_to, ranges[-1][1] if ranges else -1)
            continue
        if by_time and segment.end_offset > expired_to:
            by_time, expired_to = written_ms(segment) < cutoff_ms, segment.end_offset
        by_size = by_size and left_bytes >= limit_bytes
        if not (by_time or by_size) or segment.start_offset >= facts.high_watermark:
            break
    return front


def facts_of_front(
    facts: OutlineFacts,
    front: Sequence[RemoteLogSegmentMetadata],
    overlapping: Sequence[RemoteLogSegmentMetadata],
) -> RetentionFacts:
    """Return the facts for `decide_retention`. Their segments are the result of `take_front`, the
    finished segments that overlap it, and segments that are deleted whatever their offsets."""
    finished = {one.segment_id.id: one for one in (*overlapping, *front)}
    others = (*facts.outline.unfinished, *facts.unreferenced)
    known = finished | {one.segment_id.id: one for one in others}
    epochs = {entry.epoch for entry in facts.lineage}
    counted_bytes = sum(_counted_bytes(one, epochs) for one in finished.values())
    return RetentionFacts.of(
        facts,
        segments=sorted(
            known.values(), key=lambda one: (one.start_offset, one.end_offset, one.segment_id.id)
        ),
        rest_bytes=facts.remote_bytes - counted_bytes,
        latest_epoch=facts.outline.epochs[-1] if facts.outline.epochs else -1,
    )


def _counted_bytes(segment: RemoteLogSegmentMetadata, epochs: set[int]) -> int:
    """Return the segment's share of the sum of `remote_log_size` over `epochs`."""
    return sum(
        size_bytes for epoch, size_bytes in segment.served_size_per_epoch() if epoch in epochs
    )
