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
    """One segment of the report. ``reason`` is one word, ``text`` a sentence.

    REFUSED: the segment is damaged or does not fit its log. FAILED: store or disk failed; the next
    pass tries again. Both are problems. SKIPPED is no failure: nothing to do, or not yet. EXPIRED:
    deleted from the store by its retention. REPAIRED: objects in the store were rebuilt or removed;
    no segment was copied. WOULD_COPY, WOULD_EXPIRE and WOULD_REPAIR: outcomes of a dry run."""

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

    ``quota_wait_ms``: time spent waiting for the copy quota. ``failures``: failures that concern no
    single segment; the next pass tries again.
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
    """The status of continuous tiering after a look; counts are those since its start.

    ``lag_bytes`` and ``lag_segments`` could be copied and are not yet; None for unknown. ``stuck``:
    tasks without progress for a long time. ``broker_answers``: None when none is asked.
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
        """A task failed for a reason that concerns no single segment; it is tried again."""

    def on_progress(self, progress: Progress) -> None:
        """Bytes were sent, or a copy waits."""

    def on_status(self, status: Status) -> None:
        """A look has ended."""
