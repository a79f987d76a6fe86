"""The interface between the remote log manager and the host of a local log.

The host (a sidecar or a node) returns the state of each log as a `LogView`, and the manager tells
it which offsets are durable in the tier. As in Kafka, the log start offset is the first readable
offset of the whole log. The local log start offset is the first readable offset of the local log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tierlog.log.eligibility import StableOffset
from tierlog.log.log_dir import PartitionLog

__all__ = ["LocalLog", "LogView", "TopicSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that tiering uses; None means unlimited.

    ``copy_lag_ms`` and ``copy_lag_bytes`` (KIP-1241) delay the copy of a segment until the segment
    is that old, or that many bytes follow it in the log. If either is 0, segments are copied at
    once. -1 means the value of local retention.
    """

    retention_ms: int | None = None
    retention_bytes: int | None = None
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None
    copy_lag_ms: int = 0
    copy_lag_bytes: int = -1
    copy_disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """A partition's local log at one moment. None means unknown.

    ``log_start_offset`` is the log start offset of both tiers together; ``log`` has the one of the
    log directory. The leader epochs of ``log`` are the lineage of the whole log, which are
    `PartitionLog.lineage` and earlier epochs. ``compacted`` is read from the cluster or else from
    the directory.
    """

    log: PartitionLog
    stable: StableOffset
    log_start_offset: int | None
    compacted: bool | None = False
    topic: TopicSettings = field(default_factory=TopicSettings)


class LocalLog(Protocol):
    """One partition's log on the host. Calls may come from any thread."""

    def view(self) -> LogView | None:
        """Return the present state of the log; None when it was deleted.

        The result is the same object until the state changes, so that idle logs need no work.
        """
        ...

    def advance_log_start_offset(self, offset: int) -> None:
        """Raise the log start offset durably; it never moves back."""
        ...

    def raise_highest_remote_offset(self, offset: int) -> None:
        """Record that all offsets up to and including `offset` are durable in the tier."""
        ...

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        """Delete the segments below `local_log_start_offset`.

        The host first raises the local log start offset, then stops finding the segments for
        readers, then deletes the files. A host that does not own the files deletes none.
        """
        ...
