"""What the remote log manager needs of a partition's local log, whoever owns it.

A host (a broker's sidecar, a node of its own) shows each log as a `LogView`, a picture of one
moment, and is told what became durable in the tier. The words are Kafka's: the log start offset is
the first offset readable anywhere, the local log start offset the first one readable locally.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tierlog.log.eligibility import StableOffset
from tierlog.log.log_dir import PartitionLog

__all__ = ["LocalLog", "LogView", "TopicSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that tiering goes by; None is unlimited.

    ``copy_lag_ms`` and ``copy_lag_bytes`` (KIP-1241) hold a segment back until it is that old, or
    so many bytes follow it, whichever comes first; 0 in either copies at once, -1 takes the local
    retention as the lag.
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

    ``log_start_offset`` is that of the whole log, both tiers; the local directory's own stands in
    ``log``. The leader epochs of ``log`` are the lineage of the whole log, `PartitionLog.lineage`
    and what was before. ``compacted`` as the cluster says it, or as the directory does.
    """

    log: PartitionLog
    stable: StableOffset
    log_start_offset: int | None
    compacted: bool | None = False
    topic: TopicSettings = field(default_factory=TopicSettings)


class LocalLog(Protocol):
    """One partition's log on the host. Calls may come from any thread."""

    def view(self) -> LogView | None:
        """The log now; None when it is gone.

        The same object while nothing has changed, so that a look at an idle log costs nothing.
        """
        ...

    def advance_log_start_offset(self, offset: int) -> None:
        """Nothing below `offset` is read any more; durable when this returns, never taken back."""
        ...

    def raise_highest_remote_offset(self, offset: int) -> None:
        """Everything up to `offset`, itself included, is durable and verified in the tier."""
        ...

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        """Segments wholly below the offset may go: first the local log start offset is raised,
        then they leave the look-ups, then the disk. A host that does not own its files keeps
        them."""
        ...
