"""Puts the parts of the fetch path together, as the settings say."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.metrics import RemoteLogMetrics
from tierlog.remote.index_cache import RemoteIndexCache
from tierlog.remote.metadata import RemoteLogMetadataManager
from tierlog.remote.storage import RemoteStorageManager
from tierlog.tiering.fetch.aborted import TransactionReader
from tierlog.tiering.fetch.fetcher import Fetcher
from tierlog.tiering.fetch.memory import FetchMemory
from tierlog.tiering.fetch.offsets import OffsetReader
from tierlog.tiering.fetch.pool import ReaderPool
from tierlog.tiering.fetch.quotas import FetchQuotas
from tierlog.tiering.fetch.remote import RemoteReader
from tierlog.tiering.fetch.types import FetchHost

if TYPE_CHECKING:
    from tierlog.tiering.fetch.positions import IndexFilesOf

__all__ = ["open_fetcher"]


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
) -> Fetcher:
    """A fetcher of `host`'s partitions, with threads, queue, memory, waits and quotas as `config`
    has them; all in force from the first fetch on.

    ``index_cache`` and ``index_files`` lead to positions without asking the store; the storage,
    the metadata and both of them stay the caller's. Close the fetcher before them.
    """
    settings, clock = config or Config(), clock or SystemClock()
    metrics = metrics or RemoteLogMetrics(clock)
    quotas = FetchQuotas(settings.quota, clock)
    memory = FetchMemory(settings.remote_log.fetch_memory_bytes, clock=clock)
    with ExitStack() as opened:
        remote = RemoteReader(
            storage,
            metadata,
            memory=memory,
            index_cache=index_cache,
            index_files=index_files,
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
        metrics.watch_pool("reader", pool)
        metrics.watch_quota("fetch", quotas.broker)
        metrics.watch_read_ahead(remote)
        metrics.count_clients(settings.remote_log.metrics_max_clients)
        if index_cache is not None:
            metrics.watch_index_cache(index_cache)
        return Fetcher(
            host,
            remote,
            pool=pool,
            quotas=quotas,
            transactions=TransactionReader(storage, metadata, index_cache=index_cache),
            offsets=OffsetReader(remote, metadata, index_cache=index_cache),
            metrics=metrics,
            max_remote_wait_ms=settings.remote_log.fetch_max_wait_ms,
            on_close=opened.pop_all().close,
            clock=clock,
        )
