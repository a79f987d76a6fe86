"""Examines one segment, from any kind of source, and makes the row of the report for this segment.

A damaged segment is quarantined: nothing is written for the segment, and its row has the reason and
the position of the damage. All values here are plain data that can be pickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tierlog.batches import CODECS, BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.files import FileChange, SegmentHandle, printable
from tierlog.log.rebuild import RebuiltIndexes, rebuild_indexes
from tierlog.log.segment_checks import check_batches, is_plain
from tierlog.tiering.copy import MAX_TABLE_ROWS, segment_tables
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.output import wide_field
from tierlog.types import StopReason

if TYPE_CHECKING:
    from tierlog._core import BatchSummary

__all__ = [
    "Examined",
    "Outcome",
    "SegmentOutcome",
    "SegmentRow",
    "examine",
    "finding",
    "finding_of",
]

_TAILS = frozenset({StopReason.TORN_TAIL, StopReason.ZERO_TAIL})


class Outcome(StrEnum):
    """The result for the indexes of one segment."""

    WRITTEN = "written"
    WOULD_WRITE = "would write"
    SAME = "same"
    """The same bytes existed already."""
    SOUND = "sound"
    """The indexes existed and are sound; nothing was rebuilt."""
    CONFLICT = "conflict"
    """Other indexes exist, and are kept."""
    QUARANTINED = "quarantined"
    LEFT_ALONE = "left alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """One segment of the report.

    ``end_offset`` is the last offset; None if there are no batches. ``crc`` is ``ok`` or ``bad``;
    None for a segment that was not scanned. ``bytes_per_epoch`` has (leader epoch, bytes) pairs,
    with epoch -1 for batches without a leader epoch. ``findings`` has the kinds of the findings.
    """

    topic: str
    partition: int
    base_offset: int
    end_offset: int | None = None
    size_bytes: int
    batches: int | None = None
    records: int | None = None
    first_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    crc: str | None = None
    codecs: tuple[str, ...] = ()
    outcome: Outcome
    bytes_per_epoch: tuple[tuple[int, int], ...] = wide_field()
    log_crc32c: int | None = wide_field()
    path: str = wide_field()
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOutcome:
    """A row of the report and its findings."""

    row: SegmentRow
    findings: tuple[Finding, ...] = ()


def finding(
    path: str,
    what: str,
    expected: str,
    found: str,
    action: str,
    *,
    position: int | None = None,
    severity: Severity = Severity.PROBLEM,
) -> Finding:
    """Return a finding; see `Finding`."""
    return Finding(
        severity=severity,
        path=printable(path),
        position=position,
        what=what,
        expected=expected,
        found=found,
        action=action,
    )


def finding_of(error: CorruptDataError, path: str, action: str) -> Finding:
    """Return the finding for damage of the file or object at `path`."""
    return finding(path, error.reason, error.expected, error.found, action, position=error.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A scanned segment. ``rebuilt`` is None when `damage` ended the rebuild.

    ``end_offset`` is the last offset of its batches; None if there are no batches.
    ``has_transactions`` says whether a batch belongs to a transaction. ``tail`` is the reason why
    the scan of an active segment stopped early.
    """

    rebuilt: RebuiltIndexes | None
    damage: CorruptDataError | None
    batches: int | None = None
    records: int | None = None
    first_timestamp_ms: int | None = None
    codecs: tuple[str, ...] = ()
    has_transactions: bool = True
    tail: CorruptDataError | None = None

    @property
    def end_offset(self) -> int | None:
        if self.rebuilt is None or not self.batches:
            return None
        return self.rebuilt.end_offset - 1

    @property
    def log_crc32c(self) -> int | None:
        """The CRC-32C of all bytes; None unless the scan reached the end."""
        return None if self.rebuilt is None else self.rebuilt.table.range_crc32c

    def row(
        self,
        topic: str,
        partition: int,
        base_offset: int,
        size_bytes: int,
        outcome: Outcome,
        path: str,
        findings: Iterable[Finding],
    ) -> SegmentRow:
        """Return the segment's row of the report."""
        rebuilt = self.rebuilt
        bad = self.damage is not None and self.damage.reason == StopReason.BAD_CRC
        newest = -1 if rebuilt is None else rebuilt.max_timestamp_ms
        return SegmentRow(
            topic=topic,
            partition=partition,
            base_offset=base_offset,
            end_offset=self.end_offset,
            size_bytes=size_bytes,
            batches=self.batches,
            records=self.records,
            first_timestamp_ms=self.first_timestamp_ms,
            max_timestamp_ms=newest if newest >= 0 else None,
            crc="bad" if bad else "ok" if rebuilt is not None else None,
            codecs=self.codecs,
            outcome=outcome,
            bytes_per_epoch=() if rebuilt is None else rebuilt.bytes_per_epoch,
            log_crc32c=None if self.damage else self.log_crc32c,
            path=printable(path),
            findings=tuple(found.what for found in findings),
        )


