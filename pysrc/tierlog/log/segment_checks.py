"""Checks that the batches of a segment belong to it.

The scanner verifies the checksum of each batch and that offsets ascend. But no checksum covers the
base offset and the leader epoch of a batch, and a scan knows neither the file name nor the rest of
the log. So a copy compares the batches with the base offset in the file name, the base offset of
the next segment, and the leader epochs.

All functions are pure, and compare all rows of the scanner's columns at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.index_files import OffsetIndex
from tierlog.types import StopReason

__all__ = [
    "MAX_PROBLEMS",
    "Misplaced",
    "Problem",
    "check_batches",
    "first_misplaced",
    "is_plain",
]

MAX_PROBLEMS = 100
"""The maximum number of findings; the first ones by position are returned."""

# Byte positions of header fields within a batch. The base offset is at 0.
_LEADER_EPOCH_POSITION = 12
_LAST_OFFSET_DELTA_POSITION = 23

Int64Column = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One finding: the position and the name of the field, the expected and the found value.

    ``field`` is ``base_offset``, ``last_offset`` or ``leader_epoch``. If the segment has no batch,
    the position is 0.
    """

    position: int
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field} at byte {self.position}: expected {self.expected}, found {self.found}"

    def as_error(self, path: str | None = None, hint: str | None = None) -> CorruptDataError:
        """Return the finding as an error."""
        return CorruptDataError(
            reason="leader_epoch" if self.field == "leader_epoch" else "offset_order",
            path=path,
            position=self.position,
            expected=f"{self.field} {self.expected}",
            found=self.found,
            hint=hint,
        )


def is_plain(
    batches: _core.BatchSummary,
    *,
    segment_base: int,
    next_base: int | None,
    lineage: LeaderEpochs | None,
    epoch_before: int = -1,
) -> bool:
    """Return True when a quick check proves that `check_batches` would find nothing, as for nearly
    all segments. False proves nothing. The arguments are those of `check_batches`."""
    if batches.run is None:
        return False
    first, last, first_epoch, last_epoch = batches.run
    if first != segment_base or (next_base is not None and last != next_base - 1):
        return False
    if not lineage:
        return first_epoch >= max(epoch_before, 0)
    return first_epoch == last_epoch == lineage.epoch_for(first) == lineage.epoch_for(last)


def check_batches(
    *,
    base_offset: Int64Column,
    last_offset: Int64Column,
    position: Int64Column,
    leader_epoch: npt.NDArray[np.int32],
    segment_base: int,
    next_base: int | None,
    lineage: LeaderEpochs | None,
    allow_gaps: bool,
    magic: npt.NDArray[np.int8] | None = None,
    epoch_before: int = -1,
) -> list[Problem]:
    """Compare the batches of one segment with its name, the next segment and the leader epochs.

    The columns have one row per batch, in the order of the file; ``position`` is in bytes.
    ``next_base`` is the base offset of the next segment; None for the active segment, whose end is
    open. ``allow_gaps`` is False for a log that was never compacted. A segment of such a log starts
    at its base offset, has every offset and ends right before the next segment.

    Epochs are compared with ``lineage`` at the first and the last offset of each batch. If
    ``lineage`` is None, or begins above a batch since records were deleted, only the order of
    epochs is checked. When a segment is checked in parts, ``epoch_before`` is the epoch of the
    batch before the first row. Batches of ``magic`` 0 and 1 have no epoch. If ``magic`` is None,
    all batches count as magic 2.
    """
    if len(base_offset) == 0:
        return _check_empty(segment_base, next_base, allow_gaps)
    version = np.full(len(base_offset), 2, dtype=np.int8) if magic is None else magic
    problems = _check_starts(base_offset, last_offset, position, segment_base, allow_gaps)
    problems += _check_ends(base_offset, last_offset, position, version, next_base, allow_gaps)
    first, last = int(base_offset[0]), int(last_offset[-1])
    if not problems and _in_one_epoch(first, last, leader_epoch, lineage):
        return []
    with_epoch = version >= 2
    problems += _check_epochs(
        base_offset[with_epoch],
        last_offset[with_epoch],
        position[with_epoch],
        leader_epoch[with_epoch],
        lineage,
        epoch_before,
    )
    return sorted(problems)[:MAX_PROBLEMS]


