"""A real bucket under Spark: workers that find it by their environment, as clusters do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_udfs import audit, rebuild_indexes, register
from tests.kafka_tools.golden import truth_records
from tests.remote.s3_server import S3Server, running_s3_server
from tests.spark.audits import LATER_MS, agree
from tests.spark.growing import fill_store
from tests.spark.query import Query
from tests.spark.source import as_truth, truth
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import audit_store
from tierlog.tools.rebuild.index import rebuild_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, not to be changed."""
    return fill_store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def url(
    spark: SparkSession, server: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The same in a bucket, which driver and workers can reach."""
    with monkeypatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
            patch.setitem(spark.sparkContext.environment, name, value)
        # A source has the environment that was there when it was registered.
        register(spark)
        yield f"s3://{server.bucket_of(folder, 'kafka')}/kafka"
    register(spark)


def test_a_topic_as_a_table(spark: SparkSession, url: str) -> None:
    reader = spark.read.format("tierlog").option("subscribe", "epochs")
    rows = reader.option("includeHeaders", "true").load(url).orderBy("offset").collect()
    end = rows[-1].offset + 1
    assert [as_truth(row.asDict(recursive=True)) for row in rows] == truth("epochs", 0)[:end]
    late = reader.load(url).where(f"offset >= {end - 10}").count()
    assert late == 10


def test_a_topic_as_a_stream(url: str) -> None:
    query = Query(url, maxOffsetsPerTrigger="100")
    while query.trigger():
        pass
    known = [row["offset"] for row in truth_records("clean", "epochs", 0)]
    assert query.seen() == known[: len(query.seen())]
    assert len(query.batches) > 1


def test_an_audit_and_a_rebuild(spark: SparkSession, server: S3Server, url: str) -> None:
    client, bucket = server.client(), url.split("/")[2]
    listed = client.list_objects_v2(Bucket=bucket, Prefix="kafka/epochs-")["Contents"]
    keys = [one["Key"] for one in listed if one["Key"].endswith(".indexes")]
    whole = {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys[::2]}
    for key, data in whole.items():
        # Its last bytes are those of a section.
        client.put_object(Bucket=bucket, Key=key, Body=data[:-1] + bytes([data[-1] ^ 1]))
    tables = audit(spark, url, now_ms=LATER_MS, deep=True)
    agree(tables, audit_store(url, AuditRules(now_ms=LATER_MS, deep=True)))
    assert tables.findings.where("severity = 'problem'").count() >= len(whole) > 1
    tables.unpersist()
    dry = rebuild_index(url, now_ms=LATER_MS, dry_run=True)
    built = rebuild_indexes(spark, url, now_ms=LATER_MS)
    assert built.ok
    assert built.summary.written == dry.summary.written == len(whole)
    for key, data in whole.items():
        assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == data
