"""``format("tierlog")`` where nobody called `register`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_udfs import register
from tests.kafka_tools.golden import DATA_DIR
from tests.spark.source import truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_DIRS = ",".join(str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2"))


def test_spark_finds_the_source_by_itself(spark: SparkSession) -> None:
    """In a session of its own: what is registered, is so in one."""
    session = spark.newSession()
    reader = session.read.format("tierlog").option("subscribe", "headers")
    assert reader.load(LOG_DIRS).count() == len(truth("headers", 0)) > 0
    # For the functions; the source may be there already.
    register(session)
    assert session.sql("SELECT tierlog_verify(CAST(NULL AS BINARY)) IS NOT NULL").count() == 1
    assert reader.load(LOG_DIRS).count() == len(truth("headers", 0))
