"""Copies one rolled segment of a log directory to the remote tier.

    scan + rebuild -> COPY_SEGMENT_STARTED -> .log -> .indexes -> verify -> COPY_SEGMENT_FINISHED

A copy starts only when the scan finds no damage and the segment matches its file name, the next
segment and the leader epochs. The sent bytes are hashed again and must equal the scanned bytes.
Readers ignore the objects until COPY_SEGMENT_FINISHED. A failed copy removes its objects; after a
crash, `SegmentCopier.resume` finishes the copy or removes its objects.

The model is Kafka's ``RemoteLogManager.RLMCopyTask``. Unlike Kafka, this copier rebuilds all
indexes from the log, so a damaged index file is never tiered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from tierlog.batches import BatchTable
from tierlog.clock import Clock
from tierlog.errors import (
    CorruptDataError,
    FencedLeaderError,
    RemoteMetadataError,
    RemoteStorageError,
    TierlogError,
)
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.files import FileChange, SegmentHandle
from tierlog.log.log_dir import PartitionLog
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES, RebuiltIndexes, rebuild_indexes
from tierlog.log.segment import scan_segment_in_parts
from tierlog.log.segment_checks import MAX_PROBLEMS, Problem, check_batches
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexesTooLargeError, IndexKind, encode_indexes
from tierlog.remote.segment.layout import encode_rdi, log_key, parse_rdi
from tierlog.remote.segment.log_index import (
    DEFAULT_GROUP_BYTES,
    decode_remote_log_index,
    encode_remote_log_index,
    group_batches,
)
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.remote.store.object_store import Draft, storage_error
from tierlog.types import (
    RemoteLogSegmentId,
    StopReason,
    TopicIdPartition,
    random_kafka_uuid,
)

__all__ = [
    "CopiedSegment",
    "CopyFailedError",
    "PreparedSegment",
    "SegmentCopier",
    "SegmentRefusedError",
    "encode_segment_indexes",
    "prepare",
    "segment_tables",
]

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

# A table of this many batches takes 10 MiB. If a segment has more batches, its copy reads the
# batches in parts.
MAX_TABLE_ROWS = 1 << 17
PART_BYTES = 4 << 20


class SegmentRefusedError(TierlogError):
    """The segment must not be copied: it is damaged, or contradicts its name or leader epochs.

    ``findings`` are lines with byte position, field, expected and found value; ``reason`` is one
    word.
    """

    def __init__(self, path: str, findings: list[str], reason: str = "damaged") -> None:
        self.path = path
        self.reason = reason
        self.findings = findings
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        super().__init__(f"{path}: not copied: {'; '.join(findings[:3])}{more}")


class CopyFailedError(TierlogError):
    """The store or the metadata manager failed during a copy. The objects of the copy are removed
    now or by a later run."""

    retriable = True


class _DamagedCopyError(TierlogError):
    """The store does not hold the bytes that were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """A segment in COPY_SEGMENT_FINISHED and its remoteLogIndex entries without a trailer."""

    metadata: RemoteLogSegmentMetadata
    remote_log_index: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSegment:
    """A segment whose scan found no damage, with the results of the scan.

    ``leader_epochs`` is the lineage from its first entry to the end of the segment; Kafka uploads
    the same entries. ``rebuilt`` holds the indexes and the producer state at the start of the next
    segment.
    """

    partition: TopicIdPartition
    segment: SegmentFiles
    end_offset: int
    rebuilt: RebuiltIndexes
    leader_epochs: LeaderEpochs
    log_crc32c: int
    size_bytes: int

    def metadata(
        self, segment_id: str, *, broker_id: int, event_timestamp_ms: int
    ) -> RemoteLogSegmentMetadata:
        """Return the metadata of the segment in COPY_SEGMENT_STARTED."""
        base_offset = self.segment.base_offset
        epochs = self.leader_epochs_of_batches()
        sizes = self.rebuilt.bytes_per_epoch
        known = {epoch for epoch, _ in epochs}
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(topic_id_partition=self.partition, id=segment_id),
            start_offset=base_offset,
            end_offset=self.end_offset,
            max_timestamp_ms=self.rebuilt.max_timestamp_ms,
            broker_id=broker_id,
            event_timestamp_ms=event_timestamp_ms,
            segment_size_bytes=self.size_bytes,
            leader_epochs=epochs,
            txn_index_empty=not self.rebuilt.transaction_index,
            # Messages of formats 0 and 1 belong to no leader epoch.
            bytes_per_epoch=sizes if known.issuperset(epoch for epoch, _ in sizes) else None,
            log_crc32c=self.log_crc32c,
        )

    def leader_epochs_of_batches(self) -> tuple[tuple[int, int], ...]:
        """Return (epoch, first offset) pairs that cover the segment.

        The pairs come from the lineage. Offsets before its first entry, whose records were deleted,
        get the epochs of the batches. The first pair starts at or below the base offset, even if
        compaction removed the first records."""
        base_offset = self.segment.base_offset
        lineage = [
            (entry.epoch, entry.start_offset)
            for entry in self.leader_epochs.clipped(base_offset, self.end_offset + 1)
        ]
        begin = lineage[0][1] if lineage else self.end_offset + 1
        before = [(epoch, start) for epoch, start in self.rebuilt.leader_epochs if start < begin]
        of_batches = {epoch for epoch, _ in before}
        epochs = (*before, *(entry for entry in lineage if entry[0] not in of_batches))
        first_epoch, first_start = epochs[0]
        return ((first_epoch, min(first_start, base_offset)), *epochs[1:])


