"""What lies at the path of a read: segments of log directories, or of a store.

A catalog is one look: whatever is asked of it later is answered by what was there then. Damage is
a `Finding` and takes what it hides out of the read; with ``fail_on_corrupt`` it is an error.
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
    """Looks at the path; ConfigError, OSError or RemoteStorageError when that cannot be done.

    ``settled``: log directories end where the log is known to stay as it is."""
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
    """The storage of a store, None for log directories. Its clients belong to this process."""
    source = _source(path)
    return ObjectStorageManager(open_store(source.location)) if source.is_store else None


def _source(path: str) -> Source:
    if len(_folders(path)) > 1:
        return Source(SourceKind.LOG_DIR, path)
    return source_of(path)


def _folders(path: str) -> list[str]:
    """Several directories by commas, as in a broker's ``log.dirs``."""
    if is_url(path) or os.path.lexists(path):
        return [path]
    return [part.strip() for part in path.split(",") if part.strip()]
