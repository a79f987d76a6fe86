"""Convert records to rows for Spark: Arrow batches of about 2 MiB in the columns of a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tierlog.batches import BatchTable
from tierlog.columns import (
    BinaryColumn,
    BinaryRows,
    HeaderColumn,
    RecordColumns,
    RowColumns,
    TableRows,
)
from tierlog.tables.plan import Partition

__all__ = ["MAX_ROWS", "ROWS_BYTES", "RecordRows", "is_uncompressed"]

ROWS_BYTES = 2 << 20
MAX_ROWS = 1 << 16


class RecordRows:
    """Converts records to the columns of a schema. The schema may have any columns of the source in
    any order."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        names = [name.lower() for name in schema.names]
        self._columns = [_COLUMNS[name] for name in names if name in _COLUMNS]
        self._has_fields = any(name in _FIELDS for name in names)
        self._weighed = tuple(name for name in names if name in ("key", "value"))
        # See `read_range`.
        self.rows_of = None if "headers" in names else self._weighed

    def of(
        self, partition: Partition, records: RecordColumns | TableRows
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow batches of about 2 MiB."""
        if isinstance(records, TableRows):
            if len(records):
                yield self._batch(_Rows.of_table(partition, records))
            return
        for first, last in self._runs(records):
            part = records if last - first == len(records) else records.rows(first, last)
            yield self._batch(_Rows.of_records(partition, part, self._has_fields))

    def _batch(self, rows: _Rows) -> pa.RecordBatch:
        arrays = [column(rows) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _runs(self, records: RecordColumns) -> Iterator[tuple[int, int]]:
        """Yield the first row of each Arrow batch, and the row after its last row."""
        count = len(records)
        if 0 < count <= MAX_ROWS and _fits(records.batches):
            yield 0, count
            return
        ends = np.zeros(count, np.int64)
        for name in self._weighed:
            ends += (records.keys if name == "key" else records.values).lengths
        ends = ends.cumsum()
        first = 0
        while first < count:
            begin = int(ends[first - 1]) if first else 0
            last = int(ends.searchsorted(begin + ROWS_BYTES, "right"))
            last = min(max(last, first + 1), first + MAX_ROWS)
            yield first, last
            first = last


def is_uncompressed(batches: BatchTable) -> bool:
    """Return whether no batch is compressed, so that records are no larger than their batches."""
    return not (batches.attributes.any() and (batches.attributes & _CODEC).any())


def _fits(batches: BatchTable) -> bool:
    """Return whether all rows fit into one Spark batch."""
    return is_uncompressed(batches) and int(batches.size_bytes.sum(dtype=np.int64)) <= ROWS_BYTES


class _Rows(NamedTuple):
    """Records of one partition. ``fields`` holds the columns in `_FIELDS`. It may be None if the
    schema has no such column."""

    partition: Partition
    length: int
    offset: Any
    keys: BinaryColumn | BinaryRows | None
    values: BinaryColumn | BinaryRows | None
    headers: HeaderColumn | None
    fields: RowColumns | None

    @classmethod
    def of_records(cls, partition: Partition, records: RecordColumns, has_fields: bool) -> _Rows:
        fields = records.row_columns() if has_fields else None
        columns = (records.offset, records.keys, records.values, records.headers)
        return cls(partition, len(records), *columns, fields)

    @classmethod
    def of_table(cls, partition: Partition, rows: TableRows) -> _Rows:
        return cls(partition, len(rows), rows.offset, rows.keys, rows.values, None, rows.columns)


def _array(values: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return the numbers of a buffer as an array over the same memory."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])


@lru_cache(maxsize=8)
def _many(value: str | int, kind: pa.DataType) -> pa.Array:
    """Return an array that repeats one value `MAX_ROWS` times."""
    return pa.repeat(pa.scalar(value, kind), MAX_ROWS)


def _same(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array that repeats one value. Arrays of the same value share memory."""
    return _many(value, kind).slice(0, count)


def _field(name: str, kind: pa.DataType) -> Callable[[_Rows], pa.Array]:
    return lambda rows: _array(getattr(rows.fields, name), kind, rows.length)


def _binary(values: BinaryColumn | BinaryRows | None) -> pa.Array:
    assert values is not None
    return values.to_binary()


def _headers(rows: _Rows) -> pa.Array:
    """Return the column of headers. The headers are null for a record without headers, as in
    Spark's Kafka source."""
    headers = rows.headers
    assert headers is not None
    offsets = headers.list_offsets
    first, last = int(offsets[0]), int(offsets[-1])
    keys = headers.keys.rows(first, last).to_binary().view(pa.string())
    values = headers.values.rows(first, last).to_binary()
    items = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.ListArray.from_arrays(
        pa.array(offsets - first),
        items,
        type=pa.list_(pa.field("element", items.type)),
        mask=pa.array(np.diff(offsets) == 0),
    )


_TIME_US = pa.timestamp("us", tz="UTC")
_CODEC = 0x07
# Columns that are fields of `RowColumns`, with the field's name and type.
_FIELDS = {
    "timestamp": ("timestamp_us", _TIME_US),
    "timestamptype": ("timestamp_type", pa.int32()),
    "leader_epoch": ("leader_epoch", pa.int32()),
    "producer_id": ("producer_id", pa.int64()),
    "producer_epoch": ("producer_epoch", pa.int16()),
    "base_sequence": ("base_sequence", pa.int32()),
}
_COLUMNS: dict[str, Callable[[_Rows], pa.Array]] = {
    "key": lambda rows: _binary(rows.keys),
    "value": lambda rows: _binary(rows.values),
    "topic": lambda rows: _same(rows.partition.topic, pa.string(), rows.length),
    "partition": lambda rows: _same(rows.partition.partition, pa.int32(), rows.length),
    "offset": lambda rows: _array(rows.offset, pa.int64(), rows.length),
    "headers": _headers,
    **{name: _field(*field) for name, field in _FIELDS.items()},
}
