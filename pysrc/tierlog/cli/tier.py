"""``tierlog tier``: arguments and settings. `tier_run` runs the command."""

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
@click.option(
    "--once",
    is_flag=True,
    help="Make one pass. Without this flag, the command runs until it is interrupted.",
)
@click.option(
    "--dry-run", is_flag=True, help="Make one pass that checks everything and changes nothing."
)
@click.option(
    "--repair",
    is_flag=True,
    help="First compare every byte in the store; mend or copy again missing and damaged segments.",
)
@config_option(
    "Settings: a broker's unchanged server.properties. Its log.dirs are the default for LOGDIRs."
)
@click.option(
    "--interval",
    "remote_log_manager_task_interval_ms",
    type=Parsed("seconds", interval_value),
    metavar="SECONDS",
    help="Time between two passes over all partitions: 30, 0.5 or 5m.  [default: 30]",
)
@click.option(
    "--state-dir",
    "tierlog_state_dir",
    metavar="DIR",
    help="Folder for the metadata of copied segments; each store needs one.  [default: a folder "
    "named after the store in $XDG_STATE_HOME/tierlog, or else in ~/.local/state/tierlog]",
)
@click.option(
    "--metadata",
    "tierlog_metadata",
    type=click.Choice(("sqlite", "topic")),
    help="Where to keep the metadata of copied segments: in the state directory, or in the "
    "cluster's topic.  [default: sqlite]",
)
@click.option(
    "--bootstrap",
    "tierlog_bootstrap_servers",
    metavar="HOST:PORT",
    help="The broker to ask for leaders and last stable offsets.",
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
    help="Cluster id for LOGDIRs whose meta.properties has none (brokers up to 2.3).",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Copy only this topic; may be repeated.",
)
@click.option(
    "--retention-ms",
    "tierlog_retention_ms",
    type=Parsed("duration", duration_or_off),
    metavar="TIME",
    help="Delete older segments from the store: 7d, 36h or 500ms; -1 keeps all.",
)
@click.option(
    "--retention-bytes",
    "tierlog_retention_bytes",
    type=Parsed("size", size_or_off),
    metavar="BYTES",
    help="Bytes to keep of each partition: 50GiB, 500M or a number; -1 keeps all.",
)
@click.option(
    "--allow-deletion",
    is_flag=True,
    help="Let this one pass delete most of the archive, or all segments of a partition.",
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
    help="check: wait before a segment while the rate is above the quota; reserve: reserve the "
    "segment's bytes first; pace: reserve each chunk of it.  [default: check]",
)
@click.option(
    "--metrics",
    "tierlog_metrics_listen",
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus at this address.",
)
@click.option(
    "--include-compacted",
    "tierlog_include_compacted_topics",
    is_flag=True,
    help="Also copy compacted topics.",
)
@click.option(
    "--include-internal",
    "tierlog_include_internal_topics",
    is_flag=True,
    help="Also copy Kafka's internal topics.",
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
    """Copy finished segments of a broker's LOGDIRs to a store, continuously or once.

    The command only reads the LOGDIRs; the broker may be running or stopped. Settings come from
    --config, TIERLOG_... variables and flags; variables override the file, and flags override both.
    With --once, the exit code is 1 if a segment was refused or could not be copied; the other
    segments are copied nevertheless.

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
    """Return a flag's value as the text of a setting; None when the flag was not given."""
    if value is None or value is False:
        return None
    return str(value).lower() if value is True else str(value)
