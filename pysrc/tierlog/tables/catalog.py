"""Open the catalog of the segments at the path of a read: log directories, or a store.

A catalog is a snapshot, so later calls show the segments that existed when the catalog was opened.
Damage becomes a `Finding`, and the read leaves out the records that the damage hides. With
``fail_on_corrupt``, damage raises an error.
"""

from __future__ import annotations

import os

from tierlog.log.log_dir import open_log_dir
from tierlog.reader.sources import Source, SourceKind, is_url, source_of
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.urls import open_store
from tierlog.tables.log_dir import LogDirCatalog
from tierlog.tables.options import SourceOptions
from tierlog.tables.plan import Catalog
from tierlog.tables.store import StoreCatalog

__all__ = ["open_catalog", "open_storage"]


def open_catalog(options: SourceOptions, *, settled: bool = False) -> Catalog:
    """Return the catalog of the path in `options`. Raises ConfigError, OSError or
    RemoteStorageError when the path cannot be read.

    With ``settled``, the catalog leaves out records of log directories that a new leader may
    replace."""
    source = _source(options.path)
    if source.is_store:
        return StoreCatalog.open(source.location, options, settled=settled)
    return LogDirCatalog(
        open_log_dir(*_folders(source.location)),
        options.topics,
        read_committed=options.read_committed,
        fail_on_corrupt=options.fail_on_corrupt,
        settled=settled,
    )


def open_storage(path: str) -> RemoteStorageManager | None:
    """Return the storage manager of a store, or None for log directories. The storage manager must
    be used only in this process."""
    source = _source(path)
    return ObjectStorageManager(open_store(source.location)) if source.is_store else None


def _source(path: str) -> Source:
    if len(_folders(path)) > 1:
        return Source(SourceKind.LOG_DIR, path)
    return source_of(path)


def _folders(path: str) -> list[str]:
    """Split a path at commas into several directories, as in a broker's ``log.dirs``."""
    if is_url(path) or os.path.lexists(path):
        return [path]
    return [part.strip() for part in path.split(",") if part.strip()]
