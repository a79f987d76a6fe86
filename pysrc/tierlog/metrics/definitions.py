"""Every series that a scrape may show: its name, labels and meaning, and Kafka's MBean for it.

Kafka's metrics have the names that the Prometheus JMX exporter gives them with its example rules
for Kafka (``kafka-kraft-3_0_0.yml``): the MBean's domain, type and name in lower case. In the name
of a meter's count, ``PerSec`` is replaced by ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tierlog.metrics.snapshot import RemoteEvent

__all__ = [
    "EVENT_COUNTERS",
    "KAFKA_METRICS",
    "METRICS",
    "OWN_METRICS",
    "Kind",
    "Metric",
    "topic_name",
]


class Kind(StrEnum):
    """Prometheus type of a series."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family of series. ``unit`` is the unit of its values. ``mbean`` is the name of Kafka's
    MBean, if there is one, and ``attribute`` is the attribute of the MBean that is shown."""

    name: str
    kind: Kind
    unit: str
    doc: str
    labels: tuple[str, ...] = ()
    mbean: str = ""
    attribute: str = "Value"

    @property
    def in_usual_rules(self) -> bool:
        """Whether the exporter's example rules include the MBean."""
        return self.mbean.startswith("kafka.server:")


_TOPIC = "kafka.server:type=BrokerTopicMetrics,name="
_EXPORTED_TOPIC = "kafka_server_brokertopicmetrics_"
_MANAGER = "kafka.log.remote:type=RemoteLogManager,name="


def _exported(mbean: str) -> str:
    """Return domain, type and name, joined as the example rules do it."""
    domain, _, keys = mbean.partition(":")
    values = [key.partition("=")[2] for key in keys.split(",")]
    return "_".join([domain.replace(".", "_"), *values]).lower()


def _meter(event: RemoteEvent, name: str, unit: str, doc: str) -> tuple[RemoteEvent, Metric]:
    mbean = f"{_TOPIC}{name}PerSec"
    return event, Metric(
        name=_exported(f"{_TOPIC}{name}") + "_total",
        kind=Kind.COUNTER,
        unit=unit,
        doc=doc,
        mbean=mbean,
        attribute="Count",
    )


def _topic_gauge(name: str, unit: str, doc: str) -> Metric:
    mbean = _TOPIC + name
    return Metric(
        name=_exported(mbean),
        kind=Kind.GAUGE,
        unit=unit,
        doc=doc,
        mbean=mbean,
    )


def topic_name(name: str) -> str:
    """Return the name of the series by topic, for the name of Kafka's series over all topics."""
    return "tierlog_topic_" + name.removeprefix(_EXPORTED_TOPIC)


def _by_topic(metric: Metric) -> Metric:
    return Metric(
        name=topic_name(metric.name),
        kind=metric.kind,
        unit=metric.unit,
        doc=f"By topic: {metric.doc}",
        labels=("topic",),
    )


def _manager_gauge(name: str, unit: str, doc: str, labels: tuple[str, ...] = ()) -> Metric:
    mbean = _MANAGER + name
    return Metric(
        name=_exported(mbean), kind=Kind.GAUGE, unit=unit, doc=doc, labels=labels, mbean=mbean
    )


def _pool_gauge(name: str, unit: str, doc: str) -> Metric:
    mbean = f"kafka.log.remote:type=RemoteStorageThreadPool,name={name}"
    return Metric(name=_exported(mbean), kind=Kind.GAUGE, unit=unit, doc=doc, mbean=mbean)


def _attribute(mbean_type: str, attribute: str, unit: str, doc: str) -> Metric:
    mbean = f"kafka.server:type={mbean_type}"
    return Metric(
        name=f"{_exported(mbean)}_{attribute.replace('-', '_')}",
        kind=Kind.GAUGE,
        unit=unit,
        doc=doc,
        mbean=mbean,
        attribute=attribute,
    )


def _own(
    name: str, unit: str, doc: str, *labels: str, kind: Kind = Kind.GAUGE, prefix: str = "tierlog_"
) -> Metric:
    return Metric(name=prefix + name, kind=kind, unit=unit, doc=doc, labels=labels)


