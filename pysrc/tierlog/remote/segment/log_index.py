"""The remoteLogIndex: where runs of log data lie in remote storage (formats section 9).

    data = encode_remote_log_index(first_offset, last_offset, ..., rdi)      columns in, bytes out
    entries = decode_remote_log_index(data)                                  and back, verified
    row = lookup_offset(entries, 4711)                                       None past the end

An entry points at a run of whole batches. Its offsets are Kafka offsets, inclusive; timestamps are
milliseconds, -1 for none, the last one the largest of the run; ``data_length`` counts bytes of log
data; ``rdi`` says where they lie and is untrusted input (see `layout`).

Not here: writing the index files of a node, and what an rdi means.
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
    "encode_remote_offset_index",
    "encode_remote_time_index",
    "group_batches",
    "lookup_offset",
    "lookup_timestamp",
    "read_remote_offset_index",
    "read_remote_time_index",
]

DEFAULT_GROUP_BYTES = 256 << 10
FIXED_BYTES = 46
MAX_RDI_BYTES = 2**15 - 1 - FIXED_BYTES

IntColumn: TypeAlias = "npt.ArrayLike"

_COLUMN = having("a sequence or an array of integers", "__len__", "__getitem__")
_RDI = having("a sequence of bytes", "__len__", "__getitem__")


class RdiColumn(Sequence[bytes]):
    """One rdi per row, where they lie: ``data[start[i] : start[i] + length[i]]``.

    ``start`` and ``length`` are int64 arrays. Indexing gives bytes; the whole column goes into
    `encode_remote_log_index` without becoming Python objects.
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
    first_offset        int64   first Kafka offset of the run
    last_offset         int64   last one, inclusive; ascends strictly
    first_timestamp_ms  int64   timestamp of the run's first batch
    last_timestamp_ms   int64   largest one; in entries of others only a hint
    data_length         int32   bytes of log data
    rdi                 bytes   `RdiColumn`
    ==================  ======  ================================================================

    ``valid_length`` is the size of all entries in bytes, ``has_trailer`` whether a trailer follows
    them, ``torn`` what was left out by a reader that recovers, else None.
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
        """The rdi of each entry; where they lie is worked out when first asked for."""
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
        """Row of the first entry whose last offset reaches an offset; None past the end."""
        row = self._native.lookup_offset(target_offset)
        return None if row < 0 else row

    def lookup_timestamp(self, target_ms: int) -> int | None:
        """Row of the first entry whose last timestamp reaches a time; None when none does.

        The record may lie in an earlier row when the entries are of a writer that did not store
        the largest timestamp of each run.
        """
        row = self._native.lookup_timestamp(target_ms)
        return None if row < 0 else row


@takes(data=BUFFER, recover=FLAG, path=optional(TEXT))
def decode_remote_log_index(
    data: Buffer, *, recover: bool = False, path: str | None = None
) -> RemoteLogIndexEntries:
    """Reads and verifies a whole remoteLogIndex, with or without its 8-byte trailer.

    ``data`` is any C-contiguous buffer; a writable one is copied first. Every entry is checked:
    magic, both lengths, CRC-32, possible values, ascending last offsets. One bad byte makes the
    file suspect and raises ``CorruptDataError`` with the position of the entry (and ``path``).
    With ``recover``, an append that was cut off at the very end is left out and reported in
    ``.torn`` instead. Releases the interpreter lock.
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
    """Encodes one entry per row, back to back, without a trailer.

    The first five are int arrays (or sequences of int) of one length, ``rdi`` a sequence of as
    many ``bytes`` of at most 32,721 each, or an `RdiColumn`. ``ValueError`` names the row of the
    first value that no entry can hold: 0 <= first offset <= last offset, last offsets that ascend
    strictly, 1 <= data length < 2^31; timestamps are any int64. Releases the interpreter lock.
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
    """A column as int64; ValueError where a value does not fit, never a wrap or a rounding."""
    array = np.asarray(values)
    if array.dtype == np.int64:
        return np.ascontiguousarray(array)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind == "f" and not isinstance(values, np.ndarray):
        # What numpy makes of Python integers that need more than one 64-bit type.
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
    """The remoteLogIndex of a segment whose bytes are the object ``key``, from its scanned batches.

    One entry per run of at least ``group_bytes`` (the last one of what is left), never splitting a
    batch. The rdi is ``<key>:<byte position>``; the first timestamp is the first batch's base
    timestamp, the last one the run's largest. ``ValueError`` when batches do not lie back to back.
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


def encode_remote_offset_index(entries: RemoteLogIndexEntries, base_offset: int) -> bytes:
    """The remoteOffsetIndex of entries: (last offset - base, byte position), 8 bytes each.

    ``ValueError``-free for any index below 2 GiB whose offsets lie within 2^31 of the base;
    ``CorruptDataError`` beyond.
    """
    return _core.encode_offset_index(entries.last_offset, entries.position, base_offset)


def encode_remote_time_index(entries: RemoteLogIndexEntries, base_offset: int) -> bytes:
    """The remoteTimeIndex of entries: (last timestamp, last offset - base), 12 bytes for each entry
    whose timestamp passes all before it."""
    return _core.encode_time_index(entries.last_timestamp_ms, entries.last_offset, base_offset)


def read_remote_offset_index(data: Buffer, base_offset: int) -> tuple[Int64Column, Int64Column]:
    """(last offset, byte position in the remoteLogIndex) columns of a remoteOffsetIndex.

    ``CorruptDataError`` unless both ascend strictly and nothing follows them.
    """
    offset, position, _length = _core.parse_offset_index(data, base_offset, "empty")
    return np.asarray(offset), np.asarray(position)


def read_remote_time_index(data: Buffer, base_offset: int) -> tuple[Int64Column, Int64Column]:
    """(timestamp in ms, last offset) columns of a remoteTimeIndex.

    ``CorruptDataError`` unless timestamps ascend strictly, offsets do not descend and nothing
    follows them.
    """
    timestamp_ms, offset, _length = _core.parse_time_index(data, base_offset, "empty")
    return np.asarray(timestamp_ms), np.asarray(offset)


def lookup_offset(entries: RemoteLogIndexEntries | Buffer, target_offset: int) -> int | None:
    """Row of the entry that holds an offset or what follows it; None past the end.

    Bytes are verified as a whole first: decode once for more than one look-up, or use
    ``tierlog._hot.CachedIndex`` on a request path.
    """
    return _decoded(entries).lookup_offset(target_offset)


def lookup_timestamp(entries: RemoteLogIndexEntries | Buffer, target_ms: int) -> int | None:
    """Row of the first entry whose last timestamp reaches a time; None when none does."""
    return _decoded(entries).lookup_timestamp(target_ms)


def _decoded(entries: RemoteLogIndexEntries | Buffer) -> RemoteLogIndexEntries:
    if isinstance(entries, RemoteLogIndexEntries):
        return entries
    return decode_remote_log_index(entries)
