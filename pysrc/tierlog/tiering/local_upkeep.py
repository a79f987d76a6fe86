"""What the tier changes on a node's own disk: local segments that may go, of leader and follower.

A segment leaves the disk only after what stands for it in the tier was looked at once more: both
objects there, of the right size, and of that segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierlog.errors import RemoteStorageError
from tierlog.log.eligibility import Coverage
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
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
    finished = [one for one in segments if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
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


def _written_ms(view: LogView, finished: list[RemoteLogSegmentMetadata]) -> dict[int, int]:
    """When the newest record of each local segment was written, as the tier knows it: of several
    remote segments in its range the newest."""
    known: dict[int, int] = {}
    for segment in view.log.rolled_segments:
        newest_ms = max((one.max_timestamp_ms for one in _over(segment, finished)), default=-1)
        if newest_ms >= 0:
            known[segment.base_offset] = newest_ms
    return known


def _over(
    segment: SegmentFiles, finished: list[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    """The remote segments that hold offsets of a local one."""
    end = segment.next_base_offset
    if end is None:
        return []
    return [
        one
        for one in finished
        if one.start_offset < end and one.served_end_offset >= segment.base_offset
    ]


def _verified(
    work: PartitionWork,
    view: LogView,
    segment: SegmentFiles,
    finished: list[RemoteLogSegmentMetadata],
) -> bool:
    """Whether the tier holds what stands for the segment; what it holds is not to be believed
    while the store does not answer."""
    end, start_offset = segment.next_base_offset, view.log_start_offset
    if end is not None and start_offset is not None and end <= start_offset:
        return True
    problems: list[str] = []
    for one in _over(segment, finished):
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
