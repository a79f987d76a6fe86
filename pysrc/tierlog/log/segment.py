"""Scans a segment file or a buffer with the native scanner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from tierlog import _core
from tierlog.arguments import FLAG, INTEGER, SEGMENT_SOURCE, native_takes, optional
from tierlog.batches import BatchTable
from tierlog.log.rebuild import RebuiltIndexes, rebuild_indexes
from tierlog.types import StopReason

if TYPE_CHECKING:
    import numpy.typing as npt
    from _typeshed import HasFileno
    from typing_extensions import Buffer

__all__ = [
    "RebuiltIndexes",
    "SegmentSource",
    "rebuild_indexes",
    "scan_segment",
    "scan_segment_in_parts",
]

# Positions in Kafka's files are i32.
MAX_SEGMENT_BYTES = 2**31

SegmentSource: TypeAlias = "str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any]"


@native_takes(
    source=SEGMENT_SOURCE,
    start=INTEGER,
    end=optional(INTEGER),
    verify_crc=FLAG,
    hash_bytes=FLAG,
    own_file=FLAG,
)
def scan_segment(
    source: SegmentSource,
    start: int = 0,
    end: int | None = None,
    verify_crc: bool = True,
    *,
    hash_bytes: bool = False,
    own_file: bool = False,
) -> BatchTable:
    """Scans a segment batch by batch and says why the scan stopped.

    ``source`` is a path, an open file (any object with ``fileno()``; its position is not used) or a
    C-contiguous buffer. A writable buffer is copied first. ``start`` and ``end`` are byte
    positions; ``start`` must be the position of a batch. ``verify_crc`` checks every batch's
    checksum (CRC-32C for magic 2, CRC-32 for older batches); without it, only the headers of large
    batches are read. ``hash_bytes`` also computes the CRC-32C of the scanned bytes. Set
    ``own_file`` if no other process can truncate the file; it may then be mapped.

    Damage is a result, not an exception. The table has the batches before it; ``stop_reason`` and
    ``stop_position`` say what the damage is and where. Raises ``OSError`` when the file cannot be
    read and ``ValueError`` when it is not a regular file. Releases the interpreter lock.
    """
    return BatchTable(_core.scan_segment(source, start, end, verify_crc, hash_bytes, own_file))


def scan_segment_in_parts(
    source: SegmentSource, part_bytes: int, *, verify_crc: bool = True
) -> Iterator[BatchTable]:
    """Scan a segment like `scan_segment`, and yield tables that each have the batches of about
    `part_bytes`.

    The memory of a table is limited by the batches of one part. The last table, which may be empty,
    says why the scan stopped. The order of offsets is checked only within each part. Errors are as
    in `scan_segment`.
    """
    start, size_bytes = 0, part_bytes
    while True:
        table = scan_segment(source, start, start + size_bytes, verify_crc)
        # A part may end in the leading zeros of a base offset.
        cut = table.stop_reason in (StopReason.TORN_TAIL, StopReason.ZERO_TAIL)
        if len(table) and (cut or table.stop_reason is StopReason.END):
            yield table
            start, size_bytes = table.stop_position, part_bytes
        elif cut and size_bytes < MAX_SEGMENT_BYTES:
            # One batch is larger than a part.
            size_bytes *= 2
        else:
            yield table
            return
