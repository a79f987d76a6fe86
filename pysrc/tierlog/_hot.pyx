# cython: language_level=3, freethreading_compatible=True, autotestdict=False, auto_pickle=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Look-ups that every request makes, at the lowest call cost. Cython code can call them without the
interpreter lock.

Every answer comes from the Rust core, which this module calls through the C function table that the
core exports. Cached data was verified once and is in memory that does not change.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetObject, PyErr_WriteUnraisable
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_DECREF
from libc.stdint cimport INT64_MAX, INT64_MIN

from collections import namedtuple
from operator import index

from tierlog import _core
from tierlog.errors import ClosedError

__all__ = [
    "ByteBudget",
    "CacheStats",
    "CachedIndex",
    "CachedOffsetIndex",
    "ChangeCount",
    "IndexCache",
    "KnownPlaces",
    "OpenFiles",
    "Permit",
    "Place",
    "PlaceTable",
    "QuotaSensor",
    "QuotaSnapshot",
    "Reservation",
    "native_key",
]

cdef uint32_t VERSION = 4

cdef const CoreApi *load(object capsule) except NULL:
    """Return the function table. Raise ImportError if this file was written for another version of
    it.
    """
    # PyCapsule_GetPointer refuses a null pointer and a capsule with another name.
    cdef const CoreApi *table = <const CoreApi *>PyCapsule_GetPointer(
        capsule, b"tierlog._core._C_API"
    )
    if table.version != VERSION or table.size_bytes < sizeof(CoreApi):
        raise ImportError(
            f"tierlog._hot needs version {VERSION} of the core's C API "
            f"({sizeof(CoreApi)} bytes), found version {table.version} "
            f"({table.size_bytes} bytes): install both from one wheel"
        )
    return table


# Keeps the table alive.
cdef object CAPSULE = _core._C_API
cdef const CoreApi *core = load(CAPSULE)

cdef object INDEX = index


cdef int64_t coarse_now_ms() noexcept nogil:
    return core.coarse_now_ms()


cdef int64_t outside(object value, str name, int64_t overflow) except? -1:
    """Convert an argument that is not an exact int. Raise if it is not an integer of 64 bits."""
    if overflow > 0:
        raise OverflowError(f"expected {name} below 2**63, found {value}")
    if overflow < 0:
        raise ValueError(f"expected {name} of -2**63 or more, found {value}")
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"expected {name} as an int, found {value!r:.80}")
    return whole(INDEX(value), name)


