"""Shows the progress of moves: a table that is redrawn on a terminal, otherwise lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tierlog.tools.output import human_size, iso_time
from tierlog.tools.reassign.report import progress_text
from tierlog.tools.reassign.watch import MoveProgress

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["progress_screen", "watch_on"]


@contextmanager
def watch_on(stream: TextIO) -> Iterator[Callable[[MoveProgress], None]]:
    """Yield a function that shows a measurement on `stream`."""
    if not stream.isatty():
        yield lambda progress: _print_line(progress, stream)
        return
    # Imported here, because the import takes longer than most commands that have no terminal.
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=stream), auto_refresh=False) as live:
        yield lambda progress: live.update(progress_screen(progress), refresh=True)


def _print_line(progress: MoveProgress, stream: TextIO) -> None:
    stream.write(f"{iso_time(progress.timestamp_ms)}  {progress_text(progress)}\n")
    stream.flush()


def progress_screen(progress: MoveProgress) -> Any:
    """Return the screen for `rich`: the line of figures, a bar, and a row for each broker."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    brokers = Table(box=None, pad_edge=False)
    for head in ("BROKER", "RECEIVES", "THROTTLE", "SENDS", "THROTTLE", "REPLICA-LAG"):
        brokers.add_column(head, justify="right")
    for one in progress.brokers:
        brokers.add_row(
            str(one.broker_id),
            _rate(one.receive_bytes_per_second),
            _rate(one.follower_throttle_bytes_per_second),
            _rate(one.send_bytes_per_second),
            _rate(one.leader_throttle_bytes_per_second),
            human_size(one.replica_lag_bytes),
        )
    bar = ProgressBar(total=max(1, progress.move_bytes), completed=progress.moved_bytes, width=60)
    return Group(Text(progress_text(progress)), bar, Text(""), brokers)


def _rate(bytes_per_second: float | None) -> str:
    return "-" if bytes_per_second is None else f"{human_size(int(bytes_per_second))}/s"
