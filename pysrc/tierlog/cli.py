"""The ``tierlog`` command: arguments in, rows and exit codes out.

Data goes to stdout, progress and hints to stderr. Exit codes: 0 fine, 1 problems found, 2 wrong
usage, 130 interrupted, 141 nobody reads the output any more. Every verb is a function in
``tierlog.tools`` or ``tierlog.sidecar`` first; what is here translates. Modules that do the work
are imported by the verb that needs them, so that ``--help`` is there at once.

Only this module reads the environment and the clock for the verbs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from tierlog.errors import ConfigError, TierlogError

if TYPE_CHECKING:
    from tierlog.remote.bucket import Problem
    from tierlog.sidecar import TierRow
    from tierlog.tools.output import Table
    from tierlog.tools.record_format import Formatter

__all__ = ["main"]

_FORMATS = ("text", "wide", "json", "yaml")
_EXIT_PROBLEMS, _EXIT_USAGE, _EXIT_INTERRUPTED, _EXIT_BROKEN_PIPE = 1, 2, 130, 141
_DEBUG = "TIERLOG_DEBUG"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``args`` None: those of this process."""
    if not sys.stdout:
        # Closed by whoever started this.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - to the very end
    try:
        result = tierlog.main(args, prog_name="tierlog", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED
    except (_NobodyReadsError, BrokenPipeError):
        _forget_stdout()
        return _EXIT_BROKEN_PIPE
    except (TierlogError, OSError) as error:
        _show_error(error)
        return _EXIT_USAGE if isinstance(error, ConfigError) else _EXIT_PROBLEMS


class _NobodyReadsError(Exception):
    """Click would turn a broken pipe into exit code 1, which means that problems were found."""


class _Verbs(click.Group):
    """The verbs, in the order in which one gets to know them."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _NobodyReadsError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _show_error(error: TierlogError | OSError) -> None:
    if os.environ.get(_DEBUG, "") not in ("", "0"):
        traceback.print_exception(error)
        return
    click.echo(f"tierlog: {_one_line(error)}", err=True)


def _one_line(error: TierlogError | OSError) -> str:
    from tierlog.log.files import printable

    if isinstance(error, OSError) and error.filename is not None:
        return f"{printable(str(error.filename))}: {error.strerror}"
    return printable(" ".join(str(error).split()))


@contextmanager
def _to_stdout() -> Iterator[None]:
    """An error of stdout, a full disk behind it perhaps, names no file by itself."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def _echo(text: str) -> None:
    with _to_stdout():
        click.echo(text)


def _forget_stdout() -> None:
    """The interpreter flushes stdout when it ends; with nobody there that would complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def _of_extra(extra: str, module: str) -> Any:
    """A module that needs an extra, or lies outside of this package."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{error}: it comes with pip install 'tierlog[{extra}]'") from error


