"""The state that the tasks of one partition share, and the parts that all partitions share.

Each time this node becomes the leader or a follower of a partition, it creates a `PartitionWork`.
So no state of an earlier leader epoch remains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tierlog.clock import Clock
from tierlog.errors import ClosedError, RemoteResourceNotFoundError, TierlogError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.eligibility import Coverage, Decision
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from tierlog.metrics import FollowerMetrics, PartitionMetrics, RemoteLogMetrics
from tierlog.quota import QuotaManager
from tierlog.reader.lineage import ranges_archived
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import (
    ArchiveOutline,
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.claims import StoreClaims
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.tiering.clock_watch import ClockWatch
from tierlog.tiering.copy import SegmentCopier
from tierlog.tiering.deletion_guard import DeletionGuard
from tierlog.tiering.local_log import LocalLog, LogView
from tierlog.tiering.retention import HeldBack
from tierlog.tiering.task_pool import TaskFailure
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Happened",
    "ManagerListener",
    "PartitionWork",
    "SegmentEvent",
    "Tier",
    "coverage",
]


class Happened(StrEnum):
    """What happened to a segment."""

    COPIED = "copied"
    REFUSED = "refused"
    VANISHED = "vanished"
    COPY_FAILED = "copy_failed"
    COPY_RESUMED = "copy_resumed"
    COPY_REMOVED = "copy_removed"
    NOT_SETTLED = "not_settled"
    TRUNCATED = "truncated"
    DELETED = "deleted"
    DELETE_FAILED = "delete_failed"
    LOCAL_DELETED = "local_deleted"
    LOCAL_KEPT = "local_kept"
    REPAIRED = "repaired"
    BROKEN = "broken"
    LOST = "lost"
    NOT_CHECKED = "not_checked"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent:
    """What happened to one local or remote segment. ``reason`` is one word and ``text`` is a
    sentence."""

    partition: TopicIdPartition
    base_offset: int
    size_bytes: int
    happened: Happened
    reason: str = ""
    text: str = ""


class ManagerListener:
    """Receives the events of the tasks in their threads; override methods as needed. A method must
    not raise or block, since the partition waits for it."""

    def on_segment(self, event: SegmentEvent) -> None:
        """Receive an event of a segment."""

    def on_sent(self, partition: TopicIdPartition, size_bytes: int) -> None:
        """A chunk of a segment was sent to the store."""

    def on_quota_wait(self, partition: TopicIdPartition, wait_ms: int) -> None:
        """A copy waits about `wait_ms` for the quota."""

    def on_fenced(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """A later leader owns the partition; this leader's tasks stop."""

    def on_held_back(self, partition: TopicIdPartition, held_back: Sequence[HeldBack]) -> None:
        """Retention could not apply these rules in this run."""

    def on_index_failure(self, partition: TopicIdPartition, error: Exception) -> None:
        """This node's remote index files could not be written; a later run tries again."""

    def on_task_failure(self, failure: TaskFailure) -> None:
        """A run ended with an error; the task is run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The parts that the tasks of all partitions use.

    ``claims``: with these, leaders that share no metadata also claim their partitions in the store.
    ``learn_partition`` adds to the metadata the segments that another broker has copied. It returns
    whether all listed segments could be read. It is called after the claim and before the first
    copy.
    ``check_interval_ms``: how often a leader compares the store's listing with the metadata (None:
    never). ``repair``: one check compares every byte and removes superfluous objects.
    ``is_running``: the tasks run in threads until the manager is closed, so a copy may take longer.
    """

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    copier: SegmentCopier
    copy_quota: QuotaManager
    clock: Clock
    clock_watch: ClockWatch
    metrics: RemoteLogMetrics
    listener: ManagerListener
    deletion_guard: DeletionGuard
    index_cache: RemoteIndexCache | None
    open_index_files: Callable[[TopicIdPartition], RemoteIndexFiles] | None
    include_internal: bool = False
    include_compacted: bool = False
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    claims: StoreClaims | None = None
    learn_partition: Callable[[TopicIdPartition], bool] | None = None
    check_interval_ms: int | None = None
    repair: bool = False
    is_running: threading.Event = field(default_factory=threading.Event)

    @property
    def checks_records(self) -> bool:
        """Whether a copy also checks records. In a single pass it does not, so that the pass ends
        sooner."""
        return self.repair or self.is_running.is_set()


