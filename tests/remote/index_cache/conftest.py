"""An index cache over a watched store, with a clock that moves when told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.remote.index_cache.segments import OpenCache, Removals, Troubles, WatchedStore
from tierlog.clock import ManualClock
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.segment.storage import ObjectStorageManager


@pytest.fixture
def watched(tmp_path: Path) -> WatchedStore:
    return WatchedStore(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote-log-index-cache"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def removed() -> Removals:
    """(segment, cause) of every entry that left, in order."""
    return []


@pytest.fixture
def troubles() -> Troubles:
    """What `on_disk_error` was told."""
    return []


@pytest.fixture
def open_cache(
    watched: WatchedStore,
    folder: Path,
    clock: ManualClock,
    removed: Removals,
    troubles: Troubles,
) -> Iterator[OpenCache]:
    """Makes a cache over `watched`; what is still open at the end is closed."""
    caches: list[RemoteIndexCache] = []

    def make(**arguments: Any) -> RemoteIndexCache:
        settings = {
            "clock": clock,
            "on_removal": lambda segment_id, cause: removed.append((segment_id.id, cause)),
            "on_disk_error": troubles.append,
            **arguments,
        }
        caches.append(RemoteIndexCache(ObjectStorageManager(watched), folder, **settings))
        return caches[-1]

    yield make
    for cache in caches:
        cache.close()
