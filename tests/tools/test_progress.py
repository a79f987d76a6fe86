"""A bar where somebody looks, and not a byte where nobody does."""

from __future__ import annotations

import io

from tierlog.tools.progress import progress_on


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal() -> None:
    terminal = Terminal()
    with progress_on(terminal, "verify [x]") as progress:
        progress.start(4 << 20)
        progress.advance(4 << 20, "orders:0 [bold]")
    text = terminal.getvalue()
    assert "verify [x]" in text
    assert "4.0/4.0 MiB" in text
    assert "[bold]" in text


def test_nothing_elsewhere() -> None:
    stream = io.StringIO()
    with progress_on(stream, "verify") as progress:
        progress.start(10)
        progress.advance(10, "orders:0")
    assert stream.getvalue() == ""
