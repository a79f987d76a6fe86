"""Index cache: verified `.indexes` objects of remote segments on the local disk (Kafka's
``RemoteIndexCache``, KIP-405).

    with RemoteIndexCache(storage, "/var/lib/tierlog/remote-log-index-cache").start() as cache:
        entry = cache.get(metadata)                     one request the first time, then none
        offset, position = entry.lookup_offset(4711)

An entry is one segment's `.indexes` object. The cache fetches it in one request, compares every
checksum, writes it to a file (`directory` describes the names) and maps the file. An entry is
removed

* when all entries together exceed ``total_size_bytes``. The least recently used entry is
  removed at once;
* when it was not used for ``ttl_ms``. The thread of `start` calls `sweep` to find such entries, so
  the indexes of segments that another node deleted disappear although no reader requests them;
* when `remove` or `remove_partition` is called for its segment or partition.

The file of a removed entry is deleted when its last reader releases it, so readers never notice a
removal. When a process ends, its files are kept for the next process. The next process uses these
files as entries, and compares the checksums of a file on its first use. A damaged entry is fetched
again.

When the disk rejects a file (disk full, read-only or removed), the cache returns the indexes from
memory and does not keep them. The next use of the same segment makes a request again and tries the
disk again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from tierlog._core import crc32c
from tierlog._hot import IndexCache
from tierlog.clock import Clock, SystemClock
from tierlog.errors import ClosedError, ConfigError, CorruptDataError
from tierlog.metrics import RemoteIndexCacheStats
from tierlog.remote.index_cache.directory import IndexCacheDir, IndexFile, forks
from tierlog.remote.index_cache.entry import IndexKey, RemoteIndexEntry, key_of
from tierlog.remote.index_cache.evictions import Evictions
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.indexes import IndexesHeader
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

__all__ = ["RemoteIndexCache", "RemoteIndexCacheStats"]

_TOTAL_SIZE_BYTES = 1 << 30
_TTL_MS = 900_000
_SWEEP_INTERVAL_MS = 30_000
# Weight of an entry that is returned but not kept. This weight exceeds every size limit.
_MAX_TOTAL_SIZE_BYTES = 2**62
_NOT_KEPT = _MAX_TOTAL_SIZE_BYTES + 1


class _Listener:
    """Handles the removal of entries. The cache refers to the listener, so the listener does not
    refer to the cache."""

    def __init__(
        self,
        on_removal: Callable[[RemoteLogSegmentId, str], object] | None,
        on_disk_error: Callable[[Exception], object] | None,
    ) -> None:
        self._on_removal = on_removal
        self._on_disk_error = on_disk_error
        self._lock = threading.Lock()
        self.evictions = Evictions()
        self.adopted = self.damaged = self.disk_errors = 0

    def __call__(self, key: IndexKey, entry: RemoteIndexEntry, cause: str) -> None:
        self.evictions.record_eviction(key, cause)
        # An entry without a file was never kept, and a closed cache keeps its files.
        if entry.file is None or cause == "closed":
            return
        try:
            if self._on_removal is not None:
                self._on_removal(entry.metadata.segment_id, cause)
        finally:
            self.retire(entry.file)

    def retire(self, file: IndexFile) -> None:
        try:
            file.retire()
        except OSError as error:
            self.count_disk_error(error)

    def count_disk_error(self, error: Exception) -> None:
        with self._lock:
            self.disk_errors += 1
        self._report(error)

    def count_damage(self, error: Exception) -> None:
        with self._lock:
            self.damaged += 1
        self._report(error)

    def _report(self, error: Exception) -> None:
        if self._on_disk_error is not None:
            # A stored error must not keep the entry and its file alive through its frames.
            error.__context__ = None
            self._on_disk_error(error.with_traceback(None))


class RemoteIndexCache:
    """Indexes of remote segments of one store, bounded in bytes and in time. Thread-safe.

    Only this cache may use `directory`; a second cache in the same folder raises ConfigError.
    `total_size_bytes` and `ttl_ms` are the settings
    ``remote.log.index.file.cache.total.size.bytes`` and ``remote.log.index.file.cache.ttl.ms``; a
    TTL of -1 or 0 disables expiration. `clock` provides monotonic time.

    `on_removal` is called with the segment and the cause (``size``, ``expired``, ``explicit``,
    ``replaced``) before the entry's file is released. `on_disk_error` is called with every failure
    of a local file, even when readers still get an answer. `on_removal` and `on_disk_error` run on
    the thread that noticed the event, block no other segment, and should not raise.

    A forked child cannot use its parent's cache (ClosedError) and never changes its files.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        directory: str | os.PathLike[str],
        *,
        total_size_bytes: int = _TOTAL_SIZE_BYTES,
        ttl_ms: int = _TTL_MS,
        clock: Clock | None = None,
        on_removal: Callable[[RemoteLogSegmentId, str], object] | None = None,
        on_disk_error: Callable[[Exception], object] | None = None,
        record_stats: bool = False,
    ) -> None:
        _check_total_size(total_size_bytes)
        _check_ttl(ttl_ms)
        self._storage = storage
        self._total_size_bytes = min(total_size_bytes, _MAX_TOTAL_SIZE_BYTES)
        self._record_stats = record_stats
        self._forks = forks.count
        self._closing = threading.Event()
        self._sweeper: threading.Thread | None = None
        self._listener = _Listener(on_removal, on_disk_error)
        now_ms = (clock or SystemClock()).now_ms()
        self._directory = IndexCacheDir(directory, first_generation=now_ms)
        # The finalizer also runs when the cache is dropped without a close, and at interpreter
        # exit.
        self._release = weakref.finalize(self, _release, self._directory, self._closing)
        self._cache = IndexCache(
            self._total_size_bytes, ttl_ms, clock, self._listener, record_stats
        )
        # `find` returns the cached entry of a key, or None, without a request or disk I/O. The
        # entry may be unverified, and the caller must check that it describes the right segment. A
        # method in between would double the cost of a look-up.
        self.find: Callable[[IndexKey], RemoteIndexEntry | None] = self._cache.get
        self._adopt_files()

    def __repr__(self) -> str:
        return f"RemoteIndexCache({self._directory.path!r}, {self._storage!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # -- reading

    def get(
        self, metadata: RemoteLogSegmentMetadata, *, timeout_ms: int | None = None
    ) -> RemoteIndexEntry:
        """Return the verified indexes of the segment, from the cache or else from the store.

        When several callers need a segment that is not cached, one of them asks the store, and all
        get the same result or error. After a failure, the next caller asks the store again. After
        waiting `timeout_ms` for another caller's request, TimeoutError is raised. Raises
        CorruptDataError when the object in the store is damaged or describes another segment than
        `metadata`, RemoteStorageError when the store fails, and ClosedError after `close`.
        """
        self._check_usable()
        key = key_of(metadata.segment_id)
        while True:
            load = _Load(self._load, metadata)
            entry: RemoteIndexEntry = self._cache.get_or_load(key, load, timeout_ms)
            if load.entry is not None and load.entry.file is not None and key not in self._cache:
                # The entry was removed during the load: delete its file when its last reader
                # releases it.
                self._listener.retire(load.entry.file)
            if entry.verified or self._verify(key, entry):
                entry.check_segment(metadata)
                return entry

    def lookup_offset(self, metadata: RemoteLogSegmentMetadata, target_offset: int) -> int:
        """Return the position in the `.log` object from which to scan for `target_offset`."""
        return self.get(metadata).lookup_offset(target_offset)[1]

    def lookup_timestamp(
        self, metadata: RemoteLogSegmentMetadata, target_ms: int, start_offset: int
    ) -> int:
        """Return the position in the `.log` object from which to scan for the first record whose
        timestamp is at least `target_ms` and whose offset is at least `start_offset`."""
        entry = self.get(metadata)
        _timestamp_ms, offset = entry.lookup_timestamp(target_ms)
        return entry.lookup_offset(max(offset, start_offset))[1]

    def __len__(self) -> int:
        return len(self._cache)

    def __contains__(self, segment_id: RemoteLogSegmentId) -> bool:
        return key_of(segment_id) in self._cache

    @property
    def size_bytes(self) -> int:
        """Number of bytes of all entries. Removed files that readers still hold do not count."""
        return self._cache.weight_bytes

    # -- removing

    def remove(self, segment_id: RemoteLogSegmentId) -> bool:
        """Remove the segment's entry, even while it is being loaded; return whether there was an
        entry."""
        self._check_usable()
        return self._cache.remove(key_of(segment_id))

    def remove_partition(self, partition: TopicIdPartition) -> int:
        """Remove the entries of all segments of the partition; return their number."""
        self._check_usable()
        partition_key = (partition.topic_id, partition.partition)
        return self._cache.remove_if(lambda key: key[:2] == partition_key)

    def sweep(self) -> int:
        """Remove expired entries; return their number."""
        self._check_usable()
        return self._cache.sweep()

    def resize(self, total_size_bytes: int) -> None:
        """Change the size limit. If the entries exceed the new limit, entries are removed at
        once."""
        self._check_usable()
        _check_total_size(total_size_bytes)
        self._total_size_bytes = min(total_size_bytes, _MAX_TOTAL_SIZE_BYTES)
        self._cache.resize(self._total_size_bytes)

    def set_ttl(self, ttl_ms: int) -> None:
        """Change the time to live of all entries; -1 or 0 disables expiration."""
        self._check_usable()
        _check_ttl(ttl_ms)
        self._cache.set_ttl(ttl_ms)

    def start(self, interval_ms: int = _SWEEP_INTERVAL_MS) -> Self:
        """Sweep every `interval_ms` of real time, on a thread that ends with `close`."""
        self._check_usable()
        if interval_ms < 1:
            raise ValueError(f"interval_ms must be at least 1, not {interval_ms}")
        if self._sweeper is None:
            self._sweeper = threading.Thread(
                target=_run_sweeper,
                args=(weakref.ref(self), self._closing, interval_ms / 1000),
                name="remote-index-cache-sweeper",
                daemon=True,
            )
            self._sweeper.start()
        return self

    def close(self) -> None:
        """Release all entries, and keep their files for the next start. The call may be repeated.

        Entries that readers hold stay usable. Callers that wait for a load get ClosedError.
        """
        # Close the folder first, so that releasing the entries below does not delete their files.
        self._release()
        if self._forks != forks.count:
            return
        self._cache.close()
        sweeper = self._sweeper
        if sweeper is not None and sweeper is not threading.current_thread():
            sweeper.join()

    def stats(self) -> RemoteIndexCacheStats:
        """Return the counts for metrics."""
        found = self._cache.stats()
        fetched_bytes, refetched_bytes = self._listener.evictions.counts()
        return RemoteIndexCacheStats(
            recorded=self._record_stats,
            hits=found.hits,
            misses=found.misses,
            loads=found.loads,
            failed_loads=found.failed_loads,
            load_ms=found.load_ms,
            removals={
                "size": found.removed_size,
                "expired": found.removed_expired,
                "explicit": found.removed_explicit,
                "replaced": found.removed_replaced,
            },
            entries=found.entries,
            size_bytes=found.weight_bytes,
            fetched_bytes=fetched_bytes,
            refetched_bytes=refetched_bytes,
            adopted=self._listener.adopted,
            damaged=self._listener.damaged,
            disk_errors=self._listener.disk_errors,
        )

    # -- loading

    def _load(self, metadata: RemoteLogSegmentMetadata) -> tuple[RemoteIndexEntry, int]:
        header, described, data = self._storage.fetch_whole_indexes(metadata)
        size_bytes = header.object_size_bytes
        self._listener.evictions.record_fetch(key_of(metadata.segment_id), size_bytes)
        if size_bytes <= self._total_size_bytes:
            try:
                return self._store_entry(header, described, data), size_bytes
            except (OSError, CorruptDataError, ConfigError) as error:
                self._listener.count_disk_error(error)
        entry = RemoteIndexEntry(described, size_bytes, header=header, data=data)
        return entry, _NOT_KEPT

    def _store_entry(
        self, header: IndexesHeader, described: RemoteLogSegmentMetadata, data: Buffer
    ) -> RemoteIndexEntry:
        file = self._directory.write(described, data)
        stored = file.read()
        expected, found = crc32c(data), crc32c(stored)
        if found != expected:
            raise CorruptDataError(
                reason="bad_crc",
                path=file.path,
                position=0,
                expected=f"the written bytes with checksum {expected:#010x}",
                found=f"{found:#010x}",
            )
        return RemoteIndexEntry(
            described, header.object_size_bytes, file=file, header=header, data=stored
        )

    def _verify(self, key: IndexKey, entry: RemoteIndexEntry) -> bool:
        """Verify an entry of an earlier process. Remove a damaged entry and return False."""
        try:
            entry.verify()
        except (CorruptDataError, OSError) as error:
            if entry.remove_once(lambda: self._remove_entry(key, entry)):
                self._listener.count_damage(error)
            return False
        return True

    def _remove_entry(self, key: IndexKey, entry: RemoteIndexEntry) -> None:
        if self._cache.get(key) is entry:
            self._cache.remove(key)

    def _adopt_files(self) -> None:
        """Add the entries of an earlier process. If the disk cannot be used, start with an empty
        cache."""
        try:
            self._directory.open()
            found = self._directory.adopt(self._listener.count_damage)
        except (FileExistsError, NotADirectoryError):
            raise
        except OSError as error:
            self._listener.count_disk_error(error)
            return
        for one in found:
            entry = RemoteIndexEntry(one.metadata, one.file.size_bytes, file=one.file)
            self._cache.put(key_of(one.metadata.segment_id), entry, entry.size_bytes)
        self._listener.adopted = len(found)

    def _check_usable(self) -> None:
        if self._forks != forks.count:
            raise ClosedError(f"{self!r} belongs to the parent process; open one in the child")
        if self._closing.is_set():
            raise ClosedError(f"{self!r} was closed")


