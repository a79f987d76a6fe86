"""A segment file or buffer read by the native scanner."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.log.rebuild import RebuiltIndexes, rebuild_indexes

if TYPE_CHECKING:
    import numpy.typing as npt
    from _typeshed import HasFileno
    from typing_extensions import Buffer

__all__ = ["RebuiltIndexes", "SegmentSource", "rebuild_indexes", "scan_segment"]

SegmentSource: TypeAlias = "str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any]"


def scan_segment(
    source: SegmentSource,
    start: int = 0,
    end: int | None = None,
    verify_crc: bool = True,
    *,
    hash_bytes: bool = False,
    own_file: bool = False,
) -> BatchTable:
    """Walks a segment batch by batch and says why it stopped (formats sections 2, 3 and 5).

    ``source`` is a path, an open file (anything with ``fileno()``; its position is not used) or
    any C-contiguous buffer; a writable buffer is copied first. ``start``
    and ``end`` are byte positions; ``start`` must be the position of a batch. ``verify_crc``
    checks every batch's checksum (CRC-32C for magic 2, CRC-32 before); without it only the
    headers of large batches are read. ``hash_bytes`` also computes the CRC-32C of the range.
    ``own_file`` says that nobody else can shorten the file, so that it may be mapped.

    Damage is a result, not an exception: the table holds the batches before it, ``stop_reason``
    and ``stop_position`` name it. Raises ``OSError`` when the file cannot be read and
    ``ValueError`` when it is not a regular file. Releases the interpreter lock.
    """
    return BatchTable(_core.scan_segment(source, start, end, verify_crc, hash_bytes, own_file))
