"""Reads partitions back: from a store, or from a broker's log directories.

Both readers answer in verified columns: every batch's CRC is checked before a row is handed out,
control records are left out, and the first row is the first one at or past the offset asked for.

A store is read by its own words: the segments' metadata (from a metadata manager, or from the
bucket itself), their remoteLogIndex, and one ranged request per run of whole entries.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tierlog.columns import RecordColumns
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.log_dir import LogDir, PartitionLog, open_log_dir
from tierlog.log.records import decode_records
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.bucket import Problem, bucket_metadata
from tierlog.remote.indexes import IndexKind
from tierlog.remote.layout import indexes_key, log_key, parse_rdi
from tierlog.remote.log_index import RemoteLogIndexEntries, decode_remote_log_index
from tierlog.remote.metadata import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.storage import RemoteStorageManager
from tierlog.remote.store import open_store
from tierlog.tiering.lineage import ranges_in_lineage
from tierlog.types import StopReason, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = [
    "LocalReader",
    "LogReader",
    "PartitionSummary",
    "SegmentSummary",
    "StoreReader",
    "open_reader",
    "read",
]

# One request fetches up to this much of a segment, or one batch if that is larger.
FETCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """One segment as a listing shows it; ``end_offset`` is inclusive, None when unknown.

    ``name`` is the path of the ``.log`` or its object key, ``state`` is ``active``, ``rolled`` or
    Kafka's name of a remote segment's state.
    """

    base_offset: int
    end_offset: int | None
    size_bytes: int
    max_timestamp_ms: int | None
    leader_epochs: tuple[int, ...]
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """One partition as a listing shows it: offsets [``log_start_offset``, ``log_end_offset``).

    None is unknown: the end of a directory's active segment is known only after reading it.
    """

    topic: str
    partition: int
    topic_id: str | None
    log_start_offset: int | None
    log_end_offset: int | None
    segment_count: int
    size_bytes: int


class LogReader(Protocol):
    """What both readers offer. ``topic`` is a topic's name or its 22-character id.

    OutOfRangeError for a partition that is not here; CorruptDataError for damage, naming file or
    object and byte; RemoteStorageError or OSError when the bytes cannot be had.
    """

    def partitions(self) -> list[PartitionSummary]:
        """Every partition, by topic and number."""
        ...

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """The segments of one partition, by base offset."""
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """(first offset, offset after the last) of what can be read."""
        ...

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """The records from `start_offset` (or the first one after it) up to, not including,
        `end_offset`, in pieces of a few MiB."""
        ...

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Offset of the first record, in offset order, with that timestamp or a later one."""
        ...


def open_reader(
    source: str | os.PathLike[str], *, on_problem: Callable[[Problem], None] | None = None
) -> LogReader:
    """A reader of a store URL (``s3://...``, ``file:///...``) or of a broker's log directory.

    ``on_problem`` is told of objects in the store that are no whole segments.
    """
    text = os.fspath(source)
    if "://" not in text:
        return LocalReader(open_log_dir(text))
    store = open_store(text)
    return StoreReader(RemoteStorageManager(store), bucket_metadata(store, on_problem=on_problem))


def read(
    source: str | os.PathLike[str],
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int | None = None,
    *,
    timestamp_ms: int | None = None,
) -> Iterator[RecordColumns]:
    """The records of one partition of a store URL or log directory, as verified columns.

    From `start_offset`, or from the first record of `timestamp_ms` or later when that is given,
    up to, not including, `end_offset`, in pieces of a few MiB. Offsets that hold no record
    (compacted, control records) are passed over. Errors as in `LogReader`.
    """
    reader = open_reader(source)
    if timestamp_ms is not None:
        found = reader.offset_for_timestamp(topic, partition, timestamp_ms)
        if found is None:
            return iter(())
        start_offset = max(start_offset, found)
    return reader.read(topic, partition, start_offset, end_offset)


