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
    """Replaces BrokenPipeError, for which Click would exit with code 1, the code for problems
    found."""


class Verbs(click.Group):
    """A group of verbs, in the order in which they were added."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise NobodyReadsError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@contextmanager
def to_stdout() -> Iterator[None]:
    """Add the name "standard output" to an OSError of the body, because the error itself names no
    file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def widen_pipe(stream: IO[str]) -> None:
    """Enlarge the buffer of a pipe to the size of one write, if the system allows it."""
    try:
        fcntl(stream.fileno(), F_SETPIPE_SZ, _PIPE_BYTES)
    except (OSError, ValueError):
        # Other files have no pipe buffer, or the user's pipes are at their limit.
        return


@contextmanager
def tell_store_waits() -> Iterator[None]:
    """While the context is open, report each slow request to a store once on stderr."""
    done = threading.Event()

    def watch() -> None:
        told = set()
        while not done.wait(_LOOK_S):
            # The stores import this module. If this module is not imported, no request can wait.
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
    """Import a module that needs an extra; raise ConfigError when the extra is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{error}: it comes with pip install 'tierlog[{extra}]'") from error


class Parsed(click.ParamType[Any]):
    """An argument type made from a function that parses a string. A ValueError of the function is
    wrong usage."""

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
        help="Time to wait for an answer of the cluster.  [default: 10]",
    )(command)


def format_option(*formats: str) -> Callable[[Any], Any]:
    return click.option(
        "--format",
        "shown",
        type=click.Choice(formats),
        default="text",
        show_default=True,
        help="Tables for people (wide: every column), or one exact document.",
    )


def log_format_option(command: Any) -> Any:
    """Add ``--log-format`` as ``log_format``."""
    return click.option(
        "--log-format",
        type=click.Choice(("text", "json")),
        default="text",
        show_default=True,
        help="Format of the lines on stderr: text for people, or one JSON object for each line.",
    )(command)


def print_tables(tables: Iterable[Table], shown: str) -> None:
    from tierlog.tools.output import Format, render

    echo("\n".join(render(tables, Format(shown), heads())))


def heads() -> Callable[[str], str]:
    """Return a function that formats column heads: bold, or unchanged if NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR")
    return str if plain else lambda head: click.style(head, bold=True)


@contextmanager
def usage_errors(option: str) -> Iterator[None]:
    """Convert a ValueError of the body to the error for a wrong value of `option`."""
    try:
        yield
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def report_file(path: str) -> Any:
    """Open an output file that appears completely or not at all. Other targets (/dev/stdout, a
    pipe) are written directly and are never replaced."""
    is_file = os.path.isfile(path) or not os.path.exists(path)
    return click.open_file(path, "w", encoding="utf-8", atomic=is_file)
