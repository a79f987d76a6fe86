"""Keeps the indexes of a few segments in memory, for readers without an index cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tierlog.remote.index_cache.entry import IndexKey, RemoteIndexEntry, key_of
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import RemoteLogSegmentId

if TYPE_CHECKING:
    from tierlog.remote.index_cache.cache import RemoteIndexCache

__all__ = ["Indexes", "KeptIndexes"]

# Keeps indexes of segments, and gets missing indexes from the store.
Indexes: TypeAlias = "RemoteIndexCache | KeptIndexes"

_KEPT_ENTRIES = 64
_KEPT_BYTES = 8 << 20


class KeptIndexes:
    """Works like `RemoteIndexCache`, but needs neither a disk nor a clock. The cache keeps the
    indexes that were loaded last.

    Any thread may use the cache. The cache has no lock, because a lock that another thread holds at
    a fork would never be released in the child process. If two threads need the indexes of the same
    segment at once, both request them from the store.
    """

    def __init__(self, storage: RemoteStorageManager) -> None:
        self._storage = storage
        self._entries: OrderedDict[IndexKey, RemoteIndexEntry] = OrderedDict()
        # See `RemoteIndexCache`.
        self.find: Callable[[IndexKey], RemoteIndexEntry | None] = self._entries.get

    def __contains__(self, segment_id: RemoteLogSegmentId) -> bool:
        return key_of(segment_id) in self._entries

    def get(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexEntry:
        """Return the verified indexes of that segment. Indexes that are not kept are requested.
        Raises the same errors as `RemoteIndexCache.get`."""
        key = key_of(segment.segment_id)
        entry = self._entries.get(key)
        if entry is None:
            header, described, data = self._storage.fetch_whole_indexes(segment)
            entry = RemoteIndexEntry(described, header.object_size_bytes, header=header, data=data)
            self._keep(key, entry)
        entry.check_segment(segment)
        return entry

    def remove(self, segment_id: RemoteLogSegmentId) -> bool:
        """Forget the indexes of that segment. Return whether there were any."""
        return self._entries.pop(key_of(segment_id), None) is not None

    def clear(self) -> None:
        """Forget all indexes."""
        self._entries.clear()

    def _keep(self, key: IndexKey, entry: RemoteIndexEntry) -> None:
        if entry.size_bytes > _KEPT_BYTES:
            return
        self._entries[key] = entry
        kept = list(self._entries.values())
        size_bytes = sum(one.size_bytes for one in kept)
        surplus = len(kept) - _KEPT_ENTRIES
        for one in kept:
            if surplus <= 0 and size_bytes <= _KEPT_BYTES:
                return
            surplus -= 1
            size_bytes -= one.size_bytes
            self._entries.pop(key_of(one.metadata.segment_id), None)
