"""Metrics of the remote log manager: Kafka's metrics of tiered storage and tierlog's own.

    metrics = RemoteLogMetrics()
    of_partition = metrics.partition(partition)     # led from now on
    of_partition.copied(segment.size_bytes)
    of_partition.set_copy_lag(size_bytes=0, segments=0)
    of_partition.close()                            # not led any more: its gauges disappear

To record an event takes a few additions under one lock. Values are formatted only at a scrape:
`tierlog.metrics.collector` passes them to prometheus_client (extra ``metrics``), and
`tierlog.metrics.server` answers scrapes over HTTP. docs/METRICS.md lists the series. It is
generated from `tierlog.metrics.definitions`.
"""

from __future__ import annotations

from tierlog.metrics.meters import MeterSnapshot
from tierlog.metrics.recorder import FollowerMetrics, PartitionMetrics, RemoteLogMetrics
from tierlog.metrics.snapshot import (
    IndexCacheWatched,
    LookStats,
    QuotaWatched,
    ReadAheadWatched,
    RemoteEvent,
    RemoteIndexCacheStats,
    TaskPoolStats,
    TaskPoolWatched,
)

__all__ = [
    "FollowerMetrics",
    "IndexCacheWatched",
    "LookStats",
    "MeterSnapshot",
    "PartitionMetrics",
    "QuotaWatched",
    "ReadAheadWatched",
    "RemoteEvent",
    "RemoteIndexCacheStats",
    "RemoteLogMetrics",
    "TaskPoolStats",
    "TaskPoolWatched",
]