class _Parsed(click.ParamType[Any]):
    """An argument that a function of one string understands; its ValueError is wrong usage."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _size(text: str) -> int:
    from tierlog.tools.output import parse_size

    return parse_size(text)


def _size_or_off(text: str) -> int:
    return -1 if text == "-1" else _size(text)


def _duration_or_off(text: str) -> int:
    from tierlog.tools.durations import parse_duration

    return -1 if text == "-1" else parse_duration(text)


def _interval(text: str) -> int:
    from tierlog.tools.durations import parse_duration

    return parse_duration(text, "s")


def _topic(text: str) -> tuple[str, int | None]:
    from tierlog.tools.sources import parse_topic

    return parse_topic(text)


def _topic_partition(text: str) -> tuple[str, int]:
    from tierlog.tools.sources import parse_topic_partition

    return parse_topic_partition(text)


def _format_option(*formats: str) -> Callable[[Any], Any]:
    return click.option(
        "--format",
        "shown",
        type=click.Choice(formats),
        default="text",
        show_default=True,
        help="Tables for people (wide: every column) or one exact document.",
    )


def _print_tables(tables: Iterable[Table], shown: str) -> None:
    from tierlog.tools.output import Format, render

    _echo("\n".join(render(tables, Format(shown), _heads())))


def _heads() -> Callable[[str], str]:
    """How column heads are shown."""
    plain = os.environ.get("NO_COLOR")
    return str if plain else lambda head: click.style(head, bold=True)


def _hint(text: str) -> None:
    click.echo(text, err=True)


def _version() -> str:
    from importlib.metadata import version

    return version("tierlog")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        _echo(f"tierlog {_version()}")
        ctx.exit()


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A SOURCE is a broker's log directory or a store: file:///, s3://, gs://, az://, hdfs://.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def tierlog() -> None:
    """Tier Apache Kafka logs to object storage, and read them back without a broker."""


@tierlog.command()
@click.argument("source")
@click.argument("topic", required=False, type=_Parsed("topic", _topic), metavar="[TOPIC[:P]]")
@click.option("--segments", is_flag=True, help="List segments, as for one partition.")
@_format_option(*_FORMATS)
def ls(source: str, topic: tuple[str, int | None] | None, segments: bool, shown: str) -> None:
    """List the partitions of SOURCE, or the segments of one.

    \b
    tierlog ls /var/lib/kafka/data
    tierlog ls /var/lib/kafka/data orders:0 --format wide
    tierlog ls s3://bucket/kafka orders --segments
    """
    from tierlog.tools.ls import list_source
    from tierlog.tools.sources import source_of

    name, partition = topic or (None, None)
    listed = list_source(
        source_of(source),
        topic=name,
        partition=partition,
        segments=segments or partition is not None,
    )
    _print_tables(listed.tables(), shown)
    if not (listed.partitions or listed.segments):
        _hint("no partitions here")
    if shown == "text":
        _hint_at_left_out(len(listed.skipped), len(listed.problems))


def _hint_at_left_out(skipped: int, problems: int) -> None:
    if skipped:
        names = "1 name" if skipped == 1 else f"{skipped} names"
        _hint(f"{names} not read; --format wide says which and why")
    if problems:
        checkpoints = "1 checkpoint is" if problems == 1 else f"{problems} checkpoints are"
        _hint(f"{checkpoints} damaged; --format wide says where")


@tierlog.command()
@click.argument("source")
@click.argument("partition", type=_Parsed("partition", _topic_partition), metavar="TOPIC:PARTITION")
@click.option(
    "-o",
    "offsets",
    multiple=True,
    metavar="OFFSET",
    help="Where to start and stop: beginning, end, N, -N, N:M, s@ms, e@ms, @-2h:end, "
    "@2024-02-29T12:00:00Z:1h. Ends are not included. Default: all.",
)
@click.option("-c", "count", type=click.IntRange(min=0), metavar="N", help="At most N records.")
@click.option("-e", "say_end", is_flag=True, help="Say on stderr where the end was reached.")
@click.option("-f", "template", metavar="FORMAT", help="kcat's tokens: %k %s %S %o %T %h ...")
@click.option("-J", "as_json", is_flag=True, help="One JSON object a line, with kcat's keys.")
@click.option(
    "--store",
    metavar="URL",
    help="The store that SOURCE, a log directory, is tiered to: both are read as one log.",
)
@click.option(
    "--read-committed",
    "committed",
    is_flag=True,
    help="Leave out aborted transactions, and stop before the oldest one that has not ended.",
)
def cat(
    source: str,
    partition: tuple[str, int],
    offsets: tuple[str, ...],
    count: int | None,
    say_end: bool,
    template: str | None,
    as_json: bool,
    store: str | None,
    committed: bool,
) -> int:
    """Print the records of one partition of SOURCE.

    tierlog stops where the log ends and never waits for more. With -J, bytes that are not UTF-8
    are {"base64": "..."} instead of a string. A segment of a store that is damaged is left out and
    named, and the exit code is 1.

    \b
    tierlog cat /var/lib/kafka/data orders:0 -o -10
    tierlog cat s3://bucket/kafka orders:0 -o @-2h:end -J
    tierlog cat s3://bucket/kafka orders:0 -c 5 -f '%o %T %k=%s\\n'
    tierlog cat /var/lib/kafka/data orders:0 --store s3://bucket/kafka --read-committed
    """
    from tierlog.clock import SystemClock
    from tierlog.tools.cat import format_records, select_records
    from tierlog.tools.offsets import parse_offsets

    if as_json and template is not None:
        raise click.UsageError("-f and -J exclude each other")
    with _usage_errors("-o"):
        wanted = parse_offsets(offsets, SystemClock().now_ms())
    with _usage_errors("-f"):
        formatter = _formatter(as_json, template)
    topic, number = partition
    damaged: list[str] = []

    def left_out(problem: Problem) -> None:
        if problem.hides_segment and problem.key not in damaged:
            damaged.append(problem.key)
            _hint(f"left out: {problem}")

    location, store_url = _tiers(source, store)
    selection = select_records(
        location, topic, number, wanted, left_out, store=store_url, committed=committed
    )
    if selection.hint:
        _hint(selection.hint)
    out = sys.stdout.buffer
    for records in selection.records(count):
        for piece in format_records(records, topic, number, formatter):
            with _to_stdout():
                out.write(piece)
    with _to_stdout():
        out.flush()
    if say_end:
        _hint(f"reached the end of {topic}:{number} at offset {selection.end}")
    return _EXIT_PROBLEMS if damaged else 0


def _tiers(source: str, store: str | None) -> tuple[str, str | None]:
    """Where the records lie: one place, or a log directory and the store it is tiered to."""
    from tierlog.tools.sources import source_of

    first = source_of(source)
    if store is None:
        return first.location, None
    if first.is_store:
        raise click.BadParameter(f"{source} is a store itself", param_hint="--store")
    second = source_of(store)
    if not second.is_store:
        raise click.BadParameter(f"{store} is no store", param_hint="--store")
    return first.location, second.location


def _formatter(as_json: bool, template: str | None) -> Formatter:
    from tierlog.tools.record_format import format_as_json, format_by

    if as_json:
        return format_as_json
    return format_by(r"%s\n" if template is None else template)


@contextmanager
def _usage_errors(option: str) -> Iterator[None]:
    """A value that cannot be parsed is wrong usage."""
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _report_file(path: str) -> Any:
    """A file that is there as a whole or not at all; what is no file is written to, and never
    replaced by one: /dev/stdout, a pipe."""
    is_file = os.path.isfile(path) or not os.path.exists(path)
    return click.open_file(path, "w", encoding="utf-8", atomic=is_file)


@tierlog.command()
@click.argument("source")
@click.option("--deep", is_flag=True, help="Also decode every record, or read every object whole.")
@click.option(
    "--metadata",
    metavar="FILE",
    help="A metadata.sqlite: hold a store against what it says. Only a copy of it is opened.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Also write the report to this file.",
)
@_format_option(*_FORMATS)
def verify(source: str, deep: bool, metadata: str | None, json_path: str | None, shown: str) -> int:
    """Check all of SOURCE and change nothing. Exit code 1 if something is wrong.

    \b
    tierlog verify /var/lib/kafka/data
    tierlog verify s3://bucket/kafka --deep --json report.json
    """
    from tierlog.clock import SystemClock
    from tierlog.tools.findings import report_text
    from tierlog.tools.output import Format, render
    from tierlog.tools.progress import progress_on
    from tierlog.tools.sources import source_of
    from tierlog.tools.verify import verify as check

    place = source_of(source)
    with progress_on(sys.stderr, "verify") as progress:
        now_ms = SystemClock().now_ms()
        report = check(place, now_ms=now_ms, deep=deep, metadata=metadata, progress=progress)
    if shown in ("json", "yaml"):
        _print_tables(report.tables(), shown)
    else:
        _echo("\n".join(report_text(report, with_notes=shown == "wide")))
    if json_path:
        with _report_file(json_path) as file:
            file.writelines(f"{line}\n" for line in render(report.tables(), Format.JSON))
    return 0 if report.sound else _EXIT_PROBLEMS


@tierlog.group(cls=_Verbs)
def index() -> None:
    """Make indexes again from the logs they belong to."""


@index.command()
@click.argument("source")
@click.option("--to", "target", metavar="DIR", help="Where index files go.")
@click.option("--dry-run", is_flag=True, help="Scan and check everything, write nothing.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes to work in.  [default: one for each CPU, or as many as Spark has slots]",
)
@click.option("--spark", "master", metavar="MASTER", help="Work on this Spark cluster instead.")
@click.option("--ship", is_flag=True, help="With --spark: to workers without tierlog, send it.")
@click.option("--report", "report_dir", metavar="DIR", help="Write the report as Parquet, too.")
@click.option(
    "--index-interval",
    "index_interval_bytes",
    type=_Parsed("size", _size),
    metavar="BYTES",
    default=4096,
    help="The topics' index.interval.bytes.  [default: 4096]",
)
@_format_option(*_FORMATS)
def rebuild(
    source: str,
    target: str | None,
    dry_run: bool,
    jobs: int | None,
    master: str | None,
    ship: bool,
    report_dir: str | None,
    index_interval_bytes: int,
    shown: str,
) -> int:
    """Rebuild the indexes of SOURCE from its logs.

    Of a log directory: every .index, .timeindex, .txnindex and .snapshot, as Kafka's own recovery
    writes them, into DIR and never into the directory itself. Of a store: .indexes objects that
    are missing or damaged; sound ones stay. With DIR the remote index files that a node keeps of it
    are made there. A damaged segment is reported and left out, the others
    are done all the same, and the exit code is 1. May be repeated: what is done stays done.

    \b
    tierlog index rebuild /var/lib/kafka/data --to /mnt/indexes
    tierlog index rebuild s3://bucket/kafka --dry-run
    tierlog index rebuild s3://bucket/kafka --spark spark://master:7077
    """
    from tierlog.clock import SystemClock
    from tierlog.tools.index_rebuild import check_report, rebuild_index, rebuild_text
    from tierlog.tools.progress import progress_on

    if ship and master is None:
        raise click.UsageError("--ship goes with --spark")
    on_spark = None if master is None else _of_extra("spark", "spark_udfs.rebuild")
    table = None if report_dir is None else _of_extra("arrow", "tierlog.tools.rebuild_table")
    if report_dir is not None:
        check_report(report_dir, source)
    wanted: dict[str, Any] = {
        "now_ms": SystemClock().now_ms(),
        "target": target,
        "dry_run": dry_run,
        "index_interval_bytes": index_interval_bytes,
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
        _print_tables(tables, shown)
    else:
        _print_tables(tables[1:2], shown)
        _echo("\n".join(rebuild_text(report)))
    return 0 if report.ok else _EXIT_PROBLEMS


@tierlog.command()
@click.argument("log_dirs", nargs=-1, metavar="[LOGDIR]...")
@click.option("--to", "tierlog_store_url", metavar="URL", help="The store to copy to.")
@click.option("--once", is_flag=True, help="One pass; else it goes on until interrupted.")
@click.option("--dry-run", is_flag=True, help="One pass that checks everything, changes nothing.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Settings: a broker's server.properties as it is, its log.dirs for LOGDIRs.",
)
@click.option(
    "--interval",
    "remote_log_manager_task_interval_ms",
    type=_Parsed("seconds", _interval),
    metavar="SECONDS",
    help="Time between two looks at everything: 30, 0.5 or 5m.  [default: 30]",
)
@click.option("--state-dir", "tierlog_state_dir", metavar="DIR", help="Where to remember things.")
@click.option(
    "--bootstrap",
    "tierlog_bootstrap_servers",
    metavar="HOST:PORT",
    help="The broker to ask what may be copied.",
)
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic, or these.")
@click.option(
    "--retention-ms",
    "tierlog_retention_ms",
    type=_Parsed("duration", _duration_or_off),
    metavar="TIME",
    help="Delete from the store what is older: 7d, 36h or milliseconds; -1 never does.",
)
@click.option(
    "--retention-bytes",
    "tierlog_retention_bytes",
    type=_Parsed("size", _size_or_off),
    metavar="BYTES",
    help="Keep so much of each partition: 50GiB, 500M or bytes; -1 keeps all.",
)
@click.option(
    "--copy-quota",
    "remote_log_manager_copy_max_bytes_per_second",
    type=_Parsed("size", _size),
    metavar="BYTES",
    help="At most so many bytes per second: 10485760, 10M or 10MiB.",
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
@_format_option(*_FORMATS)
def tier(
    log_dirs: tuple[str, ...],
    once: bool,
    dry_run: bool,
    config_file: str | None,
    topics: tuple[str, ...],
    shown: str,
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
    from tierlog.clock import SystemClock
    from tierlog.tier_command import run_tier, tier_config

    given = {key.replace("_", "."): _flag_text(value) for key, value in flags.items()}
    given["tierlog.topics"] = ",".join(topics) or None
    return run_tier(
        tier_config(config_file, os.environ, given),
        log_dirs,
        once=once,
        dry_run=dry_run,
        state_home=_state_home(),
        shown=shown,
        head=_heads(),
        clock=SystemClock(),
    )


def _flag_text(value: Any) -> str | None:
    """A flag as a setting's text; None when it was not given."""
    if value is None or value is False:
        return None
    return str(value).lower() if value is True else str(value)


