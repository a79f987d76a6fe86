"""Passes the metrics to prometheus_client; needs the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from tierlog.metrics.definitions import EVENT_COUNTERS, METRICS, Kind, Metric, topic_name
from tierlog.metrics.meters import HistogramSnapshot
from tierlog.metrics.recorder import RemoteLogMetrics
from tierlog.metrics.snapshot import GaugeSums, MetricsSnapshot

__all__ = ["RemoteLogCollector"]

_Sample = tuple[tuple[str, ...], float]
_TOPIC_GAUGES = "kafka_server_brokertopicmetrics_remote"
_MANAGER = "kafka_log_remote_remotelogmanager_"
_READERS = "kafka_log_remote_remotestoragethreadpool_remotelogreader"
_THROTTLE = "kafka_server_remotelogmanager_remote_{}_throttle_time_{}"


class RemoteLogCollector(Collector):
    """Exports a `RemoteLogMetrics` at each scrape.

        registry = prometheus_client.CollectorRegistry()
        registry.register(RemoteLogCollector(metrics))

    A family that has no series is left out.
    """

    def __init__(self, metrics: RemoteLogMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[MetricFamily]:
        """Return all possible families without series."""
        return [
            HistogramMetricFamily(metric.name, metric.doc)
            if metric.kind is Kind.HISTOGRAM
            else _family(metric)
            for metric in METRICS
        ]

    def collect(self) -> Iterable[MetricFamily]:
        """Return the present families."""
        snapshot = self._metrics.snapshot()
        found = samples(snapshot)
        for metric in METRICS:
            if metric.kind is Kind.HISTOGRAM:
                if snapshot.fetch_seconds is not None:
                    yield _histogram(metric, snapshot.fetch_seconds)
            elif series := found.get(metric.name):
                family = _family(metric)
                for labels, value in series:
                    family.add_metric(labels, value)
                yield family


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    of_kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return of_kind(metric.name, metric.doc, labels=metric.labels)


def _histogram(metric: Metric, found: HistogramSnapshot) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.doc)
    bounds = [*map(str, found.bounds), "+Inf"]
    family.add_metric((), list(zip(bounds, found.counts_up_to, strict=True)), found.total)
    return family


def samples(snapshot: MetricsSnapshot) -> dict[str, list[_Sample]]:
    """Return label values and value of every series, by the family's name."""
    found: dict[str, list[_Sample]] = {}
    for part in (_events, _topic_gauges, _manager, _own, _health, _pools, _quotas, _reads):
        for name, labels, value in part(snapshot):
            found.setdefault(name, []).append((labels, value))
    return found


_Rows = Iterator[tuple[str, tuple[str, ...], float]]


def _events(snapshot: MetricsSnapshot) -> _Rows:
    for event, metric in EVENT_COUNTERS.items():
        total = snapshot.totals[event]
        yield metric.name, (), total.count
        for topic, counts in snapshot.topics.items():
            yield topic_name(metric.name), (topic,), counts[event]
        meter = metric.mbean.rpartition("=")[2]
        rates = {
            "1m": total.one_minute_rate,
            "5m": total.five_minute_rate,
            "15m": total.fifteen_minute_rate,
            "mean": total.mean_rate,
        }
        for window, rate in rates.items():
            yield "tierlog_meter_rate", (meter, window), rate


def _topic_gauges(snapshot: MetricsSnapshot) -> _Rows:
    for name, value in _sums(snapshot.total_sums):
        yield name, (), value
    for topic, sums in snapshot.topic_sums.items():
        for name, value in _sums(sums):
            yield topic_name(name), (topic,), value


def _sums(sums: GaugeSums) -> Iterator[tuple[str, float]]:
    values = (
        (("copylagbytes", "copylagsegments"), sums.copy_lag),
        (("deletelagbytes", "deletelagsegments"), sums.delete_lag),
        (("logsizebytes", "logmetadatacount", "logsizecomputationtime"), sums.remote_log),
    )
    for names, known in values:
        for name, value in zip(names, known or (), strict=False):
            yield _TOPIC_GAUGES + name, value


def _manager(snapshot: MetricsSnapshot) -> _Rows:
    pool = snapshot.pools.get("copy")
    if pool is not None:
        yield _MANAGER + "remotelogmanagertasksavgidlepercent", (), pool.idle_ratio
    readers = snapshot.pools.get("reader")
    if readers is not None:
        yield _READERS + "taskqueuesize", (), readers.queued
        yield _READERS + "avgidlepercent", (), readers.idle_ratio
    yield (
        "kafka_server_delayedremotefetchmetrics_expires_total",
        (),
        snapshot.counts.fetches_expired,
    )
    for (topic, partition), percents in snapshot.retention_percent.items():
        labels = (topic, str(partition))
        yield _MANAGER + "retentionsizeinpercent", labels, percents[0]
        yield _MANAGER + "localretentionsizeinpercent", labels, percents[1]
    for what, waits in (("copy", snapshot.copy_throttle_ms), ("fetch", snapshot.fetch_throttle_ms)):
        for which, wait_ms in zip(("avg", "max"), waits or (), strict=False):
            yield _THROTTLE.format(what, which), (), wait_ms


