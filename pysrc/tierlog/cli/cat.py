"""``tierlog cat``."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from tierlog.cli.settings import config_option, verb_config
from tierlog.cli.support import (
    EXIT_PROBLEMS,
    Parsed,
    hint,
    to_stdout,
    topic_value,
    usage_errors,
    widen_pipe,
)
from tierlog.errors import OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tierlog.errors import GapError
    from tierlog.reader.damage import LostRecords
    from tierlog.reader.sources import Source
    from tierlog.remote.segment.bucket import Problem
    from tierlog.tools.cat.record_format import RecordFormat
    from tierlog.tools.cat.selection import Selection

__all__ = ["cat"]

_DASHED_TOPIC = re.compile(r"-[a-zA-Z0-9._-]*:[0-9]+", re.ASCII)


class _Cat(click.Command):
    """For a topic whose name begins with ``-``, which looks like an option, the error says what to
    do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            named = next((one for one in given if _DASHED_TOPIC.fullmatch(one)), None)
            if named is None or "--" in given:
                raise
            text = (
                f"{error.format_message()}\n"
                f"A topic whose name begins with - goes after --: tierlog cat SOURCE -- {named}"
            )
            raise click.UsageError(text, ctx=ctx) from None


@click.command(cls=_Cat)
@click.argument("source")
@click.argument(
    "partitions", nargs=-1, type=Parsed("topic", topic_value), metavar="TOPIC[:PARTITION]..."
)
@click.option(
    "-o",
    "offsets",
    multiple=True,
    metavar="OFFSET",
    help="Where to start and stop: beginning, end, N, -N, N:M, s@ms, e@ms, @-2h:end, "
    "@2024-02-29T12:00:00Z:1h. The end is exclusive. By default all records are printed.",
)
@click.option(
    "-c", "count", type=click.IntRange(min=0), metavar="N", help="Print at most N records."
)
@click.option(
    "-e", "say_end", is_flag=True, help="Print to stderr at which offset the end was reached."
)
@click.option(
    "-f", "template", metavar="FORMAT", help="A format with kcat's tokens: %k %s %S %o %T %h ..."
)
@click.option(
    "--format",
    "shown",
    metavar="FORMAT",
    help="json: like -J; text: values only; anything else: a format as for -f.",
)
@click.option(
    "-J", "as_json", is_flag=True, help="Print one JSON object per line, with kcat's keys."
)
@click.option("-t", "topic", metavar="TOPIC", help="The topic, as in kcat.")
@click.option(
    "-p", "number", type=click.IntRange(0, 2**31 - 1), help="The partition of the topic of -t."
)
@click.option(
    "-q", "is_quiet", is_flag=True, help="Print no hints on stderr, only errors and gaps."
)
@click.option(
    "-C", expose_value=False, is_flag=True, help="Accepted and ignored, because cat only reads."
)
@click.option(
    "--store",
    metavar="URL",
    help="The store to which SOURCE, a log directory, is tiered. Both are read as one log.",
)
@click.option(
    "--read-committed",
    "committed",
    is_flag=True,
    help="Leave out aborted transactions, and stop before the oldest unfinished transaction.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do if a store lacks offsets: fail, or name the offsets and skip them.",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do at damaged records: fail, or name the lost offsets and skip them.",
)
@config_option(
    "Settings for reading a store, also as TIERLOG_... variables: quota, memory, threads."
)
def cat(
    source: str,
    partitions: tuple[tuple[str, int | None], ...],
    topic: str | None,
    number: int | None,
    offsets: tuple[str, ...],
    count: int | None,
    say_end: bool,
    is_quiet: bool,
    template: str | None,
    shown: str | None,
    as_json: bool,
    store: str | None,
    committed: bool,
    on_gap: str,
    on_corrupt: str,
    config_file: str | None,
) -> int:
    """Print the records of partitions of SOURCE, one partition after another.

    TOPIC alone means all partitions of the topic. -o applies to each partition, -c to all
    partitions together. tierlog stops at the end of the log and never waits for new records. With
    -J, bytes that are not UTF-8 are printed as {"base64": "..."} instead of a string.

    If records or segments are damaged, or a store lacks offsets that it should have, the records
    before them are printed and then an error. With --on-corrupt skip and --on-gap skip, the lost
    offsets are named on stderr and the records after them are printed. The exit code is 1 in both
    cases.

    \b
    tierlog cat /var/lib/kafka/data orders:0 -o -10
    tierlog cat s3://bucket/kafka orders -o @-2h:end -J
    tierlog cat s3://bucket/kafka orders:0 orders:1 -c 5 -f '%p %o %T %k=%s\\n'
    tierlog cat /var/lib/kafka/data orders:0 --store s3://bucket/kafka --read-committed
    """
    from tierlog.clock import SystemClock
    from tierlog.reader.offset_range import parse_offsets

    with usage_errors("-o"):
        wanted = parse_offsets(offsets, SystemClock().now_ms())
    with usage_errors("-f"):
        shape = _format(as_json, template, shown)
    named = _named(partitions, topic, number)
    left_out = _LeftOut(fail_at_gaps=on_gap == "fail")
    is_salvage = on_corrupt == "skip"
    sources = _tiers(source, store)
    config = verb_config(config_file)
    say = _nothing if is_quiet else hint
    widen_pipe(sys.stdout)
    for name, one in _chosen(sources, named):
        selection = _selected(
            sources,
            name,
            one,
            wanted=wanted,
            on_problem=left_out.note_problem if is_salvage else None,
            committed=committed,
            config=config,
            on_gap=left_out.note_gap,
            on_corrupt=left_out.note_damage if is_salvage else "fail",
        )
        if selection.hint:
            say(selection.hint)
        printed = _print_records(selection, count, shape)
        count = None if count is None else count - printed
        if say_end:
            say(f"reached the end of {name}:{one} at offset {selection.end}")
        if count == 0:
            break
    return EXIT_PROBLEMS if left_out.told else 0


