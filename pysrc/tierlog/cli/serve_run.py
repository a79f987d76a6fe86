"""Runs ``tierlog serve``: one screen at the start, lines about trouble, an orderly end."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import click

from tierlog.cli.support import EXIT_INTERRUPTED, hint, of_extra
from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.log.files import printable
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.sources import Source, source_of
from tierlog.sidecar import default_state_dir
from tierlog.tools.output import human_size, iso_time
from tierlog.types import shown_url

__all__ = ["run_serve"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_serve(
    config: Config,
    sources: Sequence[str],
    *,
    allow_remote_clients: bool,
    state_home: str,
    clock: Clock,
) -> int:
    """Serve until a signal; return the exit code."""
    of_extra("kafka", "kafka.protocol")
    found = [source_of(one) for one in sources]
    if config.tier.state_dir is None:
        # In any order, the same sources have the same groups.
        state_dir = default_state_dir(state_home, "\n".join(sorted(one.location for one in found)))
        config = replace(config, tier=replace(config.tier, state_dir=state_dir))
    _raise_descriptor_limit()
    with ExitStack() as opened:
        metrics = RemoteLogMetrics(clock)
        metrics_url = _serve_metrics(config, metrics, opened)
        return asyncio.run(_serve(config, found, allow_remote_clients, clock, metrics, metrics_url))


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
    config: Config,
    sources: Sequence[Source],
    allow_remote_clients: bool,
    clock: Clock,
    metrics: RemoteLogMetrics,
    metrics_url: str | None,
) -> int:
    from tierlog.node.server import open_listener
    from tierlog.node.setup import serve_archive

    received: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, _end, received, number)
    host, _, port = config.node.listen.rpartition(":")
    listener = open_listener(host.strip("[]"), int(port), allow_remote_clients=allow_remote_clients)

    def report(text: str) -> None:
        hint(f"{iso_time(clock.now_ms())} {printable(text)}")

    async with serve_archive(
        sources, listener, config=config, clock=clock, metrics=metrics, report=report
    ) as server:
        _show_start(config, sources, server.address, server.topic_count, metrics_url)
        ended_by = await received
        report("closing")
    return EXIT_INTERRUPTED if ended_by == signal.SIGINT else 0


def _end(received: asyncio.Future[int], number: int) -> None:
    if received.done():
        # Once more ends it at once.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    else:
        received.set_result(number)


def _show_start(
    config: Config,
    sources: Sequence[Source],
    address: tuple[str, int],
    topic_count: int,
    metrics_url: str | None,
) -> None:
    """Print where to connect, where the data lies, and what is on."""
    bootstrap = (
        f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
    )
    quota = config.quota.fetch_max_bytes_per_second
    lines = [
        f"Serving {topic_count} topic{'' if topic_count == 1 else 's'}, read only.",
        "",
        f"  connect   bootstrap.servers={bootstrap}",
        *(
            f"  {'store' if one.is_store else 'logs':<9} {printable(shown_url(one.location))}"
            for one in sources
        ),
        f"  groups    in {printable(config.tier.state_dir or '')}",
        f"  quota     {'none' if quota is None else human_size(quota) + '/s from the store'}",
        f"  memory    {human_size(config.remote_log.fetch_memory_bytes)} for reads of the store",
        f"  metrics   {metrics_url or 'off (--metrics HOST:PORT)'}",
        "",
        f"  try       kcat -b {bootstrap} -L",
        "  stop      Ctrl-C",
    ]
    click.echo("\n".join(lines))
