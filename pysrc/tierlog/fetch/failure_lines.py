"""Lines for the operator about fetches that end with an error of this host or its store."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tierlog.clock import Clock
from tierlog.reader.types import FetchError
from tierlog.types import TopicIdPartition

__all__ = ["FailureLines"]

# The operator need not know about errors in the requests of clients.
_REPORTED = frozenset({FetchError.UNKNOWN_SERVER_ERROR, FetchError.KAFKA_STORAGE_ERROR})
_INTERVAL_MS = 1_000
# Clients retry many times, so the same line is written only once within this time.
_SAME_LINE_MS = 60_000
_MAX_LINES = 1_000


class FailureLines:
    """Gives `report` at most one line a second, and the same line at most once a minute. Any
    thread."""

    def __init__(self, report: Callable[[str], object], clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._last_ms: int | None = None
        self._lines_ms: dict[str, int] = {}

    def add(self, partition: TopicIdPartition, error: FetchError, text: str) -> None:
        """Report that a fetch of `partition` ended with `error`."""
        if error in _REPORTED:
            line = f"fetch of {partition.topic}-{partition.partition}: {error.name}: {text}"
            if self._is_due(line):
                self._report(line)

    def _is_due(self, line: str) -> bool:
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if self._last_ms is not None and now_ms - self._last_ms < _INTERVAL_MS:
                return False
            same_ms = self._lines_ms.get(line)
            if same_ms is not None and now_ms - same_ms < _SAME_LINE_MS:
                return False
            if len(self._lines_ms) >= _MAX_LINES:
                self._lines_ms.clear()
            self._last_ms = self._lines_ms[line] = now_ms
            return True