class Misplaced(NamedTuple):
    """A finding about a segment, and the number of batches before it."""

    sound_batches: int
    problem: Problem


def first_misplaced(
    batches: BatchTable,
    *,
    segment_base: int,
    next_base: int | None,
    allow_gaps: bool,
    index: OffsetIndex | None,
) -> Misplaced | None:
    """Return the first finding about missing or changed offsets.

    The arguments are those of `check_batches`. `index` is the segment's offset index, which must be
    read before the batches; None if it is missing or damaged. In a log without gaps, the batches of
    a rolled segment prove their own offsets, so the index is not used.
    """
    is_whole = batches.stop_reason is StopReason.END
    problems = check_batches(
        base_offset=batches.base_offset,
        last_offset=batches.last_offset,
        position=batches.position,
        leader_epoch=batches.leader_epoch,
        segment_base=segment_base,
        next_base=next_base if is_whole else None,
        lineage=None,
        allow_gaps=allow_gaps,
        magic=batches.magic,
    )
    found = [
        Misplaced(_sound_before(batches, one, next_base), one)
        for one in problems
        if one.field != "leader_epoch"
    ]
    if index is not None and (next_base is None or allow_gaps):
        found += _index_knows_better(batches, index, allow_gaps=allow_gaps)
    return min(found, default=None)


def _sound_before(batches: BatchTable, problem: Problem, next_base: int | None) -> int:
    """Return the number of batches before a problem. If the problem is that offsets are missing
    after the last batch, this is the number of all batches."""
    row = max(0, int(np.searchsorted(batches.position, problem.position, "right")) - 1)
    if problem.field == "last_offset" and row == len(batches) - 1 and next_base is not None:
        first, last = int(batches.base_offset[row]), int(batches.last_offset[row])
        row += first <= last < next_base
    return row


def _index_knows_better(
    batches: BatchTable, index: OffsetIndex, *, allow_gaps: bool
) -> list[Misplaced]:
    """Check the batches against the offset index."""
    found = []
    if len(index.position) and index.position[-1] >= batches.stop_position:
        beyond = Problem(
            position=batches.stop_position,
            field="last_offset",
            expected=f"{index.offset[-1]} or more, as in the offset index",
            found=str(batches.last_offset[-1]) if len(batches) else "no batch",
        )
        found.append(Misplaced(len(batches), beyond))
    if not allow_gaps or not len(batches):
        return found
    rows = np.searchsorted(batches.position, index.position)
    rows = np.minimum(rows, len(batches) - 1)
    # An entry has the last offset of an append. Brokers up to 1.1 wrote the first offset.
    ends = np.isin(index.offset, batches.last_offset) & (index.offset >= batches.last_offset[rows])
    wrong = (batches.position[rows] == index.position) & ~ends
    wrong &= index.offset != batches.base_offset[rows]
    for entry in np.flatnonzero(wrong)[:1]:
        row = int(rows[entry])
        other = Problem(
            position=int(batches.position[row]),
            field="last_offset",
            expected=f"{index.offset[entry]}, as in the offset index",
            found=str(batches.last_offset[row]),
        )
        found.append(Misplaced(row, other))
    return found


def _check_empty(segment_base: int, next_base: int | None, allow_gaps: bool) -> list[Problem]:
    if allow_gaps or next_base is None:
        return []
    expected = f"the offsets {segment_base} to {next_base - 1}"
    return [Problem(position=0, field="base_offset", expected=expected, found="no batch")]


def _check_starts(
    base_offset: Int64Column,
    last_offset: Int64Column,
    position: Int64Column,
    segment_base: int,
    allow_gaps: bool,
) -> list[Problem]:
    """Check that each batch starts at the segment's base offset or after the batch before it."""
    previous = np.concatenate(([segment_base - 1], last_offset[:-1]))
    bad = base_offset <= previous if allow_gaps else base_offset != previous + 1
    return [
        Problem(
            position=int(position[row]),
            field="base_offset",
            expected=f"{int(previous[row]) + 1} {'or more' if allow_gaps else 'exactly'}",
            found=str(base_offset[row]),
        )
        for row in _first_rows(bad)
    ]


