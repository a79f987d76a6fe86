"""Decides when a log is compacted, and which segments become one segment. Pure functions.

The rules are those of Kafka's ``LogCleanerManager`` and ``Cleaner.groupSegmentsBySize``. The clean
section of a log has been compacted. The dirty section starts at the first dirty offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tierlog.config.topic import TopicConfig

__all__ = ["LogFacts", "RolledFacts", "Round", "group_segments", "plan_round"]

_MAX_INT32 = 2**31 - 1


class RolledFacts(NamedTuple):
    """A rolled segment. ``first_ms`` is the largest timestamp of its first batch, and ``newest_ms``
    the largest timestamp of all its batches."""

    base_offset: int
    next_base_offset: int
    size_bytes: int
    newest_ms: int
    first_ms: int = -1
    index_bytes: int = 0
    time_index_bytes: int = 0


class LogFacts(NamedTuple):
    """Offsets of a log. ``cleaned_offset`` is the end offset of the last round; None if the log was
    never compacted."""

    cleaned_offset: int | None
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int


class Round(NamedTuple):
    """A round that is due. The round compacts the offsets from ``first_dirty_offset`` up to, but
    not including, ``end_offset``. ``dirty_ratio`` is their share of the rolled bytes."""

    first_dirty_offset: int
    end_offset: int
    dirty_ratio: float


def plan_round(
    log: LogFacts, segments: Sequence[RolledFacts], topic: TopicConfig, now_ms: int
) -> Round | None:
    """Return the next round of compaction, or None if no round is due.

    A round leaves out the active segment, open transactions, and records younger than
    min.compaction.lag.ms.
    """
    first_dirty = _first_dirty_offset(log)
    dirty = [one for one in segments if one.next_base_offset > first_dirty]
    limit = _first_uncleanable_offset(log, dirty, topic, now_ms)
    cleanable = [one for one in dirty if one.next_base_offset <= limit]
    cleanable_bytes = sum(one.size_bytes for one in cleanable)
    if not cleanable_bytes:
        return None
    clean_bytes = sum(one.size_bytes for one in segments if one.base_offset < first_dirty)
    ratio = cleanable_bytes / (clean_bytes + cleanable_bytes)
    if ratio <= topic.min_cleanable_dirty_ratio and not _is_overdue(dirty, topic, now_ms):
        return None
    return Round(first_dirty, cleanable[-1].next_base_offset, ratio)


def _first_dirty_offset(log: LogFacts) -> int:
    """Return the end offset of the last round. If the log does not have this offset, return the log
    start offset."""
    start, end = log.log_start_offset, log.log_end_offset
    known = start if log.cleaned_offset is None else log.cleaned_offset
    return known if start <= known <= end else start


def _first_uncleanable_offset(
    log: LogFacts, dirty: Sequence[RolledFacts], topic: TopicConfig, now_ms: int
) -> int:
    lag_ms = topic.min_compaction_lag_ms
    young = (one.base_offset for one in dirty if lag_ms and one.newest_ms > now_ms - lag_ms)
    return min(log.last_stable_offset, next(young, log.last_stable_offset))


def _is_overdue(dirty: Sequence[RolledFacts], topic: TopicConfig, now_ms: int) -> bool:
    """Return whether a record has not been compacted for max.compaction.lag.ms."""
    oldest_ms = min((one.first_ms for one in dirty if one.first_ms > 0), default=None)
    return oldest_ms is not None and oldest_ms < now_ms - topic.max_compaction_lag_ms


def group_segments(
    segments: Sequence[RolledFacts], topic: TopicConfig
) -> Iterator[Sequence[RolledFacts]]:
    """Yield groups of segments. Each group becomes one segment, which is at most as large as a
    rolled segment."""
    group: list[RolledFacts] = []
    size_bytes = index_bytes = time_index_bytes = 0
    for one in segments:
        size_bytes += one.size_bytes
        index_bytes += one.index_bytes
        time_index_bytes += one.time_index_bytes
        is_full = (
            size_bytes > topic.rolls_at_bytes
            or max(index_bytes, time_index_bytes) > topic.segment_index_bytes
        )
        if group and (is_full or _is_far(one, group[0])):
            yield group
            group = []
            size_bytes, index_bytes = one.size_bytes, one.index_bytes
            time_index_bytes = one.time_index_bytes
        group.append(one)
    if group:
        yield group


def _is_far(segment: RolledFacts, first: RolledFacts) -> bool:
    """Return whether an index of the segment `first` cannot hold the last offset of `segment`. An
    index has 31 bits for the distance of an offset from its base offset."""
    distance = segment.next_base_offset - 1 - first.base_offset
    return segment.size_bytes > 0 and distance > _MAX_INT32
