"""Parts that the verbs share: exit codes, argument types, output to stdout and stderr."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fcntl import F_SETPIPE_SZ, fcntl
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

import click

from tierlog.errors import ConfigError

if TYPE_CHECKING:
    from tierlog.tools.output import Table

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_INTERRUPTED",
    "EXIT_PROBLEMS",
    "EXIT_USAGE",
    "FORMATS",
    "NobodyReadsError",
    "Parsed",
    "Verbs",
    "cluster_timeout_option",
    "duration_or_off",
    "echo",
    "format_option",
    "heads",
    "hint",
    "interval_value",
    "log_format_option",
    "of_extra",
    "print_tables",
    "report_file",
    "size_or_off",
    "size_value",
    "tell_store_waits",
    "to_stdout",
    "topic_partition_value",
    "topic_value",
    "usage_errors",
    "widen_pipe",
]

FORMATS = ("text", "wide", "json", "yaml")
_PIPE_BYTES = 1 << 20
_SILENT_MS, _LOOK_S = 3_000, 1.0
EXIT_PROBLEMS, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141


class NobodyReadsError(Exception):
    """Click would turn a broken pipe into exit code 1, which stands for problems found."""


class Verbs(click.Group):
    """The verbs in the order of the help text."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise NobodyReadsError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@contextmanager
def to_stdout() -> Iterator[None]:
    """Return the error of stdout with a name: by itself it names no file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def widen_pipe(stream: IO[str]) -> None:
    """Enlarge the buffer of a pipe to the size of one write, if the system allows."""
    try:
        fcntl(stream.fileno(), F_SETPIPE_SZ, _PIPE_BYTES)
    except (OSError, ValueError):
        # Other files have no pipe buffer, or the user's pipes are at their limit.
        return


@contextmanager
def tell_store_waits() -> Iterator[None]:
    """While inside, report slow requests of a store on stderr, once each."""
    done = threading.Event()

    def watch() -> None:
        told = set()
        while not done.wait(_LOOK_S):
            # Imported with the stores; without them no request can wait.
            module = sys.modules.get("tierlog.remote.store.waits")
            for wait in module.store_waits.find_longer_than(_SILENT_MS) if module else ():
                if wait not in told:
                    told.add(wait)
                    hint(f"no answer for {_SILENT_MS // 1000} s, still waiting: {wait.what}")

    thread = threading.Thread(target=watch, name="tierlog-waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def echo(text: str) -> None:
    with to_stdout():
        click.echo(text)


def hint(text: str) -> None:
    click.echo(text, err=True)


def of_extra(extra: str, module: str) -> Any:
    """Import a module that needs an extra or is outside of this package."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{error}: it comes with pip install 'tierlog[{extra}]'") from error


class Parsed(click.ParamType[Any]):
    """An argument type from a function of one string; its ValueError is wrong usage."""

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


def size_value(text: str) -> int:
    from tierlog.tools.output import parse_size

    return parse_size(text)


def size_or_off(text: str) -> int:
    return -1 if text == "-1" else size_value(text)


def duration_or_off(text: str) -> int:
    from tierlog.config.durations import parse_duration

    return -1 if text == "-1" else parse_duration(text)


def interval_value(text: str) -> int:
    from tierlog.config.durations import parse_duration

    return parse_duration(text, "s")


def topic_value(text: str) -> tuple[str, int | None]:
    from tierlog.reader.sources import parse_topic

    return parse_topic(text)


def topic_partition_value(text: str) -> tuple[str, int]:
    from tierlog.reader.sources import parse_topic_partition

    return parse_topic_partition(text)


def cluster_timeout_option(command: Any) -> Any:
    """Add ``--timeout``, the time to wait for a cluster, as ``timeout_ms``."""
    return click.option(
        "--timeout",
        "timeout_ms",
        type=Parsed("seconds", interval_value),
        default="10",
        metavar="SECONDS",
        help="How long to wait for an answer of the cluster.  [default: 10]",
    )(command)


def format_option(*formats: str) -> Callable[[Any], Any]:
    return click.option(
        "--format",
        "shown",
        type=click.Choice(formats),
        default="text",
        show_default=True,
        help="Tables for people (wide: every column) or one exact document.",
    )


def log_format_option(command: Any) -> Any:
    """Add ``--log-format`` as ``log_format``."""
    return click.option(
        "--log-format",
        type=click.Choice(("text", "json")),
        default="text",
        show_default=True,
        help="Lines on stderr: for people, or one JSON object each.",
    )(command)


def print_tables(tables: Iterable[Table], shown: str) -> None:
    from tierlog.tools.output import Format, render

    echo("\n".join(render(tables, Format(shown), heads())))


def heads() -> Callable[[str], str]:
    """Return a column head as shown."""
    plain = os.environ.get("NO_COLOR")
    return str if plain else lambda head: click.style(head, bold=True)


@contextmanager
def usage_errors(option: str) -> Iterator[None]:
    """Parse a value; an invalid one is wrong usage."""
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def report_file(path: str) -> Any:
    """Open an output file that appears completely or not at all. Other targets (/dev/stdout, a
    pipe) are written directly and never replaced."""
    is_file = os.path.isfile(path) or not os.path.exists(path)
    return click.open_file(path, "w", encoding="utf-8", atomic=is_file)
