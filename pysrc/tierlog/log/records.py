"""The records of a segment, or of a part of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierlog import _core
from tierlog.columns import RecordColumns, TableRows
from tierlog.log.segment import SegmentSource

if TYPE_CHECKING:
    from _typeshed import HasFileno

__all__ = ["MAX_DECOMPRESSED_BYTES", "decode_records", "read_rows"]

MAX_DECOMPRESSED_BYTES = 64 << 20


def decode_records(
    source: SegmentSource,
    start: int = 0,
    end: int | None = None,
    *,
    verify_crc: bool = True,
    include_control: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> RecordColumns:
    """Decodes record batches of magic 0 to 2 and every codec into columns (formats 2 to 4).

    ``source`` is a path, an open file (anything with ``fileno()``) or any C-contiguous buffer; a
    writable buffer is copied first, a read-only one must not change while the columns are in use.
    ``start`` and ``end`` are byte positions, ``start`` that of a batch; at most 2 GiB at once.
    ``verify_crc`` checks every batch's checksum, ``include_control`` adds the records of control
    batches, ``max_decompressed_bytes`` bounds what one batch may open to.

    A batch that is cut off by the end, and a tail of zeros, end the decode: the columns hold what
    is before, ``batches.stop_reason`` says so. Everything else that is not exactly what the format
    says raises ``CorruptDataError`` with its byte position. Raises ``OSError`` when a file cannot
    be read and ``ValueError`` when it is not a regular file. Releases the interpreter lock.
    """
    return RecordColumns.from_native(
        _core.decode_records(
            source, start, end, verify_crc, include_control, max_decompressed_bytes
        )
    )


def read_rows(
    source: HasFileno,
    position: int,
    *,
    size_bytes: int,
    max_rows: int,
    offsets: tuple[int, int],
    batch_offsets: tuple[int, int],
    keys: bool = True,
    values: bool = True,
) -> TableRows:
    """The records of the usual batches of a file as rows of a table, as far as they go.

    A batch is usual when it is whole, sound, of magic 2 and not compressed, follows the one before
    it, and has offsets within ``batch_offsets`` (first, and the one after the last). Whatever
    `decode_records` says of it is true of these rows; of another batch nothing is said but where it
    begins. From ``position`` on, that of a batch, about ``size_bytes`` of the file become at most
    ``max_rows`` rows, of which those with offsets outside of ``offsets`` are left out, and what
    comes behind these is not read. Control batches have no rows.

    The bytes are read, checked and copied in pieces that stay in a core's own cache. Raises
    ``OSError`` when the file cannot be read. Releases the interpreter lock.
    """
    native = _core.read_rows(
        source, position, size_bytes, max_rows, offsets, batch_offsets, keys, values
    )
    return TableRows.from_native(native)
