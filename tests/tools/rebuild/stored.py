"""Stores whose indexes are lost, for tests of rebuilds."""

from __future__ import annotations

from pathlib import Path

from tests.tools.golden_copy import overwrite
from tierlog.remote.segment.indexes import IndexesHeader


def indexes_of(store: Path, topic: str = "*") -> list[Path]:
    return sorted(store.glob(f"{topic}-{'?' * 22}/*/*.indexes"))


def header_of(data: bytes) -> IndexesHeader:
    return IndexesHeader.parse(data, path="object")


def lost(store: Path, paths: list[Path]) -> None:
    """Missing, empty and overwritten in turn."""
    for number, path in enumerate(paths):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.write_bytes(b"")
        else:
            overwrite(path, 0, bytes(200))
