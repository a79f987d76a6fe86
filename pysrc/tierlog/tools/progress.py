"""Progress of a long command: silent, or as a bar on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import TextIO

    from rich.progress import Progress as RichProgress

__all__ = ["Progress", "QuietProgress", "progress_on"]


class Progress(Protocol):
    """Receives the total bytes, then the bytes of each completed part."""

    def start(self, total_bytes: int) -> None: ...

    def advance(self, size_bytes: int, now_at: str = "") -> None: ...


class QuietProgress:
    """Progress that is not shown."""

    def start(self, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, size_bytes: int, now_at: str = "") -> None:
        """Do nothing."""


class _Bar:
    def __init__(self, bar: RichProgress, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=None, now_at="")

    def start(self, total_bytes: int) -> None:
        self._bar.update(self._task, total=total_bytes)

    def advance(self, size_bytes: int, now_at: str = "") -> None:
        self._bar.update(self._task, advance=size_bytes, now_at=now_at)


@contextmanager
def progress_on(stream: TextIO, title: str) -> Iterator[Progress]:
    """Show a bar on ``stream`` until the context ends; show nothing if the stream is no
    terminal."""
    if not stream.isatty():
        yield QuietProgress()
        return
    # Imported here, because loading these modules takes longer than most runs that have no
    # terminal.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    one_line = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now_at]}", markup=False, table_column=one_line),
    )
    with RichProgress(*columns, console=Console(file=stream), transient=True, expand=True) as bar:
        yield _Bar(bar, escape(title))
