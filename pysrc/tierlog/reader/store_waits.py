"""How long a store lets its readers wait, as the requests to it tell."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["StoreWaits"]

# Bytes that any store hands over in a millisecond: what a request took beyond that was waiting.
_BYTES_PER_MS = 1 << 20
# So many requests tell how quick a store is.
_REQUESTS = 8


class StoreWaits:
    """``wait_ms`` goes by before a store begins to send. Any thread.

    A request that had the line to itself tells it: what it took beyond the time of its bytes. Of
    several at once each says two things only: no longer than what it took beyond the time of its
    own bytes, no less than beyond that of all that were under way. So what was found is kept until
    the last few requests say otherwise, the quickest of them: the others may have waited for a
    processor.
    """

    def __init__(self) -> None:
        self.wait_ms = 0.0
        self._lock = threading.Lock()
        self._under_way_bytes = 0
        self._least_ms: deque[float] = deque(maxlen=_REQUESTS)
        self._most_ms: deque[float] = deque(maxlen=_REQUESTS)

    def begin(self, size_bytes: int) -> int:
        """A request goes out; what `end` wants to know of it."""
        with self._lock:
            self._under_way_bytes += size_bytes
            return self._under_way_bytes

    def end(self, size_bytes: int, shared_bytes: int, duration_ms: int | None) -> None:
        """It took that long; None when it failed."""
        with self._lock:
            shared_bytes = max(shared_bytes, self._under_way_bytes)
            self._under_way_bytes -= size_bytes
            if duration_ms is None:
                return
            self._least_ms.append(max(0.0, duration_ms - shared_bytes / _BYTES_PER_MS))
            self._most_ms.append(max(0.0, duration_ms - size_bytes / _BYTES_PER_MS))
            self.wait_ms = min(max(self.wait_ms, min(self._least_ms)), min(self._most_ms))
