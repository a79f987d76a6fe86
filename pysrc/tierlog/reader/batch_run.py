"""Checked batches that lie back to back in a range of an object.

    run = BatchRun(view, start_position, segment, path, index)     every CRC compared
    row = run.row_reaching(offset)                          the batch that holds it, or the next
    end = run.end_row(row, max_bytes, last_offset)          how many fit
    records = run.bytes_of(row, end)                        a view, nothing is copied

The walk ends at the first batch that is cut off, damaged, or of another segment: ``stop_reason``
and ``stop_position`` are the reason and the position of this end. If the segment's ``index`` is
given, batches are compared with the checksums that the copy recorded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Protocol

from tierlog import _core
from tierlog.errors import CorruptDataError
from tierlog.types import StopReason

if TYPE_CHECKING:
    from tierlog._core import SegmentIndex

__all__ = ["BatchRun"]

_END = StopReason.END.value


class SegmentOffsets(Protocol):
    """The first and the last offset that a segment may hold."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class BatchRun:
    """A scanned range that begins at byte `start_position` of the `.log` object of `segment`.

    Positions are byte positions in the object. Columns are int64 views: ``base_offset``,
    ``last_offset``, ``base_timestamp_ms``; row numbers are 0 to ``len(run)``. ``is_checked``: CRCs
    were compared.
    """

    __slots__ = (
        "_count",
        "_incredible",
        "_mismatch",
        "_native",
        "_position",
        "_segment",
        "base_offset",
        "base_timestamp_ms",
        "end_position",
        "is_checked",
        "last_offset",
        "path",
        "start_position",
        "stop_position",
        "view",
    )

    def __init__(
        self,
        view: memoryview,
        start_position: int,
        segment: SegmentOffsets,
        path: str,
        index: SegmentIndex | None = None,
        *,
        verify_crc: bool = True,
    ) -> None:
        native = _core.scan_segment(view, 0, None, verify_crc, False, False)
        columns = dict(native.columns())
        self._native = native
        self.path = path
        self.is_checked = verify_crc
        self.view = view
        self.start_position = start_position
        self.end_position = start_position + view.nbytes
        self.base_offset = memoryview(columns["base_offset"])
        self.last_offset = memoryview(columns["last_offset"])
        self.base_timestamp_ms = memoryview(columns["base_timestamp_ms"])
        self._position = memoryview(columns["position"])
        self._segment = segment
        self._count = count = len(native)
        self.stop_position = start_position + native.stop_position
        if count:
            self._count = self._count_credible(count)
            if self._count < count:
                self.stop_position = start_position + int(self._position[self._count])
        self._mismatch: tuple[int, int, int] | None = None
        if index is not None and self._count:
            found = index.find_mismatch(view, start_position, self._position)
            if found is not None and found[0] < self._count:
                self._mismatch, self._count = found, found[0]
                self.stop_position = start_position + int(self._position[self._count])
        self._incredible = self._count < count

    def __len__(self) -> int:
        return self._count

    @property
    def is_whole(self) -> bool:
        """Whether the range ends with a whole batch."""
        return not self._incredible and self._native.stop_reason == _END

    @property
    def stop_reason(self) -> StopReason:
        """Why the walk ended. Batches with impossible offsets count as out of order."""
        if self._incredible:
            return StopReason.OFFSET_ORDER
        return StopReason(self._native.stop_reason)

    def position_of(self, row: int) -> int:
        """Return the position at which batch `row` begins. For the row after the last batch, return
        the position at which the last batch ends."""
        if row >= self._count:
            return self.stop_position
        return self.start_position + int(self._position[row])

    def row_reaching(self, offset: int) -> int:
        """Return the row of the first batch that ends at `offset` or later; ``len(run)`` when there
        is no such batch."""
        return bisect_left(self.last_offset, offset, 0, self._count)

    def end_row(
        self, row: int, max_bytes: int, last_offset: int, *, minimum_one: bool = False
    ) -> int:
        """Return the row after the last batch from `row` on that ends within `max_bytes` and at or
        below `last_offset`; `row` when there is no such batch. With `minimum_one`, the first batch
        may have any size."""
        limit = int(self._position[row]) + max_bytes
        if self.stop_position - self.start_position <= limit:
            end = self._count
        else:
            end = bisect_right(self._position, limit, row, self._count) - 1
        if end > row and self.last_offset[end - 1] > last_offset:
            end = bisect_right(self.last_offset, last_offset, row, end)
        if end <= row:
            return row + 1 if minimum_one and self.last_offset[row] <= last_offset else row
        return end

    def bytes_of(self, row: int, end: int) -> memoryview:
        """Return the bytes of the batches from `row` up to, not including, `end`."""
        start = self.position_of(row) - self.start_position
        return self.view[start : self.position_of(end) - self.start_position]

    def damage(self) -> CorruptDataError:
        """Return the error for the batch at which the walk ended."""
        if self._mismatch is not None:
            _row, expected, found = self._mismatch
            return CorruptDataError(
                reason="wrong_batch",
                path=self.path,
                position=self.stop_position,
                expected=f"the batch with checksum {expected:#010x} that was copied",
                found=f"a sound batch with checksum {found:#010x}",
                hint="the object holds another segment; copy this segment again",
            )
        if self._incredible:
            segment = self._segment
            return CorruptDataError(
                reason="wrong_segment",
                path=self.path,
                position=self.stop_position,
                expected=f"offsets that ascend from {segment.start_offset} to {segment.end_offset}",
                found=f"a batch of offsets {self.base_offset[self._count]} to "
                f"{self.last_offset[self._count]}",
                hint="the object is damaged, or holds another segment",
            )
        return CorruptDataError(
            reason=self._native.stop_reason,
            path=self.path,
            position=self.stop_position,
            expected=self._native.stop_expected,
            found=self._native.stop_found,
        )

    def claimed_size(self) -> int | None:
        """Return the size that the batch at the end of the walk claims; None when the header of
        that batch is cut off."""
        return _core.batch_start(self.view[self.stop_position - self.start_position :])[1]

    def _count_credible(self, count: int) -> int:
        """Return the number of batches before the first batch whose offsets are not credible. No
        checksum covers a base offset.

        Credible offsets ascend within the segment. If the offsets of a batch leap ahead and those
        of the next batch are lower again, the first of the two batches is wrong.
        """
        segment = self._segment
        if self.base_offset[0] < segment.start_offset:
            return 0
        if self.last_offset[count - 1] > segment.end_offset:
            count = bisect_right(self.last_offset, segment.end_offset)
        elif self._is_too_high(count - 1):
            count -= 1
        return count

    def _is_too_high(self, row: int) -> bool:
        if row and self.base_offset[row] == self.last_offset[row - 1] + 1:
            return False
        if self._native.stop_reason == StopReason.OFFSET_ORDER.value:
            return True
        if self._native.stop_reason != StopReason.TORN_TAIL.value:
            return False
        next_offset = _core.batch_start(self.view[self._native.stop_position :])[0]
        return next_offset is not None and next_offset <= self.last_offset[row]
