"""What a task of a read does: ranges of segments to Arrow batches of about 1 MiB.

    for batch in read_task(task, schema, options): ...

Damage costs what is damaged: everything before it is there, and reading goes on at the next place
that an index of the segment names. Whatever an index says, each batch is checked, and must hold
offsets that are still to come.

Nothing here knows Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_udfs.source_catalog import log_index_entries, offset_index, open_storage
from spark_udfs.source_filters import Wanted
from spark_udfs.source_options import SourceOptions, View
from spark_udfs.source_plan import Finding, Mark, Partition, ReadRange
from tierlog.batches import BatchTable
from tierlog.columns import BinaryColumn, RecordColumns
from tierlog.errors import CorruptDataError
from tierlog.log.files import SegmentHandle
from tierlog.log.records import decode_records
from tierlog.log.segment import scan_segment, scan_segment_in_parts
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.layout import log_key
from tierlog.remote.log_index import RemoteLogIndexEntries
from tierlog.remote.metadata import RemoteLogSegmentMetadata
from tierlog.remote.metadata_memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.storage import RemoteStorageManager
from tierlog.tiering.committed import committed_rows
from tierlog.tiering.log_reader import rows_between
from tierlog.tiering.store_reader import StoreReader
from tierlog.types import StopReason

__all__ = ["RecordRows", "read_range", "read_task"]

_log = logging.getLogger(__name__)

_WINDOW_BYTES = 1 << 20
_OPENED_BYTES = 4 << 20
# Of a store; the reader asks for more ahead.
_FETCH_BYTES = 2 << 20
_REMOTE_WINDOW_BYTES = 8 << 20
_ROWS_BYTES = 1 << 20
_MAX_ROWS = 1 << 16
_MAX_OFFSET = 2**63 - 1
# How a piece of a segment ends.
_CUT = (StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL)


def read_task(
    task: Sequence[ReadRange] | Sequence[Finding],
    schema: pa.Schema,
    options: SourceOptions,
    wanted: Wanted | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one task in the columns of `schema`."""
    storage = open_storage(options.path) if task else None
    shape = RecordRows(schema)
    for one in task:
        if isinstance(one, Finding):
            yield table_rows(schema, [finding_row(one)])
        elif options.view is View.SEGMENTS:
            yield table_rows(schema, [segment_row(one)])
        elif options.view is View.BATCHES:
            yield from batch_rows(one, storage, schema)
        else:
            yield from _record_rows(one, storage, shape, options, wanted)


def _record_rows(
    one: ReadRange,
    storage: RemoteStorageManager | None,
    shape: RecordRows,
    options: SourceOptions,
    wanted: Wanted | None,
) -> Iterator[pa.RecordBatch]:
    """Either the records of a range or, for the quarantine, what is damaged of it."""
    quarantine = options.view is View.QUARANTINE
    for found in read_range(
        one,
        storage,
        min_timestamp_ms=None if wanted is None else wanted.min_timestamp_ms,
        fail_on_corrupt=options.fail_on_corrupt,
    ):
        if isinstance(found, RecordColumns):
            if not quarantine:
                yield from shape.of(one.partition, found)
        elif quarantine:
            yield table_rows(shape.schema, [finding_row(found)])
        else:
            _log.warning("left out: %s", found)


def read_range(
    one: ReadRange,
    storage: RemoteStorageManager | None,
    *,
    min_timestamp_ms: int | None = None,
    fail_on_corrupt: bool = False,
) -> Iterator[RecordColumns | Finding]:
    """The committed records of a range in order, and what is damaged of it.

    Records older than `min_timestamp_ms` may be left out. With ``fail_on_corrupt`` damage is a
    CorruptDataError. OSError or RemoteStorageError when the bytes cannot be had.
    """
    segment = _segment(one, storage)
    start, end = segment.narrowed(one.start_offset, one.end_offset, min_timestamp_ms)
    place: Mark | None = Mark(start, -1)
    while place is not None and place.offset < end:
        offset = place.offset
        try:
            for piece, after in segment.pieces(place, end):
                rows = rows_between(piece, start, end)
                yield from committed_rows(rows, one.aborted) if one.aborted else (rows,)
                offset = after
            return
        except CorruptDataError as error:
            if fail_on_corrupt:
                raise
            place = segment.beyond(error, offset)
            lost_end = end if place is None else min(place.offset, end)
            yield Finding.of(error, one.partition, offset, lost_end)


