"""Work in forked processes, which have everything imported and may do what they like."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["in_child", "in_workers"]

_TIMEOUT_S = 120


def in_child(work: Callable[[], Any], answer: Path) -> Any:
    """What `work` returns, through JSON in the file `answer`. AssertionError with the child's
    traceback for an exception, and when the child hangs or dies."""
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        signal.alarm(_TIMEOUT_S)
        _answer(work, answer)
    status = os.waitpid(child, 0)[1]
    if not answer.exists():
        raise AssertionError(f"status {status}: still running after {_TIMEOUT_S} s, or dead")
    found = json.loads(answer.read_text())
    if "error" in found:
        raise AssertionError(found["error"])
    return found["value"]


def in_workers(
    scratch: Path, workers: int, work: Callable[[Path, int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """What `work` returns in each of so many processes, given a folder of its own and a number."""
    children = []
    for number in range(workers):
        folder = scratch / f"worker-{number}"
        folder.mkdir()
        child = os.fork()
        if child == 0:
            _answer(lambda: work(folder, number), folder / "report.json")  # noqa: B023
        children.append((child, folder / "report.json"))
    for child, _ in children:
        os.waitpid(child, 0)
    answers = [json.loads(answer.read_text()) for _, answer in children]
    for found in answers:
        if "error" in found:
            raise AssertionError(found["error"])
    return [found["value"] for found in answers]


def _answer(work: Callable[[], Any], answer: Path) -> None:
    """Never returns."""
    found: dict[str, Any] = {"error": "nothing"}
    try:
        found = {"value": work()}
    except BaseException:  # noqa: BLE001 - whatever it is, the parent is to read it
        found = {"error": traceback.format_exc()}
    finally:
        answer.write_text(json.dumps(found))
        os._exit(0)
