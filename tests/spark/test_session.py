"""What a session is told, what a worker does once, and how far a job is."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark_udfs import session_config, worker
from spark_udfs.progress import watched
from spark_udfs.session import one_line
from spark_udfs.worker import NOT_INSTALLED, on_worker
from tierlog.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_setting_is_one_that_spark_knows(spark: SparkSession) -> None:
    for name, value in session_config("local[2]").items():
        assert spark.sparkContext.getConf().get(name) == value
        # Spark takes any name; of those it knows it also has a default.
        assert spark.range(1).sparkSession.conf.get(name) == value


def test_a_connect_client_sets_only_what_it_may() -> None:
    settings = session_config("sc://server:15002")
    assert settings
    assert settings.items() < session_config().items()
    assert all(name.startswith("spark.sql.") for name in settings)


def seen_by_collector(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        seen = len(gc.get_objects())
        # A list has pyarrow load pandas, which a worker of Spark has not done by itself.
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "seen": [seen]})


def test_a_worker_freezes_what_it_has_loaded_and_what_was_loaded_later(
    spark: SparkSession,
) -> None:
    frame = spark.range(0, 12, 1, 12).mapInArrow(
        on_worker("tests.spark.test_session", "seen_by_collector"), "pid long, seen long"
    )
    workers: dict[int, list[int]] = {}
    for row in frame.collect():
        workers.setdefault(row.pid, []).append(row.seen)
    assert os.getpid() not in workers
    assert max(map(len, workers.values())) > 1
    for counts in workers.values():
        # pandas alone has 50,000 objects.
        assert max(counts) < 20_000


def test_nothing_is_frozen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_frozen_modules", len(sys.modules))
    before = gc.get_freeze_count()
    worker.freeze_once()
    assert gc.get_freeze_count() == before


def test_it_may_be_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    monkeypatch.setenv("TIERLOG_SPARK_GC_FREEZE", "0")
    monkeypatch.setattr(worker, "_frozen_modules", 0)
    worker.freeze_once()
    assert gc.get_freeze_count() == before


def test_an_error_in_a_worker_is_one_line(spark: SparkSession) -> None:
    frame = spark.range(1)
    for module, wanted in (
        ("spark_udfs.not_there", NOT_INSTALLED),
        ("tests.spark.test_session", "ValueError: no good"),
    ):
        with pytest.raises(PySparkException) as raised:
            frame.mapInArrow(on_worker(module, "failing"), "id long").collect()
        assert one_line(raised.value).startswith(wanted)
        assert "\n" not in one_line(raised.value)


def failing(batches: object) -> Iterator[Any]:
    raise ValueError("no good")


class Releasing:
    """Lets the last task go on as soon as it was told of another one."""

    def __init__(self, fifo: Path) -> None:
        self.fifo = fifo
        self.steps: list[int] = []

    def start(self, total_bytes: int) -> None:
        raise AssertionError("it was, before")

    def advance(self, size_bytes: int, now_at: str = "") -> None:
        self.steps.append(size_bytes)
        if len(self.steps) == 1:
            self.fifo.open("wb").close()


def test_progress_comes_while_tasks_run(spark: SparkSession, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    name = str(fifo)

    def last_one_waits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("id")[0].as_py() == 3:
                with open(name, "rb"):
                    pass
            yield batch

    progress = Releasing(fifo)
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "the caller's")
    with watched(spark, [40, 30, 20, 10], progress, SystemClock()):
        spark.range(0, 4, 1, 4).mapInArrow(last_one_waits, "id long").collect()
    assert sum(progress.steps) == 100
    assert len(progress.steps) > 1
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "the caller's"
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
