"""``tierlog demo``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tierlog.cli.support import EXIT_PROBLEMS, echo, hint

if TYPE_CHECKING:
    from tierlog.sidecar import TierRow

__all__ = ["demo"]


@click.command()
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

    from tierlog.clock import SystemClock
    from tierlog.tools.demo.report import next_commands, report_html, summary_text
    from tierlog.tools.demo.run import bundled_log_dirs, empty_folder, run_demo
    from tierlog.tools.output import iso_time
    from tierlog.tools.progress import progress_on

    clock = SystemClock()
    sources = list(log_dirs) or bundled_log_dirs()
    place = empty_folder(folder)
    url = (place / "store").as_uri()
    with progress_on(sys.stderr, "demo") as bar:

        def copy(sources: Sequence[str], url: str) -> Iterable[TierRow]:
            from tierlog.cli.tier_run import Watched
            from tierlog.sidecar import Sidecar

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
    echo("\n".join(summary_text(result)))
    commands = next_commands(result)
    if commands:
        hint("\n".join(["", "Try next:", *(f"  {command}" for command in commands), ""]))
    hint(f"Report: {report.as_uri()}")
    hint(f"All of it lies in {place}; remove that folder when you are done.")
    return 0 if result.passed else EXIT_PROBLEMS
