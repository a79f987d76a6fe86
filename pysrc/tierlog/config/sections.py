"""The settings, in one frozen dataclass (section) for each part of tierlog.

A field is named like its property, with underscores instead of dots and without the words that the
section's name implies. Each field has its ``Setting``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tierlog.config.kinds import (
    MAX_INT32,
    MAX_INT64,
    ConfigType,
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
    zookeeper_servers,
)
from tierlog.errors import ConfigError

__all__ = [
    "LogConfig",
    "NodeConfig",
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
    """Base class of the sections. The values are checked when an object of a section is
    constructed."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, its_setting in settings(type(self)):
            its_setting.check(getattr(self, name))


class QuotaRateMode(StrEnum):
    """How a rate is measured."""

    WINDOW = "window"
    ELAPSED = "elapsed"


class QuotaMode(StrEnum):
    """How a quota is enforced.

    CHECK follows KIP-956: a copy of a segment or a ranged read starts while the rate is not above
    the quota, and its bytes count when it is done. RESERVE counts the bytes before the copy or read
    starts. PACE reserves the bytes of each chunk of a segment, so that the copy proceeds at an even
    rate.
    """

    CHECK = "check"
    RESERVE = "reserve"
    PACE = "pace"


# Above these limits, a sensor would keep more samples than are useful.
_MAX_SAMPLES = 3_600
_MAX_SAMPLE_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaConfig(Section):
    """Bytes per second to and from the remote tier (KIP-956).

    Every `tierlog.QuotaManager` applies the settings that it gets. `tierlog tier` applies the copy
    quota. The flags `--copy-quota` and `--copy-quota-mode` of `tierlog tier` also set the copy
    quota.
    """

    copy_max_bytes_per_second: int | None = setting(
        "remote.log.manager.copy.max.bytes.per.second",
        rate(),
        None,
        "Most bytes per second copied to the remote tier.",
        aliases=("remote.log.manager.write.quota.default",),
        dynamic=True,
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
        dynamic=True,
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
        "Most bytes per second read from the remote tier for any one topic, within the limit for "
        "all.",
        dynamic=True,
    )
    fetch_topic_max_bytes_per_second_overrides: tuple[tuple[str, int | None], ...] = setting(
        "tierlog.fetch.topic.max.bytes.per.second.overrides",
        rates_by_name(),
        (),
        "Limits for single topics, which replace the limit for each topic: "
        "`orders=1048576,payments=262144`.",
    )
    fetch_client_max_bytes_per_second: int | None = setting(
        "tierlog.fetch.client.max.bytes.per.second",
        rate(),
        None,
        "Most bytes per second read from the remote tier by any one client id, within the limit "
        "for all.",
        dynamic=True,
    )
    fetch_client_max_bytes_per_second_overrides: tuple[tuple[str, int | None], ...] = setting(
        "tierlog.fetch.client.max.bytes.per.second.overrides",
        rates_by_name(),
        (),
        "Limits for single client ids, which replace the limit for each client id: "
        "`reports=1048576,audit=262144`.",
    )
    copy_quota_mode: QuotaMode = setting(  # noqa: RUF009 - a field, as all others
        "tierlog.copy.quota.mode",
        one_of(QuotaMode),
        QuotaMode.CHECK,
        "How the copy quota is applied: check the rate before a segment and count it afterwards "
        "(KIP-956), reserve the segment's bytes first, or reserve each of its chunks.",
    )
    fetch_quota_mode: QuotaMode = setting(  # noqa: RUF009 - a field, as all others
        "tierlog.fetch.quota.mode",
        one_of(QuotaMode),
        QuotaMode.CHECK,
        "How the fetch quota is applied to ranged reads; see tierlog.copy.quota.mode. A ranged "
        "read is one chunk, so pace equals reserve. In every mode, the bytes count when the store "
        "is asked.",
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

    Every `RemoteLogManager` applies these settings, and so does `tierlog tier`; its `--interval` is
    the task interval in seconds. The settings for reading apply to every `Fetcher`. The settings
    for threads and memory also apply to `tierlog.read` and `tierlog cat`, but these use at most 8
    threads and 96 MiB each.
    """

    manager_task_interval_ms: int = setting(
        "remote.log.manager.task.interval.ms",
        whole_number(1, MAX_INT64),
        30_000,
        "Pause between the end of a task's run and its next run.",
    )
    manager_copier_thread_pool_size: int = setting(
        "remote.log.manager.copier.thread.pool.size",
        whole_number(1, MAX_INT32),
        10,
        "Threads that copy segments.",
        dynamic=True,
    )
    manager_expiration_thread_pool_size: int = setting(
        "remote.log.manager.expiration.thread.pool.size",
        whole_number(1, MAX_INT32),
        10,
        "Threads that delete expired segments.",
        dynamic=True,
    )
    manager_follower_thread_pool_size: int = setting(
        "remote.log.manager.follower.thread.pool.size",
        whole_number(1, MAX_INT32),
        2,
        "Threads for partitions that another node leads.",
        fallbacks=("remote.log.manager.thread.pool.size",),
        dynamic=True,
    )
    manager_task_retry_backoff_ms: int = setting(
        "remote.log.manager.task.retry.backoff.ms",
        whole_number(1, MAX_INT64),
        500,
        "Pause after a task's first failure; it doubles with each further failure.",
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
        "Largest random change of the pause after a failure, as a fraction of the pause.",
    )
    retention_max_deleted_ratio: float = setting(
        "tierlog.retention.max.deleted.ratio",
        decimal(0, 1),
        0.5,
        "Largest fraction of an archive's bytes that retention deletes in one pass over all "
        "partitions. A pass that would delete more, or all archived segments of a partition, "
        "deletes nothing and reports that. 1 allows everything.",
        dynamic=True,
    )
    reader_threads: int = setting(
        "remote.log.reader.threads",
        whole_number(1, MAX_INT32),
        10,
        "Threads that read from the remote tier.",
        dynamic=True,
    )
    reader_max_pending_tasks: int = setting(
        "remote.log.reader.max.pending.tasks",
        whole_number(1, MAX_INT32),
        100,
        "Reads that may wait for a thread; further reads are refused.",
    )
    fetch_max_wait_ms: int = setting(
        "remote.fetch.max.wait.ms",
        whole_number(1, MAX_INT32),
        500,
        "How long a fetch waits for the remote tier. After this time it is answered with the "
        "records that have arrived.",
        dynamic=True,
    )
    fetch_memory_bytes: int = setting(
        "tierlog.fetch.memory.bytes",
        whole_number(1, MAX_INT64),
        256 << 20,
        "Most bytes that all reads of the remote tier hold at a time, including read-ahead.",
    )
    local_memory_bytes: int = setting(
        "tierlog.fetch.local.memory.bytes",
        whole_number(1, MAX_INT64),
        256 << 20,
        "Most bytes of local logs that answers hold until clients have received them. While this "
        "limit is reached, a fetch waits up to its own time limit, and is then answered without "
        "records.",
    )
    metrics_max_clients: int = setting(
        "tierlog.metrics.max.clients",
        whole_number(0, 10_000),
        0,
        "Number of client ids that get their own metric of bytes read from the remote tier; with "
        "0, no client id gets one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexConfig(Section):
    """Indexes of remote segments and their cache.

    Every `Fetcher` keeps the indexes of the segments that it reads in a cache of files.
    `tierlog.read` and `tierlog cat` keep a few indexes in memory, and only during one call.
    """

    file_cache_total_size_bytes: int = setting(
        "remote.log.index.file.cache.total.size.bytes",
        whole_number(1, MAX_INT64),
        1 << 30,
        "Most bytes of indexes in the cache. The least recently used index is evicted first.",
        dynamic=True,
    )
    file_cache_ttl_ms: int = setting(
        "remote.log.index.file.cache.ttl.ms",
        whole_number(0, MAX_INT64, or_off=-1),
        900_000,
        "How long an index is kept after its last use; -1 and 0 disable the expiration.",
        dynamic=True,
    )
    interval_bytes: int = setting(
        "tierlog.remote.index.interval.bytes",
        whole_number(1, MAX_INT32),
        256 << 10,
        "Least number of bytes of log that a remoteLogIndex entry covers. The last entry of a "
        "segment may cover fewer bytes.",
    )
    cache_dir: str | None = setting(
        "tierlog.remote.index.cache.dir",
        text("a path"),
        None,
        "Folder of a `Fetcher`'s cache of index files. The next run reuses the files. None means a "
        "temporary folder.",
    )
    dir: str | None = setting(
        "tierlog.remote.index.dir",
        text("a path"),
        None,
        "Folder of the remote index files of partitions. `tierlog tier` and every "
        "`RemoteLogManager` write them; `tierlog cat`, `tierlog.read` and every `Fetcher` look up "
        "offsets and times in them. None: no such files are written or read.",
    )
    rotate_bytes: int = setting(
        "tierlog.remote.index.rotate.bytes",
        whole_number(1, 1 << 30),
        16 << 20,
        "Size at which a new remoteLogIndex file of a partition is started. All entries of a "
        "segment are in one file.",
    )
    rotate_ms: int = setting(
        "tierlog.remote.index.rotate.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        604_800_000,
        "Time span of the records' timestamps after which a new remoteLogIndex file is started; -1 "
        "is unlimited.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig(Section):
    """Storage and metadata managers of other packages (KIP-405).

    The name of a manager is the name of an entry point, or `module:Class`
    ([PLUGINS.md](PLUGINS.md)). A name with dots and without a colon is a Java class of the broker,
    so it is ignored. `tierlog tier`, `tierlog cat` and `tierlog.read` apply these settings.
    """

    storage_manager_class_name: str | None = setting(
        "remote.log.storage.manager.class.name",
        text("module:Class, or an entry point of the group tierlog.storage_managers"),
        None,
        "Manager that stores segments and returns them. With none, segments are in the store of "
        "the URL.",
    )
    storage_manager_impl_prefix: str = setting(
        "remote.log.storage.manager.impl.prefix",
        text("the beginning of a key"),
        "rsm.config.",
        "Keys with this prefix are given to that manager, which gets them without the prefix.",
    )
    metadata_manager_class_name: str | None = setting(
        "remote.log.metadata.manager.class.name",
        text("module:Class, or an entry point of the group tierlog.metadata_managers"),
        None,
        "Manager that keeps the metadata of segments. With none, `tierlog tier` keeps the metadata "
        "in its state directory, and readers find it in the objects of the store.",
    )
    metadata_manager_impl_prefix: str = setting(
        "remote.log.metadata.manager.impl.prefix",
        text("the beginning of a key"),
        "rlmm.config.",
        "Keys with this prefix are given to that manager, which gets them without the prefix.",
    )
    custom_metadata_max_bytes: int = setting(
        "remote.log.metadata.custom.metadata.max.bytes",
        whole_number(0, MAX_INT32),
        128,
        "Most bytes of custom metadata that a storage manager may return for a segment. The copy "
        "of a segment with more bytes fails and is removed.",
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
        "Bytes of log between two entries of an offset index that tierlog builds. `tierlog tier` "
        "and `tierlog index rebuild` build such indexes.",
        aliases=("index.interval.bytes",),
    )
    cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        whole_number(1024, MAX_INT64),
        128 << 20,
        "Most memory that compaction takes for the keys of a log, in a node with topics of its "
        "own. A log with more keys is compacted in several rounds.",
        dynamic=True,
    )
    segment_bytes: int = setting(
        "log.segment.bytes",
        whole_number(14, MAX_INT32),
        1 << 30,
        "Size at which the broker rolls a segment. When `tierlog tier` starts, it warns if the "
        "copy quota allows fewer bytes in a whole window.",
        aliases=("segment.bytes",),
    )
    batch_max_decompressed_bytes: int = setting(
        "tierlog.batch.max.decompressed.bytes",
        whole_number(1, MAX_INT64),
        64 << 20,
        "Most bytes that one batch may have after decompression. Its records may take twice as "
        "many bytes as columns. `tierlog cat`, `tierlog verify --deep`, `tierlog.read` and Spark "
        "(the option of this name) refuse a larger batch.",
    )


class MetadataKind(StrEnum):
    """Where a sidecar (`tierlog tier`) keeps the metadata of the segments in the store."""

    SQLITE = "sqlite"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig(Section):
    """What `tierlog tier` copies, to which store, and how long the store keeps it.

    The retention settings of `tierlog.retention.*` apply only to the archive. A broker's
    `log.retention.*` and its topics' `retention.*` say how long the broker keeps its own copy, and
    never apply to the archive.
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
        "Folder of tierlog's own state. It must not be a broker's log directory.",
    )
    metadata: MetadataKind = setting(  # noqa: RUF009 - a field, as all others
        "tierlog.metadata",
        one_of(MetadataKind),
        MetadataKind.SQLITE,
        "Where the metadata of copied segments is kept: in a file of the state directory, or in "
        "the cluster's topic __remote_log_metadata (needs tierlog.bootstrap.servers).",
    )
    bootstrap_servers: str | None = setting(
        "tierlog.bootstrap.servers",
        servers(),
        None,
        "The broker to ask for leaders, last stable offsets and deleted topics.",
    )
    zookeeper_connect: str | None = setting(
        "tierlog.zookeeper.connect",
        zookeeper_servers(),
        None,
        "Servers of ZooKeeper, where a cluster of Kafka up to 3.9 keeps dynamic settings. When the "
        "broker's copy quota changes there, tierlog applies the new value at once.",
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
        "Copy only these topics. With no name, all topics are copied.",
    )
    cluster_id: str | None = setting(
        "tierlog.cluster.id",
        text("a cluster id"),
        None,
        "Cluster id for log directories whose meta.properties has none. Brokers up to 2.3 do not "
        "write it.",
    )
    retention_ms: int = setting(
        "tierlog.retention.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        -1,
        "How long the store keeps a segment, measured from its newest record; -1 keeps it for "
        "ever.",
    )
    retention_bytes: int = setting(
        "tierlog.retention.bytes",
        whole_number(1, MAX_INT64, or_off=-1),
        -1,
        "Bytes of a partition to keep, including bytes that only the broker has. The oldest "
        "segments are deleted first, and at least this many bytes are kept. -1 keeps all.",
    )
    deleted_topic_retention_ms: int = setting(
        "tierlog.deleted.topic.retention.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        -1,
        "How long a topic's archive is kept after tierlog has noticed that the topic was deleted; "
        "-1 keeps it for ever. Needs tierlog.bootstrap.servers.",
    )
    store_check_interval_ms: int = setting(
        "tierlog.store.check.interval.ms",
        whole_number(1, MAX_INT64, or_off=-1),
        3_600_000,
        "How often the listing of the store is compared with the metadata of copied segments. "
        "Missing segments are copied again while the broker has them. -1 disables the comparison.",
    )
    copy_lag_ms: int = setting(
        "tierlog.copy.lag.ms",
        whole_number(0, MAX_INT64, or_off=-1),
        0,
        "Age at which a segment is copied (KIP-1241). With 0, it is copied at once; with -1, the "
        "lag in bytes decides. The value must be well below the broker's retention.",
        aliases=("remote.copy.lag.ms",),
        fallbacks=("log.remote.copy.lag.ms",),
    )
    copy_lag_bytes: int = setting(
        "tierlog.copy.lag.bytes",
        whole_number(0, MAX_INT64, or_off=-1),
        -1,
        "A segment of any age is copied when this many bytes of log follow it (KIP-1241). With 0, "
        "it is copied at once; with -1, the lag in time decides. The setting has an effect only if "
        "the lag in time is not 0.",
        aliases=("remote.copy.lag.bytes",),
        fallbacks=("log.remote.copy.lag.bytes",),
    )
    copy_disable: bool = setting(
        "remote.log.copy.disable",
        true_or_false(),
        False,
        "Pause all copies; retention and look-ups continue.",
    )
    metrics_listen: str | None = setting(
        "tierlog.metrics.listen",
        host_and_port(),
        None,
        "Address of the HTTP server for metrics. Without an address, there is no such server.",
    )
    close_timeout_ms: int = setting(
        "tierlog.close.timeout.ms",
        whole_number(0, MAX_INT32),
        20_000,
        "Time that active copies have to finish or roll back when the command is told to end. The "
        "next run finishes or rolls back the other copies.",
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.copy_lag_ms == -1 and self.copy_lag_bytes == -1:
            raise ConfigError(
                "tierlog.copy.lag.ms and tierlog.copy.lag.bytes are both -1: each leaves it to the "
                "other, so nothing would ever be copied; give one of them a value"
            )
        if self.copy_lag_ms == 0 and self.copy_lag_bytes > 0:
            raise ConfigError(
                f"tierlog.copy.lag.bytes {self.copy_lag_bytes} has no effect while "
                "tierlog.copy.lag.ms is 0, which copies at once; give tierlog.copy.lag.ms too, "
                "-1 for the lag in bytes alone"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(Section):
    """What `tierlog serve` allows its clients.

    Kafka has no limit for most of these. With these limits, a server stays within its memory,
    whatever its clients send.
    """

    listen: str = setting(
        "tierlog.serve.listen",
        host_and_port(),
        "127.0.0.1:9092",
        "Address at which clients connect. An address that other machines can reach needs "
        "`--allow-remote-clients`.",
    )
    request_max_bytes: int = setting(
        "socket.request.max.bytes",
        whole_number(1, MAX_INT32),
        16 << 20,
        "Size of the largest request. The connection of a larger request is closed.",
        kafka_default="104857600",
    )
    queued_max_request_bytes: int = setting(
        "queued.max.request.bytes",
        whole_number(1 << 20, MAX_INT64),
        64 << 20,
        "Most memory that the requests of all clients take; further requests wait in their "
        "sockets. Requests up to 16 KiB are not counted.",
        kafka_default="-1",
    )
    max_connections: int = setting(
        "max.connections",
        whole_number(1, MAX_INT32),
        1024,
        "Largest number of clients at a time. Further clients are disconnected at once.",
        kafka_default="2147483647",
        dynamic=True,
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        whole_number(1, MAX_INT32),
        1024,
        "Largest number of clients of one IP address at a time.",
        kafka_default="2147483647",
        dynamic=True,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        whole_number(1, MAX_INT64),
        600_000,
        "How long a client may send nothing before it is disconnected.",
    )
    connection_stall_ms: int = setting(
        "tierlog.serve.connection.stall.ms",
        whole_number(1, MAX_INT64),
        10_000,
        "A client is disconnected if it leaves a request unfinished for this time, or receives no "
        "byte of an answer for this time.",
    )
    refresh_interval_ms: int = setting(
        "tierlog.serve.refresh.interval.ms",
        whole_number(100, MAX_INT64),
        30_000,
        "Age at which the known topics of a store, and the known segments of the partitions that "
        "clients read, are listed again. Directories are listed twice a second.",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        whole_number(1024, MAX_INT32),
        57_671_680,
        "Most bytes of records in one answer, whatever a client requests. If the first batch is "
        "larger, it is returned nevertheless.",
    )
    list_offsets_request_timeout_ms: int = setting(
        "remote.list.offsets.request.timeout.ms",
        whole_number(1, MAX_INT32),
        30_000,
        "How long a search for an offset by time may take when the client sets no limit.",
        dynamic=True,
        config_type=ConfigType.LONG,
    )