def examine(
    handle: SegmentHandle,
    *,
    base_offset: int,
    next_base_offset: int | None,
    is_active: bool,
    lineage: LeaderEpochs | None,
    allow_gaps: bool,
    producer_snapshot: bytes | None,
    index_interval_bytes: int,
) -> Examined:
    """Scan a segment once, rebuild its indexes, and compare its batches with its name, neighbours
    and lineage.

    ``producer_snapshot`` is the producer state at the base offset. For the other arguments see
    `check_batches`. Only an active segment may end in a torn or zero tail. Raises OSError when the
    segment cannot be read.
    """
    try:
        rebuilt = rebuild_indexes(
            handle,
            index_interval_bytes,
            base_offset=base_offset,
            producer_snapshot=producer_snapshot,
            accept_damage=True,
            hash_bytes=True,
            max_table_rows=MAX_TABLE_ROWS,
        )
    except CorruptDataError as error:
        return Examined(rebuilt=None, damage=error)
    is_whole = rebuilt.table.stop_reason is StopReason.END
    stop = None if is_whole else rebuilt.table.stop_error()
    tail = stop if is_active and rebuilt.table.stop_reason in _TAILS else None
    damage = None if tail is stop else stop
    expected = Expected(
        base_offset=base_offset,
        next_base_offset=None if is_active else next_base_offset,
        lineage=lineage,
        allow_gaps=allow_gaps,
    )
    seen = _Seen()
    if damage is None or rebuilt.table_complete:
        end_position = rebuilt.table.stop_position if damage is None else -1
        seen.take(segment_tables(rebuilt, handle), expected, end_position)
    damage = damage or seen.misplaced
    change = handle.recheck()
    grown = is_active and change is FileChange.GROWN
    if damage is None and not grown and change not in (FileChange.UNCHANGED, FileChange.GONE):
        damage = CorruptDataError(
            reason="changed", position=0, expected="a file that stays as it is", found=change.value
        )
    return Examined(
        rebuilt=rebuilt,
        damage=damage,
        batches=seen.batches,
        records=seen.records,
        first_timestamp_ms=seen.first_timestamp_ms,
        codecs=_codecs(seen.codecs),
        has_transactions=seen.has_transactions,
        tail=tail,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The properties that the batches of a segment must have, given its name, its neighbour and its
    partition; see `check_batches`."""

    base_offset: int
    next_base_offset: int | None
    lineage: LeaderEpochs | None
    allow_gaps: bool


@dataclass(slots=True)
class _Seen:
    """Totals over the tables of a segment. One table is in memory at a time."""

    batches: int = 0
    records: int = 0
    first_timestamp_ms: int | None = None
    has_transactions: bool = False
    codecs: int = 0
    misplaced: CorruptDataError | None = None

    def take(self, tables: Iterable[BatchTable], expected: Expected, end_position: int) -> None:
        """Add all tables of a segment. ``end_position`` is the position at which its last batch
        ends; -1 when unknown."""
        base_offset, epoch = expected.base_offset, -1
        for table in tables:
            summary = table.summary
            next_base = expected.next_base_offset if summary.end_position == end_position else None
            if self.misplaced is None and not is_plain(
                summary,
                segment_base=base_offset,
                next_base=next_base,
                lineage=expected.lineage,
                epoch_before=epoch,
            ):
                self._check(table, expected, base_offset, next_base, epoch)
            if summary.run is not None:
                _, last_offset, _, epoch = summary.run
                base_offset = last_offset + 1
            elif len(table):
                base_offset = int(table.last_offset[-1]) + 1
                epoch = int(table.leader_epoch[-1])
            self._count(len(table), summary)

    def _check(
        self,
        table: BatchTable,
        expected: Expected,
        base_offset: int,
        next_base: int | None,
        epoch_before: int,
    ) -> None:
        """Keep the first problem that a check of every batch of the table finds."""
        problems = check_batches(
            base_offset=table.base_offset,
            last_offset=table.last_offset,
            position=table.position,
            leader_epoch=table.leader_epoch,
            segment_base=base_offset,
            next_base=next_base,
            lineage=expected.lineage,
            allow_gaps=expected.allow_gaps,
            magic=table.magic,
            epoch_before=epoch_before,
        )
        if problems:
            self.misplaced = problems[0].as_error()

    def _count(self, batches: int, summary: BatchSummary) -> None:
        self.batches += batches
        self.records += summary.records
        self.has_transactions |= summary.has_transactions
        told = (self.first_timestamp_ms, summary.first_timestamp_ms)
        self.first_timestamp_ms = min((one for one in told if one is not None), default=None)
        self.codecs |= summary.codecs


def _codecs(bits: int) -> tuple[str, ...]:
    codes = (code for code in range(8) if bits >> code & 1)
    return tuple(sorted(CODECS[code] if code < len(CODECS) else f"codec {code}" for code in codes))
