"""Deletes local segments of leaders and followers by local retention.

Before a segment is deleted, both objects of every remote segment with its offsets are checked once
more: that they exist, their sizes, and that they belong to that segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from tierlog.errors import RemoteStorageError
from tierlog.log.eligibility import Coverage
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.tiering.local_log import LogView
from tierlog.tiering.local_retention import LocalRetentionFacts, expired_local_segments
from tierlog.tiering.partition_work import Happened, PartitionWork

__all__ = ["drop_local_segments"]


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
    """Return the largest timestamp of each local segment by the remote segments with its offsets.
    Empty without a local retention by time."""
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

    # Sorted on first use: most runs delete nothing.

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
        # The highest end offset up to each segment: segments may overlap or be truncated.
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
    """Return whether the tier has sound objects for all offsets of the segment. False while the
    store does not answer."""
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