def _nothing(_text: str) -> None:
    """Print nothing; replaces `hint` when no hints are wanted."""


def _named(
    partitions: tuple[tuple[str, int | None], ...], topic: str | None, number: int | None
) -> list[tuple[str, int | None]]:
    """Return the topics and partitions of all arguments. A topic without a number means all its
    partitions."""
    if topic is None and number is not None:
        raise click.UsageError("-p needs the topic, -t TOPIC")
    named = [*partitions] if topic is None else [*partitions, (topic, number)]
    if not named:
        raise click.UsageError("Missing argument 'TOPIC[:PARTITION]...'")
    return named


def _chosen(
    sources: Sequence[Source], named: Iterable[tuple[str, int | None]]
) -> Iterator[tuple[str, int]]:
    from tierlog.tools.ls import chosen_partitions

    for topic, number in named:
        numbers = chosen_partitions(sources, topic) if number is None else [number]
        yield from ((topic, one) for one in numbers)


def _selected(sources: Sequence[Source], topic: str, number: int, **wanted: Any) -> Selection:
    """Return the records of one partition. Raises OutOfRangeError, which names the topics or
    partitions that the sources have."""
    from tierlog.tools.cat.selection import select_records
    from tierlog.tools.ls import chosen_partitions

    first, *second = (one.location for one in sources)
    store = second[0] if second else None
    try:
        return select_records(first, topic, number, store=store, **wanted)
    except OutOfRangeError:
        chosen_partitions(sources, topic, number)
        raise


def _print_records(selection: Selection, count: int | None, shape: RecordFormat) -> int:
    """Write at most `count` records to stdout; return the number of written records."""
    from tierlog.tools.cat.selection import format_records

    out, printed = sys.stdout.buffer, 0
    for records in selection.records(count):
        printed += len(records)
        for piece in format_records(records, selection.topic, selection.partition, shape):
            with to_stdout():
                out.write(piece)
    with to_stdout():
        out.flush()
    return printed


class _LeftOut:
    """Names on stderr the damage and gaps whose records are missing on stdout. Each is named
    once."""

    def __init__(self, *, fail_at_gaps: bool) -> None:
        self.told: set[str] = set()
        self._fail_at_gaps = fail_at_gaps

    def note_problem(self, problem: Problem) -> None:
        """Name a segment that cannot be described."""
        if problem.hides_segment:
            self._tell(problem.key, str(problem))

    def note_damage(self, lost: LostRecords) -> None:
        """Name offsets whose records are damaged."""
        self._tell(str(lost), str(lost))

    def note_gap(self, error: GapError) -> None:
        """Raise the error, or name the offsets that are missing."""
        if self._fail_at_gaps:
            raise error
        error.hint = None
        self._tell(str(error), str(error))

    def _tell(self, key: str, text: str) -> None:
        if key not in self.told:
            self.told.add(key)
            hint(f"left out: {text}")


def _tiers(source: str, store: str | None) -> list[Source]:
    """Return the sources of the records: one source, or a log directory and the store to which it
    is tiered."""
    from tierlog.reader.sources import source_of

    first = source_of(source)
    if store is None:
        return [first]
    if first.is_store:
        raise click.BadParameter(f"{source} is a store itself", param_hint="--store")
    second = source_of(store)
    if not second.is_store:
        raise click.BadParameter(f"{store} is no store", param_hint="--store")
    return [first, second]


def _format(as_json: bool, template: str | None, shown: str | None) -> RecordFormat:
    from tierlog.tools.cat.record_format import JSON_LINES, parse_format

    if as_json + (template is not None) + (shown is not None) > 1:
        raise click.UsageError("-f, -J and --format exclude each other")
    if as_json or shown == "json":
        return JSON_LINES
    values = r"%s\n"
    if template is None:
        template = values if shown is None or shown == "text" else shown
    return parse_format(template)
