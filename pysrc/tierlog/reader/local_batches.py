"""Reads whole batches from a log directory by `pread`, and never writes to the directory.

If a read begins where an earlier read has ended, its position is known. For other reads, the offset
index of the segment gives a position near the batch. If that position is wrong, because the index
is damaged or the log has changed, the reader walks over the batch headers. Every returned batch was
checked.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tierlog.errors import CorruptDataError, TierlogError
from tierlog.log.files import SegmentHandle
from tierlog.log.log_dir import PartitionLog
from tierlog.log.same_log import VanishedError, require_same_topic
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.batch_run import BatchRun
from tierlog.reader.memory import FetchMemory
from tierlog.reader.positions import LocalPositions, position_by_headers
from tierlog.reader.types import FetchView
from tierlog.types import StopReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["LocalBatchReader", "LocalRead", "MemoryFullError"]

# The distance between two index entries is at most `log.index.interval.bytes` plus two batches.
_SLACK_BYTES = 16 << 10
_MAX_OFFSET = 2**63 - 1
# The number of end positions of reads that are remembered: about one for each consumer of a
# partition.
_MAX_ENDS = 4096


class MemoryFullError(TierlogError):
    """Raised when earlier reads still hold the memory; the caller may try again."""

    retriable = True


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


class _Asked(NamedTuple):
    """The arguments of a call of `LocalBatchReader.read_batches`."""

    offset: int
    max_bytes: int
    upper_offset: int
    minimum_one: bool
    at_once: bool
    memory: FetchMemory | None


class LocalBatchReader:
    """Reads batches from log directories. Keeps the offset indexes that were used last, and the
    positions at which reads have ended. Any thread.

    If ``memory`` is given, records are charged to it until the last view of these records is gone.
    """

    def __init__(self, max_indexes: int = 512, memory: FetchMemory | None = None) -> None:
        self._memory = memory
        self._positions = LocalPositions(max_indexes)
        self._ends = _Ends()

    def read_batches(
        self,
        view: FetchView,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        *,
        minimum_one: bool,
        at_once: bool = False,
    ) -> LocalRead:
        """Return the batches from the batch that holds `offset` on, or from the next batch after a
        gap.

        The batches belong to one segment, take at most `max_bytes`, and end below `upper_offset`.
        With `minimum_one`, the first batch may be larger than `max_bytes`. Raises CorruptDataError
        for damage, VanishedError when the files were replaced, and OSError when the files cannot be
        read. Raises MemoryFullError when the memory is used up, since a local read never waits for
        memory. With `at_once`, raises BlockingIOError instead of reading from the disk.
        """
        if offset >= upper_offset:
            return LocalRead()
        segments = view.log.segments
        first = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
        if first < 0 and segments:
            # The segments were listed after the local log start was read. Earlier segments are in
            # the tier by now, so the first batch here is not the next batch of the log.
            begin = segments[0].base_offset
            raise VanishedError(f"{view.log.name}: offset {offset} lies below {begin}, the first")
        for segment in segments[max(first, 0) :]:
            if segment.base_offset >= upper_offset:
                break
            asked = _Asked(offset, max_bytes, upper_offset, minimum_one, at_once, self._memory)
            found = self._read_segment(view.log, segment, asked)
            if found is not None:
                return found
        return LocalRead()

    def _read_segment(
        self, log: PartitionLog, segment: SegmentFiles, asked: _Asked
    ) -> LocalRead | None:
        """Read from one segment. Return None when the segment has no batch that ends at the offset
        or later."""
        try:
            with segment.open() as handle:
                require_same_topic(log)
                _require_same_file(segment, handle)
                run, row = self._find_batch(segment, handle, asked)
        except FileNotFoundError as error:
            raise VanishedError(f"{segment.log_path}: gone meanwhile: {error}") from error
        if row == len(run):
            return None
        last_offset = asked.upper_offset - 1
        end = run.end_row(row, asked.max_bytes, last_offset, minimum_one=asked.minimum_one)
        read = _local_read(segment, run, row, end)
        self._ends.keep(segment, read)
        return read

    def _find_batch(
        self, segment: SegmentFiles, handle: SegmentHandle, asked: _Asked
    ) -> tuple[BatchRun, int]:
        """Return a range with the first batch that ends at the offset or later, and the row of this
        batch. The row is past the end when there is no such batch."""
        position = self._position(segment, asked)
        try:
            run, row = _scan_from(segment, handle, position, asked)
        except CorruptDataError:
            if position == 0:
                raise
        else:
            # The batch at the position begins at or below the offset, unless the index is wrong.
            if position == 0 or (len(run) and (row > 0 or run.base_offset[0] <= asked.offset)):
                return run, row
        if asked.at_once:
            raise BlockingIOError(errno.EAGAIN, "a walk over the headers reads the disk")
        return _scan_from(segment, handle, position_by_headers(handle, asked.offset), asked)

    def _position(self, segment: SegmentFiles, asked: _Asked) -> int:
        """Return the position from which to scan for the offset."""
        if asked.offset <= segment.base_offset:
            return 0
        known = self._ends.find(segment, asked.offset)
        if known is not None:
            return known
        if asked.at_once:
            raise BlockingIOError(errno.EAGAIN, "the offset index is read from the disk")
        return self._positions.find(segment, asked.offset)


class _Ends:
    """The positions at which reads have ended, by file and next offset. Any thread.

    A position is only a hint, because the file may have been truncated.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: OrderedDict[tuple[str, int, int], int] = OrderedDict()

    def find(self, segment: SegmentFiles, offset: int) -> int | None:
        """Return the position of `offset` if a read has ended there."""
        return self._positions.get(_end_key(segment, offset))

    def keep(self, segment: SegmentFiles, read: LocalRead) -> None:
        """Keep the end of a read."""
        if read.first_offset < 0:
            return
        key = _end_key(segment, read.next_offset)
        with self._lock:
            self._positions[key] = read.end_position
            self._positions.move_to_end(key)
            while len(self._positions) > _MAX_ENDS:
                self._positions.popitem(last=False)


