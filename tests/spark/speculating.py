"""A driver whose first task hangs in one worker until another has done all of it a second time.

    python tests/spark/speculating.py MASTER SOURCE TARGET FIFO

Spark itself decides to run that task twice (``spark.speculation``). Prints the summary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any


def on_worker_twice(fifo: str) -> Callable[[str, str], Callable[[Any], Any]]:
    def on_worker(module: str, name: str) -> Callable[[Any], Any]:
        def call(batches: Iterable[Any]) -> Iterator[Any]:
            from importlib import import_module

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            # All files are written by both before either has said so.
            rows = list(getattr(import_module(module), name)(batches))
            if context.partitionId() == 0:
                # Opening it takes a reader and a writer.
                with open(fifo, "rb" if context.attemptNumber() == 0 else "wb"):
                    pass
            yield from rows

        return call

    return on_worker


def main(master: str, source: str, target: str, fifo: str) -> None:
    from spark_udfs import rebuild

    vars(rebuild)["on_worker"] = on_worker_twice(fifo)
    # Several tasks, although there is little.
    vars(rebuild)["_SMALLEST_TASK_BYTES"] = 1
    report = rebuild.rebuild_on(master, source, target=target, now_ms=0, slots=64)
    print(json.dumps(asdict(report.summary)))


if __name__ == "__main__":
    main(*sys.argv[1:])
