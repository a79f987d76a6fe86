"""Reports the progress of a Spark job to a `tierlog.tools.progress.Progress` on the driver."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tierlog.clock import Clock

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tierlog.tools.progress import Progress

__all__ = ["watched"]

_LOOK_MS = 250
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


class _Watch:
    """Converts the number of completed tasks to bytes. Spark does not say which tasks are complete,
    but it starts tasks in order. So if n tasks are complete, the first n tasks count as
    complete."""

    def __init__(self, progress: Progress, sizes_bytes: Sequence[int]) -> None:
        self._progress = progress
        self._sizes_bytes = sizes_bytes
        self._done = 0

    def seen(self, stages: Iterable[tuple[int, int]]) -> None:
        """Add the numbers of tasks and of completed tasks of every stage. The stage with one task
        for each size is the watched stage."""
        wanted = len(self._sizes_bytes)
        done = max((done for tasks, done in stages if tasks == wanted), default=0)
        if done > self._done:
            self._progress.advance(sum(self._sizes_bytes[self._done : done]))
            self._done = done


@contextmanager
def watched(
    spark: SparkSession, sizes_bytes: Sequence[int], progress: Progress, clock: Clock
) -> Iterator[None]:
    """Report a Spark job to ``progress`` until the context ends. ``progress`` was started before.
    The job has one task for each size."""
    watch = _Watch(progress, sizes_bytes)
    # Spark Connect has no context; its server reports the progress.
    context = getattr(spark, "sparkContext", None)
    if context is None:
        with _told(spark, watch):
            yield
    else:
        with _polled(context, watch, clock):
            yield
    watch.seen([(len(sizes_bytes), len(sizes_bytes))])


@contextmanager
def _told(spark: Any, watch: _Watch) -> Iterator[None]:
    def handler(stages: Iterable[Any] | None, **_: object) -> None:
        watch.seen((one.num_tasks, one.num_completed_tasks) for one in stages or ())

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


@contextmanager
def _polled(context: SparkContext, watch: _Watch, clock: Clock) -> Iterator[None]:
    group = f"tierlog-{id(watch)}"
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    context.setJobGroup(group, "tierlog")
    over = threading.Condition()
    is_over = False

    def look() -> None:
        with over:
            while not is_over:
                clock.wait(over, _LOOK_MS)
                watch.seen(_stages(context, group))

    looking = threading.Thread(target=look, name="tierlog-spark-progress", daemon=True)
    looking.start()
    try:
        yield
    finally:
        with over:
            is_over = True
            over.notify()
        looking.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)


def _stages(context: SparkContext, group: str) -> Iterator[tuple[int, int]]:
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            told = tracker.getStageInfo(stage)
            if told:
                yield told.numTasks, told.numCompletedTasks
