"""The settings, one frozen dataclass per concern.

A field's name is its property's, dots turned into underscores and the concern's own words left
out; each carries its ``Setting``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tierlog.config.kinds import (
    MAX_INT32,
    MAX_INT64,
    decimal,
    host_and_port,
    names,
    one_of,
    paths,
    rate,
    rates_by_name,
    servers,
    setting,
    settings,
    store_url,
    text,
    true_or_false,
    whole_number,
)
from tierlog.errors import ConfigError

__all__ = [
    "LogConfig",
    "PluginConfig",
    "QuotaConfig",
    "QuotaMode",
    "QuotaRateMode",
    "RemoteIndexConfig",
    "RemoteLogConfig",
    "Section",
    "TierConfig",
]


class Section:
    """A concern's settings: checked however it is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, its_setting in settings(type(self)):
            its_setting.check(getattr(self, name))


class QuotaRateMode(StrEnum):
    """How a rate is measured."""

    WINDOW = "window"
    ELAPSED = "elapsed"


class QuotaMode(StrEnum):
    """How a quota is kept.

    CHECK is KIP-956: a unit (a segment, a ranged read) begins while the rate is not above the
    quota, and counts when it is done. RESERVE counts it before it begins. PACE reserves a segment
    piece by piece while it goes, evenly spread.
    """

    CHECK = "check"
    RESERVE = "reserve"
    PACE = "pace"


