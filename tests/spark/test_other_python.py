"""Sessions on a machine whose `python3` of the path has no tierlog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_udfs import session_config
from tests.kafka_tools.golden import DATA_DIR
from tests.spark.cluster import environment, standalone_cluster

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_udfs import session_config

source, master = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
for name, value in session_config(master).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
frame = spark.read.format("tierlog").option("subscribe", "epochs").load(source)
print(frame.count())
spark.stop()
"""


def run(folder: Path, master: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script, with a `python3` first in the path that has no tierlog."""
    bare = folder / "python3"
    bare.unlink(missing_ok=True)
    bare.symlink_to(os.path.realpath(sys.executable))
    path = f"{folder}:{os.environ['PATH']}"
    given = {**environment(), "PATH": path}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        given.pop(name, None)
    command = [sys.executable, "-c", SCRIPT, str(DATA_DIR / "clean" / "disk1"), master]
    return subprocess.run(
        command, env={**given, **variables}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,512]"])
def test_the_settings_lead_to_the_interpreter_of_this_process(tmp_path: Path, master: str) -> None:
    """Without them Spark says DATA_SOURCE_NOT_FOUND."""
    done = run(tmp_path, master)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "480"


def test_a_cluster_with_another_python_is_told_what_to_set(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as url:
        done = run(tmp_path, url)
        assert "DATA_SOURCE_NOT_FOUND" in done.stderr
        assert f"{url}: Spark uses {tmp_path}/python3 for data sources, which has no" in done.stderr
        assert "set PYSPARK_PYTHON" in done.stderr
        done = run(tmp_path, url, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "480"
    assert "Spark uses" not in done.stderr


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_an_interpreter_that_is_not_here_is_told(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "./environment/bin/python")
    with pytest.warns(UserWarning, match=r"\./environment/bin/python .* is not on this machine"):
        session_config("yarn")