cdef inline int64_t whole(object value, str name) except? -1:
    """Return an int, or an object with ``__index__``, as a number. A bool is refused."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(value):
        return outside(value, name, 0)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return number if overflow == 0 else outside(value, name, overflow)


cdef inline int64_t whole_from(object value, str name, int64_t least) except? -1:
    cdef int64_t number = whole(value, name)
    if number < least:
        raise ValueError(f"expected {name} of {least} or more, found {value}")
    return number


@cython.final
cdef class CachedIndex:
    """A remoteLogIndex that is verified once and then serves any number of look-ups.

    ``CachedIndex(data)`` takes the bytes of a remoteLogIndex, with or without its trailer, and
    raises ``CorruptDataError`` unless every entry is good. A buffer that is not ``bytes`` is
    copied. Threads may share it. Offsets are Kafka offsets, and positions are byte positions.
    """

    def __cinit__(self, object data):
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        decoded = _core.decode_remote_log_index(data)
        columns = dict(decoded.columns())
        self._data = data
        self._rows = len(decoded)
        PyObject_GetBuffer(columns["position"], &self._position, PyBUF_SIMPLE)
        PyObject_GetBuffer(columns["first_offset"], &self._first_offset, PyBUF_SIMPLE)
        PyObject_GetBuffer(columns["last_offset"], &self._last_offset, PyBUF_SIMPLE)
        PyObject_GetBuffer(columns["data_length"], &self._data_length, PyBUF_SIMPLE)
        self._index.length = self._rows
        self._index.first = self._last_offset.buf
        self._index.position = <const int64_t *>self._position.buf
        core.survey_log_index(&self._index)

    def __dealloc__(self):
        # Releasing a buffer that was never filled in does nothing.
        PyBuffer_Release(&self._position)
        PyBuffer_Release(&self._first_offset)
        PyBuffer_Release(&self._last_offset)
        PyBuffer_Release(&self._data_length)

    def __len__(self):
        return self._rows

    cdef Py_ssize_t find_row(self, int64_t target_offset) noexcept nogil:
        return core.lookup_log_index(&self._index, target_offset)

    cdef int64_t find_position(self, int64_t target_offset) noexcept nogil:
        cdef Py_ssize_t row = self.find_row(target_offset)
        return -1 if row < 0 else (<const int64_t *>self._position.buf)[row]

    def lookup_position(self, int64_t target_offset):
        """Return the byte position of the first entry whose last offset is at least
        `target_offset`, or -1 past the end.
        """
        return self.find_position(target_offset)

    def lookup(self, int64_t target_offset):
        """Return (position, first offset, last offset, data length) of the first entry whose last
        offset is at least `target_offset`, or None past the end.
        """
        cdef Py_ssize_t row = self.find_row(target_offset)
        if row < 0:
            return None
        return (
            (<const int64_t *>self._position.buf)[row],
            (<const int64_t *>self._first_offset.buf)[row],
            (<const int64_t *>self._last_offset.buf)[row],
            (<const int32_t *>self._data_length.buf)[row],
        )

    def rdi(self, int64_t position):
        """Return the rdi of the entry at a position: untrusted bytes that say where its data is."""
        return _core.read_remote_entry(self._data, position)[6]


@cython.final
cdef class CachedOffsetIndex:
    """A segment's offset index (``.index``) that is checked once and then serves any number of
    look-ups.

    ``CachedOffsetIndex(data, base_offset)`` takes the bytes of the file, with or without a tail of
    zeros, and raises ``CorruptDataError`` unless the entries ascend. Threads may share it.
    """

    def __cinit__(self, object data, int64_t base_offset):
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        _offsets, _positions, valid_length = _core.parse_offset_index(data, base_offset)
        self._data = data
        self._index.first = PyBytes_AS_STRING(data)
        self._index.length = valid_length
        self._index.base_offset = base_offset

    @property
    def base_offset(self):
        """Base offset of the segment."""
        return self._index.base_offset

    cdef void find(
        self, int64_t target_offset, int64_t *offset, int32_t *position
    ) noexcept nogil:
        core.lookup_offset_index(
            <const uint8_t *>self._index.first,
            self._index.length,
            self._index.base_offset,
            target_offset,
            offset,
            position,
        )

    def lookup(self, int64_t target_offset):
        """Return (offset, position) of the last entry at or below an offset, or (base offset, 0).

        The returned offset is the last offset of the batch at the returned position. Scan forward
        from that position, as after Kafka's ``OffsetIndex.lookup``.
        """
        cdef int64_t offset = 0
        cdef int32_t position = 0
        self.find(target_offset, &offset, &position)
        return offset, position


include "_hot_quota.pxi"
include "_hot_budget.pxi"
include "_hot_places.pxi"
include "_hot_files.pxi"


# ---- The cache of indexes ---------------------------------------------------------------------

CacheStats = namedtuple(
    "CacheStats",
    (
        "hits",
        "misses",
        "loads",
        "failed_loads",
        "load_ms",
        "removed_size",
        "removed_expired",
        "removed_explicit",
        "removed_replaced",
        "removed_closed",
        "entries",
        "weight_bytes",
    ),
    module="tierlog._hot",
)
CacheStats.__doc__ = (
    "Counts since a cache was created (0 unless ``record_stats`` was set), and its current size."
)

# Result of a look-up that has to continue: the key is missing, or its load was cancelled.
cdef object RETRY = object()
# How long a waiter sleeps before it checks for signals.
cdef int64_t WAIT_SLICE_MS = 100
# A longer timeout is reduced to this one.
cdef int64_t LONGEST_WAIT_MS = 1 << 60


cdef const CoreIndex *index_of(object value) noexcept:
    """Return the location of the entries of an index, or null for a value of another type."""
    if type(value) is CachedIndex:
        return &(<CachedIndex>value)._index
    if type(value) is CachedOffsetIndex:
        return &(<CachedOffsetIndex>value)._index
    return NULL


def native_key(key):
    """Return the bytes of a key for `IndexCache.find_position`."""
    return core.cache_key(key)


@cython.final
cdef class IndexCache:
    """A cache with a byte limit that threads share. It evicts the least recently used entry first.

    ``IndexCache(max_bytes, ttl_ms=900_000, clock=None, on_removal=None, record_stats=False)``: The
    sum of the weights never exceeds `max_bytes`. An entry expires `ttl_ms` after its last use; 0
    and -1 mean never. `clock` has a method ``monotonic_ms()``; the default is the machine's coarse
    monotonic clock. ``on_removal(key, value, cause)`` is called after an entry was removed. The
    thread that removed the entry calls it and holds no lock. The causes are ``size``, ``expired``,
    ``explicit``, ``replaced`` and ``closed``. Exceptions of ``on_removal`` go to
    ``sys.unraisablehook``.

    A key is a ``str``, ``bytes``, an ``int`` of up to 128 bits, or a tuple of these; any other type
    raises TypeError. ``"a"`` and ``b"a"`` are different keys. Values are any objects. Weights are
    whole bytes, 0 or more.

    A hit takes no lock and never waits. If several threads use an entry, its age and its place in
    the eviction order are exact to 64 ms or a thousandth of the time to live, whichever is less. No
    background task removes expired entries, so call `sweep` from time to time. A forked child
    starts with an empty cache. After `close`, calls raise ClosedError. A cache that is dropped
    without `close` releases its values without calling ``on_removal``. If a value refers to the
    cache, neither of them is released until `close`.
    """

    def __cinit__(
        self, max_bytes, ttl_ms=900_000, clock=None, on_removal=None, record_stats=False
    ):
        cdef int64_t limit = whole_from(max_bytes, "max_bytes", 0)
        cdef int64_t ttl = whole_from(ttl_ms, "ttl_ms", -1)
        if clock is not None:
            clock = clock.monotonic_ms
        if on_removal is not None and not callable(on_removal):
            raise TypeError(f"expected on_removal(key, value, cause), found {on_removal!r:.80}")
        self._clock = clock
        self._on_removal = on_removal
        self._record_stats = record_stats
        self._cache = core.cache_new(limit, ttl, self._record_stats, on_removal is not None)

    def __dealloc__(self):
        core.cache_free(self._cache)

    def __reduce__(self):
        raise TypeError("an IndexCache holds this process's memory and cannot be pickled")

    cdef inline int64_t _now(self) except? -1:
        if self._clock is None:
            return core.coarse_now_ms()
        return whole(self._clock(), "the clock's monotonic_ms()")

    cdef int _tell(self) except -1:
        """Call ``on_removal`` for the removed entries, now that no lock is held."""
        if self._on_removal is None:
            return 0
        removed = core.cache_take_removed(self._cache)
        if removed is None:
            return 0
        for key, value, cause in <list>removed:
            try:
                self._on_removal(key, value, cause)
            except BaseException as error:
                PyErr_SetObject(type(error), error)
                PyErr_WriteUnraisable(self._on_removal)
        return 0

    cdef int64_t find_position(
        self, const uint8_t *key, size_t length, int64_t target_offset, int64_t now_ms
    ) noexcept nogil:
        return core.cache_find_position(self._cache, key, length, target_offset, now_ms)

    def get(self, key, default=None):
        """Return the value of a key, or `default` if it is not in the cache. Counts as a use."""
        return core.cache_get(self._cache, key, self._now(), default)

    def lookup_position(self, key, int64_t target_offset):
        """Look up an offset in the index that is the value of `key`; None if it is not in the
        cache.

        For a `CachedIndex`, returns the byte position of the first entry whose last offset is at
        least `target_offset`, or -1 past the end. For a `CachedOffsetIndex`, returns the position
        that its ``lookup`` returns. Raises TypeError for a value of another type.
        """
        cdef int64_t position = core.cache_lookup_position(
            self._cache, key, target_offset, self._now()
        )
        if position >= -1:
            return position
        if position == CACHE_MISS:
            return None
        raise TypeError("expected a CachedIndex or a CachedOffsetIndex as the value of this key")

    def put(self, key, value, weight_bytes):
        """Put a value and replace the previous value of the key. A weight above `max_bytes` is not
        kept.
        """
        cdef int64_t weight = whole_from(weight_bytes, "weight_bytes", 0)
        core.cache_put(self._cache, key, value, index_of(value), weight, self._now())
        self._tell()

    def get_or_load(self, key, loader, timeout_ms=None):
        """Return the value of a key. If it is missing, load it with ``loader(key) -> (value,
        weight_bytes)``.

        If several threads ask for the same missing key, one thread loads it, and the other threads
        wait and get the same value. A thread waits at most `timeout_ms`, then raises TimeoutError;
        the load continues. If the loader raises an ``Exception``, all these threads raise it and no
        value is kept. If it raises another ``BaseException``, only the loading thread raises it,
        and a waiting thread loads instead. A value whose key was removed or put during the load is
        returned, but not kept. Raises ClosedError if the cache is closed during the load, and
        RuntimeError if a loader asks for the key that it is loading.
        """
        # This path is faster for a hit. It is not used if look-ups are counted, because a miss
        # would count twice.
        if not self._record_stats:
            value = core.cache_get(self._cache, key, self._now(), RETRY)
            if value is not RETRY:
                return value
        return self._get_or_load(key, loader, timeout_ms)

    cdef object _get_or_load(self, object key, object loader, object timeout_ms):
        cdef CoreBegin begin
        cdef int64_t deadline_ms = INT64_MAX
        if timeout_ms is not None:
            deadline_ms = core.coarse_now_ms() + min(
                whole_from(timeout_ms, "timeout_ms", 0), LONGEST_WAIT_MS
            )
        while True:
            core.load_begin(self._cache, key, self._now(), &begin)
            if begin.kind == LOAD_HIT:
                value = <object>begin.value
                Py_DECREF(value)
                return value
            if begin.kind == LOAD_MINE:
                return self._load(key, loader, &begin)
            value = self._wait(begin.turn, key, deadline_ms)
            if value is not RETRY:
                return value

    cdef object _load(self, object key, object loader, CoreBegin *begin):
        """Load the value in this thread. The load has ended when this returns or raises."""
        cdef int64_t weight
        cdef int64_t now_ms = begin.began_ms
        try:
            # The look-up may have removed expired entries.
            self._tell()
            value, weight_bytes = loader(key)
            weight = whole_from(weight_bytes, "weight_bytes", 0)
            now_ms = self._now()
        except Exception as error:
            core.load_fail(begin.turn, <PyObject *>error, now_ms)
            raise
        except BaseException:
            # Ctrl-C and similar exceptions are meant only for this thread.
            core.load_fail(begin.turn, NULL, now_ms)
            raise
        try:
            core.load_finish(begin.turn, value, index_of(value), weight, now_ms)
        finally:
            self._tell()
        return value

    cdef object _wait(self, CoreTurn *turn, object key, int64_t deadline_ms):
        """Wait for another thread's load. Return its value, or RETRY if the load was cancelled."""
        cdef int64_t left_ms
        cdef bint landed
        try:
            self._tell()
            while True:
                left_ms = deadline_ms - core.coarse_now_ms()
                if left_ms < 0:
                    raise TimeoutError(f"the load of {key!r:.80} takes longer than the timeout")
                left_ms = min(left_ms + 1, WAIT_SLICE_MS)
                with nogil:
                    landed = core.load_wait(turn, left_ms)
                if landed:
                    break
                # The main thread handles Ctrl-C here.
                PyErr_CheckSignals()
            return core.load_outcome(turn, RETRY)
        finally:
            core.load_let_go(turn)

    def __contains__(self, key):
        """Return whether a key is in the cache. Does not count as a use."""
        return core.cache_contains(self._cache, key, self._now()) == 1

    def remove(self, key):
        """Remove a key and return whether it was in the cache. The value of an active load is not
        kept.
        """
        cdef bint found = core.cache_remove(self._cache, key)
        self._tell()
        return found

    def remove_if(self, predicate):
        """Remove every entry for whose key the predicate is true. Return the number of entries.

        The predicate is called without any lock, also with keys that are being loaded. If it
        raises, this call raises the same exception, and the keys for which it was true before are
        removed.
        """
        try:
            return core.cache_remove_if(self._cache, predicate)
        finally:
            self._tell()

    def sweep(self, now_ms=None):
        """Remove the entries that have expired at `now_ms` of the cache's clock. Return their
        number.
        """
        cdef int64_t now = self._now() if now_ms is None else whole(now_ms, "now_ms")
        cdef int64_t count = core.cache_sweep(self._cache, now)
        self._tell()
        return count

    def resize(self, max_bytes):
        """Change the byte limit, and evict entries at once until the weights are within it."""
        core.cache_resize(self._cache, whole_from(max_bytes, "max_bytes", 0))
        self._tell()

    def set_ttl(self, ttl_ms):
        """Change the time to live of new and existing entries."""
        core.cache_set_ttl(self._cache, whole_from(ttl_ms, "ttl_ms", -1))

    def close(self):
        """Remove all entries. Active loads and all later calls raise ClosedError."""
        core.cache_close(self._cache)
        self._tell()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def stats(self):
        """Return `CacheStats`. Without ``record_stats=True`` only the current size is not 0."""
        cdef CoreCacheStats seen
        core.cache_stats(self._cache, &seen)
        return CacheStats(
            seen.hits,
            seen.misses,
            seen.loads,
            seen.failed_loads,
            seen.load_ms,
            seen.removed_size,
            seen.removed_expired,
            seen.removed_explicit,
            seen.removed_replaced,
            seen.removed_closed,
            seen.entries,
            seen.weight_bytes,
        )

    def __len__(self):
        return core.cache_len(self._cache)

    @property
    def weight_bytes(self):
        """The sum of the weights."""
        return core.cache_weight(self._cache)

    @property
    def max_bytes(self):
        """The limit on the sum of the weights."""
        return core.cache_max_bytes(self._cache)

    @property
    def ttl_ms(self):
        """Milliseconds after which an unused entry expires; 0 and -1 mean never."""
        return core.cache_ttl_ms(self._cache)

    @property
    def closed(self):
        """Whether `close` was called."""
        return core.cache_is_closed(self._cache)

    def __repr__(self):
        return (
            f"<IndexCache: {len(self)} entries, {self.weight_bytes} of {self.max_bytes} bytes"
            f"{', closed' if self.closed else ''}>"
        )
