"""The functions in a real Spark, from Python and in SQL, in workers of their own."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import tierlog
from spark_udfs import (
    SCAN_SCHEMA,
    codec,
    decode_udf,
    encode_udf,
    records_udf,
    register,
    scan_segments,
    scan_udf,
    verify_udf,
)
from tests.kafka_tools.golden import golden_segments

SEGMENTS = golden_segments("epochs", "clean")


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Sound segments, a damaged one, and a path that leads nowhere; also as the view segments."""
    register(spark)
    folder = tmp_path_factory.mktemp("logs")
    data = bytearray(SEGMENTS[0].path.read_bytes())
    data[int(tierlog.scan_segment(SEGMENTS[0].path).position[2]) + 80] ^= 1
    (folder / "damaged.log").write_bytes(data)
    rows: list[tuple[str, bytes | None]] = [
        (str(one.path), one.path.read_bytes()) for one in SEGMENTS
    ]
    rows += [(str(folder / "damaged.log"), bytes(data)), (str(folder / "none.log"), None)]
    frame: DataFrame = spark.createDataFrame(rows, "path string, content binary")
    frame.createOrReplaceTempView("segments")
    return frame


@pytest.mark.usefixtures("spark")
def test_the_types_are_those_that_are_written_down() -> None:
    for function, text in (
        (scan_udf, codec.SCAN_TYPE),
        (records_udf, codec.RECORDS_TYPE),
        (verify_udf, codec.VERIFY_TYPE),
        (decode_udf, codec.DECODE_TYPE),
        (encode_udf, codec.ENCODE_TYPE),
    ):
        assert function.returnType == StructType.fromDDL(f"x {text}")["x"].dataType


def test_sql_over_paths(spark: SparkSession, frame: DataFrame) -> None:
    rows = spark.sql(
        "SELECT path, v.ok, v.batches, v.quarantine.reason AS reason, v.quarantine.position AS at "
        "FROM (SELECT path, tierlog_verify(path) AS v FROM segments)"
    ).collect()
    assert [row.ok for row in rows] == [True] * len(SEGMENTS) + [False, False]
    assert [row.reason for row in rows[-2:]] == ["bad_crc", "unreadable"]
    assert rows[-2].at == tierlog.scan_segment(SEGMENTS[0].path).position[2]
    batches = spark.sql("SELECT inline(tierlog_scan(path).batches) FROM segments").collect()
    assert len(batches) == sum(one.batch_count for one in SEGMENTS) + 2
    assert [row.position for row in batches[:3]] == tierlog.scan_segment(
        SEGMENTS[0].path
    ).position.tolist()[:3]
    offsets = spark.sql(
        "SELECT count(*) AS n, max(offset) AS last FROM (SELECT "
        "inline(tierlog_records(path).records) FROM segments WHERE path NOT LIKE '%damaged.log')"
    ).first()
    assert offsets is not None
    assert offsets.n == sum(one.record_count for one in SEGMENTS)
    assert offsets.last == SEGMENTS[-1].last_offset


def test_python_over_contents(frame: DataFrame) -> None:
    rows = frame.select(
        scan_udf("content").alias("scan"),
        records_udf("content").alias("read"),
        verify_udf("content").alias("verified"),
    ).collect()
    assert rows[-1].scan is rows[-1].read is rows[-1].verified is None
    assert rows[-2].scan.quarantine == rows[-2].read.quarantine == rows[-2].verified.quarantine
    for row, segment in zip(rows, SEGMENTS, strict=False):
        assert len(row.scan.batches) == segment.batch_count
        expected = tierlog.decode_records(segment.path)
        values = [one.value and bytes(one.value) for one in row.read.records]
        assert values == expected.values.to_list()
        assert row.verified.crc32c == tierlog._core.crc32c(segment.path.read_bytes())


def test_a_remote_log_index_there_and_back(spark: SparkSession) -> None:
    entry = (
        "named_struct('first_offset', {0}L, 'last_offset', {0}L + 9, 'first_timestamp_ms', 1L, "
        "'last_timestamp_ms', 2L, 'data_length', 50, 'rdi', CAST('k:{0}' AS BINARY))"
    )
    entries = ", ".join(entry.format(offset) for offset in (0, 10, 20))
    frame = spark.sql(f"SELECT array({entries}) AS entries").select(
        encode_udf("entries").data.alias("data")
    )
    (row,) = frame.select("data", decode_udf("data").alias("back")).collect()
    assert bytes(row.data) == tierlog.encode_remote_log_index(
        [0, 10, 20], [9, 19, 29], [1] * 3, [2] * 3, [50] * 3, [b"k:0", b"k:10", b"k:20"]
    )
    assert [one.last_offset for one in row.back.entries] == [9, 19, 29]
    torn = spark.sql("SELECT tierlog_index_decode(X'0001').quarantine AS q").first()
    assert torn is not None
    assert torn.q.position == 0


def test_batches_of_rows(frame: DataFrame) -> None:
    rows = frame.where("content IS NOT NULL").mapInArrow(scan_segments, SCAN_SCHEMA).collect()
    assert [row.stop_reason for row in rows if row.stop_reason] == ["bad_crc"]
    assert len(rows) == sum(one.batch_count for one in SEGMENTS) + 2 + 1
