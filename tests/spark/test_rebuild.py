"""The rebuild on Spark against the rebuild in a pool: the same bytes, the same report."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from spark_udfs import rebuild_indexes
from tests.kafka_tools.golden import DATA_DIR
from tests.tools.conftest import tier_golden
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.tools.index_rebuild import (
    RebuildTask,
    plan_rebuild,
    rebuild_index,
    rebuild_report,
    rebuild_task,
)
from tierlog.tools.rebuild_segment import SegmentOutcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER_MS = 1 << 50


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks, although the golden logs are small."""
    monkeypatch.setattr("tierlog.tools.index_rebuild._SMALLEST_TASK_BYTES", 1)


def test_a_log_directory(spark: SparkSession, tmp_path: Path) -> None:
    source = str(DATA_DIR / "unclean" / "disk1")
    pooled = rebuild_index(source, target=str(tmp_path / "pool"), now_ms=0)
    built = rebuild_indexes(spark, source, str(tmp_path / "spark"))
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    assert built.report.segments == pooled.segments
    assert built.report.findings == pooled.findings
    rows = built.segments.orderBy("topic", "partition", "base_offset").collect()
    assert [row.records for row in rows] == [row.records for row in pooled.segments]
    assert {row.outcome for row in rows} == {"written"}


def test_damage_is_a_row_and_no_failed_job(spark: SparkSession, tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0", "epochs-0")
    overwrite(source / "headers-0" / f"{76:020d}.log", 40, b"\xff\xff")
    built = rebuild_indexes(spark, str(source), str(tmp_path / "to"))
    assert not built.report.ok
    (bad,) = built.segments.where("outcome = 'quarantined'").collect()
    assert (bad.topic, bad.base_offset, bad.findings) == ("headers", 76, ["bad_crc"])
    (found,) = built.findings.where("severity = 'problem'").collect()
    assert (found.what, found.position) == ("bad_crc", 0)
    assert built.report.summary.written == 5


def test_a_store(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert tier_golden(store, tmp_path / "state").ok
    for number, path in enumerate(sorted(store.glob("*/*/*.indexes"))):
        if number % 2:
            path.unlink()
        else:
            overwrite(path, 300, b"\xee" * 8)
    other = Path(shutil.copytree(store, tmp_path / "other"))
    pooled = rebuild_index(store.as_uri(), now_ms=LATER_MS)
    built = rebuild_indexes(spark, other.as_uri(), now_ms=LATER_MS)
    assert built.report.ok
    assert built.report.segments == pooled.segments
    assert tree(other) == tree(store)


def test_killed_workers_do_not_show(spark: SparkSession, tmp_path: Path) -> None:
    """Every task's first attempt dies after its work is done, before it can say so."""
    source = str(DATA_DIR / "clean" / "disk2")
    rebuild_index(source, target=str(tmp_path / "pool"), now_ms=0)
    plan = plan_rebuild(source, target=str(tmp_path / "spark"), dry_run=False, now_ms=0, slots=1)

    def die_once(tasks: Iterator[RebuildTask]) -> list[SegmentOutcome]:
        outcomes = [outcome for task in tasks for outcome in rebuild_task(task)]
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcomes

    spread = spark.sparkContext.parallelize(plan.tasks, len(plan.tasks))
    outcomes = spread.mapPartitions(die_once).collect()
    assert len(plan.tasks) > 1
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    report = rebuild_report(plan, outcomes)
    assert report.ok
    assert report.summary.same == report.summary.segments > 0
