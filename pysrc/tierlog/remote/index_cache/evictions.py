"""What an index cache lets go for want of room or of use, and what of it is fetched again.

Bytes that come twice are what a larger cache, or a longer time to live, would have saved.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

__all__ = ["Evictions"]

# Causes that the settings of the cache are behind; a segment that was removed for good stays away.
_CAUSES = ("size", "expired")
# About 3 MB of keys. Of more than these the ones that left first are forgotten.
MAX_REMEMBERED = 10_000


class Evictions:
    """Counts the bytes that a cache fetches, and those among them that it had before. Any thread.

    The last `MAX_REMEMBERED` entries that left are known: what comes again after as many others
    have left counts as fetched for the first time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._causes: OrderedDict[Hashable, str] = OrderedDict()
        self._fetched_bytes = 0
        self._refetched_bytes = dict.fromkeys(_CAUSES, 0)

    def left(self, key: Hashable, cause: str) -> None:
        """An entry left the cache, because of ``size`` or as ``expired``; other causes do not
        count."""
        if cause not in _CAUSES:
            return
        with self._lock:
            self._causes[key] = cause
            self._causes.move_to_end(key)
            if len(self._causes) > MAX_REMEMBERED:
                self._causes.popitem(last=False)

    def fetched(self, key: Hashable, size_bytes: int) -> None:
        """So many bytes came from the store for an entry that was not there."""
        with self._lock:
            self._fetched_bytes += size_bytes
            cause = self._causes.pop(key, None)
            if cause is not None:
                self._refetched_bytes[cause] += size_bytes

    def counts(self) -> tuple[int, dict[str, int]]:
        """Bytes fetched, and those of them fetched again, by the cause for which they had left."""
        with self._lock:
            return self._fetched_bytes, dict(self._refetched_bytes)
