# cython: language_level=3, freethreading_compatible=True, autotestdict=False, auto_pickle=False
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The per-request look-ups at the lowest call cost, and the same for Cython without the lock.

Every answer comes from the Rust core, through the C function table it exports; nothing is parsed
here. What is cached was verified once and lies in memory that nobody changes.
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
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
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
    "FileReads",
    "IndexCache",
    "KnownPlaces",
    "OpenFiles",
    "Permit",
    "Place",
    "PlaceTable",
    "QuotaSensor",
    "QuotaSnapshot",
    "ReadMarks",
    "Reservation",
    "native_key",
]

cdef uint32_t VERSION = 3

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


# ---- Quota sensors ----------------------------------------------------------------------------

QuotaSnapshot = namedtuple(
    "QuotaSnapshot",
    (
        "rate_bytes_per_second",
        "limit_bytes_per_second",
        "total_bytes",
        "window_bytes",
        "reserved_bytes",
        "throttled_ms",
        "overshoot_bytes",
    ),
    module="tierlog._hot",
)
QuotaSnapshot.__doc__ = "What a sensor has seen, at one moment; the limit is None when there is none."


# Stands for the latest moment a sensor knows.
cdef int64_t LATEST_MS = INT64_MIN

# The formats of int64 in native byte order.
cdef tuple INT64_FORMATS = (b"l", b"q", b"@l", b"@q", b"=q")


cdef int64_t limit_of(object limit) except? -1:
    """A limit for the core, which takes -1 for none."""
    return -1 if limit is None else whole_from(limit, "a limit", 0)


cdef object refused(int64_t code, object amount):
    """The exception of a code of the core's quota functions."""
    if code == QUOTA_AMOUNT_TOO_LARGE:
        return OverflowError(f"expected at most 2**48 bytes in one call, found {amount}")
    if code == QUOTA_WINDOW_FULL:
        return OverflowError(f"the window's sum would pass 2**62 bytes with {amount} more")
    if code == QUOTA_NOT_RESERVED:
        return ClosedError("this reservation was settled or cancelled before")
    if code == QUOTA_NEEDS_WINDOW:
        return ValueError("reservations need rate='window': the elapsed mode has no bound to keep")
    return ValueError("expected num_samples from 1 to 3,600 and window_ms from 1 to 86,400,000")


