"""Findings of checks, each with an action for the operator, and the amount of checked data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.files import printable
from tierlog.tools.output import Table, human_size

__all__ = [
    "Finding",
    "Place",
    "Report",
    "Severity",
    "Summary",
    "Tally",
    "counted",
    "finding_text",
    "report_text",
]


class Severity(StrEnum):
    """``PROBLEM``: something is wrong. ``NOTE``: information about a state that a healthy log may
    have."""

    PROBLEM = "problem"
    NOTE = "note"


class Place(NamedTuple):
    """The partition and the offsets of a finding. Both offsets are inclusive. A field is None if
    the field does not apply or its value is unknown."""

    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check. ``path`` is a file or the key of an object; ``position`` is a byte
    position in this file or object.

    ``what`` is a short word to search for (``bad_crc``, ``orphan`` ...). ``action`` says what the
    operator should do. The other fields have the partition and the offsets of the finding, as far
    as these are known.
    """

    severity: Severity
    path: str
    position: int | None
    what: str
    expected: str
    found: str
    action: str
    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The amount of data checked, and the number of findings. ``size_bytes`` counts segments
    only."""

    source: str
    partitions: int
    segments: int
    batches: int
    records: int
    size_bytes: int
    problems: int
    notes: int
    deep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run."""

    summary: Summary
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether there is no problem; notes are ignored."""
        return self.summary.problems == 0

    def tables(self) -> list[Table]:
        """Return the tables of a document."""
        return [
            Table(name="summary", row_type=Summary, rows=(self.summary,), single=True),
            Table(name="findings", row_type=Finding, rows=self.findings),
        ]


@dataclass(slots=True)
class Tally:
    """Collects the findings of a run. ``place`` is the default place of a finding."""

    place: Place = field(default_factory=Place)
    findings: list[Finding] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def add_segment(self, size_bytes: int) -> None:
        """Count a segment."""
        self.segments += 1
        self.size_bytes += size_bytes

    def add_batches(self, table: BatchTable) -> None:
        """Count the sound batches and their records."""
        self.batches += len(table)
        self.records += int(table.record_count.sum())

    def problem(
        self,
        path: str,
        what: str,
        expected: str,
        found: str,
        action: str,
        position: int | None = None,
        *,
        place: Place | None = None,
    ) -> None:
        """Add a finding about something that is wrong."""
        self._found(Severity.PROBLEM, path, position, what, expected, found, action, place)

    def note(
        self,
        path: str,
        what: str,
        expected: str,
        found: str,
        action: str,
        position: int | None = None,
        *,
        place: Place | None = None,
    ) -> None:
        """Add a finding about a state that a healthy log may have."""
        self._found(Severity.NOTE, path, position, what, expected, found, action, place)

    def _found(
        self,
        severity: Severity,
        path: str,
        position: int | None,
        what: str,
        expected: str,
        found: str,
        action: str,
        place: Place | None,
    ) -> None:
        self.findings.append(
            Finding(
                severity=severity,
                path=printable(path),
                position=position,
                what=what,
                expected=expected,
                found=found,
                action=action,
                **(place or self.place)._asdict(),
            )
        )

    def error(self, error: CorruptDataError, path: str, action: str) -> None:
        """Add a problem from an error. If ``path`` is empty, the path of the error is used."""
        self.problem(
            path or error.path or "",
            error.reason,
            error.expected,
            error.found,
            action,
            error.position,
        )

    def report(self, source: str, *, deep: bool) -> Report:
        """Return the report of the run."""
        problems = sum(finding.severity is Severity.PROBLEM for finding in self.findings)
        return Report(
            summary=Summary(
                source=source,
                partitions=self.partitions,
                segments=self.segments,
                batches=self.batches,
                records=self.records,
                size_bytes=self.size_bytes,
                problems=problems,
                notes=len(self.findings) - problems,
                deep=deep,
            ),
            findings=tuple(self.findings),
        )


def report_text(report: Report, *, with_notes: bool) -> Iterator[str]:
    """Return the report for people: the findings, then one line of figures."""
    for finding in report.findings:
        if with_notes or finding.severity is Severity.PROBLEM:
            yield from finding_text(finding)
    seen = report.summary
    checked = (
        f"{counted(seen.partitions, 'partition')}, {counted(seen.segments, 'segment')}, "
        f"{counted(seen.batches, 'batch', 'batches')}, {counted(seen.records, 'record')}, "
        f"{human_size(seen.size_bytes)}"
    )
    problems = counted(seen.problems, "problem") if seen.problems else "no problems"
    notes = "" if not seen.notes else f", {counted(seen.notes, 'note')}"
    where = " (--format wide shows them)" if seen.notes and not with_notes else ""
    yield f"{checked}: {problems}{notes}{where}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count followed by the noun, for example ``1 batch``, ``2,000 batches``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def finding_text(finding: Finding) -> Iterator[str]:
    """Return the lines of one finding for people."""
    where = "" if finding.position is None else f" at byte {finding.position}"
    yield f"{finding.severity.value.upper()}  {finding.path}"
    yield f"  {finding.what}{where}: expected {finding.expected}, found {finding.found}"
    yield f"  {finding.action}"
