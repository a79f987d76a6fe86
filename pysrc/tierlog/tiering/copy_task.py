"""The copy task of a leader: one segment per run, from the front of the log (Kafka's
``RLMCopyTask``).

The first run after this node became the leader claims the partition, finishes or removes
interrupted copies, and reads the finished segments from the metadata. The first run after a failure
does this again, because the state of the last copy is unknown. Other runs reuse what the first run
has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tierlog.errors import (
    ClosedError,
    CorruptDataError,
    FencedLeaderError,
    RemoteMetadataError,
    RemoteStorageError,
    TierlogError,
)
from tierlog.log.eligibility import (
    CopyLag,
    Coverage,
    Decision,
    Ineligible,
    copy_facts,
    decide_segments,
    gap_start_offset,
)
from tierlog.log.files import SegmentHandle, read_small
from tierlog.log.index_files import read_time_index
from tierlog.log.same_log import VanishedError, open_listed_segment, require_same_topic
from tierlog.log.segment_files import SegmentFiles
from tierlog.quota import QuotaWaitCancelledError
from tierlog.reader.producer_states import ProducerStates
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.store.object_store import Draft
from tierlog.tiering.copy import (
    CopiedSegment,
    PreparedSegment,
    SegmentRefusedError,
    prepare,
    segment_tables,
)
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.tiering.partition_work import Happened, PartitionWork
from tierlog.tiering.refusals import Refusal
from tierlog.tiering.store_check import StoreCheck
from tierlog.tiering.task_pool import Again, Task
from tierlog.tiering.unreadable import describe, find_unreadable

__all__ = ["CopyTask"]

_UNFINISHED = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
)
# Segments with other reasons than these count as copy lag.
_NOT_LAGGING = frozenset(
    {
        Ineligible.ACTIVE,
        Ineligible.EMPTY,
        Ineligible.BELOW_LOG_START,
        Ineligible.COPIED,
    }
)
_MAX_TIME_INDEX_BYTES = 64 << 20


class _CancelledError(TierlogError):
    """The task was cancelled during a copy."""


class CopyTask:
    """Copies the eligible segments of one partition, one per run."""

    def __init__(self, work: PartitionWork) -> None:
        self._work = work
        self._tier = work.tier
        self._copied: Coverage | None = None
        self._unsettled: tuple[RemoteLogSegmentMetadata, ...] = ()
        self._producers: ProducerStates | None = None
        self._refused: dict[int, Refusal] = {}
        self._check = StoreCheck(work)
        self._largest_timestamp_ms: dict[int, int] = {}
        self._nothing_to_do_in: LogView | None = None
        self._lag_seen: tuple[LogView, int] | None = None
        self._decided: tuple[LogView, tuple[Decision, ...]] | None = None

    def __call__(self, task: Task) -> Again:
        view = self._work.log.view()
        if view is None:
            self._show_unknown_lag()
            return Again.LATER
        if view.topic.copy_disabled:
            self._show_known_lag(view)
            return Again.LATER
        if view is self._nothing_to_do_in and not self._has_new_work(view):
            return Again.LATER
        if not self._tier.metadata.is_ready(self._work.partition):
            return Again.LATER
        try:
            again = self._run(task, view)
            self._show_damage(view)
            return again
        except (QuotaWaitCancelledError, _CancelledError, ClosedError):
            return Again.NEVER
        except FencedLeaderError:
            self._work.report_fenced()
            return Again.NEVER
        except BaseException:
            # The state of the last copy is unknown, so the next run reads the metadata. This is
            # done for every error, because the pool runs the task again after every error.
            self._copied = None
            self._show_known_lag(view)
            self._show_damage(view)
            # Counted here, since a full store refuses the claim before any segment is copied.
            self._count_failure()
            raise

    def _run(self, task: Task, view: LogView) -> Again:
        if self._copied is None:
            self._decided = None
            self._copied = self._take_over(view)
        if self._check.is_due() and self._check.run(view):
            self._decided = None
            self._copied = self._take_over(view)
        copied = self._copied
        # After its copy, the last run decided for the next run. Only time has passed since then.
        decided, self._decided = self._decided, None
        if decided is not None and decided[0] is view:
            decisions = decided[1]
        else:
            decisions = self._decide(view, copied)
        candidates = [
            segment
            for decision in decisions
            if decision.eligible
            and not self._is_unsettled(decision.segment)
            and (segment := self._find_copyable(decision.segment, view))
        ]
        if self._unsettled:
            # The next run tries again to settle these segments.
            self._copied = None
        if not candidates:
            if copied is not None:
                self._check.drop_replaced(copied)
            self._check.clean(view)
            waits = any(decision.reason is Ineligible.COPY_LAG for decision in decisions)
            self._nothing_to_do_in = None if waits or self._unsettled else view
            return Again.LATER
        self._nothing_to_do_in = None
        refused = len(self._refused)
        self._copy(task, view, copied, candidates[0])
        if _copies_at_once(view.topic):
            # A copy changes no decision about other segments.
            base_offset = candidates[0].base_offset
            decisions = tuple(
                self._decisions((one.segment,), view, copied)[0]
                if one.segment.base_offset == base_offset
                else one
                for one in decisions
            )
            self._decided = view, decisions
            self._show(decisions, view, copied)
        else:
            self._decide(view, copied)
        more = len(candidates) > 1 or len(self._refused) < refused or self._check.has_work
        return Again.NOW if more else Again.LATER

    # -- taking the partition over

    def _take_over(self, view: LogView) -> Coverage | None:
        """Claim the partition, finish or remove interrupted copies; return the copied offsets."""
        work = self._work
        work.claim()
        segments = self._tier.metadata.list(work.partition)
        unfinished = [segment for segment in segments if segment.state in _UNFINISHED]
        self._unsettled = tuple(one for one in unfinished if not self._resume_copy(one))
        if unfinished:
            segments = self._tier.metadata.list(work.partition)
        work.take_over()
        work.catch_up_indexes()
        if view.log.leader_epochs is None:
            return None
        return work.copied_offsets(segments, view.log.leader_epochs)

    def _is_unsettled(self, segment: SegmentFiles) -> bool:
        """Return whether an interrupted copy may still become a copy of these offsets. If the
        segment were copied now, the store would then hold two copies."""
        next_base = segment.next_base_offset
        return any(
            segment.base_offset <= one.end_offset
            and (next_base is None or one.start_offset < next_base)
            for one in self._unsettled
        )

    def _resume_copy(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Finish or remove an interrupted copy; False when neither is certain."""
        work = self._work
        if not work.copy_begins(segment.segment_id.id):
            # The expiration task works on this segment now.
            return False
        try:
            finished = work.settle_copy(segment)
        except FencedLeaderError:
            raise
        except (RemoteStorageError, RemoteMetadataError) as error:
            # The store does not answer, or the expiration task deleted the segment. The expiration
            # task tries again.
            work.report_segment(Happened.NOT_SETTLED, segment, text=str(error))
            return False
        finally:
            work.copy_ended(segment.segment_id.id)
        work.report_segment(Happened.COPY_RESUMED if finished else Happened.COPY_REMOVED, segment)
        return True

    # -- deciding

    def _decide(self, view: LogView, copied: Coverage | None) -> tuple[Decision, ...]:
        decisions = self._decisions(view.log.segments, view, copied)
        self._show(decisions, view, copied)
        return decisions

    def _decisions(
        self, segments: Iterable[SegmentFiles], view: LogView, copied: Coverage | None
    ) -> tuple[Decision, ...]:
        facts = copy_facts(
            view.log,
            view.stable,
            copied=copied,
            compacted=view.compacted,
            include_internal=self._tier.include_internal,
            include_compacted=self._tier.include_compacted,
            lag=self._lag(view),
            log_start_offset=view.log_start_offset,
        )
        return decide_segments(segments, facts)

    def _show(
        self, decisions: tuple[Decision, ...], view: LogView, copied: Coverage | None
    ) -> None:
        self._work.decisions = decisions
        self._show_lag(decisions, copied)
        if copied is not None:
            self._work.report_tiered(view, copied)

    def _lag(self, view: LogView) -> CopyLag | None:
        """Return the topic's copy lag (KIP-1241), or None if its segments are copied at once. A
        copy lag of -1 means the value of local retention."""
        topic = view.topic
        if _copies_at_once(topic):
            return None
        lag_ms = topic.local_retention_ms if topic.copy_lag_ms < 0 else topic.copy_lag_ms
        lag_bytes = (
            topic.local_retention_bytes if topic.copy_lag_bytes < 0 else topic.copy_lag_bytes
        )
        times = self._largest_timestamp_ms
        bases = {segment.base_offset for segment in view.log.rolled_segments}
        for segment in view.log.rolled_segments:
            if segment.base_offset not in times:
                times[segment.base_offset] = _largest_timestamp_ms(segment)
        for base in times.keys() - bases:
            del times[base]
        return CopyLag(
            lag_ms=lag_ms,
            lag_bytes=lag_bytes,
            now_ms=self._tier.clock.now_ms(),
            largest_timestamp_ms=times,
        )

    def _show_lag(self, decisions: tuple[Decision, ...], copied: Coverage | None) -> None:
        metrics = self._work.metrics
        if metrics is None:
            return
        if copied is None:
            metrics.copy_lag_unknown()
            return
        behind = [one.segment for one in decisions if one.reason not in _NOT_LAGGING]
        metrics.set_copy_lag(
            size_bytes=sum(segment.size_bytes for segment in behind), segments=len(behind)
        )

    def _show_known_lag(self, view: LogView) -> None:
        """Report the lag from the log directory and the metadata, without a request to the
        store."""
        self._nothing_to_do_in = None
        partition, lineage = self._work.partition, view.log.lineage
        metadata = self._tier.metadata
        try:
            if lineage is None or not metadata.is_ready(partition):
                self._show_unknown_lag()
                return
            seen = view, metadata.changes(partition)
            if seen != self._lag_seen:
                copied = self._work.copied_offsets(metadata.list(partition), lineage)
                self._show_lag(self._decisions(view.log.segments, view, copied), copied)
                self._lag_seen = seen
        except (TierlogError, OSError):
            self._show_unknown_lag()

    def _show_unknown_lag(self) -> None:
        self._lag_seen = None
        self._nothing_to_do_in = None
        if self._work.metrics is not None:
            self._work.metrics.copy_lag_unknown()

    # -- copying

    def _copy(
        self, task: Task, view: LogView, copied: Coverage | None, segment: SegmentFiles
    ) -> None:
        """Copy one segment. A defect of this segment is reported, and other segments are still
        copied. An error that may go away by itself is raised."""
        work = self._work
        base_offset, size_bytes = segment.base_offset, segment.size_bytes
        try:
            done = self._transfer(task, view, copied, segment)
        except (FencedLeaderError, ClosedError, QuotaWaitCancelledError, _CancelledError):
            raise
        except (FileNotFoundError, VanishedError) as error:
            text = f"deleted or replaced meanwhile: {error}"
            self._refuse(Happened.VANISHED, view, segment, reason="vanished", text=text)
            return
        except (SegmentRefusedError, CorruptDataError) as error:
            self._refuse(Happened.REFUSED, view, segment, reason=error.reason, text=str(error))
            self._count_failure()
            return
        except (TierlogError, OSError) as error:
            work.report(
                Happened.COPY_FAILED, base_offset, size_bytes, reason="failed", text=str(error)
            )
            raise
        if copied is not None and segment.next_base_offset is not None:
            # Add all offsets, also those below the log start offset of the checkpoints, so that
            # this segment is not chosen again.
            copied.add(base_offset, segment.next_base_offset - 1)
        if self._refused.pop(base_offset, None) is not None:
            # Later segments may have been refused because they need this segment's producer state.
            self._refused = {base: one for base, one in self._refused.items() if base < base_offset}
        if done is None:
            return
        metadata = done.metadata
        work.index_segment(metadata, done.remote_log_index)
        if work.metrics is not None:
            work.metrics.copied(metadata.segment_size_bytes)
        work.report(Happened.COPIED, base_offset, size_bytes)

    # -- segments that were refused

    def _refuse(
        self, happened: Happened, view: LogView, segment: SegmentFiles, *, reason: str, text: str
    ) -> None:
        """Remember the refusal of a segment; report it when its text is new."""
        before = self._refused.get(segment.base_offset)
        now_ms = self._tier.clock.monotonic_ms()
        has_vanished = happened is Happened.VANISHED
        self._refused[segment.base_offset] = Refusal.of(
            view, segment, text, now_ms, has_vanished=has_vanished
        )
        if before is None or before.text != text:
            self._work.report(
                happened, segment.base_offset, segment.size_bytes, reason=reason, text=text
            )

    def _find_copyable(self, segment: SegmentFiles, view: LogView) -> SegmentFiles | None:
        """Return the segment to copy; None if it was refused and is unchanged since then."""
        refusal = self._refused.get(segment.base_offset)
        if refusal is None:
            return segment
        return refusal.retry(view, segment, self._tier.clock.monotonic_ms())

    def _show_damage(self, view: LogView) -> None:
        if self._work.metrics is None:
            return
        refused = [
            one
            for segment in view.log.rolled_segments
            if (one := self._refused.get(segment.base_offset)) and not one.has_vanished
        ]
        self._work.metrics.set_damage(
            refused_segments=len(refused), broken_segments=len(self._work.broken)
        )

    def _has_new_work(self, view: LogView) -> bool:
        """Return whether the store check is due or a refused segment may be copied now."""
        if self._check.is_due():
            return True
        if not self._refused:
            return False
        refused = [one for one in view.log.rolled_segments if one.base_offset in self._refused]
        return any(self._find_copyable(one, view) for one in refused)

    def _count_failure(self) -> None:
        if self._work.metrics is not None:
            self._work.metrics.copy_failed()

    def _transfer(
        self, task: Task, view: LogView, copied: Coverage | None, segment: SegmentFiles
    ) -> CopiedSegment | None:
        """Copy one segment; None when a finished remote segment already has its bytes.

        The task waits for the quota before the scan, so that a scanned segment is sent at once."""
        work, tier = self._work, self._tier

        def waits(wait_ms: int) -> None:
            tier.metrics.copy_throttled(wait_ms)
            tier.listener.on_quota_wait(work.partition, wait_ms)

        sent_bytes = 0

        def gate(piece_bytes: int) -> None:
            nonlocal sent_bytes
            if sent_bytes == segment.size_bytes:
                # The `.indexes` object is sent next; it makes the segment readable.
                work.require_leadership()
            sent_bytes += piece_bytes
            if task.cancelled:
                raise _CancelledError(f"{work.partition}: copy cancelled")
            transfer.before_piece(piece_bytes)
            tier.listener.on_sent(work.partition, piece_bytes)

        with (
            tier.copy_quota.transfer(
                segment.size_bytes, cancelled=lambda: task.cancelled, on_wait=waits
            ) as transfer,
            open_listed_segment(segment) as handle,
            self._register_copy() as segment_id,
            self._draft(view, segment, segment_id) as draft,
        ):
            if work.metrics is not None:
                work.metrics.copy_started()
            producers = self._producers_of(view)
            snapshot = producers.before(segment)
            # Checked last: all files that are opened by their path are open now.
            require_same_topic(view.log)
            prepared = prepare(
                view.log,
                segment,
                handle,
                producer_snapshot=snapshot,
                index_interval_bytes=tier.index_interval_bytes,
                allow_gaps=bool(view.compacted),
                draft=draft,
            )
            producers.remember(prepared.end_offset + 1, prepared.rebuilt.producer_snapshot)
            if tier.copier.has_copied(prepared, work.broken):
                return None
            done = tier.copier.copy(
                prepared,
                handle,
                segment_id=segment_id,
                leader_epoch=work.leader_epoch,
                gate=gate,
                draft=draft,
                gap_start_offset=self._gap_start_offset(view, copied, segment),
                fence=None if tier.claims is None else work.require_leadership,
            )
            if tier.checks_records:
                self._check_records(segment, handle, prepared)
            return done

    def _check_records(
        self, segment: SegmentFiles, handle: SegmentHandle, prepared: PreparedSegment
    ) -> None:
        """Report batches whose records cannot be read; the segment is copied nevertheless."""
        try:
            found = find_unreadable(handle, segment_tables(prepared.rebuilt, handle))
        except (CorruptDataError, OSError) as error:
            text = f"{segment.log_path}: its records were not checked: {error}"
        else:
            if not found:
                return
            text = describe(segment.log_path, found)
            if self._work.metrics is not None:
                self._work.metrics.found_unreadable(len(found))
        self._work.report(Happened.UNREADABLE, segment.base_offset, segment.size_bytes, text=text)

    def _gap_start_offset(
        self, view: LogView, copied: Coverage | None, segment: SegmentFiles
    ) -> int | None:
        if self._work.broken and view.log.lineage is not None:
            # Offsets that are lost in the store were copied once, so they are not a gap that was
            # deleted before it was copied.
            copied = self._work.offsets_ever_copied(view.log.lineage)
        return gap_start_offset(segment, view.log, copied)

    def _draft(
        self, view: LogView, segment: SegmentFiles, segment_id: str
    ) -> AbstractContextManager[Draft | None]:
        """Open a draft. None for a paced copy, because it sends chunks after the scan."""
        if self._tier.copy_quota.paces:
            return nullcontext()
        return self._tier.copier.draft(view.log, segment, segment_id)

    @contextmanager
    def _register_copy(self) -> Iterator[str]:
        segment_id = self._tier.copier.new_id()
        self._work.copy_begins(segment_id)
        try:
            yield segment_id
        finally:
            self._work.copy_ended(segment_id)

    def _producers_of(self, view: LogView) -> ProducerStates:
        if self._producers is None:
            self._producers = ProducerStates(view.log)
        self._producers.log = view.log
        return self._producers


def _copies_at_once(topic: TopicSettings) -> bool:
    return topic.copy_lag_ms == 0 or topic.copy_lag_bytes == 0


def _largest_timestamp_ms(segment: SegmentFiles) -> int:
    """Return the largest timestamp of the time index, else the file's modification time, else -1.
    In milliseconds."""
    try:
        if segment.time_index_path is not None:
            data = read_small(segment.time_index_path, _MAX_TIME_INDEX_BYTES)
            times = read_time_index(data, segment.base_offset, tail="anything").timestamp_ms
            if len(times):
                return int(times[-1])
        with segment.open() as handle:
            return handle.identity.modified_ns // 1_000_000
    except (OSError, CorruptDataError):
        return -1