@cython.final
cdef class QuotaSensor:
    """Bytes per second over a rolling window, and how long to wait to keep within a limit.

    ``QuotaSensor(num_samples=61, window_ms=1000, limit_bytes_per_second=None, rate="window")``:
    `num_samples` (1 to 3,600) buckets of `window_ms` (1 to 86,400,000) each. ``rate="window"``
    divides the bytes of all live buckets by the whole window (KIP-956), ``rate="elapsed"`` by the
    time since the oldest live sample, at least one window (Kafka's ``SimpleRate`` as shipped).
    No limit is unlimited; a limit of 0 blocks.

    Amounts are whole bytes from 0 to 2**48: TypeError for anything that is no integer (also bool
    and NaN), ValueError below 0, OverflowError above. `now_ms` is any clock that counts
    milliseconds; left out, the machine's monotonic clock is read, to 4 ms. Inside, time never goes
    back, whatever the caller's clock does. Threads may share a sensor, and none ever waits. A
    forked child goes on with a copy that counts for itself.
    """

    def __cinit__(
        self, num_samples=61, window_ms=1000, limit_bytes_per_second=None, rate="window"
    ):
        cdef int64_t samples = whole_from(num_samples, "num_samples", 1)
        cdef int64_t width_ms = whole_from(window_ms, "window_ms", 1)
        if rate not in ("window", "elapsed"):
            raise ValueError(f"expected rate='window' or 'elapsed', found {rate!r}")
        self._sensor = core.quota_new(
            samples, width_ms, limit_of(limit_bytes_per_second), rate == "elapsed"
        )
        if self._sensor == NULL:
            raise ValueError(
                "expected num_samples from 1 to 3,600 and window_ms from 1 to 86,400,000, "
                f"found {num_samples} and {window_ms}"
            )
        self.num_samples = samples
        self.window_ms = width_ms
        self.rate_mode = rate

    def __dealloc__(self):
        # Null when the arguments were refused; then there is nothing to free.
        core.quota_free(self._sensor)

    def __reduce__(self):
        raise TypeError("a QuotaSensor counts in this process and cannot be pickled")

    def __repr__(self):
        return (
            f"QuotaSensor(num_samples={self.num_samples}, window_ms={self.window_ms}, "
            f"limit_bytes_per_second={self.limit}, rate={self.rate_mode!r})"
        )

    cdef inline int64_t _now(self, object now_ms) except? -1:
        if now_ms is None:
            return core.coarse_now_ms()
        # Written once: threads share the line it lies in.
        if not self._given_time:
            self._given_time = True
        return whole(now_ms, "now_ms")

    cdef int64_t _now_or_latest(self, object now_ms) except? -1:
        return LATEST_MS if now_ms is None and self._given_time else self._now(now_ms)

    cdef int64_t record_nogil(self, uint64_t amount, int64_t now_ms) noexcept nogil:
        return core.quota_record(self._sensor, amount, now_ms)

    cdef int64_t record_and_throttle_nogil(
        self, uint64_t amount, int64_t now_ms
    ) noexcept nogil:
        return core.quota_record_and_throttle_ms(self._sensor, amount, now_ms)

    cdef int64_t throttle_nogil(self, int64_t now_ms) noexcept nogil:
        return core.quota_throttle_ms(self._sensor, now_ms)

    def record(self, amount, now_ms=None):
        """Counts `amount` bytes."""
        cdef int64_t code = core.quota_record(self._sensor, whole_from(amount, "an amount", 0), self._now(now_ms))
        if code < 0:
            raise refused(code, amount)

    def record_and_throttle_ms(self, amount, now_ms=None):
        """Counts `amount` bytes; milliseconds to wait until the rate is within the limit."""
        cdef int64_t throttle_ms = core.quota_record_and_throttle_ms(
            self._sensor, whole_from(amount, "an amount", 0), self._now(now_ms)
        )
        if throttle_ms < 0:
            raise refused(throttle_ms, amount)
        return throttle_ms

    def record_many(self, amounts, now_ms=None):
        """Counts every amount of a buffer of int64 at one moment, all of them or none.

        Returns the milliseconds to wait after the last. Together they are at most 2**48 bytes.
        """
        cdef Py_buffer view
        cdef int64_t now = self._now(now_ms)
        cdef int64_t throttle_ms
        PyObject_GetBuffer(amounts, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
        try:
            if view.itemsize != 8 or view.format == NULL or view.format not in INT64_FORMATS:
                raise TypeError(f"expected a buffer of int64, found {amounts!r:.80}")
            throttle_ms = core.quota_record_many(
                self._sensor, <const int64_t *>view.buf, view.len // 8, now
            )
        finally:
            PyBuffer_Release(&view)
        if throttle_ms == QUOTA_NEGATIVE:
            raise ValueError("expected amounts of 0 or more, found a negative one")
        if throttle_ms < 0:
            raise refused(throttle_ms, "these amounts")
        return throttle_ms

    def rate(self, now_ms=None):
        """Bytes per second."""
        return core.quota_rate(self._sensor, self._now(now_ms))

    def throttle_ms(self, now_ms=None):
        """Milliseconds to wait until the rate is within the limit, if nothing more comes."""
        return core.quota_throttle_ms(self._sensor, self._now(now_ms))

    @property
    def limit(self):
        """Bytes per second, None for unlimited."""
        cdef int64_t limit = core.quota_limit(self._sensor)
        return None if limit < 0 else limit

    def set_limit(self, limit_bytes_per_second, now_ms=None):
        """Changes the limit at once; what was counted stays. None is unlimited, 0 blocks.

        `now_ms` as for `Reservation.settle`.
        """
        core.quota_set_limit(self._sensor, limit_of(limit_bytes_per_second), self._now_or_latest(now_ms))

    def total(self):
        """All bytes ever counted or reserved and not given back, modulo 2**64."""
        return core.quota_total(self._sensor)

    def snapshot(self, now_ms=None):
        """Rate, limit, totals and overshoot at one moment, without holding anybody up."""
        cdef CoreQuotaSnapshot seen
        core.quota_snapshot(self._sensor, self._now(now_ms), &seen)
        return QuotaSnapshot(
            seen.rate,
            None if seen.limit < 0 else seen.limit,
            seen.total,
            seen.window_bytes,
            seen.reserved_bytes,
            seen.throttled_ms,
            seen.overshoot_bytes,
        )

    def try_reserve(self, amount, now_ms=None):
        """A `Reservation` of `amount` bytes, or the milliseconds after which to ask again.

        With every byte reserved before it is sent, no window of any position holds more than
        the limit allows and one reservation more. ``rate="window"`` only, else ValueError.
        """
        cdef uint64_t wanted = whole_from(amount, "an amount", 0)
        cdef Reservation granted = Reservation.__new__(Reservation)
        cdef int64_t wait_ms = core.quota_try_reserve(
            self._sensor, wanted, self._now(now_ms), &granted._token
        )
        if wait_ms < 0:
            raise refused(wait_ms, amount)
        if wait_ms > 0:
            return wait_ms
        granted._sensor = self
        granted.amount = wanted
        return granted


@cython.final
cdef class Reservation:
    """Bytes that a `QuotaSensor` granted and that wait to be used.

    ``settle(actual)`` says how many it became: fewer are given back, more are counted now.
    ``cancel()`` gives all of them back, and so do the end of a ``with`` block and the last
    reference when neither was called.
    """

    def __dealloc__(self):
        self.give_back(LATEST_MS)

    def __reduce__(self):
        raise TypeError("a Reservation belongs to its sensor and cannot be pickled")

    cdef void give_back(self, int64_t now_ms) noexcept:
        cdef QuotaSensor sensor = self._sensor
        if sensor is not None:
            self._sensor = None
            core.quota_settle(sensor._sensor, &self._token, 0, now_ms)

    def settle(self, actual, now_ms=None):
        """`actual` bytes were used. ClosedError when it was settled or cancelled before.

        Without `now_ms` the machine's clock is read, or, if the sensor's times have been given
        until now, it happens at the latest of them.
        """
        cdef uint64_t used = whole_from(actual, "an amount", 0)
        cdef int64_t code
        with cython.critical_section(self):
            if self._sensor is None:
                raise ClosedError("this reservation was settled or cancelled before")
            code = core.quota_settle(
                self._sensor._sensor, &self._token, used, self._sensor._now_or_latest(now_ms)
            )
            if code < 0:
                raise refused(code, actual)
            self._sensor = None

    def cancel(self, now_ms=None):
        """Gives all bytes back; nothing when it was settled or cancelled before."""
        with cython.critical_section(self):
            if self._sensor is not None:
                self.give_back(self._sensor._now_or_latest(now_ms))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with cython.critical_section(self):
            self.give_back(LATEST_MS)


include "_hot_budget.pxi"
include "_hot_places.pxi"
include "_hot_marks.pxi"
include "_hot_files.pxi"
include "_hot_reads.pxi"


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
    """The bytes by which the core knows a key: what `IndexCache.find_position` is called with."""
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

    A hit takes no lock and waits for nobody. Between threads, order and age are exact to 64 ms or
    a thousandth of the time to live, whichever is less. Nothing expires by itself: call `sweep`
    now and then. A forked child starts with an empty cache. After `close`, ClosedError. A cache
    that is dropped without it lets go of its values and tells nobody; but values that refer to it
    keep it, and themselves, until it is closed.
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
