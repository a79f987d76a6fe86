"""Tables, streams, rebuilds through Spark Connect: a server of its own, a client without JVM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from spark_udfs import audit, rebuild_indexes, ship
from spark_udfs.datasource import TierlogDataSource
from tests.kafka_tools.golden import DATA_DIR, golden_segments, truth_records
from tests.kafka_tools.support import LOOPBACK, tail_text, wait_until
from tests.spark.audits import LATER_MS, agree
from tests.spark.growing import GrowingStore, fill_store
from tests.spark.rebuilds import Seen, tree
from tierlog import _core
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import audit_store
from tierlog.tools.rebuild.index import rebuild_index

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
STARTED = re.compile(r"Spark Connect server started at: .*:([0-9]+)")
SETTINGS = {
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
PATIENCE_S = 240
EPOCHS = truth_records("clean", "epochs", 0)
ENDS = [one.next_base_offset for one in golden_segments("epochs", "clean") if one.rolled]


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Connect server whose workers run this interpreter."""
    folder = tmp_path_factory.mktemp("connect")
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    output = folder / "server.txt"
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": LOOPBACK,
        "OPENBLAS_NUM_THREADS": "1",
    }
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        started: list[str] = []

        def listens() -> bool:
            started.extend(STARTED.findall(output.read_text(errors="replace")))
            return bool(started) or process.poll() is not None

        wait_until(listens, PATIENCE_S, what="Spark Connect server")
        assert started, tail_text(output)
        yield f"sc://{LOOPBACK}:{started[0]}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def connected(server_url: str) -> Iterator[SparkSession]:
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(server_url).create()
    session.dataSource.register(TierlogDataSource)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> GrowingStore:
    return GrowingStore(whole, tmp_path / "store")


def test_a_topic_as_a_table(connected: SparkSession, store: GrowingStore) -> None:
    store.add("epochs", 0, 3)
    reader = connected.read.format("tierlog").option("path", store.url)
    rows = reader.option("subscribe", "epochs").option("includeHeaders", "true").load()
    wanted = [row for row in EPOCHS if row["offset"] < ENDS[2]]
    found = rows.select("offset", "timestamp", "headers").orderBy("offset").collect()
    assert [row.offset for row in found] == [row["offset"] for row in wanted]
    assert [round(row.timestamp.timestamp() * 1000) for row in found] == [
        row["timestamp_ms"] for row in wanted
    ]
    assert [len(row.headers or ()) for row in found] == [len(row["headers"]) for row in wanted]
    late = rows.where(f"offset >= {ENDS[1]} AND partition = 0").count()
    assert late == len([row for row in wanted if row["offset"] >= ENDS[1]])


def test_a_topic_as_a_stream(connected: SparkSession, store: GrowingStore, tmp_path: Path) -> None:
    """Two runs over one checkpoint, with segments between them."""
    for number in (1, 2):
        store.add("epochs", number - 1, number)
        reader = connected.readStream.format("tierlog").option("path", store.url)
        reader = reader.option("subscribe", "epochs").option("startingOffsets", "earliest")
        writer = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "table"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE_S)
        table = connected.read.parquet(str(tmp_path / "table")).select("offset")
        found = sorted(row.offset for row in table.collect())
        assert found == [row["offset"] for row in EPOCHS if row["offset"] < ENDS[number - 1]]


def test_an_error_says_what_to_do(connected: SparkSession, store: GrowingStore) -> None:
    from pyspark.errors import PySparkException

    store.add("epochs", 0, 1)
    reader = connected.read.format("tierlog").option("path", store.url)
    with pytest.raises(PySparkException, match="expected topic 'epoch', found no such topic"):
        reader.option("subscribe", "epoch").load().count()


def test_a_rebuild(connected: SparkSession, tmp_path: Path) -> None:
    source, progress = str(DATA_DIR / "clean" / "disk2"), Seen()
    pooled = rebuild_index(source, target=str(tmp_path / "pool"), now_ms=0)
    built = rebuild_indexes(
        connected,
        source,
        str(tmp_path / "spark"),
        report_path=(tmp_path / "report").as_uri(),
        progress=progress,
    )
    assert tree(tmp_path / "spark") == tree(tmp_path / "pool")
    assert built.summary.written == pooled.summary.written == built.segments.count() > 0
    assert built.findings.count() == len(pooled.findings) > 0
    assert built.quarantine.count() == 0
    assert progress.total_bytes == progress.done_bytes == pooled.summary.size_bytes


def test_an_audit(connected: SparkSession, store: GrowingStore) -> None:
    """With a segment that lost half of itself."""
    store.add("epochs", 0, 4)
    gone = store.segments("epochs")[1].with_suffix(".indexes")
    Path(store.url.removeprefix("file://"), gone).unlink()
    local = audit_store(store.url, AuditRules(now_ms=LATER_MS, deep=True, retention_bytes=1))
    tables = audit(connected, store.url, now_ms=LATER_MS, deep=True, retention_bytes=1)
    agree(tables, local)
    assert {one.what for one in local.findings} >= {"log_without_indexes", "missing_offsets"}
    tables.unpersist()


def test_the_package_is_shipped_to_a_server_that_runs(server_url: str) -> None:
    from pyspark.sql.connect.session import SparkSession

    def unpacked(batches: Iterable[object]) -> Iterator[object]:
        import pyarrow as pa
        from pyspark import SparkFiles

        names = [str(path) for path in Path(SparkFiles.getRootDirectory()).glob("*/*")]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": names})

    session = SparkSession.builder.remote(server_url).create()
    try:
        ship(session)
        rows = session.range(1).mapInArrow(unpacked, "name string").collect()
    finally:
        session.stop()
    names = {"/".join(Path(row.name).parts[-2:]) for row in rows}
    assert {f"tierlog/{Path(_core.__file__).name}", "spark_udfs/rebuild.py"} < names
