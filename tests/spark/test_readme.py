"""The three calls that the README shows, with the output that it shows."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kafka_tools.golden import DATA_DIR
from tests.test_docs import README

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN = re.compile(r"^```py\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What stands in the README, and what stands for it here.
TOPIC = ("orders", "codec-none")
AN_HOUR_AGO_S = 3600


def test_the_calls_and_their_output(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    tier = ["-m", "tierlog", "tier", str(DATA_DIR / "clean" / "disk1"), "--to", store.as_uri()]
    state = ["--once", "--state-dir", str(tmp_path / "state")]
    subprocess.run([sys.executable, *tier, *state], check=True, capture_output=True)
    for path in store.rglob("*.log"):
        # Not a copy that is just under way.
        written_s = path.stat().st_mtime - AN_HOUR_AGO_S
        os.utime(path, (written_s, written_s))
    lost = sorted(store.glob(f"{TOPIC[1]}-*/0/*.indexes"))[:2]
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    ((code, output),) = SHOWN.findall(README)
    code = code.replace("s3://bucket/kafka", store.as_uri()).replace(*TOPIC)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"spark": spark})  # the README's own
    # Columns are as wide as the names in them.
    assert _cells(printed.getvalue()) == _cells(output.replace(*TOPIC))


def _cells(text: str) -> list[list[str]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines]
