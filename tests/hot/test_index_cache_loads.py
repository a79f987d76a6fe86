"""Loading through the index cache: one load a key, errors, timeouts, cancelling, closing."""

from __future__ import annotations

import _thread
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.hot.support import Listener, Value
from tierlog import ClosedError, IndexCache


def test_one_load_for_all_who_miss() -> None:
    cache = IndexCache(10, record_stats=True)
    inside, release, loads = threading.Event(), threading.Event(), []

    def loader(key: Any) -> tuple[Any, int]:
        loads.append(key)
        inside.set()
        assert release.wait(30)
        return Value(key), 1

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(cache.get_or_load, "a", loader) for _ in range(16)]
        assert inside.wait(30)
        # A slow key holds up no other one.
        assert cache.get_or_load("b", lambda key: (key, 1)) == "b"
        release.set()
        values = {id(future.result()) for future in futures}
    assert len(values) == len(loads) == 1
    assert cache.get_or_load("a", loader).name == "a"
    stats = cache.stats()
    assert (stats.loads, stats.failed_loads) == (2, 0)


class CountingClock:
    """Stands still and counts who asks, which a load does just before it begins or joins."""

    def __init__(self) -> None:
        self.asked = 0

    def monotonic_ms(self) -> int:
        self.asked += 1
        return 0

    def wait_until_asked(self, times: int) -> None:
        pause = threading.Event()
        while self.asked < times:
            pause.wait(0.001)
        # Who asked last has its answer before this thread goes on.
        pause.wait(0.05)


def test_an_error_of_the_loader_reaches_all_and_is_not_kept() -> None:
    clock = CountingClock()
    cache = IndexCache(10, clock=clock, record_stats=True)
    release, loads = threading.Event(), list[str]()

    def failing(key: Any) -> tuple[Any, int]:
        loads.append(key)
        assert release.wait(30)
        raise OSError("store")

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(cache.get_or_load, "a", failing) for _ in range(8)]
        clock.wait_until_asked(8)
        release.set()
        errors = [future.exception() for future in futures]
    assert {repr(error) for error in errors} == {"OSError('store')"}
    assert len({id(error) for error in errors}) == len(loads) == 1
    assert "a" not in cache
    assert cache.stats().failed_loads == 1
    assert cache.get_or_load("a", lambda key: (key, 1)) == "a"


@pytest.mark.parametrize("result", [None, 1, (1,), (1, 2, 3), "ab", (1, 1.5), (1, -1)])
def test_what_a_loader_may_not_return(result: Any) -> None:
    cache = IndexCache(10)
    with pytest.raises((TypeError, ValueError)):
        cache.get_or_load("a", lambda _: result)
    assert cache.get_or_load("a", lambda _: ("fine", 1)) == "fine"


def test_a_loader_that_hangs() -> None:
    cache = IndexCache(10)
    inside, release = threading.Event(), threading.Event()

    def hanging(_: Any) -> tuple[Any, int]:
        inside.set()
        assert release.wait(30)
        return "late", 1

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(cache.get_or_load, "a", hanging)
        assert inside.wait(30)
        for timeout_ms in (0, 30):
            with pytest.raises(TimeoutError, match="'a'"):
                cache.get_or_load("a", hanging, timeout_ms)
        assert cache.get("a") is None
        release.set()
        assert load.result() == "late"
    assert cache.get_or_load("a", hanging, timeout_ms=0) == "late"
    for bad in (-1, 1.0, math.nan):
        with pytest.raises((TypeError, ValueError)):
            cache.get_or_load("b", hanging, bad)  # type: ignore[arg-type]
    assert cache.get_or_load("b", lambda key: (key, 1), 2**63 - 1) == "b"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_cancelled_loader_lets_a_waiter_load(kind: type[BaseException]) -> None:
    clock = CountingClock()
    cache = IndexCache(10, clock=clock, record_stats=True)
    inside, release = threading.Event(), threading.Event()

    def cancelled(_: Any) -> tuple[Any, int]:
        inside.set()
        assert release.wait(30)
        raise kind("cancelled")

    def load() -> str:
        try:
            cache.get_or_load("a", cancelled)
        except kind:
            return "cancelled"
        return "loaded"

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(load)
        assert inside.wait(30)
        others = [pool.submit(cache.get_or_load, "a", lambda _: (Value(), 1)) for _ in range(3)]
        clock.wait_until_asked(4)
        release.set()
        assert first.result() == "cancelled"
        assert len({id(future.result()) for future in others}) == 1
    assert (cache.stats().loads, cache.stats().failed_loads) == (1, 1)


def test_ctrl_c_ends_a_wait() -> None:
    clock = CountingClock()
    cache = IndexCache(10, clock=clock, record_stats=True)
    inside, release = threading.Event(), threading.Event()

    def hanging(_: Any) -> tuple[Any, int]:
        inside.set()
        assert release.wait(30)
        return 1, 1

    def interrupt() -> None:
        clock.wait_until_asked(2)
        _thread.interrupt_main()

    with ThreadPoolExecutor(2) as pool:
        load = pool.submit(cache.get_or_load, "a", hanging)
        assert inside.wait(30)
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_load("a", hanging)
        release.set()
        assert load.result() == 1


def test_a_loader_that_asks_for_its_own_key() -> None:
    cache = IndexCache(10)

    def loader(key: Any) -> tuple[Any, int]:
        return cache.get_or_load(key, loader), 1

    with pytest.raises(RuntimeError, match="loading"):
        cache.get_or_load("a", loader)
    assert cache.get_or_load("a", lambda _: (cache.get_or_load("b", lambda _: (1, 1)), 1)) == 1


@pytest.mark.parametrize("change", ["remove", "remove_if", "put"])
def test_what_was_changed_meanwhile_is_returned_but_not_kept(change: str) -> None:
    cache = IndexCache(10)

    def loader(key: Any) -> tuple[Any, int]:
        if change == "remove":
            assert cache.remove(key) is False
        elif change == "remove_if":
            assert cache.remove_if(lambda given: given == key) == 0
        else:
            cache.put(key, "put", 1)
        return "loaded", 1

    assert cache.get_or_load("a", loader) == "loaded"
    assert cache.get("a") == ("put" if change == "put" else None)


def test_close_during_a_load() -> None:
    clock, listener = CountingClock(), Listener()
    cache = IndexCache(10, clock=clock, on_removal=listener, record_stats=True)
    release = threading.Event()

    def loader(_: Any) -> tuple[Any, int]:
        assert release.wait(30)
        return 1, 1

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(cache.get_or_load, "a", loader) for _ in range(4)]
        clock.wait_until_asked(4)
        cache.close()
        release.set()
        assert {type(future.exception()) for future in futures} == {ClosedError}
    assert listener.seen == []


def test_a_loaded_value_too_heavy_to_keep() -> None:
    listener = Listener()
    cache = IndexCache(10, on_removal=listener)
    assert cache.get_or_load("a", lambda _: ("big", 11)) == "big"
    assert listener.take() == [("a", "big", "size")]
    assert len(cache) == 0
