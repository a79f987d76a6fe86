"""A dry run of a sidecar: a store that drops what is written, and a copy of the state directory.

The store reads from another store, and only counts the bytes that are written. So a dry run
executes a whole pass with every check and decision, and changes nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

from tierlog.errors import RemoteMetadataError, RemoteResourceNotFoundError
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DryRunStore", "copy_metadata"]

# A sidecar reads indexes back right after it has written them, and later never again.
_KEPT = 16


class DryRunStore(ObjectStore):
    """A view of another store. Written and deleted objects change only the view."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._written: dict[str, ObjectInfo] = {}
        self._data: OrderedDict[str, bytes] = OrderedDict()
        self._deleted: set[str] = set()

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_local(self) -> bool:
        return self._store.is_local

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        """See `ObjectStore`. This never fails."""
        self._data[key] = bytes(data)
        self._wrote(key, len(self._data[key]))
        while len(self._data) > _KEPT:
            self._data.popitem(last=False)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        """See `ObjectStore`. All chunks are read, because their source checks them."""
        for _ in chunks:
            continue
        self._wrote(key, size_bytes)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        try:
            self.head(key)
        except RemoteResourceNotFoundError:
            self.put_bytes(key, data)
            return True
        return False

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        data = self._data.get(key)
        if data is not None:
            return data[start_position : start_position + size_bytes]
        return self._store.get_range(key, start_position, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        if key in self._deleted:
            raise RemoteResourceNotFoundError(f"{self.url}: no object {key}")
        return self._written.get(key) or self._store.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        for key, info in tuple(self._written.items()):
            if key.startswith(folder):
                yield info
        try:
            for info in self._store.list(prefix):
                if info.key not in self._deleted and info.key not in self._written:
                    yield info
        except RemoteResourceNotFoundError:
            # The folder does not exist yet; the first real pass would create it.
            return

    def delete(self, key: str) -> None:
        self._written.pop(key, None)
        self._data.pop(key, None)
        self._deleted.add(key)

    def _wrote(self, key: str, size_bytes: int) -> None:
        self._deleted.discard(key)
        self._written[key] = ObjectInfo(
            key=key, size_bytes=size_bytes, etag=None, last_modified_ms=0
        )


def copy_metadata(source: str, target: str) -> None:
    """Copy the SQLite file `source` if it exists, even while another process writes to it.

    Raises RemoteMetadataError when the file cannot be read. No file is written beside `source`,
    unless a process that was killed has left a write-ahead log there.
    """
    if not os.path.exists(source):
        return
    # If there is no write-ahead log beside the file, no process has the file open, so it does not
    # change.
    mode = "mode=ro" if os.path.exists(f"{source}-wal") else "mode=ro&immutable=1"
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(source)}?{mode}", uri=True)) as database,
            closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
    except sqlite3.Error as error:
        raise RemoteMetadataError(f"{source}: cannot be copied for a dry run: {error}") from error