# Beyond these a sensor would keep more buckets than anybody looks at.
_MAX_SAMPLES = 3_600
_MAX_SAMPLE_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig(Section):
    """How many bytes per second go to and come from the remote tier (KIP-956).

    In force from the first byte on in every `tierlog.QuotaManager` that is made of it;
    `tierlog tier` keeps the copy quota, also given by `--copy-quota` and `--copy-quota-mode`.
    """

    copy_max_bytes_per_second: int | None = setting(
        "remote.log.manager.copy.max.bytes.per.second",
        rate(),
        None,
        "Most bytes per second copied to the remote tier.",
        aliases=("remote.log.manager.write.quota.default",),
    )
    copy_quota_window_num: int = setting(
        "remote.log.manager.copy.quota.window.num",
        whole_number(1, _MAX_SAMPLES),
        61,
        "Samples kept to measure the copy rate.",
        aliases=("remote.log.manager.write.quota.window.num",),
        kafka_default="11",
    )
    copy_quota_window_size_seconds: int = setting(
        "remote.log.manager.copy.quota.window.size.seconds",
        whole_number(1, _MAX_SAMPLE_SECONDS),
        1,
        "Length of each sample of the copy rate.",
        aliases=("remote.log.manager.write.quota.window.size.seconds",),
    )
    fetch_max_bytes_per_second: int | None = setting(
        "remote.log.manager.fetch.max.bytes.per.second",
        rate(),
        None,
        "Most bytes per second read from the remote tier.",
        aliases=("remote.log.manager.read.quota.default",),
    )
    fetch_quota_window_num: int = setting(
        "remote.log.manager.fetch.quota.window.num",
        whole_number(1, _MAX_SAMPLES),
        11,
        "Samples kept to measure the fetch rate.",
        aliases=("remote.log.manager.read.quota.window.num",),
    )
    fetch_quota_window_size_seconds: int = setting(
        "remote.log.manager.fetch.quota.window.size.seconds",
        whole_number(1, _MAX_SAMPLE_SECONDS),
        1,
        "Length of each sample of the fetch rate.",
        aliases=("remote.log.manager.read.quota.window.size.seconds",),
    )
    fetch_topic_max_bytes_per_second: int | None = setting(
        "tierlog.fetch.topic.max.bytes.per.second",
        rate(),
        None,
        "Most bytes per second read from the remote tier of any one topic, below the limit for "
        "all.",
    )
    fetch_topic_max_bytes_per_second_overrides: tuple[tuple[str, int | None], ...] = setting(
        "tierlog.fetch.topic.max.bytes.per.second.overrides",
        rates_by_name(),
        (),
        "The same for single topics, which the limit for each topic does not hold for: "
        "`orders=1048576,payments=262144`.",
    )
    fetch_client_max_bytes_per_second: int | None = setting(
        "tierlog.fetch.client.max.bytes.per.second",
        rate(),
        None,
        "Most bytes per second read from the remote tier by any one client id, below the limit "
        "for all.",
    )
    fetch_client_max_bytes_per_second_overrides: tuple[tuple[str, int | None], ...] = setting(
        "tierlog.fetch.client.max.bytes.per.second.overrides",
        rates_by_name(),
        (),
        "The same for single client ids, which the limit for each client id does not hold for: "
        "`reports=1048576,audit=262144`.",
    )
    copy_quota_mode: QuotaMode = setting(  # noqa: RUF009 - a field, as all others
        "tierlog.copy.quota.mode",
        one_of(QuotaMode),
        QuotaMode.CHECK,
        "How the copy quota is kept: look before a segment and count it after, as KIP-956 says; "
        "reserve its bytes before; or reserve piece by piece, so that no more than a piece goes "
        "at once.",
    )
    fetch_quota_mode: QuotaMode = setting(  # noqa: RUF009 - a field, as all others
        "tierlog.fetch.quota.mode",
        one_of(QuotaMode),
        QuotaMode.CHECK,
        "The same for ranged reads; each of them is one piece, so pace is reserve. In every mode a "
        "read counts when it is asked of the store.",
    )
    quota_rate_mode: QuotaRateMode = setting(  # noqa: RUF009 - a field, as all others
        "remote.log.manager.quota.rate.mode",
        one_of(QuotaRateMode),
        QuotaRateMode.WINDOW,
        "How both rates are measured: over the whole window, as KIP-956 says, or over the time "
        "since the oldest sample, as Kafka does.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogConfig(Section):
    """Tasks and threads of the remote log manager (KIP-405).

    In force in every `RemoteLogManager`, and so in `tierlog tier`, whose `--interval` is the task
    interval in seconds. Those of reading hold in every `Fetcher`; threads and memory also in
    `tierlog.read` and `tierlog cat`, of which each uses at most 8 threads and 96 MiB.
    """

    manager_task_interval_ms: int = setting(
        "remote.log.manager.task.interval.ms",
        whole_number(1, MAX_INT64),
        30_000,
        "Pause between two runs of a task, counted from the end of the first.",
    )
    manager_copier_thread_pool_size: int = setting(
        "remote.log.manager.copier.thread.pool.size",
        whole_number(1, MAX_INT32),
        10,
        "Threads that copy segments.",
    )
    manager_expiration_thread_pool_size: int = setting(
        "remote.log.manager.expiration.thread.pool.size",
        whole_number(1, MAX_INT32),
        10,
        "Threads that delete expired segments.",
    )
    manager_follower_thread_pool_size: int = setting(
        "remote.log.manager.follower.thread.pool.size",
        whole_number(1, MAX_INT32),
        2,
        "Threads for partitions that another node leads.",
        fallbacks=("remote.log.manager.thread.pool.size",),
    )
    manager_task_retry_backoff_ms: int = setting(
        "remote.log.manager.task.retry.backoff.ms",
        whole_number(1, MAX_INT64),
        500,
        "Pause after a task's first failure; it doubles with each further one.",
    )
    manager_task_retry_backoff_max_ms: int = setting(
        "remote.log.manager.task.retry.backoff.max.ms",
        whole_number(1, MAX_INT64),
        30_000,
        "Longest pause after a failure.",
    )
    manager_task_retry_jitter: float = setting(
        "remote.log.manager.task.retry.jitter",
        decimal(0, 0.5),
        0.2,
        "Part of that pause by which chance may change it.",
    )
    retention_max_deleted_ratio: float = setting(
        "tierlog.retention.max.deleted.ratio",
        decimal(0, 1),
        0.5,
        "Largest part of an archive's bytes that retention deletes in one pass over all "
        "partitions; what exceeds it, or is all that is archived of a partition, is not deleted "
        "but reported. 1 allows everything.",
    )
    reader_threads: int = setting(
        "remote.log.reader.threads",
        whole_number(1, MAX_INT32),
        10,
        "Threads that read from the remote tier.",
    )
    reader_max_pending_tasks: int = setting(
        "remote.log.reader.max.pending.tasks",
        whole_number(1, MAX_INT32),
        100,
        "Reads that may wait for a thread; further ones are refused.",
    )
    fetch_max_wait_ms: int = setting(
        "remote.fetch.max.wait.ms",
        whole_number(1, MAX_INT32),
        500,
        "How long a fetch waits for the remote tier before it is answered with what there is.",
    )
    fetch_memory_bytes: int = setting(
        "tierlog.fetch.memory.bytes",
        whole_number(1, MAX_INT64),
        256 << 20,
        "Most bytes that all reads of the remote tier hold at a time, those read ahead included.",
    )
    metrics_max_clients: int = setting(
        "tierlog.metrics.max.clients",
        whole_number(0, 10_000),
        0,
        "How many client ids get a metric each of what they read from the remote tier; 0 is none.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexConfig(Section):
    """Indexes of remote segments and their cache.

    Every `Fetcher` keeps the indexes of the segments that it reads in a cache of files.
    `tierlog.read` and `tierlog cat` keep a few in memory, for one call.
    """

    file_cache_total_size_bytes: int = setting(
        "remote.log.index.file.cache.total.size.bytes",
        whole_number(1, MAX_INT64),
        1 << 30,
        "Most bytes of indexes in the cache; the least recently used go first.",
    )
    file_cache_ttl_ms: int = setting(
        "remote.log.index.file.cache.ttl.ms",
        whole_number(0, MAX_INT64, or_off=-1),
        900_000,
        "How long an index is kept after its last use; -1 is for ever, and so is 0.",
    )
    interval_bytes: int = setting(
        "tierlog.remote.index.interval.bytes",
        whole_number(1, MAX_INT32),
        256 << 10,
        "Bytes of log that each remoteLogIndex entry but the last covers at least.",
    )
    cache_dir: str | None = setting(
        "tierlog.remote.index.cache.dir",
        text("a path"),
        None,
        "Where a `Fetcher` keeps that cache, also for the next run; none is a temporary folder.",
    )
    dir: str | None = setting(
        "tierlog.remote.index.dir",
        text("a path"),
        None,
        "Where the remote index files of partitions are. `tierlog tier` and every "
        "`RemoteLogManager` write them there, `tierlog cat`, `tierlog.read` and every `Fetcher` "
        "look offsets and times up in them. None: no such files are written or read.",
    )
    rotate_bytes: int = setting(
        "tierlog.remote.index.rotate.bytes",
        whole_number(1, 1 << 30),
        16 << 20,
        "Size at which a partition's remoteLogIndex file is followed by a new one; the entries of "
        "one segment stay together.",
    )
    rotate_ms: int = setting(
        "tierlog.remote.index.rotate.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        604_800_000,
        "Time, by the timestamps of the records, that one such file spans before a new one "
        "follows; -1 is any.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig(Section):
    """Storage and metadata managers of other packages (KIP-405).

    A manager is named by an entry point or as `module:Class` ([PLUGINS.md](PLUGINS.md)). A name
    with dots and without a colon is a Java class of the broker's own and means nothing here. In
    force in `tierlog tier`, `tierlog cat` and `tierlog.read`.
    """

    storage_manager_class_name: str | None = setting(
        "remote.log.storage.manager.class.name",
        text("module:Class, or an entry point of the group tierlog.storage_managers"),
        None,
        "What stores segments and gives them back; none is the store of the URL.",
    )
    storage_manager_impl_prefix: str = setting(
        "remote.log.storage.manager.impl.prefix",
        text("the beginning of a key"),
        "rsm.config.",
        "Keys that begin so are given to that manager, without the prefix.",
    )
    metadata_manager_class_name: str | None = setting(
        "remote.log.metadata.manager.class.name",
        text("module:Class, or an entry point of the group tierlog.metadata_managers"),
        None,
        "What knows which segments there are; none is the state directory in `tierlog tier`, and "
        "the store's own objects for readers.",
    )
    metadata_manager_impl_prefix: str = setting(
        "remote.log.metadata.manager.impl.prefix",
        text("the beginning of a key"),
        "rlmm.config.",
        "Keys that begin so are given to that manager, without the prefix.",
    )
    custom_metadata_max_bytes: int = setting(
        "remote.log.metadata.custom.metadata.max.bytes",
        whole_number(0, MAX_INT32),
        128,
        "Most bytes of custom metadata that a storage manager may return for a segment; the copy "
        "of a segment with more fails and is removed.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Section):
    """The local log."""

    dirs: tuple[str, ...] = setting(
        "log.dirs",
        paths(),
        (),
        "A broker's log directories.",
        fallbacks=("log.dir",),
        kafka_default="/tmp/kafka-logs",
    )
    index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        whole_number(0, MAX_INT32),
        4096,
        "Bytes of log between two entries of an offset index that tierlog builds: in the store by "
        "`tierlog tier`, and by `tierlog index rebuild`.",
        aliases=("index.interval.bytes",),
    )
    segment_bytes: int = setting(
        "log.segment.bytes",
        whole_number(14, MAX_INT32),
        1 << 30,
        "Size at which the broker rolls a segment. When the copy quota is less than that in its "
        "whole window, `tierlog tier` warns at the start.",
        aliases=("segment.bytes",),
    )
    batch_max_decompressed_bytes: int = setting(
        "tierlog.batch.max.decompressed.bytes",
        whole_number(1, MAX_INT64),
        64 << 20,
        "Most bytes that one batch may open to, and half of what its records may take as columns; "
        "a larger batch is refused where records are read: `tierlog cat`, `tierlog verify --deep`, "
        "`tierlog.read` and the option of that name in Spark.",
    )


class MetadataKind(StrEnum):
    """Where a sidecar keeps what it knows of the segments in the store."""

    SQLITE = "sqlite"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig(Section):
    """What `tierlog tier` copies, where to, and how long it is kept there.

    The retention here is the archive's alone. A broker's `log.retention.*` and its topics'
    `retention.*` say how long the broker keeps its own copy, and are never taken for it.
    """

    store_url: str | None = setting(
        "tierlog.store.url",
        store_url(),
        None,
        "The store that segments are copied to: file:///, s3://, gs://, az://, hdfs:// or memory:///.",
        private=True,
    )
    state_dir: str | None = setting(
        "tierlog.state.dir",
        text("a path"),
        None,
        "Where tierlog keeps its own state; never a broker's log directory.",
    )
    metadata: MetadataKind = setting(  # noqa: RUF009 - a field, as all others
        "tierlog.metadata",
        one_of(MetadataKind),
        MetadataKind.SQLITE,
        "Where it is kept what was copied: in a file of the state directory, or in the topic "
        "__remote_log_metadata of the cluster (needs tierlog.bootstrap.servers).",
    )
    bootstrap_servers: str | None = setting(
        "tierlog.bootstrap.servers",
        servers(),
        None,
        "The broker to ask for leaders, last stable offsets and deleted topics.",
    )
    include_internal_topics: bool = setting(
        "tierlog.include.internal.topics",
        true_or_false(),
        False,
        "Copy Kafka's internal topics too (never KRaft's own log).",
    )
    include_compacted_topics: bool = setting(
        "tierlog.include.compacted.topics",
        true_or_false(),
        False,
        "Copy compacted topics too, although the cleaner may rewrite what was copied.",
    )
    topics: tuple[str, ...] = setting(
        "tierlog.topics",
        names(),
        (),
        "Copy these topics only; none given is all of them.",
    )
    cluster_id: str | None = setting(
        "tierlog.cluster.id",
        text("a cluster id"),
        None,
        "The cluster that the log directories belong to, where their meta.properties does not say "
        "it: brokers up to 2.3 do not write it.",
    )
    retention_ms: int = setting(
        "tierlog.retention.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        -1,
        "How long segments are kept in the store, by their newest record; -1 is for ever.",
    )
    retention_bytes: int = setting(
        "tierlog.retention.bytes",
        whole_number(1, MAX_INT64, or_off=-1),
        -1,
        "How many bytes of a partition are kept, what only the broker still has included; the "
        "oldest segments go first, and never so many that less is left. -1 is all of them.",
    )
    deleted_topic_retention_ms: int = setting(
        "tierlog.deleted.topic.retention.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        -1,
        "How long a topic's archive is kept once the cluster was found to have deleted the topic; "
        "-1 is for ever. Needs a broker to ask.",
    )
    store_check_interval_ms: int = setting(
        "tierlog.store.check.interval.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        3_600_000,
        "How often the listing of the store is compared with what was copied; what is missing is "
        "copied again while the broker still has it. -1 is never.",
    )
    copy_lag_ms: int = setting(
        "tierlog.copy.lag.ms",
        whole_number(0, MAX_INT64, or_off=-1),
        0,
        "How old a segment is before it is copied (KIP-1241); 0 is at once, -1 leaves it to the "
        "lag in bytes. Keep it well below what the broker keeps.",
        aliases=("remote.copy.lag.ms",),
        fallbacks=("log.remote.copy.lag.ms",),
    )
    copy_lag_bytes: int = setting(
        "tierlog.copy.lag.bytes",
        whole_number(0, MAX_INT64, or_off=-1),
        -1,
        "How many bytes of log follow a segment before it is copied (KIP-1241), whatever its "
        "age; 0 is at once, -1 leaves it to the lag in time. Counts only where that is not 0.",
        aliases=("remote.copy.lag.bytes",),
        fallbacks=("log.remote.copy.lag.bytes",),
    )
    copy_disable: bool = setting(
        "remote.log.copy.disable",
        true_or_false(),
        False,
        "Pause all copies; retention and look-ups go on.",
    )
    metrics_listen: str | None = setting(
        "tierlog.metrics.listen",
        host_and_port(),
        None,
        "Where metrics are served over HTTP; nowhere if not given.",
    )
    close_timeout_ms: int = setting(
        "tierlog.close.timeout.ms",
        whole_number(0, MAX_INT32),
        20_000,
        "How long what is under way may take when the command is told to end; what is not done "
        "by then is taken back, or settled by the next run.",
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.copy_lag_ms == -1 and self.copy_lag_bytes == -1:
            raise ConfigError(
                "tierlog.copy.lag.ms and tierlog.copy.lag.bytes are both -1: each leaves it to "
                "the other, so nothing would ever be copied; give one of them a value"
            )
        if self.copy_lag_ms == 0 and self.copy_lag_bytes > 0:
            raise ConfigError(
                f"tierlog.copy.lag.bytes {self.copy_lag_bytes} has no effect while "
                "tierlog.copy.lag.ms is 0, which copies at once; give tierlog.copy.lag.ms too, "
                "-1 for the lag in bytes alone"
            )