class PartitionWork:
    """One partition that this process leads under one epoch, or follows."""

    def __init__(
        self,
        partition: TopicIdPartition,
        leader_epoch: int,
        log: LocalLog,
        tier: Tier,
        *,
        leads: bool,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.log = log
        self.tier = tier
        self.leads = leads
        self.decisions: tuple[Decision, ...] | None = None
        # Finished segments with missing or damaged objects, by id. Other tasks read this dict, so
        # the check replaces it and never changes it.
        self.broken: dict[str, RemoteLogSegmentMetadata] = {}
        self.metrics: PartitionMetrics | None = tier.metrics.partition(partition) if leads else None
        self.follower_metrics: FollowerMetrics | None = None if leads else tier.metrics.follower()
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._copying: set[str] = set()
        self._copy_ended: set[str] = set()
        self._deleting: set[str] = set()
        self._claimed = False
        self._must_take_over = False
        self._fenced = False
        self._index_files: RemoteIndexFiles | None = None
        self._is_index_behind = False
        self._catching_up = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        role = "leader" if self.leads else "follower"
        return f"PartitionWork({self.partition}, {role}, epoch {self.leader_epoch})"

    def claim(self) -> None:
        """Claim the partition, which fences earlier leaders. A leader does this first."""
        with self._claiming:
            if self._claimed:
                return
            self.tier.metadata.claim_leadership(self.partition, self.leader_epoch)
            claims, learn = self.tier.claims, self.tier.learn_partition
            if claims is not None and claims.claim(self.partition, self.leader_epoch):
                # No takeover while a listed segment cannot be read, because that one may count.
                self._must_take_over = learn is not None and learn(self.partition)
            self._claimed = True

    def take_over(self) -> None:
        """Record which segments of other brokers are known, between the claim and the first copy.
        If an earlier leader then finishes a segment at later offsets, it does not count."""
        claims = self.tier.claims
        if claims is not None and self._must_take_over:
            known = self.tier.metadata.list(self.partition)
            end_offset = max((one.end_offset + 1 for one in known), default=0)
            claims.take_over(self.partition, self.leader_epoch, end_offset)
            self._must_take_over = False

    def is_left_out(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether an interrupted copy does not count because another broker has taken the
        partition over since then."""
        claims = self.tier.claims
        return claims is not None and claims.is_left_out(segment)

    def settle_copy(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """Finish an interrupted copy that is whole and return its segment, or else remove the copy.

        Raises the same errors as `SegmentCopier.resume`. Call this between `copy_begins` and
        `copy_ended`, or between `delete_begins` and `delete_ended`."""
        copier = self.tier.copier
        if self.is_left_out(segment):
            copier.delete(segment, leader_epoch=self.leader_epoch)
            return None
        fence = None if self.tier.claims is None else self.require_leadership
        return copier.resume(segment, leader_epoch=self.leader_epoch, fence=fence)

    def require_leadership(self) -> None:
        """Raise FencedLeaderError when a later leader has claimed the partition in the store."""
        if self.tier.claims is not None:
            self.tier.claims.require(self.partition, self.leader_epoch)

    def report_fenced(self) -> None:
        """Report once that a later leader owns the partition."""
        with self._lock:
            was_fenced, self._fenced = self._fenced, True
        if self.metrics is not None:
            self.metrics.set_deposed()
        if not was_fenced:
            self.tier.listener.on_fenced(self.partition, self.leader_epoch)

    def report(
        self,
        happened: Happened,
        base_offset: int,
        size_bytes: int,
        *,
        reason: str = "",
        text: str = "",
    ) -> None:
        """Report an event of a segment to the listener."""
        self.tier.listener.on_segment(
            SegmentEvent(
                partition=self.partition,
                base_offset=base_offset,
                size_bytes=size_bytes,
                happened=happened,
                reason=reason,
                text=text,
            )
        )

    def report_segment(
        self,
        happened: Happened,
        segment: RemoteLogSegmentMetadata,
        reason: str = "",
        text: str = "",
    ) -> None:
        """Report an event of a remote segment to the listener."""
        self.report(
            happened, segment.start_offset, segment.segment_size_bytes, reason=reason, text=text
        )

    def copied_offsets(
        self, segments: Iterable[RemoteLogSegmentMetadata], lineage: LeaderEpochs
    ) -> Coverage:
        """Return the offsets of the finished segments that are not broken, see `coverage`."""
        broken = self.broken
        return coverage([one for one in segments if one.segment_id.id not in broken], lineage)

    def offsets_ever_copied(self, lineage: LeaderEpochs) -> Coverage:
        """Return the offsets of all finished segments, including segments that the store has
        lost."""
        return coverage(self.tier.metadata.list(self.partition), lineage)

    def report_tiered(self, view: LogView, copied: Coverage) -> None:
        """Report to the host the offset up to which its log is tiered without a hole."""
        if view.log.segments:
            first = max(view.log.segments[0].base_offset, view.log_start_offset or 0)
            offset = copied.reaches(first)
            if offset is not None:
                self.log.raise_highest_remote_offset(offset)

    # -- active copies, which retention must not treat as interrupted

    def copy_begins(self, segment_id: str) -> bool:
        """Register a copy before it enters COPY_SEGMENT_STARTED or is resumed. Return False when
        the segment is being deleted; then the caller must not copy it."""
        with self._lock:
            if segment_id in self._deleting:
                return False
            self._copying.add(segment_id)
            return True

    def copy_ended(self, segment_id: str) -> None:
        """Unregister a copy after its last event."""
        with self._lock:
            self._copying.discard(segment_id)
            self._copy_ended.add(segment_id)

    def delete_begins(self, segment_id: str) -> bool:
        """Register a deletion. Return False when the segment is being copied or was copied after
        `list_segments`. Then its listed state is old, and the caller must not delete it."""
        with self._lock:
            if segment_id in self._copying or segment_id in self._copy_ended:
                return False
            self._deleting.add(segment_id)
            return True

    def delete_ended(self, segment_id: str) -> None:
        """Unregister a deletion after success or failure."""
        with self._lock:
            self._deleting.discard(segment_id)

    def list_segments(self) -> tuple[tuple[RemoteLogSegmentMetadata, ...], frozenset[str]]:
        """Return the partition's segments, and the ids of copies that were active during the call.
        The listed state of these copies may be old. Only one thread may call this at a time."""
        with self._lock:
            self._copy_ended.clear()
        segments = self.tier.metadata.list(self.partition)
        return segments, self.list_active_copies()

    def outline(self) -> tuple[ArchiveOutline, frozenset[str]]:
        """Return the outline, and the ids of active copies as in `list_segments`."""
        with self._lock:
            self._copy_ended.clear()
        outline = self.tier.metadata.outline(self.partition)
        return outline, self.list_active_copies()

    def list_active_copies(self) -> frozenset[str]:
        """Return the ids of copies that are active or ended since the last list or outline."""
        with self._lock:
            return frozenset(self._copying | self._copy_ended)

    # -- the remote index files of this node. They can be rebuilt from the store, so a write error
    # stops neither copies nor deletions.

    def index_segment(self, segment: RemoteLogSegmentMetadata, entries: Buffer) -> None:
        """Add a copied segment to the index files; `catch_up_if_behind` adds one that fills a gap
        before their end."""

        def append(files: RemoteIndexFiles) -> None:
            if not files.append(segment, entries):
                self._is_index_behind = True

        self._change_indexes(append)

    def catch_up_indexes(self) -> None:
        """Add finished segments that are not indexed yet, and remove truncated entries.

        Only one thread runs this at a time, and it lists the metadata again. With an older list it
        would restore entries that have been truncated since."""
        with self._catching_up:
            self._is_index_behind = False
            self._change_indexes(self._catch_up)

    def catch_up_if_behind(self) -> None:
        """Call `catch_up_indexes` after a failed write."""
        if self._is_index_behind:
            self.catch_up_indexes()

    def cut_indexes(self) -> None:
        """Remove truncated entries. Segments that the copy task finishes during the call are added
        by the next `catch_up_if_behind`."""
        self.catch_up_indexes()
        self._is_index_behind = True

    def _catch_up(self, files: RemoteIndexFiles) -> None:
        finished = self._list_finished()
        try:
            files.catch_up(finished, self._fetch_entries)
        except RemoteResourceNotFoundError:
            if self._list_finished() == finished:
                raise
            # The expiration task has deleted a segment of the list in the meantime.
            self._is_index_behind = True

    def _list_finished(self) -> list[RemoteLogSegmentMetadata]:
        segments = self.tier.metadata.list(self.partition)
        return [one for one in segments if one.state is _FINISHED]

    def drop_indexes_below(self, log_start_offset: int) -> None:
        """Remove entries below the log start offset."""
        self._change_indexes(lambda files: files.drop_below(log_start_offset))

    def _change_indexes(self, change: Callable[[RemoteIndexFiles], object]) -> None:
        try:
            files = self._open_index_files()
            if files is not None:
                change(files)
        except ClosedError:
            return
        except (OSError, TierlogError) as error:
            self._is_index_behind = True
            self.tier.metrics.index_files_failed()
            self.tier.listener.on_index_failure(self.partition, error)

    def _open_index_files(self) -> RemoteIndexFiles | None:
        """Open the index files on first use, with repair; None when this node has none."""
        if self.tier.open_index_files is None:
            return None
        with self._lock:
            if self._index_files is None and not self._closed:
                self._index_files = self.tier.open_index_files(self.partition)
            return self._index_files

    def _fetch_entries(self, segment: RemoteLogSegmentMetadata) -> Buffer:
        kind = IndexKind.REMOTE_LOG
        return self.tier.storage.fetch_indexes(segment, [kind])[kind]

    def close(self) -> None:
        """Close the files and the gauges of the partition."""
        with self._lock:
            self._closed = True
            files, self._index_files = self._index_files, None
        if files is not None:
            files.close()
        for metrics in (self.metrics, self.follower_metrics):
            if metrics is not None:
                metrics.close()


_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def coverage(segments: Sequence[RemoteLogSegmentMetadata], lineage: LeaderEpochs) -> Coverage:
    """Return the offsets of the lineage in finished segments, see `ranges_archived`."""
    return Coverage(
        offsets
        for segment in segments
        if segment.state is _FINISHED
        for offsets in ranges_archived(segment, lineage)
    )