def prepare(
    log: PartitionLog,
    segment: SegmentFiles,
    handle: SegmentHandle,
    *,
    producer_snapshot: bytes | None = None,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    allow_gaps: bool = False,
    max_table_rows: int = MAX_TABLE_ROWS,
    draft: Draft | None = None,
) -> PreparedSegment:
    """Scan an open segment and rebuild its indexes. Raises SegmentRefusedError when it is damaged.

    ``producer_snapshot`` is the producer state at the segment's base offset. ``allow_gaps``: the
    topic is compacted, so offsets may be missing. The scan also writes the segment to ``draft``,
    and raises RemoteStorageError when this write fails.
    """
    path = segment.log_path
    lineage = log.lineage
    if log.archive_id is None or lineage is None or segment.next_base_offset is None:
        raise SegmentRefusedError(path, ["topic id, leader epochs or end offset unknown"])
    try:
        rebuilt = rebuild_indexes(
            handle,
            index_interval_bytes,
            base_offset=segment.base_offset,
            producer_snapshot=producer_snapshot,
            accept_damage=True,
            hash_bytes=True,
            max_table_rows=max_table_rows,
            copy_to=draft,
        )
    except CorruptDataError as error:
        raise SegmentRefusedError(path, [str(error)]) from None
    except OSError as error:
        if draft is not None and error.filename == draft.name:
            raise draft.failed(error) from error
        raise
    table = rebuilt.table
    known = _known_epochs(log, lineage, segment)
    findings = _find_defects(rebuilt, handle, known, segment, allow_gaps)
    change = handle.recheck()
    if change not in (FileChange.UNCHANGED, FileChange.GONE):
        findings.append(f"the file was {change.value} while it was read")
    if findings or table.range_crc32c is None:
        raise SegmentRefusedError(path, findings)
    if draft is not None:
        draft.wrote(table.stop_position, table.range_crc32c)
    if known is not lineage:
        lineage = _with_epochs_of_batches(lineage, segment, rebuilt.leader_epochs, known)
    return PreparedSegment(
        partition=TopicIdPartition(
            topic_id=log.archive_id, topic=log.topic, partition=log.partition
        ),
        segment=segment,
        end_offset=segment.next_base_offset - 1,
        rebuilt=rebuilt,
        leader_epochs=lineage.up_to(segment.next_base_offset),
        log_crc32c=table.range_crc32c,
        size_bytes=table.stop_position,
    )


def _known_epochs(log: PartitionLog, lineage: LeaderEpochs, segment: SegmentFiles) -> LeaderEpochs:
    """Return the part of the lineage that is valid in the segment.

    When a broker deletes records, it cuts its epochs in the middle of a segment. Only the batches
    then tell the epochs of the deleted records, since an archive that ends before these records
    does not have their epochs."""
    own = log.own_epochs
    if own is None or not own.entries or own.entries[0].start_offset <= segment.base_offset:
        return lineage
    return own


