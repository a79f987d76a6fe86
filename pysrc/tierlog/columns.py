"""Decoded records as columns: numpy arrays for numbers, Arrow binary views for keys, values and
headers.

Values are not copied. Numbers are numpy arrays over the decoder's memory, and views of uncompressed
records point into the source. So the source stays in memory as long as the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from tierlog import _core
from tierlog.batches import BatchTable, Int32Column, Int64Column

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BinaryColumn",
    "BinaryRows",
    "HeaderColumn",
    "Record",
    "RecordColumns",
    "RowColumns",
    "TableRows",
]

_VIEW_BYTES = 16
# The first version of pyarrow that can make arrays of views from buffers.
_FIRST_PYARROW_WITH_VIEWS = 19
# Number of rows that an iterator converts to bytes at a time.
_ITERATION_ROWS = 4096


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("to_arrow needs pyarrow: pip install 'tierlog[arrow]'") from error
    return pa


class BinaryColumn(Sequence["bytes | None"]):
    """Byte strings, some of them null, in Arrow's binary view layout.

    ``column[i]`` is ``bytes`` or None, and a slice is a list of such values; both copy the bytes.
    ``lengths``, ``is_null``, the raw ``views``, ``validity``, ``data_buffers`` and ``to_arrow()``
    do not copy them.

    A view has 16 bytes, little-endian, and begins with the i32 length. A value of up to 12 bytes
    follows directly. For a longer value, its first 4 bytes, the i32 index of a data buffer and the
    i32 position in this buffer follow. A null is all zeros. ``validity`` has one bit per row,
    lowest first; 1 means not null. ``validity`` is None when no row is null.
    """

    __slots__ = ("_buffers", "_count", "_first", "_native")

    def __init__(
        self, native: _core.Views, data_buffers: list[Any], first: int = 0, count: int | None = None
    ) -> None:
        self._native = native
        self._buffers = data_buffers
        self._first = first
        self._count = len(native) - first if count is None else count

    def __len__(self) -> int:
        return self._count

    @property
    def native(self) -> tuple[_core.Views, int]:
        """The native column, and the number of its row that is row 0 of this column."""
        return self._native, self._first

    def rows(self, first: int, last: int) -> BinaryColumn:
        """Return the rows from `first` up to `last` (exclusive), over the same memory."""
        return BinaryColumn(self._native, self._buffers, self._first + first, last - first)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes | None]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes | None] | None:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                end = self._first + max(start, stop)
                return self._native.to_list(self._buffers, self._first + start, end)
            return [self[row] for row in range(start, stop, step)]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of a column of {len(self)} rows")
        return self._native.item(self._buffers, self._first + row)

    def __iter__(self) -> Iterator[bytes | None]:
        for start in range(0, len(self), _ITERATION_ROWS):
            yield from self[start : start + _ITERATION_ROWS]

    def __repr__(self) -> str:
        return f"BinaryColumn({len(self)} rows, {self.null_count} null)"

    @property
    def null_count(self) -> int:
        """Number of rows that are null."""
        if self._count == len(self._native):
            return self._native.null_count
        return int(np.count_nonzero(self.is_null))

    @property
    def lengths(self) -> Int32Column:
        """The size of each row in bytes; 0 for a null. The result is a strided array over the
        views."""
        return self.views.view(np.int32).reshape(-1, _VIEW_BYTES // 4)[:, 0]

    @property
    def is_null(self) -> npt.NDArray[np.bool_]:
        """Whether each row is null."""
        native = self._native.validity
        if native is None:
            return np.zeros(len(self), np.bool_)
        end = self._first + self._count
        bits = np.unpackbits(np.asarray(native), count=end, bitorder="little")
        return ~bits[self._first :].astype(np.bool_)

    @property
    def views(self) -> npt.NDArray[np.void]:
        """The 16-byte views."""
        whole = np.asarray(self._native.views).view(np.dtype((np.void, _VIEW_BYTES)))
        return whole[self._first : self._first + self._count]

    @property
    def validity(self) -> npt.NDArray[np.uint8] | None:
        """The validity bitmap; None when no row is null. For a part of a native column, the bitmap
        is a copy."""
        native = self._native.validity
        if native is None or self._count == len(self._native):
            return None if native is None else np.asarray(native)
        return np.packbits(~self.is_null, bitorder="little")

    @property
    def data_buffers(self) -> list[Any]:
        """The buffers to which views point: first the decoded range of the source, then
        decompressed batches."""
        return list(self._buffers)

    def to_list(self) -> list[bytes | None]:
        """Return every row as bytes or None."""
        return self[:]

    def to_arrow(self) -> pa.Array:
        """Return a ``pyarrow`` array of type ``binary_view`` over the same memory. Raises
        ImportError for versions of pyarrow before 19, which cannot make such an array."""
        pa = _pyarrow()
        if int(pa.__version__.partition(".")[0]) < _FIRST_PYARROW_WITH_VIEWS:
            raise ImportError(
                f"to_arrow makes binary views, which needs pyarrow {_FIRST_PYARROW_WITH_VIEWS} or "
                f"later, found {pa.__version__}; to_arrow(views=False) and to_binary() work with it"
            )
        validity = self._native.validity
        buffers = [
            None if validity is None else pa.py_buffer(validity),
            pa.py_buffer(self._native.views),
            *map(pa.py_buffer, self._buffers),
        ]
        nulls = self._native.null_count
        whole = pa.Array.from_buffers(pa.binary_view(), len(self._native), buffers, nulls)
        return whole.slice(self._first, self._count)

    def to_binary(self) -> pa.Array:
        """Return a ``pyarrow`` array of type ``binary`` with copied values, for software that does
        not support views. Raises OverflowError when the values have more than 2^31 - 1 bytes."""
        pa = _pyarrow()
        end = self._first + self._count
        offsets, data = self._native.to_binary(self._buffers, self._first, end)
        validity = self.validity
        buffers = [
            None if validity is None else pa.py_buffer(validity),
            pa.py_buffer(offsets),
            pa.py_buffer(data),
        ]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers)


class BinaryRows(NamedTuple):
    """Contiguous byte strings in Arrow's ``binary`` layout: i32 offsets (one more than there are
    rows), the bytes, and a validity bitmap, which is None when no row is null."""

    offsets: _core.Column
    data: _core.Column
    validity: _core.Column | None

    def to_binary(self) -> pa.Array:
        """Return a ``pyarrow`` array of type ``binary`` over the same memory."""
        pa = _pyarrow()
        validity = None if self.validity is None else pa.py_buffer(self.validity)
        buffers = [validity, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(self.offsets) - 1, buffers)


class HeaderColumn(Sequence["list[tuple[bytes, bytes | None]]"]):
    """The headers of each record. ``column[i]`` is a list of (key, value) pairs; a value may be
    None.

    ``keys`` and ``values`` hold the headers of all records, one record after another. The headers
    of record i are the rows ``list_offsets[i]`` up to ``list_offsets[i + 1]`` (exclusive). Keys are
    UTF-8 and never null.
    """

    __slots__ = ("_list_offsets", "_rows", "keys", "values")

    def __init__(
        self, list_offsets: Int32Column | None, rows: int, keys: BinaryColumn, values: BinaryColumn
    ) -> None:
        self._list_offsets = list_offsets
        self._rows = rows
        self.keys = keys
        self.values = values

    def __len__(self) -> int:
        return self._rows

    def rows(self, first: int, last: int) -> HeaderColumn:
        """Return the rows from `first` up to `last` (exclusive), over the same memory."""
        offsets = self._list_offsets
        part = None if offsets is None else offsets[first : last + 1]
        return HeaderColumn(part, last - first, self.keys, self.values)

    @overload
    def __getitem__(self, index: int) -> list[tuple[bytes, bytes | None]]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[tuple[bytes, bytes | None]]]: ...
    def __getitem__(
        self, index: int | slice
    ) -> list[tuple[bytes, bytes | None]] | list[list[tuple[bytes, bytes | None]]]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(self._rows))]
        row = index + self._rows if index < 0 else index
        if not 0 <= row < self._rows:
            raise IndexError(f"row {index} of a column of {self._rows} rows")
        if self._list_offsets is None:
            return []
        start, end = self.list_offsets[row : row + 2].tolist()
        keys = [key or b"" for key in self.keys[start:end]]
        return list(zip(keys, self.values[start:end], strict=True))

    def __repr__(self) -> str:
        return f"HeaderColumn({self._rows} rows, {len(self.keys)} headers)"

    @property
    def list_offsets(self) -> Int32Column:
        """The positions of the records' headers in ``keys`` and ``values``, as int32; one more than
        there are records."""
        if self._list_offsets is None:
            return np.zeros(self._rows + 1, np.int32)
        return self._list_offsets

    def to_arrow(self, *, views: bool = True) -> pa.Array:
        """Return a ``pyarrow`` list of structs (key, value). With `views`, keys and values are of
        type ``binary_view`` over the same memory; otherwise keys and values are copies of type
        ``binary``."""
        pa = _pyarrow()
        offsets = self.list_offsets
        if views:
            keys, values = self.keys.to_arrow(), self.values.to_arrow()
        else:
            first, last = int(offsets[0]), int(offsets[-1])
            keys = self.keys.rows(first, last).to_binary()
            values = self.values.rows(first, last).to_binary()
            offsets = offsets - first
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", values.type)]
        headers = pa.StructArray.from_arrays([keys, values], fields=fields)
        return pa.ListArray.from_arrays(pa.array(offsets), headers)


class Record(NamedTuple):
    """One record. Key and value are None where Kafka has null. A header is a (key, value) pair."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


