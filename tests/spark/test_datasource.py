"""``format("tierlog")`` in a real Spark, in workers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_udfs import register
from tests.kafka_tools.golden import DATA_DIR
from tests.oracle.build import batch
from tests.oracle.model import Record
from tests.spark.source import as_truth, rows_of, tasks_of, truth
from tests.tools.conftest import tier_golden
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.tables.filters import Wanted

LOGS = ",".join(str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2"))
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(params=[("true", "true"), ("true", "false"), ("false", "true")])
def push_down(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """The option, where Spark hands filters down and where it does not."""
    before = spark.conf.get(PUSH_DOWN)
    assert before is not None
    spark.conf.set(PUSH_DOWN, request.param[0])
    yield request.param[1]
    spark.conf.set(PUSH_DOWN, before)


def load(spark: SparkSession, path: str = LOGS, **options: str) -> DataFrame:
    frame: DataFrame = spark.read.format("tierlog").options(**options).load(path)
    return frame


def test_the_columns_are_those_of_the_kafka_source_and_ours(spark: SparkSession) -> None:
    frame = load(spark, subscribe="headers", includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>,"
        "leader_epoch:int,producer_id:bigint,producer_epoch:smallint,base_sequence:int>"
    )
    assert "headers" not in load(spark, subscribe="headers").columns


def test_a_topic_as_a_consumer_got_it(spark: SparkSession) -> None:
    rows = load(spark, subscribe="headers", includeHeaders="true").orderBy("offset").collect()
    assert [as_truth(row.asDict(recursive=True)) for row in rows] == truth("headers", 0)


def test_sql_over_many_topics(spark: SparkSession) -> None:
    load(spark, subscribePattern="codec-.*").createOrReplaceTempView("codecs")
    rows = spark.sql("SELECT topic, count(*) AS n FROM codecs GROUP BY topic").collect()
    names = ("gzip", "lz4", "none", "snappy", "zstd")
    expected = {f"codec-{name}": len(truth(f"codec-{name}", 0)) for name in names}
    assert {row.topic: row.n for row in rows} == expected


def test_a_view_in_sql(spark: SparkSession) -> None:
    given = f"USING tierlog OPTIONS (path '{LOGS}', subscribe 'headers')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW headers_of_sql {given}")
    (row,) = spark.sql("SELECT count(*) AS n FROM headers_of_sql").collect()
    assert row.n == len(truth("headers", 0))


def test_a_schema_takes_columns(spark: SparkSession) -> None:
    reader = spark.read.format("tierlog").option("subscribe", "headers")
    frame = reader.schema("offset long, TIMESTAMP timestamp").load(LOGS)
    assert frame.columns == ["offset", "TIMESTAMP"]
    assert sorted(row.offset for row in frame.collect()) == [
        row["offset"] for row in truth("headers", 0)
    ]
    with pytest.raises(PySparkException, match="found offset string"):
        reader.schema("offset string").load(LOGS).collect()
    with pytest.raises(PySparkException, match="each column once, found offset twice"):
        reader.schema("offset long, Offset long").load(LOGS).collect()


def test_filters_change_nothing_but_the_work(spark: SparkSession, push_down: str) -> None:
    given = {"subscribe": "epochs,headers", "taskBytes": "20000", "pushDownPredicate": push_down}
    frame = load(spark, **given)
    times = [row["timestamp_ms"] for row in truth("epochs", 0)]
    time = datetime.fromtimestamp(times[100] / 1000, UTC)
    for condition, expected in (
        ("offset = 100", {("epochs", 100), ("headers", 100)}),
        ("topic = 'epochs' AND offset < 3", {("epochs", offset) for offset in range(3)}),
        ("partition = 7", set()),
        (
            f"topic = 'epochs' AND timestamp = TIMESTAMP '{time.isoformat()}'",
            {
                ("epochs", row["offset"])
                for row in truth("epochs", 0)
                if row["timestamp_ms"] == times[100]
            },
        ),
    ):
        rows = frame.where(condition).collect()
        assert {(row.topic, row.offset) for row in rows} == expected
    tasks = frame.where("topic = 'epochs' AND offset < 3").rdd.getNumPartitions()
    wanted = Wanted(topics=frozenset({"epochs"}), end_offset=3)
    narrows = push_down == spark.conf.get(PUSH_DOWN) == "true"
    planned = tasks_of({"path": LOGS, **given}, wanted if narrows else None)
    assert tasks == len(planned)
    assert (tasks == 1) is narrows


def test_a_frame_has_all_its_rows_after_a_query_with_a_condition(spark: SparkSession) -> None:
    """Spark keeps the plan of a frame's last query with a condition for its other queries."""
    frame = load(spark, subscribe="epochs")
    total = len(truth("epochs", 0))
    assert spark.conf.get(PUSH_DOWN) == "true"
    assert frame.where("offset < 3").count() == 3
    assert frame.count() == total
    parts = frame.where("offset < 3").union(frame.where(f"offset >= {total - 5}"))
    assert parts.count() == 3 + 5


