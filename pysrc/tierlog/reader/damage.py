"""Handles damaged records, in the same way for every reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tierlog import _core
from tierlog.columns import RecordColumns
from tierlog.errors import ConfigError, CorruptDataError
from tierlog.log.files import SegmentHandle
from tierlog.log.records import decode_pieces
from tierlog.log.segment import SegmentSource, scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.types import StopReason

__all__ = [
    "LostRecords",
    "OnCorrupt",
    "damage_handler",
    "decode_past_damage",
    "next_batch",
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


def decode_past_damage(
    source: SegmentSource,
    report: Callable[[CorruptDataError, int, int], object],
    *,
    verify_crc: bool,
    include_control: bool,
    max_decompressed_bytes: int,
) -> Iterator[RecordColumns]:
    """Yield the records of all sound batches of `source`. `report` receives the error of each
    damaged batch and the offsets in its header.

    CorruptDataError when the header of a damaged batch does not lead to the next one.
    """
    position, reason = 0, StopReason.END
    while True:
        try:
            for piece in decode_pieces(
                source,
                position,
                verify_crc=verify_crc,
                include_control=include_control,
                max_decompressed_bytes=max_decompressed_bytes,
            ):
                position, reason = piece.batches.stop_position, piece.batches.stop_reason
                yield piece
                del piece
            if reason is not StopReason.END:
                raise CorruptDataError(
                    reason=reason.value,
                    position=position,
                    expected="a whole batch",
                    found="one that goes on beyond the next index entry",
                )
            return
        except CorruptDataError as error:
            table = scan_segment(source, position, verify_crc=False)
            if not len(table):
                raise
            report(error, int(table.base_offset[0]), int(table.last_offset[0]))
            position += int(table.size_bytes[0])


def next_batch(
    handle: SegmentHandle, segment: SegmentFiles, position: int
) -> tuple[int, int, int | None]:
    """Return position and base offset of the first sound batch after the damaged one at `position`,
    and the last offset in the header of the damaged one, if that leads to the next batch.

    Without a sound batch, return the end of the segment.
    """
    table = scan_segment(handle, position, verify_crc=False)
    if len(table) > 1 or (len(table) and table.stop_position == handle.size_bytes):
        last_offset = int(table.last_offset[0])
        return position + int(table.size_bytes[0]), last_offset + 1, last_offset
    next_base = segment.next_base_offset
    next_position = _core.find_batch(handle, position + 1, segment.base_offset, next_base)
    if next_position is None:
        return handle.size_bytes, -1 if next_base is None else next_base, None
    found = scan_segment(handle, next_position, verify_crc=False)
    return next_position, int(found.base_offset[0]), None
