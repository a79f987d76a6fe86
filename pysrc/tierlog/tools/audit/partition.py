"""Checks whether the segments of one partition make up a log. Pure functions over rows.

The leader epochs of the newest segment decide which segments belong to the log. Readers use the
same rule. Segments of a deposed leader do not belong to the log, so they neither fill gaps nor
count as overlaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.gaps import missing_offsets
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.layout import log_key
from tierlog.tools.audit.retention import what_if
from tierlog.tools.audit.rows import (
    FINISHED,
    AuditedSegment,
    AuditRules,
    DeletionRow,
    EpochSizeRow,
    OpenTransaction,
    RetentionRow,
)
from tierlog.tools.findings import Finding, Tally, counted

__all__ = ["PartitionAudit", "audit_partition"]

_SEE_WHY = (
    "run tierlog tier --repair while the broker still has these offsets, or restore the objects "
    "from a backup or an older version in the bucket"
)
_FOLLOW_EPOCHS = (
    "nothing to do: readers follow the leader epochs; tierlog tier --repair removes second copies"
)
_COMPARE = (
    "use tierlog cat to compare both with a replica: one of them is not what its leader wrote"
)
_NOT_READ = "nothing to do: a later leader wrote these offsets again; nothing reads this copy"
_EXPIRES = "nothing to do: retention removes it"
_STATE = "rebuild the .indexes objects of both segments from their .log objects, oldest first"
_TOO_LATE = (
    "nothing to do: readers skip these offsets; keep tierlog tier running, so that it copies "
    "segments before retention deletes them"
)
_OPEN = (
    "nothing to do if the log continues after this segment; otherwise abort the transaction on the "
    "broker"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """The result of the checks of one partition."""

    findings: tuple[Finding, ...] = ()
    epoch_sizes: tuple[EpochSizeRow, ...] = ()
    deletions: tuple[DeletionRow, ...] = ()
    retention: tuple[RetentionRow, ...] = ()


@dataclass(frozen=True, slots=True)
class _Served:
    """A segment and the part of it that belongs to the log."""

    first_offset: int
    last_offset: int
    row: AuditedSegment


def audit_partition(segments: Iterable[AuditedSegment], rules: AuditRules) -> PartitionAudit:
    """Check all segments of one partition, given in any order."""
    rows = sorted(segments, key=lambda one: (one.base_offset, one.end_offset, one.path))
    stored = [row for row in rows if row.stored]
    lineage = _lineage(stored)
    tally = Tally()
    served = _served(stored, lineage)
    if served:
        _gaps(stored, lineage, tally)
        _overlaps(served, tally)
        _transactions(served, tally)
    _never_copied(stored, tally)
    if lineage is not None:
        _strangers(stored, lineage, tally)
    retention, deletions = what_if(rows, lineage, rules)
    return PartitionAudit(
        findings=tuple(tally.findings),
        epoch_sizes=tuple(_epoch_sizes(rows)),
        deletions=deletions,
        retention=retention,
    )


def _lineage(stored: Sequence[AuditedSegment]) -> LeaderEpochs | None:
    """Return the leader epochs of the newest segment; None when they are unknown."""
    newest = max(
        stored, key=lambda one: (one.leader_epochs[-1].epoch, one.end_offset), default=None
    )
    return None if newest is None or not newest.lineage else LeaderEpochs(newest.lineage)


def _served(stored: Sequence[AuditedSegment], lineage: LeaderEpochs | None) -> list[_Served]:
    """Return the segments of the log, in the order of offsets. All segments belong to the log if
    its lineage is unknown."""
    found = []
    for row in stored:
        metadata = row.metadata()
        if lineage is None:
            ranges = [(row.base_offset, metadata.served_end_offset)]
        else:
            ranges = ranges_in_lineage(metadata, lineage)
        found += [_Served(first, last, row) for first, last in ranges if first <= last]
    return sorted(found, key=lambda one: (one.first_offset, one.last_offset, one.row.path))


def _gaps(stored: Sequence[AuditedSegment], lineage: LeaderEpochs | None, tally: Tally) -> None:
    """Report offsets that no segment holds."""
    starts = [row.log_start_offset for row in stored if row.log_start_offset is not None]
    rows = {row.path: row for row in stored}
    gaps = missing_offsets(
        (row.metadata() for row in stored),
        lineage,
        log_start_offset=max(starts, default=None),
        gap_start_of=lambda segment: rows[log_key(segment)].gap_start_offset,
    )
    for first, last, following in gaps:
        assert following is not None
        row = rows[log_key(following)]
        tally.problem(
            row.path,
            "missing_offsets",
            f"a segment from offset {first} on before this one",
            f"{last - first + 1} offsets that no segment holds",
            _SEE_WHY,
            place=row.place(first, last),
        )


def _never_copied(stored: Sequence[AuditedSegment], tally: Tally) -> None:
    """Note offsets that were deleted from the log before they were copied."""
    for row in stored:
        if row.gap_start_offset is not None:
            tally.note(
                row.path,
                "deleted_before_copy",
                f"offsets {row.gap_start_offset} to {row.base_offset - 1} copied",
                "that retention or DeleteRecords had deleted them from the log",
                _TOO_LATE,
                place=row.place(row.gap_start_offset, row.base_offset - 1),
            )


def _overlaps(served: Sequence[_Served], tally: Tally) -> None:
    """Report offsets that two segments hold."""
    holder: AuditedSegment | None = None
    reach = -1
    for one in served:
        if holder is not None and one.first_offset <= reach:
            _overlap(one, holder, reach, tally)
        if holder is None or one.last_offset > reach:
            reach, holder = one.last_offset, one.row


def _overlap(one: _Served, holder: AuditedSegment, reach: int, tally: Tally) -> None:
    row = one.row
    place = row.place(one.first_offset, min(one.last_offset, reach))
    if (row.base_offset, row.end_offset) != (holder.base_offset, holder.end_offset):
        expected = f"a start after offset {reach}, where the segment before ends"
        found = f"offset {one.first_offset}"
        tally.note(row.path, "overlap", expected, found, _FOLLOW_EPOCHS, place=place)
        return
    checksums = (row.log_crc32c, holder.log_crc32c)
    differs = (
        row.metadata().epoch_ranges() == holder.metadata().epoch_ranges()
        and None not in checksums
        and checksums[0] != checksums[1]
    )
    say, action = (tally.problem, _COMPARE) if differs else (tally.note, _FOLLOW_EPOCHS)
    bytes_ = "other bytes" if differs else "a copy"
    say(
        row.path,
        "duplicate",
        f"offsets {row.base_offset} to {row.end_offset} once",
        f"{bytes_} of them also in {holder.path}",
        action,
        place=place,
    )


def _strangers(stored: Sequence[AuditedSegment], lineage: LeaderEpochs, tally: Tally) -> None:
    """Note each segment that does not belong to the log. Such a segment has only leader epochs that
    are older than the epochs of the log, or the log has some of its offsets from another leader
    epoch."""
    first = lineage.entries[0]
    for row in stored:
        metadata = row.metadata()
        ranges = ranges_in_lineage(metadata, lineage)
        if not ranges and row.leader_epochs[-1].epoch < first.epoch:
            tally.note(
                row.path,
                "unreferenced_epochs",
                f"leader epochs of the log, {first.epoch} and later",
                f"epochs up to {row.leader_epochs[-1].epoch}",
                _EXPIRES,
                place=row.place(),
            )
            continue
        outside = _first_outside(metadata, ranges, first.start_offset)
        if outside is not None:
            epoch = _epoch_at(metadata, outside)
            tally.note(
                row.path,
                "epoch_regression",
                f"offset {outside} in leader epoch {lineage.epoch_for(outside)}",
                f"it in leader epoch {epoch}",
                _NOT_READ,
                place=row.place(outside),
            )


def _first_outside(
    metadata: RemoteLogSegmentMetadata, ranges: list[tuple[int, int]], log_start: int
) -> int | None:
    """Return the first offset at or above `log_start` that lies in none of the ascending
    `ranges`."""
    offset = max(metadata.start_offset, log_start)
    for first, last in ranges:
        if offset < first:
            break
        offset = max(offset, last + 1)
    return offset if offset <= metadata.served_end_offset else None


def _epoch_at(metadata: RemoteLogSegmentMetadata, offset: int) -> int:
    return next(epoch for epoch, first, last in metadata.epoch_ranges() if first <= offset <= last)


def _transactions(served: Sequence[_Served], tally: Tally) -> None:
    """Report transactions that are open at the end of one segment but neither open nor ended in the
    next segment. Note transactions that are open at the end of the log."""
    rows = list({one.row.path: one.row for one in served}.values())
    for before, after in pairwise(rows):
        if before.end_offset + 1 == after.base_offset:
            _check_handed_on(before, after, tally)
    newest = max(served, key=lambda one: one.last_offset)
    if newest.last_offset == newest.row.end_offset and newest.row.open_transactions:
        _unended(newest.row, newest.row.open_transactions, tally)


def _unended(newest: AuditedSegment, transactions: Sequence[OpenTransaction], tally: Tally) -> None:
    first = min(transactions, key=lambda one: one.first_offset)
    tally.note(
        newest.path,
        "txn_open",
        "every transaction ended in the store",
        f"{counted(len(transactions), 'open transaction')}, the first from offset "
        f"{first.first_offset} of producer {first.producer_id}; readers of committed records "
        "stop at this offset",
        _OPEN,
        place=newest.place(first.first_offset),
    )


def _check_handed_on(before: AuditedSegment, after: AuditedSegment, tally: Tally) -> None:
    if before.open_transactions is None or after.open_transactions is None:
        return
    handed_on, kept = set(before.open_transactions), set(after.open_transactions)
    for one in sorted(kept - handed_on):
        # If the first offset lies outside of the previous segment, the transaction is not checked,
        # since a producer state can begin without earlier records.
        if before.base_offset <= one.first_offset <= before.end_offset:
            _broken(
                after, one, "open at the end of the previous segment, too", "not open there", tally
            )
    if after.ended_producers is None:
        return
    for one in sorted(handed_on - kept):
        if one.producer_id not in after.ended_producers:
            _broken(
                after, one, "ended by a marker in this segment, or still open", "neither", tally
            )


def _broken(
    row: AuditedSegment, one: OpenTransaction, expected: str, found: str, tally: Tally
) -> None:
    tally.problem(
        row.path,
        "txn_state",
        f"the transaction of producer {one.producer_id} from offset {one.first_offset} {expected}",
        found,
        _STATE,
        place=row.place(one.first_offset),
    )


def _epoch_sizes(rows: Sequence[AuditedSegment]) -> list[EpochSizeRow]:
    """Return `RemoteLogMetadataManager.remote_log_size` of every epoch, computed from the
    segments."""
    segments: Counter[int] = Counter()
    size_bytes: Counter[int] = Counter()
    for row in rows:
        if row.state == FINISHED:
            for epoch, part_bytes in row.metadata().served_size_per_epoch():
                segments[epoch] += 1
                size_bytes[epoch] += part_bytes
    return [
        EpochSizeRow(
            topic=rows[0].topic,
            partition=rows[0].partition,
            leader_epoch=epoch,
            segments=segments[epoch],
            size_bytes=size_bytes[epoch],
            topic_id=rows[0].topic_id,
        )
        for epoch in sorted(segments)
    ]
