"""Processes killed at every named point, and the bugs that this is known to find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.matrix import Report
from tests.reliability.mutations import MUTATIONS
from tests.reliability.points import POINTS

CYCLES = 336
SEED = 20
TIMEOUT_S = 600


def run_matrix(folder: Path, *arguments: str) -> tuple[Report, str]:
    """In a process of its own: a child that is forked has one thread, and so must its parent."""
    answer = folder / "report.json"
    command = [sys.executable, "-m", "tests.reliability.matrix", "--json", str(answer), *arguments]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    assert answer.exists(), output
    return Report.loads(answer.read_text()), output


def test_nothing_is_lost_whatever_moment_the_process_dies_at(tmp_path: Path) -> None:
    report, output = run_matrix(tmp_path, "--cycles", str(CYCLES), "--seed", str(SEED))
    assert report.failures == [], output
    assert report.cycles == CYCLES
    killed = report.by_point()
    assert [point for point in POINTS if not killed[point]] == [], "never killed there"
    assert len(POINTS) >= 30
    assert sum(report.occurrences(point) > 1 for point in POINTS) >= 30
    # Some are over before their random moment.
    assert killed["after_us"] >= CYCLES // 20, "at random moments too"
    assert report.recovery_kills >= CYCLES // 20, "while recovering too"


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_a_known_bug_that_is_put_back_is_found(tmp_path: Path, mutation: str) -> None:
    arguments = ["--cycles", "192", "--failures", "1", "--seed", str(SEED), "--mutation", mutation]
    report, output = run_matrix(tmp_path, *arguments)
    assert report.failures, output