def _with_epochs_of_batches(
    lineage: LeaderEpochs,
    segment: SegmentFiles,
    of_batches: Iterable[tuple[int, int]],
    known: LeaderEpochs,
) -> LeaderEpochs:
    """Return the lineage before the segment, then the epochs of its batches up to the first
    ``known`` epoch, then the ``known`` epochs."""
    first = known.entries[0]
    inside = [EpochEntry(*one) for one in of_batches if one[1] < first.start_offset]
    if all(one.epoch == first.epoch for one in inside):
        # The deleted records have no epoch of their own, so the log starts after them.
        return lineage
    merged = [one for one in lineage if one.start_offset < segment.base_offset]
    for entry in (*inside, *known):
        while merged and merged[-1].epoch > entry.epoch:
            merged.pop()
        if not merged or merged[-1].epoch < entry.epoch:
            merged.append(entry)
    return LeaderEpochs(tuple(merged))


def segment_tables(rebuilt: RebuiltIndexes, handle: SegmentHandle) -> Iterator[BatchTable]:
    """Return the batches of a scanned segment in one table, or in several tables if it has more
    than `MAX_TABLE_ROWS` batches."""
    if rebuilt.table_complete:
        return iter((rebuilt.table,))
    parts = scan_segment_in_parts(handle, PART_BYTES, verify_crc=False)
    return (table for table in parts if len(table))


def _find_defects(
    rebuilt: RebuiltIndexes,
    handle: SegmentHandle,
    lineage: LeaderEpochs,
    segment: SegmentFiles,
    allow_gaps: bool,
) -> list[str]:
    """Return one line for each defect of a scanned segment."""
    stop = rebuilt.table
    if stop.stop_reason is not StopReason.END:
        where = f"{stop.stop_reason} at byte {stop.stop_position}"
        return [f"{where}: expected {stop.stop_expected}, found {stop.stop_found}"]
    if stop.stop_position == 0:
        return ["no batches"]
    if not rebuilt.leader_epochs and not lineage.up_to(segment.next_base_offset or 0):
        return ["neither its records nor the leader-epoch-checkpoint name a leader epoch"]
    problems: list[Problem] = []
    base, end, epoch = segment.base_offset, 0, -1
    for table in segment_tables(rebuilt, handle):
        end = int(table.position[-1]) + int(table.size_bytes[-1])
        problems += check_batches(
            base_offset=table.base_offset,
            last_offset=table.last_offset,
            position=table.position,
            leader_epoch=table.leader_epoch,
            segment_base=base,
            next_base=segment.next_base_offset if end == stop.stop_position else None,
            lineage=lineage,
            allow_gaps=allow_gaps,
            magic=table.magic,
            epoch_before=epoch,
        )
        base, epoch = int(table.last_offset[-1]) + 1, int(table.leader_epoch[-1])
    if end != stop.stop_position:
        return [f"ends at byte {end} when read again: expected byte {stop.stop_position}"]
    return [str(problem) for problem in problems[:MAX_PROBLEMS]]


def encode_segment_indexes(
    prepared: PreparedSegment,
    tables: Iterable[BatchTable],
    metadata: RemoteLogSegmentMetadata,
    *,
    cluster_id: str = "",
    remote_index_interval_bytes: int = DEFAULT_GROUP_BYTES,
    data_id: Callable[[int], bytes] | None = None,
    gap_start_offset: int | None = None,
    claim_epoch: int | None = None,
) -> tuple[bytes, bytes]:
    """Return the segment's `.indexes` object and its remoteLogIndex entries.

    ``tables`` is the result of `segment_tables`. The same segment and metadata always give the same
    bytes.
    """
    rebuilt = prepared.rebuilt
    record_count = batch_count = 0
    entries: list[bytes] = []
    for table in tables:
        record_count += int(table.record_count.sum(dtype="int64"))
        batch_count += len(table)
        entries.append(
            group_batches(table, log_key(metadata), group_bytes=remote_index_interval_bytes)
        )
    description = SegmentDescription(
        metadata=metadata,
        record_count=record_count,
        batch_count=batch_count,
        cluster_id=cluster_id,
        gap_start_offset=gap_start_offset,
        claim_epoch=claim_epoch,
    )
    remote_log_index = b"".join(entries)
    if data_id is not None:
        remote_log_index = _with_data_ids(remote_log_index, metadata, data_id)
    sections = {
        IndexKind.OFFSET: rebuilt.offset_index,
        IndexKind.TIME: rebuilt.time_index,
        IndexKind.TRANSACTION: rebuilt.transaction_index,
        IndexKind.PRODUCER_SNAPSHOT: rebuilt.producer_snapshot,
        IndexKind.LEADER_EPOCH: prepared.leader_epochs.encode(),
        IndexKind.REMOTE_LOG: remote_log_index,
        IndexKind.BATCH_CHECKSUM: rebuilt.batch_checksums,
    }
    return encode_indexes(description, sections), remote_log_index


