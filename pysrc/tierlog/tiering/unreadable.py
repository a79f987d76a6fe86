"""Finds batches that a broker keeps and serves although their records cannot be read.

A copy checks only batch headers and checksums. Brokers decompress each compressed batch when it is
produced, so only an uncompressed batch can be accepted by a broker and fail in the decoder. It
takes little time to check the records of uncompressed batches. `tierlog verify --deep` also checks
compressed batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.records import check_records
from tierlog.log.segment import SegmentSource

__all__ = ["UnreadableBatch", "describe", "find_unreadable"]

_CODEC_MASK = 0x07
_RECORD_BATCH_MAGIC = 2
_MAX_FOUND = 100
_MAX_TOLD = 3


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """One batch, its position in the segment, and the error of its records."""

    base_offset: int
    last_offset: int
    position: int
    error: CorruptDataError


def find_unreadable(source: SegmentSource, tables: Iterable[BatchTable]) -> list[UnreadableBatch]:
    """Return the uncompressed batches of `tables` whose records cannot be read: the first 100."""
    return list(islice(_find(source, tables), _MAX_FOUND))


def _find(source: SegmentSource, tables: Iterable[BatchTable]) -> Iterator[UnreadableBatch]:
    for table in tables:
        if not table.summary.codecs & 1:
            continue
        is_plain = (table.magic == _RECORD_BATCH_MAGIC) & (table.attributes & _CODEC_MASK == 0)
        edges = np.flatnonzero(np.diff(np.concatenate(([False], is_plain, [False]))))
        for first, after in edges.reshape(-1, 2).tolist():
            yield from _find_in_run(source, table, first, after)


def _find_in_run(
    source: SegmentSource, table: BatchTable, first: int, after: int
) -> Iterator[UnreadableBatch]:
    """Find the unreadable batches in the rows from `first` up to `after`. These are adjacent."""
    end = int(table.position[after - 1]) + int(table.size_bytes[after - 1])
    while first < after:
        try:
            check_records(source, int(table.position[first]), end, verify_crc=False)
            return
        except CorruptDataError as error:
            if error.position is None:
                raise
            # The position of the error is after the batch header. If a record is missing, it is
            # the end of the batch.
            row = int(np.searchsorted(table.position, error.position, side="left")) - 1
            row = max(first, row)
            yield UnreadableBatch(
                int(table.base_offset[row]),
                int(table.last_offset[row]),
                int(table.position[row]),
                error,
            )
            first = row + 1


def describe(path: str, found: Sequence[UnreadableBatch]) -> str:
    """Return a message that lists the unreadable batches of a segment; `found` is not empty."""
    told = "; ".join(
        f"offsets {one.base_offset} to {one.last_offset} at byte {one.position}: expected "
        f"{one.error.expected}, found {one.error.found}"
        for one in found[:_MAX_TOLD]
    )
    more = len(found) - _MAX_TOLD
    count = f"{len(found)} or more" if len(found) == _MAX_FOUND else str(len(found))
    return (
        f"{path}: {count} batches copied as they are, reads stop there: {told}"
        f"{f'; and {more} more' if more > 0 else ''}. To read past them: "
        "tierlog cat --on-corrupt skip, or read(on_corrupt='skip')"
    )