def _own_counter(name: str, unit: str, doc: str, *labels: str) -> Metric:
    return _own(f"{name}_total", unit, doc, *labels, kind=Kind.COUNTER)


EVENT_COUNTERS: dict[RemoteEvent, Metric] = dict(
    (
        _meter(
            RemoteEvent.COPY_BYTES,
            "RemoteCopyBytes",
            "bytes",
            "Log bytes of segments whose copy to the remote tier is finished and durable.",
        ),
        _meter(
            RemoteEvent.COPY_REQUESTS,
            "RemoteCopyRequests",
            "copies",
            "Number of started attempts to copy a segment.",
        ),
        _meter(
            RemoteEvent.COPY_ERRORS,
            "RemoteCopyErrors",
            "copies",
            "Number of failed attempts to copy a segment.",
        ),
        _meter(
            RemoteEvent.FETCH_BYTES,
            "RemoteFetchBytes",
            "bytes",
            "Log bytes read back from the remote tier.",
        ),
        _meter(
            RemoteEvent.FETCH_REQUESTS,
            "RemoteFetchRequests",
            "reads",
            "Number of started reads from the remote tier.",
        ),
        _meter(
            RemoteEvent.FETCH_ERRORS,
            "RemoteFetchErrors",
            "reads",
            "Number of failed reads from the remote tier. An offset out of range is not a failure.",
        ),
        _meter(
            RemoteEvent.DELETE_REQUESTS,
            "RemoteDeleteRequests",
            "deletions",
            "Number of started attempts to delete a segment from the remote tier.",
        ),
        _meter(
            RemoteEvent.DELETE_ERRORS,
            "RemoteDeleteErrors",
            "deletions",
            "Number of failed attempts to delete a segment from the remote tier.",
        ),
    )
)

KAFKA_METRICS: tuple[Metric, ...] = (
    *EVENT_COUNTERS.values(),
    _topic_gauge(
        "RemoteCopyLagBytes",
        "bytes",
        "Size of the segments that may be copied and are not yet copied.",
    ),
    _topic_gauge(
        "RemoteCopyLagSegments", "segments", "Segments that may be copied and are not yet copied."
    ),
    _topic_gauge(
        "RemoteDeleteLagBytes",
        "bytes",
        "Size of remote segments that were chosen for deletion and are not yet deleted.",
    ),
    _topic_gauge(
        "RemoteDeleteLagSegments",
        "segments",
        "Remote segments that were chosen for deletion and are not yet deleted.",
    ),
    _topic_gauge(
        "RemoteLogMetadataCount", "segments", "Segments that the remote log metadata lists."
    ),
    _topic_gauge(
        "RemoteLogSizeBytes",
        "bytes",
        "Size of the finished segments in the lineage of the log; overlapping bytes count once.",
    ),
    _topic_gauge(
        "RemoteLogSizeComputationTime",
        "milliseconds",
        "Duration of the last computation of the remote log size, summed over partitions.",
    ),
    _manager_gauge(
        "RemoteLogManagerTasksAvgIdlePercent",
        "ratio",
        "Idle share of the copy threads in the last minute, as a ratio from 0 to 1.",
    ),
    _manager_gauge(
        "RetentionSizeInPercent",
        "percent",
        "Size of the whole log in percent of retention.bytes; 0 if that is unlimited.",
        ("topic", "partition"),
    ),
    _manager_gauge(
        "LocalRetentionSizeInPercent",
        "percent",
        "Size of the local log in percent of local.retention.bytes; 0 if that is unlimited.",
        ("topic", "partition"),
    ),
    _pool_gauge(
        "RemoteLogReaderTaskQueueSize", "reads", "Reads of the remote tier that wait for a thread."
    ),
    _pool_gauge(
        "RemoteLogReaderAvgIdlePercent",
        "ratio",
        "Idle share of the reader threads in the last minute, as a ratio from 0 to 1.",
    ),
    Metric(
        name="kafka_server_delayedremotefetchmetrics_expires_total",
        kind=Kind.COUNTER,
        unit="reads",
        doc="Remote reads that took longer than remote.fetch.max.wait.ms.",
        mbean="kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec",
        attribute="Count",
    ),
    _attribute(
        "RemoteLogManager",
        "remote-copy-throttle-time-avg",
        "milliseconds",
        "Mean of the recent waits for the copy quota; absent if there were none.",
    ),
    _attribute(
        "RemoteLogManager",
        "remote-copy-throttle-time-max",
        "milliseconds",
        "Longest of the recent waits for the copy quota; absent if there were none.",
    ),
    _attribute(
        "RemoteLogManager",
        "remote-fetch-throttle-time-avg",
        "milliseconds",
        "Mean of the recent waits for the fetch quota; absent if there were none.",
    ),
    _attribute(
        "RemoteLogManager",
        "remote-fetch-throttle-time-max",
        "milliseconds",
        "Longest of the recent waits for the fetch quota; absent if there were none.",
    ),
    _attribute(
        "RLMCopy",
        "byte-rate",
        "bytes per second",
        "Rate of copies to the remote tier, as the copy quota measures it.",
    ),
    _attribute(
        "RLMFetch",
        "byte-rate",
        "bytes per second",
        "Rate of reads from the remote tier, as the fetch quota measures it.",
    ),
)

