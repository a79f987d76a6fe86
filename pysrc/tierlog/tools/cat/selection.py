"""Selects the records of a partition from a log directory, a store or both, for printing.

A selection begins at an offset or a timestamp and ends at the current end of the log. A selection
does not wait for new records. A selection includes records above the high watermark of a log
directory. Records of open and aborted transactions are also included, unless only committed records
are requested. Control records are not included.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierlog.reader.damage import OnCorrupt
from tierlog.reader.gaps import OnGap
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import LogReader
from tierlog.reader.offset_range import AtOffset, FromEnd, OffsetRange
from tierlog.reader.open import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from tierlog.columns import RecordColumns
    from tierlog.config import Config
    from tierlog.remote.segment.bucket import Problem
    from tierlog.tools.cat.record_format import RecordFormat

__all__ = ["Selection", "format_records", "select_records"]

# With this size, a buffer of text and the columns of its rows fit into a core's cache.
_TEXT_BYTES = 1 << 20
_ROWS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """An offset range in one partition: the offsets [``start``, ``end``) of the log
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
        """Return a hint for the user if the selection has other records than the requested ones, or
        no records."""
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
        """Yield at most ``count`` records in chunks of a few MiB.

        Raises the errors of ``LogReader.read``, after it has yielded the sound records before the
        damage.
        """
        left = count
        pieces: Iterator[RecordColumns] = iter(())
        if self.start < self.end:
            pieces = self.reader.read(self.topic, self.partition, self.start, self.end)
            # The reader of a store fetches ahead by itself.
            if count is None and isinstance(self.reader, LocalReader):
                pieces = one_ahead(pieces)
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
        """Whether the range extends beyond the end of the log."""
        end = self.wanted.end
        is_asked = isinstance(end, AtOffset) and end.offset <= self.log_end_offset
        return self.end == self.log_end_offset and not is_asked


def select_records(
    location: str,
    topic: str,
    partition: int,
    wanted: OffsetRange,
    on_problem: Callable[[Problem], object] | None = None,
    *,
    store: str | None = None,
    committed: bool = False,
    config: Config | None = None,
    on_gap: OnGap = "fail",
    on_corrupt: OnCorrupt = "fail",
) -> Selection:
    """Find the partition and the offsets that ``wanted`` selects. For ``store``, ``on_problem``,
    ``config`` and the errors see ``open_reader``. If only committed records are requested, the
    selection ends at the last stable offset."""
    reader = open_reader(
        location,
        store=store,
        topic=topic,
        partition=partition,
        on_problem=on_problem,
        isolation_level="read_committed" if committed else "read_uncommitted",
        config=config,
        on_gap=on_gap,
        on_corrupt=on_corrupt,
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


def one_ahead(pieces: Iterator[RecordColumns]) -> Iterator[RecordColumns]:
    """Yield the chunks of `pieces`. A thread reads the next chunk while the caller uses the current
    one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = pool.submit(next, pieces, None)
            yield piece


def format_records(
    records: RecordColumns, topic: str, partition: int, shape: RecordFormat
) -> Iterator[Buffer]:
    """Yield the text of all records in buffers of about 1 MiB, or of one larger record."""
    template = shape.of_partition(topic, partition)
    for start in range(0, len(records), _ROWS):
        rows = records.rows(start, min(start + _ROWS, len(records)))
        row = 0
        while row < len(rows):
            text, row = rows.format(template, row, _TEXT_BYTES)
            yield text
