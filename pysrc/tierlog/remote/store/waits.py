"""Requests that a store has not answered yet, so that a command can report what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tierlog.clock import Clock, SystemClock

__all__ = ["StoreWait", "StoreWaits", "store_waits"]


class StoreWait(NamedTuple):
    """An unanswered request: its start time by the monotonic clock, and its description."""

    since_ms: int
    what: str


class StoreWaits:
    """The unanswered requests of this process, at most one for each thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[int, StoreWait] = {}

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Record that this thread waits for an answer while the context is open."""
        thread = threading.get_ident()
        self._waits[thread] = StoreWait(self._clock.monotonic_ms(), what)
        try:
            yield
        finally:
            self._waits.pop(thread, None)

    def find_longer_than(self, least_ms: int) -> list[StoreWait]:
        """Return the requests that have waited for at least `least_ms`."""
        latest_ms = self._clock.monotonic_ms() - least_ms
        return [wait for wait in list(self._waits.values()) if wait.since_ms <= latest_ms]


store_waits = StoreWaits(SystemClock())
