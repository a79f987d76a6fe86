"""The two clocks: the machine's, and the one tests hold in their hands."""

from __future__ import annotations

import threading
import time

import pytest

from tierlog.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_is_the_machine_s() -> None:
    clock: Clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 5_000
    before = clock.monotonic_ms()
    clock.sleep(3)
    assert clock.monotonic_ms() - before >= 2
    clock.sleep(0)
    clock.sleep(-1)


def test_a_wait_ends_with_its_time_or_a_notification() -> None:
    clock = SystemClock()
    condition = threading.Condition()
    with condition:
        before = clock.monotonic_ms()
        clock.wait(condition, 3)
        assert clock.monotonic_ms() - before >= 2
        clock.wait(condition, 0)

    def notify() -> None:
        with condition:
            condition.notify_all()

    with condition:
        # It cannot notify before the lock is let go, which is when the wait has begun.
        thread = threading.Thread(target=notify)
        thread.start()
        before = clock.monotonic_ms()
        clock.wait(condition, 60_000)
        assert clock.monotonic_ms() - before < 60_000
    thread.join()


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(now_ms=1_000, monotonic_ms=50)
    clock.sleep(7)
    clock.advance(3)
    clock.sleep(-5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_010, 60)
    clock.wait(threading.Condition(), 5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_015, 65)
    clock.jump_wall(-500)
    assert (clock.now_ms(), clock.monotonic_ms()) == (515, 65)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
