"""What the tier changes on a node's own disk: local segments that may go, of leader and follower.

A segment leaves the disk only after what stands for it in the tier was looked at once more: both
objects there, of the right size, and of that segment.
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
    """Let local segments go by the local retention of the topic."""
    tier = work.tier
    finished = _Finished(segments)
    facts = LocalRetentionFacts(
        view=view,
        copied=copied,
        now_ms=tier.clock.now_ms(),
        largest_timestamp_ms=_written_ms(view, finished),
        clock_trusted=tier.clock_watch.jumped_ms() == 0,
    )
    going = expired_local_segments(facts)
    kept = next((one for one in going if not _verified(work, view, one, finished)), None)
    if kept is not None:
        going = going[: going.index(kept)]
    if not going or going[-1].next_base_offset is None:
        return
    work.log.delete_local_segments(going[-1].next_base_offset)
    for segment in going:
        work.tell(Happened.LOCAL_DELETED, segment.base_offset, segment.size_bytes)


def _written_ms(view: LogView, finished: _Finished) -> dict[int, int]:
    """When the newest record of each local segment was written, as the tier knows it: of several
    remote segments in its range the newest. Nothing where nobody asks for it."""
    known: dict[int, int] = {}
    if view.topic.local_retention_ms is None:
        return known
    for segment in view.log.rolled_segments:
        newest_ms = max((one.max_timestamp_ms for one in finished.over(segment)), default=-1)
        if newest_ms >= 0:
            known[segment.base_offset] = newest_ms
    return known


class _Finished:
    """The finished remote segments of a partition, found by the offsets they hold."""

    def __init__(self, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
        self._given = segments

    # Sorted when first asked for: mostly nothing is to go, and nobody asks.

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
        # They may overlap, and a cut one may end before an earlier one: how far all up to here get.
        return list(accumulate((one.served_end_offset for one in self._segments), max))

    def over(self, segment: SegmentFiles) -> list[RemoteLogSegmentMetadata]:
        """Those that hold offsets of a local segment."""
        if segment.next_base_offset is None:
            return []
        first = bisect_left(self._reach, segment.base_offset)
        behind = bisect_left(self._starts, segment.next_base_offset)
        near = self._segments[first:behind]
        return [one for one in near if one.served_end_offset >= segment.base_offset]


def _verified(
    work: PartitionWork,
    view: LogView,
    segment: SegmentFiles,
    finished: _Finished,
) -> bool:
    """Whether the tier holds what stands for the segment; what it holds is not to be believed
    while the store does not answer."""
    end, start_offset = segment.next_base_offset, view.log_start_offset
    if end is not None and start_offset is not None and end <= start_offset:
        return True
    problems: list[str] = []
    for one in finished.over(segment):
        try:
            problems += map(str, work.tier.storage.verify(one))
        except RemoteStorageError as error:
            problems.append(str(error))
    if problems:
        work.tell(
            Happened.LOCAL_KEPT,
            segment.base_offset,
            segment.size_bytes,
            reason="not_verified",
            text="; ".join(problems[:3]),
        )
    return not problems
