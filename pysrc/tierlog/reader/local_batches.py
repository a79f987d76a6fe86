"""Reads whole batches from a log directory, strictly read only, by `pread`.

The offset index of a segment leads to a position near the batch. A damaged or wrong index costs a
walk over the headers. Every returned batch was checked.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tierlog.errors import CorruptDataError
from tierlog.log.files import SegmentHandle
from tierlog.log.log_dir import PartitionLog
from tierlog.log.same_log import VanishedError, require_same_topic
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.batch_run import BatchRun
from tierlog.reader.positions import LocalPositions, position_by_headers
from tierlog.reader.types import FetchView
from tierlog.types import StopReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["LocalBatchReader", "LocalRead"]

# Two index entries are up to `log.index.interval.bytes` and two batches apart.
_SLACK_BYTES = 16 << 10
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRead:
    """Batches of one segment, back to back. The offsets of an empty read are -1.

    ``first_offset`` is the base offset of the first batch, ``next_offset`` the offset after the
    last one; positions are those in the ``.log`` of the segment at ``segment_base``.
    """

    records: Buffer = b""
    first_offset: int = -1
    next_offset: int = -1
    segment_base: int = -1
    start_position: int = 0
    end_position: int = 0


class _Range(NamedTuple):
    """The first and the last offset that a segment may hold."""

    start_offset: int
    end_offset: int


class LocalBatchReader:
    """Reads batches from log directories; keeps the offset indexes that were used last."""

    def __init__(self, max_indexes: int = 512) -> None:
        self._positions = LocalPositions(max_indexes)

    def read_batches(
        self,
        view: FetchView,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        *,
        minimum_one: bool,
    ) -> LocalRead:
        """Return the batches from the one that holds `offset` on, or from the next one after a gap.

        They are of one segment, take at most `max_bytes`, and end below `upper_offset`;
        `minimum_one` brings the first one whatever its size. CorruptDataError for damage,
        VanishedError when the files were replaced, OSError when they cannot be read.
        """
        segments = view.log.segments
        first = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
        if first < 0 and segments:
            # The segments were listed after the local log start was read. Earlier ones are in the
            # tier by now, and the first batch here is not the next one of the log.
            begin = segments[0].base_offset
            raise VanishedError(f"{view.log.name}: offset {offset} lies below {begin}, the first")
        for segment in segments[max(first, 0) :]:
            if segment.base_offset >= upper_offset:
                break
            found = self._read_segment(
                view.log, segment, offset, max_bytes, upper_offset, minimum_one
            )
            if found is not None:
                return found
        return LocalRead()

    def _read_segment(
        self,
        log: PartitionLog,
        segment: SegmentFiles,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        minimum_one: bool,
    ) -> LocalRead | None:
        """Read from one segment; None when no batch of it reaches `offset`."""
        try:
            with segment.open() as handle:
                require_same_topic(log)
                _require_same_file(segment, handle)
                run, row = self._find_batch(segment, handle, offset, max_bytes)
                if row == len(run):
                    return None
                end = run.end_row(row, max_bytes, upper_offset - 1, minimum_one=minimum_one)
                return _check_batches(run, row, end, segment, handle)
        except FileNotFoundError as error:
            raise VanishedError(f"{segment.log_path}: gone meanwhile: {error}") from error

    def _find_batch(
        self, segment: SegmentFiles, handle: SegmentHandle, offset: int, max_bytes: int
    ) -> tuple[BatchRun, int]:
        """Return a range with the batch that reaches `offset`, and its row; the row is past the end
        when none does. Its batches were not checked."""
        position = self._positions.find(segment, offset)
        try:
            run, row = self._scan_from(segment, handle, position, offset, max_bytes)
        except CorruptDataError:
            if position == 0:
                raise
        else:
            # The batch that the index points at begins at or below the offset.
            if position == 0 or (len(run) and (row > 0 or run.base_offset[0] <= offset)):
                return run, row
        return self._scan_from(
            segment, handle, position_by_headers(handle, offset), offset, max_bytes
        )

    def _scan_from(
        self,
        segment: SegmentFiles,
        handle: SegmentHandle,
        position: int,
        offset: int,
        max_bytes: int,
    ) -> tuple[BatchRun, int]:
        """Scan range after range from the batch at `position` on; see `_find_batch`."""
        size_bytes = handle.size_bytes
        window = max(max_bytes, 0) + _SLACK_BYTES
        while True:
            run = _scan_range(segment, handle, position, min(window, size_bytes - position))
            row = run.row_reaching(offset)
            if row < len(run):
                wanted_end = min(run.position_of(row) + max_bytes, size_bytes)
                if row == 0 or run.end_position >= wanted_end:
                    return run, row
                # Batches before the offset took up the range: read again from the right one on.
                position, window = run.position_of(row), max(max_bytes, 0) + _SLACK_BYTES
                continue
            at_end = run.end_position >= size_bytes
            if at_end and run.stop_reason is StopReason.END:
                return run, row
            if run.stop_reason not in (
                StopReason.END,
                StopReason.TORN_TAIL,
                StopReason.ZERO_TAIL,
            ):
                raise run.damage()
            if at_end or run.stop_reason is StopReason.ZERO_TAIL:
                if not segment.is_active:
                    raise run.damage()
                return run, row
            if len(run):
                position = run.stop_position
                continue
            claimed = run.claimed_size()
            if claimed is None or not 0 < claimed <= size_bytes - position:
                if segment.is_active and claimed is not None and claimed > 0:
                    # The broker is writing the batch at this moment.
                    return run, row
                raise run.damage()
            window = claimed


def _require_same_file(segment: SegmentFiles, handle: SegmentHandle) -> None:
    """VanishedError when compaction has put another file in the place of a rolled segment, which
    may hold the offsets of several."""
    listed, found = segment.identity, handle.identity
    if segment.is_active or listed is None:
        return
    if (listed.device, listed.inode) != (found.device, found.inode):
        raise VanishedError(f"{segment.log_path}: replaced since the log was listed")


def _scan_range(
    segment: SegmentFiles, handle: SegmentHandle, position: int, size_bytes: int
) -> BatchRun:
    data = handle.read_at(position, size_bytes)
    if len(data) < size_bytes and not segment.is_active:
        raise VanishedError(f"{handle.path}: became shorter while it was read")
    end = _MAX_OFFSET if segment.next_base_offset is None else segment.next_base_offset - 1
    return BatchRun(
        memoryview(data),
        position,
        _Range(segment.base_offset, end),
        handle.path,
        verify_crc=False,
    )


def _check_batches(
    run: BatchRun, row: int, end: int, segment: SegmentFiles, handle: SegmentHandle
) -> LocalRead | None:
    """Return the batches from `row` up to `end`, up to the first damaged one, whose error is raised
    when it is at `row`."""
    if end == row:
        return LocalRead(
            segment_base=segment.base_offset,
            start_position=run.position_of(row),
            end_position=run.position_of(row),
        )
    start_position = run.position_of(row)
    records = run.bytes_of(row, end)
    sound = BatchRun(
        records,
        start_position,
        _Range(segment.base_offset, _MAX_OFFSET),
        handle.path,
    )
    if not len(sound):
        raise sound.damage()
    return LocalRead(
        records=sound.bytes_of(0, len(sound)),
        first_offset=sound.base_offset[0],
        next_offset=sound.last_offset[len(sound) - 1] + 1,
        segment_base=segment.base_offset,
        start_position=start_position,
        end_position=sound.position_of(len(sound)),
    )
