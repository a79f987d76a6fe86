"""Measures the memory that a process needs to scan or copy a large segment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from .frame import Bench, Limit

SHAPE = "none-100-16k-1g"
AT_MOST_MIB = 64.0
ROOT = Path(__file__).parents[1]


def items(bench: Bench) -> Sequence[Limit]:
    return [growth(bench, "scan"), growth(bench, "copy")]


def growth(bench: Bench, operation: str) -> Limit:
    def measure() -> float:
        segment = bench.corpora.path(SHAPE).absolute()
        with TemporaryDirectory(dir=segment.parent) as folder:
            paths = [str(segment), folder] if operation == "copy" else [str(segment)]
            command = [sys.executable, "-m", "benches.memory_child", operation, *paths]
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return int(done.stdout) / (1 << 20)

    return Limit(
        operation=f"memory added by {operation}",
        shape=SHAPE,
        unit="MiB",
        at_most=AT_MOST_MIB,
        measure=measure,
    )
