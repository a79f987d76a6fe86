"""Make requests to a store in parallel, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["PARALLEL_READS", "map_in_parallel"]

PARALLEL_READS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_parallel(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int = PARALLEL_READS
) -> Iterator[_Result]:
    """Yield the result of `function` for every item, in order. At most a few items are started
    ahead. With `workers` 1, the caller's thread makes all calls."""
    if workers == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="tierlog-read") as pool:
        running: deque[Future[_Result]] = deque()
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > 2 * workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
