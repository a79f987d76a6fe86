"""Serves a sequential reader from the chunks that were read ahead for it."""

from __future__ import annotations

from enum import Enum

from tierlog.reader.batch_run import BatchRun
from tierlog.reader.places import Place
from tierlog.reader.read_ahead import ReadAhead, Stream, Work
from tierlog.reader.remote_read import Wanted

__all__ = ["Outcome", "Part", "take_parts"]

# A read of this size or more may end at the end of a chunk once it has half of `max_bytes`. To add
# batches of a second chunk, the batches of both chunks would have to be copied.
_LARGE_BYTES = 256 << 10


class Outcome(Enum):
    """Why no batches could be taken from the chunks."""

    # The limits of the read allow none.
    NOTHING = "nothing"
    # The segment has no more batches of the log.
    EXHAUSTED = "exhausted"
    # No chunk holds the offset.
    MISSED = "missed"
    # The chunk has to be fetched, and the quota is used up.
    THROTTLED = "throttled"


class Part:
    """Batches `row` up to, not including, `end` of a run."""

    __slots__ = ("end", "row", "run")

    def __init__(self, run: BatchRun, row: int, end: int) -> None:
        self.run = run
        self.row = row
        self.end = end

    @property
    def size_bytes(self) -> int:
        """The size of the batches together."""
        return self.run.position_of(self.end) - self.run.position_of(self.row)


def take_parts(
    ahead: ReadAhead, stream: Stream, place: Place, wanted: Wanted
) -> list[Part] | Outcome:
    """Return the wanted batches from chunks of `place`. Wait for chunks that are being fetched."""
    last_offset = min(place.last_offset, wanted.last_offset)
    parts: list[Part] = []
    offset, left = wanted.offset, wanted.max_bytes
    for chunk in stream.chunks:
        if not chunk.place.is_of(place):
            # The next chunk belongs to the next segment, so this segment has no more batches.
            return parts or Outcome.EXHAUSTED
        if parts and left * 2 <= wanted.max_bytes and wanted.max_bytes >= _LARGE_BYTES:
            return parts
        run, work = ahead.wait_for(stream, chunk, wanted.payer)
        wanted.requests += work is Work.DONE
        if run is None and work is Work.REFUSED:
            return parts or Outcome.THROTTLED
        if run is None:
            return parts or Outcome.MISSED
        row = run.row_reaching(offset)
        if row == len(run):
            continue
        if run.base_offset[row] > offset:
            # There is a gap, or the store returned other bytes. The index decides which.
            return parts or Outcome.MISSED
        end = run.end_row(row, left, last_offset, minimum_one=wanted.minimum_one and not parts)
        if end == row:
            cut_off = run.last_offset[row] > last_offset and place.last_offset <= wanted.last_offset
            return parts or (Outcome.EXHAUSTED if cut_off else Outcome.NOTHING)
        parts.append(Part(run, row, end))
        left -= parts[-1].size_bytes
        offset = run.last_offset[end - 1] + 1
        if end < len(run) or left <= 0:
            return parts
    return parts or Outcome.MISSED
