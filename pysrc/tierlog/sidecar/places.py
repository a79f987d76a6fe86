"""Checks that store, state and index directories are outside the broker's log directories.

A broker does not start if a log directory has unknown folders. When a topic is deleted, the broker
deletes all files in its folders.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tierlog.errors import ConfigError
from tierlog.log.log_dir import LogDir, open_log_dir
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import LocalStore

__all__ = ["open_logs"]


def open_logs(
    log_dirs: Sequence[str], store: ObjectStore, state_dir: str, index_dir: str | None
) -> LogDir:
    """Open the log directories, after symbolic links are resolved.

    Raises ConfigError when the store, the state or the remote index files are inside a log
    directory, or a log directory is inside the store.
    """
    if not log_dirs:
        raise ConfigError("no log directory given")
    logs = open_log_dir(*log_dirs)
    places = {f"the state directory {state_dir}": os.path.realpath(state_dir)}
    if index_dir is not None:
        places[f"the remote index directory {index_dir}"] = os.path.realpath(index_dir)
    if isinstance(store, LocalStore):
        places[f"the store {store.url}"] = os.path.realpath(store.folder)
    for what, place in places.items():
        for path in logs.paths:
            if _is_inside(place, path):
                raise ConfigError(
                    f"{what} must not lie inside the broker's log directory {path}: the broker "
                    "could not start with it; choose a place outside"
                )
            if what.startswith("the store") and _is_inside(path, place):
                raise ConfigError(
                    f"{what} must not hold the broker's log directory {path}; choose a folder that "
                    "is the archive's alone"
                )
    return logs


def _is_inside(inner: str, outer: str) -> bool:
    return os.path.commonpath([inner, outer]) == outer
