"""Sessions on a machine whose `python3` of the path has no tierlog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from spark_udfs import session_config

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in session_config("local[1]").items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
frame = spark.read.format("tierlog").option("subscribe", "epochs").load(sys.argv[1])
print(frame.count())
spark.stop()
"""


def test_the_settings_lead_to_the_interpreter_of_this_process(tmp_path: Path) -> None:
    """Without them Spark says DATA_SOURCE_NOT_FOUND."""
    (tmp_path / "python3").symlink_to(os.path.realpath(sys.executable))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    command = [sys.executable, "-c", SCRIPT, str(DATA_DIR / "clean" / "disk1")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == "480"
