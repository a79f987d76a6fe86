"""Decodes the records of a segment or of a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tierlog import _core
from tierlog.arguments import FLAG, INTEGER, SEGMENT_SOURCE, native_takes, optional
from tierlog.batches import BatchTable
from tierlog.columns import RecordColumns, TableRows
from tierlog.errors import CorruptDataError
from tierlog.log.segment import SegmentSource
from tierlog.types import StopReason

if TYPE_CHECKING:
    from _typeshed import HasFileno

__all__ = [
    "DECODE_BUDGET_BYTES",
    "MAX_DECOMPRESSED_BYTES",
    "check_records",
    "decode_pieces",
    "decode_records",
    "name_size_setting",
    "read_rows",
]

MAX_DECOMPRESSED_BYTES = 64 << 20
# Memory of the decoded records that a reader holds at a time, unless one batch takes more.
DECODE_BUDGET_BYTES = 16 << 20


@native_takes(
    source=SEGMENT_SOURCE,
    start=INTEGER,
    end=optional(INTEGER),
    verify_crc=FLAG,
    include_control=FLAG,
    max_decompressed_bytes=INTEGER,
    budget_bytes=optional(INTEGER),
)
def decode_records(
    source: SegmentSource,
    start: int = 0,
    end: int | None = None,
    *,
    verify_crc: bool = True,
    include_control: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    budget_bytes: int | None = None,
) -> RecordColumns:
    """Decodes record batches of magic 0 to 2 and every codec into columns (formats 2 to 4).

    ``source`` is a path, an open file (anything with ``fileno()``) or any C-contiguous buffer; a
    writable buffer is copied first, a read-only one must not change while the columns are in use.
    ``start`` and ``end`` are byte positions, ``start`` that of a batch; at most 2 GiB at once.
    ``verify_crc`` checks every batch's checksum, ``include_control`` adds the records of control
    batches. ``max_decompressed_bytes`` bounds what one batch may open to; its columns may take
    twice that. With ``budget_bytes`` the decode stops on the batch border where opened batches
    and columns take that much memory, after at least one batch; ``batches.stop_reason`` is
    ``MEMORY_BUDGET`` then. `decode_pieces` goes on from there.

    A batch that is cut off by the end, and a tail of zeros, end the decode: the columns hold what
    is before, ``batches.stop_reason`` says so. Everything else that is not exactly what the format
    says raises ``CorruptDataError`` with its byte position. Raises ``OSError`` when a file cannot
    be read and ``ValueError`` when it is not a regular file. Releases the interpreter lock.
    """
    try:
        native = _core.decode_records(
            source, start, end, verify_crc, include_control, max_decompressed_bytes, budget_bytes
        )
    except CorruptDataError as error:
        raise name_size_setting(error, max_decompressed_bytes) from None
    return RecordColumns.from_native(native)


def decode_pieces(
    source: SegmentSource,
    start: int = 0,
    end: int | None = None,
    *,
    verify_crc: bool = True,
    include_control: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    budget_bytes: int = DECODE_BUDGET_BYTES,
) -> Iterator[RecordColumns]:
    """`decode_records` in pieces of bounded memory; the last one says why the decode stopped.

    The records before damage come first, then its error.
    """
    position, damage, stop_reason = start, None, StopReason.MEMORY_BUDGET
    while stop_reason is StopReason.MEMORY_BUDGET:
        try:
            piece = decode_records(
                source,
                position,
                end,
                verify_crc=verify_crc,
                include_control=include_control,
                max_decompressed_bytes=max_decompressed_bytes,
                budget_bytes=budget_bytes,
            )
        except CorruptDataError as error:
            if damage is not None:
                raise
            # The batches before this byte are sound; the end now excludes the damaged batch.
            damage, end = error, error.position
            continue
        position, stop_reason = piece.batches.stop_position, piece.batches.stop_reason
        if damage is None or len(piece.batches):
            yield piece
        # Release this chunk before the next one is decoded.
        del piece
    if damage is not None:
        raise damage


def check_records(
    source: SegmentSource,
    start: int = 0,
    end: int | None = None,
    *,
    verify_crc: bool = True,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> BatchTable:
    """Check everything that `decode_records` checks without keeping records; one batch is
    decompressed at a time."""
    try:
        native = _core.check_records(source, start, end, verify_crc, max_decompressed_bytes)
    except CorruptDataError as error:
        raise name_size_setting(error, max_decompressed_bytes) from None
    return BatchTable(native)


def name_size_setting(error: CorruptDataError, max_decompressed_bytes: int) -> CorruptDataError:
    """Add the name of the setting to the error of a batch that is too large."""
    if error.reason != "too_large" or "decompressed" not in error.expected:
        return error
    name = "tierlog.batch.max.decompressed.bytes"
    variable = name.upper().replace(".", "_")
    hint = (
        f"{name} is {max_decompressed_bytes}; to read this batch, set a larger value, for example "
        f"in the environment variable {variable}"
    )
    return CorruptDataError(
        reason=error.reason,
        path=error.path,
        position=error.position,
        expected=error.expected,
        found=error.found,
        hint=hint,
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
    it, and has offsets within ``batch_offsets`` (first, and the one after the last). The rows equal
    those of `decode_records`. Of another batch only its position is returned. From ``position`` on,
    that of a batch, about ``size_bytes`` of the file become at most ``max_rows`` rows, of which
    those with offsets outside of ``offsets`` are left out, and what comes behind these is not read.
    Control batches have no rows.

    The bytes are read, checked and copied in pieces that stay in a core's own cache. Raises
    ``OSError`` when the file cannot be read. Releases the interpreter lock.
    """
    native = _core.read_rows(
        source, position, size_bytes, max_rows, offsets, batch_offsets, keys, values
    )
    return TableRows.from_native(native)
