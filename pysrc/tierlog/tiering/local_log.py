"""The interface between the remote log manager and the host of a local log.

The host (a sidecar or a node) returns the state of each log as a `LogView` and learns which offsets
are durable in the tier. As in Kafka, the log start offset is the first readable offset of the whole
log, the local log start offset the first readable offset of the local log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tierlog.log.eligibility import StableOffset
from tierlog.log.log_dir import PartitionLog

__all__ = ["LocalLog", "LogView", "TopicSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that tiering uses; None is unlimited.

    ``copy_lag_ms`` and ``copy_lag_bytes`` (KIP-1241) delay the copy of a segment until it is that
    old or that many bytes follow it. 0 in either copies at once, -1 uses the local retention.
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
    """A partition's local log at one moment. None is unknown.

    ``log_start_offset`` is that of the whole log, both tiers; ``log`` has that of the directory.
    The leader epochs of ``log`` are the lineage of the whole log: `PartitionLog.lineage` and
    earlier epochs. ``compacted`` comes from the cluster, else from the directory.
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

        Returns the same object until something changes, so that idle logs cost nothing.
        """
        ...

    def advance_log_start_offset(self, offset: int) -> None:
        """Raise the log start offset durably; it never moves back."""
        ...

    def raise_highest_remote_offset(self, offset: int) -> None:
        """Record that all offsets up to and including `offset` are durable in the tier."""
        ...

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        """Delete the segments below `local_log_start_offset`: first raise the local log start
        offset, then end look-ups, then delete the files. A host that does not own its files keeps
        them."""
        ...
