"""Turns the events of the manager's tasks into rows and warnings of the report. Thread-safe."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tierlog.clock import Clock
from tierlog.log.eligibility import Decision
from tierlog.log.log_dir import PartitionLog
from tierlog.sidecar.report import Outcome, Progress, TierListener, TierRow
from tierlog.sidecar.said import Lately
from tierlog.tiering.partition_work import Happened, ManagerListener, SegmentEvent
from tierlog.tiering.retention import HeldBack
from tierlog.tiering.task_pool import TaskFailure
from tierlog.types import TopicIdPartition

__all__ = ["Events", "row_of_decision"]

_OUTCOMES = {
    Happened.COPIED: Outcome.COPIED,
    Happened.REFUSED: Outcome.REFUSED,
    Happened.VANISHED: Outcome.SKIPPED,
    Happened.COPY_FAILED: Outcome.FAILED,
    Happened.DELETED: Outcome.EXPIRED,
    Happened.DELETE_FAILED: Outcome.FAILED,
    Happened.REPAIRED: Outcome.REPAIRED,
    Happened.LOST: Outcome.FAILED,
}
_WOULD = {
    Outcome.COPIED: Outcome.WOULD_COPY,
    Outcome.EXPIRED: Outcome.WOULD_EXPIRE,
    Outcome.REPAIRED: Outcome.WOULD_REPAIR,
}
_WARNINGS = {
    Happened.COPY_RESUMED: "interrupted copy finished",
    Happened.COPY_REMOVED: "interrupted copy removed",
    Happened.NOT_SETTLED: "interrupted copy left as it is",
    Happened.BROKEN: "missing or damaged in the store, copied again",
    Happened.NOT_CHECKED: "cannot tell whether the store still has all segments",
    Happened.UNREADABLE: "records that cannot be read as they are",
    Happened.TRUNCATED: "cut where its records were written otherwise",
}


class Events(ManagerListener):
    """Counts events and passes them to the present listener."""

    def __init__(self, clock: Clock, *, dry_run: bool = False) -> None:
        self._clock = clock
        self._dry_run = dry_run
        self._lock = threading.RLock()
        self._waiting_since_ms: dict[TopicIdPartition, int] = {}
        self._moved_ms: dict[TopicIdPartition, int] = {}
        self._failed: dict[TopicIdPartition, str] = {}
        self._lately = Lately(clock)
        self.listener = TierListener()
        self.counts: Counter[Outcome] = Counter()
        self.copied_bytes = 0
        self.sent_bytes = 0
        self.total_bytes = 0
        self.quota_wait_ms = 0

    def begin(self, listener: TierListener, total_bytes: int) -> None:
        """Start a run that reports to `listener` and has to send `total_bytes`."""
        with self._lock:
            self.listener = listener
            self._lately = Lately(self._clock)
            self.sent_bytes = self.quota_wait_ms = 0
            self.total_bytes = total_bytes

    def moved_ms(self, partition: TopicIdPartition) -> int | None:
        """Return when the partition last made progress, by the monotonic clock."""
        return self._moved_ms.get(partition)

    # -- from the manager

    def on_segment(self, event: SegmentEvent) -> None:
        with self._lock:
            self._waited(event.partition)
            outcome = _OUTCOMES.get(event.happened)
            if event.happened in (Happened.COPY_FAILED, Happened.DELETE_FAILED):
                self._failed[event.partition] = event.text
            if self._dry_run and outcome is not None:
                outcome = _WOULD.get(outcome, outcome)
            if outcome is not None:
                self.add(_row(event, outcome))
            elif event.happened in _WARNINGS:
                what = _WARNINGS[event.happened]
                more = f": {event.text}" if event.text else ""
                self.warn(f"{event.partition}, offset {event.base_offset}: {what}{more}")

    def on_sent(self, partition: TopicIdPartition, size_bytes: int) -> None:
        with self._lock:
            self._waited(partition)
            self.sent_bytes += size_bytes
            self._progress()

    def on_quota_wait(self, partition: TopicIdPartition, wait_ms: int) -> None:
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._waiting_since_ms.setdefault(partition, now_ms)
            self._moved_ms[partition] = now_ms
            self._progress(quota_wait_ms=wait_ms)

    def on_fenced(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        self.warn(f"{partition}: leader epoch {leader_epoch} is over, a later leader tiers it")

    def on_held_back(self, partition: TopicIdPartition, held_back: Sequence[HeldBack]) -> None:
        for one in held_back:
            self.warn(f"{partition}: retention held back: {one.value}")

    def on_index_failure(self, partition: TopicIdPartition, error: Exception) -> None:
        """See `ManagerListener`."""
        self.warn(f"{partition}: remote index files not written: {error}; tried again")

    def on_task_failure(self, failure: TaskFailure) -> None:
        """See `ManagerListener`. A row has already reported this failure."""
        text = " ".join(str(failure.error).split()) or type(failure.error).__name__
        with self._lock:
            told = isinstance(failure.key, TopicIdPartition) and self._failed.pop(failure.key, "")
            if told != str(failure.error):
                self.listener.on_failure(f"{failure.key}, {failure.pool} task", text)

    # -- from the sidecar

    def add(self, row: TierRow) -> None:
        """Add a row to the report, with the present time."""
        row = replace(row, timestamp_ms=self._clock.now_ms())
        with self._lock:
            self.counts[row.outcome] += 1
            if row.outcome is Outcome.COPIED:
                self.copied_bytes += row.size_bytes
            self.listener.on_row(row)
            self._progress(row=row)

    def change(self, text: str) -> None:
        """Report a changed setting, or a refused change."""
        with self._lock:
            self.listener.on_change(text)

    def warn(self, text: str) -> None:
        """Warn an operator, unless the same warning was given recently."""
        with self._lock:
            if self._lately.is_news(text):
                self.listener.on_warning(text)

    def announce(self, text: str) -> None:
        """Warn an operator every time."""
        with self._lock:
            self.listener.on_warning(text)

    def _progress(self, row: TierRow | None = None, quota_wait_ms: int = 0) -> None:
        # The indexes are sent, too; their size was unknown before.
        done_bytes = min(self.sent_bytes, self.total_bytes)
        self.listener.on_progress(
            Progress(
                total_bytes=self.total_bytes,
                done_bytes=done_bytes,
                row=row,
                quota_wait_ms=quota_wait_ms,
            )
        )

    def _waited(self, partition: TopicIdPartition) -> None:
        now_ms = self._moved_ms[partition] = self._clock.monotonic_ms()
        since_ms = self._waiting_since_ms.pop(partition, None)
        if since_ms is not None:
            self.quota_wait_ms += now_ms - since_ms


def _row(event: SegmentEvent, outcome: Outcome) -> TierRow:
    return TierRow(
        topic=event.partition.topic,
        partition=event.partition.partition,
        base_offset=event.base_offset,
        size_bytes=event.size_bytes,
        outcome=outcome,
        reason=event.reason,
        text=event.text,
    )


def row_of_decision(log: PartitionLog, decision: Decision, failure: str = "") -> TierRow:
    """Return the row of a segment that was not copied. If the decision has no reason, the next pass
    copies the segment. ``failure`` is the error that stopped the copy task of its partition."""
    reason = decision.reason
    turn = f"the copy task stopped before it: {failure}" if failure else "waits for its turn"
    return TierRow(
        topic=log.topic,
        partition=log.partition,
        base_offset=decision.segment.base_offset,
        size_bytes=decision.segment.size_bytes,
        outcome=Outcome.SKIPPED,
        reason="pending" if reason is None else reason.value,
        text=decision.text or turn,
    )
