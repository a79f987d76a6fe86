"""The few threads that fetch what readers will want next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Protocol

from tierlog.clock import Clock

__all__ = ["Threads", "Workers"]


class Workers(Protocol):
    """Where pieces are fetched."""

    def submit(self, job: Callable[[], None], delay_ms: float = 0) -> None:
        """Run `job` on another thread, soon or after `delay_ms`."""
        ...

    def close(self) -> None:
        """Start no more; what has not begun never does."""
        ...

    @property
    def threads(self) -> int:
        """How many there are now."""
        ...


class Threads:
    """Up to `most` daemon threads, begun when there is work; one that had none
    for `idle_ms` ends and calls `when_idle`.

    They are not waited for: a store that never answers keeps nobody from closing.
    """

    def __init__(
        self, most: int, idle_ms: int, clock: Clock, when_idle: Callable[[], None]
    ) -> None:
        self._most = most
        self._idle_ms = idle_ms
        self._clock = clock
        self._when_idle = when_idle
        self._condition = threading.Condition()
        # When, in which order they came, what.
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._threads = self._idle = 0
        self._closed = False

    @property
    def threads(self) -> int:
        return self._threads

    def submit(self, job: Callable[[], None], delay_ms: float = 0) -> None:
        with self._condition:
            if self._closed:
                return
            due_ms = self._clock.monotonic_ms() + delay_ms
            heappush(self._jobs, (due_ms, next(self._numbers), job))
            if len(self._jobs) > self._idle and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name="tier-read-ahead", daemon=True).start()
            else:
                self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._jobs.clear()
            self._condition.notify_all()

    def _work(self) -> None:
        while True:
            with self._condition:
                job = self._next()
                if job is None:
                    self._threads -= 1
                    break
            job()
            # A thread without work must not keep alive what the last job has fetched.
            del job
        self._when_idle()

    def _next(self) -> Callable[[], None] | None:
        """Waits for the next job to be due; None when there is none for too long. With the lock."""
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + self._idle_ms
        while not self._closed and (self._jobs or now_ms < until_ms):
            next_ms = self._jobs[0][0] if self._jobs else until_ms
            if self._jobs and next_ms <= now_ms:
                return heappop(self._jobs)[2]
            self._idle += 1
            self._clock.wait(self._condition, ceil(next_ms - now_ms))
            self._idle -= 1
            now_ms = self._clock.monotonic_ms()
        return None