OWN_METRICS: tuple[Metric, ...] = (
    *(_by_topic(metric) for metric in KAFKA_METRICS if metric.mbean.startswith(_TOPIC)),
    _own(
        "fetch_seconds",
        "seconds",
        "Duration of reads from the remote tier that returned records, from the reader thread's "
        "first step to the last byte; histogram_quantile(0.99, ...) is the p99. Absent before the "
        "first read.",
        kind=Kind.HISTOGRAM,
    ),
    _own(
        "meter_rate",
        "per second",
        "Rate of one of Kafka's meters over all topics, as its MBean has it: exponentially "
        "weighted over 1, 5 and 15 minutes (1m, 5m, 15m), or the mean since the start.",
        "meter",
        "window",
    ),
    _own_counter("segments_copied", "segments", "Segments whose copy is finished and durable."),
    _own_counter(
        "copied_bytes", "bytes", "Log bytes of segments whose copy is finished and durable."
    ),
    _own_counter(
        "unreadable_batches",
        "batches",
        "Copied batches whose records cannot be read; at most 100 per segment are counted. A read "
        "stops at such a batch unless the caller skips damage.",
    ),
    _own_counter("segments_deleted", "segments", "Segments deleted from the remote tier."),
    _own_counter("deleted_bytes", "bytes", "Log bytes of segments deleted from the remote tier."),
    _own_counter(
        "log_start_offset_advances",
        "moves",
        "Number of times that retention advanced a log start offset.",
    ),
    _own("partitions_led", "partitions", "Partitions that this process copies and expires."),
    _own(
        "partitions_copy_lag_unknown",
        "partitions",
        "Led partitions whose copy lag is unknown, so that the sums of the copy lag omit them.",
    ),
    _own(
        "partitions_deposed",
        "partitions",
        "Partitions that this sidecar leads by the broker's last answer, although a later leader "
        "has claimed them. This sidecar neither copies nor expires them.",
    ),
    _own(
        "segments_refused",
        "segments",
        "Local segments of led partitions that are damaged or do not fit their log, and so are not "
        "copied.",
    ),
    _own(
        "segments_broken",
        "segments",
        "Segments of led partitions whose objects the last store check found missing or damaged, "
        "until another copy replaces them.",
    ),
    _own(
        "partitions_followed",
        "partitions",
        "Partitions of this broker's log directories that follow another broker.",
    ),
    _own(
        "follower_lag_bytes",
        "bytes",
        "Size of local segments of followed partitions that their leaders may copy and have not "
        "copied.",
    ),
    _own(
        "follower_lag_segments",
        "segments",
        "Local segments of followed partitions that their leaders may copy and have not copied.",
    ),
    _own(
        "store_up",
        "boolean",
        "1 if the store answered the last request for its cluster.json, else 0. The sidecar sends "
        "this request once per interval. Also 0 while an answer takes more than 10 seconds.",
    ),
    _own(
        "broker_up",
        "boolean",
        "1 if the broker answered when it was last asked, else 0. Absent when no broker is asked.",
    ),
    _own(
        "partitions_without_leader",
        "partitions",
        "Partitions without a leader in the broker's last answer. Absent while the broker does not "
        "answer.",
    ),
    _own(
        "log_directories_unreadable",
        "directories",
        "Log directories that could not be read in the last interval.",
    ),
    _own_counter(
        "look_failures",
        "looks",
        "Intervals in which listing the directories or asking the broker failed.",
    ),
    _own_counter(
        "index_file_errors",
        "errors",
        "Number of times that the remote index files of a partition could not be written.",
    ),
    _own("task_pool_threads", "threads", "Threads of the pool.", "pool"),
    _own("task_pool_idle_ratio", "ratio", "Idle share of the pool's threads, 0 to 1.", "pool"),
    _own("tasks_queued", "tasks", "Tasks that are due and wait for a thread.", "pool"),
    _own("tasks_running", "tasks", "Tasks that run now.", "pool"),
    _own("tasks_stuck", "tasks", "Tasks that have run for more than 10 minutes.", "pool"),
    _own(
        "task_longest_run_seconds",
        "seconds",
        "Duration so far of the longest run that is active now; 0 if no run is active.",
        "pool",
    ),
    _own_counter("task_runs", "runs", "Runs of tasks that ended, including failed ones.", "pool"),
    _own_counter(
        "task_failures", "runs", "Runs of tasks that failed, by the kind of error.", "pool", "error"
    ),
    _own(
        "quota_rate_bytes_per_second",
        "bytes per second",
        "Rate that the quota measures now.",
        "quota",
    ),
    _own(
        "quota_limit_bytes_per_second",
        "bytes per second",
        "Limit of the quota; absent if it is unlimited.",
        "quota",
    ),
    _own_counter(
        "quota_throttled_seconds",
        "seconds",
        "Time that copies or reads waited for the quota.",
        "quota",
    ),
    _own("quota_reserved_bytes", "bytes", "Bytes that are reserved and not yet settled.", "quota"),
    _own(
        "quota_overshoot_bytes",
        "bytes",
        "Largest number of bytes so far by which the samples together exceeded the limit.",
        "quota",
    ),
    _own_counter(
        "client_fetched_bytes",
        "bytes",
        "Log bytes read back from the remote tier by one client id; at most "
        "tierlog.metrics.max.clients clients have a series. A client that is idle for 15 minutes "
        "may lose its series, which then begins at 0 again.",
        "client_id",
    ),
    _own_counter("read_ahead_bytes", "bytes", "Log bytes fetched before a reader requested them."),
    _own_counter(
        "read_ahead_wasted_bytes",
        "bytes",
        "Read-ahead bytes that were dropped, because memory was short or the reader went "
        "elsewhere.",
    ),
    _own("index_cache_entries", "segments", "Segments whose indexes are in the cache."),
    _own("index_cache_size_bytes", "bytes", "Size of the indexes in the cache."),
    _own_counter(
        "index_cache_fetched_bytes", "bytes", "Bytes of indexes fetched from the remote tier."
    ),
    _own_counter(
        "index_cache_refetched_bytes",
        "bytes",
        "Bytes fetched again because the cache had evicted them, by size or expired. A larger "
        "cache, or a longer time to live, would have avoided these requests.",
        "cause",
    ),
    _own_counter(
        "index_cache_disk_errors",
        "errors",
        "Number of times that the local disk failed to store a segment's indexes or delete a file.",
    ),
    _own_counter(
        "index_cache_hits",
        "look-ups",
        "Look-ups that the cache answered; only for a cache with record_stats.",
    ),
    _own_counter(
        "index_cache_misses",
        "look-ups",
        "Look-ups that went to the remote tier; only for a cache with record_stats.",
    ),
)

METRICS: tuple[Metric, ...] = KAFKA_METRICS + OWN_METRICS
