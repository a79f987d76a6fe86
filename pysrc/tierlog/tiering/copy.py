"""Copies one rolled segment of a broker's directory to the remote tier.

    scan + rebuild -> COPY_SEGMENT_STARTED -> .log -> .indexes -> verify -> COPY_SEGMENT_FINISHED

A copy begins only when the segment scans clean and fits its name, its neighbour and the leader
epochs; the bytes sent are hashed again and must be those that were scanned. Until
COPY_SEGMENT_FINISHED nobody reads the objects, and a copy that fails removes what it wrote. What a
crash leaves behind, `SegmentCopier.resume` finishes or removes.

Kafka's ``RemoteLogManager.RLMCopyTask`` is the model; unlike it, all indexes are rebuilt from the
log here, so a damaged index file beside a good log is never tiered.
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
    RemoteMetadataError,
    RemoteStorageError,
    TierlogError,
)
from tierlog.log.checkpoint import LeaderEpochs
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

# The table of so many batches takes 10 MiB; beyond that a copy looks at a part at a time.
MAX_TABLE_ROWS = 1 << 17
PART_BYTES = 4 << 20


class SegmentRefusedError(TierlogError):
    """A segment that must not be copied: damaged, or not what its name and epochs say.

    ``findings`` are lines that name byte, field, expected and found value; ``reason`` is a word.
    """

    def __init__(self, path: str, findings: list[str], reason: str = "damaged") -> None:
        self.path = path
        self.reason = reason
        self.findings = findings
        more = f" (and {len(findings) - 3} more)" if len(findings) > 3 else ""
        super().__init__(f"{path}: not copied: {'; '.join(findings[:3])}{more}")


class CopyFailedError(TierlogError):
    """The store or the metadata manager failed; what was written is removed or will be."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSegment:
    """A segment in COPY_SEGMENT_FINISHED, and its remoteLogIndex entries, without a trailer."""

    metadata: RemoteLogSegmentMetadata
    remote_log_index: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSegment:
    """A segment that scanned clean, and what was found on the way.

    ``leader_epochs`` is the lineage from its beginning up to the segment's end, as Kafka uploads
    it. ``rebuilt`` holds the indexes and the producer state the next segment starts from.
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
        """The segment as COPY_SEGMENT_STARTED announces it, under a new id."""
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
            # Messages older than leader epochs are counted for none of them.
            bytes_per_epoch=sizes if known.issuperset(epoch for epoch, _ in sizes) else None,
            log_crc32c=self.log_crc32c,
        )

    def leader_epochs_of_batches(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset) pairs over the whole segment: the lineage, and before the lineage
        begins, where records were deleted, the epochs in the batches. The first pair begins at the
        base offset or below, also where the cleaner left nothing from there on."""
        base_offset = self.segment.base_offset
        lineage = [
            (entry.epoch, entry.start_offset)
            for entry in self.leader_epochs.clipped(base_offset, self.end_offset + 1)
        ]
        begin = lineage[0][1] if lineage else self.end_offset + 1
        before = [(epoch, start) for epoch, start in self.rebuilt.leader_epochs if start < begin]
        told = {epoch for epoch, _ in before}
        epochs = (*before, *(entry for entry in lineage if entry[0] not in told))
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
    """Scans an open segment and rebuilds its indexes; SegmentRefusedError when it is not sound.

    ``producer_snapshot`` is the producer state at the segment's base offset. ``allow_gaps``: the
    topic is compacted, so offsets may be missing. ``draft``, if any, holds the segment afterwards;
    RemoteStorageError when it cannot be written.
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
    findings = _findings(rebuilt, handle, lineage, segment, allow_gaps)
    change = handle.recheck()
    if change not in (FileChange.UNCHANGED, FileChange.GONE):
        findings.append(f"the file was {change.value} while it was read")
    if findings or table.range_crc32c is None:
        raise SegmentRefusedError(path, findings)
    if draft is not None:
        draft.wrote(table.stop_position, table.range_crc32c)
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


def segment_tables(rebuilt: RebuiltIndexes, handle: SegmentHandle) -> Iterator[BatchTable]:
    """The batches of a segment that scanned clean: the table at hand, or where the batches are so
    small that it was not kept, one part after the other."""
    if rebuilt.table_complete:
        return iter((rebuilt.table,))
    parts = scan_segment_in_parts(handle, PART_BYTES, verify_crc=False)
    return (table for table in parts if len(table))


def _findings(
    rebuilt: RebuiltIndexes,
    handle: SegmentHandle,
    lineage: LeaderEpochs,
    segment: SegmentFiles,
    allow_gaps: bool,
) -> list[str]:
    """What is wrong with a scanned segment, line by line."""
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
) -> tuple[bytes, bytes]:
    """The `.indexes` object of the segment, and of it the remoteLogIndex entries.

    ``tables`` holds its batches as `segment_tables` does. The same segment under the same metadata
    makes the same bytes.
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
    """Return the entries with the remote data ids of another storage manager."""
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


