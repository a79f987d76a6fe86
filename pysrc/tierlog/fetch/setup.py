"""Builds a `Fetcher` from the settings."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack

from tierlog.arguments import (
    FUNCTION,
    FUNCTION_OR_WORD,
    having,
    instance_of,
    optional,
    takes,
)
from tierlog.clock import Clock, SystemClock
from tierlog.config import Config, RemoteIndexConfig
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.offsets import OffsetReader
from tierlog.fetch.pool import ReaderPool
from tierlog.fetch.quotas import FetchQuotas
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.gaps import OnGap
from tierlog.reader.memory import FetchMemory
from tierlog.reader.positions import IndexFilesOf
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import FetchHost
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.index_files.lookups import index_views
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.storage import RemoteStorageManager

__all__ = ["open_fetcher", "open_index_cache"]


@takes(
    host=having("a FetchHost", "view"),
    storage=having("a RemoteStorageManager", "copy_log_segment_data"),
    metadata=having("a RemoteLogMetadataManager", "list", "changes"),
    config=optional(instance_of("a Config", Config)),
    index_cache=optional(instance_of("a RemoteIndexCache", RemoteIndexCache)),
    index_files=optional(FUNCTION),
    metrics=optional(instance_of("RemoteLogMetrics", RemoteLogMetrics)),
    clock=optional(having("a Clock", "now_ms", "monotonic_ms")),
    on_gap=FUNCTION_OR_WORD,
    report=FUNCTION,
)
def open_fetcher(
    host: FetchHost,
    storage: RemoteStorageManager,
    metadata: RemoteLogMetadataManager,
    *,
    config: Config | None = None,
    index_cache: RemoteIndexCache | None = None,
    index_files: IndexFilesOf | None = None,
    metrics: RemoteLogMetrics | None = None,
    clock: Clock | None = None,
    on_gap: OnGap = "fail",
    report: Callable[[str], object] = lambda _: None,
) -> Fetcher:
    """Return a fetcher of `host`'s partitions. `config` sets threads, queue, memory, waits and
    quotas.

    Positions come from the remote index files in ``tierlog.remote.index.dir``, if there are any, or
    else from an index cache of the fetcher, in ``tierlog.remote.index.cache.dir`` or a temporary
    folder. ``index_cache`` or ``index_files`` replace these. Given indexes, the storage and the
    metadata belong to the caller. The caller closes them after the fetcher.

    If the tier lacks an offset that it should have, a fetch of this offset is answered with
    KAFKA_STORAGE_ERROR. With ``on_gap`` "skip", the answer has the records after the gap. The same
    holds if ``on_gap`` is a function, which is called with the error.

    ``report`` receives a line when a fetch is answered with UNKNOWN_SERVER_ERROR or
    KAFKA_STORAGE_ERROR, but at most one line a second.
    """
    settings, clock = config or Config(), clock or SystemClock()
    metrics = metrics or RemoteLogMetrics(clock)
    quotas = FetchQuotas(settings.quota, clock)
    max_decompressed_bytes = settings.log.batch_max_decompressed_bytes
    memory = FetchMemory(settings.remote_log.fetch_memory_bytes, clock=clock)
    index_files = index_files or index_views(settings.remote_index.dir)
    with ExitStack() as opened:
        if index_cache is None:
            index_cache = open_index_cache(storage, settings.remote_index, clock, opened)
        remote = RemoteBatchReader(
            storage,
            metadata,
            memory=memory,
            index_cache=index_cache,
            index_files=index_files,
            on_gap=on_gap,
            clock=clock,
        )
        opened.callback(remote.close)
        pool = ReaderPool(
            settings.remote_log.reader_threads,
            settings.remote_log.reader_max_pending_tasks,
            clock=clock,
        )
        opened.callback(pool.close)
        memory.on_shortage(pool.drop_late)
        metrics.count_clients(settings.remote_log.metrics_max_clients)
        _watch(metrics, pool, quotas, remote, index_cache)
        return Fetcher(
            host,
            remote,
            pool=pool,
            quotas=quotas,
            transactions=TransactionReader(storage, metadata, index_cache=index_cache),
            offsets=OffsetReader(remote, metadata, max_decompressed_bytes=max_decompressed_bytes),
            metrics=metrics,
            local_memory=FetchMemory(settings.remote_log.local_memory_bytes, clock=clock),
            max_remote_wait_ms=settings.remote_log.fetch_max_wait_ms,
            on_close=opened.pop_all().close,
            report=report,
            clock=clock,
        )


def _watch(
    metrics: RemoteLogMetrics,
    pool: ReaderPool,
    quotas: FetchQuotas,
    remote: RemoteBatchReader,
    index_cache: RemoteIndexCache,
) -> None:
    metrics.watch_pool("reader", pool)
    metrics.watch_quota("fetch", quotas.broker)
    metrics.watch_read_ahead(remote)
    metrics.watch_index_cache(index_cache)


def open_index_cache(
    storage: RemoteStorageManager, settings: RemoteIndexConfig, clock: Clock, opened: ExitStack
) -> RemoteIndexCache:
    """Open the index cache of the settings and start its sweeper. `opened` closes the cache."""
    directory = settings.cache_dir
    if directory is None:
        directory = tempfile.mkdtemp(prefix="tierlog-indexes-")
        opened.callback(shutil.rmtree, directory, ignore_errors=True)
    cache = RemoteIndexCache(
        storage,
        directory,
        total_size_bytes=settings.file_cache_total_size_bytes,
        ttl_ms=settings.file_cache_ttl_ms,
        clock=clock,
    )
    opened.callback(cache.close)
    return cache.start()
