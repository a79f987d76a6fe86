"""Requests to stores that are not answered yet, so that a command can say that it waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tierlog.clock import Clock, SystemClock

__all__ = ["StoreWait", "StoreWaits", "store_waits"]


class StoreWait(NamedTuple):
    """A request without an answer: since when by the monotonic clock, and what is asked."""

    since_ms: int
    what: str


class StoreWaits:
    """The unanswered requests of this process, at most one for each thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[int, StoreWait] = {}

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While inside, this thread waits for an answer."""
        thread = threading.get_ident()
        self._waits[thread] = StoreWait(self._clock.monotonic_ms(), what)
        try:
            yield
        finally:
            self._waits.pop(thread, None)

    def find_longer_than(self, least_ms: int) -> list[StoreWait]:
        """The requests that have waited for at least so long."""
        latest_ms = self._clock.monotonic_ms() - least_ms
        return [wait for wait in list(self._waits.values()) if wait.since_ms <= latest_ms]


store_waits = StoreWaits(SystemClock())