def _with_data_ids(
    data: bytes, metadata: RemoteLogSegmentMetadata, data_id: Callable[[int], bytes]
) -> bytes:
    """Return the entries, with their remote data ids replaced by those of another storage
    manager."""
    entries = decode_remote_log_index(data)
    partition = metadata.topic_id_partition
    return encode_remote_log_index(
        entries.first_offset,
        entries.last_offset,
        entries.first_timestamp_ms,
        entries.last_timestamp_ms,
        entries.data_length,
        [data_id(parse_rdi(rdi, partition)[1]) for rdi in entries.rdi],
    )


def _located(error: TierlogError, path: str) -> TierlogError | None:
    """Return an error with the path of the file in its message; None for an error that needs no
    path."""
    if isinstance(error, CorruptDataError):
        return error.located(path)
    if isinstance(error, RemoteStorageError | _DamagedCopyError):
        return CopyFailedError(f"{path}: {error}")
    return None


class SegmentCopier:
    """Copies prepared segments into one store. A call copies one segment and blocks until this is
    done. Any thread may call."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        clock: Clock,
        broker_id: int,
        cluster_id: str = "",
        remote_index_interval_bytes: int = DEFAULT_GROUP_BYTES,
        custom_metadata_max_bytes: int = 128,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._clock = clock
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._remote_index_interval_bytes = remote_index_interval_bytes
        self._custom_metadata_max_bytes = custom_metadata_max_bytes
        self._random_bytes = random_bytes

    @property
    def broker_id(self) -> int:
        """Id of the broker whose segments are copied."""
        return self._broker_id

    def new_id(self) -> str:
        """Return a new segment id. Every attempt to copy a segment has an id of its own."""
        return random_kafka_uuid(self._random_bytes)

    @contextmanager
    def draft(
        self, log: PartitionLog, segment: SegmentFiles, segment_id: str
    ) -> Iterator[Draft | None]:
        """Yield a draft that is passed to `prepare` and `copy` of one segment, so that the segment
        is read only once. None when the store has no drafts.

        With a draft, `prepare` already sends the bytes, so a paced copy must not use a draft.
        """
        draft = None
        if log.archive_id is not None:
            partition = TopicIdPartition(
                topic_id=log.archive_id, topic=log.topic, partition=log.partition
            )
            draft = self._storage.draft_log_segment_data(
                RemoteLogSegmentId(topic_id_partition=partition, id=segment_id),
                segment.base_offset,
                segment.size_bytes,
            )
        try:
            yield draft
        finally:
            if draft is not None:
                draft.close()

    def copy(
        self,
        prepared: PreparedSegment,
        handle: SegmentHandle,
        *,
        segment_id: str | None = None,
        leader_epoch: int | None = None,
        gate: Callable[[int], None] | None = None,
        draft: Draft | None = None,
        gap_start_offset: int | None = None,
        fence: Callable[[], None] | None = None,
    ) -> CopiedSegment:
        """Copy the segment of `handle` as the leader of `leader_epoch`. If that is None, no fence
        applies.

        ``gap_start_offset`` is the result of `eligibility.gap_start_offset`. It is stored with the
        segment.

        ``gate`` is called with the size of each chunk before the chunk is sent; it may block (a
        quota's `Transfer.before_piece`) or raise to stop the copy. ``fence`` is called when both
        objects are stored, and raises FencedLeaderError when the store knows a later leader. With a
        ``fence``, the `.indexes` object contains the epoch of the claim.

        Raises SegmentRefusedError when offsets and epochs of the segment contradict each other,
        CorruptDataError when the file has changed since the scan, CopyFailedError when the store
        fails or holds other bytes, and FencedLeaderError when a later leader owns the partition. A
        copy that fails or is stopped removes its objects. After FencedLeaderError, remaining
        objects belong to the later leader. With a ``fence``, objects that a later leader may have
        found are kept, and `resume` finishes or removes them.
        """
        started = self._new_metadata(prepared, handle.path, segment_id or self.new_id())
        claim_epoch = None if fence is None else leader_epoch
        try:
            indexes, entries = self.encode_indexes(
                prepared, handle, started, gap_start_offset, claim_epoch
            )
        except IndexesTooLargeError as error:
            raise SegmentRefusedError(handle.path, [str(error)], "indexes_too_large") from None
        self._metadata.add(started, leader_epoch=leader_epoch)
        sent_bytes = 0

        def before_chunk(chunk_bytes: int) -> None:
            nonlocal sent_bytes
            if gate is not None:
                gate(chunk_bytes)
            sent_bytes += chunk_bytes

        try:
            log = handle.fileno() if draft is None else draft
            custom = self._storage.copy_log_segment_data(
                started, log, indexes, before_chunk=before_chunk
            )
            started = replace(started, custom_metadata=custom)
            self._require_small_custom_metadata(started)
            self._require_stored(started, indexes)
            if fence is not None:
                fence()
        except TierlogError as error:
            may_be_found = fence is not None and sent_bytes > prepared.size_bytes
            self._give_up(started, leader_epoch, error, may_be_found=may_be_found)
            located = _located(error, handle.path)
            if located is None:
                raise
            raise located from error
        return CopiedSegment(metadata=self._finish(started, leader_epoch), remote_log_index=entries)

    def _new_metadata(
        self, prepared: PreparedSegment, path: str, segment_id: str
    ) -> RemoteLogSegmentMetadata:
        try:
            return prepared.metadata(
                segment_id, broker_id=self._broker_id, event_timestamp_ms=self._clock.now_ms()
            )
        except ValueError as error:
            raise SegmentRefusedError(path, [str(error)]) from None

    def _give_up(
        self,
        metadata: RemoteLogSegmentMetadata,
        leader_epoch: int | None,
        error: TierlogError,
        *,
        may_be_found: bool,
    ) -> None:
        """Remove the objects of a failed copy. Keep them if a later leader may have found the copy
        sound (`may_be_found`), because that leader does not copy the records again."""
        if not may_be_found or isinstance(error, _DamagedCopyError):
            self._remove(metadata, leader_epoch)
        elif isinstance(error, FencedLeaderError):
            self.forget(metadata, leader_epoch)

    def encode_indexes(
        self,
        prepared: PreparedSegment,
        handle: SegmentHandle,
        metadata: RemoteLogSegmentMetadata,
        gap_start_offset: int | None = None,
        claim_epoch: int | None = None,
    ) -> tuple[bytes, bytes]:
        """Return the `.indexes` object of a prepared segment and its remoteLogIndex entries."""
        return encode_segment_indexes(
            prepared,
            segment_tables(prepared.rebuilt, handle),
            metadata,
            cluster_id=self._cluster_id,
            remote_index_interval_bytes=self._remote_index_interval_bytes,
            data_id=self._foreign_data_ids(metadata),
            gap_start_offset=gap_start_offset,
            claim_epoch=claim_epoch,
        )

    def has_copied(self, prepared: PreparedSegment, broken: Container[str]) -> bool:
        """Return whether a finished remote segment has the same offsets and bytes.

        ``broken`` holds the ids of remote segments with missing or damaged objects.
        """
        offsets = prepared.segment.base_offset, prepared.end_offset
        epochs = prepared.leader_epochs_of_batches()
        if not epochs:
            return False
        known = self._metadata.lookup(prepared.partition, epochs[0][0], offsets[0])
        return (
            known is not None
            and known.segment_id.id not in broken
            and (known.start_offset, known.served_end_offset) == offsets
            and known.segment_size_bytes == prepared.size_bytes
            and known.log_crc32c == prepared.log_crc32c
        )

    def resume(
        self,
        metadata: RemoteLogSegmentMetadata,
        *,
        leader_epoch: int | None = None,
        fence: Callable[[], None] | None = None,
    ) -> RemoteLogSegmentMetadata | None:
        """Finish an interrupted copy if its objects are complete, or else remove it.

        Returns the finished segment or None. Raises RemoteStorageError when the store does not
        answer. ``fence`` is called before a complete segment is finished, see `copy`. If it raises
        FencedLeaderError, the objects are kept.
        """
        started = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        # A copy of another storage manager is not finished: the storage manager may need custom
        # metadata for it, and this is lost.
        is_own = self._storage.store is not None
        if started and is_own and not self._storage.verify(metadata, deep=True):
            if fence is not None:
                fence()
            return self._advance(metadata, _FINISHED, leader_epoch)
        self.delete(metadata, leader_epoch=leader_epoch)
        return None

    def delete(
        self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """Remove a segment in any state. The call may be repeated after a failure.

        The state changes before the first object is removed, so that no reader uses the segment.
        Raises RemoteStorageError when the store refuses. The segment is then still in
        DELETE_SEGMENT_STARTED.
        """
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            return
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            metadata = self._advance(
                metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, leader_epoch
            )
        self._storage.delete_log_segment_data(metadata)
        self._advance(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, leader_epoch)

    def forget(self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None = None) -> None:
        """Forget a segment and leave its objects to the later leader of its partition."""
        for state in (
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
        ):
            # If brokers share the metadata, the segment there also belongs to the later leader.
            with suppress(FencedLeaderError):
                metadata = self._advance(metadata, state, leader_epoch)

    def _foreign_data_ids(
        self, metadata: RemoteLogSegmentMetadata
    ) -> Callable[[int], bytes] | None:
        """Return the encoder of another storage manager's remote data ids; None for tierlog's own
        ids, which `group_batches` writes."""
        encode = partial(self._storage.encode_data_id, metadata)
        return None if encode(0) == encode_rdi(metadata, 0) else encode

    def _require_small_custom_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        size_bytes = len(metadata.custom_metadata or b"")
        if size_bytes > self._custom_metadata_max_bytes:
            raise storage_error(
                f"{metadata.segment_id}: the storage manager {self._storage.url} returned "
                f"{size_bytes} bytes of custom metadata, expected at most "
                f"{self._custom_metadata_max_bytes}; "
                "raise remote.log.metadata.custom.metadata.max.bytes",
                retriable=False,
            )

    def _require_stored(self, metadata: RemoteLogSegmentMetadata, indexes: bytes) -> None:
        problems = self._storage.verify_copy(metadata, indexes)
        if problems:
            raise _DamagedCopyError("; ".join(map(str, problems)))

    def _finish(
        self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None
    ) -> RemoteLogSegmentMetadata:
        try:
            return self._advance(metadata, _FINISHED, leader_epoch)
        except RemoteMetadataError:
            self._remove_unknown(metadata)
            raise

    def _remove(self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None) -> None:
        """Remove a failed copy. When the store refuses, `resume` removes it later."""
        try:
            self.delete(metadata, leader_epoch=leader_epoch)
        except RemoteStorageError:
            return
        except RemoteMetadataError:
            self._remove_unknown(metadata)
            raise

    def _remove_unknown(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove the objects of a copy that another task or node has deleted from the metadata.

        The deletion may have happened before the objects existed, and no metadata refers to
        them."""
        known = self._metadata.get(metadata.segment_id)
        if known is None or known.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            with suppress(RemoteStorageError):
                self._storage.delete_log_segment_data(metadata)

    def _advance(
        self,
        metadata: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        leader_epoch: int | None,
    ) -> RemoteLogSegmentMetadata:
        update = metadata.update_to(state, event_timestamp_ms=self._clock.now_ms())
        self._metadata.update(update, leader_epoch=leader_epoch)
        return replace(metadata, state=state, event_timestamp_ms=update.event_timestamp_ms)
