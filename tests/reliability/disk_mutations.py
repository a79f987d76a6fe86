"""Known bugs of parts that write files, put back: for good, in a process of the test."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tierlog.remote import file_io
from tierlog.remote.database import Database
from tierlog.remote.store import local_store

__all__ = ["MUTATIONS"]


def _sync_with(replaced: Callable[[int, Callable[[int], None]], None], area: str) -> None:
    """Replace the syncs of files and folders below the folder of that name."""
    real = os.fsync

    def sync(descriptor: int) -> None:
        if f"/{area}/" in os.readlink(f"/proc/self/fd/{descriptor}") + "/":
            replaced(descriptor, real)
        else:
            real(descriptor)

    setattr(os, "fsync", sync)  # noqa: B010


def _objects_are_not_synced() -> None:
    _sync_with(_unless(stat.S_ISREG), "store")


def _folders_are_not_synced() -> None:
    _sync_with(_unless(stat.S_ISDIR), "store")


def _unless(kind: Callable[[int], bool]) -> Callable[[int, Callable[[int], None]], None]:
    def sync(descriptor: int, real: Callable[[int], None]) -> None:
        if not kind(os.fstat(descriptor).st_mode):
            real(descriptor)

    return sync


def _error_is_swallowed() -> None:
    def sync(descriptor: int, real: Callable[[int], None]) -> None:
        with suppress(OSError):
            real(descriptor)

    _sync_with(sync, "store")


def _commits_are_not_synced() -> None:
    real = Database.__init__

    def init(self: Any, *given: Any) -> None:
        real(self, *given)
        self.connection.execute("PRAGMA synchronous = OFF")

    setattr(Database, "__init__", init)  # noqa: B010


def _one_write_is_enough() -> None:
    def write(descriptor: int, data: Any, position: int | None = None) -> int:
        view = memoryview(data).cast("B")
        if position is None:
            os.write(descriptor, view)
        else:
            os.pwrite(descriptor, view, position)
        return len(view)

    for module in (file_io, local_store):
        setattr(module, "write_all", write)  # noqa: B010


MUTATIONS: dict[str, Callable[[], None]] = {
    "objects are not synced": _objects_are_not_synced,
    "folders of the store are not synced": _folders_are_not_synced,
    "commits are not synced": _commits_are_not_synced,
    "a failed sync is swallowed": _error_is_swallowed,
    "a short write counts as a whole one": _one_write_is_enough,
}
