"""What a sidecar says of its work: segments with their outcome, passes, progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tierlog.errors import CorruptDataError
from tierlog.log.names import Skipped

__all__ = ["Outcome", "Progress", "Status", "TierListener", "TierReport", "TierRow"]


class Outcome(StrEnum):
    """What became of a segment in one pass."""

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
    """One segment of the report. ``reason`` is a short word, ``text`` says it to a person.

    REFUSED: the segment is damaged or does not fit its log. FAILED: store or disk failed; the
    next pass tries again. Both are problems. SKIPPED is none: nothing to do, or not yet. EXPIRED:
    deleted from the store by its retention. REPAIRED: objects in the store were mended or removed,
    nothing was sent. WOULD_COPY, WOULD_EXPIRE and WOULD_REPAIR: a dry run's words.
    """

    # When this was found, by the wall clock.
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
    """Everything one pass looked at: segments, left-out files, damaged checkpoints, warnings.

    ``quota_wait_ms``: how long the copy quota made it wait. ``failures``: what failed without being
    about one segment; the next pass tries again.
    """

    rows: tuple[TierRow, ...]
    skipped_files: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()
    warnings: tuple[str, ...] = ()
    quota_wait_ms: int = 0
    failures: tuple[str, ...] = ()

    def of(self, outcome: Outcome) -> tuple[TierRow, ...]:
        """The rows of one outcome."""
        return tuple(row for row in self.rows if row.outcome is outcome)

    @property
    def ok(self) -> bool:
        """Nothing refused, nothing failed, no checkpoint of the broker damaged."""
        bad = any(row.outcome in (Outcome.REFUSED, Outcome.FAILED) for row in self.rows)
        return not bad and not self.problems and not self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pass is: bytes planned and sent, and the last segment dealt with.

    ``quota_wait_ms`` is above 0 while it waits for the copy quota: how long that may still take.
    """

    total_bytes: int
    done_bytes: int
    row: TierRow | None = None
    quota_wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How tiering without end stands after a look; the counts are those since it began.

    ``lag_bytes`` and ``lag_segments`` are what could be copied and is not yet, None while unknown.
    ``stuck``: tasks that have not moved for long. ``broker_answers``: None when none is asked.
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
    """Is told of tiering as it happens, one call at a time, from any thread; overwrite what is of
    interest. Must not raise, nor block for long."""

    def on_row(self, row: TierRow) -> None:
        """A segment was copied, refused, expired, or failed."""

    def on_warning(self, text: str) -> None:
        """Something an operator may want to know."""

    def on_change(self, text: str) -> None:
        """A setting has changed, or was to change and could not."""

    def on_failure(self, task: str, text: str) -> None:
        """A task failed, and not because of one segment; it is tried again."""

    def on_progress(self, progress: Progress) -> None:
        """Bytes went, or a copy waits."""

    def on_status(self, status: Status) -> None:
        """A look at everything is over."""
