"""A cluster of two workers: how tierlog gets into them, and a task that both of them do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

import spark_udfs
import tierlog
from tests.kafka_tools.golden import DATA_DIR
from tests.spark.cluster import PACKAGES, environment, interpreter, standalone_cluster
from tests.spark.rebuilds import tree
from tierlog.tools.rebuild.index import rebuild_index

TOOL = str(Path(sys.executable).with_name("tierlog"))
SOURCE = DATA_DIR / "clean" / "disk1"
# What Spark itself wants in a worker.
NEEDED = ("numpy", "numpy.libs", "pyarrow")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its URL, and the folder in which the workers work."""
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder) as url:
        yield url, folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without tierlog."""
    return interpreter(tmp_path_factory.mktemp("bare"))


def rebuild(
    url: str, target: Path, variables: dict[str, str], *more: str
) -> subprocess.CompletedProcess[str]:
    command = [TOOL, "index", "rebuild", str(SOURCE), "--to", str(target), "--spark", url]
    # Many tasks, so that both workers get some.
    command += ["--jobs", "64", "--format", "json", *more]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def assert_rebuilt(done: subprocess.CompletedProcess[str], target: Path) -> None:
    assert done.returncode == 0, done.stderr
    whole = target.with_name("whole")
    report = rebuild_index(str(SOURCE), target=str(whole), now_ms=0)
    assert tree(target) == tree(whole)
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["summary"]["written"] == report.summary.written > 0
    assert [row["log_crc32c"] for row in told["segments"]] == [
        row.log_crc32c for row in report.segments
    ]


def test_a_worker_without_tierlog_says_so(
    cluster: tuple[str, Path], bare: Path, tmp_path: Path
) -> None:
    done = rebuild(cluster[0], tmp_path / "to", environment(bare))
    assert done.returncode == 1
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("tierlog: ")]
    assert "a worker of Spark has no tierlog" in line
    assert str(bare) in line
    assert "ship" in line
    assert not list(tmp_path.rglob("*.index"))


def test_the_package_goes_along_native_code_and_all(
    cluster: tuple[str, Path], bare: Path, tmp_path: Path
) -> None:
    url, folder = cluster
    before = set(folder.glob("worker-?/*"))
    done = rebuild(url, tmp_path / "to", environment(bare), "--ship")
    assert_rebuilt(done, tmp_path / "to")
    (first, second) = sorted(set(folder.glob("worker-?/*")) - before)
    assert first.parent != second.parent
    for application in (first, second):
        assert list(application.glob("*/tierlog/_core*.so")), application
        assert list(application.glob("*/obstore/*.so")), application


def test_an_archive_of_the_environment(cluster: tuple[str, Path], tmp_path: Path) -> None:
    # Of a plain .tar Spark forgets which files are programs.
    packed = tmp_path / "environment.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
        pack_environment(tmp_path / "environment", archive)
    variables = environment(
        "./environment/bin/python", f"spark.archives={packed.as_uri()}#environment"
    )
    done = rebuild(cluster[0], tmp_path / "to", variables)
    assert_rebuilt(done, tmp_path / "to")


def pack_environment(folder: Path, archive: tarfile.TarFile) -> None:
    """A virtual environment as tools that pack one leave it: files, no links to elsewhere."""
    interpreter(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.rmtree(packages)
    for path in folder.iterdir():
        archive.add(path, arcname=path.name)
    inside = str(packages.relative_to(folder))
    sources = [PACKAGES / name for name in NEEDED]
    sources += [Path(str(one.__file__)).parent for one in (tierlog, spark_udfs, obstore)]
    for path in sources:
        if path.exists():
            archive.add(path, arcname=os.path.join(inside, path.name), filter=needed)


def needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = ("/tests", "/include", "/__pycache__")
    return None if member.name.endswith(left_out) else member


def test_a_task_that_spark_runs_twice_at_once(cluster: tuple[str, Path], tmp_path: Path) -> None:
    fifo = tmp_path / "both"
    os.mkfifo(fifo)
    settings = ("speculation=true", "speculation.quantile=0.1", "speculation.multiplier=1.1")
    script = Path(__file__).with_name("speculating.py")
    command = [
        sys.executable,
        str(script),
        cluster[0],
        str(SOURCE),
        str(tmp_path / "to"),
        str(fifo),
    ]
    variables = environment(None, *(f"spark.{one}" for one in settings))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pooled = rebuild_index(str(SOURCE), target=str(tmp_path / "pool"), now_ms=0)
    assert tree(tmp_path / "to") == tree(tmp_path / "pool")
    assert json.loads(done.stdout)["segments"] == pooled.summary.segments
