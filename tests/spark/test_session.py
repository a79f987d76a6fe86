"""What a session is told, what a worker does once, and how far a job is."""

from __future__ import annotations

import gc
import os
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


def frozen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "count": [gc.get_freeze_count()]})


def test_a_worker_freezes_what_it_has_loaded_once(spark: SparkSession) -> None:
    frame = spark.range(0, 8, 1, 8).mapInArrow(
        on_worker("tests.spark.test_session", "frozen"), "pid long, count long"
    )
    seen: dict[int, list[int]] = {}
    for row in frame.collect():
        seen.setdefault(row.pid, []).append(row["count"])
    assert os.getpid() not in seen
    for counts in seen.values():
        # What is frozen may go, but nothing comes to it.
        assert counts == sorted(counts, reverse=True)
        assert min(counts) > 10_000


def test_it_may_be_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    monkeypatch.setenv("TIERLOG_SPARK_GC_FREEZE", "0")
    monkeypatch.setattr(worker, "_frozen", False)
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
