# cython: language_level=3, freethreading_compatible=True, autotestdict=False, auto_pickle=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The per-request look-ups at the lowest call cost, and the same for Cython without the lock.

Every answer comes from the Rust core, through the C function table it exports; nothing is parsed
here. Cached data was verified once and is in memory that does not change.
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
    """The table, if it is the one this file was written for."""
    # GetPointer refuses a null pointer and a capsule of another name.
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
    """What to say of an argument that is no exact int, or one that has more than 64 bits."""
    if overflow > 0:
        raise OverflowError(f"expected {name} below 2**63, found {value}")
    if overflow < 0:
        raise ValueError(f"expected {name} of -2**63 or more, found {value}")
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"expected {name} as an int, found {value!r:.80}")
    return whole(INDEX(value), name)


cdef inline int64_t whole(object value, str name) except? -1:
    """A whole number: an int, or what says that it is one, but not a bool."""
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
    """A remoteLogIndex, verified once, for any number of look-ups.

    ``CachedIndex(data)`` takes the bytes of a remoteLogIndex with or without its trailer (a buffer
    that is not ``bytes`` is copied) and raises ``CorruptDataError`` unless every entry is good.
    Threads may share it. Offsets are Kafka offsets, positions byte positions.
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
        # A view that was never taken has no owner, and releasing it does nothing.
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
        """Byte position of the first entry whose last offset reaches an offset; -1 past the end."""
        return self.find_position(target_offset)

    def lookup(self, int64_t target_offset):
        """(position, first offset, last offset, data length) of that entry; None past the end."""
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
        """Where the data of the entry at a position lies: untrusted bytes."""
        return _core.read_remote_entry(self._data, position)[6]


@cython.final
cdef class CachedOffsetIndex:
    """A segment's offset index (``.index``), checked once, for any number of look-ups.

    ``CachedOffsetIndex(data, base_offset)`` takes the file's bytes, zero tail or not, and raises
    ``CorruptDataError`` unless its entries ascend. Threads may share it.
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
        """The segment's."""
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
        """(offset, position) of the largest entry at or below an offset; (base offset, 0) if none.

        The offset is the last one of the batch at that position, so scan forward from there
        (Kafka's ``OffsetIndex.lookup``).
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
    "What a cache has seen since it was made (zeros unless it records), and what it holds now."
)

# What a look-up gets that has to go on: a miss, or a load that was given up.
cdef object RETRY = object()
# How long a waiter sleeps before it looks for signals.
cdef int64_t WAIT_SLICE_MS = 100
# A timeout that is longer is none.
cdef int64_t LONGEST_WAIT_MS = 1 << 60


cdef const CoreIndex *index_of(object value) noexcept:
    """Where the entries of a value lie; null for a value of another type."""
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
    """A bounded cache that threads share: least recently used goes first, unused expires.

    ``IndexCache(max_bytes, ttl_ms=900_000, clock=None, on_removal=None, record_stats=False)``:
    weights never sum to more than `max_bytes`. An entry expires `ttl_ms` after its last use
    (0 or -1: never). `clock` has ``monotonic_ms()``; without one the machine's coarse monotonic
    clock is read. ``on_removal(key, value, cause)`` is called after an entry has left, outside
    every lock, by the thread whose call removed it; causes are ``size``, ``expired``,
    ``explicit``, ``replaced`` and ``closed``. What it raises goes to ``sys.unraisablehook``.

    Keys are ``str``, ``bytes``, ``int`` of up to 128 bits, or tuples of these, and nothing else
    (TypeError): ``1`` and ``True``, ``"a"`` and ``b"a"`` are never the same key. Values are any
    objects. Weights are whole bytes, 0 or more.

    A hit takes no lock and never waits. Between threads, order and age are exact to 64 ms or
    a thousandth of the time to live, whichever is less. Nothing expires by itself: call `sweep`
    now and then. A forked child starts with an empty cache. After `close`, ClosedError. A cache
    that is dropped without `close` releases its values without notice; values that refer to the
    cache keep it and themselves until it is closed.
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
        """Tells the listener what left, now that no lock is held."""
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
        """The value of a key, which counts as a use; `default` when it is not here."""
        return core.cache_get(self._cache, key, self._now(), default)

    def lookup_position(self, key, int64_t target_offset):
        """``get(key).lookup_position(target_offset)`` in one call; None when it is not here.

        The byte position of the first entry of a `CachedIndex` whose last offset reaches the
        offset, -1 past its end; of a `CachedOffsetIndex` the position of its ``lookup``.
        TypeError for a value of another type.
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
        """Keeps a value, in place of one of the same key. One above `max_bytes` is not kept."""
        cdef int64_t weight = whole_from(weight_bytes, "weight_bytes", 0)
        core.cache_put(self._cache, key, value, index_of(value), weight, self._now())
        self._tell()

    def get_or_load(self, key, loader, timeout_ms=None):
        """The value of a key, loaded by ``loader(key) -> (value, weight_bytes)`` if it is missing.

        Of all threads that ask for a key at once, one loads; the others wait, at most
        `timeout_ms` milliseconds (then TimeoutError, and the load goes on), and get the same
        value. An ``Exception`` of the loader reaches all of them and nothing is kept; any other
        ``BaseException`` only its own caller, and a waiter loads instead. A value whose key was
        removed or put meanwhile is returned but not kept. ClosedError when the cache is closed
        meanwhile, RuntimeError when a loader asks for the key it is loading.
        """
        # A hit is cheaper this way; but what is counted has to be one look-up.
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
        """Loads as the one whose turn it is, which is over when this returns or raises."""
        cdef int64_t weight
        cdef int64_t now_ms = begin.began_ms
        try:
            # What had expired has left by now.
            self._tell()
            value, weight_bytes = loader(key)
            weight = whole_from(weight_bytes, "weight_bytes", 0)
            now_ms = self._now()
        except Exception as error:
            core.load_fail(begin.turn, <PyObject *>error, now_ms)
            raise
        except BaseException:
            # Ctrl-C and the like are meant for this thread alone.
            core.load_fail(begin.turn, NULL, now_ms)
            raise
        try:
            core.load_finish(begin.turn, value, index_of(value), weight, now_ms)
        finally:
            self._tell()
        return value

    cdef object _wait(self, CoreTurn *turn, object key, int64_t deadline_ms):
        """Waits for another thread's load: its value, or RETRY when that was given up."""
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
                # The main thread looks after Ctrl-C.
                PyErr_CheckSignals()
            return core.load_outcome(turn, RETRY)
        finally:
            core.load_let_go(turn)

    def __contains__(self, key):
        """Whether a key is here; this is no use of it."""
        return core.cache_contains(self._cache, key, self._now()) == 1

    def remove(self, key):
        """Removes a key, also one that is being loaded; whether there was an entry."""
        cdef bint found = core.cache_remove(self._cache, key)
        self._tell()
        return found

    def remove_if(self, predicate):
        """Removes every entry whose key the predicate is true of; how many that were.

        The predicate is called outside every lock, also with keys that are being loaded. If it
        raises, that is raised here, and the keys it was true of until then are removed.
        """
        try:
            return core.cache_remove_if(self._cache, predicate)
        finally:
            self._tell()

    def sweep(self, now_ms=None):
        """Removes what has expired at `now_ms` of the cache's clock; how many entries that were."""
        cdef int64_t now = self._now() if now_ms is None else whole(now_ms, "now_ms")
        cdef int64_t count = core.cache_sweep(self._cache, now)
        self._tell()
        return count

    def resize(self, max_bytes):
        """Changes the bound and removes at once what is over it."""
        core.cache_resize(self._cache, whole_from(max_bytes, "max_bytes", 0))
        self._tell()

    def set_ttl(self, ttl_ms):
        """Changes for how long unused entries are kept, those that are here too."""
        core.cache_set_ttl(self._cache, whole_from(ttl_ms, "ttl_ms", -1))

    def close(self):
        """Removes everything. Loads under way and every later call raise ClosedError."""
        core.cache_close(self._cache)
        self._tell()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def stats(self):
        """`CacheStats`; all but what it holds are 0 without ``record_stats=True``."""
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
        """The bound."""
        return core.cache_max_bytes(self._cache)

    @property
    def ttl_ms(self):
        """Milliseconds that an unused entry stays; 0 or -1 for ever."""
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
