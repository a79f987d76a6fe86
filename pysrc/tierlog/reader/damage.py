"""Handles damaged records, in the same way for every reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tierlog import _core
from tierlog.columns import RecordColumns
from tierlog.errors import ConfigError, CorruptDataError
from tierlog.log.records import decode_pieces
from tierlog.log.segment import SegmentSource, scan_segment
from tierlog.types import StopReason

__all__ = [
    "LostRecords",
    "NextBatch",
    "OnCorrupt",
    "damage_handler",
    "decode_past_damage",
    "find_next_batch",
    "raise_damage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecords:
    """The offsets whose records a reader left out because of `error`, both ends included.

    ``last_offset`` is None when the damage hides the last lost offset.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int | None
    error: CorruptDataError

    def __str__(self) -> str:
        end = "" if self.last_offset is None else f" to {self.last_offset}"
        name = f"{self.topic}-{self.partition}"
        return f"{name}: offsets {self.first_offset}{end or ' and later'}: {self.error}"


OnCorrupt = Literal["fail", "skip"] | Callable[[LostRecords], object]
"""The action of a reader at damage: raise the error, skip the damage, or call a function and then
skip the damage."""


_MAX_OFFSET = 2**63 - 1


def damage_handler(on_corrupt: OnCorrupt) -> Callable[[LostRecords], object]:
    """Return the function to call at damage. Raises ConfigError for an unknown action."""
    if callable(on_corrupt):
        return on_corrupt
    if on_corrupt == "fail":
        return raise_damage
    if on_corrupt == "skip":
        return lambda _lost: None
    raise ConfigError(f"on_corrupt: expected fail, skip or a function, found {on_corrupt!r}")


def raise_damage(lost: LostRecords) -> None:
    """Raise the error. This is the default action of every reader at damage."""
    raise lost.error


class NextBatch(NamedTuple):
    """The position and the base offset of the first sound batch after a damaged batch. The third
    field is the last offset that the damaged batches may hold; None when it is unknown."""

    position: int
    offset: int
    last_lost_offset: int | None


def find_next_batch(
    source: SegmentSource, size_bytes: int, position: int, offset: int, next_base_offset: int | None
) -> NextBatch:
    """Find the first sound batch after the damaged batch at `position`. The damaged batch holds
    `offset`.

    If there is no sound batch, return the end of the `size_bytes` bytes and `next_base_offset`,
    which is the offset of the batch after these bytes.
    """
    limit = _MAX_OFFSET if next_base_offset is None else next_base_offset
    table = scan_segment(source, position, verify_crc=False)
    claimed = int(table.last_offset[0]) if len(table) else -1
    # No checksum covers the base offset, so the base offset in the header may be wrong.
    claimed_offset = claimed if offset <= claimed < limit else None
    # If a batch contradicts the batch before it, the base offset of the earlier batch is wrong.
    leaps = len(table) == 2 and table.stop_reason is StopReason.OFFSET_ORDER
    if len(table) > 1 and not leaps and offset <= (base := int(table.base_offset[1])) < limit:
        last = base - 1 if claimed_offset is None else min(claimed_offset, base - 1)
        return NextBatch(int(table.position[1]), base, last)
    if len(table) == 1 and table.stop_position == size_bytes:
        after = next_base_offset if claimed_offset is None else claimed_offset + 1
        return NextBatch(size_bytes, offset if after is None else after, claimed_offset)
    start = int(table.position[1]) if leaps else position
    found = _core.find_batch(source, start + 1, offset, next_base_offset)
    if found is not None:
        base = int(scan_segment(source, found, verify_crc=False).base_offset[0])
        return NextBatch(found, base, base - 1)
    last_offset = None if next_base_offset is None else next_base_offset - 1
    return NextBatch(
        size_bytes, offset if next_base_offset is None else next_base_offset, last_offset
    )


def decode_past_damage(
    source: memoryview,
    offset: int,
    next_base_offset: int,
    report: Callable[[CorruptDataError, int, int], object],
    *,
    verify_crc: bool,
    include_control: bool,
    max_decompressed_bytes: int,
) -> Iterator[RecordColumns]:
    """Yield the records of all sound batches of `source`. `source` is a range of a segment with the
    offsets from `offset` up to, not including, `next_base_offset`. `report` receives each error
    with the first and the last offset that are lost because of the error."""
    position = 0
    while position < source.nbytes:
        error = _find_wrong_offset(source, position, offset, next_base_offset)
        try:
            for piece in decode_pieces(
                source,
                position,
                None if error is None else error.position,
                verify_crc=verify_crc,
                include_control=include_control,
                max_decompressed_bytes=max_decompressed_bytes,
            ):
                batches = piece.batches
                position = batches.stop_position
                offset = int(max(batches.last_offset, default=offset - 1)) + 1
                if batches.stop_reason not in (StopReason.END, StopReason.MEMORY_BUDGET):
                    error = CorruptDataError(
                        reason=batches.stop_reason.value,
                        position=position,
                        expected="a whole batch",
                        found="one that goes on beyond the next index entry",
                    )
                yield piece
                del piece, batches
        except CorruptDataError as found:
            error = found
        if error is None:
            return
        after = find_next_batch(source, source.nbytes, position, offset, next_base_offset)
        last = next_base_offset - 1 if after.last_lost_offset is None else after.last_lost_offset
        report(error, offset, last)
        position, offset = after.position, after.offset


def _find_wrong_offset(
    source: memoryview, position: int, offset: int, next_base_offset: int
) -> CorruptDataError | None:
    """Return the error of the first batch with wrong offsets. Offsets outside of the range are
    wrong. The offsets of a batch are also wrong if the next batch has lower offsets and could
    directly follow the batch before. Offsets are checked because no checksum covers the base
    offset."""
    table = scan_segment(source, position, verify_crc=False)
    if not len(table):
        return None
    row = None
    outside = (table.base_offset < offset) | (table.last_offset >= next_base_offset)
    if outside.any():
        row = int(outside.argmax())
    elif table.stop_reason is StopReason.OFFSET_ORDER:
        known = int(table.last_offset[-2]) + 1 if len(table) > 1 else offset
        following = _core.batch_start(source[table.stop_position :])[0]
        if following is not None and following >= known:
            row = len(table) - 1
    if row is None:
        return None
    return CorruptDataError(
        reason=StopReason.OFFSET_ORDER.value,
        position=int(table.position[row]),
        expected=f"a batch with offsets from {offset} to {next_base_offset - 1}, in order",
        found=f"one with {table.base_offset[row]} to {table.last_offset[row]}",
    )
