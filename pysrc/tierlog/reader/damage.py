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

    ``last_offset`` is None when the damage hides it.
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
"""What a reader does at damage: raise the error, pass over it, or call a function and go on."""


def damage_handler(on_corrupt: OnCorrupt) -> Callable[[LostRecords], object]:
    """Return the function to call at damage; ConfigError for an unknown word."""
    if callable(on_corrupt):
        return on_corrupt
    if on_corrupt == "fail":
        return raise_damage
    if on_corrupt == "skip":
        return lambda _lost: None
    raise ConfigError(f"on_corrupt: expected fail, skip or a function, found {on_corrupt!r}")


def raise_damage(lost: LostRecords) -> None:
    """Raise the error: the default of every reader."""
    raise lost.error


class NextBatch(NamedTuple):
    """The first sound batch after a damaged one: its position and base offset, and the last offset
    in the header of the damaged batch if that header leads to it."""

    position: int
    offset: int
    last_offset: int | None


def find_next_batch(
    source: SegmentSource, size_bytes: int, position: int, offset: int, next_base_offset: int | None
) -> NextBatch:
    """Find the first sound batch after the damaged one at `position`, which holds `offset`.

    Without a sound batch, return the end of the `size_bytes` bytes and `next_base_offset`, the
    offset of what follows them, -1 when that is unknown.
    """
    table = scan_segment(source, position, verify_crc=False)
    if len(table) > 1 or (len(table) and table.stop_position == size_bytes):
        last_offset = int(table.last_offset[0])
        # No checksum covers the base offset.
        if next_base_offset is None or last_offset < next_base_offset:
            return NextBatch(position + int(table.size_bytes[0]), last_offset + 1, last_offset)
    found = _core.find_batch(source, position + 1, offset, next_base_offset)
    if found is None:
        return NextBatch(size_bytes, -1 if next_base_offset is None else next_base_offset, None)
    table = scan_segment(source, found, verify_crc=False)
    return NextBatch(found, int(table.base_offset[0]), None)


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
    """Yield the records of all sound batches of `source`, a range of a segment with the offsets
    from `offset` up to, not including, `next_base_offset`. `report` receives each error and the
    offsets that are lost by it, both ends included."""
    position = 0
    while position < source.nbytes:
        reason = StopReason.END
        try:
            for piece in decode_pieces(
                source,
                position,
                verify_crc=verify_crc,
                include_control=include_control,
                max_decompressed_bytes=max_decompressed_bytes,
            ):
                batches = piece.batches
                position, reason = batches.stop_position, batches.stop_reason
                offset = int(max(batches.last_offset, default=offset - 1)) + 1
                yield piece
                del piece, batches
            if reason is StopReason.END:
                return
            error = CorruptDataError(
                reason=reason.value,
                position=position,
                expected="a whole batch",
                found="one that goes on beyond the next index entry",
            )
        except CorruptDataError as found:
            error = found
        after = find_next_batch(source, source.nbytes, position, offset, next_base_offset)
        report(error, offset, after.offset - 1 if after.last_offset is None else after.last_offset)
        position, offset = after.position, max(offset, after.offset)
