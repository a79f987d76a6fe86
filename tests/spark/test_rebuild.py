"""The rebuild on Spark against the rebuild in a pool: the same bytes, the same report."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_udfs import rebuild_indexes
from spark_udfs.rebuild import _mapped as mapped
from spark_udfs.types import spark_schema
from tests.kafka_tools.golden import DATA_DIR
from tests.kafka_tools.tools import dump_log_segments
from tests.proofs import usually
from tests.spark.cluster import environment
from tests.spark.rebuilds import tree
from tests.tools.conftest import tier_golden
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.errors import TierlogError
from tierlog.tools.rebuild.index import rebuild_index
from tierlog.tools.rebuild.table import (
    FINDINGS,
    SEGMENTS,
    finding_table,
    report_outcomes,
    segment_table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATER_MS = 1 << 50
UNCLEAN = DATA_DIR / "unclean" / "disk1"
TOOL = str(Path(sys.executable).with_name("tierlog"))

Rows = Callable[[Iterable[Any]], Iterator[Any]]


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks, although the golden logs are small."""
    for module in ("tierlog.tools.rebuild.tasks", "spark_udfs.rebuild"):
        monkeypatch.setattr(f"{module}._SMALLEST_TASK_BYTES", 1)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log directory with a bad segment, and with a file that belongs to no log."""
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0", "epochs-0")
    overwrite(source / "headers-0" / f"{76:020d}.log", 40, b"\xff\xff")
    (source / "headers-0" / "notes.txt").write_text("somebody's")
    return source


@pytest.mark.parametrize(
    ("disk", "sent_bytes"), [("clean/disk1", 1 << 20), ("clean/disk2", 0), ("unclean/disk1", 0)]
)
def test_a_log_directory(
    spark: SparkSession,
    disk: str,
    sent_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks that go with the function, and tasks that go in a shuffle."""
    monkeypatch.setattr("spark_udfs.rebuild._SENT_WITH_FUNCTION_BYTES", sent_bytes)
    source = str(DATA_DIR / disk)
    pooled = rebuild_index(source, target=str(tmp_path / "pool"), now_ms=0)
    built = rebuild_indexes(spark, source, str(tmp_path / "spark"))
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    assert built.ok
    assert (built.summary.written, built.summary.size_bytes) == (
        pooled.summary.written,
        pooled.summary.size_bytes,
    )
    expected = segment_table(report_outcomes(pooled))
    assert built.segments.toArrow().to_pylist() == expected.to_pylist()
    assert built.findings.toArrow().to_pylist() == finding_table(pooled.findings).to_pylist()
    assert built.segments.schema == spark_schema(SEGMENTS)
    assert built.findings.schema == spark_schema(FINDINGS)


def test_kafka_accepts_what_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    source = DATA_DIR / "clean" / "disk1"
    built = rebuild_indexes(spark, str(source), str(tmp_path))
    indexes = sorted(tmp_path.rglob("*.index")) + sorted(tmp_path.rglob("*.timeindex"))
    assert len(indexes) == 2 * built.summary.segments
    for path in indexes:
        log = source / path.parent.name / f"{path.stem}.log"
        shutil.copy(log, path.with_suffix(".log"))
    checked = dump_log_segments(indexes, "--index-sanity-check")
    assert checked.count("passed sanity check.") + checked.count("is empty.") == len(indexes)


def test_damage_is_a_row_and_no_failed_job(
    spark: SparkSession, damaged: Path, tmp_path: Path
) -> None:
    built = rebuild_indexes(spark, str(damaged), str(tmp_path / "to"))
    assert not built.ok
    (row,) = built.segments.where("outcome = 'quarantined'").collect()
    assert (row.topic, row.base_offset, row.findings[0].what) == ("headers", 76, "bad_crc")
    (found,) = built.findings.where("severity = 'problem'").collect()
    assert (found.what, found.position) == ("bad_crc", 0)
    (bad,) = built.quarantine.collect()
    assert (bad.topic, bad.partition, bad.base_offset) == ("headers", 0, 76)
    assert (bad.reason, bad.position, bad.path) == ("bad_crc", 0, row.path)
    assert bad.expected
    assert bad.found
    assert bad.action
    assert built.summary.written == 5


def last_task_first(
    spark: SparkSession, tasks: Sequence[object], function: str, schema: pa.Schema
) -> DataFrame:
    """Instead of `_mapped`: the same rows in another order, where they tell their task."""
    rows = mapped(spark, tasks, function, schema)
    return rows.orderBy("task", ascending=False) if "task" in rows.columns else rows