def test_an_empty_read(spark: SparkSession) -> None:
    assert load(spark, subscribe="empty").collect() == []


def test_errors_say_what_is_wrong(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="did you mean subscribe"):
        load(spark, subscribes="headers").collect()
    with pytest.raises(PySparkException, match="no such topic") as raised:
        load(spark, subscribe="nowhere").collect()
    # Spark's own line, one frame of ours and what is wrong.
    assert len(str(raised.value).strip().splitlines()) <= 6
    with pytest.raises(PySparkException, match="found nothing"):
        load(spark, path="/nowhere/at/all", subscribe="headers").collect()


def test_damage_fails_the_job_or_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    folder = copy_log_dir(tmp_path, "clean/disk1", "headers-0")
    overwrite(folder / "headers-0" / f"{76:020d}.log", 40, b"\xff\xff")
    salvage = {"subscribe": "headers", "onCorrupt": "quarantine"}
    rows = load(spark, str(folder), **salvage).collect()
    lost = load(spark, str(folder), subscribe="headers", view="quarantine").collect()
    assert [(row.topic, row.reason, row.position, row.start_offset) for row in lost] == [
        ("headers", "bad_crc", 0, 76)
    ]
    offsets = {row.offset for row in rows}
    (gone,) = lost
    assert offsets == {
        row["offset"]
        for row in truth("headers", 0)
        if not gone.start_offset <= row["offset"] < gone.end_offset
    }
    with pytest.raises(PySparkException, match="bad_crc at byte 0"):
        load(spark, str(folder), subscribe="headers").collect()


def test_every_view_of_a_store(spark: SparkSession, tmp_path: Path) -> None:
    """The columns that Spark is told of are those that come."""
    (tmp_path / "store").mkdir()
    assert tier_golden(tmp_path / "store", tmp_path / "state").ok
    given = {"path": (tmp_path / "store").as_uri(), "subscribe": "transactions"}
    for view in ("records", "batches", "segments", "quarantine"):
        options = {**given, "view": view, "isolation.level": "read_committed"}
        rows = [row.asDict(recursive=True) for row in load(spark, **options).collect()]
        assert [list(row.values()) for row in rows] == [
            list(row.values()) for row in rows_here(options)
        ]


def rows_here(options: dict[str, str]) -> list[dict[str, object]]:
    """What the tasks give in this process, its times as Spark shows them."""
    return [
        {
            name: value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in rows_of(options)
    ]


def test_times_that_spark_cannot_say_are_the_nearest_that_it_can(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A producer may write any 64-bit number of milliseconds; Spark keeps microseconds."""
    most_ms = (2**63 - 1) // 1000
    times = [-1, 0, most_ms, most_ms + 1, 2**63 - 1, -most_ms, -most_ms - 1, -(2**63)]
    directory = tmp_path / "times-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(
        b"".join(
            batch([Record(offset=offset, timestamp_ms=time, key=None, value=b"v")])
            for offset, time in enumerate(times)
        )
    )
    frame = load(spark, str(tmp_path), subscribe="times")
    rows = frame.orderBy("offset").selectExpr("unix_micros(timestamp) AS us").collect()
    assert [row.us for row in rows] == [min(max(time, -most_ms), most_ms) * 1000 for time in times]
    late = frame.where("timestamp >= timestamp'9999-12-31 00:00:00'").orderBy("offset")
    assert [row.offset for row in late.select("offset").collect()] == [2, 3, 4]
    views = load(spark, str(tmp_path), view="batches").orderBy("base_offset")
    assert [row.base_timestamp_ms for row in views.select("base_timestamp_ms").collect()] == times
