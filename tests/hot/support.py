"""What the tests of the native sensor and cache share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["Listener", "Value", "in_child", "together"]


class Value:
    """Something that can be watched."""

    def __init__(self, name: object = None) -> None:
        self.name = name


class Listener:
    """Remembers what left."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any, str]] = []

    def __call__(self, key: Any, value: Any, cause: str) -> None:
        self.seen.append((key, value, cause))

    def take(self) -> list[tuple[Any, Any, str]]:
        seen, self.seen = self.seen, []
        return seen


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work` returns in each of `count` threads that start at one moment."""
    start = threading.Barrier(count)

    def body(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(body, range(count)))


def in_child(check: Callable[[], bool]) -> None:
    """Runs `check` in a forked child, where it has to return True."""
    child = os.fork()
    if child == 0:
        verdict = 1
        try:
            verdict = 0 if check() else 2
        finally:
            os._exit(verdict)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
