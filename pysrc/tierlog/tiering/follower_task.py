"""The follower task learns up to which offset the leader has tiered the log. This node then deletes
its local segments and builds its remote index files (Kafka's ``RLMFollowerTask``)."""

from __future__ import annotations

from tierlog.errors import ClosedError
from tierlog.log.eligibility import Coverage, copy_facts, decide_segments
from tierlog.tiering.local_log import LogView
from tierlog.tiering.local_retention import drop_local_segments
from tierlog.tiering.partition_work import PartitionWork, coverage
from tierlog.tiering.task_pool import Again, Task

__all__ = ["FollowerTask"]


class FollowerTask:
    """Follows the tier of one partition that another node copies; it never changes the tier."""

    def __init__(self, work: PartitionWork) -> None:
        self._work = work
        self._quiet: tuple[LogView, int] | None = None

    def __call__(self, task: Task) -> Again:
        work = self._work
        view = work.log.view()
        if view is None or view.log.leader_epochs is None:
            return Again.LATER
        if not work.tier.metadata.is_ready(work.partition):
            return Again.LATER
        try:
            seen = view, work.tier.metadata.changes(work.partition)
            if seen == self._quiet:
                return Again.LATER
            segments = work.tier.metadata.list(work.partition)
        except ClosedError:
            return Again.NEVER
        copied = coverage(segments, view.log.leader_epochs)
        self._show_lag(view, copied)
        work.report_tiered(view, copied)
        work.catch_up_indexes()
        if view.log_start_offset is not None:
            work.drop_indexes_below(view.log_start_offset)
        if not task.cancelled:
            drop_local_segments(work, view, segments, copied)
        # Local retention by time can apply at any time.
        self._quiet = None if view.topic.local_retention_ms is not None else seen
        return Again.LATER

    def _show_lag(self, view: LogView, copied: Coverage) -> None:
        """Report the local segments that the leader may copy and has not copied."""
        if self._work.follower_metrics is None:
            return
        facts = copy_facts(
            view.log,
            view.stable,
            copied=copied,
            compacted=view.compacted,
            include_internal=self._work.tier.include_internal,
            include_compacted=self._work.tier.include_compacted,
            log_start_offset=view.log_start_offset,
        )
        behind = [one.segment for one in decide_segments(view.log.segments, facts) if one.eligible]
        self._work.follower_metrics.set_lag(
            size_bytes=sum(one.size_bytes for one in behind), segments=len(behind)
        )
