"""Make the rows of the views other than records: batches, segments and damage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tierlog.batches import BatchTable
from tierlog.log.segment import scan_segment, scan_segment_in_parts
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.segment.layout import log_key
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.tables.plan import Finding, ReadRange
from tierlog.types import StopReason

__all__ = ["batch_rows", "finding_row", "segment_row", "table_rows"]

_WINDOW_BYTES = 1 << 20
_REMOTE_WINDOW_BYTES = 8 << 20
# Stop reasons that are no damage here, because only a part of a segment was scanned.
_CUT = (StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL)


def table_rows(schema: pa.Schema, rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    """Convert `rows`, which map lower-case column names to values, to the columns of a schema."""
    arrays = [pa.array([row[field.name.lower()] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def finding_row(one: Finding) -> dict[str, object]:
    """Return a row of the quarantine view. Topic and partition are null in the row when unknown."""
    known = bool(one.partition.topic)
    names = ("reason", "position", "expected", "found")
    return {
        "topic": one.partition.topic if known else None,
        "partition": one.partition.partition if known else None,
        "path": one.error.path or "",
        **{name: getattr(one.error, name) for name in names},
        "start_offset": one.start_offset,
        "end_offset": one.end_offset,
    }


def segment_row(one: ReadRange) -> dict[str, object]:
    """Return the row of a listed segment."""
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
    """Yield the valid batches of a range, including control batches, up to the first damaged
    batch."""
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
    """Yield the batches of each part of the segment, with the number of bytes to add to their
    positions."""
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
