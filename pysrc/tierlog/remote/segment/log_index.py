"""The remoteLogIndex: positions of log data in remote storage (section 9 of docs/FORMATS.md).

    data = encode_remote_log_index(first_offset, last_offset, ..., rdi)      columns to bytes
    entries = decode_remote_log_index(data)                                  bytes to columns
    row = lookup_offset(entries, 4711)                                       None past the end

An entry points at consecutive whole batches. The offsets of an entry are Kafka offsets, inclusive.
The timestamps are in milliseconds, and -1 means no timestamp; the last timestamp is the largest of
the batches. ``data_length`` is the size of the batches in bytes. ``rdi`` names the object and the
position of the batches. An rdi is untrusted input (see `layout`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from tierlog import _core
from tierlog.arguments import BUFFER, FLAG, TEXT, having, optional, takes
from tierlog.batches import BatchTable, Int32Column, Int64Column
from tierlog.errors import CorruptDataError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "DEFAULT_GROUP_BYTES",
    "MAX_RDI_BYTES",
    "RdiColumn",
    "RemoteLogIndexEntries",
    "decode_remote_log_index",
    "encode_remote_log_index",
    "group_batches",
    "lookup_offset",
    "lookup_timestamp",
]

DEFAULT_GROUP_BYTES = 256 << 10
FIXED_BYTES = 46
MAX_RDI_BYTES = 2**15 - 1 - FIXED_BYTES

IntColumn: TypeAlias = "npt.ArrayLike"

_COLUMN = having("a sequence or an array of integers", "__len__", "__getitem__")
_RDI = having("a sequence of bytes", "__len__", "__getitem__")


class RdiColumn(Sequence[bytes]):
    """One rdi per row. The rdi of row ``i`` is ``data[start[i] : start[i] + length[i]]``.

    ``start`` and ``length`` are int64 arrays. Indexing returns bytes. `encode_remote_log_index`
    accepts such a column and makes no Python object per row.
    """

    __slots__ = ("data", "length", "start")

    def __init__(self, data: memoryview, start: Int64Column, length: Int64Column) -> None:
        self.data = data
        self.start = start
        self.length = length

    def __len__(self) -> int:
        return len(self.start)

    @overload
    def __getitem__(self, row: int) -> bytes: ...
    @overload
    def __getitem__(self, row: slice) -> RdiColumn: ...
    def __getitem__(self, row: int | slice) -> bytes | RdiColumn:
        if isinstance(row, slice):
            return RdiColumn(self.data, self.start[row], self.length[row])
        start = int(self.start[row])
        return bytes(self.data[start : start + int(self.length[row])])

    def __repr__(self) -> str:
        return f"RdiColumn({len(self)} rows, {int(self.length.sum())} bytes)"


class RemoteLogIndexEntries:
    """A verified remoteLogIndex as read-only numpy columns of length ``len(entries)``.

    ==================  ======  ================================================================
    position            int64   byte position of the entry
    first_offset        int64   first Kafka offset of the entry's batches
    last_offset         int64   last one, inclusive; ascends strictly
    first_timestamp_ms  int64   timestamp of the entry's first batch
    last_timestamp_ms   int64   largest timestamp; only a hint when another program wrote it
    data_length         int32   size of the batches in bytes
    rdi                 bytes   `RdiColumn`
    ==================  ======  ================================================================

    ``valid_length`` is the size of all entries in bytes. ``has_trailer`` says whether a trailer
    follows the entries. ``torn`` is the error for an incomplete last entry that ``recover`` left
    out, or None.
    """

    position: Int64Column
    first_offset: Int64Column
    last_offset: Int64Column
    first_timestamp_ms: Int64Column
    last_timestamp_ms: Int64Column
    data_length: Int32Column

    __slots__ = (
        "_data",
        "_native",
        "_rdi",
        "data_length",
        "first_offset",
        "first_timestamp_ms",
        "has_trailer",
        "last_offset",
        "last_timestamp_ms",
        "position",
        "torn",
        "valid_length",
    )

    def __init__(self, native: _core.RemoteLogIndex, data: Buffer, path: str | None) -> None:
        for name, column in native.columns():
            setattr(self, name, np.asarray(column))
        self._native = native
        self.valid_length: int = native.valid_length
        self.has_trailer: bool = native.has_trailer
        self.torn: CorruptDataError | None = None
        if native.torn is not None:
            reason, expected, found = native.torn
            self.torn = CorruptDataError(
                reason=reason,
                path=path,
                position=self.valid_length,
                expected=expected,
                found=found,
                hint="cut the file here and write its trailer again",
            )
        self._data = memoryview(data).cast("B")
        self._rdi: RdiColumn | None = None

    @property
    def rdi(self) -> RdiColumn:
        """The rdi of each entry; computed on first use."""
        if self._rdi is None:
            ends = np.append(self.position, self.valid_length)[1:]
            start = self.position + FIXED_BYTES
            self._rdi = RdiColumn(self._data, start, ends - start)
        return self._rdi

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        offsets = f"{self.first_offset[0]}..{self.last_offset[-1]}" if len(self) else "none"
        return f"RemoteLogIndexEntries({len(self)} entries, offsets {offsets})"

    def lookup_offset(self, target_offset: int) -> int | None:
        """Return the row of the first entry with last offset >= `target_offset`, else None."""
        row = self._native.lookup_offset(target_offset)
        return None if row < 0 else row

    def lookup_timestamp(self, target_ms: int) -> int | None:
        """Return the row of the first entry with last timestamp >= `target_ms`, else None.

        If the writer did not store the largest timestamp of each entry, an earlier row may hold the
        record.
        """
        row = self._native.lookup_timestamp(target_ms)
        return None if row < 0 else row


@takes(data=BUFFER, recover=FLAG, path=optional(TEXT))
def decode_remote_log_index(
    data: Buffer, *, recover: bool = False, path: str | None = None
) -> RemoteLogIndexEntries:
    """Decode and verify a remoteLogIndex, with or without its 8-byte trailer.

    ``data`` is any C-contiguous buffer; a writable buffer is copied first. Every entry is checked:
    magic, both lengths, CRC-32, valid values, ascending last offsets. One bad byte raises
    ``CorruptDataError`` with the position of the entry (and ``path``), because then no entry can be
    trusted. With ``recover``, an incomplete last entry raises no error: it is left out and reported
    in ``.torn``. The interpreter lock is released meanwhile.
    """
    view = memoryview(data)
    frozen = data if view.readonly else bytes(view)
    try:
        native = _core.decode_remote_log_index(frozen, recover)
    except CorruptDataError as error:
        if path is None:
            raise
        raise error.located(path, "rebuild the index from its segment") from None
    return RemoteLogIndexEntries(native, frozen, path)


@takes(
    first_offset=_COLUMN,
    last_offset=_COLUMN,
    first_timestamp_ms=_COLUMN,
    last_timestamp_ms=_COLUMN,
    data_length=_COLUMN,
    rdi=_RDI,
)
def encode_remote_log_index(
    first_offset: IntColumn,
    last_offset: IntColumn,
    first_timestamp_ms: IntColumn,
    last_timestamp_ms: IntColumn,
    data_length: IntColumn,
    rdi: Sequence[bytes],
) -> bytes:
    """Encode one entry per row, contiguous, without a trailer.

    The first five arguments are int arrays (or sequences of int) of equal length. ``rdi`` is an
    `RdiColumn`, or a sequence of ``bytes`` of at most 32,721 bytes each. The values must satisfy 0
    <= first offset <= last offset and 1 <= data length < 2^31, and the last offsets must ascend
    strictly; a timestamp may be any int64. Raises ``ValueError``, which names the row of the first
    invalid value. The interpreter lock is released meanwhile.
    """
    columns = (
        _int64("first_offset", first_offset),
        _int64("last_offset", last_offset),
        _int64("first_timestamp_ms", first_timestamp_ms),
        _int64("last_timestamp_ms", last_timestamp_ms),
        _int64("data_length", data_length),
    )
    if isinstance(rdi, RdiColumn):
        start, length = np.ascontiguousarray(rdi.start), np.ascontiguousarray(rdi.length)
        return _core.encode_remote_log_index(*columns, rdi.data, start, length)
    return _core.encode_remote_log_index(*columns, rdi if isinstance(rdi, list) else tuple(rdi))


def _int64(name: str, values: IntColumn) -> Int64Column:
    """Convert a column to int64; raise ValueError for a value that does not fit or is not whole."""
    array = np.asarray(values)
    if array.dtype == np.int64:
        return np.ascontiguousarray(array)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind == "f" and not isinstance(values, np.ndarray):
        # numpy converts Python integers to floats when no single 64-bit type holds all of them.
        array = np.asarray(values, dtype=object)
    if not np.can_cast(array.dtype, np.int64, "safe"):
        _check_whole(name, array)
    return np.ascontiguousarray(array, dtype=np.int64)


def _check_whole(name: str, array: npt.NDArray[Any]) -> None:
    if array.dtype.kind not in "iuO":
        raise ValueError(f"{name}: expected whole numbers, found {array.dtype}")
    limits = np.iinfo(np.int64)
    for row, value in enumerate(array.ravel().tolist()):
        if not isinstance(value, int):
            raise ValueError(f"{name}, row {row}: expected a whole number, found {value!r}")
        if not limits.min <= value <= limits.max:
            raise ValueError(f"{name}, row {row}: expected 64 bits, found {value}")


def group_batches(table: BatchTable, key: str, *, group_bytes: int = DEFAULT_GROUP_BYTES) -> bytes:
    """Encode the remoteLogIndex of the segment whose log is the object ``key``, from its scanned
    batches.

    Each entry covers whole batches of at least ``group_bytes`` in all; the last entry may be
    smaller. The rdi is ``<key>:<byte position>``. The first timestamp is the base timestamp of the
    first batch, and the last timestamp is the largest of the batches. Raises ``ValueError`` when
    the batches are not contiguous.
    """
    return _core.encode_batch_runs(
        table.position,
        table.size_bytes,
        table.base_offset,
        table.last_offset,
        table.base_timestamp_ms,
        table.max_timestamp_ms,
        key,
        group_bytes,
    )


def lookup_offset(entries: RemoteLogIndexEntries | Buffer, target_offset: int) -> int | None:
    """Return the row of the first entry with last offset >= `target_offset`, else None.

    If ``entries`` is a buffer, each call decodes and verifies it. For several look-ups, decode the
    buffer once; on a request path, use ``tierlog._hot.CachedIndex``.
    """
    return _to_entries(entries).lookup_offset(target_offset)


def lookup_timestamp(entries: RemoteLogIndexEntries | Buffer, target_ms: int) -> int | None:
    """Return the row of the first entry with last timestamp >= `target_ms`, else None."""
    return _to_entries(entries).lookup_timestamp(target_ms)


def _to_entries(entries: RemoteLogIndexEntries | Buffer) -> RemoteLogIndexEntries:
    if isinstance(entries, RemoteLogIndexEntries):
        return entries
    return decode_remote_log_index(entries)
