"""Repeating tasks of many partitions on a few threads.

Each task runs again a fixed delay after its last run has ended, as in Kafka; one with a backlog
goes to the end of the queue and runs again at once, so partitions take turns.
A run that fails is tried again later, whatever it failed with: nothing but its own word ends a
task's schedule. Two runs with one key never overlap, also when the second task replaced the first.

The same pool can be driven by hand, one run after the other in the caller's thread, under a clock
that moves only when told.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from itertools import count

from tierlog.clock import Clock
from tierlog.errors import ClosedError
from tierlog.metrics.busy import BusyMeter

__all__ = ["Again", "RetryPolicy", "RunningTask", "Task", "TaskFailure", "TaskPool"]

# Idle tasks wake a thread together: their times are rounded up to this part of the interval.
_SLOTS = 256
_LONG_MS = 3_600_000


class Again(Enum):
    """When a task wants to run again."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long after a failure a task runs again: ``backoff_ms``, doubled with each further one up
    to ``max_ms``, changed by chance by up to ``jitter`` (0 to 0.5) of it."""

    backoff_ms: int = 500
    max_ms: int = 30_000
    jitter: float = 0.2

    def delay_ms(self, failures: int, chance: float) -> int:
        """The pause after the `failures`-th failure in a row; `chance` is in [0, 1)."""
        doubled_ms = min(self.backoff_ms << min(failures - 1, 32), self.max_ms)
        return max(1, round(doubled_ms * (1 + self.jitter * (2 * chance - 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """A run that raised `error`; the next one is in `retry_ms`."""

    pool: str
    key: Hashable
    error: BaseException
    failures: int
    retry_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A run under way for `running_ms`."""

    key: Hashable
    running_ms: int


