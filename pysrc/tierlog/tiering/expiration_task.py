"""The expiration task of a leader deletes expired segments from the tier, then from the disk
(Kafka's ``RLMExpirationTask``). It does not use the copy quota.

Usually the outline of the archive, its `remote_log_size` and its first segment show that no segment
has expired. To read these takes the same time for any number of segments (KIP-852). Otherwise the
task reads the oldest segments up to the first segment that is kept. It lists all segments only when
a new leader with a shorter log may have truncated some, or when the metadata changes during the
run.

A deletion has four steps: the new log start offset becomes durable, the segment enters
DELETE_SEGMENT_STARTED, its objects are removed, and it enters DELETE_SEGMENT_FINISHED.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierlog.errors import (
    ClosedError,
    FencedLeaderError,
    RemoteMetadataError,
    RemoteStorageError,
    TierlogError,
)
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.eligibility import Coverage
from tierlog.remote.metadata.manager import ArchiveOutline, RemoteLogSegmentMetadata
from tierlog.tiering.deletion_guard import (
    DECIDED_BEFORE,
    DeletionHeldBackError,
)
from tierlog.tiering.expiration_facts import (
    facts_from_front,
    facts_of_all,
    look_at_archive,
    plan_of,
    remote_log_size,
)
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.tiering.local_retention import drop_local_segments
from tierlog.tiering.partition_work import Happened, PartitionWork
from tierlog.tiering.retention import (
    DeleteReason,
    Deletion,
    RetentionFacts,
    RetentionPlan,
    decide_retention,
    local_only_bytes,
)
from tierlog.tiering.retention_outline import expires_nothing
from tierlog.tiering.task_pool import Again, Task
from tierlog.tiering.truncation import truncations

__all__ = ["ExpirationTask"]

# Limits the segments that stay in DELETE_SEGMENT_STARTED when a store denies deletions.
MAX_FAILED_DELETIONS = 10
# How long the task skips an idle partition, but at most a hundredth of the retention time.
_QUIET_MS = 600_000
_QUIET_PART = 100


class ExpirationTask:
    """Expires the remote and the local segments of one partition."""

    def __init__(self, work: PartitionWork) -> None:
        self._work = work
        self._tier = work.tier
        self._quiet: tuple[LogView, int] | None = None
        self._quiet_until_ms = 0

    def __call__(self, task: Task) -> Again:
        work = self._work
        view = work.log.view()
        if view is None or view.log.leader_epochs is None:
            return Again.LATER
        if not self._tier.metadata.is_ready(work.partition):
            self._show_unknown()
            return Again.LATER
        seen = view, self._tier.metadata.changes(work.partition)
        if self._is_quiet(seen):
            return Again.LATER
        try:
            work.claim()
            quiet = self._run(task, view, view.log.leader_epochs)
        except ClosedError:
            return Again.NEVER
        except FencedLeaderError:
            work.report_fenced()
            return Again.NEVER
        except RemoteMetadataError:
            self._show_unknown()
            raise
        if quiet:
            self._quiet = seen
            self._quiet_until_ms = self._tier.clock.monotonic_ms() + _quiet_ms(view.topic)
        return Again.LATER

    def _is_quiet(self, seen: tuple[LogView, int]) -> bool:
        """Return whether the last run had nothing to do, and nothing has changed since then."""
        if self._quiet is None or self._quiet[0] is not seen[0] or self._quiet[1] != seen[1]:
            return False
        return self._tier.clock.monotonic_ms() < self._quiet_until_ms

    def _run(self, task: Task, view: LogView, lineage: LeaderEpochs) -> bool:
        """Delete the expired segments. Return True when there was nothing to do."""
        work = self._work
        began_ms = self._tier.clock.monotonic_ms()
        look = look_at_archive(work, view, lineage)
        self._show_remote_log(look.remote_bytes, look.outline, began_ms)
        if look.facts is not None and expires_nothing(look.facts):
            size_bytes, local_bytes = None, local_only_bytes(look.facts)
            if view.topic.retention_bytes is not None and local_bytes is not None:
                size_bytes = look.remote_bytes + local_bytes
            self._show_delete_lag(())
            self._show_percent(view, size_bytes)
            return self._update_local(task, view, look.near, look.copied)
        facts = facts_from_front(work, look)
        if facts is None:
            return self._run_in_full(task, view, lineage)
        return self._expire(task, view, facts, look.near, look.copied)

    def _run_in_full(self, task: Task, view: LogView, lineage: LeaderEpochs) -> bool:
        """Delete the expired segments, as `_run` does, but with a list of all segments."""
        work = self._work
        segments, being_copied = work.list_segments()
        cut = self._truncate(segments, lineage)
        if cut:
            segments, being_copied = work.list_segments()
            work.cut_indexes()
        copied = work.copied_offsets(segments, lineage)
        facts = facts_of_all(work, view, segments, being_copied, copied)
        return self._expire(task, view, facts, segments, copied) and not cut

    def _expire(
        self,
        task: Task,
        view: LogView,
        facts: RetentionFacts | None,
        segments: Sequence[RemoteLogSegmentMetadata],
        copied: Coverage,
    ) -> bool:
        """Decide which segments have expired and delete them. Return True when there was nothing to
        do."""
        plan = None if facts is None else decide_retention(facts)
        self._show_plan(view, plan)
        failure = None
        if facts is not None and plan is not None:
            failure = self._carry_out(task, view, facts, plan)
        # Local retention also runs when the store refuses deletions.
        is_same = self._update_local(task, view, segments, copied)
        if failure is not None:
            raise failure
        return plan is not None and not plan.deletions and is_same

    def _update_local(
        self,
        task: Task,
        view: LogView,
        segments: Sequence[RemoteLogSegmentMetadata],
        copied: Coverage,
    ) -> bool:
        """Update this node's indexes and segments; return whether the log is as in `view`."""
        work = self._work
        work.report_tiered(view, copied)
        work.catch_up_if_behind()
        after = work.log.view()
        if after is not None and not task.cancelled:
            drop_local_segments(work, after, segments, copied)
        return after is view

    def _truncate(
        self, segments: tuple[RemoteLogSegmentMetadata, ...], lineage: LeaderEpochs
    ) -> bool:
        """Record truncation offsets of tiered segments, because this leader has a shorter log."""
        found = truncations(segments, lineage)
        for segment, offset in found:
            update = segment.update_to(
                segment.state,
                event_timestamp_ms=self._tier.clock.now_ms(),
                truncation_offset=offset,
            )
            self._tier.metadata.update(update, leader_epoch=self._work.leader_epoch)
            self._work.report_segment(Happened.TRUNCATED, segment, text=f"at offset {offset}")
        return bool(found)

    def _carry_out(
        self,
        task: Task,
        view: LogView,
        facts: RetentionFacts,
        plan: RetentionPlan,
    ) -> TierlogError | None:
        """Delete the segments of the plan. If the guard refuses, delete only the segments that no
        reader can reach. Return the first error."""
        work, held = self._work, None
        if plan.held_back:
            self._tier.listener.on_held_back(work.partition, plan.held_back)
        try:
            is_allowed = self._is_allowed(view, facts, plan)
        except DeletionHeldBackError as error:
            held, is_allowed = error, False
        if is_allowed:
            self._advance_start(view, plan)
        deletions = tuple(
            one for one in plan.deletions if is_allowed or one.reason in DECIDED_BEFORE
        )
        if not deletions:
            return held
        work.require_leadership()
        failure = self._delete_all(task, deletions)
        if view.log.lineage is not None:
            began_ms = self._tier.clock.monotonic_ms()
            outline, _ = work.outline()
            remote_bytes = remote_log_size(work, view.log.lineage, outline)
            self._show_remote_log(remote_bytes, outline, began_ms)
        return held or failure

    def _is_allowed(self, view: LogView, facts: RetentionFacts, plan: RetentionPlan) -> bool:
        """Return whether the guard allows the plan. The guard also counts copies that have just
        ended and so are not in the plan. Otherwise an archive could be deleted bit by bit."""
        if not plan.deletions and plan.log_start_offset == view.log_start_offset:
            return True
        return self._tier.deletion_guard.allows(plan_of(self._work, facts))

    def _show_plan(self, view: LogView, plan: RetentionPlan | None) -> None:
        if plan is not None:
            self._show_delete_lag(plan.deletions)
        elif self._work.metrics is not None:
            self._work.metrics.delete_lag_unknown()
        self._show_percent(view, None if plan is None else plan.size_bytes)

    def _show_percent(self, view: LogView, size_bytes: int | None) -> None:
        if self._work.metrics is not None:
            local_bytes = sum(one.size_bytes for one in view.log.segments)
            self._work.metrics.set_retention_percent(
                total_percent=_percent(size_bytes, view.topic.retention_bytes),
                local_percent=_percent(local_bytes, view.topic.local_retention_bytes),
            )

    def _show_remote_log(self, size_bytes: int, outline: ArchiveOutline, began_ms: int) -> None:
        if self._work.metrics is not None:
            self._work.metrics.set_remote_log(
                size_bytes=size_bytes,
                metadata_count=outline.segment_count,
                computation_ms=self._tier.clock.monotonic_ms() - began_ms,
            )

    def _show_unknown(self) -> None:
        """Report sizes and lag as unknown, since the metadata has no answer."""
        if self._work.metrics is not None:
            self._work.metrics.remote_log_unknown()
            self._work.metrics.delete_lag_unknown()

    def _show_delete_lag(self, left: tuple[Deletion, ...]) -> None:
        if self._work.metrics is not None:
            self._work.metrics.set_delete_lag(
                size_bytes=sum(one.segment.segment_size_bytes for one in left), segments=len(left)
            )

    def _advance_start(self, view: LogView, plan: RetentionPlan) -> None:
        if view.log_start_offset is not None and plan.log_start_offset > view.log_start_offset:
            self._work.log.advance_log_start_offset(plan.log_start_offset)
            if self._work.metrics is not None:
                self._work.metrics.log_start_offset_advanced()
            self._work.drop_indexes_below(plan.log_start_offset)

    def _delete_all(self, task: Task, deletions: tuple[Deletion, ...]) -> RemoteStorageError | None:
        """Delete the segments in order and return the first error of the store. After an error the
        next segments are still deleted, until `MAX_FAILED_DELETIONS` deletions have failed."""
        failures: list[RemoteStorageError] = []
        left = list(deletions)
        for deletion in deletions:
            if task.cancelled or len(failures) >= MAX_FAILED_DELETIONS:
                break
            segment_id = deletion.segment.segment_id.id
            if not self._work.delete_begins(segment_id):
                # The copy task is resuming this segment; the next run sees the result.
                continue
            try:
                if self._delete(deletion):
                    left.remove(deletion)
            except RemoteStorageError as error:
                failures.append(error)
            finally:
                self._work.delete_ended(segment_id)
        self._show_delete_lag(tuple(left))
        return failures[0] if failures else None

    def _delete(self, deletion: Deletion) -> bool:
        """Delete one segment. If it is an interrupted copy that is whole, finish the copy instead,
        because the broker may no longer have its records. Return whether either is done."""
        work, segment = self._work, deletion.segment
        if work.metrics is not None:
            work.metrics.delete_started()
        try:
            if deletion.reason is DeleteReason.INTERRUPTED_COPY:
                if work.settle_copy(segment) is not None:
                    work.report_segment(Happened.COPY_RESUMED, segment)
                    return True
            else:
                self._tier.copier.delete(segment, leader_epoch=work.leader_epoch)
        except FencedLeaderError:
            raise
        except (RemoteStorageError, RemoteMetadataError) as error:
            if work.metrics is not None:
                work.metrics.delete_failed()
            work.report_segment(Happened.DELETE_FAILED, segment, deletion.reason.value, str(error))
            if isinstance(error, RemoteStorageError):
                raise
            # The segment's metadata has changed; the next run reads it.
            return False
        if self._tier.index_cache is not None:
            self._tier.index_cache.remove(segment.segment_id)
        if work.metrics is not None:
            work.metrics.deleted(segment.segment_size_bytes)
        work.report_segment(Happened.DELETED, segment, deletion.reason.value)
        return True


def _quiet_ms(topic: TopicSettings) -> int:
    limits_ms = (topic.retention_ms, topic.local_retention_ms)
    return min([_QUIET_MS, *(one // _QUIET_PART for one in limits_ms if one is not None)])


def _percent(size_bytes: int | None, limit_bytes: int | None) -> int:
    """Return the size as a percentage of the limit. As in Kafka, the result is 0 when there is no
    limit or the size is unknown."""
    return 100 * size_bytes // limit_bytes if size_bytes is not None and limit_bytes else 0
