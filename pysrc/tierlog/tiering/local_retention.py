"""Which local segments may go because the tier has them: a pure function (kafka-behaviour, 14).

Local deletion is the last step of tiering: a segment goes only when every offset of it is durable
in the tier, or lies below the log start offset. While the store does not answer, nothing goes: the
disk fills, and no record is lost.
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
    """What is known when local segments are chosen.

    ``copied``: the offsets of finished remote segments in this log's lineage; None is unknown.
    ``largest_timestamp_ms``: by base offset; segments that are missing do not go by their age.
    ``clock_trusted``: the wall clock has not jumped.
    """

    view: LogView
    copied: Coverage | None
    now_ms: int
    largest_timestamp_ms: Mapping[int, int]
    clock_trusted: bool = True


def expired_local_segments(facts: LocalRetentionFacts) -> tuple[SegmentFiles, ...]:
    """The segments, from the front, that may leave the disk. Never the active one.

    Stops at the first that has to stay: the local log has no holes.
    """
    view = facts.view
    high_watermark = view.log.high_watermark
    if high_watermark is None:
        return ()
    left_bytes = sum(segment.size_bytes for segment in view.log.segments)
    going = []
    for segment in view.log.segments:
        end = segment.next_base_offset
        if end is None or end > high_watermark:
            break
        if not (_below_start(segment, view) or _tiered(segment, facts)):
            break
        if not _due(segment, left_bytes, facts):
            break
        going.append(segment)
        left_bytes -= segment.size_bytes
    return tuple(going)


def _below_start(segment: SegmentFiles, view: LogView) -> bool:
    end, start = segment.next_base_offset, view.log_start_offset
    return end is not None and start is not None and end <= start


def _tiered(segment: SegmentFiles, facts: LocalRetentionFacts) -> bool:
    """Whether all of it that counts is in the tier."""
    if facts.copied is None or segment.next_base_offset is None:
        return False
    first = max(segment.base_offset, facts.view.log_start_offset or 0)
    return facts.copied.holds(first, segment.next_base_offset - 1)


def _due(segment: SegmentFiles, left_bytes: int, facts: LocalRetentionFacts) -> bool:
    if _below_start(segment, facts.view):
        return True
    topic = facts.view.topic
    limit_bytes = topic.local_retention_bytes
    # Never less than the limit stays, as in the tier.
    if limit_bytes is not None and left_bytes - segment.size_bytes >= limit_bytes:
        return True
    if topic.local_retention_ms is None or not facts.clock_trusted:
        return False
    written_ms = facts.largest_timestamp_ms.get(segment.base_offset)
    return written_ms is not None and facts.now_ms - written_ms > topic.local_retention_ms
