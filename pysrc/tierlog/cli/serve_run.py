"""Run ``tierlog serve``: print a summary at the start and lines about problems, until a signal ends
the server."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import click

from tierlog.cli.log_lines import LogLines
from tierlog.cli.settings import default_state_dir
from tierlog.cli.support import EXIT_INTERRUPTED
from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.log.files import printable
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.sources import Source, source_of
from tierlog.tools.output import human_size
from tierlog.types import shown_url

if TYPE_CHECKING:
    from tierlog.node.server import Server

__all__ = ["run_serve"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_serve(
    config: Config,
    sources: Sequence[str],
    *,
    data_dir: str | None,
    allow_remote_clients: bool,
    state_home: str,
    clock: Clock,
    log_format: str = "text",
) -> int:
    """Serve until a signal arrives; return the exit code."""
    found = [source_of(one) for one in sources]
    if config.tier.state_dir is None and data_dir is None:
        # The same sources use the same groups, whatever the order of the arguments.
        state_dir = default_state_dir(state_home, "\n".join(sorted(one.location for one in found)))
        config = replace(config, tier=replace(config.tier, state_dir=state_dir))
    _raise_descriptor_limit()
    with ExitStack() as opened:
        metrics = RemoteLogMetrics(clock)
        metrics_url = _serve_metrics(config, metrics, opened)
        served = _Served(config, found, data_dir)
        return asyncio.run(
            _serve(served, allow_remote_clients, clock, metrics, metrics_url, log_format)
        )


class _Served(NamedTuple):
    """What is served: either sources to read, or the data directory of a node."""

    config: Config
    sources: Sequence[Source]
    data_dir: str | None


def _raise_descriptor_limit() -> None:
    """Allow this process as many files and clients as its user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _serve_metrics(config: Config, metrics: RemoteLogMetrics, opened: ExitStack) -> str | None:
    address = config.tier.metrics_listen
    if address is None:
        return None
    from tierlog.metrics.server import start_metrics_server

    host, _, port = address.rpartition(":")
    server = start_metrics_server(metrics, host.strip("[]"), int(port))
    opened.callback(server.close)
    return server.url


async def _serve(
    served: _Served,
    allow_remote_clients: bool,
    clock: Clock,
    metrics: RemoteLogMetrics,
    metrics_url: str | None,
    log_format: str,
) -> int:
    from tierlog.node.server import open_listener

    config = served.config
    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, _end, received, number)
    host, _, port = config.node.listen.rpartition(":")
    listener = open_listener(host.strip("[]"), int(port), allow_remote_clients=allow_remote_clients)

    lines = LogLines(log_format, clock)

    def report(text: str) -> None:
        lines.warn("report", text)

    async with _open_server(served, listener, clock, metrics, report) as server:
        _show_start(served, server.address, server.topic_count, metrics_url)
        if log_format == "json":
            bootstrap = _host_and_port(server.address)
            lines.info("serving", "clients may connect", bootstrap_servers=bootstrap)
        ended_by = await received
        lines.info("closing", "closing")
    return EXIT_INTERRUPTED if ended_by == signal.SIGINT else 0


def _open_server(
    served: _Served,
    listener: socket.socket,
    clock: Clock,
    metrics: RemoteLogMetrics,
    report: Callable[[str], object],
) -> AbstractAsyncContextManager[Server]:
    if served.data_dir is None:
        from tierlog.node.setup import serve_archive

        return serve_archive(
            served.sources,
            listener,
            config=served.config,
            clock=clock,
            metrics=metrics,
            report=report,
        )
    from tierlog.node.local_setup import serve_node

    return serve_node(
        served.data_dir,
        listener,
        store=served.config.tier.store_url,
        config=served.config,
        clock=clock,
        metrics=metrics,
        report=report,
    )


def _end(received: asyncio.Future[int], number: int) -> None:
    if received.done():
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    else:
        received.set_result(number)


def _show_start(
    served: _Served,
    address: tuple[str, int],
    topic_count: int,
    metrics_url: str | None,
) -> None:
    """Print the address to connect to, the locations of the data, and the settings in use."""
    bootstrap = _host_and_port(address)
    config = served.config
    quota = config.quota.fetch_max_bytes_per_second
    lines = [
        f"Serving {topic_count} topic{'' if topic_count == 1 else 's'}"
        + (", read only." if served.data_dir is None else "; clients may create and write topics."),
        "",
        f"  connect   bootstrap.servers={bootstrap}",
        *(
            f"  {'store' if one.is_store else 'logs':<9} {printable(shown_url(one.location))}"
            for one in served.sources
        ),
        *_node_lines(served),
        *_group_lines(served),
        f"  reads     {_rate(quota)} from the store",
        f"  memory    {human_size(config.remote_log.fetch_memory_bytes)} for reads of the store",
        f"  metrics   {metrics_url or 'off (--metrics HOST:PORT)'}",
        "",
        f"  try       kcat -b {bootstrap} -L",
        "  stop      Ctrl-C",
    ]
    click.echo("\n".join(lines))


def _host_and_port(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _group_lines(served: _Served) -> list[str]:
    state_dir = served.config.tier.state_dir
    return [] if state_dir is None else [f"  groups    in {printable(state_dir)}"]


def _node_lines(served: _Served) -> list[str]:
    if served.data_dir is None:
        return []
    url, limit = served.config.tier.store_url, served.config.quota.copy_max_bytes_per_second
    return [
        f"  data      {printable(os.path.abspath(served.data_dir))}",
        f"  store     {'none (--store URL)' if url is None else printable(shown_url(url))}",
        *([] if url is None else [f"  copies    {_rate(limit)} to the store"]),
    ]


def _rate(limit: int | None) -> str:
    return "no limit" if limit is None else f"{human_size(limit)}/s"
