"""Stops a pass of retention that would delete most of an archive, or all of a partition's.

A retention of 7 where 7 days were meant, a clock that is wrong, a unit that is missing: each looks
to retention like an archive that has expired. So before anything is deleted the plans of all led
partitions are added up, and what exceeds the ratio waits for a person to allow it.
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
# No reader can reach these any more: only their objects are still there.
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
    """What of a partition's archive one plan of retention would delete; finished segments only."""

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
    """Add up what `plan` would delete of the finished segments. Of those that were cut only what is
    left of them counts, as in `remote_log_size`."""
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
    """One look at the plans of all partitions: when it is over, and what may still be deleted."""

    until_ms: int
    left_bytes: float
    stopped: str | None


class DeletionGuard:
    """Decides for all partitions of a manager whether a planned deletion may go on. Thread-safe.

    ``list_plans`` plans every led partition anew. It is called at most once per ``pass_ms``, and
    only when something is to be deleted. With a ``max_ratio`` of 1 everything may be deleted.
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
        """From now on `max_ratio` holds, for the plans of this moment."""
        with self._lock:
            self._max_ratio = max_ratio
            self._pass = None

    def set_pass(self, pass_ms: int) -> None:
        """From now on a pass over all partitions lasts `pass_ms`."""
        with self._lock:
            self._pass_ms = pass_ms
            self._pass = None

    def allows(self, planned: PlannedDeletion) -> bool:
        """Whether the deletion may go on now.

        DeletionHeldBackError when it must not: always for all of a partition's archive, and for the
        first partition of a pass that would delete too much of all partitions together.
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
