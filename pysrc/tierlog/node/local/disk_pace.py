"""Whether the disk of the log takes writes at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tierlog.clock import Clock

__all__ = ["DiskPace"]

# A write that the page cache takes needs far less, also while other processes use the processors.
_SLOW_MS = 50
# The pause after a slow write, as a multiple of its time.
_PAUSES = 20


class DiskPace:
    """Decides whether the event loop may write by itself.

    The page cache takes a small write at once, unless the disk lags behind. After a slow write the
    disk counts as slow for a multiple of the time that the write took. So the event loop waits for
    a slow disk for at most a twentieth of the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slow_until_ms: int | None = None

    @property
    def is_quick(self) -> bool:
        """Whether no write was slow lately."""
        until_ms = self._slow_until_ms
        return until_ms is None or self._clock.monotonic_ms() >= until_ms

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure a write."""
        begun_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            ended_ms = self._clock.monotonic_ms()
            took_ms = ended_ms - begun_ms
            if took_ms >= _SLOW_MS:
                self._slow_until_ms = ended_ms + _PAUSES * took_ms
