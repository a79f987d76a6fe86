"""Tiers the log directories of an unmodified Kafka broker, running or stopped.

Strictly read only towards the broker: it lists, opens and reads, and never writes, locks, maps or
renames anything there. What it remembers lies in its own state directory (``metadata.sqlite``,
remote index files, notes) and can be made again from the store and the broker.

A `Watch` looks at the directories once per interval, asks the broker once for all partitions, and
hands those that it leads to a `RemoteLogManager`, which copies and expires them. A segment that
cannot be copied is a row of the report with its reason and does not stop the others.
"""

from __future__ import annotations

from tierlog.sidecar.changes import topic_settings
from tierlog.sidecar.report import (
    Outcome,
    Progress,
    Status,
    TierListener,
    TierReport,
    TierRow,
)
from tierlog.sidecar.sidecar import Sidecar, default_state_dir

__all__ = [
    "Outcome",
    "Progress",
    "Sidecar",
    "Status",
    "TierListener",
    "TierReport",
    "TierRow",
    "default_state_dir",
    "topic_settings",
]
