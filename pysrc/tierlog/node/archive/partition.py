"""One partition of an archive: a store's segments, a directory's log, or both as one log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.index_files import read_producer_snapshot
from tierlog.log.log_dir import LogDir, PartitionLog
from tierlog.log.same_log import VanishedError
from tierlog.node.archive.metadata import ArchiveMetadata
from tierlog.node.archive.tiers import Tier
from tierlog.reader.committed import StableLog
from tierlog.reader.damage import LostRecords
from tierlog.reader.lineage import extended, newest_segment
from tierlog.reader.types import FetchView
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import Problem
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.kafka_layout import KAFKA_SCHEME
from tierlog.remote.segment.layout import log_key
from tierlog.types import TopicIdPartition

__all__ = ["ArchivedPartition"]

# A segment is deleted while the directory is listed, or the log is rolled.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiered:
    """What the store has of a partition."""

    start_offset: int
    end_offset: int
    last_stable_offset: int
    lineage: LeaderEpochs
    newest: RemoteLogSegmentMetadata


class ArchivedPartition:
    """Loads a partition, and loads it again when it may have changed. Any thread.

    ``topic_id`` is the topic's own; `partition` has the one that it is stored under. ``tier`` is
    None for a partition that is in no store, ``logs`` for one that is in no directory.
    ``report`` receives a line about damage that hides records, once.
    """

    def __init__(
        self,
        partition: TopicIdPartition,
        topic_id: str,
        tier: Tier | None,
        logs: LogDir | None,
        metadata: ArchiveMetadata,
        report: Callable[[str], object],
    ) -> None:
        self.partition = partition
        self._topic_id = topic_id
        self._tier = tier
        self._logs = logs
        self._metadata = metadata
        self._report = report
        self._lock = threading.Lock()
        self._segments: tuple[RemoteLogSegmentMetadata, ...] = ()
        self._tiered: _Tiered | None = None
        self._stable: StableLog | None = None
        self._said: set[str] = set()
        self._view: FetchView | None = None

    @property
    def is_local(self) -> bool:
        """Whether a directory has the partition, so that a look at it takes no request."""
        return self._logs is not None

    @property
    def latest(self) -> FetchView | None:
        """The view of the last load; None before the first one."""
        return self._view

    def view(self) -> FetchView | None:
        """Return the latest view. A directory that has deleted its first segment is listed first:
        those records come from the store from then on."""
        view = self._view
        first = view.log.segments[0].log_path if view is not None and view.log.segments else None
        if first is not None and not os.path.lexists(first):
            self.load()
        return self._view

    def load(self, *, with_tier: bool = True) -> bool:
        """Read the partition again; return whether the view has changed. TierlogError or OSError
        when the store or the directory cannot be read. ``with_tier``: list the store, too."""
        with self._lock:
            if with_tier or self._view is None:
                self._list_tier()
            stable = None if self._logs is None else self._read_log(self._logs)
            view = self._joined(stable)
            changed = view != self._view
            self._view = view
            return changed

    # -- the store

    def _list_tier(self) -> None:
        if self._tier is None:
            self._metadata.replace(self.partition, ())
            return
        segments, problems = self._tier.list_segments(self.partition)
        for problem in problems:
            self._say(f"{self._tier.url}/{problem}")
        if segments == self._segments and self._metadata.is_ready(self.partition):
            return
        if not segments and problems:
            raise _hidden(self._tier.url, problems[0])
        tiered = self._describe_tier(self._tier, segments) if segments else None
        self._metadata.replace(self.partition, segments)
        self._segments, self._tiered = segments, tiered

    def _describe_tier(self, tier: Tier, segments: tuple[RemoteLogSegmentMetadata, ...]) -> _Tiered:
        newest = newest_segment(segments)
        before = self._tiered
        if before is not None and before.newest == newest:
            lineage, stable = before.lineage, before.last_stable_offset
        else:
            kinds = (IndexKind.LEADER_EPOCH, IndexKind.PRODUCER_SNAPSHOT)
            sections = tier.storage.fetch_indexes(newest, kinds)
            lineage = parse_leader_epochs(bytes(sections[kinds[0]]), log_key(newest))
            firsts = read_producer_snapshot(bytes(sections[kinds[1]])).current_txn_first_offset
            stable = int(min(firsts[firsts >= 0], default=newest.end_offset + 1))
        first = min(segment.start_offset for segment in segments)
        return _Tiered(
            start_offset=max(first, lineage.entries[0].start_offset),
            end_offset=newest.end_offset + 1,
            last_stable_offset=stable,
            lineage=lineage,
            newest=newest,
        )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._report(text)

    def _snapshot_before(self, offset: int) -> bytes | None:
        """Return the producer state that the store has at the end of a segment."""
        before = [one for one in self._segments if one.end_offset + 1 == offset]
        newest = max(before, key=lambda one: one.leader_epochs[-1][0], default=None)
        if newest is None or self._tier is None:
            return None
        kind = IndexKind.PRODUCER_SNAPSHOT
        return bytes(self._tier.storage.fetch_indexes(newest, [kind])[kind])

    # -- the directory

    def _read_log(self, logs: LogDir) -> StableLog | None:
        """Return the directory's log now; None when the directory has nothing of it."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                log = logs.partition(self.partition.topic, self.partition.partition)
            except OutOfRangeError:
                return None
            if not log.segments or log.topic_id not in (None, self._topic_id):
                # Another topic may have the name by now.
                return None
            log = replace(log, archived_as=self.partition.topic_id)
            before = self._stable
            if before is not None and before.log == log:
                return before
            try:
                self._stable = StableLog.of(log, self._snapshot_before, self._say_damage)
                return self._stable
            except (FileNotFoundError, VanishedError):
                if not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _say_damage(self, lost: LostRecords) -> None:
        self._say(str(lost))

    # -- both

    def _joined(self, stable: StableLog | None) -> FetchView:
        tiered = self._tiered
        if stable is None:
            return self._of_tier(tiered)
        log, lineage = stable.log, stable.log.lineage
        local_start = max(stable.start_offset, log.segments[0].base_offset)
        start = local_start
        if tiered is not None:
            lineage = tiered.lineage if lineage is None else extended(lineage, tiered.lineage)
            start = min(tiered.start_offset, local_start)
            if self._tier is not None and self._tier.url.startswith(KAFKA_SCHEME):
                # The broker's own tier: what lies below its log start is about to be deleted.
                start = max(start, log.recorded_log_start or 0)
        return FetchView(
            log=replace(log, leader_epochs=lineage),
            log_start_offset=start,
            local_log_start_offset=local_start,
            high_watermark=stable.log_end_offset,
            last_stable_offset=min(stable.last_stable_offset, stable.log_end_offset),
            log_end_offset=stable.log_end_offset,
            leader_epoch=_latest(lineage),
            tiered=tiered is not None,
            active_aborted=stable.active_aborted,
        )

    def _of_tier(self, tiered: _Tiered | None) -> FetchView:
        """Return the view of a partition that no directory has; it may be empty."""
        lineage = None if tiered is None else tiered.lineage
        start, end = (0, 0) if tiered is None else (tiered.start_offset, tiered.end_offset)
        log = PartitionLog(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self.partition.topic_id,
            directory="",
            segments=(),
            leader_epochs=lineage,
            log_start_offset=start,
            high_watermark=end,
        )
        return FetchView(
            log=log,
            log_start_offset=start,
            local_log_start_offset=end,
            high_watermark=end,
            last_stable_offset=end if tiered is None else tiered.last_stable_offset,
            log_end_offset=end,
            leader_epoch=_latest(lineage),
            tiered=tiered is not None,
        )


def _latest(lineage: LeaderEpochs | None) -> int:
    return lineage.entries[-1].epoch if lineage is not None and lineage.entries else -1


def _hidden(url: str, problem: Problem) -> CorruptDataError:
    return CorruptDataError(
        reason=problem.reason.value,
        path=f"{url}/{problem.key}",
        position=0,
        expected=problem.expected,
        found=problem.found,
        hint="run tierlog verify to list all such objects",
    )
