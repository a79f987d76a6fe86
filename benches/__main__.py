"""``python -m benches``: measures every operation against its peers and prints a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from . import GROUPS, items_of
from .corpus import Corpora
from .frame import Bench, Case, Limit, Pace, Row, measure
from .report import as_markdown, as_table, busy_warning, machine_facts, write_json

CACHE_DIR = Path(__file__).parents[1] / ".cache" / "bench"
QUICK = Pace(rounds=1, least_s=0.0, warmup_s=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Return 1 if ``--strict`` is given and a goal was missed, otherwise 0."""
    options = _parser().parse_args(arguments)
    bench = Bench(
        corpora=Corpora(directory=options.cache_dir, quick=options.quick),
        pace=QUICK if options.quick else Pace(rounds=options.rounds, cpu_time=options.cpu_time),
    )
    facts, warning = machine_facts(), busy_warning()
    if options.quick:
        facts["quick"] = "tiny input, one round: the figures mean nothing"
    if options.cpu_time:
        facts["clock"] = "CPU time of the calling thread, where an operation has only one"
    for line in filter(None, (*(f"{name}: {text}" for name, text in facts.items()), warning)):
        print(line, file=sys.stderr)
    rows: list[Row] = []
    try:
        for item in _selected(bench, options.groups, options.match):
            print(f"  {item.name} ...", file=sys.stderr, flush=True)
            rows += measure(item, bench.pace)
    finally:
        # Print the rows even when a case fails, since the other cases took minutes.
        if options.quick:
            rows = [replace(row, met=None) for row in rows]
        print(as_markdown(rows, facts) if options.markdown else as_table(rows))
        if warning:
            print(warning, file=sys.stderr)
    if options.json is not None:
        write_json(options.json, rows, facts)
    return int(options.strict and any(row.met is False for row in rows))


def _selected(bench: Bench, groups: Sequence[str], match: str) -> Iterator[Case | Limit]:
    for group in groups or GROUPS:
        for item in items_of(group, bench):
            if match in item.name:
                yield item


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument(
        "--match", default="", help="only cases and limits with this text in the name"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny input, one round: check the answers only"
    )
    parser.add_argument(
        "--rounds", type=int, default=Pace().rounds, help="minimum number of rounds"
    )
    parser.add_argument(
        "--cpu-time", action="store_true", help="CPU time, which varies less on a busy machine"
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--markdown", action="store_true", help="the table for docs/BENCHMARKS.md")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all rows to this file"
    )
    parser.add_argument("--cache-dir", type=Path, default=CACHE_DIR, help="folder of the segments")
    return parser


if __name__ == "__main__":
    sys.exit(main())
