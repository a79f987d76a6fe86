"""Retention of a topic that is not tiered: which segments to delete, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tierlog.config.topic import TopicConfig

__all__ = ["SegmentFacts", "expired_segments"]


class SegmentFacts(NamedTuple):
    """A segment: its last one has no next base offset."""

    next_base_offset: int | None
    size_bytes: int
    newest_ms: int


def expired_segments(
    segments: Sequence[SegmentFacts], topic: TopicConfig, log_start_offset: int, now_ms: int
) -> int:
    """Return how many of the oldest segments retention deletes.

    A segment goes when its newest record is older than retention.ms, when at least retention.bytes
    stay without it, or when it lies below the log start offset. The active segment goes by time
    alone, and only with all others. Of a topic that is only compacted, segments go below the log
    start offset alone.
    """
    left_bytes = sum(segment.size_bytes for segment in segments)
    for count, segment in enumerate(segments):
        end = segment.next_base_offset
        age_ms = now_ms - segment.newest_ms
        is_old = 0 <= topic.retention_ms < age_ms and segment.newest_ms >= 0 and topic.is_deleted
        left_without = left_bytes - segment.size_bytes
        is_surplus = 0 <= topic.retention_bytes <= left_without and topic.is_deleted
        is_below = end is not None and end <= log_start_offset
        if end is None and (not is_old or not segment.size_bytes):
            return count
        if not (is_old or is_surplus or is_below):
            return count
        left_bytes -= segment.size_bytes
    return len(segments)
