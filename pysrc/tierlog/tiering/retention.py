"""Decides which remote segments have expired: a pure function over plain values.

The model is Kafka's ``RLMExpirationTask`` (time, size, log start offset, epochs below the lineage),
without its known bugs:

* the size counts only finished segments of the lineage, and each byte once. After a change of
  leaders, segments may overlap. Then only the largest set of segments that do not overlap counts,
  so the sum is never too high, and retention never leaves less than its limit;
* while the highest remote offset is unknown, the size is unknown and no segment expires by size;
* unfinished copies are removed; they are not counted, and no deletion waits for them;
* a leader that finds a segment of a later epoch has been deposed and deletes nothing.

The new log start offset must be durable before the first object is removed, so that no reader finds
a hole above the log start offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, Self

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState

__all__ = [
    "DeleteReason",
    "Deletion",
    "HeldBack",
    "LocalSegment",
    "LogFacts",
    "RetentionFacts",
    "RetentionPlan",
    "decide_retention",
    "local_only_bytes",
    "size_in_lineage",
    "written_ms",
]


class DeleteReason(StrEnum):
    """Why a remote segment is deleted."""

    RETENTION_TIME = "retention_time"
    RETENTION_SIZE = "retention_size"
    LOG_START_OFFSET = "log_start_offset"
    UNREFERENCED_EPOCHS = "unreferenced_epochs"
    INTERRUPTED_COPY = "interrupted_copy"
    INTERRUPTED_DELETE = "interrupted_delete"


class HeldBack(StrEnum):
    """Why a rule was not applied."""

    DEPOSED = "a segment of a later leader epoch is known: another broker leads"
    SIZE_UNKNOWN = "the highest remote offset or the local log is unknown"
    CLOCK_SUSPECT = "the wall clock jumped"


class LocalSegment(NamedTuple):
    """A segment on the leader's disk, the active one included."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The facts about the log of one partition from which a leader decides. None means unknown or
    unlimited.

    ``highest_remote_offset``: -1 when no segment is remote. ``being_copied``: ids of this process's
    active copies. ``clock_trusted``: the wall clock has not jumped against the monotonic clock.
    """

    lineage: LeaderEpochs
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    highest_remote_offset: int | None
    local_segments: Sequence[LocalSegment] | None
    now_ms: int
    retention_ms: int | None
    retention_bytes: int | None
    being_copied: frozenset[str] = frozenset()
    clock_trusted: bool = True

    @classmethod
    def of(cls, facts: LogFacts, **more: Any) -> Self:
        """Return the facts about the log with `more` about its segments."""
        return cls(**{one.name: getattr(facts, one.name) for one in fields(LogFacts)}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts(LogFacts):
    """The facts about one partition with its segments: every known remote segment in any state.

    Finished segments that are certainly kept may be left out, unless they share offsets with other
    segments (`retention_outline`). Then ``rest_bytes`` is the size of the omitted segments in the
    lineage, and ``latest_epoch`` is the highest leader epoch of all segments.
    """

    segments: Sequence[RemoteLogSegmentMetadata]
    rest_bytes: int = 0
    latest_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A segment to delete and the reason."""

    segment: RemoteLogSegmentMetadata
    reason: DeleteReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """The caller makes ``log_start_offset`` durable, then carries out the deletions in order.

    ``size_bytes``: the size that the size rule compared with its limit; None when not applied.
    """

    log_start_offset: int
    deletions: tuple[Deletion, ...] = ()
    size_bytes: int | None = None
    held_back: tuple[HeldBack, ...] = ()


class _Served(NamedTuple):
    """A finished segment and its readable part; offsets are inclusive."""

    first_offset: int
    last_offset: int
    size_bytes: int
    segment: RemoteLogSegmentMetadata


def decide_retention(facts: RetentionFacts) -> RetentionPlan:
    """Return the segments to delete and the new log start offset."""
    latest_epochs = [facts.latest_epoch, *(one.leader_epochs[-1][0] for one in facts.segments)]
    if max(latest_epochs) > facts.leader_epoch:
        return RetentionPlan(log_start_offset=facts.log_start_offset, held_back=(HeldBack.DEPOSED,))
    served = _list_served(facts)
    held_back = []
    by_time = by_size = facts.log_start_offset
    size_bytes = None
    if facts.retention_ms is not None:
        if facts.clock_trusted:
            by_time = _start_by_time(served, facts, facts.retention_ms)
        else:
            held_back.append(HeldBack.CLOCK_SUSPECT)
    if facts.retention_bytes is not None:
        local_bytes = local_only_bytes(facts)
        if local_bytes is None:
            held_back.append(HeldBack.SIZE_UNKNOWN)
        else:
            sizes = _Sizes(served, local_bytes + facts.rest_bytes)
            size_bytes = sizes.remaining(facts.log_start_offset)
            by_size = _start_by_size(served, sizes, facts, facts.retention_bytes)
    start_offset = max(facts.log_start_offset, min(max(by_time, by_size), facts.high_watermark))
    return RetentionPlan(
        log_start_offset=start_offset,
        deletions=_plan_deletions(facts, start_offset, by_time),
        size_bytes=size_bytes,
        held_back=tuple(held_back),
    )


