"""What the remote log manager tells its operators: Kafka's metrics of tiered storage, and our own.

    metrics = RemoteLogMetrics()
    of_partition = metrics.partition(partition)     # led from here on
    of_partition.copied(segment.size_bytes)
    of_partition.set_copy_lag(size_bytes=0, segments=0)
    of_partition.close()                            # led no longer: its gauges are gone for good

Recording is a few additions under one lock. Nothing is formatted before a scrape:
`tierlog.metrics.collector` hands everything to prometheus_client (extra ``metrics``) and
`tierlog.metrics.server` answers scrapes over HTTP. docs/METRICS.md lists what there is to see;
it is written from `tierlog.metrics.definitions`.
"""

from __future__ import annotations

from tierlog.metrics.meters import MeterSnapshot
from tierlog.metrics.recorder import PartitionMetrics, RemoteLogMetrics
from tierlog.metrics.snapshot import (
    IndexCacheWatched,
    QuotaWatched,
    ReadAheadWatched,
    RemoteEvent,
    RemoteIndexCacheStats,
    TaskPoolStats,
    TaskPoolWatched,
)

__all__ = [
    "IndexCacheWatched",
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
