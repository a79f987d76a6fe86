"""Estimates from requests how long a store waits before it sends."""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["StoreWaits"]

# The estimate assumes that every store sends this many bytes in a millisecond. The rest of a
# request's time counts as waiting.
_BYTES_PER_MS = 1 << 20
# The number of requests that the estimate follows.
_REQUESTS = 8


class StoreWaits:
    """``wait_ms`` is the estimated time before a store begins to send. Any thread.

    If only one request is active, the time is measured: the duration of the request minus the time
    to send its bytes. If several requests are active, each request gives two bounds for the time.
    The upper bound is the duration of the request minus the time to send its own bytes. The lower
    bound is the duration minus the time to send the requested bytes of all active requests. The
    estimate changes only when it is outside of the bounds of the quickest of the last requests,
    because slower requests may have waited for a processor.
    """

    def __init__(self) -> None:
        self.wait_ms = 0.0
        self._lock = threading.Lock()
        self._under_way_bytes = 0
        self._least_ms: deque[float] = deque(maxlen=_REQUESTS)
        self._most_ms: deque[float] = deque(maxlen=_REQUESTS)

    def begin(self, size_bytes: int) -> int:
        """Note the start of a request; return the `shared_bytes` for `end`."""
        with self._lock:
            self._under_way_bytes += size_bytes
            return self._under_way_bytes

    def end(self, size_bytes: int, shared_bytes: int, duration_ms: int | None) -> None:
        """Note the end of a request and its duration. The duration is None when the request
        failed."""
        with self._lock:
            shared_bytes = max(shared_bytes, self._under_way_bytes)
            self._under_way_bytes -= size_bytes
            if duration_ms is None:
                return
            self._least_ms.append(max(0.0, duration_ms - shared_bytes / _BYTES_PER_MS))
            self._most_ms.append(max(0.0, duration_ms - size_bytes / _BYTES_PER_MS))
            self.wait_ms = min(max(self.wait_ms, min(self._least_ms)), min(self._most_ms))
