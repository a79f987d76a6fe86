"""The threads of read-ahead."""

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
    """Runs the jobs of read-ahead."""

    def submit(self, job: Callable[[], None], delay_ms: float = 0) -> None:
        """Run `job` on another thread, soon or after `delay_ms`."""
        ...

    def close(self) -> None:
        """Start no more jobs. Jobs that have not started are dropped."""
        ...

    @property
    def threads(self) -> int:
        """The number of threads now."""
        ...


class Threads:
    """Runs jobs on up to `most` daemon threads, which are started when there are jobs. A thread
    that had no job for `idle_ms` calls `when_idle` and ends.

    `close` does not wait for the threads, so that a store that never answers cannot block the call.
    """

    def __init__(
        self, most: int, idle_ms: int, clock: Clock, when_idle: Callable[[], None]
    ) -> None:
        self._most = most
        self._idle_ms = idle_ms
        self._clock = clock
        self._when_idle = when_idle
        self._condition = threading.Condition()
        # Jobs that wait: the due time, a number in the order of arrival, and the job.
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
                threading.Thread(target=self._run_jobs, name="tier-read-ahead", daemon=True).start()
            else:
                self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._jobs.clear()
            self._condition.notify_all()

    def _run_jobs(self) -> None:
        while True:
            with self._condition:
                job = self._wait_for_job()
                if job is None:
                    self._threads -= 1
                    break
            job()
            # An idle thread must not keep the bytes of its last job in memory.
            del job
        self._when_idle()

    def _wait_for_job(self) -> Callable[[], None] | None:
        """Wait until the next job is due; None when no job comes for `idle_ms`. The caller holds
        the lock."""
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
