"""An error at every call, and power cuts, in short; and the bugs that both are known to find."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.disk import ERRORS
from tests.reliability.operations import OPERATIONS

TIMEOUT_S = 600


def run(folder: Path, module: str, *arguments: str) -> tuple[dict[str, Any], str]:
    answer = folder / "report.json"
    command = [sys.executable, "-m", f"tests.reliability.{module}", "--json", str(answer)]
    done = subprocess.run(
        [*command, *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    assert answer.exists(), output
    report: dict[str, Any] = json.loads(answer.read_text())
    assert done.returncode == (1 if report["failures"] else 0)
    return report, output


def test_an_error_of_any_call_loses_nothing(tmp_path: Path) -> None:
    report, output = run(tmp_path, "call_errors", "--cases", "140")
    assert report["failures"] == [], output
    assert report["calls"].keys() == OPERATIONS.keys()
    struck = sum(report["struck"].values())
    # After a segment id that sorts differently, another call may have the number.
    assert struck >= 134
    assert {key.split("/")[1] for key in report["struck"]} == ERRORS.keys()
    assert 0 < report["recovered"] < struck


@pytest.mark.parametrize(
    ("mutation", "operation", "error"),
    [
        ("a failed sync is swallowed", "copy", "EIO"),
        ("a short write counts as a whole one", "copy more", "SHORT"),
    ],
)
def test_a_known_bug_is_found_by_errors(
    tmp_path: Path, mutation: str, operation: str, error: str
) -> None:
    arguments = ["--error", error, "--operation", operation, "--failures", "1"]
    report, output = run(tmp_path, "call_errors", *arguments, "--mutation", mutation)
    assert report["failures"], output


def test_a_power_cut_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    report, output = run(tmp_path, "power_cut", "--states", "6")
    assert report["failures"] == [], output
    assert report["changes"].keys() > OPERATIONS.keys()
    assert report["states"] >= 6 * len(OPERATIONS)
    assert report["unsynced"] > report["cuts"] // 2


@pytest.mark.parametrize(
    ("mutation", "operation"),
    [
        ("objects are not synced", "copy"),
        ("folders of the store are not synced", "copy through drafts"),
        ("commits are not synced", "expire"),
    ],
)
def test_a_known_bug_is_found_by_power_cuts(tmp_path: Path, mutation: str, operation: str) -> None:
    arguments = ["--states", "200", "--operation", operation, "--failures", "1"]
    report, output = run(tmp_path, "power_cut", *arguments, "--mutation", mutation)
    assert report["failures"], output
