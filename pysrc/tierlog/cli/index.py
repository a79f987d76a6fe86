"""``tierlog index rebuild``."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tierlog.cli.settings import config_option, read_config
from tierlog.cli.support import (
    EXIT_PROBLEMS,
    FORMATS,
    Parsed,
    Verbs,
    echo,
    format_option,
    of_extra,
    print_tables,
    size_value,
)

__all__ = ["index"]


@click.group(cls=Verbs)
def index() -> None:
    """Rebuild indexes from their logs."""


@index.command()
@click.argument("source")
@click.option("--to", "target", metavar="DIR", help="Folder for the index files.")
@click.option("--dry-run", is_flag=True, help="Scan and check all logs, but write nothing.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes.  [default: one for each CPU, or the number of Spark's slots]",
)
@click.option(
    "--spark",
    "master",
    metavar="MASTER",
    help="Rebuild on this Spark cluster instead of this machine.",
)
@click.option(
    "--ship",
    is_flag=True,
    help="With --spark: send tierlog to the workers, if they do not have it.",
)
@click.option(
    "--report", "report_dir", metavar="DIR", help="Also write the report as Parquet files."
)
@click.option(
    "--index-interval",
    "index_interval_bytes",
    type=Parsed("size", size_value),
    metavar="BYTES",
    help="The topics' index.interval.bytes. By default log.index.interval.bytes.  [default: 4096]",
)
@config_option("Settings of the nodes that use the indexes. The same settings give the same bytes.")
@format_option(*FORMATS)
def rebuild(
    source: str,
    target: str | None,
    dry_run: bool,
    jobs: int | None,
    master: str | None,
    ship: bool,
    report_dir: str | None,
    index_interval_bytes: int | None,
    config_file: str | None,
    shown: str,
) -> int:
    """Rebuild the indexes of SOURCE from its logs.

    For a log directory, all .index, .timeindex, .txnindex and .snapshot files are written into DIR,
    as Kafka's own recovery writes them. The log directory itself is never changed. For a store,
    missing and damaged .indexes objects are rebuilt, and valid ones are kept. With DIR, the remote
    index files that a node keeps for the store are written there.

    A damaged segment is reported and left out; the other segments are rebuilt, and the exit code is
    1. The command may be repeated and then continues where it ended.

    \b
    tierlog index rebuild /var/lib/kafka/data --to /mnt/indexes
    tierlog index rebuild s3://bucket/kafka --dry-run
    tierlog index rebuild s3://bucket/kafka --spark spark://master:7077
    """
    from tierlog.clock import SystemClock
    from tierlog.tools.progress import progress_on
    from tierlog.tools.rebuild.index import check_report, rebuild_index, rebuild_text

    if ship and master is None:
        raise click.UsageError("--ship goes with --spark")
    on_spark = None if master is None else of_extra("spark", "spark_udfs.rebuild")
    table = None if report_dir is None else of_extra("arrow", "tierlog.tools.rebuild.table")
    if report_dir is not None:
        check_report(report_dir, source)
    interval = None if index_interval_bytes is None else str(index_interval_bytes)
    config = read_config(config_file, os.environ, {"log.index.interval.bytes": interval})
    wanted: dict[str, Any] = {
        "now_ms": SystemClock().now_ms(),
        "target": target,
        "dry_run": dry_run,
        "index_interval_bytes": config.log.index_interval_bytes,
        "remote_index": config.remote_index,
    }
    with progress_on(sys.stderr, "rebuild") as progress:
        if on_spark is not None:
            report = on_spark.rebuild_on(
                master, source, slots=jobs, send_package=ship, progress=progress, **wanted
            )
        else:
            jobs = jobs or len(os.sched_getaffinity(0))
            report = rebuild_index(source, jobs=jobs, progress=progress, **wanted)
    if table is not None:
        table.write_report(
            report_dir,
            table.segment_table(table.report_outcomes(report)),
            table.finding_table(report.findings),
        )
    tables = report.tables()
    if shown in ("json", "yaml"):
        print_tables(tables, shown)
    else:
        print_tables(tables[1:2], shown)
        echo("\n".join(rebuild_text(report)))
    return 0 if report.ok else EXIT_PROBLEMS