class RowColumns(NamedTuple):
    """Further columns of table rows: the timestamp in microseconds (clamped), Kafka's number of the
    timestamp type (-1 none, 0 create time, 1 log append time), and fields of the record's batch.
    The columns are buffers of i64, i32, i32, i64, i16 and i32, with one value for each row."""

    timestamp_us: _core.Column
    timestamp_type: _core.Column
    leader_epoch: _core.Column
    producer_id: _core.Column
    producer_epoch: _core.Column
    base_sequence: _core.Column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableRows:
    """Records as rows of a table, in Arrow's buffers.

    ``offset`` is a buffer of i64. ``keys`` and ``values`` are None when they were not requested.
    The next batch is at ``stop_position`` and has offsets from ``next_offset`` on. ``is_last`` says
    that the file ends there, or that this batch needs `decode_records`.
    """

    offset: _core.Column
    columns: RowColumns
    keys: BinaryRows | None
    values: BinaryRows | None
    stop_position: int
    next_offset: int
    is_last: bool

    @classmethod
    def from_native(cls, native: _core.TableRows) -> TableRows:
        """Wrap the result of the native reader."""
        keys, values = native.keys, native.values
        return cls(
            offset=native.offset,
            columns=RowColumns(*native.columns),
            keys=None if keys is None else BinaryRows(*keys),
            values=None if values is None else BinaryRows(*values),
            stop_position=native.stop_position,
            next_offset=native.next_offset,
            is_last=native.is_last,
        )

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RecordColumns:
    """The records of a range of batches, one row per record.

    ``offset`` and ``timestamp_ms`` are int64; the timestamp of a message of magic 0 is -1. ``keys``
    and ``values`` are `BinaryColumn`, and ``headers`` is a `HeaderColumn`. ``batches`` has one row
    per batch, including control batches. ``batches.stop_reason`` and ``batches.stop_position`` say
    why and where the decode ended. The records of batch i are the rows ``batch_starts[i]`` up to
    ``batch_starts[i + 1]`` (exclusive).
    """

    offset: Int64Column
    timestamp_ms: Int64Column
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn
    batches: BatchTable
    batch_starts: Int64Column

    @classmethod
    def from_native(cls, native: _core.Records) -> RecordColumns:
        """Wrap the result of the native decoder."""
        buffers = native.data_buffers
        offset: Int64Column = np.asarray(native.offset)
        list_offsets = native.header_list_offsets
        return cls(
            offset=offset,
            timestamp_ms=np.asarray(native.timestamp_ms),
            keys=BinaryColumn(native.keys, buffers),
            values=BinaryColumn(native.values, buffers),
            headers=HeaderColumn(
                None if list_offsets is None else np.asarray(list_offsets),
                len(offset),
                BinaryColumn(native.header_keys, buffers),
                BinaryColumn(native.header_values, buffers),
            ),
            batches=BatchTable(native.batches),
            batch_starts=np.asarray(native.batch_starts),
        )

    def __len__(self) -> int:
        return len(self.offset)

    def __repr__(self) -> str:
        offsets = f"{self.offset[0]}..{self.offset[-1]}" if len(self) else "none"
        return f"RecordColumns({len(self)} records, offsets {offsets}, {len(self.batches)} batches)"

    def rows(self, first: int, last: int) -> RecordColumns:
        """Return the rows from `first` up to `last` (exclusive) over the same memory. ``batches``
        still has all batches."""
        if not 0 <= first <= last <= len(self):
            raise IndexError(f"rows {first} to {last} of {len(self)}")
        return RecordColumns(
            offset=self.offset[first:last],
            timestamp_ms=self.timestamp_ms[first:last],
            keys=self.keys.rows(first, last),
            values=self.values.rows(first, last),
            headers=self.headers.rows(first, last),
            batches=self.batches,
            batch_starts=np.clip(self.batch_starts, first, last) - first,
        )

    def format(
        self, template: _core.TextTemplate, first: int, limit_bytes: int
    ) -> tuple[_core.Column, int]:
        """Return the text of records from row `first` on, up to about `limit_bytes`, and the number
        of the first row that is not in the text. The call releases the interpreter lock."""
        keys, strings = self.keys.native
        has_headers = len(self.headers.keys) > 0
        return template.format(
            first,
            limit_bytes,
            offset=self.offset,
            timestamp_ms=self.timestamp_ms,
            keys=keys,
            values=self.values.native[0],
            strings=strings,
            header_ends=self.headers.list_offsets if has_headers else None,
            header_keys=self.headers.keys.native[0],
            header_values=self.headers.values.native[0],
            buffers=self.values.data_buffers,
            batches=self.batches.native,
            batch_starts=self.batch_starts,
        )

    def row_columns(self) -> RowColumns:
        """Return columns with one row per record, for timestamps and for fields of the record's
        batch."""
        columns = _core.row_columns(self.batches.native, self.batch_starts, self.timestamp_ms)
        return RowColumns(*columns)

    def records(self) -> Iterator[Record]:
        """Return an iterator over the rows as Python objects. Using Python objects is many times
        slower than using columns."""
        columns = zip(
            self.offset.tolist(),
            self.timestamp_ms.tolist(),
            self.keys,
            self.values,
            self.headers,
            strict=True,
        )
        return starmap(Record, columns)

    def to_arrow(self, *, views: bool = True) -> pa.RecordBatch:
        """Return a ``pyarrow.RecordBatch`` with the columns offset, timestamp (milliseconds, UTC),
        key, value and headers.

        With `views`, keys, values and headers are ``binary_view`` columns over the same memory.
        Without `views`, they are copied into ``binary`` columns, which every function of pyarrow
        accepts; OverflowError is raised when a column has more than 2^31 - 1 bytes.

        pyarrow supports only a few operations on views:

        | pyarrow | ``binary_view`` columns |
        |---|---|
        | 18 | cannot be made: ImportError |
        | 19, 20 | ``cast``, ``concat_tables``, IPC; no Parquet |
        | 21, 22 | also ``parquet.write_table`` |
        | 23 to 26 | also ``parquet.write_table`` without the column headers |

        None of these versions has ``take``, ``filter``, ``sort_by`` or comparisons for views.
        """
        pa = _pyarrow()
        timestamp = pa.array(self.timestamp_ms).view(pa.timestamp("ms", tz="UTC"))
        columns = {
            "offset": pa.array(self.offset),
            "timestamp": timestamp,
            "key": self.keys.to_arrow() if views else self.keys.to_binary(),
            "value": self.values.to_arrow() if views else self.values.to_binary(),
            "headers": self.headers.to_arrow(views=views),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
