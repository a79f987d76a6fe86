"""Runs a peer in a separate process, one round per request.

The child warms up and then answers every line with one line of JSON: the nanoseconds of that round,
its CPU time and its result. So its rounds alternate with those of tierlog, and its start is never
measured.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from benches.frame import PeerMissingError, Timed

ANSWER_TIMEOUT_S = 300


def child_peer(stack: ExitStack, command: Callable[[], Sequence[str]]) -> Callable[[], Timed]:
    """Return a function for rounds of the process that `command` names.

    The process starts and warms up at the first call. The call raises PeerMissingError if the
    process cannot run here. The process ends when `stack` is closed.
    """
    started: list[_Child] = []

    def run() -> Timed:
        if not started:
            started.append(_Child(command()))
            stack.callback(started[0].close)
        return started[0].round()

    return run


class _Child:
    """A process that gets a line, runs a round and answers with a line of JSON."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def round(self) -> Timed:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            stdin.write("\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            raise PeerMissingError(f"it ended: {self._last_words()}")
        answer = json.loads(line)
        return Timed(
            seconds=answer["nanos"] / 1e9,
            cpu_seconds=answer["cpu_nanos"] / 1e9,
            result=answer["seen"],
        )

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def _last_words(self) -> str:
        lines = self._process.communicate()[1].strip().splitlines()
        return lines[0] if lines else f"exit code {self._process.returncode}"