def _list_served(facts: RetentionFacts) -> list[_Served]:
    """Return the finished segments with offsets of the lineage, in the order of these offsets."""
    found = []
    for segment in facts.segments:
        if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            continue
        ranges = ranges_in_lineage(segment, facts.lineage)
        if ranges:
            size_bytes = size_in_lineage(segment, ranges)
            found.append(_Served(ranges[0][0], ranges[-1][1], size_bytes, segment))
    return sorted(found, key=lambda one: (one.first_offset, one.last_offset))


def size_in_lineage(segment: RemoteLogSegmentMetadata, ranges: list[tuple[int, int]]) -> int:
    """Return the bytes of those epochs of the segment that are wholly in the lineage. If the bytes
    per epoch are unknown, the result is 0 (docs/decisions/0014)."""
    if ranges == [(segment.start_offset, segment.end_offset)]:
        return segment.segment_size_bytes
    if segment.bytes_per_epoch is None:
        return 0
    whole = {
        epoch
        for epoch, start, end in segment.epoch_ranges()
        if any(first <= start and end <= last for first, last in ranges)
    }
    return sum(size_bytes for epoch, size_bytes in segment.bytes_per_epoch if epoch in whole)


def local_only_bytes(facts: LogFacts) -> int | None:
    """Return the bytes of the local segments above the remote log; None if unknown."""
    highest_remote_offset, local_segments = facts.highest_remote_offset, facts.local_segments
    if highest_remote_offset is None or local_segments is None:
        return None
    first = max(highest_remote_offset + 1, facts.log_start_offset)
    return sum(one.size_bytes for one in local_segments if one.base_offset >= first)


class _Sizes:
    """Computes the size of the log above an offset; counts each byte once."""

    def __init__(self, served: Sequence[_Served], behind_bytes: int) -> None:
        self._firsts = [one.first_offset for one in served]
        self._behind_bytes = behind_bytes
        # For each row, the size of the largest set without overlap among this and later segments.
        self._heaviest = [0] * (len(served) + 1)
        for row in range(len(served) - 1, -1, -1):
            after = bisect_right(self._firsts, served[row].last_offset)
            with_it = served[row].size_bytes + self._heaviest[max(after, row + 1)]
            self._heaviest[row] = max(with_it, self._heaviest[row + 1])

    def remaining(self, start_offset: int) -> int:
        """Return the remote and local bytes of segments that start at `start_offset` or above."""
        return self._behind_bytes + self._heaviest[bisect_left(self._firsts, start_offset)]


def _start_by_time(served: list[_Served], facts: RetentionFacts, retention_ms: int) -> int:
    """Return the log start offset after the oldest segments have expired by time."""
    cutoff_ms = facts.now_ms - retention_ms
    start_offset = facts.log_start_offset
    for one in served:
        if one.last_offset < start_offset:
            continue
        if written_ms(one.segment) >= cutoff_ms:
            break
        start_offset = one.last_offset + 1
    return start_offset


def written_ms(segment: RemoteLogSegmentMetadata) -> int:
    """Return the largest timestamp of the segment. If there is none, or it is later than the copy,
    return the time of the copy."""
    copied_ms = segment.event_timestamp_ms
    known = 0 <= segment.max_timestamp_ms <= copied_ms
    return segment.max_timestamp_ms if known else copied_ms


def _start_by_size(
    served: list[_Served], sizes: _Sizes, facts: RetentionFacts, retention_bytes: int
) -> int:
    """Return the highest log start offset that leaves at least `retention_bytes`."""
    start_offset = facts.log_start_offset
    for one in served:
        after = max(start_offset, one.last_offset + 1)
        if sizes.remaining(after) < retention_bytes:
            break
        start_offset = after
    return start_offset


def _plan_deletions(
    facts: RetentionFacts, start_offset: int, start_by_time: int
) -> tuple[Deletion, ...]:
    deletions = []
    for segment in sorted(facts.segments, key=lambda one: (one.start_offset, one.end_offset)):
        reason = _find_reason(segment, facts, start_offset, start_by_time)
        if reason is not None and segment.segment_id.id not in facts.being_copied:
            deletions.append(Deletion(segment=segment, reason=reason))
    return tuple(deletions)


def _find_reason(
    segment: RemoteLogSegmentMetadata,
    facts: RetentionFacts,
    start_offset: int,
    start_by_time: int,
) -> DeleteReason | None:
    match segment.state:
        case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return DeleteReason.INTERRUPTED_COPY
        case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            return DeleteReason.INTERRUPTED_DELETE
        case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            return None
    if segment.end_offset < start_offset:
        if segment.end_offset < facts.log_start_offset:
            return DeleteReason.LOG_START_OFFSET
        by_time = segment.end_offset < start_by_time
        return DeleteReason.RETENTION_TIME if by_time else DeleteReason.RETENTION_SIZE
    lineage = facts.lineage.entries
    if lineage and segment.leader_epochs[-1][0] < lineage[0].epoch:
        return DeleteReason.UNREFERENCED_EPOCHS
    return None
