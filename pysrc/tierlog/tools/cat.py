"""The records of a partition, from a broker's log directory, a store or both, for printing.

Reads like a consumer that does not wait: from an offset or a moment to where the log ends now.
Records of open and aborted transactions are there too, unless only committed ones are wanted;
control records are not. What is above the high watermark of a log directory is read as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING

import numpy as np

from tierlog.tiering.gaps import OnGap
from tierlog.tiering.log_reader import LogReader
from tierlog.tiering.reader import open_reader
from tierlog.tools.offsets import AtOffset, FromEnd, OffsetRange
from tierlog.tools.record_format import Block, Formatter, Headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tierlog.columns import HeaderColumn, RecordColumns
    from tierlog.config import Config
    from tierlog.remote.bucket import Problem

__all__ = ["Selection", "format_records", "select_records"]

# Enough to be worth a turn, few enough not to pile up in memory.
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What an offset range means in one partition: offsets [``start``, ``end``) of those held,
    [``log_start_offset``, ``log_end_offset``)."""

    reader: LogReader
    topic: str
    partition: int
    wanted: OffsetRange
    start: int
    end: int
    log_start_offset: int
    log_end_offset: int

    @property
    def hint(self) -> str | None:
        """What somebody should know who gets other records than asked for, or none."""
        held = f"offsets {self.log_start_offset} to {self.log_end_offset - 1}"
        if self.log_start_offset == self.log_end_offset:
            return f"{self.topic}:{self.partition} holds no records"
        asked = self.wanted.start
        if isinstance(asked, AtOffset) and asked.offset < self.log_start_offset:
            return f"offset {asked.offset} is gone; {self.topic}:{self.partition} holds {held}"
        if self.start == self.end:
            return (
                f"nothing there: {self.topic}:{self.partition} holds {held}, "
                "and tierlog does not wait for more"
            )
        return None

    def records(self, count: int | None = None) -> Iterator[RecordColumns]:
        """The records in pieces of a few MiB, no more than ``count`` of them.

        Raises as ``LogReader.read``, after the sound records before the damage.
        """
        left = count
        pieces: Iterator[RecordColumns] = iter(())
        if self.start < self.end:
            pieces = self.reader.read(self.topic, self.partition, self.start, self.end)
        for piece in pieces:
            if left is None:
                yield piece
                continue
            if left <= 0:
                return
            yield piece if len(piece) <= left else piece.rows(0, left)
            left -= len(piece)
        if self._is_open_ended and (left is None or left > 0):
            self.reader.check_end(self.topic, self.partition)

    @property
    def _is_open_ended(self) -> bool:
        """Whether more was wanted, had the log gone on."""
        end = self.wanted.end
        is_asked = isinstance(end, AtOffset) and end.offset <= self.log_end_offset
        return self.end == self.log_end_offset and not is_asked


def select_records(
    location: str,
    topic: str,
    partition: int,
    wanted: OffsetRange,
    on_problem: Callable[[Problem], None] | None = None,
    *,
    store: str | None = None,
    committed: bool = False,
    config: Config | None = None,
    on_gap: OnGap = "fail",
) -> Selection:
    """Find the partition and what ``wanted`` means in it; ``store``, ``on_problem``, ``config`` and
    errors as in ``open_reader``. The end of the committed records is the last stable offset."""
    reader = open_reader(
        location,
        store=store,
        topic=topic,
        partition=partition,
        on_problem=on_problem,
        isolation_level="read_committed" if committed else "read_uncommitted",
        config=config,
        on_gap=on_gap,
    )
    if isinstance(wanted.start, FromEnd):
        reader.check_end(topic, partition)
    log_start_offset, log_end_offset = reader.bounds(topic, partition)
    start, end = wanted.resolve(
        log_start_offset,
        log_end_offset,
        lambda timestamp_ms: reader.offset_for_timestamp(topic, partition, timestamp_ms),
    )
    return Selection(
        reader=reader,
        topic=topic,
        partition=partition,
        wanted=wanted,
        start=start,
        end=end,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
    )


def format_records(
    records: RecordColumns, topic: str, partition: int, formatter: Formatter
) -> Iterator[bytes]:
    """Pieces of output for all records, a bounded number of bytes in memory at a time."""
    for rows in _blocks(records):
        block = Block(
            topic=topic,
            partition=partition,
            offsets=records.offset[rows].tolist(),
            timestamps_ms=records.timestamp_ms[rows].tolist(),
            timestamp_types=_timestamp_types(records, rows),
            keys=records.keys[rows],
            values=records.values[rows],
            headers=_headers(records.headers, rows),
        )
        yield b"".join(formatter(block))


def _blocks(records: RecordColumns) -> Iterator[slice]:
    """Rows to format together: many small ones, or a single large one."""
    sizes = records.values.lengths.astype(np.int64) + records.keys.lengths
    ends = np.cumsum(sizes)
    start = 0
    while start < len(records):
        taken = ends[start] - sizes[start]
        stop = int(np.searchsorted(ends, taken + _BLOCK_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + _BLOCK_ROWS)
        yield slice(start, stop)
        start = stop


def _headers(column: HeaderColumn, rows: slice) -> list[Headers] | None:
    """The headers of each row, all of them taken out at once; None when there are none."""
    bounds = column.list_offsets[rows.start : rows.stop + 1].tolist()
    first, last = bounds[0], bounds[-1]
    if first == last:
        return None
    names = [name or b"" for name in column.keys[first:last]]
    pairs = list(zip(names, column.values[first:last], strict=True))
    return [pairs[start - first : end - first] for start, end in pairwise(bounds)]


def _timestamp_types(records: RecordColumns, rows: slice) -> Iterable[str]:
    """kcat's word for each row; messages of magic 0 have no timestamp."""
    kinds = np.where(records.batches.is_log_append_time, 1, 0)
    kinds[records.batches.magic == 0] = 2
    words = ("create", "logappend", "unknown")
    if len(kinds) and (kinds == kinds[0]).all():
        return repeat(words[kinds[0]], rows.stop - rows.start)
    of_row = np.repeat(kinds, np.diff(records.batch_starts))[rows]
    return [words[kind] for kind in of_row.tolist()]