class _Segment(Protocol):
    """A segment that is read from anywhere on."""

    def narrowed(self, start: int, end: int, min_timestamp_ms: int | None) -> tuple[int, int]:
        """The part of offsets [start, end) that may have records of that time or later."""
        ...

    def pieces(self, place: Mark, end: int) -> Iterator[tuple[RecordColumns, int]]:
        """Checked batches from a place on (position -1: wherever its offset is) up to offset
        `end` or some more, each piece with the offset after it."""
        ...

    def beyond(self, error: CorruptDataError, offset: int) -> Mark | None:
        """Where to go on behind damage that was met at `offset` or later."""
        ...


def _segment(one: ReadRange, storage: RemoteStorageManager | None) -> _Segment:
    if isinstance(one.segment, SegmentFiles):
        return _LocalSegment(one.segment)
    assert storage is not None
    return _RemoteSegment(one.segment, storage)


class _LocalSegment:
    """A segment of a log directory."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._limit = files.next_base_offset or _MAX_OFFSET
        # How many compressed batches to open at a time; 0 when nothing is compressed.
        self._batches = 1

    def narrowed(self, start: int, end: int, min_timestamp_ms: int | None) -> tuple[int, int]:
        """By the headers: a broker's time index may be wrong beside a good log."""
        if min_timestamp_ms is None:
            return start, end
        with self._files.open() as handle:
            table = scan_segment(handle, verify_crc=False)
        late = np.flatnonzero(
            (table.max_timestamp_ms >= min_timestamp_ms) & (table.last_offset >= start)
        )
        if table.stop_reason is not StopReason.END:
            # What is behind it is not known.
            known_end = int(table.last_offset[-1]) + 1 if len(table) else start
            return (int(table.base_offset[late[0]]) if len(late) else known_end), end
        if not len(late):
            return end, end
        first, last = int(table.base_offset[late[0]]), int(table.last_offset[late[-1]])
        return max(start, first), min(end, last + 1)

    def pieces(self, place: Mark, end: int) -> Iterator[tuple[RecordColumns, int]]:
        """See `_Segment`."""
        with self._files.open() as handle:
            position, records = self._first(handle, place)
            offset = self._files.base_offset
            while records is not None:
                after = int(records.batches.last_offset[-1]) + 1
                yield records, after
                if after >= end:
                    return
                offset, position = after, records.batches.stop_position
                records = self._window(handle, position, offset)

    def beyond(self, error: CorruptDataError, offset: int) -> Mark | None:
        """See `_Segment`: the next entry of the offset index that leads to a batch."""
        index = offset_index(self._files)
        if index is None:
            return None
        behind = np.flatnonzero(index.position > error.position)
        with self._files.open() as handle:
            ends = [*index.position[behind[1:]].tolist(), handle.size_bytes]
            for row, end in zip(behind.tolist(), ends, strict=False):
                position, known = int(index.position[row]), int(index.offset[row])
                table = scan_segment(handle, position, end, verify_crc=False)
                if len(table) and offset <= table.base_offset[0] <= known < self._limit:
                    return Mark(int(table.base_offset[0]), position)
        return None

    def _first(self, handle: SegmentHandle, place: Mark) -> tuple[int, RecordColumns | None]:
        """The first window: at the place, or where the index says or the headers lead to."""
        base = self._files.base_offset
        if place.position >= 0:
            return place.position, self._window(handle, place.position, place.offset)
        hint = 0 if place.offset <= base else self._indexed(place.offset)
        if hint:
            try:
                records = self._window(handle, hint, base)
            except CorruptDataError:
                records = None
            if records is not None and records.batches.base_offset[0] <= place.offset:
                return hint, records
            hint = _position_of(handle, place.offset)
        return hint, self._window(handle, hint, base)

    def _indexed(self, offset: int) -> int:
        """By the offset index the position of a batch at or before an offset."""
        index = offset_index(self._files)
        row = -1 if index is None else int(index.offset.searchsorted(offset, "right")) - 1
        return 0 if index is None or row < 0 else int(index.position[row])

    def _window(self, handle: SegmentHandle, position: int, offset: int) -> RecordColumns | None:
        """Some batches from a position on, with offsets from `offset` on; None at the end.

        What is sound before damage comes first.
        """
        window = self._window_bytes(handle, position)
        while position < handle.size_bytes:
            records, error = self._decoded(handle, position, position + window, offset)
            if len(records.batches):
                self._learn(records)
                return records
            if error is not None:
                raise error
            if position + window >= handle.size_bytes:
                self._check_end(records)
                return None
            # One batch is larger than the window.
            window *= 2
        return None

    def _window_bytes(self, handle: SegmentHandle, position: int) -> int:
        """How much to read: what compresses well takes far more memory than it has bytes."""
        if self._batches:
            table = scan_segment(handle, position, position + _WINDOW_BYTES, verify_crc=False)
            if len(table) > self._batches and _most_bytes(table) == _MAX_OFFSET:
                return int(table.position[self._batches]) - position
        return _WINDOW_BYTES

    def _learn(self, records: RecordColumns) -> None:
        if _most_bytes(records.batches) < _MAX_OFFSET:
            self._batches = 0
            return
        opened_bytes = int(records.keys.lengths.sum() + records.values.lengths.sum(dtype=np.int64))
        fitting = _OPENED_BYTES * len(records.batches) // max(1, opened_bytes)
        self._batches = max(1, min(fitting, 4 * max(1, self._batches)))

    def _decoded(
        self, handle: SegmentHandle, start: int, end: int, offset: int
    ) -> tuple[RecordColumns, CorruptDataError | None]:
        error: CorruptDataError | None = None
        try:
            records = decode_records(handle, start, end)
        except CorruptDataError as found:
            error = found.located(self._files.log_path)
            records = decode_records(handle, start, error.position)
        # Of a batch that leaps ahead and the next one, which then is too low, the first is wrong.
        misplaced = self._misplaced(records, offset)
        if misplaced is not None:
            error, records = misplaced, decode_records(handle, start, misplaced.position)
        return records, error

    def _misplaced(self, records: RecordColumns, offset: int) -> CorruptDataError | None:
        """No checksum covers the base offset of a batch."""
        batches = records.batches
        wrong = np.flatnonzero(
            (batches.base_offset < offset) | (batches.last_offset >= self._limit)
        )
        if not len(wrong):
            return None
        row = int(wrong[0])
        return CorruptDataError(
            reason=StopReason.OFFSET_ORDER.value,
            path=self._files.log_path,
            position=int(batches.position[row]),
            expected=f"a batch with offsets from {offset} to {self._limit - 1}",
            found=f"one with {batches.base_offset[row]} to {batches.last_offset[row]}",
        )

    def _check_end(self, records: RecordColumns) -> None:
        """Only the segment that a broker writes to may end in the middle of a batch."""
        reason = records.batches.stop_reason
        harmless = reason in (StopReason.TORN_TAIL, StopReason.ZERO_TAIL) and self._files.is_active
        if reason is not StopReason.END and not harmless:
            raise CorruptDataError(
                reason=reason.value,
                path=self._files.log_path,
                position=records.batches.stop_position,
                expected="a whole batch",
                found=f"a segment that ends there ({reason.value})",
            )


