"""What the tasks of one partition share, and what all partitions share.

A `PartitionWork` lives as long as one leadership (or one time as a follower); the next one is a
new object, so nothing that an earlier leader epoch believed outlives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tierlog.clock import Clock
from tierlog.errors import ClosedError, TierlogError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.eligibility import Coverage, Decision
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from tierlog.metrics import PartitionMetrics, RemoteLogMetrics
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
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

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
    """What became of a segment."""

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
    """One segment, local or remote, and what became of it; ``reason`` is a short word, ``text``
    says it to a person."""

    partition: TopicIdPartition
    base_offset: int
    size_bytes: int
    happened: Happened
    reason: str = ""
    text: str = ""


class ManagerListener:
    """Is told what the tasks do, in their threads; overwrite what is of interest. Must not raise,
    nor block: the partition waits meanwhile."""

    def on_segment(self, event: SegmentEvent) -> None:
        """Something became of a segment."""

    def on_sent(self, partition: TopicIdPartition, size_bytes: int) -> None:
        """A piece of a segment was handed to the store."""

    def on_quota_wait(self, partition: TopicIdPartition, wait_ms: int) -> None:
        """A copy waits for the quota, for about that long."""

    def on_fenced(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """A later leader owns the partition; the leader of this epoch does no more for it."""

    def on_held_back(self, partition: TopicIdPartition, held_back: Sequence[HeldBack]) -> None:
        """Rules of retention that could not be applied in this run."""

    def on_index_failure(self, partition: TopicIdPartition, error: Exception) -> None:
        """This node's remote index files could not be written; they are caught up with later."""

    def on_task_failure(self, failure: TaskFailure) -> None:
        """A run ended with an error; it is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What the tasks of all partitions work with.

    ``claims``: leaders that share nothing but the store claim their partitions there, too.
    ``learn_partition`` brings into the metadata what another broker has copied of a partition. It
    is called after the claim, when that broker can finish no more, and before the first copy.
    ``check_interval_ms``: how often a leader compares the store's listing with the metadata (None:
    never). ``repair``: it compares every byte, once, and removes what is left over.
    ``is_running``: tasks run in threads without end, so a copy may take its time.
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
    learn_partition: Callable[[TopicIdPartition], None] | None = None
    check_interval_ms: int | None = None
    repair: bool = False
    is_running: threading.Event = field(default_factory=threading.Event)

    @property
    def checks_records(self) -> bool:
        """Whether a copy looks at records, too: a single pass is over sooner without that."""
        return self.repair or self.is_running.is_set()


class PartitionWork:
    """One partition in the hands of this process, under one leader epoch or as a follower."""

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
        # Finished segments whose objects the last check found missing or damaged, by id. Replaced,
        # never changed: other tasks read it.
        self.broken: dict[str, RemoteLogSegmentMetadata] = {}
        self.metrics: PartitionMetrics | None = tier.metrics.partition(partition) if leads else None
        self._lock = threading.Lock()
        self._copying: set[str] = set()
        self._copy_ended: set[str] = set()
        self._deleting: set[str] = set()
        self._claimed = False
        self._fenced = False
        self._index_files: RemoteIndexFiles | None = None
        self._index_behind = False
        self._catching_up = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        role = "leader" if self.leads else "follower"
        return f"PartitionWork({self.partition}, {role}, epoch {self.leader_epoch})"

    def claim(self) -> None:
        """The first act of a leader: earlier ones can do nothing from here on."""
        if not self._claimed:
            self.tier.metadata.claim_leadership(self.partition, self.leader_epoch)
            if self.tier.claims is not None:
                was_led_by_others = self.tier.claims.claim(self.partition, self.leader_epoch)
                if was_led_by_others and self.tier.learn_partition is not None:
                    self.tier.learn_partition(self.partition)
            self._claimed = True

    def require_leadership(self) -> None:
        """FencedLeaderError when a later leader has claimed the partition in the store."""
        if self.tier.claims is not None:
            self.tier.claims.require(self.partition, self.leader_epoch)

    def require_leadership_or_keep(
        self, segment_id: str, start_offset: int, end_offset: int
    ) -> None:
        """As `require_leadership`, once both objects of a segment are stored."""
        if self.tier.claims is not None:
            self.tier.claims.require_or_keep(
                RemoteLogSegmentId(topic_id_partition=self.partition, id=segment_id),
                self.leader_epoch,
                start_offset,
                end_offset,
            )

    def fenced(self) -> None:
        """A later leader owns the partition."""
        with self._lock:
            told, self._fenced = self._fenced, True
        if not told:
            self.tier.listener.on_fenced(self.partition, self.leader_epoch)

    def tell(
        self,
        happened: Happened,
        base_offset: int,
        size_bytes: int,
        *,
        reason: str = "",
        text: str = "",
    ) -> None:
        """Tell the listener what became of a segment."""
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

    def copied_offsets(
        self, segments: Iterable[RemoteLogSegmentMetadata], lineage: LeaderEpochs
    ) -> Coverage:
        """The offsets that finished and whole segments hold, see `coverage`."""
        broken = self.broken
        return coverage([one for one in segments if one.segment_id.id not in broken], lineage)

    def offsets_ever_copied(self, lineage: LeaderEpochs) -> Coverage:
        """The offsets that were copied and not deleted since, whatever the store has of them."""
        return coverage(self.tier.metadata.list(self.partition), lineage)

    def reached(self, view: LogView, copied: Coverage) -> None:
        """Tell the host up to where its log is in the tier without a hole."""
        if view.log.segments:
            first = max(view.log.segments[0].base_offset, view.log_start_offset or 0)
            offset = copied.reaches(first)
            if offset is not None:
                self.log.raise_highest_remote_offset(offset)

    # -- copies under way, which retention must not take for interrupted ones

    def copy_begins(self, segment_id: str) -> bool:
        """Before COPY_SEGMENT_STARTED, or before an interrupted copy is settled. False, and then
        it must not be: the segment is being deleted."""
        with self._lock:
            if segment_id in self._deleting:
                return False
            self._copying.add(segment_id)
            return True

    def copy_ended(self, segment_id: str) -> None:
        """After its last event, whatever that was."""
        with self._lock:
            self._copying.discard(segment_id)
            self._copy_ended.add(segment_id)

    def delete_begins(self, segment_id: str) -> bool:
        """Before a segment of `list_segments` is deleted. False, and then it must not be: it is
        being copied or settled, or was since then, so what was decided on may not be so."""
        with self._lock:
            if segment_id in self._copying or segment_id in self._copy_ended:
                return False
            self._deleting.add(segment_id)
            return True

    def delete_ended(self, segment_id: str) -> None:
        """Deleted, or given up for now."""
        with self._lock:
            self._deleting.discard(segment_id)

    def list_segments(self) -> tuple[tuple[RemoteLogSegmentMetadata, ...], frozenset[str]]:
        """The partition's segments, and the ids of those that were being copied at any moment
        since this began to list them: their listed state may be old. One caller at a time."""
        with self._lock:
            self._copy_ended.clear()
        segments = self.tier.metadata.list(self.partition)
        return segments, self.copied_meanwhile()

    def outline(self) -> tuple[ArchiveOutline, frozenset[str]]:
        """As `list_segments`, of all segments together."""
        with self._lock:
            self._copy_ended.clear()
        outline = self.tier.metadata.outline(self.partition)
        return outline, self.copied_meanwhile()

    def copied_meanwhile(self) -> frozenset[str]:
        """The ids of the segments that are being copied, or were since the last list or outline."""
        with self._lock:
            return frozenset(self._copying | self._copy_ended)

    # -- the remote index files of this node: whatever becomes of them, they can be made again from
    # the store, so a disk that refuses them stops neither copies nor deletions

    def index_segment(self, segment: RemoteLogSegmentMetadata, entries: Buffer) -> None:
        """Index a segment that was copied just now."""
        self._index(lambda files: files.append(segment, entries))

    def catch_up_indexes(self) -> None:
        """Index what is finished and not indexed yet, from the store, and drop what was cut.

        One at a time, each by what the metadata says when its turn has come: an older list would
        bring back what was cut meanwhile."""
        with self._catching_up:
            self._index_behind = False
            self._index(self._catch_up)

    def catch_up_if_behind(self) -> None:
        """As `catch_up_indexes`, after something could not be written."""
        if self._index_behind:
            self.catch_up_indexes()

    def cut_indexes(self) -> None:
        """Segments were cut. What the copy task has indexed since then stays, and what it could
        not, behind entries that are gone now, is added: what it finishes at this moment, by the
        next `catch_up_if_behind`."""
        self.catch_up_indexes()
        self._index_behind = True

    def _catch_up(self, files: RemoteIndexFiles) -> None:
        segments = self.tier.metadata.list(self.partition)
        files.catch_up([one for one in segments if one.state is _FINISHED], self._fetch_entries)

    def drop_indexes_below(self, log_start_offset: int) -> None:
        """What ends below the log start offset is not looked up any more."""
        self._index(lambda files: files.drop_below(log_start_offset))

    def _index(self, change: Callable[[RemoteIndexFiles], object]) -> None:
        try:
            files = self._opened_index_files()
            if files is not None:
                change(files)
        except ClosedError:
            return
        except (OSError, TierlogError) as error:
            self._index_behind = True
            self.tier.listener.on_index_failure(self.partition, error)

    def _opened_index_files(self) -> RemoteIndexFiles | None:
        """Opened, and repaired where need be, when first asked for; None when none are kept."""
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
        """The partition is given up: gauges vanish, files are let go."""
        with self._lock:
            self._closed = True
            files, self._index_files = self._index_files, None
        if files is not None:
            files.close()
        if self.metrics is not None:
            self.metrics.close()


_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def coverage(segments: Sequence[RemoteLogSegmentMetadata], lineage: LeaderEpochs) -> Coverage:
    """The offsets of this lineage that finished segments hold, see `ranges_archived`."""
    return Coverage(
        offsets
        for segment in segments
        if segment.state is _FINISHED
        for offsets in ranges_archived(segment, lineage)
    )