def _own(snapshot: MetricsSnapshot) -> _Rows:
    from_totals = snapshot.totals[0].count
    yield "tierlog_segments_copied_total", (), snapshot.counts.segments_copied
    yield "tierlog_copied_bytes_total", (), from_totals
    yield "tierlog_unreadable_batches_total", (), snapshot.counts.unreadable_batches
    yield "tierlog_segments_deleted_total", (), snapshot.counts.segments_deleted
    yield "tierlog_deleted_bytes_total", (), snapshot.counts.deleted_bytes
    yield "tierlog_log_start_offset_advances_total", (), snapshot.counts.log_start_advances
    yield "tierlog_partitions_led", (), snapshot.partitions
    yield "tierlog_partitions_copy_lag_unknown", (), snapshot.copy_lag_unknown


def _health(snapshot: MetricsSnapshot) -> _Rows:
    yield "tierlog_segments_refused", (), snapshot.refused_segments
    yield "tierlog_segments_broken", (), snapshot.broken_segments
    yield "tierlog_partitions_deposed", (), snapshot.deposed
    yield "tierlog_partitions_followed", (), snapshot.followed
    if snapshot.follower_lag is not None:
        yield "tierlog_follower_lag_bytes", (), snapshot.follower_lag.size_bytes
        yield "tierlog_follower_lag_segments", (), snapshot.follower_lag.segments
    yield "tierlog_index_file_errors_total", (), snapshot.counts.index_file_errors
    yield "tierlog_look_failures_total", (), snapshot.counts.look_failures
    if snapshot.store_answers is not None:
        yield "tierlog_store_up", (), snapshot.store_answers
    look = snapshot.look
    if look is None:
        return
    yield "tierlog_log_directories_unreadable", (), look.unreadable_directories
    if look.broker_answers is not None:
        yield "tierlog_broker_up", (), look.broker_answers
    if look.partitions_without_leader is not None:
        yield "tierlog_partitions_without_leader", (), look.partitions_without_leader


def _pools(snapshot: MetricsSnapshot) -> _Rows:
    for name, pool in snapshot.pools.items():
        labels = (name,)
        yield "tierlog_task_pool_threads", labels, pool.threads
        yield "tierlog_task_pool_idle_ratio", labels, pool.idle_ratio
        yield "tierlog_tasks_queued", labels, pool.queued
        yield "tierlog_tasks_running", labels, pool.running
        yield "tierlog_tasks_stuck", labels, pool.stuck
        yield "tierlog_task_longest_run_seconds", labels, pool.longest_run_ms / 1000
        yield "tierlog_task_runs_total", labels, pool.runs
        for error, count in pool.failures.items():
            yield "tierlog_task_failures_total", (name, error), count


def _quotas(snapshot: MetricsSnapshot) -> _Rows:
    for name, quota in snapshot.quotas.items():
        labels = (name,)
        yield f"kafka_server_rlm{name}_byte_rate", (), quota.rate_bytes_per_second
        yield "tierlog_quota_rate_bytes_per_second", labels, quota.rate_bytes_per_second
        if quota.limit_bytes_per_second is not None:
            limit = quota.limit_bytes_per_second
            yield "tierlog_quota_limit_bytes_per_second", labels, limit
        yield "tierlog_quota_throttled_seconds_total", labels, quota.throttled_ms / 1000
        yield "tierlog_quota_reserved_bytes", labels, quota.reserved_bytes
        yield "tierlog_quota_overshoot_bytes", labels, quota.overshoot_bytes


def _reads(snapshot: MetricsSnapshot) -> _Rows:
    for client_id, size_bytes in snapshot.client_fetched_bytes.items():
        yield "tierlog_client_fetched_bytes_total", (client_id,), size_bytes
    if snapshot.read_ahead is not None:
        yield "tierlog_read_ahead_bytes_total", (), snapshot.read_ahead[0]
        yield "tierlog_read_ahead_wasted_bytes_total", (), snapshot.read_ahead[1]
    cache = snapshot.index_cache
    if cache is None:
        return
    yield "tierlog_index_cache_entries", (), cache.entries
    yield "tierlog_index_cache_size_bytes", (), cache.size_bytes
    yield "tierlog_index_cache_fetched_bytes_total", (), cache.fetched_bytes
    for cause, size_bytes in cache.refetched_bytes.items():
        yield "tierlog_index_cache_refetched_bytes_total", (cause,), size_bytes
    yield "tierlog_index_cache_disk_errors_total", (), cache.disk_errors
    if cache.recorded:
        yield "tierlog_index_cache_hits_total", (), cache.hits
        yield "tierlog_index_cache_misses_total", (), cache.misses
