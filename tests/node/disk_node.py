"""A node whose disk a test can break: ``tierlog serve`` with the library of `disk_calls.c`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from tests.reliability.disk import break_disk
from tierlog.cli.command import main

__all__ = ["FAULT_FILE", "STRUCK_FILE"]

# The fault that a signal puts in force, and the file that is there from then on.
FAULT_FILE, STRUCK_FILE = "fault.json", "fault.in.force"


def _break(_number: int, _frame: FrameType | None) -> None:
    folder = Path(os.environ["NODE_FOLDER"])
    break_disk(*json.loads((folder / FAULT_FILE).read_text()))
    (folder / STRUCK_FILE).touch()


if __name__ == "__main__":
    # Processes that this one starts are none of the test.
    del os.environ["LD_PRELOAD"]
    signal.signal(signal.SIGUSR1, _break)
    sys.exit(main())
