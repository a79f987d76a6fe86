"""Deletes local segments of leaders and followers by local retention.

A segment is deleted only when each of its offsets is durable in the tier or below the log start
offset. While the store does not answer, no segment is deleted: the disk fills, but no record is
lost. Before a local segment is deleted, the remote segments with its offsets are checked once more.
Their objects must exist, have the right sizes and belong to these remote segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tierlog.errors import RemoteStorageError
from tierlog.log.eligibility import Coverage
from tierlog.log.names import SkipReason
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import Happened, PartitionWork

__all__ = ["LocalRetentionFacts", "drop_local_segments", "expired_local_segments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRetentionFacts:
    """The input of `expired_local_segments`.

    ``copied``: the offsets of finished remote segments in the lineage; None when unknown.
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

    The result ends before the first segment that is kept, so the local log has no holes.
    """
    view = facts.view
    high_watermark = view.log.high_watermark
    if high_watermark is None or _has_unread_files(view):
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


def _has_unread_files(view: LogView) -> bool:
    """Return whether a file of the log could not be read. It may be a segment before the first one
    of the view, and deleting up to a later segment would delete it as well."""
    return any(one.reason is SkipReason.UNREADABLE for one in view.log.skipped)


def _is_below_start(segment: SegmentFiles, view: LogView) -> bool:
    end, start = segment.next_base_offset, view.log_start_offset
    return end is not None and start is not None and end <= start


def _is_tiered(segment: SegmentFiles, facts: LocalRetentionFacts) -> bool:
    """Return whether all offsets of the segment that are not below the log start offset are
    tiered."""
    if facts.copied is None or segment.next_base_offset is None:
        return False
    first = max(segment.base_offset, facts.view.log_start_offset or 0)
    return facts.copied.holds(first, segment.next_base_offset - 1)


def _is_due(segment: SegmentFiles, left_bytes: int, facts: LocalRetentionFacts) -> bool:
    if _is_below_start(segment, facts.view):
        return True
    topic = facts.view.topic
    limit_bytes = topic.local_retention_bytes
    # After the deletion, at least `limit_bytes` are left, as in the tier.
    if limit_bytes is not None and left_bytes - segment.size_bytes >= limit_bytes:
        return True
    if topic.local_retention_ms is None or not facts.clock_trusted:
        return False
    written_ms = facts.largest_timestamp_ms.get(segment.base_offset)
    return written_ms is not None and facts.now_ms - written_ms > topic.local_retention_ms


def drop_local_segments(
    work: PartitionWork,
    view: LogView,
    segments: Sequence[RemoteLogSegmentMetadata],
    copied: Coverage,
) -> None:
    """Delete local segments by the local retention of the topic."""
    tier = work.tier
    finished = _Finished(segments)
    facts = LocalRetentionFacts(
        view=view,
        copied=copied,
        now_ms=tier.clock.now_ms(),
        largest_timestamp_ms=_written_ms(view, finished),
        clock_trusted=tier.clock_watch.jumped_ms() == 0,
    )
    expired = expired_local_segments(facts)
    kept = next((one for one in expired if not _verify_tiered(work, view, one, finished)), None)
    if kept is not None:
        expired = expired[: expired.index(kept)]
    if not expired or expired[-1].next_base_offset is None:
        return
    work.log.delete_local_segments(expired[-1].next_base_offset)
    for segment in expired:
        work.report(Happened.LOCAL_DELETED, segment.base_offset, segment.size_bytes)


def _written_ms(view: LogView, finished: _Finished) -> dict[int, int]:
    """Return the largest timestamp of each local segment, taken from the remote segments with its
    offsets. Empty if the topic has no local retention by time."""
    known: dict[int, int] = {}
    if view.topic.local_retention_ms is None:
        return known
    for segment in view.log.rolled_segments:
        newest_ms = max(
            (one.max_timestamp_ms for one in finished.find_overlapping(segment)), default=-1
        )
        if newest_ms >= 0:
            known[segment.base_offset] = newest_ms
    return known


class _Finished:
    """Finds the finished remote segments of a partition by offsets."""

    def __init__(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        self._given = segments

    # Sorted on first use, because most runs delete nothing.

    @cached_property
    def _segments(self) -> list[RemoteLogSegmentMetadata]:
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        return sorted(
            (one for one in self._given if one.state is finished), key=lambda one: one.start_offset
        )

    @cached_property
    def _starts(self) -> list[int]:
        return [one.start_offset for one in self._segments]

    @cached_property
    def _reach(self) -> list[int]:
        # The highest end offset of each segment and all before it, because segments may overlap or
        # be truncated.
        return list(accumulate((one.served_end_offset for one in self._segments), max))

    def find_overlapping(self, segment: SegmentFiles) -> list[RemoteLogSegmentMetadata]:
        """Return the remote segments with offsets of a local segment."""
        if segment.next_base_offset is None:
            return []
        first = bisect_left(self._reach, segment.base_offset)
        behind = bisect_left(self._starts, segment.next_base_offset)
        near = self._segments[first:behind]
        return [one for one in near if one.served_end_offset >= segment.base_offset]


def _verify_tiered(
    work: PartitionWork,
    view: LogView,
    segment: SegmentFiles,
    finished: _Finished,
) -> bool:
    """Return whether the tier has sound objects for all offsets of the segment. Return False if
    the store does not answer."""
    end, start_offset = segment.next_base_offset, view.log_start_offset
    if end is not None and start_offset is not None and end <= start_offset:
        return True
    problems: list[str] = []
    for one in finished.find_overlapping(segment):
        try:
            problems += map(str, work.tier.storage.verify(one))
        except RemoteStorageError as error:
            problems.append(str(error))
    if problems:
        work.report(
            Happened.LOCAL_KEPT,
            segment.base_offset,
            segment.size_bytes,
            reason="not_verified",
            text="; ".join(problems[:3]),
        )
    return not problems
