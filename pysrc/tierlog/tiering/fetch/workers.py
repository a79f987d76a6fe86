"""The few threads that fetch what readers will want next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tierlog.clock import Clock

__all__ = ["Threads", "Workers"]


class Workers(Protocol):
    """Where pieces are fetched."""

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` soon, on another thread."""
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
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = self._idle = 0
        self._closed = False

    @property
    def threads(self) -> int:
        return self._threads

    def submit(self, job: Callable[[], None]) -> None:
        with self._condition:
            if self._closed:
                return
            self._jobs.append(job)
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
                if not self._jobs and not self._closed:
                    self._idle += 1
                    self._clock.wait(self._condition, self._idle_ms)
                    self._idle -= 1
                if not self._jobs:
                    self._threads -= 1
                    break
                job = self._jobs.popleft()
            job()
            # A thread without work must not keep alive what the last job has fetched.
            del job
        self._when_idle()
