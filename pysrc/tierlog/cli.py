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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tierlog.errors import ConfigError, TierlogError

if TYPE_CHECKING:
    from tierlog.tools.output import Table

__all__ = ["main"]

_FORMATS = ("text", "wide", "json", "yaml")
_EXIT_PROBLEMS, _EXIT_USAGE, _EXIT_INTERRUPTED, _EXIT_BROKEN_PIPE = 1, 2, 130, 141
_DEBUG = "TIERLOG_DEBUG"


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; ``args`` None: those of this process."""
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


def _forget_stdout() -> None:
    """The interpreter flushes stdout when it ends; with nobody there that would complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


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


def _topic(text: str) -> tuple[str, int | None]:
    from tierlog.tools.sources import parse_topic

    return parse_topic(text)


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

    plain = os.environ.get("NO_COLOR")
    lines = render(
        tables, Format(shown), str if plain else lambda head: click.style(head, bold=True)
    )
    click.echo("\n".join(lines))


def _hint(text: str) -> None:
    click.echo(text, err=True)


def _version() -> str:
    from importlib.metadata import version

    return version("tierlog")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"tierlog {_version()}")
        ctx.exit()


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A SOURCE is a broker's log directory or a store: file:///, s3://, gs://, az://.",
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
    from tierlog.tools.ls import list_log_dir
    from tierlog.tools.sources import source_of

    name, partition = topic or (None, None)
    listed = list_log_dir(
        source_of(source).location,
        topic=name,
        partition=partition,
        segments=segments or partition is not None,
    )
    _print_tables(listed.tables(), shown)
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
@click.option("--deep", is_flag=True, help="Also decode every record, or read every object whole.")
@click.option(
    "--json",
    "json_file",
    type=click.File("w", encoding="utf-8", atomic=True),
    help="Also write the report to this file.",
)
@_format_option(*_FORMATS)
@click.pass_context
def verify(ctx: click.Context, source: str, deep: bool, json_file: Any, shown: str) -> int:
    """Check all of SOURCE and change nothing. Exit code 1 if something is wrong.

    \b
    tierlog verify /var/lib/kafka/data
    tierlog verify s3://bucket/kafka --deep --json report.json
    """
    from tierlog.tools.findings import report_text
    from tierlog.tools.output import Format, render
    from tierlog.tools.progress import progress_on
    from tierlog.tools.sources import source_of
    from tierlog.tools.verify import verify as check

    place = source_of(source)
    with progress_on(sys.stderr, f"verify {place.location}") as progress:
        report = check(place, deep=deep, progress=progress)
    if json_file:
        json_file.writelines(f"{line}\n" for line in render(report.tables(), Format.JSON))
    if shown in ("json", "yaml"):
        _print_tables(report.tables(), shown)
    else:
        click.echo("\n".join(report_text(report, with_notes=shown == "wide")))
    return 0 if report.sound else _EXIT_PROBLEMS
