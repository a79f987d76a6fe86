"""Streams of a real Spark: its checkpoints, limits, restarts, and words when data is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from spark_udfs.datasource import TierlogDataSource
from tests.kafka_tools.golden import golden_segments, truth_records
from tests.spark.growing import GrowingStore, fill_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EPOCHS = [row["offset"] for row in truth_records("clean", "epochs", 0)]
ENDS = [one.next_base_offset for one in golden_segments("epochs", "clean") if one.rolled]
PATIENCE_S = 120


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> GrowingStore:
    return GrowingStore(whole, tmp_path / "store")


class Stream:
    """One query with a checkpoint, run until it has read what is there."""

    def __init__(self, spark: SparkSession, store: GrowingStore, folder: Path, **more: str) -> None:
        spark.dataSource.register(TierlogDataSource)
        self.spark = spark
        self.folder = folder
        more = {"startingOffsets": "earliest", "includeHeaders": "true", **more}
        if "subscribePattern" not in more:
            more["subscribe"] = "epochs"
        self._options = {"path": store.url, **more}

    def rows(self) -> DataFrame:
        return self.spark.readStream.format("tierlog").options(**self._options).load()

    def run(self) -> None:
        """Into a table of files, which has each batch once."""
        self.run_with(
            lambda rows: rows.writeStream.format("parquet").option(
                "path", str(self.folder / "table")
            )
        )

    def run_with(self, written: Callable[[DataFrame], DataStreamWriter]) -> None:
        writer = written(self.rows()).option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S)
        finally:
            query.stop()

    def offsets(self) -> list[int]:
        table = self.spark.read.parquet(str(self.folder / "table"))
        return sorted(row.offset for row in table.select("offset").collect())

    def checkpoints(self) -> list[dict[str, dict[str, int]]]:
        """The end of each batch, as Spark wrote it down."""
        files = sorted((self.folder / "checkpoint" / "offsets").glob("[0-9]*"), key=_number)
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def _number(path: Path) -> int:
    return int(path.name)


def test_every_record_once_over_limits_and_restarts(
    spark: SparkSession, store: GrowingStore, tmp_path: Path
) -> None:
    store.add("epochs", 0, 2)
    stream = Stream(spark, store, tmp_path, maxOffsetsPerTrigger="200")
    stream.run()
    assert stream.offsets() == [one for one in EPOCHS if one < ENDS[1]]
    assert stream.checkpoints() == [
        {"epochs": {"0": offset}} for offset in [*range(200, ENDS[1], 200), ENDS[1]]
    ]
    stream.run()
    assert len(stream.checkpoints()) == 2
    store.add("epochs", 2, 3)
    stream.run()
    assert stream.offsets() == [one for one in EPOCHS if one < ENDS[2]]
    assert stream.checkpoints()[-1] == {"epochs": {"0": ENDS[2]}}


def test_a_batch_that_failed_is_read_again_as_it_was(
    spark: SparkSession, store: GrowingStore, tmp_path: Path
) -> None:
    """More has come meanwhile, and is left to the batch after it."""
    store.add("epochs", 0, 1)
    stream = Stream(spark, store, tmp_path)
    seen: list[tuple[int, list[int]]] = []

    def keep(fail: bool) -> Callable[[DataFrame, int], None]:
        def call(rows: DataFrame, batch: int) -> None:
            seen.append((batch, sorted(row.offset for row in rows.select("offset").collect())))
            if fail:
                raise RuntimeError("the sink is full")

        return call

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        stream.run_with(lambda rows: rows.writeStream.foreachBatch(keep(fail=True)))
    store.add("epochs", 1, 2)
    stream.run_with(lambda rows: rows.writeStream.foreachBatch(keep(fail=False)))
    assert [batch for batch, _ in seen] == [0, 0, 1]
    assert seen[0] == seen[1]
    assert seen[1][1] + seen[2][1] == [one for one in EPOCHS if one < ENDS[1]]


def test_what_retention_removed(spark: SparkSession, store: GrowingStore, tmp_path: Path) -> None:
    store.add("epochs", 0, 1)
    # What is there now is not waited for to become more.
    stream = Stream(spark, store, tmp_path, minOffsetsPerTrigger="1000000")
    stream.run()
    store.add("epochs", 1, 3)
    store.expire("epochs", 0, 2)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss=false reads what is there"):
        stream.run()
    Stream(spark, store, tmp_path, failOnDataLoss="false").run()
    assert stream.offsets() == [one for one in EPOCHS if one < ENDS[0] or ENDS[1] <= one < ENDS[2]]


def test_new_topics(spark: SparkSession, store: GrowingStore, tmp_path: Path) -> None:
    store.add("epochs", 0, 1)
    stream = Stream(spark, store, tmp_path, subscribePattern="epochs|headers")
    stream.run()
    store.add("headers", 0, 1)
    stream.run()
    assert set(stream.checkpoints()[-1]) == {"epochs", "headers"}
    headers = truth_records("clean", "headers", 0)
    table = spark.read.parquet(str(tmp_path / "table")).where("topic = 'headers'")
    found = table.orderBy("offset").collect()
    end = stream.checkpoints()[-1]["headers"]["0"]
    assert [row.offset for row in found] == [
        row["offset"] for row in headers if row["offset"] < end
    ]
    assert [len(row.headers or ()) for row in found] == [
        len(row["headers"]) for row in headers if row["offset"] < end
    ]


def test_a_stream_that_goes_on(spark: SparkSession, store: GrowingStore, tmp_path: Path) -> None:
    """Segments that come while it runs."""
    store.add("epochs", 0, 1)
    stream = Stream(spark, store, tmp_path)
    writer = stream.rows().writeStream.format("parquet").option("path", str(tmp_path / "table"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        for number in range(1, 3):
            query.processAllAvailable()
            assert stream.offsets() == [one for one in EPOCHS if one < ENDS[number - 1]]
            store.add("epochs", number, number + 1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert stream.offsets() == [one for one in EPOCHS if one < ENDS[2]]
