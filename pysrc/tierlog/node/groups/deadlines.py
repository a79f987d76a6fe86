"""A collection of actions by key. Each action is due at a time. The caller reads the clock and runs
them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count

__all__ = ["Deadlines"]

_MIN_LEFTOVERS = 64


class Deadlines:
    """One action per key. To set a later time for a key, as every heartbeat does, takes no more
    memory."""

    def __init__(self) -> None:
        self._actions: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        # For each key of `_actions`, the heap has an entry whose time is not later than that of the
        # action. `_queued` has the time of the entry.
        self._heap: list[tuple[int, int, Hashable]] = []
        self._queued: dict[Hashable, int] = {}
        self._order = count()

    def set(self, key: Hashable, time_ms: int, action: Callable[[], None]) -> None:
        """Run `action` at `time_ms`. The new action replaces the current action of `key`."""
        self._actions[key] = (time_ms, action)
        queued_ms = self._queued.get(key)
        if queued_ms is None or time_ms < queued_ms:
            self._push(key, time_ms)

    def cancel(self, key: Hashable) -> None:
        self._actions.pop(key, None)
        self._drop_leftovers()

    def next_ms(self) -> int | None:
        """Return a time before which no action is due; None when there is no action."""
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_ms: int) -> None:
        """Run the actions that are due, the earliest first. An action may set other actions."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue  # A newer entry with an earlier time replaced this one.
            del self._queued[key]
            found = self._actions.get(key)
            if found is None:
                continue
            time_ms, action = found
            if time_ms > now_ms:
                self._push(key, time_ms)
                continue
            del self._actions[key]
            action()

    def _push(self, key: Hashable, time_ms: int) -> None:
        self._queued[key] = time_ms
        heapq.heappush(self._heap, (time_ms, next(self._order), key))
        self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """Rebuild the heap once most of its entries belong to cancelled or replaced actions."""
        if len(self._heap) > 2 * len(self._actions) + _MIN_LEFTOVERS:
            self._queued = {key: time_ms for key, (time_ms, _) in self._actions.items()}
            self._heap = [
                (time_ms, next(self._order), key) for key, time_ms in self._queued.items()
            ]
            heapq.heapify(self._heap)
