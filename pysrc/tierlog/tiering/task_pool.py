"""Repeating tasks of many partitions on a few threads.

Each task runs again a fixed time after the end of its last run, as in Kafka. A task with a backlog
is due again at once, but runs after the other due tasks, so partitions take turns. A failed run is
retried after any error; only the task itself can end its schedule. Two runs with the same key never
overlap, also when a second task replaces the first.

`run_due` runs the tasks one by one in the caller's thread, for tests under a manual clock.
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

# Due times are rounded up to this fraction of the interval, so that idle tasks share wake-ups.
_SLOTS = 256
_LONG_MS = 3_600_000


class Again(Enum):
    """When a task runs again."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The delay of a retry: ``backoff_ms``, doubled with each further failure up to ``max_ms``,
    plus or minus a random share of up to ``jitter`` (0 to 0.5)."""

    backoff_ms: int = 500
    max_ms: int = 30_000
    jitter: float = 0.2

    def delay_ms(self, failures: int, chance: float) -> int:
        """Return the delay after `failures` failures in a row; `chance` is in [0, 1)."""
        doubled_ms = min(self.backoff_ms << min(failures - 1, 32), self.max_ms)
        return max(1, round(doubled_ms * (1 + self.jitter * (2 * chance - 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """A run raised `error`; the next run starts in `retry_ms`."""

    pool: str
    key: Hashable
    error: BaseException
    failures: int
    retry_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """An active run, which started `running_ms` ago."""

    key: Hashable
    running_ms: int


class Task:
    """One repeating task. Its runs check `cancelled` between their steps."""

    __slots__ = ("_cancelled", "failures", "key", "run")

    def __init__(self, key: Hashable, run: Callable[[Task], Again]) -> None:
        self.key = key
        self.run = run
        self.failures = 0
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled."""
        return self._cancelled

    def cancel(self) -> None:
        """End the active run at its next step; no further run starts."""
        self._cancelled = True


class TaskPool:
    """``size`` threads that run tasks every ``interval_ms``.

    ``on_failure`` is called in the thread of each failed run; it must not raise. ``random`` returns
    numbers in [0, 1). `start` starts the threads. A caller without threads calls `run_due`.
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
        # One idle thread waits for the next due time; the others sleep until notified.
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
        """Add a task that runs at once. If there is a task with this key, it is cancelled, and the
        new task starts when the active run of the old task has ended."""
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
        """Cancel the task with this key, if it exists; an active run ends at its next step."""
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
        """Make every task due now."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._due = [
                (min(due_ms, now_ms), order, task)
                for due_ms, order, task in self._due
                if not task.cancelled
            ]
            heapq.heapify(self._due)
            self._call()

    # -- without threads

    def next_due_ms(self) -> int | None:
        """Return the monotonic time of the next run; None when no task is scheduled."""
        with self._lock:
            self._drop_cancelled()
            return self._due[0][0] if self._due else None

    def run_due(self) -> bool:
        """Run the task that is due first, in this thread. Return False when no task is due."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            task = self._take(now_ms)
        if task is None:
            return False
        self._run(task, now_ms)
        return True

    # -- threads

    def start(self) -> None:
        """Start the threads."""
        with self._lock:
            self._started = True
            self._fill()

    def resize(self, size: int) -> None:
        """Change the number of threads. A thread above this number ends after its present run."""
        with self._lock:
            self._size = size
            self._fill()
            self._call_all()

    def wait_until_idle(self, timeout_ms: int) -> bool:
        """Wait until no task is running or due. Return False after the timeout."""
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
        """Cancel all tasks, and do not wait for active runs."""
        with self._lock:
            self._closed = True
            for task in (*self._tasks.values(), *(task for task, _ in self._running.values())):
                task.cancel()
            self._tasks.clear()
            self._due.clear()
            self._parked.clear()
            self._call_all()

    def close(self, timeout_ms: int = 30_000) -> tuple[RunningTask, ...]:
        """Cancel all tasks and wait; return the runs that did not end in time.

        The call may be repeated.
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

    # -- figures

    @property
    def size(self) -> int:
        """The configured number of threads."""
        return self._size

    @property
    def runs(self) -> int:
        """The number of runs that have ended."""
        return self._runs

    def __len__(self) -> int:
        return len(self._tasks)

    def queued(self) -> int:
        """Return the number of tasks that are due and wait for a thread."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            return sum(due_ms <= now_ms and not task.cancelled for due_ms, _, task in self._due)

    def running(self) -> tuple[RunningTask, ...]:
        """Return the active runs, the longest first."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            found = [
                RunningTask(key=key, running_ms=now_ms - since_ms)
                for key, (_, since_ms) in self._running.items()
            ]
        return tuple(sorted(found, key=lambda one: -one.running_ms))

    def idle_ratio(self) -> float:
        """Return the share of the last minute in which the threads were idle, from 0 to 1."""
        under_way_ms = [one.running_ms for one in self.running()]
        return self._busy.idle_ratio(self._size, under_way_ms, self._clock.monotonic_ms())

    # -- internals; the caller holds the lock unless a docstring says otherwise

    def _push(self, task: Task, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), task))
        if self._due[0][2] is task:
            self._call()

    def _call(self) -> None:
        """Wake the thread that waits for the next due time."""
        (self._watch if self._watching else self._work).notify()

    def _call_all(self) -> None:
        self._watch.notify_all()
        self._work.notify_all()

    def _drop_cancelled(self) -> None:
        while self._due and self._due[0][2].cancelled:
            heapq.heappop(self._due)

    def _take(self, now_ms: int) -> Task | None:
        """Return the task to run now, marked as running."""
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
        """Run a task that `_take` returned. The caller does not hold the lock."""
        failure: BaseException | None = None
        again = Again.NEVER
        try:
            if not task.cancelled:
                again = task.run(task)
        except (KeyboardInterrupt, SystemExit):
            self._ended(task, began_ms, again, None)
            raise
        except BaseException as error:  # noqa: BLE001 - no error ends the task
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
            # The error may be permanent.
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
        """Start threads up to the configured number."""
        while self._started and not self._closed and len(self._threads) < self._size:
            name = f"tierlog-{self.name}-{len(self._threads)}"
            # A store call that hangs must not prevent the process from ending.
            thread = threading.Thread(target=self._work_on, name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work_on(self) -> None:
        """Run tasks until the pool is closed. The caller does not hold the lock."""
        while True:
            with self._lock:
                found = self._next_task()
                if found is None:
                    self._threads.discard(threading.current_thread())
                    self._settled.notify_all()
                    return
            self._run(*found)

    def _next_task(self) -> tuple[Task, int] | None:
        """Wait for the next due task and return it; None when this thread should end."""
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
