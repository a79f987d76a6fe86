"""The index files of remote segments, kept on the local disk and verified (Kafka's
``RemoteIndexCache``, KIP-405).

    with RemoteIndexCache(storage, "/var/lib/tierlog/remote-log-index-cache").start() as cache:
        entry = cache.get(metadata)                     one request the first time, then none
        offset, position = entry.lookup_offset(4711)

An entry is one segment's `.indexes` object: fetched in one request, every checksum compared,
written beside the others (`index_cache_dir` has the names) and mapped. It goes

* when entries together exceed ``total_size_bytes``: the least recently used first, at once;
* when nobody used it for ``ttl_ms``: by `sweep`, which the thread of `start` calls, so that the
  indexes of segments which another node deleted disappear without anybody asking for them;
* when its segment or its partition is removed here.

Its file goes when the last reader lets go of it; a reader never notices. What a process leaves
behind, the next one takes over: complete files count from its start on, and their checksums are
compared when they are first used. A damaged file is fetched again.

When the disk does not take a file (full, read-only, gone) the indexes are handed out from memory
and not kept, so each use is a request to the store; the next one tries the disk again.

Not here: deciding which segment to read, and the records themselves.
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
from tierlog.remote.index_cache.entry import RemoteIndexEntry
from tierlog.remote.index_cache.evictions import Evictions
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.indexes import IndexesHeader
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

if TYPE_CHECKING:
    from typing import Self, TypeAlias

    from typing_extensions import Buffer

    Key: TypeAlias = tuple[str, int, str]

__all__ = ["RemoteIndexCache", "RemoteIndexCacheStats"]

_TOTAL_SIZE_BYTES = 1 << 30
_TTL_MS = 900_000
_SWEEP_INTERVAL_MS = 30_000
# No bound is larger, and an entry of more bytes than the bound is handed out but not kept.
_MAX_TOTAL_SIZE_BYTES = 2**62
_NOT_KEPT = _MAX_TOTAL_SIZE_BYTES + 1


class _Listener:
    """What is done when an entry leaves; it does not hold the cache, which holds it."""

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

    def __call__(self, key: Key, entry: RemoteIndexEntry, cause: str) -> None:
        self.evictions.left(key, cause)
        # An entry without a file was never in the cache; a closed cache keeps its files.
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
            self.disk_error(error)

    def disk_error(self, error: Exception) -> None:
        with self._lock:
            self.disk_errors += 1
        self._report(error)

    def damage(self, error: Exception) -> None:
        with self._lock:
            self.damaged += 1
        self._report(error)

    def _report(self, error: Exception) -> None:
        if self._on_disk_error is not None:
            # Whoever keeps the error must not keep, by its frames, the entry and its file.
            error.__context__ = None
            self._on_disk_error(error.with_traceback(None))


class RemoteIndexCache:
    """Indexes of remote segments of one store, bounded in bytes and in time. Any thread.

    `directory` belongs to this cache alone: another cache that wants it gets a ConfigError.
    `total_size_bytes` and `ttl_ms` are ``remote.log.index.file.cache.total.size.bytes`` and
    ``remote.log.index.file.cache.ttl.ms``; a TTL of -1 or 0 is none. Time is `clock`'s
    monotonic one. `on_removal` is told segment and cause (``size``, ``expired``, ``explicit``,
    ``replaced``) before the entry's file is given up, `on_disk_error` what went wrong with a local
    file although readers get their answers; both run on the thread that found out, hold up no other
    segment and should not raise.

    A forked child cannot use its parent's cache (ClosedError) and never touches its files.
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
        # Also when the cache is dropped without a close, and at interpreter exit.
        self._shut = weakref.finalize(self, _shut, self._directory, self._closing)
        # For look-ups without detour; the keys are those of `Place`.
        self.table = self._cache = IndexCache(
            self._total_size_bytes, ttl_ms, clock, self._listener, record_stats
        )
        self._adopt()

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
        """The verified indexes of that segment, from here or else from the store.

        Of several callers that miss one segment one asks the store, once, and all get its answer
        or its error; the next caller after a failure tries again. `timeout_ms` bounds waiting for
        another caller's request: TimeoutError. CorruptDataError when the object in the store is
        damaged or describes another segment than `metadata`, RemoteStorageError when it cannot be
        had, ClosedError after `close`.
        """
        self._check_usable()
        key = _key(metadata.segment_id)
        while True:
            load = _Load(self._load, metadata)
            entry: RemoteIndexEntry = self._cache.get_or_load(key, load, timeout_ms)
            if load.entry is not None and load.entry.file is not None and key not in self._cache:
                # Removed while it was loaded: its file must not outlive its readers.
                self._listener.retire(load.entry.file)
            if entry.verified or self._verify(key, entry):
                entry.check_segment(metadata)
                return entry

    def find(self, metadata: RemoteLogSegmentMetadata) -> RemoteIndexEntry | None:
        """The same, if it is here and was verified before: no request, no look at the disk."""
        entry: RemoteIndexEntry | None = self._cache.get(_key(metadata.segment_id))
        if entry is None or not entry.verified:
            return None
        entry.check_segment(metadata)
        return entry

    def lookup_offset(self, metadata: RemoteLogSegmentMetadata, target_offset: int) -> int:
        """Position in the `.log` object from which to scan for an offset (0 to its size)."""
        return self.get(metadata).lookup_offset(target_offset)[1]

    def lookup_timestamp(
        self, metadata: RemoteLogSegmentMetadata, target_ms: int, start_offset: int
    ) -> int:
        """Position in the `.log` object from which to scan for the first record of a time or
        later, at or past `start_offset`."""
        entry = self.get(metadata)
        _timestamp_ms, offset = entry.lookup_timestamp(target_ms)
        return entry.lookup_offset(max(offset, start_offset))[1]

    def __len__(self) -> int:
        return len(self._cache)

    def __contains__(self, segment_id: RemoteLogSegmentId) -> bool:
        return _key(segment_id) in self._cache

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries; files that only readers still hold are not among them."""
        return self._cache.weight_bytes

    # -- removing

    def remove(self, segment_id: RemoteLogSegmentId) -> bool:
        """Forget that segment, also one being loaded right now. Whether there was an entry."""
        self._check_usable()
        return self._cache.remove(_key(segment_id))

    def remove_partition(self, partition: TopicIdPartition) -> int:
        """Forget every segment of that partition; how many entries there were."""
        self._check_usable()
        wanted = (partition.topic_id, partition.partition)
        return self._cache.remove_if(lambda key: key[:2] == wanted)

    def sweep(self) -> int:
        """Remove what has expired, without waiting for anybody to ask; how many that were."""
        self._check_usable()
        return self._cache.sweep()

    def resize(self, total_size_bytes: int) -> None:
        """Another bound, from now on: what no longer fits goes at once."""
        self._check_usable()
        _check_total_size(total_size_bytes)
        self._total_size_bytes = min(total_size_bytes, _MAX_TOTAL_SIZE_BYTES)
        self._cache.resize(self._total_size_bytes)

    def set_ttl(self, ttl_ms: int) -> None:
        """Another time to live, from now on and for all entries; -1 or 0 for none."""
        self._check_usable()
        _check_ttl(ttl_ms)
        self._cache.set_ttl(ttl_ms)

    def start(self, interval_ms: int = _SWEEP_INTERVAL_MS) -> Self:
        """Sweep every so many milliseconds of real time, on a thread that ends with `close`."""
        self._check_usable()
        if interval_ms < 1:
            raise ValueError(f"interval_ms must be at least 1, not {interval_ms}")
        if self._sweeper is None:
            self._sweeper = threading.Thread(
                target=_sweep,
                args=(weakref.ref(self), self._closing, interval_ms / 1000),
                name="remote-index-cache-sweeper",
                daemon=True,
            )
            self._sweeper.start()
        return self

    def close(self) -> None:
        """Let go of all entries. Their files stay for the next start. May be repeated.

        Entries that readers hold stay good. Who waits for a load gets ClosedError.
        """
        # First, so that the files of the entries that now go stay.
        self._shut()
        if self._forks != forks.count:
            return
        self._cache.close()
        sweeper = self._sweeper
        if sweeper is not None and sweeper is not threading.current_thread():
            sweeper.join()

    def stats(self) -> RemoteIndexCacheStats:
        """Counts for metrics."""
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
        self._listener.evictions.fetched(_key(metadata.segment_id), size_bytes)
        if size_bytes <= self._total_size_bytes:
            try:
                return self._stored(header, described, data), size_bytes
            except (OSError, CorruptDataError, ConfigError) as error:
                self._listener.disk_error(error)
        entry = RemoteIndexEntry(described, size_bytes, header=header, data=data)
        return entry, _NOT_KEPT

    def _stored(
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
                expected=f"what was written, with checksum {expected:#010x}",
                found=f"{found:#010x}",
            )
        return RemoteIndexEntry(
            described, header.object_size_bytes, file=file, header=header, data=stored
        )

    def _verify(self, key: Key, entry: RemoteIndexEntry) -> bool:
        """Whether an entry of an earlier run is good; if not, it is out of the way."""
        try:
            entry.verify()
        except (CorruptDataError, OSError) as error:
            if entry.give_up(lambda: self._remove_entry(key, entry)):
                self._listener.damage(error)
            return False
        return True

    def _remove_entry(self, key: Key, entry: RemoteIndexEntry) -> None:
        if self._cache.get(key) is entry:
            self._cache.remove(key)

    def _adopt(self) -> None:
        """Take over what an earlier run left; without a disk, start without."""
        try:
            self._directory.open()
            found = self._directory.adopt(self._listener.damage)
        except (FileExistsError, NotADirectoryError):
            raise
        except OSError as error:
            self._listener.disk_error(error)
            return
        for one in found:
            entry = RemoteIndexEntry(one.metadata, one.file.size_bytes, file=one.file)
            self._cache.put(_key(one.metadata.segment_id), entry, entry.size_bytes)
        self._listener.adopted = len(found)

    def _check_usable(self) -> None:
        if self._forks != forks.count:
            raise ClosedError(f"{self!r} belongs to the parent process; open one in the child")
        if self._closing.is_set():
            raise ClosedError(f"{self!r} was closed")


class _Load:
    """A loader that remembers what it has loaded."""

    __slots__ = ("_load", "_metadata", "entry")

    def __init__(
        self,
        load: Callable[[RemoteLogSegmentMetadata], tuple[RemoteIndexEntry, int]],
        metadata: RemoteLogSegmentMetadata,
    ) -> None:
        self._load = load
        self._metadata = metadata
        self.entry: RemoteIndexEntry | None = None

    def __call__(self, _key: Key) -> tuple[RemoteIndexEntry, int]:
        self.entry, size_bytes = self._load(self._metadata)
        return self.entry, size_bytes


def _key(segment_id: RemoteLogSegmentId) -> Key:
    partition = segment_id.topic_id_partition
    return partition.topic_id, partition.partition, segment_id.id


def _shut(directory: IndexCacheDir, closing: threading.Event) -> None:
    directory.close()
    closing.set()


def _sweep(
    owner: weakref.ref[RemoteIndexCache], closing: threading.Event, interval_seconds: float
) -> None:
    """The thread of `start`; it does not keep the cache alive."""
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
