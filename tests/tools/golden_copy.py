"""Copies of golden log directories, for tests that damage or move them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR

__all__ = ["copy_log_dir", "overwrite"]


def copy_log_dir(to: Path, name: str, *partitions: str) -> Path:
    """A copy of ``<set>/<disk>`` without the dump texts; only these partitions when given."""
    source = DATA_DIR / name

    def left_out(directory: str, names: list[str]) -> set[str]:
        dumps = {entry for entry in names if ".dump.txt" in entry}
        if not partitions or Path(directory) != source:
            return dumps
        folders = {entry for entry in names if (source / entry).is_dir()}
        return dumps | (folders - set(partitions))

    copied = to / Path(name).name
    shutil.copytree(source, copied, ignore=left_out)
    return copied


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write over some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
