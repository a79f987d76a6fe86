"""One budget: who fits gets in, who waits gets in in order, and what is dropped comes back."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fetch.tier import PATIENCE, Later
from tierlog.clock import ManualClock
from tierlog.errors import ClosedError
from tierlog.reader.memory import FetchMemory, Permit

LONG_MS = 1000 * PATIENCE


class HeldClock(ManualClock):
    """Time stands still until it is moved on; who waits for it looks again and again."""

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        condition.wait(0.001)


def taken(memory: FetchMemory, size_bytes: int) -> Permit:
    permit = memory.acquire(size_bytes, 0)
    assert permit is not None
    return permit


def wait_until_waiting(memory: FetchMemory, count: int) -> None:
    for _ in range(PATIENCE * 1000):
        if memory.waiting == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"{memory.waiting} wait, not {count}")


def test_room_is_taken_and_given_back_once() -> None:
    memory = FetchMemory(100)
    first, second = taken(memory, 60), taken(memory, 40)
    assert memory.acquire(1, 0) is None
    assert memory.try_acquire(1) is None
    first.release()
    first.release()
    assert memory.used_bytes == 40
    second.release()
    assert (memory.used_bytes, memory.most_bytes) == (0, 100)
    with pytest.raises(ValueError, match="no room of -1"):
        memory.acquire(-1, 0)


@pytest.mark.parametrize("data", [b"abcdef", bytearray(b"abcdef"), np.frombuffer(b"abcdef", "u1")])
def test_room_stays_taken_while_anybody_has_a_view(data: bytes) -> None:
    memory = FetchMemory(100)
    view = taken(memory, 6).hold(data)
    assert view.readonly
    part = view[2:4][:1]
    assert bytes(part) == b"c"
    del view
    assert memory.used_bytes == 6
    columns = np.frombuffer(part, np.uint8)
    del part
    assert memory.used_bytes == 6
    del columns
    assert memory.used_bytes == 0


def test_a_permit_that_is_dropped_comes_back() -> None:
    memory = FetchMemory(100)
    permit = taken(memory, 60)
    del permit
    assert memory.used_bytes == 0
    permit = taken(memory, 60)
    with pytest.raises(TypeError):
        permit.hold(60)  # type: ignore[arg-type]
    view = permit.hold(b"bytes")
    with pytest.raises(ValueError, match="holds something already"):
        permit.hold(b"other")
    permit.release()
    assert (memory.used_bytes, bytes(view)) == (0, b"bytes")
    del view, permit
    assert memory.used_bytes == 0
    with pytest.raises(BufferError):
        memoryview(taken(memory, 1))


def test_more_than_all_of_it_is_had_alone() -> None:
    memory = FetchMemory(100)
    small = taken(memory, 1)
    assert memory.acquire(101, 0) is None
    small.release()
    large = taken(memory, 1000)
    assert memory.acquire(1, 0) is None
    large.release()
    assert memory.used_bytes == 0


def test_read_ahead_has_a_share_and_stands_back_for_who_waits() -> None:
    memory = FetchMemory(100, read_ahead_share=0.5)
    ahead = memory.try_acquire(50, ahead=True)
    assert ahead is not None
    assert memory.try_acquire(1, ahead=True) is None
    assert memory.read_ahead_bytes == 50
    rest = taken(memory, 40)
    waiting = Later(partial(memory.acquire, 20, LONG_MS))
    wait_until_waiting(memory, 1)
    assert memory.try_acquire(5) is None
    ahead.release()
    assert waiting.result().size_bytes == 20
    assert memory.read_ahead_bytes == 0
    assert memory.try_acquire(5) is not None
    rest.release()
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match="read_ahead_share"):
            FetchMemory(1, read_ahead_share=share)


def test_a_wait_ends_in_time() -> None:
    clock = ManualClock()
    memory = FetchMemory(10, clock=clock)
    held = taken(memory, 10)
    before_ms = clock.monotonic_ms()
    assert memory.acquire(1, 700) is None
    assert clock.monotonic_ms() - before_ms == 700
    assert (memory.waiting, memory.used_bytes) == (0, held.size_bytes)


def test_who_came_first_is_served_first_however_large() -> None:
    memory = FetchMemory(100)
    held = [taken(memory, 50), taken(memory, 50)]
    order: list[int] = []

    def reader(size_bytes: int) -> None:
        permit = memory.acquire(size_bytes, LONG_MS)
        assert permit is not None
        order.append(size_bytes)
        permit.release()

    readers = []
    for number, size_bytes in enumerate((90, 20, 30)):
        readers.append(Later(partial(reader, size_bytes)))
        wait_until_waiting(memory, number + 1)
    held[0].release()
    assert order == []
    held[1].release()
    for one in readers:
        one.result()
    assert order[0] == 90
    assert memory.used_bytes == 0


def test_who_stood_behind_one_that_gave_up_gets_in() -> None:
    clock = HeldClock()
    memory = FetchMemory(100, clock=clock)
    held = taken(memory, 60)
    large = Later(partial(memory.acquire, 90, 300))
    wait_until_waiting(memory, 1)
    small = Later(partial(memory.acquire, 30, LONG_MS))
    wait_until_waiting(memory, 2)
    clock.advance(300)
    assert large.result() is None
    assert small.result().size_bytes == 30
    assert held.size_bytes == 60


def test_idle_room_is_given_up_for_a_reader() -> None:
    memory = FetchMemory(100)
    idle = [taken(memory, 30), taken(memory, 30), taken(memory, 30)]

    def give_up(needed_bytes: int) -> None:
        assert needed_bytes == 50
        if idle:
            idle.pop().release()

    memory.on_shortage(give_up)
    found = memory.acquire(50, 10_000)
    assert found is not None
    assert len(idle) == 1
    memory.remove_on_shortage(give_up)
    memory.remove_on_shortage(give_up)
    assert memory.acquire(50, 0) is None


def test_another_budget_from_now_on() -> None:
    memory = FetchMemory(10)
    held = [taken(memory, 10)]
    waiting = Later(partial(memory.acquire, 5, LONG_MS))
    wait_until_waiting(memory, 1)
    memory.resize(20)
    held.append(waiting.result())
    memory.resize(1)
    assert (memory.limit_bytes, memory.used_bytes) == (1, sum(one.size_bytes for one in held))
    assert memory.try_acquire(1) is None
    for make in (memory.resize, FetchMemory):
        with pytest.raises(ValueError, match="limit_bytes"):
            make(0)


def test_close_wakes_who_waits_and_what_is_held_stays_good() -> None:
    memory = FetchMemory(10)
    view = taken(memory, 10).hold(b"0123456789")
    waiting = Later(partial(memory.acquire, 5, LONG_MS))
    wait_until_waiting(memory, 1)
    memory.close()
    with pytest.raises(ClosedError):
        waiting.result()
    with pytest.raises(ClosedError):
        memory.try_acquire(1)
    assert bytes(view) == b"0123456789"
    del view
    assert memory.used_bytes == 0


def test_finalizers_that_run_anywhere_neither_hang_nor_lose_count() -> None:
    """Views in garbage cycles come back when the collector runs: in the middle of anything, on any
    thread."""
    memory = FetchMemory(4_000)
    memory.on_shortage(lambda _needed_bytes: gc.collect())
    threshold, callbacks = gc.get_threshold(), gc.callbacks[:]
    # Hypothesis, once it has run here, has its own code called in every collection: meanwhile other
    # threads find that one is under way already, and wait until they look again.
    gc.callbacks.clear()
    # What is there already need not be looked through each time.
    gc.freeze()
    gc.set_threshold(7, 3, 3)

    def churn(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(1500):
            size = chance.randrange(1, 900)
            permit = memory.acquire(size, LONG_MS)
            assert permit is not None
            cycle: list[object] = [permit.hold(bytes(size))]
            cycle.append(cycle)
            # Nobody has one while he waits for the next.
            del permit, cycle

    try:
        for worker in [Later(partial(churn, seed)) for seed in range(4)]:
            worker.result()
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
        gc.callbacks[:] = callbacks
    gc.collect()
    assert memory.used_bytes == 0
    assert memory.most_bytes <= 4_000


@given(st.lists(st.tuples(st.integers(0, 120), st.booleans(), st.booleans()), max_size=60))
def test_against_a_model(steps: list[tuple[int, bool, bool]]) -> None:
    memory = FetchMemory(100, read_ahead_share=0.4)
    held: list[Permit] = []
    for size, ahead, release in steps:
        if release and held:
            held.pop(size % len(held)).release()
            continue
        used = sum(one.size_bytes for one in held)
        used_ahead = sum(one.size_bytes for one in held if one.ahead)
        permit = memory.try_acquire(size, ahead=ahead)
        if ahead:
            fits = used_ahead + size <= 40 and used + size <= 100
        else:
            fits = used + size <= 100 or used == 0
        assert (permit is not None) == fits
        if permit is not None:
            held.append(permit)
        assert memory.used_bytes == sum(one.size_bytes for one in held)
        assert memory.read_ahead_bytes == sum(one.size_bytes for one in held if one.ahead)


def test_a_view_of_a_view_in_garbage() -> None:
    """What CPython's collector does to a memoryview whose buffer somebody has would end the
    process, so this is one of its own."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "8 0\n", "")


COLLECTED = """
import gc
from tierlog._hot import ByteBudget

gc.disable()
budget = ByteBudget(8, 0, lambda: None)
permit, data = budget.take(8), memoryview(bytearray(8))
cycle = [data, permit, permit.hold(data)]
cycle.append(cycle)
del permit, data, cycle
used_bytes = budget.used_bytes
gc.collect()
print(used_bytes, budget.used_bytes)
"""
