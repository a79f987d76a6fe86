"""Measures whether the disk of a node delays small writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tierlog.clock import Clock

__all__ = ["DiskPace"]

# A write to the page cache takes far less time, even when other processes use the processors.
_SLOW_MS = 50
# The pause after a slow write, as a multiple of its time.
_PAUSES = 20


class DiskPace:
    """Decides whether the event loop may write by itself.

    A small write usually goes to the page cache and does not wait for the disk. After a write of at
    least 50 ms, the disk counts as slow for 20 times as long as the write took. So the event loop
    waits for a slow disk for at most a twentieth of the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slow_until_ms: int | None = None

    @property
    def is_quick(self) -> bool:
        """Whether the disk does not count as slow now."""
        until_ms = self._slow_until_ms
        return until_ms is None or self._clock.monotonic_ms() >= until_ms

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time of the write in the body."""
        begun_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            ended_ms = self._clock.monotonic_ms()
            took_ms = ended_ms - begun_ms
            if took_ms >= _SLOW_MS:
                self._slow_until_ms = ended_ms + _PAUSES * took_ms