class SegmentCopier:
    """Copies prepared segments into one store. Blocking; one segment per call, any thread."""

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
        """The broker that the segments are copied from."""
        return self._broker_id

    def new_id(self) -> str:
        """An id for one attempt to copy a segment; every attempt has its own."""
        return random_kafka_uuid(self._random_bytes)

    @contextmanager
    def draft(
        self, log: PartitionLog, segment: SegmentFiles, segment_id: str
    ) -> Iterator[Draft | None]:
        """For `prepare` and then `copy` of the same segment under the same id: the segment is
        read once. None where the store takes no drafts.

        The bytes are on their way before anybody could hold them back: not for a paced copy.
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
        """Copies the segment behind `handle`, as the leader of `leader_epoch` if one is given.

        ``gap_start_offset`` is that of `eligibility.gap_start_offset`, kept with the segment.

        ``gate`` is told the size of each piece before it is sent; it may block (a quota's
        `Transfer.before_piece`), or stop the copy by raising. ``fence`` raises FencedLeaderError
        when a later leader is known elsewhere; it is called when both objects are stored.
        SegmentRefusedError when the offsets and epochs of the segment contradict each other,
        CorruptDataError when the file has changed since it was scanned, CopyFailedError when the
        store fails or does not hold what was sent.
        The objects of a copy that failed or was stopped are removed again. FencedLeaderError when
        a later leader owns the partition; to it belongs, from then on, all that this copy has left.
        """
        try:
            started = prepared.metadata(
                segment_id or self.new_id(),
                broker_id=self._broker_id,
                event_timestamp_ms=self._clock.now_ms(),
            )
        except ValueError as error:
            raise SegmentRefusedError(handle.path, [str(error)]) from None
        try:
            indexes, entries = self.encode_indexes(prepared, handle, started, gap_start_offset)
        except IndexesTooLargeError as error:
            raise SegmentRefusedError(handle.path, [str(error)], "indexes_too_large") from None
        self._metadata.add(started, leader_epoch=leader_epoch)
        try:
            log = handle.fileno() if draft is None else draft
            custom = self._storage.copy_log_segment_data(started, log, indexes, before_chunk=gate)
            started = replace(started, custom_metadata=custom)
            self._require_small(started)
            self._require_whole(started, indexes)
            if fence is not None:
                fence()
        except CorruptDataError as error:
            self._remove(started, leader_epoch)
            raise error.located(handle.path) from None
        except RemoteStorageError as error:
            self._remove(started, leader_epoch)
            raise CopyFailedError(f"{handle.path}: {error}") from error
        except TierlogError:
            self._remove(started, leader_epoch)
            raise
        return CopiedSegment(metadata=self._finish(started, leader_epoch), remote_log_index=entries)

    def encode_indexes(
        self,
        prepared: PreparedSegment,
        handle: SegmentHandle,
        metadata: RemoteLogSegmentMetadata,
        gap_start_offset: int | None = None,
    ) -> tuple[bytes, bytes]:
        """Return the `.indexes` object of a prepared segment, and of it the remoteLogIndex."""
        return encode_segment_indexes(
            prepared,
            segment_tables(prepared.rebuilt, handle),
            metadata,
            cluster_id=self._cluster_id,
            remote_index_interval_bytes=self._remote_index_interval_bytes,
            data_id=self._foreign_data_ids(metadata),
            gap_start_offset=gap_start_offset,
        )

    def has_copied(self, prepared: PreparedSegment, broken: Container[str]) -> bool:
        """Whether a finished remote segment holds the bytes of this one under the same offsets.

        ``broken`` has the ids of segments whose objects are not what they were.
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
        self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None
    ) -> RemoteLogSegmentMetadata | None:
        """Settles what an interrupted run left: finished if both objects are whole, else removed.

        Returns the finished segment or None. RemoteStorageError when the store cannot tell.
        """
        started = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        # Of other storage managers the custom metadata is lost, without which a copy may mean
        # nothing.
        known = self._storage.store is not None
        if started and known and not self._storage.verify(metadata, deep=True):
            return self._advance(metadata, _FINISHED, leader_epoch)
        self.delete(metadata, leader_epoch=leader_epoch)
        return None

    def delete(
        self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """Removes a segment, from whatever state it is in; may be repeated after a failure.

        Nobody reads it any more before its first object goes. RemoteStorageError when the store
        refuses: then it stays in DELETE_SEGMENT_STARTED.
        """
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            return
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            metadata = self._advance(
                metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, leader_epoch
            )
        self._storage.delete_log_segment_data(metadata)
        self._advance(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, leader_epoch)

    def _foreign_data_ids(
        self, metadata: RemoteLogSegmentMetadata
    ) -> Callable[[int], bytes] | None:
        """Return what encodes the remote data ids of a segment; None when they are tierlog's own,
        which `group_batches` writes by itself."""
        encode = partial(self._storage.encode_data_id, metadata)
        return None if encode(0) == encode_rdi(metadata, 0) else encode

    def _require_small(self, metadata: RemoteLogSegmentMetadata) -> None:
        size_bytes = len(metadata.custom_metadata or b"")
        if size_bytes > self._custom_metadata_max_bytes:
            raise storage_error(
                f"{metadata.segment_id}: the storage manager {self._storage.url} returned "
                f"{size_bytes} bytes of custom metadata, expected at most "
                f"{self._custom_metadata_max_bytes}; "
                "raise remote.log.metadata.custom.metadata.max.bytes",
                retriable=False,
            )

    def _require_whole(self, metadata: RemoteLogSegmentMetadata, indexes: bytes) -> None:
        problems = self._storage.verify_copy(metadata, indexes)
        if problems:
            raise RemoteStorageError("; ".join(map(str, problems)))

    def _finish(
        self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None
    ) -> RemoteLogSegmentMetadata:
        try:
            return self._advance(metadata, _FINISHED, leader_epoch)
        except RemoteMetadataError:
            self._remove_unknown(metadata)
            raise

    def _remove(self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None) -> None:
        """Takes a failed copy back; what the store refuses now is left for `resume`."""
        try:
            self.delete(metadata, leader_epoch=leader_epoch)
        except RemoteStorageError:
            return
        except RemoteMetadataError:
            self._remove_unknown(metadata)
            raise

    def _remove_unknown(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Somebody settled this copy while it went, and may have looked for its objects before
        they were there. Nobody can ever refer to them any more."""
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
