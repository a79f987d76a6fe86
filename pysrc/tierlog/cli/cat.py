"""``tierlog cat``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tierlog.cli.settings import config_option, verb_config
from tierlog.cli.support import (
    EXIT_PROBLEMS,
    Parsed,
    hint,
    to_stdout,
    topic_partition_value,
    usage_errors,
    widen_pipe,
)

if TYPE_CHECKING:
    from tierlog.errors import GapError
    from tierlog.remote.bucket import Problem
    from tierlog.tools.record_format import RecordFormat

__all__ = ["cat"]


@click.command()
@click.argument("source")
@click.argument(
    "partition", type=Parsed("partition", topic_partition_value), metavar="TOPIC:PARTITION"
)
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
@click.option(
    "--on-gap",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do where a store lacks offsets: stop, or name them and go on.",
)
@config_option("Settings of reading a store, as TIERLOG_... variables: quota, memory, threads.")
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
    on_gap: str,
    config_file: str | None,
) -> int:
    """Print the records of one partition of SOURCE.

    tierlog stops where the log ends and never waits for more. With -J, bytes that are not UTF-8
    are {"base64": "..."} instead of a string. A segment of a store that is damaged is left out and
    named, and the exit code is 1. Offsets that a store should have and lacks are an error after
    the records before them; --on-gap skip names them and goes on, and the exit code is 1, too.

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
    with usage_errors("-o"):
        wanted = parse_offsets(offsets, SystemClock().now_ms())
    with usage_errors("-f"):
        shape = _format(as_json, template)
    topic, number = partition
    left_out = _LeftOut(fail_at_gaps=on_gap == "fail")
    location, store_url = _tiers(source, store)
    selection = select_records(
        location,
        topic,
        number,
        wanted,
        left_out.note_problem,
        store=store_url,
        committed=committed,
        config=verb_config(config_file),
        on_gap=left_out.note_gap,
    )
    if selection.hint:
        hint(selection.hint)
    out = sys.stdout.buffer
    widen_pipe(sys.stdout)
    for records in selection.records(count):
        for piece in format_records(records, topic, number, shape):
            with to_stdout():
                out.write(piece)
    with to_stdout():
        out.flush()
    if say_end:
        hint(f"reached the end of {topic}:{number} at offset {selection.end}")
    return EXIT_PROBLEMS if left_out.told else 0


class _LeftOut:
    """Names on stderr, once each, what the records on stdout lack."""

    def __init__(self, *, fail_at_gaps: bool) -> None:
        self.told: set[str] = set()
        self._fail_at_gaps = fail_at_gaps

    def note_problem(self, problem: Problem) -> None:
        """Name a segment that cannot be described."""
        if problem.hides_segment:
            self._tell(problem.key, str(problem))

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


def _format(as_json: bool, template: str | None) -> RecordFormat:
    from tierlog.tools.record_format import JSON_LINES, parse_format

    if as_json:
        return JSON_LINES
    return parse_format(r"%s\n" if template is None else template)
