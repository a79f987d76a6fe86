"""Which files of a folder this process holds open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["open_below"]


def open_below(folder: Path) -> int:
    """How many descriptors lead to files below `folder`, also removed or nameless ones, or to
    itself. Others come and go with the threads and the garbage of earlier tests."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        # That of the listing itself is gone.
        with suppress(FileNotFoundError):
            found += f"{os.readlink(f'/proc/self/fd/{name}')}/".startswith(f"{folder}/")
    return found