def _position_of(handle: SegmentHandle, offset: int) -> int:
    """Where the batch that reaches `offset` begins, by the headers; else where they end."""
    table = scan_segment(handle, verify_crc=False)
    row = int(table.last_offset.searchsorted(offset))
    return int(table.position[row]) if row < len(table) else table.stop_position


class _RemoteSegment:
    """A segment of a store."""

    def __init__(self, metadata: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> None:
        known = InMemoryRemoteLogMetadataManager(ready=False)
        known.load([metadata])
        known.mark_ready()
        self._metadata = metadata
        self._storage = storage
        self._reader = StoreReader(storage, known, fetch_bytes=_FETCH_BYTES)

    def narrowed(self, start: int, end: int, min_timestamp_ms: int | None) -> tuple[int, int]:
        """By the remoteLogIndex, whose entries know the largest time of their batches."""
        if min_timestamp_ms is None:
            return start, end
        entries = self._entries()
        if entries is None:
            return start, end
        late = np.flatnonzero(
            (entries.last_timestamp_ms >= min_timestamp_ms) & (entries.last_offset >= start)
        )
        if not len(late):
            return end, end
        first, last = int(entries.first_offset[late[0]]), int(entries.last_offset[late[-1]])
        return max(start, first), min(end, last + 1)

    def pieces(self, place: Mark, end: int) -> Iterator[tuple[RecordColumns, int]]:
        """See `_Segment`."""
        partition = self._metadata.topic_id_partition
        for piece in self._reader.read(partition.topic_id, partition.partition, place.offset, end):
            yield piece, int(piece.offset[-1]) + 1

    def beyond(self, error: CorruptDataError, offset: int) -> Mark | None:
        """See `_Segment`: the entry after the one that the offset lies in."""
        entries = self._entries()
        row = None if entries is None else entries.lookup_offset(offset)
        if entries is None or row is None or row + 1 >= len(entries):
            return None
        return Mark(int(entries.first_offset[row + 1]), -1)

    def _entries(self) -> RemoteLogIndexEntries | None:
        return log_index_entries(self._storage, self._metadata)


# -- rows


class RecordRows:
    """Records in the columns of a schema: any of those of the source, in any order."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        names = [name.lower() for name in schema.names]
        self._columns = [_COLUMNS[name] for name in names if name in _COLUMNS]
        self._weighed = [name for name in names if name in ("key", "value")]

    def of(self, partition: Partition, records: RecordColumns) -> Iterator[pa.RecordBatch]:
        """Batches of about 1 MiB."""
        for first, last in self._runs(records):
            part = records if last - first == len(records) else records.rows(first, last)
            rows = _Rows(partition, part, np.diff(part.batch_starts))
            arrays = [column(rows) for column in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _runs(self, records: RecordColumns) -> Iterator[tuple[int, int]]:
        """Rows that make a batch each."""
        count = len(records)
        if 0 < count <= _MAX_ROWS and _most_bytes(records.batches) <= _ROWS_BYTES:
            yield 0, count
            return
        ends = np.zeros(count, np.int64)
        for name in self._weighed:
            ends += (records.keys if name == "key" else records.values).lengths
        ends = ends.cumsum()
        first = 0
        while first < count:
            begin = int(ends[first - 1]) if first else 0
            last = int(ends.searchsorted(begin + _ROWS_BYTES, "right"))
            last = min(max(last, first + 1), first + _MAX_ROWS)
            yield first, last
            first = last


def _most_bytes(batches: BatchTable) -> int:
    """A bound of the bytes of the records; of what is compressed there is none."""
    if batches.attributes.any() and (batches.attributes & _CODEC).any():
        return _MAX_OFFSET
    return int(batches.size_bytes.sum(dtype=np.int64))


class _Rows(NamedTuple):
    """Records of a partition, and how many of them are of each batch."""

    partition: Partition
    records: RecordColumns
    counts: npt.NDArray[np.int64]

    def of_batch(self, values: npt.NDArray[Any]) -> pa.Array:
        """A value of each batch, for each of its records."""
        return pa.array(np.repeat(values, self.counts))


@lru_cache(maxsize=8)
def _many(value: str | int, kind: pa.DataType) -> pa.Array:
    """The most rows of a batch, all of one value."""
    return pa.repeat(pa.scalar(value, kind), _MAX_ROWS)


def _same(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """Rows of one value; the memory is shared."""
    return _many(value, kind).slice(0, count)


def _binary(column: BinaryColumn) -> pa.Array:
    return column.to_arrow().cast(pa.binary())


def _timestamp(rows: _Rows) -> pa.Array:
    """Microseconds; what Spark has no time for becomes the nearest that it has."""
    time_ms = rows.records.timestamp_ms
    if int(time_ms.min()) < -_MAX_MS or int(time_ms.max()) > _MAX_MS:
        time_ms = np.clip(time_ms, -_MAX_MS, _MAX_MS)
    return pa.array(time_ms * 1000).view(_TIME_US)


def _timestamp_type(rows: _Rows) -> pa.Array:
    """Kafka's numbers: -1 none, 0 create time, 1 log append time."""
    batches = rows.records.batches
    if batches.magic.all() and not batches.attributes.any():
        return _same(0, pa.int32(), len(rows.records))
    kinds = np.where(batches.magic == 0, -1, batches.is_log_append_time)
    return rows.of_batch(kinds.astype(np.int32))


def _headers(rows: _Rows) -> pa.Array:
    """Null for a record without any, as in Spark's Kafka source."""
    headers = rows.records.headers
    offsets = headers.list_offsets
    first, last = int(offsets[0]), int(offsets[-1])
    keys = _binary(headers.keys.rows(first, last)).view(pa.string())
    values = _binary(headers.values.rows(first, last))
    items = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.ListArray.from_arrays(
        pa.array(offsets - first),
        items,
        type=pa.list_(pa.field("element", items.type)),
        mask=pa.array(np.diff(offsets) == 0),
    )


_MAX_MS = (2**63 - 1) // 1000
_TIME_US = pa.timestamp("us", tz="UTC")
_CODEC = 0x07
_COLUMNS: dict[str, Callable[[_Rows], pa.Array]] = {
    "key": lambda rows: _binary(rows.records.keys),
    "value": lambda rows: _binary(rows.records.values),
    "topic": lambda rows: _same(rows.partition.topic, pa.string(), len(rows.records)),
    "partition": lambda rows: _same(rows.partition.partition, pa.int32(), len(rows.records)),
    "offset": lambda rows: pa.array(rows.records.offset),
    "timestamp": _timestamp,
    "timestamptype": _timestamp_type,
    "headers": _headers,
    "leader_epoch": lambda rows: rows.of_batch(rows.records.batches.leader_epoch),
    "producer_id": lambda rows: rows.of_batch(rows.records.batches.producer_id),
    "producer_epoch": lambda rows: rows.of_batch(rows.records.batches.producer_epoch),
    "base_sequence": lambda rows: rows.of_batch(rows.records.batches.base_sequence),
}


# -- the other views


def table_rows(schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    """Rows by name in the columns of a schema."""
    arrays = [pa.array([row[field.name.lower()] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def finding_row(one: Finding) -> dict[str, object]:
    """A row of the quarantine, without a partition where nobody knows it."""
    known = bool(one.partition.topic)
    names = ("path", "reason", "position", "expected", "found", "start_offset", "end_offset")
    return {
        "topic": one.partition.topic if known else None,
        "partition": one.partition.partition if known else None,
        **{name: getattr(one, name) for name in names},
    }


def segment_row(one: ReadRange) -> dict[str, object]:
    """A segment as it was listed."""
    segment = one.segment
    if isinstance(segment, SegmentFiles):
        after = segment.next_base_offset
        base, end = segment.base_offset, None if after is None else after - 1
        size_bytes = segment.size_bytes
    else:
        base, end = segment.start_offset, segment.end_offset
        size_bytes = segment.segment_size_bytes
    return {
        "topic": one.partition.topic,
        "topic_id": one.partition.topic_id,
        "partition": one.partition.partition,
        "path": _path_of(one),
        "base_offset": base,
        "end_offset": end,
        "size_bytes": size_bytes,
    }


def _path_of(one: ReadRange) -> str:
    segment = one.segment
    return segment.log_path if isinstance(segment, SegmentFiles) else log_key(segment)


def batch_rows(
    one: ReadRange, storage: RemoteStorageManager | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The sound batches of a range, control batches too, up to the first that is damaged."""
    for position, table in _batch_tables(one, storage):
        rows = np.flatnonzero(
            (table.base_offset >= one.start_offset) & (table.base_offset < one.end_offset)
        )
        arrays = []
        for field in schema:
            match field.name.lower():
                case "topic":
                    column = pa.repeat(one.partition.topic, len(rows))
                case "partition":
                    column = pa.array(np.full(len(rows), one.partition.partition, np.int32))
                case "path":
                    column = pa.repeat(_path_of(one), len(rows))
                case "position":
                    column = pa.array(table.position[rows] + position)
                case name:
                    column = pa.array(getattr(table, name)[rows])
            arrays.append(column)
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batch_tables(
    one: ReadRange, storage: RemoteStorageManager | None
) -> Iterator[tuple[int, BatchTable]]:
    """Where a piece of the segment begins, and its batches."""
    if isinstance(one.segment, SegmentFiles):
        with one.segment.open() as handle:
            for table in scan_segment_in_parts(handle, _WINDOW_BYTES):
                yield 0, table
        return
    assert storage is not None
    position, window = 0, _REMOTE_WINDOW_BYTES
    while position < one.segment.segment_size_bytes:
        data = storage.fetch_log_segment(one.segment, position, position + window)
        table = scan_segment(data)
        yield position, table
        if table.stop_position == 0 and position + window < one.segment.segment_size_bytes:
            # One batch is larger than the window.
            window *= 2
        elif table.stop_position == 0 or table.stop_reason not in _CUT:
            return
        position += table.stop_position
