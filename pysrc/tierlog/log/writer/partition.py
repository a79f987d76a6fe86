"""One partition's log: append, roll, flush, truncate, delete."""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tierlog import _core
from tierlog.clock import Clock
from tierlog.config.topic import TopicConfig
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.index_files import ProducerSnapshot, read_producer_snapshot
from tierlog.log.log_dir import PartitionLog
from tierlog.log.records import MAX_DECOMPRESSED_BYTES
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.log.writer.batches import ProducerEpoch, is_one_batch
from tierlog.log.writer.cleaner import CleanedSegment, CompactionJob, rolled_facts
from tierlog.log.writer.compaction import LogFacts, Round, plan_round
from tierlog.log.writer.files import create_file, sync_directory, write_all
from tierlog.log.writer.recovery import (
    OpenedLog,
    OpenRequest,
    RolledSegment,
    open_log,
    rolled_files,
)
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.log.writer.retention import SegmentFacts, expired_segments
from tierlog.log.writer.segment import ActiveSegment, RollLimits, segment_path
from tierlog.log.writer.swap import delete_drafts, has_draft, swap_in
from tierlog.log.writer.validation import (
    AppendOrigin,
    CheckedBatches,
    NewBatch,
    check_batches,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Appended", "PartitionWriter", "WriterOptions"]

_NEVER_MS = 2**63 - 1
# What an event loop may append itself: about a millisecond of work.
_AT_ONCE_BYTES = 64 << 10
_AT_ONCE_DECOMPRESSED_BYTES = 1 << 20
_KINDS = ("log", "index", "timeindex", "txnindex")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """What all partitions of a node share. ``on_failure`` receives the path of a partition that
    stopped, and why."""

    producer_id_expiration_ms: int = 86_400_000
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    on_failure: Callable[[str, OSError], object] = lambda path, error: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The place of the appended records. ``append_time_ms`` is -1 when producers set the time;
    ``is_duplicate``: the log had the batch already."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class _MustWaitError(Exception):
    """The append has to begin a segment or to sync a file."""


class PartitionWriter:
    """The log of one partition. Calls may come from any thread; they block and are serialised.

    An OSError of a write or a sync stops the partition: what the disk holds is unknown until the
    next start recovers it. Every later call is refused with KAFKA_STORAGE_ERROR.
    """

    def __init__(
        self,
        directory: str,
        listed: PartitionLog,
        topic: TopicConfig,
        *,
        clock: Clock,
        options: WriterOptions,
        is_clean: bool,
        cleaned_offset: int | None = None,
    ) -> None:
        """Open the log of `listed`, which has identity, recovery point and log start offset.
        ``cleaned_offset``: the end of the last round of compaction."""
        self.directory = directory
        self._listed = listed
        self._clock = clock
        self._options = options
        self._lock = threading.RLock()
        self._failure: OSError | None = None
        self._is_closed = False
        self.topic = topic
        self.cleaned_offset = cleaned_offset
        # A round of compaction that a truncation overtakes knows keys that are gone.
        self._truncations = 0
        self.log_start_offset = listed.log_start_offset or 0
        self._view: PartitionLog | None = None
        # Rolled segments whose files are not synced yet, and are therefore still open.
        self._unsynced: list[ActiveSegment] = []
        self._unflushed_records = 0
        # Renamed files of deleted segments, each with the time from which on it may go.
        self._renamed: deque[tuple[int, str]] = deque()
        self._take(self._open(listed.recovery_point or 0, is_clean=is_clean))
        first = self._segments[0].files.base_offset if self._segments else self._active.base_offset
        if listed.log_start_offset is None:
            self.log_start_offset = first

    def _open(self, recovery_point: int, *, is_clean: bool) -> OpenedLog:
        # As in Kafka, a change counts from the next segment on.
        self._index_interval_bytes = self.topic.index_interval_bytes
        request = OpenRequest(
            directory=self.directory,
            index_interval_bytes=self._index_interval_bytes,
            recovery_point=recovery_point,
            log_start_offset=self.log_start_offset,
            is_clean=is_clean,
            now_ms=self._clock.now_ms(),
        )
        opened = open_log(request)
        if opened.active.end_offset >= self.log_start_offset:
            return opened
        # The log ends below its start: nothing of it is readable.
        opened.active.close()
        self._unlink_all()
        return open_log(replace(request, recovery_point=self.log_start_offset))

    def _take(self, opened: OpenedLog) -> None:
        self._segments = list(opened.rolled)
        self._active = opened.active
        self._high_watermark = opened.active.end_offset
        self._indexer = opened.indexer
        self._producers = opened.producers
        self._epochs = opened.epochs
        self.recovery_point = opened.recovery_point
        self.cut_bytes = opened.cut_bytes
        self._view = None

    # -- state

    @property
    def name(self) -> str:
        """``<topic>-<partition>``."""
        return self._listed.name

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._active.end_offset

    @property
    def high_watermark(self) -> int:
        """Consumers read below it: the end of the records that may be acknowledged. There are no
        other replicas. Records whose sync failed lie above it, since the next start may lose them.
        """
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the high watermark."""
        return max(self._active.last_stable_offset, self.log_start_offset)

    @property
    def local_log_start_offset(self) -> int:
        """First offset that the local segments have."""
        with self._lock:
            first = self._segments[0].files.base_offset if self._segments else None
            base = self._active.base_offset if first is None else first
            return max(base, self.log_start_offset)

    @property
    def failure(self) -> OSError | None:
        """Why the partition stopped; None while it works."""
        return self._failure

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The lineage of the log."""
        return self._epochs.epochs

    def view(self) -> PartitionLog:
        """Return the log as a listing shows it; the same object until something changes."""
        with self._lock:
            if self._view is None:
                active = self._active
                files = rolled_files(self.directory, active.base_offset, active.base_offset)
                last = replace(
                    files,
                    next_base_offset=None,
                    end_snapshot_path=None,
                    size_bytes=active.size_bytes,
                )
                self._view = replace(
                    self._listed,
                    segments=(*(one.files for one in self._segments), last),
                    leader_epochs=self._epochs.epochs,
                    log_start_offset=self.log_start_offset,
                    high_watermark=self.high_watermark,
                    recovery_point=self.recovery_point,
                    compacted=self.topic.is_compacted or self.cleaned_offset is not None,
                )
            return self._view

    def view_at_once(self) -> PartitionLog:
        """As `view`, but BlockingIOError while another call changes the log."""
        if not self._lock.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, f"{self.name}: the log is changing")
        try:
            return self.view()
        finally:
            self._lock.release()

    def configure(self, topic: TopicConfig) -> None:
        """Set the settings of the topic, from the next call on."""
        with self._lock:
            self.topic = topic
            self._view = None

    def describe_producers(self) -> ProducerSnapshot:
        """Return the producers that wrote to the partition and have not expired, as a snapshot at
        its end has them."""
        with self._lock, self._stopping():
            return read_producer_snapshot(self._indexer.producer_snapshot())

    # -- appending

    def append(
        self,
        data: Buffer,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_of: ProducerEpoch | None = None,
    ) -> Appended:
        """Append record batches and return their offsets.

        ``transaction_of``: the only producer that may append transactional batches, because the
        partition is part of its transaction. AppendRefusedError when the batches may not be
        appended, or when the partition has stopped.
        """
        limit_bytes = self._options.max_decompressed_bytes
        return self._append(data, leader_epoch, origin, transaction_of, limit_bytes)

    def append_at_once(
        self, data: Buffer, *, leader_epoch: int, transaction_of: ProducerEpoch | None = None
    ) -> Appended:
        """Append one batch of at most 64 KiB like `append`, but without waiting.

        Raises BlockingIOError for other data, for a batch that `append` would refuse, and when the
        append would have to wait for another call or for a sync. The log is then unchanged, and
        the caller uses `append` in a thread."""
        if memoryview(data).nbytes > _AT_ONCE_BYTES or not is_one_batch(data):
            raise BlockingIOError(errno.EAGAIN, f"{self.name}: not one small batch")
        if not self._lock.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, f"{self.name}: the log is changing")
        limit_bytes = min(self._options.max_decompressed_bytes, _AT_ONCE_DECOMPRESSED_BYTES)
        try:
            return self._append(
                data, leader_epoch, AppendOrigin.CLIENT, transaction_of, limit_bytes, at_once=True
            )
        except (_MustWaitError, AppendRefusedError) as error:
            raise BlockingIOError(errno.EAGAIN, f"{self.name}: {error}") from None
        finally:
            self._lock.release()

    def _append(
        self,
        data: Buffer,
        leader_epoch: int,
        origin: AppendOrigin,
        transaction_of: ProducerEpoch | None,
        max_decompressed_bytes: int,
        *,
        at_once: bool = False,
    ) -> Appended:
        now_ms = self._clock.now_ms()
        checked = check_batches(
            data,
            self.topic,
            now_ms,
            origin=origin,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        if origin is AppendOrigin.CLIENT:
            _require_transaction(checked.batches, transaction_of)
        with self._lock, self._stopping():
            self._require_epoch(leader_epoch)
            append_time_ms = now_ms if checked.log_append_time else -1
            first = checked.batches[0]
            known = self._producers.find_duplicate(first) if len(checked.batches) == 1 else None
            if known is not None:
                return Appended(
                    base_offset=known.first_offset,
                    last_offset=known.last_offset,
                    append_time_ms=known.timestamp_ms if checked.log_append_time else -1,
                    log_start_offset=self.log_start_offset,
                    is_duplicate=True,
                )
            self._producers.check(checked.batches)
            base_offset = self._write(checked, leader_epoch, now_ms, at_once=at_once)
            return Appended(
                base_offset=base_offset,
                last_offset=self.log_end_offset - 1,
                append_time_ms=append_time_ms,
                log_start_offset=self.log_start_offset,
            )

    def _require_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self._epochs.latest:
            text = f"{self.name}: leader epoch {leader_epoch} is older than {self._epochs.latest}"
            raise AppendRefusedError(Refusal.FENCED_LEADER_EPOCH, text)

    def _write(
        self, checked: CheckedBatches, leader_epoch: int, now_ms: int, *, at_once: bool
    ) -> int:
        base_offset = self.log_end_offset
        last_offset = base_offset + checked.record_count - 1
        limits = RollLimits(
            segment_bytes=self.topic.rolls_at_bytes,
            segment_ms=self.topic.rolls_at_ms,
            index_bytes=self.topic.segment_index_bytes,
        )
        if checked.size_bytes > limits.segment_bytes:
            raise AppendRefusedError(
                Refusal.RECORD_LIST_TOO_LARGE,
                f"{checked.size_bytes} bytes exceed segment.bytes, {limits.segment_bytes}",
            )
        newest_ms = checked.max_timestamp_ms
        is_full = self._active.is_full(checked.size_bytes, last_offset, newest_ms, limits, now_ms)
        unflushed = self._unflushed_records + checked.record_count
        must_flush = unflushed >= self.topic.flush_messages
        if at_once and (is_full or must_flush or leader_epoch != self._epochs.latest):
            raise _MustWaitError("the append syncs a file")
        if is_full:
            self._roll(now_ms)
        self._epochs.assign(leader_epoch, base_offset)
        stamped = _core.assign_offsets(
            checked.data,
            base_offset,
            leader_epoch,
            [one.max_timestamp_ms for one in checked.batches],
            checked.log_append_time,
        )
        self._active.append(stamped)
        self._producers.learn_appended(checked.batches, base_offset)
        self._view = None
        self._unflushed_records = unflushed
        if must_flush:
            self._flush()
        self._high_watermark = self.log_end_offset
        return base_offset

    # -- segments

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        with self._lock, self._stopping():
            if self._active.size_bytes:
                self._roll(self._clock.now_ms())

    def _roll(self, now_ms: int) -> None:
        old, base_offset = self._active, self.log_end_offset
        newest_ms = old.max_timestamp_ms
        expiration_ms = self._options.producer_id_expiration_ms
        snapshot = old.finish(now_ms, expiration_ms)
        self._producers.expire(now_ms - expiration_ms)
        self._write_snapshot(base_offset, snapshot)
        if self._index_interval_bytes != self.topic.index_interval_bytes:
            self._index_interval_bytes = self.topic.index_interval_bytes
            self._indexer = _core.SegmentIndexer(base_offset, self._index_interval_bytes, snapshot)
        self._active = ActiveSegment(self.directory, base_offset, self._indexer, now_ms)
        files = rolled_files(self.directory, old.base_offset, base_offset)
        self._segments.append(RolledSegment(files=files, newest_ms=newest_ms))
        self._unsynced.append(old)
        self._view = None

    def _write_snapshot(self, offset: int, snapshot: bytes) -> None:
        path = segment_path(self.directory, offset, "snapshot")
        fd = create_file(path)
        try:
            os.ftruncate(fd, 0)
            write_all(fd, snapshot, 0)
            os.fsync(fd)
        finally:
            os.close(fd)

    def flush_rolled(self) -> None:
        """Sync the segments that were rolled since the last call, and raise the recovery point."""
        with self._lock, self._stopping():
            waiting = list(self._unsynced)
        for segment in waiting:
            try:
                segment.sync()
            except OSError as error:
                self._stop(error)
                raise
        with self._lock:
            for segment in waiting:
                if segment in self._unsynced:
                    self._unsynced.remove(segment)
                    segment.close()
                    self.recovery_point = max(self.recovery_point, _end_of(segment, self._segments))
            if waiting:
                sync_directory(self.directory)

    def flush(self) -> None:
        """Make every appended record durable."""
        with self._lock, self._stopping():
            self._flush()

    def _flush(self) -> None:
        for segment in [*self._unsynced, self._active]:
            segment.sync()
        sync_directory(self.directory)
        while self._unsynced:
            self._unsynced.pop().close()
        self._unflushed_records = 0
        self.recovery_point = self.log_end_offset

    # -- compaction

    def plan_compaction(self) -> Round | None:
        """Return the round of compaction that is due; None when none is."""
        with self._lock:
            if not self.topic.is_compacted or self._failure is not None or self._is_closed:
                return None
            return self._plan_round()

    def _plan_round(self) -> Round | None:
        now_ms, topic = self._clock.now_ms(), self.topic
        is_bounded = now_ms > topic.max_compaction_lag_ms
        log = LogFacts(
            cleaned_offset=self.cleaned_offset,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            last_stable_offset=self.last_stable_offset,
        )
        facts = [
            rolled_facts(one.files, one.newest_ms, with_first=is_bounded) for one in self._segments
        ]
        return plan_round(log, facts, topic, now_ms)

    def compact(self, budget_bytes: int) -> int | None:
        """Run the round of compaction that is due, and return the offset up to which the log is
        compacted; None when none is due, or when it was given up because the log changed.

        ``budget_bytes`` bounds the memory for keys. Appends and reads go on meanwhile.
        CorruptDataError for a damaged segment, OSError when a new one cannot be written; the log
        is then as before.
        """
        self.flush_rolled()
        with self._lock, self._stopping():
            planned = self._plan_round() if self.topic.is_compacted else None
            if planned is None:
                return None
            delete_drafts(self.directory)
            truncations = self._truncations
            job = CompactionJob(
                directory=self.directory,
                topic=self.topic,
                round=planned,
                segments=self.view().segments,
                last_records=self._producers.last_records(),
                now_ms=self._clock.now_ms(),
                max_decompressed_bytes=self._options.max_decompressed_bytes,
                should_stop=lambda: self._is_closed or self._failure is not None,
            )
        try:
            end_offset = job.run(budget_bytes, lambda one: self._replace(job, one, truncations))
        except (FileNotFoundError, CorruptDataError):
            if self._has_all(job.segments[:-1]):
                raise
            end_offset = None
        finally:
            self._delete_drafts()
        with self._lock:
            if end_offset is None or truncations != self._truncations:
                return None
            self.cleaned_offset = end_offset
        return end_offset

    def _has_all(self, segments: Sequence[SegmentFiles]) -> bool:
        with self._lock:
            known = {one.files.base_offset for one in self._segments}
            return not self._is_closed and all(one.base_offset in known for one in segments)

    def _delete_drafts(self) -> None:
        # After a failed swap they show the next start how far it came.
        with self._lock:
            if self._failure is None and not self._is_closed:
                delete_drafts(self.directory)

    def _replace(self, job: CompactionJob, cleaned: CleanedSegment, truncations: int) -> bool:
        """Put a compacted segment in the place of those it was made from; False when one of them
        is gone, or when the log was truncated since."""
        made_from = [one for one in job.segments if one.base_offset in cleaned.replaced]
        with self._lock:
            if job.should_stop() or truncations != self._truncations:
                return False
            first = bisect_left(
                self._segments, cleaned.base_offset, key=lambda one: one.files.base_offset
            )
            rows = slice(first, first + len(made_from))
            is_same = [one.files for one in self._segments[rows]] == made_from
            if not is_same or not has_draft(self.directory, cleaned.base_offset):
                return False
            with self._stopping():
                swap_in(self.directory, cleaned.base_offset, cleaned.replaced)
            end = made_from[-1].next_base_offset or self._active.base_offset
            files = rolled_files(self.directory, cleaned.base_offset, end)
            self._segments[rows] = [RolledSegment(files=files, newest_ms=cleaned.newest_ms)]
            self._view = None
            return True

    # -- shortening

    def truncate_to(self, offset: int) -> None:
        """Delete all batches that reach `offset` or lie above it; nothing to do above the end."""
        with self._lock, self._stopping():
            if offset >= self.log_end_offset:
                return
            self._truncations += 1
            self._close_files()
            bases = [one.files.base_offset for one in self._segments]
            for base in [*bases, self._active.base_offset]:
                if base >= offset:
                    self._unlink(base)
            kept = [base for base in [*bases, self._active.base_offset] if base < offset]
            if kept:
                _cut_segment(segment_path(self.directory, kept[-1], "log"), offset)
            sync_directory(self.directory)
            self.log_start_offset = min(self.log_start_offset, offset)
            if self.cleaned_offset is not None:
                self.cleaned_offset = min(self.cleaned_offset, offset)
            point = min(self.recovery_point, offset)
            self._take(self._open(point, is_clean=True))

    def raise_log_start_offset(self, offset: int) -> None:
        """Delete the records below `offset`; OutOfRangeError above the high watermark."""
        with self._lock, self._stopping():
            if offset > self.high_watermark:
                text = f"offset {offset} is above the high watermark, {self.high_watermark}"
                raise OutOfRangeError(f"{self.name}: {text}")
            if offset > self.log_start_offset:
                self.log_start_offset = offset
                self._epochs.cut_below(offset)
                self._view = None

    def delete_segments_below(self, offset: int) -> int:
        """Delete the rolled segments that end at or below `offset`; return how many.

        The view loses them before the files go."""
        with self._lock, self._stopping():
            count = 0
            for segment in self._segments:
                end = segment.files.next_base_offset
                if end is None or end > offset:
                    break
                count += 1
            self._drop(count)
            return count

    def apply_retention(self) -> int:
        """Delete the segments that retention does not keep; return how many. For topics that are
        not tiered: the log start offset moves with the segments."""
        with self._lock, self._stopping():
            now_ms = self._clock.now_ms()
            facts = [
                SegmentFacts(one.files.next_base_offset, one.files.size_bytes, one.newest_ms)
                for one in self._segments
            ]
            active = self._active
            facts.append(SegmentFacts(None, active.size_bytes, active.max_timestamp_ms))
            count = expired_segments(facts, self.topic, self.log_start_offset, now_ms)
            if count > len(self._segments):
                self._roll(now_ms)
            if count:
                self._drop(count)
                start = self.local_log_start_offset
                self.log_start_offset = max(self.log_start_offset, start)
                self._epochs.cut_below(self.log_start_offset)
            return count

    def _drop(self, count: int) -> None:
        dropped, self._segments = self._segments[:count], self._segments[count:]
        self._view = None
        for segment in dropped:
            base = segment.files.base_offset
            for one in [one for one in self._unsynced if one.base_offset == base]:
                self._unsynced.remove(one)
                one.close()
            self._rename(base)

    def _rename(self, base: int) -> None:
        """Rename the files of a segment, as Kafka does, so that no start finds it again; they go
        after file.delete.delay.ms."""
        if not self.topic.file_delete_delay_ms:
            self._unlink(base)
            return
        due_ms = self._clock.monotonic_ms() + self.topic.file_delete_delay_ms
        for kind in (*_KINDS, "snapshot"):
            path = segment_path(self.directory, base, kind)
            if os.path.lexists(path):
                os.rename(path, f"{path}.deleted")
                self._renamed.append((due_ms, f"{path}.deleted"))

    def unlink_renamed(self) -> None:
        """Delete the files of deleted segments whose delay is over. After a restart none are left.

        The oldest goes first: a delay that became shorter counts from the next segment on.
        """
        with self._lock, self._stopping():
            now_ms = self._clock.monotonic_ms()
            while self._renamed and self._renamed[0][0] <= now_ms:
                with suppress(FileNotFoundError):
                    os.unlink(self._renamed.popleft()[1])

    def _unlink(self, base: int) -> None:
        for kind in (*_KINDS, "snapshot"):
            path = segment_path(self.directory, base, kind)
            if os.path.lexists(path):
                os.unlink(path)

    def _unlink_all(self) -> None:
        for name in os.listdir(self.directory):
            if name.rpartition(".")[2] in (*_KINDS, "snapshot"):
                os.unlink(os.path.join(self.directory, name))

    # -- ending

    def close(self) -> bool:
        """Flush and close; return whether the log is whole on disk. May be repeated."""
        with self._lock:
            if self._is_closed:
                return self._failure is None
            self._is_closed = True
            try:
                if self._failure is None:
                    end_offset = self.log_end_offset
                    # As at a roll, so that the time index ends with the newest timestamp.
                    snapshot = self._active.finish(self._clock.now_ms(), _NEVER_MS)
                    self._write_snapshot(end_offset, snapshot)
                    self._flush()
            except OSError as error:
                self._stop(error)
            finally:
                self._close_files()
            return self._failure is None

    def _close_files(self) -> None:
        self._active.close()
        while self._unsynced:
            self._unsynced.pop().close()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Refuse a partition that has stopped; stop it when an operation of the disk fails."""
        if self._failure is not None or self._is_closed:
            why = f"stopped: {self._failure}" if self._failure else "closed"
            raise AppendRefusedError(Refusal.KAFKA_STORAGE_ERROR, f"{self.name} is {why}")
        try:
            yield
        except OSError as error:
            self._stop(error)
            text = f"{self.name} has stopped: {error}"
            raise AppendRefusedError(Refusal.KAFKA_STORAGE_ERROR, text) from error

    def _stop(self, error: OSError) -> None:
        if self._failure is None:
            self._failure = error
            self._options.on_failure(self.directory, error)


def _require_transaction(batches: Iterable[NewBatch], allowed: ProducerEpoch | None) -> None:
    """A transactional batch needs a transaction that the partition is part of, or it would never
    end."""
    for batch in batches:
        if batch.is_transactional and (batch.producer_id, batch.producer_epoch) != allowed:
            raise AppendRefusedError(
                Refusal.INVALID_TXN_STATE,
                f"producer {batch.producer_id} epoch {batch.producer_epoch}: this partition is "
                "not part of a transaction of this producer",
            )


def _end_of(segment: ActiveSegment, rolled: list[RolledSegment]) -> int:
    ends = {one.files.base_offset: one.files.next_base_offset for one in rolled}
    return ends.get(segment.base_offset) or 0


def _cut_segment(path: str, offset: int) -> None:
    table = scan_segment(path, verify_crc=False)
    ends = zip(table.last_offset.tolist(), table.position.tolist(), strict=True)
    cut = next((position for last, position in ends if last >= offset), table.stop_position)
    os.truncate(path, cut)
