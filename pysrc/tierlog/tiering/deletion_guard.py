"""Stops retention that would delete most of the archive or the whole archive of a partition.

A retention of 7 ms instead of 7 days, or a wrong clock, makes the whole archive look expired. So
the guard first adds up the planned deletions of all led partitions. If they exceed a share of the
archive, an operator has to allow them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tierlog.clock import Clock
from tierlog.errors import TierlogError
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.tiering.retention import DeleteReason, RetentionPlan
from tierlog.types import TopicIdPartition

__all__ = [
    "DECIDED_BEFORE",
    "DeletionGuard",
    "DeletionHeldBackError",
    "PlannedDeletion",
    "planned_deletion",
]

_SETTING = "tierlog.retention.max.deleted.ratio"
# Readers cannot reach these segments; only their objects remain.
DECIDED_BEFORE = frozenset(
    {
        DeleteReason.LOG_START_OFFSET,
        DeleteReason.INTERRUPTED_COPY,
        DeleteReason.INTERRUPTED_DELETE,
    }
)
_SHOWN_PARTITIONS = 5


class DeletionHeldBackError(TierlogError):
    """Retention would delete too much at once; nothing was deleted."""


class PlannedDeletion(NamedTuple):
    """Finished segments of one partition: how many there are, how many retention would delete."""

    partition: TopicIdPartition
    archive_segments: int
    archive_bytes: int
    deleted_segments: int
    deleted_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.partition.topic}-{self.partition.partition} ({self.deleted_segments} of "
            f"{self.archive_segments} segments, {self.deleted_bytes} of {self.archive_bytes} bytes)"
        )


def planned_deletion(
    partition: TopicIdPartition,
    archive_segments: int,
    archive_bytes: int,
    plan: RetentionPlan,
) -> PlannedDeletion:
    """Return how many finished segments and bytes `plan` would delete. Truncated segments count as
    in `remote_log_size`."""
    deleted_segments = deleted_bytes = 0
    for one in plan.deletions:
        if one.segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            continue
        size_bytes = sum(counted for _, counted in one.segment.served_size_per_epoch())
        if one.reason in DECIDED_BEFORE:
            archive_segments -= 1
            archive_bytes -= size_bytes
        else:
            deleted_segments += 1
            deleted_bytes += size_bytes
    return PlannedDeletion(
        partition, archive_segments, archive_bytes, deleted_segments, deleted_bytes
    )


@dataclass(slots=True)
class _Pass:
    """One pass over the plans of all partitions: its end, and the bytes it may still delete."""

    until_ms: int
    left_bytes: float
    stopped: str | None


class DeletionGuard:
    """Decides for all partitions of a manager whether a planned deletion is allowed. Thread-safe.

    ``list_plans`` returns the plans of all led partitions. It is called at most once per
    ``pass_ms``, and only before a deletion. A ``max_ratio`` of 1 allows every deletion.
    """

    def __init__(
        self,
        max_ratio: float,
        list_plans: Callable[[], Iterable[PlannedDeletion]],
        clock: Clock,
        pass_ms: int,
    ) -> None:
        self._max_ratio = max_ratio
        self._list_plans = list_plans
        self._clock = clock
        self._pass_ms = pass_ms
        self._lock = threading.Lock()
        self._pass: _Pass | None = None

    def set_max_ratio(self, max_ratio: float) -> None:
        """Set the ratio; the next deletion starts a new pass."""
        with self._lock:
            self._max_ratio = max_ratio
            self._pass = None

    def set_pass(self, pass_ms: int) -> None:
        """Set the duration of a pass; the next deletion starts a new pass."""
        with self._lock:
            self._pass_ms = pass_ms
            self._pass = None

    def allows(self, planned: PlannedDeletion) -> bool:
        """Return whether the deletion is allowed in this pass.

        Raises DeletionHeldBackError if the whole archive of a partition would be deleted. Raises it
        also for the first partition of a pass in which the deletions of all partitions together
        would exceed the ratio.
        """
        if self._max_ratio >= 1 or planned.deleted_segments == 0:
            return True
        if planned.deleted_segments == planned.archive_segments:
            raise DeletionHeldBackError(_explain(f"the whole archive of {planned}"))
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._pass is None or now_ms >= self._pass.until_ms:
                self._pass = self._begin_pass(now_ms)
                if self._pass.stopped is not None:
                    raise DeletionHeldBackError(self._pass.stopped)
            current = self._pass
            if current.stopped is not None or planned.deleted_bytes > current.left_bytes:
                return False
            current.left_bytes -= planned.deleted_bytes
            return True

    def _begin_pass(self, now_ms: int) -> _Pass:
        plans = list(self._list_plans())
        archive_bytes = sum(one.archive_bytes for one in plans)
        deleted_bytes = sum(one.deleted_bytes for one in plans)
        most_bytes = self._max_ratio * archive_bytes
        stopped = None
        if deleted_bytes > most_bytes:
            stopped = _explain(
                f"{deleted_bytes} of the archive's {archive_bytes} bytes: {_list(plans)}"
            )
        return _Pass(until_ms=now_ms + self._pass_ms, left_bytes=most_bytes, stopped=stopped)


def _list(plans: Sequence[PlannedDeletion]) -> str:
    largest = sorted(
        (one for one in plans if one.deleted_bytes), key=lambda one: -one.deleted_bytes
    )
    more = len(largest) - _SHOWN_PARTITIONS
    shown = ", ".join(map(str, largest[:_SHOWN_PARTITIONS]))
    return f"{shown} and {more} more partitions" if more > 0 else shown


def _explain(what: str) -> str:
    return (
        f"retention would delete {what}; nothing was deleted. Check the retention and the clock. "
        f"To allow it once: tierlog tier --once --allow-deletion; to allow it always: {_SETTING}=1"
    )
