"""One real Spark for all tests of a process, with workers of their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "spark.driver.memory": "768m",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two slots; a task is tried three times."""
    from pyspark.sql import SparkSession

    from spark_udfs import session_config

    master = "local[2,3]"
    builder = SparkSession.builder.master(master).appName("tierlog")
    for name, value in {**session_config(master), **SETTINGS}.items():
        builder = builder.config(name, value)
    at_interrupt = signal.getsignal(signal.SIGINT)
    # Read when it starts; no other test should inherit it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        session = builder.getOrCreate()
    # A context takes it for itself.
    signal.signal(signal.SIGINT, at_interrupt)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
