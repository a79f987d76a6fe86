"""The report of a sidecar: segments with their outcome, passes, progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tierlog.errors import CorruptDataError
from tierlog.log.names import Skipped

__all__ = ["Outcome", "Progress", "Status", "TierListener", "TierReport", "TierRow"]


class Outcome(StrEnum):
    """The outcome of a segment in one pass."""

    COPIED = "copied"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    REPAIRED = "repaired"
    WOULD_COPY = "would_copy"
    WOULD_EXPIRE = "would_expire"
    WOULD_REPAIR = "would_repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """One segment of the report. ``reason`` is one word and ``text`` is a sentence.

    REFUSED: the segment is damaged or does not fit its log. FAILED: the store or the disk failed;
    the next pass tries again. Both count as problems. SKIPPED does not: the segment need not be
    copied, or not yet. EXPIRED: retention deleted the segment from the store. REPAIRED: objects in
    the store were rebuilt or removed, but no segment was copied. WOULD_COPY, WOULD_EXPIRE and
    WOULD_REPAIR: outcomes of a dry run."""

    # Wall-clock time of the row.
    timestamp_ms: int | None = field(default=None, metadata={"wide": True, "streamed": True})
    topic: str
    partition: int
    base_offset: int
    size_bytes: int
    outcome: Outcome
    reason: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReport:
    """The result of one pass: segments, skipped files, damaged checkpoints, warnings.

    ``quota_wait_ms``: the time for which copies waited for the quota. ``failures``: failures that
    do not belong to one segment; the next pass tries again.
    """

    rows: tuple[TierRow, ...]
    skipped_files: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()
    warnings: tuple[str, ...] = ()
    quota_wait_ms: int = 0
    failures: tuple[str, ...] = ()

    def of(self, outcome: Outcome) -> tuple[TierRow, ...]:
        """Return the rows of one outcome."""
        return tuple(row for row in self.rows if row.outcome is outcome)

    @property
    def ok(self) -> bool:
        """Whether nothing was refused, nothing failed, and no checkpoint of the broker is
        damaged."""
        bad = any(row.outcome in (Outcome.REFUSED, Outcome.FAILED) for row in self.rows)
        return not bad and not self.problems and not self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a pass: bytes planned and sent, and the last segment.

    ``quota_wait_ms`` is the estimated wait for the copy quota, 0 without one.
    """

    total_bytes: int
    done_bytes: int
    row: TierRow | None = None
    quota_wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of continuous tiering after a look. Counts began at the start of the sidecar.

    ``lag_bytes`` and ``lag_segments``: segments that could be copied but are not copied yet; None
    if unknown. ``stuck``: tasks that have made no progress for a long time. ``broker_answers``:
    None when no broker is asked.
    """

    led: int
    followed: int
    copied_segments: int
    copied_bytes: int
    expired_segments: int
    refused_segments: int
    lag_bytes: int | None
    lag_segments: int | None
    stuck: int
    broker_answers: bool | None


class TierListener:
    """Receives the events of tiering, one call at a time, from any thread; override methods as
    needed. A method must not raise or block for long."""

    def on_row(self, row: TierRow) -> None:
        """A segment was copied, refused, expired, or failed."""

    def on_warning(self, text: str) -> None:
        """A warning for an operator."""

    def on_change(self, text: str) -> None:
        """A setting has changed, or its change was refused."""

    def on_failure(self, task: str, text: str) -> None:
        """A task failed for a reason that does not belong to one segment. It is tried again."""

    def on_progress(self, progress: Progress) -> None:
        """Bytes were sent, or a copy waits."""

    def on_status(self, status: Status) -> None:
        """A look has ended."""