def _end_key(segment: SegmentFiles, offset: int) -> tuple[str, int, int]:
    inode = segment.identity.inode if segment.identity is not None else -1
    return segment.log_path, inode, offset


def _scan_from(
    segment: SegmentFiles, handle: SegmentHandle, position: int, asked: _Asked
) -> tuple[BatchRun, int]:
    """Scan range after range from the batch at `position` on; see `_find_batch`."""
    size_bytes = handle.size_bytes
    offset, max_bytes = asked.offset, max(asked.max_bytes, 0)
    window = max_bytes + _SLACK_BYTES
    while True:
        run = _scan_range(segment, handle, position, min(window, size_bytes - position), asked)
        row = run.row_reaching(offset)
        if row < len(run):
            wanted_end = min(run.position_of(row) + asked.max_bytes, size_bytes)
            if row == 0 or run.end_position >= wanted_end:
                return run, row
            # Most batches of the range end before the offset, so read again from the batch of the
            # offset.
            position, window = run.position_of(row), max_bytes + _SLACK_BYTES
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
                # The broker is still writing this batch.
                return run, row
            raise run.damage()
        window = claimed


def _require_same_file(segment: SegmentFiles, handle: SegmentHandle) -> None:
    """Raise VanishedError when compaction has replaced the file of a rolled segment. The new file
    may hold the offsets of several segments."""
    listed, found = segment.identity, handle.identity
    if segment.is_active or listed is None:
        return
    if (listed.device, listed.inode) != (found.device, found.inode):
        raise VanishedError(f"{segment.log_path}: replaced since the log was listed")


def _scan_range(
    segment: SegmentFiles, handle: SegmentHandle, position: int, size_bytes: int, asked: _Asked
) -> BatchRun:
    """Scan a range. The batches of the range are checked, unless damage hides the requested
    batch."""
    data = _read_range(handle, position, size_bytes, asked)
    if len(data) < size_bytes and not segment.is_active:
        raise VanishedError(f"{handle.path}: became shorter while it was read")
    end = _MAX_OFFSET if segment.next_base_offset is None else segment.next_base_offset - 1
    offsets = _Range(segment.base_offset, end)
    run = BatchRun(data, position, offsets, handle.path)
    if run.stop_reason is StopReason.BAD_CRC and run.row_reaching(asked.offset) == len(run):
        return BatchRun(data, position, offsets, handle.path, verify_crc=False)
    return run


def _read_range(handle: SegmentHandle, position: int, size_bytes: int, asked: _Asked) -> memoryview:
    """Read a range. The range is charged to the memory until the last view of its bytes is gone."""
    read = handle.read_cached_at if asked.at_once else handle.read_at
    if asked.memory is None or not size_bytes:
        return memoryview(read(position, size_bytes))
    permit = asked.memory.try_acquire(size_bytes)
    if permit is None:
        raise MemoryFullError(
            f"answers that clients have not taken hold {asked.memory.used_bytes} of "
            f"{asked.memory.limit_bytes} bytes (tierlog.fetch.local.memory.bytes)"
        )
    return permit.hold(read(position, size_bytes))


def _local_read(segment: SegmentFiles, run: BatchRun, row: int, end: int) -> LocalRead:
    """Return the batches from `row` up to `end`. If the batches are not checked yet, return only
    the batches before the first damaged batch. Raise the error of the damaged batch when this batch
    is at `row`."""
    if end == row:
        position = run.position_of(row)
        return LocalRead(
            segment_base=segment.base_offset, start_position=position, end_position=position
        )
    if not run.is_checked:
        offsets = _Range(segment.base_offset, _MAX_OFFSET)
        run = BatchRun(run.bytes_of(row, end), run.position_of(row), offsets, run.path)
        row, end = 0, len(run)
        if not end:
            raise run.damage()
    return LocalRead(
        records=run.bytes_of(row, end),
        first_offset=run.base_offset[row],
        next_offset=run.last_offset[end - 1] + 1,
        segment_base=segment.base_offset,
        start_position=run.position_of(row),
        end_position=run.position_of(end),
    )
