"""Records as rows of Spark: Arrow batches of about 1 MiB in the columns of a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_udfs.source_plan import Partition
from tierlog.batches import BatchTable
from tierlog.columns import RecordColumns

__all__ = ["RecordRows", "is_plain"]

_ROWS_BYTES = 1 << 20
_MAX_ROWS = 1 << 16


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
        if 0 < count <= _MAX_ROWS and _fits(records.batches):
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


def is_plain(batches: BatchTable) -> bool:
    """Whether nothing is compressed, so that the records are no larger than their batches."""
    return not (batches.attributes.any() and (batches.attributes & _CODEC).any())


def _fits(batches: BatchTable) -> bool:
    """Whether all of it makes one batch of Spark's."""
    return is_plain(batches) and int(batches.size_bytes.sum(dtype=np.int64)) <= _ROWS_BYTES


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
    keys = headers.keys.rows(first, last).to_binary().view(pa.string())
    values = headers.values.rows(first, last).to_binary()
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
    "key": lambda rows: rows.records.keys.to_binary(),
    "value": lambda rows: rows.records.values.to_binary(),
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