def _check_ends(
    base_offset: Int64Column,
    last_offset: Int64Column,
    position: Int64Column,
    magic: npt.NDArray[np.int8],
    next_base: int | None,
    allow_gaps: bool,
) -> list[Problem]:
    """Check that no batch ends before its own start or after the start of the next segment, and
    that no offsets are missing before the next segment."""
    limit = np.iinfo(np.int64).max if next_base is None else next_base - 1
    bad = (last_offset < base_offset) | (last_offset > limit)
    ends_early = next_base is not None and not allow_gaps and last_offset[-1] < limit
    bad[-1] |= ends_early
    problems: list[Problem] = []
    for row in _first_rows(bad):
        exactly = ends_early and row == len(last_offset) - 1
        least = "" if exactly else f"{base_offset[row]} to "
        # A message before magic 2 has only one offset field, its last offset, at its beginning.
        field_position = _LAST_OFFSET_DELTA_POSITION if magic[row] >= 2 else 0
        problems.append(
            Problem(
                position=int(position[row]) + field_position,
                field="last_offset",
                expected=f"{least}{limit}{' exactly' if exactly else ''}",
                found=str(last_offset[row]),
            )
        )
    return problems


def _in_one_epoch(
    first: int, last: int, leader_epoch: npt.NDArray[np.int32], lineage: LeaderEpochs | None
) -> bool:
    """Return whether all batches, which hold the offsets `first` to `last`, have the one epoch of
    the lineage there. Nearly every segment has only one epoch."""
    epoch = None if lineage is None else lineage.epoch_for(first)
    if lineage is None or epoch is None or lineage.epoch_for(last) != epoch:
        return False
    return not np.count_nonzero(leader_epoch != epoch)


def _check_epochs(
    base_offset: Int64Column,
    last_offset: Int64Column,
    position: Int64Column,
    leader_epoch: npt.NDArray[np.int32],
    lineage: LeaderEpochs | None,
    epoch_before: int,
) -> list[Problem]:
    """Check that each batch has the epoch of the lineage, if the lineage has its offsets, and that
    no epoch is below that of the batch before."""
    epochs = leader_epoch.astype(np.int64)
    entries = lineage.entries if lineage else ()
    at_base = _epochs_at(base_offset, entries)
    at_last = _epochs_at(last_offset, entries)
    # Batches below the lineage have its first epoch or an earlier one.
    highest = entries[0].epoch if entries else int(np.iinfo(np.int32).max)
    outside = (at_base < 0) & ((epochs < 0) | (epochs > highest))
    wrong = ((at_base >= 0) & (epochs != at_base)) | ((at_last >= 0) & (epochs != at_last))
    before = np.concatenate(([epoch_before], epochs))[:-1]
    falling = (at_base < 0) & (epochs < before)
    problems: list[Problem] = []
    for row in _first_rows(outside | wrong | falling):
        if wrong[row]:
            expected = _expected_epoch(int(at_base[row]), int(at_last[row]))
        elif falling[row]:
            expected = f"{before[row]} or more, as in the batch before"
        else:
            expected = f"0 to {highest}"
        problems.append(
            Problem(
                position=int(position[row]) + _LEADER_EPOCH_POSITION,
                field="leader_epoch",
                expected=expected,
                found=str(epochs[row]),
            )
        )
    return problems


def _expected_epoch(at_base: int, at_last: int) -> str:
    if at_base < 0 or at_base == at_last:
        return f"{at_last}, as in the leader epoch checkpoint"
    return f"one epoch, where the leader epoch checkpoint has {at_base} and then {at_last}"


def _epochs_at(offsets: Int64Column, entries: tuple[tuple[int, int], ...]) -> Int64Column:
    """Return the epoch of the lineage at each offset; -1 where the lineage has no epoch."""
    pairs = np.array(entries, dtype=np.int64).reshape(-1, 2)
    epochs = np.concatenate((np.array([-1], dtype=np.int64), pairs[:, 0]))
    return epochs[np.searchsorted(pairs[:, 1], offsets, side="right")]


def _first_rows(bad: npt.NDArray[np.bool_]) -> list[int]:
    return [int(row) for row in bad.nonzero()[0][:MAX_PROBLEMS]]
