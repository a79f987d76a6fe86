"""Compares batches with the expected values from an index or from the batches before them."""

from __future__ import annotations

from tierlog.errors import CorruptDataError
from tierlog.reader.batch_run import BatchRun
from tierlog.reader.places import Place
from tierlog.reader.positions import Start
from tierlog.types import StopReason

__all__ = ["WRONG_POSITION", "check_start", "too_long", "wrong_position"]

WRONG_POSITION = "wrong_position"


def check_start(run: BatchRun, start: Start, place: Place) -> None:
    """Raise CorruptDataError unless the first batch of `run` is the one that the index names."""
    if not len(run):
        return
    first, last = run.base_offset[0], run.last_offset[0]
    timestamp_ms = run.base_timestamp_ms[0]
    reason, hint = WRONG_POSITION, "the indexes are those of other bytes"
    if start.last_offset is not None:
        if last == start.last_offset:
            return
        expected = f"a batch that ends with offset {start.last_offset}"
    elif start.first_timestamp_ms is None:
        if start.lowest_offset <= first <= start.highest_offset:
            return
        expected = f"a batch of offset {start.lowest_offset} or later"
    else:
        if (first, timestamp_ms) == (start.highest_offset, start.first_timestamp_ms):
            return
        if first == start.highest_offset:
            # There is a batch at that position, but not the batch that the index names.
            reason, hint = "wrong_batch", "the object holds another segment"
        expected = f"a batch of offset {start.highest_offset}, time {start.first_timestamp_ms}"
    raise CorruptDataError(
        reason=reason,
        path=place.log_key,
        position=start.position,
        expected=expected,
        found=f"one of offsets {first} to {last}, time {timestamp_ms}",
        hint=hint,
    )


def wrong_position(run: BatchRun, place: Place, expected: str) -> CorruptDataError:
    return CorruptDataError(
        reason=WRONG_POSITION,
        path=place.log_key,
        position=run.start_position,
        expected=expected,
        found=f"one of offsets {run.base_offset[0]} to {run.last_offset[0]}",
        hint="the store gave other bytes than were asked for",
    )


def too_long(place: Place, position: int, claimed: int, room: int) -> CorruptDataError:
    return CorruptDataError(
        reason=StopReason.BAD_LENGTH.value,
        path=place.log_key,
        position=position,
        expected=f"a batch of at most {room} bytes",
        found=f"one of {claimed}",
    )