def rows_between(
    records: RecordColumns, start_offset: int, end_offset: int | None
) -> RecordColumns:
    """The rows of `records` with offsets in [`start_offset`, `end_offset`)."""
    first = int(np.searchsorted(records.offset, start_offset))
    last = len(records)
    if end_offset is not None:
        last = int(np.searchsorted(records.offset, end_offset))
    return records if (first, last) == (0, len(records)) else records.rows(first, last)


class StoreReader:
    """Reads what a metadata manager knows from the objects of a store."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._fetch_bytes = fetch_bytes

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`."""
        found = []
        for partition in self._metadata.partitions():
            segments = self._finished(partition)
            if segments:
                found.append(
                    PartitionSummary(
                        topic=partition.topic,
                        partition=partition.partition,
                        topic_id=partition.topic_id,
                        log_start_offset=min(segment.start_offset for segment in segments),
                        log_end_offset=max(segment.end_offset for segment in segments) + 1,
                        segment_count=len(segments),
                        size_bytes=sum(segment.segment_size_bytes for segment in segments),
                    )
                )
        return sorted(found, key=lambda one: (one.topic, one.partition, one.topic_id or ""))

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """See `LogReader`."""
        return [
            SegmentSummary(
                base_offset=metadata.start_offset,
                end_offset=metadata.end_offset,
                size_bytes=metadata.segment_size_bytes,
                max_timestamp_ms=metadata.max_timestamp_ms,
                leader_epochs=tuple(epoch for epoch, _ in metadata.leader_epochs),
                name=log_key(metadata),
                state=metadata.state.name,
            )
            for metadata in self._metadata.list(self._partition(topic, partition))
        ]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`."""
        wanted = self._partition(topic, partition)
        segments = self._finished(wanted)
        first = min(segment.start_offset for segment in segments)
        begin = min(entry.start_offset for entry in self._lineage(wanted))
        return max(first, begin), max(segment.end_offset for segment in segments) + 1

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """See `LogReader`. One ranged request per piece, two small ones per segment before it."""
        wanted = self._partition(topic, partition)
        lineage = self._lineage(wanted)
        offset = start_offset
        while end_offset is None or offset < end_offset:
            found = self._segment_from(wanted, lineage, offset)
            if found is None:
                return
            segment, offset = found
            limit = _last_offset_in_lineage(segment, lineage, offset) + 1
            stop = limit if end_offset is None else min(limit, end_offset)
            for records in self._read_segment(segment, offset):
                piece = rows_between(records, offset, stop)
                if len(piece):
                    yield piece
                if len(records.batches) and int(records.batches.last_offset[-1]) + 1 >= stop:
                    break
            offset = limit

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`."""
        wanted = self._partition(topic, partition)
        lineage = self._lineage(wanted)
        for segment in self._metadata.segments_by_timestamp(wanted, timestamp_ms):
            entries = self._entries(segment)
            row = entries.lookup_timestamp(timestamp_ms)
            for first, last in ranges_in_lineage(segment, lineage) if row is not None else ():
                start = max(first, int(entries.first_offset[row]))
                for records in self._read_segment(segment, start):
                    late = np.flatnonzero(
                        (records.timestamp_ms >= timestamp_ms)
                        & (records.offset >= start)
                        & (records.offset <= last)
                    )
                    if len(late):
                        return int(records.offset[late[0]])
        return None

    def _partition(self, topic: str, partition: int) -> TopicIdPartition:
        named = [
            one
            for one in self._metadata.partitions()
            if one.partition == partition
            and topic in (one.topic, one.topic_id)
            and self._finished(one)
        ]
        if len(named) == 1:
            return named[0]
        if named:
            ids = ", ".join(one.topic_id for one in named)
            raise OutOfRangeError(
                f"{topic}-{partition}: several topics had this name; give one of the ids {ids}"
            )
        raise OutOfRangeError(f"{self._storage!r} holds no segment of {topic}-{partition}")

    def _finished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            metadata
            for metadata in self._metadata.list(partition)
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    def _lineage(self, partition: TopicIdPartition) -> LeaderEpochs:
        """The leader epochs that the newest segment was uploaded with."""
        newest = max(
            self._finished(partition), key=lambda one: (one.leader_epochs[-1][0], one.end_offset)
        )
        section = self._storage.fetch_indexes(newest, [IndexKind.LEADER_EPOCH])
        return parse_leader_epochs(bytes(section[IndexKind.LEADER_EPOCH]), log_key(newest))

    def _segment_from(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, int] | None:
        """The segment of the lineage that holds `offset`, or the next one after a gap."""
        # A lineage may begin inside a segment: the records before were deleted.
        starts = {one.start_offset for one in self._finished(partition)}
        starts |= {entry.start_offset for entry in lineage}
        for candidate in [offset, *sorted(start for start in starts if start > offset)]:
            epoch = lineage.epoch_for(candidate)
            if epoch is not None:
                segment = self._metadata.lookup(partition, epoch, candidate)
                if segment is not None:
                    return segment, candidate
        return None

    def _entries(self, segment: RemoteLogSegmentMetadata) -> RemoteLogIndexEntries:
        section = self._storage.fetch_indexes(segment, [IndexKind.REMOTE_LOG])
        return decode_remote_log_index(section[IndexKind.REMOTE_LOG], path=indexes_key(segment))

    def _read_segment(
        self, segment: RemoteLogSegmentMetadata, offset: int
    ) -> Iterator[RecordColumns]:
        """The batches from the one that reaches `offset` on, as many whole entries at a time as
        one request may fetch."""
        entries = self._entries(segment)
        row = entries.lookup_offset(offset)
        while row is not None and row < len(entries):
            start = self._position(segment, entries, row)
            end, row = start + int(entries.data_length[row]), row + 1
            while row < len(entries) and end - start < self._fetch_bytes:
                end, row = end + int(entries.data_length[row]), row + 1
            data = self._storage.fetch_log_segment(segment, start, end)
            yield self._decode(segment, data, start)

    def _position(
        self, segment: RemoteLogSegmentMetadata, entries: RemoteLogIndexEntries, row: int
    ) -> int:
        key, position = parse_rdi(entries.rdi[row], segment.topic_id_partition)
        if str(key) != log_key(segment):
            raise CorruptDataError(
                reason="bad_rdi",
                path=log_key(segment),
                position=int(entries.position[row]),
                expected=f"a position in {log_key(segment)}",
                found=str(key),
            )
        return position

    def _decode(
        self, segment: RemoteLogSegmentMetadata, data: Buffer, position: int
    ) -> RecordColumns:
        try:
            records = decode_records(data)
        except CorruptDataError as error:
            raise _moved(error, log_key(segment), position) from None
        table = records.batches
        if table.stop_reason is not StopReason.END:
            raise CorruptDataError(
                reason=table.stop_reason.value,
                path=log_key(segment),
                position=position + table.stop_position,
                expected=table.stop_expected,
                found=table.stop_found,
            )
        return records


def _moved(error: CorruptDataError, path: str, by: int) -> CorruptDataError:
    return CorruptDataError(
        reason=error.reason,
        path=path,
        position=error.position + by,
        expected=error.expected,
        found=error.found,
        hint=error.hint,
    )


def _last_offset_in_lineage(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs, offset: int
) -> int:
    """How far from `offset` on the segment holds what the lineage says."""
    for start, end in ranges_in_lineage(segment, lineage):
        if start <= offset <= end:
            return end
    return offset


class LocalReader:
    """Reads a broker's log directories. What lies above the high watermark is read as well: a
    directory alone does not say where a running broker's is."""

    def __init__(self, logs: LogDir, *, fetch_bytes: int = FETCH_BYTES) -> None:
        self._logs = logs
        self._fetch_bytes = fetch_bytes

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`."""
        return [
            PartitionSummary(
                topic=log.topic,
                partition=log.partition,
                topic_id=log.topic_id,
                log_start_offset=log.log_start_offset,
                log_end_offset=None,
                segment_count=len(log.segments),
                size_bytes=sum(segment.size_bytes for segment in log.segments),
            )
            for log in self._logs.partitions()
        ]

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """See `LogReader`."""
        log = self._log(topic, partition)
        found = []
        for segment in log.segments:
            end = segment.next_base_offset
            epochs: tuple[int, ...] = ()
            if log.leader_epochs is not None and end is not None:
                clipped = log.leader_epochs.clipped(segment.base_offset, end)
                epochs = tuple(entry.epoch for entry in clipped)
            found.append(
                SegmentSummary(
                    base_offset=segment.base_offset,
                    end_offset=None if end is None else end - 1,
                    size_bytes=segment.size_bytes,
                    max_timestamp_ms=None,
                    leader_epochs=epochs,
                    name=segment.log_path,
                    state="active" if segment.is_active else "rolled",
                )
            )
        return found

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`; the active segment is scanned to find its end."""
        log = self._log(topic, partition)
        start = log.log_start_offset
        if not log.segments:
            return start or 0, start or 0
        active = log.segments[-1]
        end = active.base_offset
        with active.open() as handle:
            table = scan_segment(handle, verify_crc=False)
        if len(table):
            end = int(table.last_offset[-1]) + 1
        return log.segments[0].base_offset if start is None else start, end

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """See `LogReader`."""
        log = self._log(topic, partition)
        start = max(start_offset, log.log_start_offset or 0)
        for segment in log.segments:
            following = segment.next_base_offset
            if following is not None and following <= start:
                continue
            if end_offset is not None and segment.base_offset >= end_offset:
                return
            for records in self._read_segment(segment, start):
                piece = rows_between(records, start, end_offset)
                if len(piece):
                    yield piece

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`; reads the headers of every segment until it finds one late enough."""
        log = self._log(topic, partition)
        start = log.log_start_offset or 0
        for segment in log.segments:
            with segment.open() as handle:
                table = scan_segment(handle, verify_crc=False)
            late = np.flatnonzero(
                (table.max_timestamp_ms >= timestamp_ms) & (table.last_offset >= start)
            )
            if not len(late):
                continue
            for records in self._read_segment(segment, int(table.base_offset[late[0]])):
                rows = np.flatnonzero(
                    (records.timestamp_ms >= timestamp_ms) & (records.offset >= start)
                )
                if len(rows):
                    return int(records.offset[rows[0]])
        return None

    def _log(self, topic: str, partition: int) -> PartitionLog:
        for log in self._logs.partitions():
            if log.partition == partition and topic in (log.topic, log.topic_id):
                return log
        return self._logs.partition(topic, partition)

    def _read_segment(self, segment: SegmentFiles, offset: int) -> Iterator[RecordColumns]:
        with segment.open() as handle:
            position, window = 0, self._fetch_bytes
            table = scan_segment(handle, verify_crc=False)
            reaching = np.flatnonzero(table.last_offset >= offset)
            if not len(reaching):
                _require_sound_end(segment, table.stop_reason, table.stop_position)
                return
            position = int(table.position[reaching[0]])
            while position < handle.size_bytes:
                try:
                    records = decode_records(handle, position, position + window)
                except CorruptDataError as error:
                    raise error.located(segment.log_path) from None
                end = records.batches.stop_position
                if end == position:
                    if position + window >= handle.size_bytes:
                        _require_sound_end(segment, records.batches.stop_reason, end)
                        return
                    # One batch is larger than the window.
                    window *= 2
                    continue
                yield records
                position = end


def _require_sound_end(segment: SegmentFiles, reason: StopReason, position: int) -> None:
    """A cut or zero tail is how a live or killed broker's active segment ends; elsewhere, or for
    any other reason, it is damage."""
    harmless = reason in (StopReason.TORN_TAIL, StopReason.ZERO_TAIL) and segment.is_active
    if reason is not StopReason.END and not harmless:
        raise CorruptDataError(
            reason=reason.value,
            path=segment.log_path,
            position=position,
            expected="a whole batch",
            found=f"a segment that ends there ({reason.value})",
        )
