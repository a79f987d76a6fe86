"""``tierlog serve``: an archive for every Kafka client, or a node with topics of its own."""

from __future__ import annotations

import os
from typing import Any

import click

from tierlog.cli.settings import config_option, read_config, state_home
from tierlog.cli.support import log_format_option

__all__ = ["serve"]


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--data-dir",
    metavar="DIR",
    help="Be a node: clients create, write and delete topics, which are kept here.",
)
@click.option(
    "--store",
    "tierlog_store_url",
    metavar="URL",
    help="The store of a node, for topics with remote.storage.enable=true.",
)
@click.option(
    "--listen",
    "tierlog_serve_listen",
    metavar="HOST:PORT",
    help="Where clients connect.  [default: 127.0.0.1:9092]",
)
@click.option(
    "--allow-remote-clients",
    is_flag=True,
    help="Let other machines connect: each may read every topic, without a password.",
)
@click.option(
    "--state-dir",
    "tierlog_state_dir",
    metavar="DIR",
    help="Folder of consumer groups and committed offsets.  "
    "[default: one for these sources below ~/.local/state/tierlog]",
)
@log_format_option
@config_option("Settings: a broker's server.properties as it is.")
@click.option(
    "--metrics",
    "tierlog_metrics_listen",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus there, and /healthz.",
)
def serve(
    sources: tuple[str, ...],
    data_dir: str | None,
    allow_remote_clients: bool,
    config_file: str | None,
    log_format: str,
    **flags: Any,
) -> int:
    """Serve the topics of stores and log directories to Kafka clients, read only; or, with
    --data-dir, be a node that clients write to.

    A store and the log directories that are tiered to it are one log. Consumers need no change:
    they read archived topics as those of a broker. New segments and topics appear while it runs.

    \b
    tierlog serve s3://bucket/kafka
    tierlog serve s3://bucket/kafka /var/lib/kafka/data --listen 127.0.0.1:9092
    tierlog serve --data-dir ~/kafka --store s3://bucket/kafka
    """
    from tierlog.cli.serve_run import run_serve
    from tierlog.clock import SystemClock

    if bool(sources) is (data_dir is not None):
        raise click.UsageError("give either SOURCEs to read, or --data-dir for topics of its own")
    if data_dir is None and flags["tierlog_store_url"] is not None:
        raise click.UsageError("--store is for --data-dir; give the store to read as a SOURCE")
    given = {key.replace("_", "."): value for key, value in flags.items()}
    config = read_config(config_file, os.environ, given)
    return run_serve(
        config,
        sources,
        data_dir=data_dir,
        allow_remote_clients=allow_remote_clients,
        state_home=state_home(),
        clock=SystemClock(),
        log_format=log_format,
    )
