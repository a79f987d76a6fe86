"""Finds archives near a URL that has no archive. The prefix in the URL may be missing or
misspelled.

The search is short even in a large bucket. The search looks for the marker of an archive in the
folders above the URL, and in at most `_MAX_FOLDERS` folders below the URL. If there is no archive
below, the search looks in at most as many folders beside the URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from tierlog.errors import ConfigError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.log.checkpoint import META_PROPERTIES
from tierlog.log.files import printable
from tierlog.remote.segment.layout import CLUSTER_KEY
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.types import shown_url

__all__ = ["describe_nearby", "no_archive", "require_archive"]

_MAX_FOLDERS = 50
_MAX_ABOVE = 8
_MAX_SHOWN = 20
_PARALLEL_LOOKS = 8
# Stores in memory have no folders, and each URL is a store of its own.
_ALONE = "memory"


class _Nearby(NamedTuple):
    """The result of a search near a URL. `above` is an archive that contains the URL. `unseen` is
    the number of folders that were not searched. `is_known` is False when a request failed."""

    above: str | None
    archives: Sequence[str]
    folders: Sequence[str]
    unseen: int
    is_known: bool


def require_archive(store: ObjectStore, *, may_be_empty: bool) -> None:
    """Raise RemoteResourceNotFoundError if the store is not an archive. The error names archives
    nearby. With `may_be_empty`, an empty store is accepted."""
    try:
        store.head(CLUSTER_KEY)
    except RemoteResourceNotFoundError:
        nearby = _look_around(store.url)
        if not may_be_empty or not _is_only_empty(store, nearby):
            raise _error(store.url, nearby) from None


def no_archive(store: ObjectStore) -> RemoteResourceNotFoundError:
    """Return the error for a store that has neither a marker nor a segment. The error names
    archives nearby."""
    return _error(store.url, _look_around(store.url))


def describe_nearby(url: str) -> str:
    """Return a text about archives and folders near `url`, for an error. The text is empty if there
    are no such archives or folders."""
    nearby = _look_around(url)
    return _text(nearby) if nearby.above or nearby.archives or nearby.folders else ""


def _error(url: str, nearby: _Nearby) -> RemoteResourceNotFoundError:
    return RemoteResourceNotFoundError(
        f"{url}: expected a store, found neither its marker {CLUSTER_KEY} nor a segment; "
        f"{_text(nearby)}"
    )


def _text(nearby: _Nearby) -> str:
    if nearby.above is not None:
        return f"it lies inside {nearby.above}: give that"
    unseen = f"; {nearby.unseen} more folders were not looked into" if nearby.unseen else ""
    if nearby.archives:
        return f"near it are: {_some(nearby.archives)}{unseen}"
    advice = "give the URL that `tierlog tier --to` has, prefix and all"
    if not nearby.folders:
        return advice
    return f"near it are only other folders: {_some(nearby.folders)}{unseen}; {advice}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN]) + (" ..." if len(names) > _MAX_SHOWN else "")


def _is_only_empty(store: ObjectStore, nearby: _Nearby) -> bool:
    """Return whether there is no sign that the archive is elsewhere. An empty local folder was
    created on purpose, but a prefix of a bucket does not exist until an object has it."""
    found = nearby.above is not None or nearby.archives or not nearby.is_known
    if found or next(iter(store.list()), None) is not None:
        return False
    return store.url.startswith("file:") or not nearby.folders


def _look_around(url: str) -> _Nearby:
    above = _above(url)
    archives: list[str] = []
    folders: list[str] = []
    unseen = 0
    is_known = True
    try:
        for place in above:
            marker = _marker_in(open_store(place))
            if marker is not None:
                return _Nearby(_shown(place, marker), (), (), 0, is_known=True)
    except (ConfigError, RemoteStorageError):
        is_known = False
    for place in (url, *above[:1]):
        if archives:
            break
        try:
            store = open_store(place)
            names = sorted(
                name for name in store.folders() if f"{place.rstrip('/')}/{quote(name)}" != url
            )
            looked = names[:_MAX_FOLDERS]
            with ThreadPoolExecutor(_PARALLEL_LOOKS, thread_name_prefix="tierlog-near") as pool:
                markers = [*pool.map(partial(_marker_in, store), looked)]
        except (ConfigError, RemoteStorageError):
            is_known = False
            continue
        unseen += len(names) - len(looked)
        for name, marker in zip(looked, markers, strict=True):
            shown = _shown(_join(place, name), marker)
            (folders if marker is None else archives).append(shown)
    return _Nearby(None, archives, folders, unseen, is_known)


def _marker_in(store: ObjectStore, folder: str = "") -> str | None:
    """Return the name of the marker of an archive or of a local log directory; None if there is no
    marker."""
    names = (CLUSTER_KEY, META_PROPERTIES) if store.url.startswith("file:") else (CLUSTER_KEY,)
    for name in names:
        try:
            store.head(f"{folder}/{name}" if folder else name)
        except (RemoteResourceNotFoundError, ValueError):
            continue
        return name
    return None


def _above(url: str) -> list[str]:
    """Return the URLs of the folders above, the nearest one first."""
    parts = urlsplit(url)
    if parts.scheme == _ALONE:
        return []
    names = [name for name in parts.path.split("/") if name]
    counts = range(len(names) - 1, -1, -1)[:_MAX_ABOVE]
    return [f"{parts.scheme}://{parts.netloc}/{'/'.join(names[:count])}" for count in counts]


def _join(url: str, name: str) -> str:
    return f"{url.rstrip('/')}/{quote(name)}"


def _shown(url: str, marker: str | None) -> str:
    return printable(unquote(urlsplit(url).path) if marker == META_PROPERTIES else shown_url(url))
