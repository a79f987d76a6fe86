"""Creates a node with its own topics from a data directory, a store and settings."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.errors import TierlogError
from tierlog.fetch.setup import open_fetcher, open_index_cache
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.apis import supported_versions
from tierlog.node.groups.service import open_groups
from tierlog.node.local.cluster import STATE, LocalCluster
from tierlog.node.node import Node
from tierlog.node.server import Server
from tierlog.node.transactions.service import TransactionService
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.store.object_store import ObjectStore

__all__ = ["serve_node"]

_THREADS = 16
# Interval at which rolled segments are synced, retention is applied, checkpoints are written, and
# logs are compacted.
_UPKEEP_S = 5.0


@asynccontextmanager
async def serve_node(
    data_dir: str,
    listener: socket.socket,
    *,
    store: ObjectStore | str | None = None,
    config: Config | None = None,
    clock: Clock | None = None,
    metrics: RemoteLogMetrics | None = None,
    report: Callable[[str], object] = print,
) -> AsyncIterator[Server]:
    """Serve the topics in `data_dir` at `listener` until the context ends. Clients may create,
    write and delete topics. Committed offsets are in the state directory of the settings or, if it
    is not set, in ``state`` of `data_dir`. Raises the errors of `LocalCluster` and
    `open_groups`."""
    static, clock = config or Config(), clock or SystemClock()
    metrics = metrics or RemoteLogMetrics(clock)
    async with AsyncExitStack() as opened:
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tierlog-node")
        asyncio.get_running_loop().set_default_executor(pool)
        opened.callback(pool.shutdown)
        cluster = await asyncio.to_thread(
            lambda: LocalCluster(
                data_dir, store, config=static, clock=clock, metrics=metrics, report=report
            )
        )
        opened.push_async_callback(asyncio.to_thread, cluster.close)
        config = cluster.settings.config
        state_dir = config.tier.state_dir or os.path.join(data_dir, STATE)
        groups = await asyncio.to_thread(open_groups, state_dir, config.group, clock, report)
        opened.push_async_callback(groups.close)
        indexes = opened.enter_context(ExitStack())
        index_cache = open_index_cache(cluster.tier.storage, config.remote_index, clock, indexes)
        transactions = TransactionService(cluster, groups, config.transaction, clock, report)
        fetcher = open_fetcher(
            cluster,
            cluster.tier.storage,
            cluster.tier.metadata,
            config=config,
            index_cache=index_cache,
            metrics=metrics,
            clock=clock,
            report=report,
        )
        opened.push_async_callback(asyncio.to_thread, fetcher.close)
        cluster.on_append = fetcher.notify
        fetcher.view_at_once = cluster.view_at_once
        node = Node(
            cluster=cluster,
            fetcher=fetcher,
            groups=groups,
            local=cluster,
            transactions=transactions,
            config=config,
            clock=clock,
            versions=supported_versions(),
        )
        cluster.on_config = partial(_apply, node, index_cache)
        for name, work in (("upkeep", cluster.keep_up), ("compaction", cluster.compact)):
            task = asyncio.create_task(_repeat(name, work, report), name=f"tierlog-{name}")
            opened.push_async_callback(_end, task)
        server = Server(node, listener, report)
        opened.push_async_callback(server.close)
        groups.start()
        await transactions.start()
        server.start()
        yield server


def _apply(node: Node, index_cache: RemoteIndexCache, config: Config) -> None:
    """Apply the settings that may change while the node runs. The settings of tiering were applied
    before."""
    node.config = config
    quota, fetcher = config.quota, node.fetcher
    fetcher.quotas.broker.set_limit(quota.fetch_max_bytes_per_second)
    fetcher.quotas.set_topic_limit(None, quota.fetch_topic_max_bytes_per_second)
    fetcher.quotas.set_client_limit(None, quota.fetch_client_max_bytes_per_second)
    fetcher.max_remote_wait_ms = config.remote_log.fetch_max_wait_ms
    fetcher.resize(config.remote_log.reader_threads)
    index_cache.resize(config.remote_index.file_cache_total_size_bytes)
    index_cache.set_ttl(config.remote_index.file_cache_ttl_ms)


async def _repeat(name: str, work: Callable[[], None], report: Callable[[str], object]) -> None:
    while True:
        await asyncio.sleep(_UPKEEP_S)
        try:
            await asyncio.to_thread(work)
        except (TierlogError, OSError) as error:
            report(f"{name}: {error}")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
