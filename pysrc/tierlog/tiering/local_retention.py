"""Local retention: which local segments to delete, as a pure function.

A segment is deleted only when all its offsets are durable in the tier or below the log start
offset. While the store does not answer, no segment is deleted: the disk fills, and no record is
lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tierlog.log.eligibility import Coverage
from tierlog.log.segment_files import SegmentFiles
from tierlog.tiering.local_log import LogView

__all__ = ["LocalRetentionFacts", "expired_local_segments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRetentionFacts:
    """The input of `expired_local_segments`.

    ``copied``: the offsets of finished remote segments in the lineage; None is unknown.
    ``largest_timestamp_ms``: by base offset; retention by time keeps segments without an entry.
    ``clock_trusted``: the wall clock has not jumped.
    """

    view: LogView
    copied: Coverage | None
    now_ms: int
    largest_timestamp_ms: Mapping[int, int]
    clock_trusted: bool = True


def expired_local_segments(facts: LocalRetentionFacts) -> tuple[SegmentFiles, ...]:
    """Return the oldest segments that local retention deletes, never the active one.

    The first segment that stays ends the result, so the local log has no holes.
    """
    view = facts.view
    high_watermark = view.log.high_watermark
    if high_watermark is None:
        return ()
    left_bytes = sum(segment.size_bytes for segment in view.log.segments)
    expired = []
    for segment in view.log.segments:
        end = segment.next_base_offset
        if end is None or end > high_watermark:
            break
        if not (_is_below_start(segment, view) or _is_tiered(segment, facts)):
            break
        if not _is_due(segment, left_bytes, facts):
            break
        expired.append(segment)
        left_bytes -= segment.size_bytes
    return tuple(expired)


def _is_below_start(segment: SegmentFiles, view: LogView) -> bool:
    end, start = segment.next_base_offset, view.log_start_offset
    return end is not None and start is not None and end <= start


def _is_tiered(segment: SegmentFiles, facts: LocalRetentionFacts) -> bool:
    """Return whether all offsets of the segment from the log start offset on are tiered."""
    if facts.copied is None or segment.next_base_offset is None:
        return False
    first = max(segment.base_offset, facts.view.log_start_offset or 0)
    return facts.copied.holds(first, segment.next_base_offset - 1)


def _is_due(segment: SegmentFiles, left_bytes: int, facts: LocalRetentionFacts) -> bool:
    if _is_below_start(segment, facts.view):
        return True
    topic = facts.view.topic
    limit_bytes = topic.local_retention_bytes
    # At least the limit stays, as in the tier.
    if limit_bytes is not None and left_bytes - segment.size_bytes >= limit_bytes:
        return True
    if topic.local_retention_ms is None or not facts.clock_trusted:
        return False
    written_ms = facts.largest_timestamp_ms.get(segment.base_offset)
    return written_ms is not None and facts.now_ms - written_ms > topic.local_retention_ms
