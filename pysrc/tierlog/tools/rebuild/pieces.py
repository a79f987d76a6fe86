"""Large segments in pieces: ranges of bytes that many workers scan, and what one makes of that.

A range begins anywhere, so its worker looks for a batch first, and may take bytes inside of a
record for one. Therefore what it found counts only if it begins exactly where the range before it
ended; else that range is scanned once more, from there. So pieces give what a scan of the whole
gives, for every segment; only the time differs. Every byte is checksummed once, by the worker that
scans its range; the indexes are made of the batches' headers, which pieces bring along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.errors import RemoteStorageError
from tierlog.log.files import FileChange, FileIdentity, SegmentHandle
from tierlog.log.rebuild import RebuiltIndexes
from tierlog.tiering.copy import MAX_TABLE_ROWS, PART_BYTES, segment_tables
from tierlog.tools.rebuild.segment_bytes import FetchedRange, FileBytes, SegmentBytes
from tierlog.types import StopReason

__all__ = ["FoundPiece", "PieceRange", "PiecedSegment", "cut_segment", "find_piece", "pieced"]

# What headers take is a thousandth of the log with batches of 16 KiB, a twentieth with the smallest
# ones: of those the outline is left out, and made in the end from the segment itself.
_OUTLINE_SHARE = 32
_MOST_OUTLINE_BYTES = 64 << 20
"""Of all pieces of a chain together, since one worker holds them."""

_Found = TypeVar("_Found", bound="_core.Piece | None")

# Wherever the file ends by then.
_END = 1 << 62
_CUT = (StopReason.TORN_TAIL.value, StopReason.ZERO_TAIL.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRange:
    """The batches that begin in the bytes [`start`, `until`) of a segment, for one worker.

    ``task`` and ``segment`` are numbers by which the plan finds it again.
    """

    task: int
    segment: int
    name: str
    source: SegmentBytes
    start: int
    until: int
    size_bytes: int
    base_offset: int
    next_base_offset: int | None
    max_outline_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPiece:
    """What a worker found in a range; ``piece`` None where nothing is to be relied on.

    ``identity`` says of which state of the file that is, None for an object of a store.
    """

    task: int
    segment: int
    start: int
    until: int
    piece: _core.Piece | None
    identity: FileIdentity | None


def cut_segment(
    source: SegmentBytes,
    size_bytes: int,
    *,
    piece_bytes: int,
    chain_bytes: int,
    task: int,
    segment: int,
    name: str,
    base_offset: int,
    next_base_offset: int | None,
) -> Iterator[PieceRange]:
    """Ranges of about `piece_bytes` that cover a segment of a chain of `chain_bytes`."""
    count = max(1, round(size_bytes / piece_bytes))
    borders = [size_bytes * number // count for number in range(count + 1)]
    for start, end in pairwise(borders):
        share = min(1 / _OUTLINE_SHARE, _MOST_OUTLINE_BYTES / chain_bytes)
        yield PieceRange(
            task=task,
            segment=segment,
            name=name,
            source=source,
            start=start,
            until=_END if end == size_bytes else end,
            size_bytes=end - start,
            base_offset=base_offset,
            next_base_offset=next_base_offset,
            max_outline_bytes=int((end - start) * share),
        )


def find_piece(wanted: PieceRange) -> FoundPiece:
    """What a worker does with a range. No failure is an error here: the worker that joins the
    pieces reads that range again and meets it again."""
    piece = identity = None
    try:
        if isinstance(wanted.source, FileBytes):
            with wanted.source.opened() as handle:
                piece = _find(handle, wanted)
                if handle.recheck() in (FileChange.UNCHANGED, FileChange.GONE):
                    identity = handle.identity
                else:
                    piece = None
        else:
            until = min(wanted.until, wanted.start + wanted.size_bytes)
            with wanted.source.fetched(wanted.start, until) as fetched:
                piece = _while_cut(lambda: _find(fetched.handle, wanted), fetched)
    except (OSError, RemoteStorageError):
        piece = None
    return FoundPiece(
        task=wanted.task,
        segment=wanted.segment,
        start=wanted.start,
        until=wanted.until,
        piece=piece,
        identity=identity,
    )


def _find(handle: SegmentHandle, wanted: PieceRange) -> _core.Piece | None:
    if wanted.start == 0:
        return _core.scan_piece(handle, 0, wanted.until, -1, wanted.max_outline_bytes)
    return _core.find_piece(
        handle,
        wanted.start,
        wanted.until,
        wanted.base_offset,
        wanted.next_base_offset,
        wanted.max_outline_bytes,
    )


def _while_cut(scan: Callable[[], _Found], fetched: FetchedRange) -> _Found:
    """What `scan` gives once the last batch of the range was fetched to its end."""
    piece = scan()
    while piece is not None and piece.stop_reason in _CUT and fetched.more():
        piece = scan()
    return piece


@contextmanager
def pieced(source: SegmentBytes, found: Sequence[FoundPiece]) -> Iterator[PiecedSegment]:
    """A segment to be put together; OSError when its file cannot be opened."""
    if isinstance(source, FileBytes):
        with source.opened() as handle:
            yield PiecedSegment(source, found, handle.size_bytes, handle)
    else:
        yield PiecedSegment(source, found, source.size_bytes, None)


@dataclass(slots=True)
class PiecedSegment:
    """A segment of which all ranges were scanned; reads as `WholeSegment` does.

    ``handle`` is its file; None for an object of a store, of which only what does not fit is
    fetched again.
    """

    source: SegmentBytes
    found: Sequence[FoundPiece]
    size_bytes: int
    handle: SegmentHandle | None
    scanned_again: int = 0
    _outlined: list[_core.Piece] = field(default_factory=list)
    _is_outlined: bool = True

    def rebuild(
        self, *, base_offset: int, index_interval_bytes: int, producer_snapshot: bytes | None
    ) -> RebuiltIndexes:
        """As `WholeSegment.rebuild`."""
        fold = _core.SegmentFold(
            index_interval_bytes, base_offset, producer_snapshot, MAX_TABLE_ROWS
        )
        for found in sorted(self.found, key=lambda one: one.start):
            # A batch may go on over a whole range.
            if fold.position < min(found.until, self.size_bytes) and not fold.is_stopped:
                self._take(fold, found)
        return RebuiltIndexes.of(fold.finish())

    def _take(self, fold: _core.SegmentFold, found: FoundPiece) -> None:
        piece, until = found.piece, found.until
        here = None if self.handle is None else self.handle.identity
        if piece is None or found.identity != here or not fold.fits(piece):
            self.scanned_again += 1
            piece = self._scan(fold.position, until, fold.last_offset)
        if piece.outline_bytes is None:
            self._is_outlined = False
            with self._opened(piece.start_position, piece.end_position) as opened:
                piece = _core.outline_again(_handle_of(opened), piece)
        elif self._is_outlined:
            self._outlined.append(piece)
        fold.take(piece)

    def _scan(self, start: int, until: int, after_offset: int) -> _core.Piece:
        with self._opened(start, until) as opened:
            handle = _handle_of(opened)

            def scan() -> _core.Piece:
                most = _MOST_OUTLINE_BYTES // max(len(self.found), 1)
                return _core.scan_piece(handle, start, until, after_offset, most)

            if isinstance(opened, FetchedRange):
                return _while_cut(scan, opened)
            return scan()

    @contextmanager
    def _opened(self, start: int, until: int) -> Iterator[SegmentHandle | FetchedRange]:
        if self.handle is not None:
            yield self.handle
        elif not isinstance(self.source, FileBytes):
            with self.source.fetched(start, min(until, self.source.size_bytes)) as fetched:
                yield fetched

    def tables(self, rebuilt: RebuiltIndexes) -> Iterator[BatchTable]:
        """As `WholeSegment.tables`."""
        if rebuilt.table_complete:
            yield rebuilt.table
        elif self._is_outlined:
            parts = _core.PartTables(PART_BYTES)
            for piece in self._outlined:
                yield from map(BatchTable, parts.take(piece))
            yield BatchTable(parts.finish())
        else:
            with self.source.opened() as handle:
                yield from segment_tables(rebuilt, handle)

    def recheck(self) -> FileChange:
        """What became of its file meanwhile; an object does not change."""
        return FileChange.UNCHANGED if self.handle is None else self.handle.recheck()


def _handle_of(opened: SegmentHandle | FetchedRange) -> SegmentHandle:
    return opened.handle if isinstance(opened, FetchedRange) else opened
