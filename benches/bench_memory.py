"""What scanning or copying a large segment adds to a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .frame import Bench, Limit

SHAPE = "none-100-16k-1g"
AT_MOST_MIB = 64.0
ROOT = Path(__file__).parents[1]


def items(bench: Bench) -> Sequence[Limit]:
    return [growth(bench, "scan")]


def growth(bench: Bench, operation: str) -> Limit:
    def measure() -> float:
        segment = bench.corpora.path(SHAPE).absolute()
        command = [sys.executable, "-m", "benches.memory_child", operation, str(segment)]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return int(done.stdout) / (1 << 20)

    return Limit(
        operation=f"memory added by {operation}",
        shape=SHAPE,
        unit="MiB",
        at_most=AT_MOST_MIB,
        measure=measure,
    )
