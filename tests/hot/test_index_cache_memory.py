"""The index cache's references, threads and forks."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.hot.support import Listener, Value, in_child, together
from tierlog import ClosedError, IndexCache
from tierlog.clock import ManualClock


def test_values_are_dropped_when_they_leave() -> None:
    cache = IndexCache(10, 1000, ManualClock())
    watchers = []

    def value(name: object) -> Value:
        made = Value(name)
        watchers.append(weakref.ref(made))
        return made

    for number in range(20):
        cache.put(number, value(number), 1)
    assert [watcher() is None for watcher in watchers] == [True] * 10 + [False] * 10
    cache.put(19, value(19), 1)
    assert watchers[19]() is None
    cache.remove(18)
    assert watchers[18]() is None
    cache.get_or_load("a", lambda key: (value(key), 100))
    assert watchers[-1]() is None
    cache.sweep(1000)
    assert not [watcher for watcher in watchers if watcher() is not None]
    cache.put("b", value("b"), 1)
    del cache
    assert watchers[-1]() is None


def test_references_are_exact() -> None:
    listener = Listener()
    key, value, fallback = "key" * 20, Value(), Value()
    cache = IndexCache(10, on_removal=listener)
    objects = (key, value, fallback, listener, cache)
    before = [sys.getrefcount(one) for one in objects]
    for _ in range(100):
        cache.get("missing", fallback)
        cache.put(key, value, 1)
        cache.get(key)
        assert key in cache
        cache.get_or_load(key, lambda _: (value, 1))
        with pytest.raises(TypeError):
            cache.lookup_position(key, 0)
        cache.put(key, value, 11)
        cache.get_or_load(key, lambda _: (value, 1))
        cache.remove_if(lambda given: given is key)
        with pytest.raises(TypeError):
            cache.get([])  # type: ignore[arg-type]
        with pytest.raises(ZeroDivisionError):
            cache.get_or_load(key, lambda _: (1 // 0, 0))
    listener.take()
    assert [sys.getrefcount(one) for one in objects] == before


def test_an_owner_whose_listener_is_its_own_method_is_collected() -> None:
    class Owner:
        def __init__(self) -> None:
            self.cache = IndexCache(10, on_removal=self.removed)
            self.cache.put("a", Value(), 1)

        def removed(self, key: Any, value: Any, cause: str) -> None:
            """Nothing."""

    watcher = weakref.ref(Owner())
    gc.collect()
    assert watcher() is None


def test_neither_pickles_nor_copies() -> None:
    cache = IndexCache(10)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(cache)
    with pytest.raises(TypeError):
        copy.copy(cache)


# ---- Threads and forks ------------------------------------------------------------------------


def test_threads_never_see_another_keys_value() -> None:
    cache = IndexCache(64)

    def work(number: int) -> int:
        hits = 0
        for step in range(3000):
            key = (step * 7 + number) % 100
            choice = (step + number) % 5
            if choice == 0:
                cache.put(key, Value(key), 1)
            elif choice == 1 and step % 50 == 0:
                cache.remove(key)
            elif choice == 2:
                assert cache.get_or_load(key, lambda key: (Value(key), 1)).name == key
            else:
                found = cache.get(key)
                hits += found is not None
                assert found is None or found.name == key
            assert cache.weight_bytes <= 64
        return hits

    assert sum(together(8, work)) > 0
    assert len(cache) == cache.weight_bytes <= 64


def test_more_threads_than_there_are_lanes() -> None:
    cache = IndexCache(1100)

    def work(number: int) -> None:
        for step in range(100):
            cache.put((number, step % 10), number, 1)
            assert cache.get((number, step % 10)) == number
            assert cache.get(("shared", step), "none") in ("none", step)
            cache.put(("shared", step), step, 1)

    together(100, work)
    assert len(cache) == cache.weight_bytes == 1100


def test_close_under_load() -> None:
    for _ in range(20):
        cache = IndexCache(50)

        def work(number: int, cache: IndexCache = cache) -> bool:
            if number == 0:
                cache.close()
                return True
            try:
                for step in range(10_000):
                    cache.get_or_load(step % 60, lambda key: (Value(key), 1))
                    cache.get(step % 40)
            except ClosedError:
                return True
            return False

        together(4, work)
        assert (len(cache), cache.weight_bytes) == (0, 0)


def test_a_forked_child_starts_empty() -> None:
    listener = Listener()
    cache = IndexCache(10, 500, on_removal=listener)
    cache.put("a", 1, 1)

    def check() -> bool:
        fine = len(cache) == 0 and cache.get("a") is None and cache.max_bytes == 10
        cache.put("b", 2, 1)
        cache.close()
        return fine and listener.seen == [("b", 2, "closed")] and cache.ttl_ms == 500

    in_child(check)
    assert (cache.get("a"), len(cache), listener.seen) == (1, 1, [])


def test_a_fork_inside_a_loader() -> None:
    cache = IndexCache(10)

    def loader(key: Any) -> tuple[Any, int]:
        in_child(lambda: cache.get_or_load(key, lambda _: ("child", 1)) == "child")
        return "parent", 1

    assert cache.get_or_load("a", loader) == "parent"

    def forking(_: Any) -> tuple[Any, int]:
        child.append(os.fork())
        return "both", 1

    child: list[int] = []
    assert cache.get_or_load("b", forking) == "both"
    if child[0] == 0:
        # This process's cache is another one now, and nothing was kept in it.
        os._exit(0 if len(cache) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]) == 0
    assert cache.get("b") == "both"


def test_a_closed_cache_stays_closed_in_a_child_and_drops_nothing_twice() -> None:
    cache = IndexCache(10)
    cache.put("a", Value(), 1)

    def drops() -> bool:
        nonlocal cache
        del cache
        gc.collect()
        return True

    in_child(drops)
    cache.close()

    def check() -> bool:
        with pytest.raises(ClosedError):
            cache.get("a")
        return True

    in_child(check)


def test_a_fork_while_threads_write() -> None:
    cache, stop = IndexCache(100), threading.Event()

    def work(number: int) -> None:
        for step in itertools.count():
            cache.put((number, step % 100), Value(step), 1)
            if stop.is_set():
                return

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, number) for number in range(2)]
        for _ in range(5):
            in_child(lambda: cache.get_or_load("a", lambda key: (key, 1)) == "a")
        stop.set()
        for future in futures:
            future.result()