def _state_home() -> str:
    """Where programs keep state, by the XDG base directory specification."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "tierlog")


@tierlog.command()
@click.argument("log_dirs", nargs=-1, metavar="[LOGDIR]...")
@click.option("--to", "folder", metavar="DIR", help="An empty folder; default: a temporary one.")
def demo(log_dirs: tuple[str, ...], folder: str | None) -> int:
    """Tier real Kafka logs, read them back, compare byte for byte.

    Without LOGDIRs: the logs that come with tierlog's sources. Makes a store, a summary and an
    HTML report; exit code 1 if anything came back different.

    \b
    tierlog demo
    tierlog demo /var/lib/kafka/data --to /tmp/demo
    """
    import shutil
    import time
    from pathlib import Path

    from tierlog.clock import SystemClock
    from tierlog.tools.demo import bundled_log_dirs, empty_folder, run_demo
    from tierlog.tools.demo_report import next_commands, report_html, summary_text
    from tierlog.tools.output import iso_time
    from tierlog.tools.progress import progress_on

    clock = SystemClock()
    sources = list(log_dirs) or bundled_log_dirs()
    place = empty_folder(folder)
    url = (place / "store").as_uri()
    with progress_on(sys.stderr, "demo") as bar:

        def copy(sources: Sequence[str], url: str) -> Iterable[TierRow]:
            from tierlog.sidecar import Sidecar
            from tierlog.tier_command import Watched

            with Sidecar(sources, url, state_dir=str(place / "state"), clock=clock) as sidecar:
                return sidecar.run_once(Watched(bar)).rows

        try:
            result = run_demo(sources, url, tier=copy, timer_ns=time.perf_counter_ns)
        except BaseException:
            if folder is None:
                shutil.rmtree(place, ignore_errors=True)
            raise
    report = place / "report.html"
    Path(report).write_text(report_html(result, iso_time(clock.now_ms())), encoding="utf-8")
    _echo("\n".join(summary_text(result)))
    commands = next_commands(result)
    if commands:
        _hint("\n".join(["", "Try next:", *(f"  {command}" for command in commands), ""]))
    _hint(f"Report: {report.as_uri()}")
    _hint(f"All of it lies in {place}; remove that folder when you are done.")
    return 0 if result.passed else _EXIT_PROBLEMS
