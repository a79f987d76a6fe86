"""``tierlog tier``: arguments and settings. What it then does is in `tier_run`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from tierlog.cli.settings import config_option, read_config, state_home
from tierlog.cli.support import (
    FORMATS,
    Parsed,
    duration_or_off,
    format_option,
    heads,
    interval_value,
    log_format_option,
    size_or_off,
    size_value,
)

if TYPE_CHECKING:
    from tierlog.config import Config

__all__ = ["tier"]


@click.command()
@click.argument("log_dirs", nargs=-1, metavar="[LOGDIR]...")
@click.option("--to", "tierlog_store_url", metavar="URL", help="The store to copy to.")
@click.option("--once", is_flag=True, help="One pass; else it goes on until interrupted.")
@click.option("--dry-run", is_flag=True, help="One pass that checks everything, changes nothing.")
@click.option(
    "--repair",
    is_flag=True,
    help="Compare every byte in the store first; mend or copy again what is missing or damaged.",
)
@config_option("Settings: a broker's server.properties as it is, its log.dirs for LOGDIRs.")
@click.option(
    "--interval",
    "remote_log_manager_task_interval_ms",
    type=Parsed("seconds", interval_value),
    metavar="SECONDS",
    help="Time between two looks at everything: 30, 0.5 or 5m.  [default: 30]",
)
@click.option(
    "--state-dir",
    "tierlog_state_dir",
    metavar="DIR",
    help="Where to remember what was copied, one for each store.  "
    "[default: a folder named after the store in $XDG_STATE_HOME/tierlog, or else in "
    "~/.local/state/tierlog]",
)
@click.option(
    "--metadata",
    "tierlog_metadata",
    type=click.Choice(("sqlite", "topic")),
    help="Keep what was copied in the state directory, or in the cluster's metadata topic.  "
    "[default: sqlite]",
)
@click.option(
    "--bootstrap",
    "tierlog_bootstrap_servers",
    metavar="HOST:PORT",
    help="The broker to ask what may be copied.",
)
@click.option(
    "--zookeeper",
    "tierlog_zookeeper_connect",
    metavar="HOST:PORT",
    help="Follow the broker's copy quota in ZooKeeper, for clusters up to 3.9.",
)
@click.option(
    "--cluster-id",
    "tierlog_cluster_id",
    metavar="ID",
    help="The cluster of LOGDIRs whose meta.properties does not say it (brokers up to 2.3).",
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic, or these.")
@click.option(
    "--retention-ms",
    "tierlog_retention_ms",
    type=Parsed("duration", duration_or_off),
    metavar="TIME",
    help="Delete from the store what is older: 7d, 36h or 500ms; -1 never does.",
)
@click.option(
    "--retention-bytes",
    "tierlog_retention_bytes",
    type=Parsed("size", size_or_off),
    metavar="BYTES",
    help="Keep so much of each partition: 50GiB, 500M or bytes; -1 keeps all.",
)
@click.option(
    "--allow-deletion",
    is_flag=True,
    help="Let this one pass delete most of the archive, or all of a partition's.",
)
@click.option(
    "--copy-quota",
    "remote_log_manager_copy_max_bytes_per_second",
    type=Parsed("size", size_value),
    metavar="BYTES",
    help="Maximum bytes per second: 10485760, 10M or 10MiB.",
)
@click.option(
    "--copy-quota-mode",
    "tierlog_copy_quota_mode",
    type=click.Choice(("check", "reserve", "pace")),
    help="Wait before a segment while the rate is above the quota; reserve the segment's bytes "
    "first; or reserve each piece of it.  [default: check]",
)
@click.option(
    "--metrics",
    "tierlog_metrics_listen",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus there.",
)
@click.option(
    "--include-compacted",
    "tierlog_include_compacted_topics",
    is_flag=True,
    help="Compacted topics too.",
)
@click.option(
    "--include-internal",
    "tierlog_include_internal_topics",
    is_flag=True,
    help="Kafka's internal topics too.",
)
@log_format_option
@format_option(*FORMATS)
def tier(
    log_dirs: tuple[str, ...],
    once: bool,
    dry_run: bool,
    allow_deletion: bool,
    repair: bool,
    config_file: str | None,
    topics: tuple[str, ...],
    shown: str,
    log_format: str,
    **flags: Any,
) -> int:
    """Copy finished segments of a broker's LOGDIRs to a store, and keep on doing it.

    Strictly read only towards the broker, which may be running or stopped. Settings come from
    --config, TIERLOG_... variables and flags; the last wins. With --once the exit code is 1 if a
    segment was refused or could not be copied; the others are copied all the same.

    \b
    tierlog tier /data1/kafka /data2/kafka --to s3://bucket/kafka --bootstrap broker:9092
    tierlog tier /var/lib/kafka/data --to file:///mnt/archive --once --copy-quota 50MiB
    tierlog tier --config server.properties --to s3://bucket/kafka --retention-ms 365d
    """
    from tierlog.cli.tier_run import run_tier
    from tierlog.clock import SystemClock

    given = {key.replace("_", "."): _flag_text(value) for key, value in flags.items()}
    given["tierlog.topics"] = ",".join(topics) or None
    if allow_deletion:
        if not (once or dry_run):
            raise click.UsageError(
                "--allow-deletion is for one pass: give --once or --dry-run with it, and start "
                "without it afterwards"
            )
        given["tierlog.retention.max.deleted.ratio"] = "1"

    def read_settings() -> Config:
        return read_config(config_file, os.environ, given)

    return run_tier(
        read_settings(),
        log_dirs,
        once=once,
        dry_run=dry_run,
        repair=repair,
        state_home=state_home(),
        shown=shown,
        head=heads(),
        clock=SystemClock(),
        reload=None if config_file is None else read_settings,
        log_format=log_format,
    )


def _flag_text(value: Any) -> str | None:
    """A flag as a setting's text; None when it was not given."""
    if value is None or value is False:
        return None
    return str(value).lower() if value is True else str(value)
