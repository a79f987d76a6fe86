"""A partition of an unmodified broker as a `LocalLog` of the remote log manager.

The partition is only read: its local log is the last listing of the directories. The broker deletes
its segments by its own retention. The archive has another retention, so its log start offset
differs from that of the broker.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

from tierlog.broker import BrokerAnswer
from tierlog.errors import RemoteMetadataError, TierlogError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.eligibility import StableOffset
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.lineage import extended, newest_segment
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import log_key, partition_prefix
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.sidecar.archived_log import difference_from_archive
from tierlog.sidecar.lineage import STORED, ambiguous, from_remote_segments
from tierlog.sidecar.stable import StableOffsets
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.tiering.partition_work import coverage
from tierlog.types import TopicIdPartition, is_derived_topic_id

__all__ = ["SidecarLog"]


class SidecarLog:
    """A `LocalLog`. The watch calls `look` and `gone`; the manager calls all other methods."""

    def __init__(
        self,
        partition: TopicIdPartition,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        settings: TopicSettings,
    ) -> None:
        self.partition = partition
        self._metadata = metadata
        self._storage = storage
        self._settings = settings
        self._lock = threading.Lock()
        self._stable = StableOffsets()
        self._seen: tuple[PartitionLog, BrokerAnswer | None] | None = None
        self._epochs: LeaderEpochs | None = None
        self._log_start_offset = metadata.log_start_offset(partition)
        self._view: LogView | None = None
        self._highest_remote_offset = -1
        self._must_relearn = False

    def __repr__(self) -> str:
        return f"SidecarLog({self.partition})"

    # -- the watch's side

    def look(self, log: PartitionLog, answer: BrokerAnswer | None) -> LogView:
        """Return the view of a new listing and a new answer. If neither has changed, return the
        same view as before.

        Raises RemoteStorageError or CorruptDataError when the history of the log is only in the
        store and cannot be read. Raises RemoteMetadataError when another log was copied.
        """
        with self._lock:
            if self._view is None or self._must_relearn or self._seen != (log, answer):
                self._make_view(log, answer)
            assert self._view is not None
            return self._view

    def configure(self, settings: TopicSettings) -> None:
        """Set the settings of the topic, from the next look on."""
        with self._lock:
            self._settings = settings
            self._seen = None

    def gone(self) -> None:
        """Record that the directory was deleted or belongs to another topic."""
        with self._lock:
            self._view = self._seen = None

    def relearn(self) -> None:
        """Record that segments of other brokers became known, so that the next view has them."""
        self._must_relearn = True

    @property
    def highest_remote_offset(self) -> int:
        """The offset up to which the log is tiered; -1 when unknown or nothing is tiered."""
        return self._highest_remote_offset

    def _make_view(self, log: PartitionLog, answer: BrokerAnswer | None) -> None:
        if self._must_relearn:
            self._epochs = None
        must_relearn, self._must_relearn = self._must_relearn, False
        try:
            self._view = self._view_of(log, answer)
        except BaseException:
            self._must_relearn = must_relearn or self._must_relearn
            raise
        self._seen = log, answer

    def _view_of(self, log: PartitionLog, answer: BrokerAnswer | None) -> LogView:
        if is_derived_topic_id(self.partition.topic_id) and not self._goes_on(log):
            self._require_same_records(log)
        stable = self._stable.of(log, answer)
        start_offset = self._start(log)
        segments = _above(_above(log.segments, log.log_start_offset), start_offset)
        compacted = answer.compacted if answer is not None else None
        return LogView(
            log=replace(
                log,
                segments=segments,
                leader_epochs=self._whole_history(log.lineage),
                own_epochs=log.lineage,
                high_watermark=_high_watermark(log, stable),
            ),
            stable=stable,
            log_start_offset=start_offset,
            topic=self._settings,
            compacted=log.compacted if compacted is None else compacted,
        )

    def _goes_on(self, log: PartitionLog) -> bool:
        """Return whether the log has only grown or lost its oldest segments since the last look."""
        before = self._seen[0].segments if self._seen is not None else ()
        now = log.segments
        if not before or not now:
            return False
        begins, ends = now[0].base_offset, now[-1].base_offset
        return begins >= before[0].base_offset and ends >= before[-1].base_offset

    def _require_same_records(self, log: PartitionLog) -> None:
        """Raise RemoteMetadataError when another topic of that name was archived. If topics have no
        ids, a topic that was deleted and created again has the same name."""
        try:
            difference = difference_from_archive(log, self._finished(), self._storage)
        except OSError as error:
            difference = f"cannot compare it with its archive: {error}"
        if difference:
            raise RemoteMetadataError(
                f"{difference}; not tiered, since without topic ids the name is all that tells "
                "one topic from another: if the topic was deleted and made again, move "
                f"{partition_prefix(self.partition)} out of the store and start with an empty "
                "state directory"
            )

    def _whole_history(self, local: LeaderEpochs | None) -> LeaderEpochs | None:
        if local is None:
            return None
        before = self._epochs
        if before is None:
            segments = self._finished()
            known = self._uploaded(segments) if ambiguous(segments) else LeaderEpochs()
            history = from_remote_segments(extended(local, known), self._stored())
        else:
            history = extended(local, before)
        if before is None or history.entries[:1] != before.entries[:1]:
            self._require_same_log(history)
        self._epochs = history
        return history

    def _require_same_log(self, history: LeaderEpochs) -> None:
        """Raise RemoteMetadataError when the log starts from the beginning, as on a new disk. The
        old segments belong to none of its leader epochs, so retention would delete them."""
        if not history.entries:
            return
        first, finished = history.entries[0], self._finished()
        before = [one for one in finished if one.leader_epochs[-1][0] < first.epoch]
        if not before:
            return
        # Does not count a deposed leader's copy if the later leader has copied the same offsets.
        covered = coverage(finished, history)
        lost = [one for one in before if not covered.holds(one.start_offset, one.end_offset)]
        if lost:
            end = max(one.end_offset for one in lost)
            raise RemoteMetadataError(
                f"its log begins anew at offset {first.start_offset} in leader epoch "
                f"{first.epoch}, and the store holds offsets up to {end} of earlier epochs; not "
                "tiered, so that those stay: restore the log, or give the broker another store "
                "and state directory"
            )

    def _uploaded(self, segments: list[RemoteLogSegmentMetadata]) -> LeaderEpochs:
        """Return the leader epochs in the newest segment's upload."""
        newest = newest_segment(segments)
        section = self._storage.fetch_indexes(newest, [IndexKind.LEADER_EPOCH])
        return parse_leader_epochs(bytes(section[IndexKind.LEADER_EPOCH]), log_key(newest))

    def _finished(self) -> list[RemoteLogSegmentMetadata]:
        return [
            metadata
            for metadata in self._metadata.list(self.partition)
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    def _stored(self) -> list[RemoteLogSegmentMetadata]:
        """Return the finished segments and the interrupted copies. An interrupted copy may be
        whole, and the broker may have deleted its records since then."""
        return [one for one in self._metadata.list(self.partition) if one.state in STORED]

    def _start(self, log: PartitionLog) -> int | None:
        """Return the log start offset of the archive: the recorded one, else the start of its first
        segment, else that of the broker. The broker's comes last, because its local retention
        advances it."""
        if self._log_start_offset is None:
            first = min((segment.start_offset for segment in self._stored()), default=None)
            # While no segment is tiered, the log start offset of the broker counts. It may advance.
            if first is None or log.log_start_offset is None:
                return log.log_start_offset if first is None else first
            self._log_start_offset = min(first, log.log_start_offset)
        return self._log_start_offset

    # -- the manager's side

    def view(self) -> LogView | None:
        """See `LocalLog`. When a segment is copied whose first records are deleted, their epochs
        become known. The later segments are then copied with the whole history."""
        if self._view is not None and self._must_relearn:
            # An error is ignored here, because the next look raises it.
            with self._lock, suppress(TierlogError, OSError):
                if self._seen is not None:
                    self._make_view(*self._seen)
        return self._view

    def advance_log_start_offset(self, offset: int) -> None:
        """See `LocalLog`. The offset is stored durably in the state directory."""
        self._metadata.advance_log_start_offset(self.partition, offset)
        with self._lock:
            self._log_start_offset = max(offset, self._log_start_offset or 0)
            view = self._view
            if view is not None:
                segments = _above(view.log.segments, self._log_start_offset)
                self._view = replace(
                    view,
                    log=replace(view.log, segments=segments),
                    log_start_offset=self._log_start_offset,
                )

    def raise_highest_remote_offset(self, offset: int) -> None:
        """See `LocalLog`. A sidecar deletes no local segments, so only the status uses this."""
        self._highest_remote_offset = max(self._highest_remote_offset, offset)

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        """Do nothing: the files belong to the broker."""


def _above(
    segments: tuple[SegmentFiles, ...], start_offset: int | None
) -> tuple[SegmentFiles, ...]:
    """Leave out segments below the log start offset of the broker or the archive. Their records are
    deleted, although the files still exist."""
    if start_offset is None:
        return segments
    return tuple(
        segment
        for segment in segments
        if segment.next_base_offset is None or segment.next_base_offset > start_offset
    )


def _high_watermark(log: PartitionLog, stable: StableOffset) -> int | None:
    """Return the larger of the checkpoint and the last stable offset. The checkpoint may lag behind
    the last stable offset, which is never too high."""
    known = [offset for offset in (log.high_watermark, stable.value) if offset is not None]
    return max(known, default=None)