def test_a_store(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at in several tasks, whose order does not show: the last one comes first."""
    monkeypatch.setattr("spark_udfs.rebuild._TASK_LOOKS", 5)
    monkeypatch.setattr("spark_udfs.rebuild._mapped", last_task_first)
    store = tmp_path / "store"
    assert tier_golden(store, tmp_path / "state").ok
    for number, path in enumerate(sorted(store.glob("*/*/*.indexes"))):
        if number % 2:
            path.unlink()
        else:
            overwrite(path, 300, b"\xee" * 8)
    other = Path(shutil.copytree(store, tmp_path / "other"))
    pooled = rebuild_index(store.as_uri(), now_ms=LATER_MS)
    # The driver reads no object.
    monkeypatch.delattr("tierlog.tools.rebuild.store_plan.read_whole")
    built = rebuild_indexes(spark, other.as_uri(), now_ms=LATER_MS)
    assert built.ok
    assert built.segments.toArrow() == segment_table(report_outcomes(pooled))
    assert tree(other) == tree(store)

    # Once more, with a note of what a copy left behind; all of it is told by the driver's plan.
    log = sorted(other.glob("*/*/*.log"))[0]
    shutil.copy(log, log.with_name(f"{log.name[:20]}-{'B' * 21}A.log"))
    report = (tmp_path / "report").as_uri()
    again = rebuild_indexes(spark, other.as_uri(), now_ms=LATER_MS, report_path=report)
    assert (again.summary.sound, again.summary.left_alone) == (built.summary.segments, 1)
    assert again.segments.count() == again.summary.segments == built.summary.segments + 1
    assert [row.what for row in again.findings.collect()] == ["superseded"]
    assert again.quarantine.count() == 0


def test_the_remote_index_files_of_a_store(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tasks, when all objects are mended; one of them cannot be."""
    monkeypatch.setattr("tierlog.tools.rebuild.remote_index._TASK_PARTITIONS", 5)
    store, other = tmp_path / "store", tmp_path / "other"
    assert tier_golden(store, tmp_path / "state").ok
    for path in sorted(store.glob("*/*/*.indexes"))[::2]:
        path.unlink()
    bad = sorted(store.glob("epochs-*/0/*.log"))[1]
    bad.with_suffix(".indexes").unlink(missing_ok=True)
    overwrite(bad, 40, b"\xff\xff")
    shutil.copytree(store, other)
    pooled = rebuild_index(store.as_uri(), target=str(tmp_path / "pool"), now_ms=LATER_MS)
    built = rebuild_indexes(spark, other.as_uri(), str(tmp_path / "spark"), now_ms=LATER_MS)
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    assert built.remote_indexes == pooled.remote_indexes
    assert built.findings.toArrow() == finding_table(pooled.findings)
    assert [row.findings for row in built.remote_indexes if row.topic == "epochs"] == [("gap",)]

    # Once more, with a report of which nothing comes to the driver.
    report = (tmp_path / "report").as_uri()
    again = rebuild_indexes(
        spark, other.as_uri(), str(tmp_path / "spark"), now_ms=LATER_MS, report_path=report
    )
    assert {row.outcome for row in again.remote_indexes} == {"same"}
    assert sorted(row.what for row in again.findings.collect()) == sorted(
        found.what for found in pooled.findings
    )
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")


def test_a_dry_run_writes_nothing(spark: SparkSession, damaged: Path, tmp_path: Path) -> None:
    before = tree(damaged)
    built = rebuild_indexes(spark, str(damaged), str(tmp_path / "to"), dry_run=True)
    assert built.summary.dry_run
    assert {row.outcome for row in built.segments.collect()} == {"would write", "quarantined"}
    assert not (tmp_path / "to").exists()
    assert tree(damaged) == before


def test_the_report_of_the_driver_and_that_of_the_workers(
    spark: SparkSession, damaged: Path, tmp_path: Path
) -> None:
    """A path is written by the driver; what goes to a URL never comes to it."""
    path, url = tmp_path / "path", tmp_path / "url"
    for place in (str(path), url.as_uri()):
        to = str(tmp_path / "to" / Path(place).name)
        built = rebuild_indexes(spark, str(damaged), to, report_path=place)
        again = rebuild_indexes(spark, str(damaged), to, report_path=place)
        assert (built.summary.written, again.summary.same) == (5, 5)
        assert again.summary.notes == built.summary.notes > 0
        assert (again.summary.problems, again.summary.quarantined) == (1, 1)
        assert again.summary.partitions == 2
        assert again.quarantine.count() == 1
    for name in ("segments.parquet", "findings.parquet"):
        assert (path / name).is_file()
        assert (url / name).is_dir()
        one, other = (pq.read_table(folder / name).to_pylist() for folder in (path, url))
        assert sorted(map(repr, one)) == sorted(map(repr, other))
        assert len(one) > 1


# -- workers that die, hang, or come twice


def logs(folder: Path, count: int) -> Path:
    """A log directory with so many partitions, of two segments and two tasks each."""
    source = copy_log_dir(folder, "clean/disk1", "headers-0")
    for number in range(1, count):
        shutil.copytree(source / "headers-0", source / f"headers-{number}")
    return source


def dying(died: Path, *, always: bool = False) -> Callable[[str, str], Rows]:
    """Instead of `on_worker`: kills the worker of the first two attempts at every task, at any
    moment or when all is done and nothing said; ``always``: that of every attempt at the last."""

    def on_worker(module: str, name: str) -> Rows:
        def call(batches: Iterable[Any]) -> Iterator[Any]:
            import random
            import signal
            from importlib import import_module

            from pyspark import TaskContext

            work = getattr(import_module(module), name)
            context = TaskContext.get()
            assert context is not None
            task, attempt = context.partitionId(), context.attemptNumber()
            if task == 0 if always else attempt < 2:
                (died / f"{task}-{attempt}").touch()
                if attempt == 0 or task % 2:
                    moment = random.Random(100 * task + attempt).uniform(1e-5, 2e-2)
                    # Its default is the end of the process, in the middle of whatever it does.
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.setitimer(signal.ITIMER_REAL, moment)
                list(work(batches))
                os.kill(os.getpid(), signal.SIGKILL)
            yield from work(batches)

        return call

    died.mkdir()
    return on_worker


def test_killed_workers_do_not_show(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    partitions = usually(3, thorough=25)
    source = logs(tmp_path, partitions)
    monkeypatch.setattr("spark_udfs.rebuild.on_worker", dying(tmp_path / "died"))
    built = rebuild_indexes(spark, str(source), str(tmp_path / "spark"), slots=64)
    assert len(list((tmp_path / "died").iterdir())) == 4 * partitions
    pooled = rebuild_index(str(source), target=str(tmp_path / "pool"), now_ms=0)
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    assert built.ok
    assert built.summary.segments == pooled.summary.segments
    assert built.summary.same > 0


def test_an_interrupted_run_is_taken_up_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, target = logs(tmp_path, 8), tmp_path / "spark"
    with monkeypatch.context() as patch:
        patch.setattr("spark_udfs.rebuild.on_worker", dying(tmp_path / "died", always=True))
        with pytest.raises(TierlogError, match=r"Spark gave up: .*; finished work is kept") as told:
            rebuild_indexes(spark, str(source), str(target), slots=64)
    assert "\n" not in str(told.value)
    half = tree(target)
    built = rebuild_indexes(spark, str(source), str(target))
    pooled = rebuild_index(str(source), target=str(tmp_path / "pool"), now_ms=0)
    assert tree(target) == tree(tmp_path / "pool")
    assert half.items() <= tree(target).items()
    assert built.ok
    assert built.summary.same > 0
    assert built.summary.written + built.summary.same == pooled.summary.written


def test_three_rebuilds_of_one_target_at_once(spark: SparkSession, tmp_path: Path) -> None:
    source, target = str(UNCLEAN), str(tmp_path / "shared")
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(rebuild_indexes, spark, source, target) for _ in range(2)]
        alone = pool.submit(rebuild_index, source, target=target, now_ms=0)
        reports = [run.result() for run in runs]
        assert alone.result().ok
    pooled = rebuild_index(source, target=str(tmp_path / "pool"), now_ms=0)
    assert tree(tmp_path / "shared") == tree(tmp_path / "pool")
    for built in reports:
        assert built.ok
        assert built.summary.written + built.summary.same == pooled.summary.segments


def test_two_rebuilds_of_one_store_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Objects that are gone and objects that are damaged, which alone are replaced."""
    store, alone = tmp_path / "store", tmp_path / "alone"
    assert tier_golden(store, tmp_path / "state").ok
    whole = tree(store)
    for number, path in enumerate(sorted(store.glob("*/*/*.indexes"))):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            overwrite(path, 300, b"\xee" * 8)
    assert tree(store) != whole
    shutil.copytree(store, alone)
    pooled = rebuild_index(alone.as_uri(), now_ms=LATER_MS)
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(rebuild_indexes, spark, store.as_uri(), now_ms=LATER_MS) for _ in range(2)
        ]
        reports = [run.result() for run in runs]
    assert tree(store) == tree(alone)
    for built in reports:
        assert built.ok
        summary = built.summary
        assert summary.segments == pooled.summary.segments
        assert summary.written + summary.same + summary.sound == summary.segments
    # Whatever was bad is written by one of them at least.
    assert sum(built.summary.written for built in reports) >= pooled.summary.written > 0


# -- the command


def test_the_command(damaged: Path, tmp_path: Path) -> None:
    """In a process of its own, since it stops its session."""
    command = ["index", "rebuild", str(damaged), "--format", "json"]
    spark = [*command, "--to", str(tmp_path / "spark"), "--spark", "local[2]"]
    spark += ["--report", str(tmp_path / "report")]
    done = subprocess.run([TOOL, *spark], env=environment(), capture_output=True, text=True)
    pool = [*command, "--to", str(tmp_path / "pool"), "--jobs", "1"]
    pooled = subprocess.run([TOOL, *pool], capture_output=True, text=True)
    assert (done.returncode, pooled.returncode) == (1, 1), done.stderr
    assert done.stdout == pooled.stdout.replace(str(tmp_path / "pool"), str(tmp_path / "spark"))
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    assert pq.read_table(tmp_path / "report" / "segments.parquet").num_rows == 6


def test_wrong_usage(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["index", "rebuild", str(damaged), "--to", str(tmp_path / "to")]
    assert main([*command, "--ship"]) == 2
    without = "import sys; sys.modules['pyspark'] = None\nfrom tierlog.cli import main\n"
    code = f"{without}sys.exit(main({[*command, '--spark', 'local']!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pip install 'tierlog[spark]'" in line
    capsys.readouterr()
