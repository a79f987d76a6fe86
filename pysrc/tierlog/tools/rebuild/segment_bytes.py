"""Opens the `.log` object of a stored segment as a file."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from tierlog.log.files import SegmentHandle
from tierlog.remote.urls import open_store

__all__ = ["open_stored_segment"]

_REQUEST_BYTES = 8 << 20


@contextmanager
def open_stored_segment(url: str, key: str, size_bytes: int) -> Iterator[SegmentHandle]:
    """Open the `.log` object `key` of `size_bytes` in the store at `url`. In a `file:` store, the
    object's own file is opened, otherwise a temporary copy of the object. Raises OSError and
    RemoteStorageError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with SegmentHandle(os.path.join(unquote(parts.path), key)) as handle:
            yield handle
        return
    folder = tempfile.mkdtemp(prefix="tierlog-rebuild-")
    try:
        path = os.path.join(folder, os.path.basename(key))
        _fetch(url, key, size_bytes, path)
        with SegmentHandle(path) as handle:
            yield handle
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(url: str, key: str, size_bytes: int, path: str) -> None:
    store = open_store(url)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for position in range(0, size_bytes, _REQUEST_BYTES):
            wanted = min(_REQUEST_BYTES, size_bytes - position)
            file.write(store.get_range(key, position, wanted))