class Task:
    """One repeating task. `cancelled` is asked by its runs between their steps."""

    __slots__ = ("_cancelled", "failures", "key", "run")

    def __init__(self, key: Hashable, run: Callable[[Task], Again]) -> None:
        self.key = key
        self.run = run
        self.failures = 0
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether its pool has let go of it."""
        return self._cancelled

    def cancel(self) -> None:
        """The run under way ends at its next step, and there is no further one."""
        self._cancelled = True


class TaskPool:
    """``size`` threads that run tasks every ``interval_ms``.

    ``on_failure`` is told of every run that raised, in the thread it ran in; it must not raise.
    ``random`` gives
    numbers in [0, 1). Threads begin with `start`; without it `run_due` runs one task at a time.
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        interval_ms: int,
        clock: Clock,
        random: Callable[[], float],
        retry: RetryPolicy | None = None,
        on_failure: Callable[[TaskFailure], None] | None = None,
    ) -> None:
        self.name = name
        self.interval_ms = interval_ms
        self._size = size
        self._clock = clock
        self._random = random
        self._retry = retry or RetryPolicy()
        self._on_failure = on_failure
        self._slot_ms = max(1, interval_ms // _SLOTS)
        self._lock = threading.Lock()
        # Of the idle threads one watches what is due next, the others sleep until called.
        self._watch = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._tasks: dict[Hashable, Task] = {}
        self._due: list[tuple[int, int, Task]] = []
        self._order = count()
        self._running: dict[Hashable, tuple[Task, int]] = {}
        self._parked: dict[Hashable, deque[Task]] = {}
        self._threads: set[threading.Thread] = set()
        self._watching = False
        self._started = False
        self._closed = False
        self._runs = 0
        self._busy = BusyMeter()

    def __repr__(self) -> str:
        return f"TaskPool({self.name!r}, size={self._size}, tasks={len(self._tasks)})"

    # -- tasks

    def add(self, key: Hashable, run: Callable[[Task], Again]) -> Task:
        """A task that runs for the first time at once. One with this key is replaced: it is
        cancelled, and the new one waits until its last run has ended."""
        task = Task(key, run)
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self.name} pool: closed")
            replaced = self._tasks.get(key)
            if replaced is not None:
                replaced.cancel()
            self._tasks[key] = task
            self._push(task, self._clock.monotonic_ms())
        return task

    def remove(self, key: Hashable) -> None:
        """Cancel the task with this key, if there is one; a run under way ends by itself."""
        with self._lock:
            task = self._tasks.pop(key, None)
            if task is not None:
                task.cancel()
            if not self._tasks and not self._running:
                self._settled.notify_all()

    def set_interval(self, interval_ms: int) -> None:
        """Run every task now, and from then on once per `interval_ms`."""
        with self._lock:
            self.interval_ms = interval_ms
            self._slot_ms = max(1, interval_ms // _SLOTS)
        self.hurry()

    def hurry(self) -> None:
        """Every task is due now."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._due = [
                (min(due_ms, now_ms), order, task)
                for due_ms, order, task in self._due
                if not task.cancelled
            ]
            heapq.heapify(self._due)
            self._call()

    # -- by hand

    def next_due_ms(self) -> int | None:
        """Monotonic time of the next run; None when nothing is scheduled."""
        with self._lock:
            self._drop_cancelled()
            return self._due[0][0] if self._due else None

    def run_due(self) -> bool:
        """Run the task that is due first in this thread; False when none is due."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            task = self._take(now_ms)
        if task is None:
            return False
        self._run(task, now_ms)
        return True

    # -- threads

    def start(self) -> None:
        """Begin to work in threads of its own."""
        with self._lock:
            self._started = True
            self._fill()

    def resize(self, size: int) -> None:
        """Another number of threads, from now on; a thread too many ends after its run."""
        with self._lock:
            self._size = size
            self._fill()
            self._call_all()

    def wait_until_idle(self, timeout_ms: int) -> bool:
        """Wait until no task is running or due now; False when that took too long."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._lock:
            while True:
                now_ms = self._clock.monotonic_ms()
                self._drop_cancelled()
                due = bool(self._due) and self._due[0][0] <= now_ms
                if not due and not self._running:
                    return True
                if now_ms >= deadline_ms:
                    return False
                self._clock.wait(self._settled, deadline_ms - now_ms)

    def cancel(self) -> None:
        """Cancel everything, for good, and wait for nobody."""
        with self._lock:
            self._closed = True
            for task in (*self._tasks.values(), *(task for task, _ in self._running.values())):
                task.cancel()
            self._tasks.clear()
            self._due.clear()
            self._parked.clear()
            self._call_all()

    def close(self, timeout_ms: int = 30_000) -> tuple[RunningTask, ...]:
        """`cancel`, then wait for the runs under way; those that go on after all.

        May be repeated.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        self.cancel()
        with self._lock:
            while self._running:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if left_ms <= 0:
                    break
                self._clock.wait(self._settled, left_ms)
        return self.running()

    # -- for whoever watches

    @property
    def size(self) -> int:
        """How many threads there are to be."""
        return self._size

    @property
    def runs(self) -> int:
        """Runs that have ended."""
        return self._runs

    def __len__(self) -> int:
        return len(self._tasks)

    def queued(self) -> int:
        """Tasks that are due and wait for a thread."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            return sum(due_ms <= now_ms and not task.cancelled for due_ms, _, task in self._due)

    def running(self) -> tuple[RunningTask, ...]:
        """Runs under way, the longest first."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            found = [
                RunningTask(key=key, running_ms=now_ms - since_ms)
                for key, (_, since_ms) in self._running.items()
            ]
        return tuple(sorted(found, key=lambda one: -one.running_ms))

    def idle_ratio(self) -> float:
        """The idle share of all threads in the last minute, 0 to 1."""
        under_way_ms = [one.running_ms for one in self.running()]
        return self._busy.idle_ratio(self._size, under_way_ms, self._clock.monotonic_ms())

    # -- inside; the lock is held where it is not said otherwise

    def _push(self, task: Task, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), task))
        if self._due[0][2] is task:
            self._call()

    def _call(self) -> None:
        """Somebody is to look what is due first."""
        (self._watch if self._watching else self._work).notify()

    def _call_all(self) -> None:
        self._watch.notify_all()
        self._work.notify_all()

    def _drop_cancelled(self) -> None:
        while self._due and self._due[0][2].cancelled:
            heapq.heappop(self._due)

    def _take(self, now_ms: int) -> Task | None:
        """The task to run now, marked as running."""
        while True:
            self._drop_cancelled()
            if not self._due or self._due[0][0] > now_ms:
                return None
            task = heapq.heappop(self._due)[2]
            if task.key not in self._running:
                self._running[task.key] = (task, now_ms)
                return task
            self._parked.setdefault(task.key, deque()).append(task)

    def _run(self, task: Task, began_ms: int) -> None:
        """Run a task that was taken; without the lock."""
        failure: BaseException | None = None
        again = Again.NEVER
        try:
            if not task.cancelled:
                again = task.run(task)
        except (KeyboardInterrupt, SystemExit):
            self._ended(task, began_ms, again, None)
            raise
        except BaseException as error:  # noqa: BLE001 - whatever ends a run does not end its task
            failure = error
        self._ended(task, began_ms, again, failure)

    def _ended(self, task: Task, began_ms: int, again: Again, error: BaseException | None) -> None:
        now_ms = self._clock.monotonic_ms()
        self._busy.ran(now_ms - began_ms, now_ms)
        failure: TaskFailure | None = None
        with self._lock:
            self._runs += 1
            del self._running[task.key]
            for parked in self._parked.pop(task.key, ()):
                self._push(parked, now_ms)
            if not task.cancelled and not self._closed:
                if error is not None:
                    failure = self._failed(task, error)
                    self._push(task, now_ms + failure.retry_ms)
                elif again is Again.NEVER:
                    if self._tasks.get(task.key) is task:
                        del self._tasks[task.key]
                    task.cancel()
                else:
                    task.failures = 0
                    self._push(task, now_ms if again is Again.NOW else self._next_slot_ms(now_ms))
            self._settled.notify_all()
        if failure is not None and self._on_failure is not None:
            self._on_failure(failure)

    def _failed(self, task: Task, error: BaseException) -> TaskFailure:
        task.failures += 1
        retry_ms = self._retry.delay_ms(task.failures, self._random())
        if not isinstance(error, OSError) and not getattr(error, "retriable", False):
            # Nobody promised that this goes away by itself.
            retry_ms = max(retry_ms, self.interval_ms)
        return TaskFailure(
            pool=self.name,
            key=task.key,
            error=error,
            failures=task.failures,
            retry_ms=retry_ms,
        )

    def _next_slot_ms(self, now_ms: int) -> int:
        due_ms = now_ms + self.interval_ms
        return -(-due_ms // self._slot_ms) * self._slot_ms

    def _fill(self) -> None:
        """As many threads as there are to be."""
        while self._started and not self._closed and len(self._threads) < self._size:
            name = f"tierlog-{self.name}-{len(self._threads)}"
            # A store call that hangs for ever must not keep the process from ending.
            thread = threading.Thread(target=self._work_on, name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work_on(self) -> None:
        """What each thread does; without the lock."""
        while True:
            with self._lock:
                found = self._next_task()
                if found is None:
                    self._threads.discard(threading.current_thread())
                    self._settled.notify_all()
                    return
            self._run(*found)

    def _next_task(self) -> tuple[Task, int] | None:
        """Waits for the next task that is due; None when this thread is to end."""
        while not self._closed and len(self._threads) <= self._size:
            now_ms = self._clock.monotonic_ms()
            task = self._take(now_ms)
            if task is not None:
                if self._due and not self._watching:
                    self._work.notify()
                return task, now_ms
            if self._watching or not self._due:
                self._clock.wait(self._work, _LONG_MS)
                continue
            self._watching = True
            self._clock.wait(self._watch, self._due[0][0] - now_ms)
            self._watching = False
        return None
