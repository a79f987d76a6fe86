"""Counts the bytes that an index cache fetches again after it evicted them.

A larger cache, or a longer time to live, would have saved these requests.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

__all__ = ["Evictions"]

# Evictions that other settings could avoid; an explicit removal is not one.
_CAUSES = ("size", "expired")
# About 3 MB of keys; the oldest ones above this number are dropped.
MAX_REMEMBERED = 10_000


class Evictions:
    """Counts the bytes that a cache fetches, and those that it fetches again after an eviction.
    Thread-safe.

    Only the last `MAX_REMEMBERED` evicted keys are remembered. If an entry is fetched again after
    more evictions than that, it counts as fetched for the first time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._causes: OrderedDict[Hashable, str] = OrderedDict()
        self._fetched_bytes = 0
        self._refetched_bytes = dict.fromkeys(_CAUSES, 0)

    def record_eviction(self, key: Hashable, cause: str) -> None:
        """Record an eviction, with the cause ``size`` or ``expired``; other causes are ignored."""
        if cause not in _CAUSES:
            return
        with self._lock:
            self._causes[key] = cause
            self._causes.move_to_end(key)
            if len(self._causes) > MAX_REMEMBERED:
                self._causes.popitem(last=False)

    def record_fetch(self, key: Hashable, size_bytes: int) -> None:
        """Record that an entry of `size_bytes` was fetched from the store."""
        with self._lock:
            self._fetched_bytes += size_bytes
            cause = self._causes.pop(key, None)
            if cause is not None:
                self._refetched_bytes[cause] += size_bytes

    def counts(self) -> tuple[int, dict[str, int]]:
        """Return the bytes fetched, and the bytes fetched again by the cause of their eviction."""
        with self._lock:
            return self._fetched_bytes, dict(self._refetched_bytes)
