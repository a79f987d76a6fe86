"""The pool of repeating tasks: by hand under a manual clock, and with threads."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tierlog.clock import ManualClock, SystemClock
from tierlog.errors import ClosedError, RemoteMetadataError, RemoteStorageError
from tierlog.tiering.task_pool import Again, RetryPolicy, Task, TaskFailure, TaskPool

INTERVAL_MS = 30_000
WAIT_MS = 30_000


def by_hand(clock: ManualClock, failures: list[TaskFailure] | None = None) -> TaskPool:
    return TaskPool(
        "copy",
        2,
        interval_ms=INTERVAL_MS,
        clock=clock,
        random=lambda: 0.5,
        on_failure=None if failures is None else failures.append,
    )


def run_all(pool: TaskPool) -> None:
    while pool.run_due():
        pass


def test_runs_at_once_then_after_the_interval_counted_from_its_end() -> None:
    clock = ManualClock()
    pool = by_hand(clock)
    ran_at_ms: list[int] = []

    def run(_: Task) -> Again:
        ran_at_ms.append(clock.monotonic_ms())
        clock.advance(7_000)
        return Again.LATER

    pool.add("p", run)
    for _ in range(3):
        run_all(pool)
        due_ms = pool.next_due_ms()
        assert due_ms is not None
        clock.advance(due_ms - clock.monotonic_ms())
    assert ran_at_ms[0] == 0
    # Rounded up to a slot, never early.
    assert 37_000 <= ran_at_ms[1] <= 37_000 + INTERVAL_MS // 256
    assert ran_at_ms[2] >= ran_at_ms[1] + 37_000


def test_a_backlog_does_not_starve_the_others() -> None:
    pool = by_hand(ManualClock())
    order: list[str] = []
    left = Counter({"big": 5, "small": 1, "middle": 2})

    def run(task: Task) -> Again:
        order.append(str(task.key))
        left[str(task.key)] -= 1
        return Again.NOW if left[str(task.key)] else Again.LATER

    for key in left:
        pool.add(key, run)
    run_all(pool)
    assert order == ["big", "small", "middle", "big", "middle", "big", "big", "big"]


@pytest.mark.parametrize(
    ("error", "first_ms", "third_ms"),
    [
        (RemoteStorageError("no answer"), 500, 2_000),
        (OSError(5, "input/output error"), 500, 2_000),
        (RemoteMetadataError("illegal"), INTERVAL_MS, INTERVAL_MS),
        (MemoryError(), INTERVAL_MS, INTERVAL_MS),
        (BaseException("a panic"), INTERVAL_MS, INTERVAL_MS),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_run_raises_the_task_goes_on(
    error: BaseException, first_ms: int, third_ms: int
) -> None:
    clock = ManualClock()
    failures: list[TaskFailure] = []
    pool = by_hand(clock, failures)
    outcomes = [error, error, error, None, error]

    def run(_: Task) -> Again:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return Again.LATER

    pool.add("p", run)
    while outcomes:
        due_ms = pool.next_due_ms()
        assert due_ms is not None
        clock.advance(max(0, due_ms - clock.monotonic_ms()))
        assert pool.run_due()
    assert [failure.failures for failure in failures] == [1, 2, 3, 1]
    assert [failure.retry_ms for failure in failures][::2] == [first_ms, third_ms]
    assert failures[0].retry_ms == failures[3].retry_ms, "a run that ended well forgets failures"
    assert pool.runs == 5


def test_an_interrupt_reaches_whoever_drives_the_pool() -> None:
    pool = by_hand(ManualClock())

    def run(_: Task) -> Again:
        raise KeyboardInterrupt

    pool.add("p", run)
    with pytest.raises(KeyboardInterrupt):
        pool.run_due()
    assert pool.running() == ()


def test_backoff_doubles_to_its_limit_and_chance_changes_it_by_the_jitter_at_most() -> None:
    policy = RetryPolicy(backoff_ms=100, max_ms=1_000, jitter=0.2)
    assert [policy.delay_ms(n, 0.5) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]
    assert policy.delay_ms(10**6, 0.5) == 1_000
    assert (policy.delay_ms(1, 0.0), policy.delay_ms(1, 1.0)) == (80, 120)


def test_never_and_remove_end_a_task() -> None:
    clock = ManualClock()
    pool = by_hand(clock)
    ran: list[object] = []

    def once(task: Task) -> Again:
        ran.append(task.key)
        return Again.NEVER

    def for_ever(task: Task) -> Again:
        ran.append(task.key)
        return Again.LATER

    pool.add("once", once)
    task = pool.add("for ever", for_ever)
    run_all(pool)
    pool.remove("for ever")
    pool.remove("for ever")
    pool.remove("unknown")
    assert task.cancelled
    clock.advance(10 * INTERVAL_MS)
    assert not pool.run_due()
    assert pool.next_due_ms() is None
    assert (ran, len(pool)) == (["once", "for ever"], 0)


def test_hurry_runs_everything_now() -> None:
    pool = by_hand(ManualClock())
    ran: list[object] = []

    def run(task: Task) -> Again:
        ran.append(task.key)
        return Again.LATER

    pool.add("p", run)
    run_all(pool)
    pool.hurry()
    run_all(pool)
    assert ran == ["p", "p"]


@pytest.fixture
def threads() -> TaskPool:
    return TaskPool("copy", 4, interval_ms=INTERVAL_MS, clock=SystemClock(), random=lambda: 0.5)


def test_a_replaced_task_and_its_successor_never_overlap(threads: TaskPool) -> None:
    """A leader that flaps: each run waits for the one before, whatever its thread is."""
    inside = threading.Lock()
    entered, leave = threading.Event(), threading.Event()
    overlaps: list[str] = []
    seen: list[str] = []

    def run_as(name: str, wait: bool) -> Callable[[Task], Again]:
        def run(_: Task) -> Again:
            if not inside.acquire(blocking=False):
                overlaps.append(name)
                return Again.LATER
            seen.append(name)
            if wait:
                entered.set()
                assert leave.wait(30)
            inside.release()
            return Again.LATER

        return run

    threads.start()
    first = threads.add("p", run_as("first", wait=True))
    assert entered.wait(30)
    threads.add("p", run_as("second", wait=False))
    third = threads.add("p", run_as("third", wait=False))
    assert first.cancelled
    leave.set()
    assert threads.wait_until_idle(WAIT_MS)
    assert (seen, overlaps) == (["first", "third"], [])
    assert not third.cancelled
    assert threads.close(WAIT_MS) == ()


def test_many_tasks_all_run_on_all_threads(threads: TaskPool) -> None:
    runs: Counter[object] = Counter()
    lock = threading.Lock()
    together = threading.Barrier(4, timeout=30)

    def meet(_: Task) -> Again:
        together.wait()
        return Again.NEVER

    def run(task: Task) -> Again:
        with lock:
            runs[task.key] += 1
            return Again.NOW if runs[task.key] < 5 else Again.LATER

    threads.start()
    for number in range(4):
        threads.add(("meet", number), meet)
    for number in range(500):
        threads.add(number, run)
    assert threads.wait_until_idle(WAIT_MS)
    assert set(runs.values()) == {5}
    assert len(runs) == 500
    assert threads.runs == 4 + 5 * 500
    assert threads.close(WAIT_MS) == ()


def test_a_task_with_an_earlier_time_is_not_slept_over() -> None:
    """The thread that sleeps until the next task is told of one that is due before that."""
    pool = TaskPool("copy", 3, interval_ms=3_600_000, clock=SystemClock(), random=lambda: 0.5)
    pool.start()
    ran = threading.Semaphore(0)

    def run(_: Task) -> Again:
        ran.release()
        return Again.LATER

    for number in range(50):
        pool.add(number, run)
        assert ran.acquire(timeout=30)
        assert pool.wait_until_idle(WAIT_MS)
    pool.hurry()
    for _ in range(50):
        assert ran.acquire(timeout=30)
    assert pool.close(WAIT_MS) == ()


def test_resize_takes_effect_at_once(threads: TaskPool) -> None:
    threads.start()
    threads.resize(8)
    together = threading.Barrier(8, timeout=30)

    def meet(_: Task) -> Again:
        together.wait()
        return Again.NEVER

    for number in range(8):
        threads.add(number, meet)
    assert threads.wait_until_idle(WAIT_MS)
    threads.resize(1)
    alone = threading.Lock()
    together_again: list[bool] = []

    def check(_: Task) -> Again:
        together_again.append(not alone.acquire(blocking=False))
        if not together_again[-1]:
            alone.release()
        return Again.NEVER

    for number in range(20):
        threads.add(number, check)
    assert threads.wait_until_idle(WAIT_MS)
    assert len(together_again) == 20
    assert threads.size == 1
    assert threads.close(WAIT_MS) == ()


def test_close_tells_what_still_runs_and_may_be_repeated(threads: TaskPool) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang(_: Task) -> Again:
        entered.set()
        assert leave.wait(30)
        return Again.LATER

    threads.start()
    task = threads.add("p", hang)
    assert entered.wait(30)
    (running,) = threads.running()
    assert running.key == "p"
    (still,) = threads.close(1)
    assert still.key == "p"
    assert task.cancelled
    leave.set()
    assert threads.close(WAIT_MS) == ()
    with pytest.raises(ClosedError, match="copy pool"):
        threads.add("q", hang)


def test_idle_ratio_counts_the_last_minute_and_what_is_under_way() -> None:
    clock = ManualClock()
    pool = by_hand(clock)
    under_way: list[float] = []

    def run(_: Task) -> Again:
        clock.advance(30_000)
        under_way.append(pool.idle_ratio())
        return Again.LATER

    assert pool.idle_ratio() == 1
    pool.add("p", run)
    run_all(pool)
    assert under_way == [pytest.approx(0.75)]
    assert pool.idle_ratio() == pytest.approx(0.75)
    clock.advance(61_000)
    assert pool.idle_ratio() == 1


def test_queued_counts_what_is_due() -> None:
    clock = ManualClock()
    pool = by_hand(clock)
    for number in range(3):
        pool.add(number, lambda _: Again.LATER)
    assert pool.queued() == 3
    run_all(pool)
    assert pool.queued() == 0
