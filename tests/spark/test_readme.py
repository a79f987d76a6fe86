"""The calls that the README and the Spark guide show, with the output that they show."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.pages import README, ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = re.compile(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The topic that the pages show, and the one that replaces it here.
TOPIC = ("orders", "codec-none")
AN_HOUR_AGO_S = 3600


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the segments of a golden log directory, tiered an hour ago."""
    store = tmp_path / "store"
    tier = ["-m", "tierlog", "tier", str(DATA_DIR / "clean" / "disk1"), "--to", store.as_uri()]
    state = ["--once", "--state-dir", str(tmp_path / "state")]
    subprocess.run([sys.executable, *tier, *state], check=True, capture_output=True)
    for path in store.rglob("*.log"):
        # An audit takes a younger `.log` object without `.indexes` for an active copy.
        written_s = path.stat().st_mtime - AN_HOUR_AGO_S
        os.utime(path, (written_s, written_s))
    return store


def test_the_table_of_the_readme(spark: SparkSession, store: Path) -> None:
    run_shown(README, spark, store)


def test_the_audit_and_rebuild_of_the_guide(spark: SparkSession, store: Path) -> None:
    lost = sorted(store.glob(f"{TOPIC[1]}-*/0/*.indexes"))[:2]
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    run_shown((ROOT / "docs" / "SPARK.md").read_text(encoding="utf-8"), spark, store)


def run_shown(page: str, spark: SparkSession, store: Path) -> None:
    """Run the page's example over ``store`` and compare what it prints with what the page shows."""
    ((code, output),) = SHOWN.findall(page)
    code = code.replace("s3://bucket/kafka", store.as_uri()).replace(*TOPIC)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"spark": spark})  # the page's own
    # Columns are as wide as the names in them.
    assert _cells(printed.getvalue()) == _cells(output.replace(*TOPIC))


def _cells(text: str) -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]
