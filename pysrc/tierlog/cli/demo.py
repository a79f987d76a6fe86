"""``tierlog demo``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tierlog.cli.support import EXIT_PROBLEMS, echo, format_option, hint

if TYPE_CHECKING:
    from tierlog.clock import Clock
    from tierlog.sidecar import TierRow
    from tierlog.tools.demo.live import LiveResult
    from tierlog.tools.demo.run import DemoResult

__all__ = ["demo"]


@click.command()
@click.argument("log_dirs", nargs=-1, metavar="[LOGDIR]...")
@click.option("--to", "folder", metavar="DIR", help="An empty folder; default: a temporary one.")
@format_option("text", "json")
def demo(log_dirs: tuple[str, ...], folder: str | None, shown: str) -> int:
    """Write to a Kafka node, tier it under a quota, read it back cold, compare every record.

    The node runs in this process. With LOGDIRs of a broker instead: tier them, read them back,
    compare byte for byte; the directories are only read. Makes a store, a summary and an HTML
    report; exit code 1 if anything came back different.

    \b
    tierlog demo
    tierlog demo /var/lib/kafka/data --to /tmp/demo
    """
    import time

    from tierlog.clock import SystemClock
    from tierlog.tools.demo.run import empty_folder

    place = empty_folder(folder)
    run = partial(_run_logs, log_dirs) if log_dirs else _run_live
    with _removed_on_error(place, is_ours=folder is None):
        result, lines, commands = run(place, SystemClock(), time.perf_counter_ns)
    echo(json.dumps(_document(result), indent=2) if shown == "json" else "\n".join(lines))
    if commands:
        hint("\n".join(["", "Try next:", *(f"  {command}" for command in commands), ""]))
    hint(f"Report: {(place / 'report.html').as_uri()}")
    hint(f"All of it lies in {place}; remove that folder when you are done.")
    return 0 if result.passed else EXIT_PROBLEMS


@contextmanager
def _removed_on_error(place: Path, *, is_ours: bool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if is_ours:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _document(result: DemoResult | LiveResult) -> dict[str, Any]:
    return {"passed": result.passed, **asdict(result)}


def _run_live(
    place: Path, clock: Clock, timer_ns: Callable[[], int]
) -> tuple[LiveResult, list[str], list[str]]:
    """Run the demo against a node; return its result, the summary and the commands to try."""
    from tierlog.config import Config
    from tierlog.node.embedded import EmbeddedNode
    from tierlog.tools.demo.live import NODE_SETTINGS, LiveResult, run_live
    from tierlog.tools.demo.live_report import live_commands, live_report_html, live_summary
    from tierlog.tools.output import iso_time
    from tierlog.tools.progress import progress_on

    result = LiveResult(data_dir=str(place / "node"), store_url=(place / "store").as_uri())
    config = Config.from_properties(NODE_SETTINGS)
    with EmbeddedNode(result.data_dir, result.store_url, config=config, report=hint) as node:
        run_live(
            node,
            result,
            clock=clock,
            timer_ns=timer_ns,
            progress=partial(progress_on, sys.stderr),
            say=hint,
        )
    hint("")
    report = live_report_html(result, iso_time(clock.now_ms()))
    (place / "report.html").write_text(report, encoding="utf-8")
    return result, list(live_summary(result)), live_commands(result)


def _run_logs(
    log_dirs: Sequence[str], place: Path, clock: Clock, timer_ns: Callable[[], int]
) -> tuple[DemoResult, list[str], list[str]]:
    """Run the demo over a broker's logs; return its result, the summary and the commands to try."""
    from tierlog.tools.demo.report import next_commands, report_html, summary_text
    from tierlog.tools.demo.run import run_demo
    from tierlog.tools.output import iso_time
    from tierlog.tools.progress import progress_on

    with progress_on(sys.stderr, "demo") as bar:

        def copy(sources: Sequence[str], url: str) -> Iterable[TierRow]:
            from tierlog.cli.tier_run import Watched
            from tierlog.sidecar import Sidecar

            with Sidecar(sources, url, state_dir=str(place / "state"), clock=clock) as sidecar:
                return sidecar.run_once(Watched(bar)).rows

        result = run_demo(log_dirs, (place / "store").as_uri(), tier=copy, timer_ns=timer_ns)
    report = report_html(result, iso_time(clock.now_ms()))
    (place / "report.html").write_text(report, encoding="utf-8")
    return result, list(summary_text(result)), next_commands(result)
