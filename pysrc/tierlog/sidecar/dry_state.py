"""Copies the metadata of the state directory, so that a dry run decides as a real run."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

from tierlog.errors import RemoteMetadataError

__all__ = ["copy_metadata"]


def copy_metadata(source: str, target: str) -> None:
    """Copy the SQLite file `source`, if it exists, also while another process writes to it.

    RemoteMetadataError when it cannot be read. Nothing is written beside `source` unless a process
    that was killed has left a write-ahead log there.
    """
    if not os.path.exists(source):
        return
    # Without a write-ahead log no process has the file open, and nothing changes in it.
    mode = "mode=ro" if os.path.exists(f"{source}-wal") else "mode=ro&immutable=1"
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(source)}?{mode}", uri=True)) as database,
            closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
    except sqlite3.Error as error:
        raise RemoteMetadataError(f"{source}: cannot be copied for a dry run: {error}") from error
