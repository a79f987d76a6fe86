"""The segments in a store's listing, in little memory per segment.

A listing is read once. Each segment keeps a name, two sizes and two times. The columns of these
values are packed for up to `MAX_LISTED` segments of a folder at a time. All other memory of a page
of the listing is released.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tierlog.remote.segment.layout import (
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    Takeover,
    parse_key,
    parse_takeover,
)
from tierlog.remote.store.object_store import ObjectInfo
from tierlog.tools.packed import pack, unpack

__all__ = ["MAX_LISTED", "ListedSegments", "SegmentPair", "list_in_columns"]

MAX_LISTED = 256
_NONE = -(1 << 63)

# Stem, `.log` and `.indexes` object of a segment.
_Objects = tuple[str, ObjectInfo | None, ObjectInfo | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPair:
    """The two objects of a segment; None for a missing object. ``stem`` is the key of both objects
    without the suffix."""

    stem: str
    log: ObjectInfo | None = None
    indexes: ObjectInfo | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegments:
    """Adjacent segments of one folder, in the order of names, from `list_in_columns`.

    ``size_bytes`` is the size of their `.log` objects. ``alone`` is the number of segments of which
    one of the two objects is missing. ``first`` is the name of the first segment. ``takeovers`` are
    the takeovers of the folder.
    """

    folder: str
    first: str
    segments: int
    size_bytes: int
    alone: int
    packed: bytes
    takeovers: tuple[Takeover, ...] = ()

    def pairs(self) -> Iterator[SegmentPair]:
        """Yield each segment, in the order of names."""
        names, log_bytes, log_ms, indexes_bytes, indexes_ms = unpack(self.packed)
        columns = (log_bytes, log_ms, indexes_bytes, indexes_ms)
        for name, *values in zip(names.split(), *columns, strict=True):
            stem = f"{self.folder}/{name}"
            yield SegmentPair(
                stem=stem,
                log=_info(stem + LOG_SUFFIX, *values[:2]),
                indexes=_info(stem + INDEXES_SUFFIX, *values[2:]),
            )


def _info(key: str, size_bytes: int, modified_ms: int) -> ObjectInfo | None:
    if size_bytes == _NONE:
        return None
    return ObjectInfo(key=key, size_bytes=size_bytes, etag=None, last_modified_ms=modified_ms)


def list_in_columns(
    objects: Iterable[ObjectInfo],
    on_foreign: Callable[[ObjectInfo], None],
    *,
    max_bytes: int | None = None,
) -> list[ListedSegments]:
    """Return all segments of a listing, in the order of keys. Each item has at most ``MAX_LISTED``
    segments and ``max_bytes`` of `.log` objects, but at least one segment. ``on_foreign`` receives
    all other objects, except takeovers.

    A listing in the order of keys takes the least time. In any other listing, each folder whose
    keys are not in order is sorted.
    """
    columns = _Columns(max_bytes)
    takeovers: defaultdict[str, list[Takeover]] = defaultdict(list)

    def note(info: ObjectInfo) -> None:
        taken = parse_takeover(info.key)
        if taken is None:
            on_foreign(info)
        else:
            takeovers[taken[0]].append(taken[1])

    for stem, log, indexes in _neighbours(objects, note):
        columns.add(stem, log, indexes)
    return [
        replace(one, takeovers=tuple(here)) if (here := takeovers.get(f"{one.folder}/")) else one
        for one in columns.finished()
    ]


def _neighbours(
    objects: Iterable[ObjectInfo], on_foreign: Callable[[ObjectInfo], None]
) -> Iterator[_Objects]:
    """Join the two objects of a segment if they are adjacent, as in a listing in the order of
    keys."""
    stem, log, indexes = "", None, None
    for info in objects:
        key = info.key
        found, dot, suffix = key.rpartition(".")
        if found != stem or not stem:
            try:
                parse_key(key)
            except ValueError:
                on_foreign(info)
                continue
            if stem:
                yield stem, log, indexes
            stem, log, indexes = found, None, None
        if dot + suffix == LOG_SUFFIX:
            log = info
        elif dot + suffix == INDEXES_SUFFIX:
            indexes = info
        else:
            on_foreign(info)
    if stem:
        yield stem, log, indexes


class _Columns:
    """Collects segments of one folder at a time into columns."""

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._done: dict[str, list[ListedSegments]] = {}
        self._disordered: set[str] = set()
        self._folder = self._last = ""
        self._begin()

    def _begin(self) -> None:
        self._names: list[str] = []
        # Size and time of the `.log` object, then those of the `.indexes` object.
        self._values = [array("q") for _ in range(4)]
        self._size_bytes = 0

    def add(self, stem: str, log: ObjectInfo | None, indexes: ObjectInfo | None) -> None:
        folder, _, name = stem.rpartition("/")
        size_bytes = log.size_bytes if log else 0
        if folder != self._folder:
            self._close()
            self._folder, self._last = folder, ""
            if folder in self._done:
                self._disordered.add(folder)
        elif self._is_full(size_bytes):
            self._close()
        if name <= self._last:
            self._disordered.add(folder)
        self._last = name
        self._names.append(name)
        self._size_bytes += size_bytes
        log_bytes, log_ms, indexes_bytes, indexes_ms = self._values
        log_bytes.append(log.size_bytes if log else _NONE)
        log_ms.append(log.last_modified_ms if log else _NONE)
        indexes_bytes.append(indexes.size_bytes if indexes else _NONE)
        indexes_ms.append(indexes.last_modified_ms if indexes else _NONE)

    def _is_full(self, more_bytes: int) -> bool:
        if len(self._names) == MAX_LISTED:
            return True
        limit = self._max_bytes
        return limit is not None and bool(self._names) and self._size_bytes + more_bytes > limit

    def _close(self) -> None:
        if self._names:
            log_bytes, _, indexes_bytes, _ = self._values
            listed = ListedSegments(
                folder=self._folder,
                first=self._names[0],
                segments=len(self._names),
                size_bytes=self._size_bytes,
                alone=log_bytes.count(_NONE) + indexes_bytes.count(_NONE),
                packed=pack((" ".join(self._names), *self._values)),
            )
            self._done.setdefault(self._folder, []).append(listed)
        self._begin()

    def finished(self) -> list[ListedSegments]:
        """Return all segments, in the order of keys."""
        self._close()
        for folder in sorted(self._disordered):
            self._sort(self._done.pop(folder))
        return [one for folder in sorted(self._done) for one in self._done[folder]]

    def _sort(self, folder: Iterable[ListedSegments]) -> None:
        """Join the objects of segments that were not adjacent in the listing."""
        pairs = (pair for listed in folder for pair in listed.pairs())
        objects = [info for pair in pairs for info in (pair.log, pair.indexes) if info]
        objects.sort(key=lambda info: info.key)
        self._folder = ""
        for segment in _neighbours(objects, lambda _: None):
            self.add(*segment)
        self._close()