class _Load:
    """A loader that keeps its last result."""

    __slots__ = ("_load", "_metadata", "entry")

    def __init__(
        self,
        load: Callable[[RemoteLogSegmentMetadata], tuple[RemoteIndexEntry, int]],
        metadata: RemoteLogSegmentMetadata,
    ) -> None:
        self._load = load
        self._metadata = metadata
        self.entry: RemoteIndexEntry | None = None

    def __call__(self, _key: IndexKey) -> tuple[RemoteIndexEntry, int]:
        self.entry, size_bytes = self._load(self._metadata)
        return self.entry, size_bytes


def _release(directory: IndexCacheDir, closing: threading.Event) -> None:
    directory.close()
    closing.set()


def _run_sweeper(
    owner: weakref.ref[RemoteIndexCache], closing: threading.Event, interval_seconds: float
) -> None:
    """Sweep until the cache is closed, in the thread of `start`. The thread does not keep the cache
    alive."""
    while not closing.wait(interval_seconds):
        cache = owner()
        if cache is None:
            return
        try:
            cache.sweep()
        except ClosedError:
            return
        del cache


def _check_total_size(total_size_bytes: int) -> None:
    if total_size_bytes < 1:
        raise ValueError(f"total_size_bytes must be at least 1, not {total_size_bytes}")


def _check_ttl(ttl_ms: int) -> None:
    if ttl_ms < -1:
        raise ValueError(f"ttl_ms must be -1 (none) or more, not {ttl_ms}")
