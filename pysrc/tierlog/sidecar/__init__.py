"""Tiers the log directories of an unmodified Kafka broker, running or stopped.

The sidecar only reads the broker's directories: it never writes, locks, maps or renames files
there. Its own state directory (``metadata.sqlite``, remote index files, notes) can be rebuilt from
the store and the broker.

A `Watch` lists the directories once per interval, asks the broker once about all partitions, and
passes the partitions that the broker leads to a `RemoteLogManager`, which copies and expires their
segments. If a segment cannot be copied, the report has a row with the reason, and the other
segments are still copied.
"""

from __future__ import annotations

from tierlog.sidecar.report import (
    Outcome,
    Progress,
    Status,
    TierListener,
    TierReport,
    TierRow,
)
from tierlog.sidecar.settings import topic_settings
from tierlog.sidecar.sidecar import Sidecar

__all__ = [
    "Outcome",
    "Progress",
    "Sidecar",
    "Status",
    "TierListener",
    "TierReport",
    "TierRow",
    "topic_settings",
]
