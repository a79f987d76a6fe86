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
# Memory for the decoded records that a reader holds at a time. A single batch may take more.
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

    ``source`` is a path, an open file (any object with ``fileno()``) or a C-contiguous buffer. A
    writable buffer is copied first; a read-only buffer must not change while the columns are in
    use. ``start`` and ``end`` are byte positions; ``start`` is the position of a batch. One call
    decodes at most 2 GiB. ``verify_crc`` checks every batch's checksum. ``include_control`` adds
    the records of control batches. ``max_decompressed_bytes`` limits the decompressed size of one
    batch; its columns may take twice that memory. With ``budget_bytes``, the decode stops after the
    batch with which decompressed batches and columns take that much memory. ``batches.stop_reason``
    is then ``MEMORY_BUDGET``, and `decode_pieces` continues there.

    The decode ends at a batch that ``end`` cuts off and at a tail of zeros. The columns then have
    the records before this point, and ``batches.stop_reason`` has the reason. Any other deviation
    from the format raises ``CorruptDataError`` with its byte position. Raises ``OSError`` when a
    file cannot be read and ``ValueError`` when it is not a regular file. Releases the interpreter
    lock.
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
    """Yield the records of `decode_records` in chunks of bounded memory. The last chunk says why
    the decode stopped.

    If a batch is damaged, the records before the batch are yielded first. Then the error is raised.
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
    """Check everything that `decode_records` checks, but keep no records. One batch is decompressed
    at a time."""
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
    """Return records of a file as rows of a table, up to the first batch that is not usual.

    A batch is usual when it is whole, sound, of magic 2 and not compressed, follows the batch
    before it, and has offsets within ``batch_offsets`` (the first offset, and the offset after the
    last). The rows equal those of `decode_records`. For a batch that is not usual, only its
    position is returned. ``position`` is the position of a batch. From there, about ``size_bytes``
    of the file become at most ``max_rows`` rows. Rows with offsets outside of ``offsets`` are left
    out, and batches after the last of these offsets are not read. Control batches have no rows.

    The bytes are read, checked and copied in chunks that fit into a core's own cache. Raises
    ``OSError`` when the file cannot be read. Releases the interpreter lock.
    """
    native = _core.read_rows(
        source, position, size_bytes, max_rows, offsets, batch_offsets, keys, values
    )
    return TableRows.from_native(native)
