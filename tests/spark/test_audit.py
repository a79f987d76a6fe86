"""The audit on Spark against the audit on one machine: the same rows, whatever was damaged."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_udfs import audit, store_audit
from spark_udfs.types import spark_schema
from tests.spark.audits import LATER_MS, ROWS, TABLES, agree, rows_of
from tests.tools.audit.bucket_damage import DAMAGES, Bucket
from tests.tools.conftest import LOG_DIRS, tier_golden
from tierlog.errors import ConfigError
from tierlog.tools.audit.rows import (
    AuditRules,
)
from tierlog.tools.audit.store import audit_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = re.compile(r"^\| `(\w+)` \| `(topic [^`]*|severity [^`]*)`", re.MULTILINE)


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """Not to be changed."""
    places = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    assert all(tier_golden(place / "store", place / "state").ok for place in places)
    metadata = places[0] / "state" / "metadata.sqlite"
    return Bucket(store=places[0] / "store", metadata=metadata, second=places[1] / "store")


@pytest.fixture
def bucket(tiered: Bucket, tmp_path: Path) -> Bucket:
    """To be damaged."""
    return Bucket(
        store=Path(shutil.copytree(tiered.store, tmp_path / "store")),
        metadata=Path(shutil.copy(tiered.metadata, tmp_path)),
        second=tiered.second,
    )


@pytest.mark.parametrize("deep", [False, True])
def test_every_kind_of_damage(
    spark: SparkSession, bucket: Bucket, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tasks so small that a partition is seen by several."""
    monkeypatch.setattr("tierlog.tools.listed_segments.MAX_LISTED", 3)
    monkeypatch.setattr(store_audit, "_TASK_BYTES", 4 << 20)
    for damage in DAMAGES.values():
        damage.do(bucket)
    wanted: dict[str, Any] = {"deep": deep, "retention_bytes": 30_000, "retention_ms": 1_000}
    tables = audit(spark, str(bucket.store), str(bucket.metadata), now_ms=LATER_MS, **wanted)
    local = audit_store(
        bucket.store.as_uri(),
        AuditRules(now_ms=LATER_MS, **wanted),
        metadata=str(bucket.metadata),
    )
    agree(tables, local)
    tables.unpersist()
    found = {one.what for one in local.findings}
    for damage in DAMAGES.values():
        assert {what for what, _ in damage.found | (damage.deep if deep else set())} <= found
    assert {one.reason for one in local.deletions} >= {"retention_time", "interrupted_copy"}


def test_a_bucket_alone(spark: SparkSession, tiered: Bucket) -> None:
    url = tiered.store.as_uri()
    tables = audit(spark, url, now_ms=LATER_MS, log_start_offset=100)
    agree(tables, audit_store(url, AuditRules(now_ms=LATER_MS, log_start_offset=100)))
    sizes = tables.epoch_sizes.groupBy().sum("size_bytes").collect()[0][0]
    assert sizes == sum(path.stat().st_size for path in tiered.store.rglob("*.log"))
    tables.unpersist()


def test_a_store_without_segments(spark: SparkSession, tiered: Bucket, tmp_path: Path) -> None:
    shutil.copy(tiered.store / "cluster.json", tmp_path)
    tables = audit(spark, tmp_path.as_uri())
    assert [rows_of(getattr(tables, name)) for name in TABLES] == [[], [], [], [], []]


def test_frames_have_the_documented_columns(spark: SparkSession) -> None:
    """Those of the rows on one machine, in their order, with the types that docs/AUDIT.md says."""
    told = dict(DOCUMENTED.findall((ROOT / "docs" / "AUDIT.md").read_text(encoding="utf-8")))
    assert told.keys() == set(TABLES)
    for name, row_type in ROWS.items():
        schema = getattr(store_audit, name.upper())
        assert schema.names == [one.name for one in fields(row_type)]
        assert spark_schema(schema) == spark.createDataFrame([], told[name]).schema, name


def test_what_is_no_store_of_the_workers(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="tierlog verify checks a log directory"):
        audit(spark, LOG_DIRS[0])
    with pytest.raises(ConfigError, match="memory of another process"):
        audit(spark, "memory:///bucket")
