"""Creates an archive server from sources and settings."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.fetch.setup import open_fetcher
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.apis import supported_versions
from tierlog.node.archive.archive import Archive, open_archive
from tierlog.node.groups.service import GroupService, open_groups
from tierlog.node.node import Node
from tierlog.node.server import Server
from tierlog.reader.sources import Source

__all__ = ["serve_archive"]

_LOCAL_READ_THREADS = 8


@asynccontextmanager
async def serve_archive(
    sources: Sequence[Source],
    listener: socket.socket,
    *,
    config: Config | None = None,
    clock: Clock | None = None,
    metrics: RemoteLogMetrics | None = None,
    report: Callable[[str], object] = print,
) -> AsyncIterator[Server]:
    """Serve the topics of `sources` at `listener` until the context ends.

    ``metrics`` counts the fetches. ``report`` receives lines for the operator. Committed offsets
    are in the state directory of the settings; if it is not set, they are lost when the server
    ends. Raises the errors of `open_archive` and `GroupService`.
    """
    config, clock = config or Config(), clock or SystemClock()
    async with AsyncExitStack() as opened:
        _use_threads(opened)
        archive = await asyncio.to_thread(
            open_archive, sources, config=config, clock=clock, report=report
        )
        opened.push_async_callback(archive.close)
        groups = await asyncio.to_thread(_open_groups, opened, config, clock, report)
        opened.push_async_callback(groups.close)
        node = _make_node(archive, groups, config, clock, metrics, report)
        opened.push_async_callback(asyncio.to_thread, node.fetcher.close)
        server = Server(node, listener, report)
        opened.push_async_callback(server.close)
        archive.start()
        server.start()
        yield server


def _open_groups(
    opened: AsyncExitStack, config: Config, clock: Clock, report: Callable[[str], object]
) -> GroupService:
    state_dir = config.tier.state_dir
    if state_dir is None:
        state_dir = opened.enter_context(TemporaryDirectory(prefix="tierlog-serve-"))
    return open_groups(state_dir, config.group, clock, report)


def _make_node(
    archive: Archive,
    groups: GroupService,
    config: Config,
    clock: Clock,
    metrics: RemoteLogMetrics | None,
    report: Callable[[str], object],
) -> Node:
    fetcher = open_fetcher(
        archive,
        archive.storage,
        archive.metadata,
        config=config,
        metrics=metrics,
        clock=clock,
        report=report,
    )
    archive.on_change = fetcher.notify
    return Node(
        cluster=archive,
        fetcher=fetcher,
        groups=groups,
        config=config,
        clock=clock,
        versions=supported_versions(),
    )


def _use_threads(opened: AsyncExitStack) -> None:
    """Let threads of this server read local logs."""
    pool = ThreadPoolExecutor(_LOCAL_READ_THREADS, thread_name_prefix="tierlog-local")
    asyncio.get_running_loop().set_default_executor(pool)
    opened.callback(pool.shutdown, wait=False)
