"""The protocol of readers of whole partitions.

These readers yield verified columns. The CRC of each batch is checked before its rows are returned.
Control records are left out. The first row has the requested start offset or the next higher
offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tierlog.columns import RecordColumns

__all__ = ["FETCH_BYTES", "LogReader", "PartitionSummary", "SegmentSummary", "rows_between"]

# A request fetches up to this many bytes of a segment, or one larger batch.
FETCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """One segment in a listing. ``end_offset`` is inclusive; None when unknown.

    ``name`` is the path of the ``.log`` or its object key, ``state`` is ``active``, ``rolled`` or
    Kafka's name of a remote segment's state.
    """

    base_offset: int
    end_offset: int | None
    size_bytes: int
    max_timestamp_ms: int | None
    leader_epochs: tuple[int, ...]
    name: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """One partition in a listing, which has the offsets [``log_start_offset``, ``log_end_offset``).

    An offset is None when unknown, since the end of an active segment is known only after the
    segment has been read.
    """

    topic: str
    partition: int
    topic_id: str | None
    log_start_offset: int | None
    log_end_offset: int | None
    segment_count: int
    size_bytes: int


class LogReader(Protocol):
    """Reads partitions. ``topic`` is a topic's name or its 22-character id.

    The methods raise OutOfRangeError for an unknown partition; CorruptDataError for damage, with
    file or object and byte position; GapError for offsets that are missing; RemoteStorageError or
    OSError when the bytes cannot be read.
    """

    def partitions(self) -> list[PartitionSummary]:
        """Return every partition, by topic and number."""
        ...

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """Return the segments of one partition, by base offset."""
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return (first offset, offset after the last) of the readable records."""
        ...

    def check_end(self, topic: str, partition: int) -> None:
        """Raise GapError when the log is known to continue after the end that `bounds` returns. A
        reader that skips gaps reports this error instead."""
        ...

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """Yield the records with offsets from `start_offset` up to, not including, `end_offset`, a
        few MiB at a time."""
        ...

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the offset of the first record, in offset order, that has that timestamp or a
        later timestamp. Transaction markers count as records here, as in a broker's answer (Kafka's
        ListOffsets)."""
        ...


def rows_between(
    records: RecordColumns, start_offset: int, end_offset: int | None
) -> RecordColumns:
    """Return the rows of `records` with offsets in [`start_offset`, `end_offset`)."""
    first = int(np.searchsorted(records.offset, start_offset))
    last = len(records)
    if end_offset is not None:
        last = max(first, int(np.searchsorted(records.offset, end_offset)))
    return records if (first, last) == (0, len(records)) else records.rows(first, last)
