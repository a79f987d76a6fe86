"""Run in an environment with both wheels: exact totals from threads that hold no lock."""

from __future__ import annotations

import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import native_caller  # type: ignore[import-not-found]

import tierlog
from tierlog._hot import CachedIndex, native_key

THREADS, TIMES, ROWS = 4, 250_000, 1000


def totals_are_exact() -> None:
    sensor = tierlog.QuotaSensor(11, 1000, None)
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = [
            pool.submit(native_caller.record, sensor, number + 1, TIMES, 5000)
            for number in range(THREADS)
        ]
        assert [job.result() for job in jobs] == [0] * THREADS
    assert sensor.total() == TIMES * sum(range(1, THREADS + 1))
    assert native_caller.record(sensor, 2**48 + 1, 1, 5000) == -1


def look_ups_are_right_while_others_write() -> None:
    firsts = [10 * row for row in range(ROWS)]
    lasts = [first + 9 for first in firsts]
    index = CachedIndex(
        tierlog.encode_remote_log_index(firsts, lasts, firsts, firsts, [7] * ROWS, [b"o:0"] * ROWS)
    )
    expected = sum(index.lookup_position(offset) for offset in range(10 * ROWS))
    cache, key, stop = tierlog.IndexCache(50), ("topic", 7), threading.Event()
    cache.put(key, index, 1)

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            cache.put(number % 100, number, 1)
            cache.put(key, index, 1)

    with ThreadPoolExecutor(THREADS + 1) as pool:
        writer = pool.submit(write)
        native = native_key(key)
        jobs = [
            pool.submit(native_caller.look_up, cache, native, 10 * ROWS) for _ in range(THREADS)
        ]
        assert [job.result() for job in jobs] == [expected] * THREADS
        stop.set()
        writer.result()
    miss, closed = native_caller.codes()
    assert native_caller.look_up(cache, native, 10 * ROWS + 1) == -1
    assert native_caller.look_up(cache, b"sother", 1) == miss
    cache.put("text", "text", 1)
    assert native_caller.look_up(cache, native_key("text"), 1) == -3
    cache.close()
    assert native_caller.look_up(cache, native, 1) == closed


def nobody_holds_the_lock() -> None:
    sensor = tierlog.QuotaSensor(11, 1000, 10)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(native_caller.wait_until_throttled, sensor, 0, 60_000)
        # This thread needs the interpreter for every call, while the other one turns.
        for _ in range(1000):
            sensor.record(1, 0)
        assert waiter.result() is True


def what_the_guide_shows_works() -> None:
    index = CachedIndex(
        tierlog.encode_remote_log_index([0, 10], [9, 19], [1, 1], [1, 1], [7, 7], [b"o:0", b"o:7"])
    )
    sensor, cache = tierlog.QuotaSensor(10, 1000, 100), tierlog.IndexCache(50)
    cache.put("segment", index, 1)
    key = native_key("segment")
    second = index.lookup_position(15)
    assert native_caller.admit(sensor, cache, key, 15, 1000) == (0, second)
    wait_ms, position = native_caller.admit(sensor, cache, key, 15, 1)
    assert wait_ms > 0
    assert position == second


assert Path(tierlog.__file__).is_relative_to(sysconfig.get_path("purelib"))
totals_are_exact()
look_ups_are_right_while_others_write()
nobody_holds_the_lock()
what_the_guide_shows_works()
print("fine")
