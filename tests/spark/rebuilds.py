"""The files of a rebuild, and a listener for its progress."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the hidden ones, which a store's writer may leave when it is killed."""
    files = (path for path in folder.rglob("[!.]*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Seen:
    """What progress was told."""

    total_bytes = 0
    done_bytes = 0

    def start(self, total_bytes: int) -> None:
        self.total_bytes += total_bytes

    def advance(self, size_bytes: int, now_at: str = "") -> None:
        self.done_bytes += size_bytes
