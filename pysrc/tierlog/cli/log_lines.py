"""Lines for the operator on stderr: text with its time, or one JSON object each."""

from __future__ import annotations

import json
from typing import Any

import click

from tierlog.clock import Clock
from tierlog.log.files import printable
from tierlog.tools.output import iso_time

__all__ = ["LogLines"]


class LogLines:
    """Writes lines in `log_format`. Thread-safe.

    A JSON line has ``time``, ``level`` (info or warning), ``event``, ``text`` and the fields of its
    event. A text line of a command that ends by itself has no time.
    """

    def __init__(self, log_format: str, clock: Clock, *, timed: bool = True) -> None:
        self._is_json = log_format == "json"
        self._clock = clock
        self._timed = timed

    def info(self, event: str, text: str, **fields: Any) -> None:
        """Write a line about something that happened as it should."""
        self._write("info", event, text, fields)

    def warn(self, event: str, text: str, **fields: Any) -> None:
        """Write a line about something that an operator may have to act on."""
        self._write("warning", event, text, fields)

    def _write(self, level: str, event: str, text: str, fields: dict[str, Any]) -> None:
        if self._is_json:
            now = iso_time(self._clock.now_ms())
            line = json.dumps({"time": now, "level": level, "event": event, "text": text, **fields})
        else:
            time = f"{iso_time(self._clock.now_ms())} " if self._timed else ""
            line = f"{time}{'warning: ' if level == 'warning' else ''}{printable(text)}"
        click.echo(line, err=True)
