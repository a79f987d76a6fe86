# cython: language_level=3
"""Declarations that Cython code of other packages cimports. rust/py/src/capsule.rs has the same
function table.
"""

cimport cython
from cpython.buffer cimport Py_buffer
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


# Codes that a quota function returns instead of its result.
cdef enum:
    QUOTA_AMOUNT_TOO_LARGE = -1
    QUOTA_WINDOW_FULL = -2
    QUOTA_NEEDS_WINDOW = -3
    QUOTA_NEGATIVE = -4
    QUOTA_NOT_RESERVED = -5


# A sensor of the core.
ctypedef void CoreQuota


# A reservation. Only the core reads its words.
ctypedef struct CoreQuotaToken:
    uint64_t words[2]


ctypedef struct CoreQuotaSnapshot:
    double rate
    int64_t limit
    uint64_t total
    uint64_t window_bytes
    uint64_t reserved_bytes
    uint64_t throttled_ms
    uint64_t overshoot_bytes


# Codes that a look-up in a cache returns instead of a position. -1 means that the offset is past
# the end of the index.
cdef enum:
    CACHE_MISS = -2
    CACHE_NO_INDEX = -3
    CACHE_CLOSED = -4


# A cache of the core.
ctypedef void CoreCache


# The location of the entries of a cached index.
ctypedef struct CoreIndex:
    size_t length
    const void *first
    const int64_t *position
    int64_t base_offset
    int64_t least
    int64_t most
    double rows_per_offset


ctypedef struct CoreCacheStats:
    uint64_t hits
    uint64_t misses
    uint64_t loads
    uint64_t failed_loads
    uint64_t load_ms
    uint64_t removed_size
    uint64_t removed_expired
    uint64_t removed_explicit
    uint64_t removed_replaced
    uint64_t removed_closed
    uint64_t entries
    uint64_t weight_bytes


# An active load. The thread that has it loads the value or waits for another thread.
ctypedef void CoreTurn


cdef enum:
    LOAD_HIT = 1
    LOAD_MINE = 2
    LOAD_THEIRS = 3


ctypedef struct CoreBegin:
    int kind
    PyObject *value
    CoreTurn *turn
    int64_t began_ms


# The caller of a function that is not `nogil` holds the interpreter lock. Such a function raises
# exceptions like Python's own C functions.
ctypedef struct CoreApi:
    uint32_t version
    uint32_t size_bytes
    void (*lookup_offset_index)(
        const uint8_t *data,
        size_t length,
        int64_t base_offset,
        int64_t target_offset,
        int64_t *offset,
        int32_t *position,
    ) noexcept nogil
    void (*survey_log_index)(CoreIndex *index) noexcept nogil
    Py_ssize_t (*lookup_log_index)(
        const CoreIndex *index, int64_t target_offset
    ) noexcept nogil
    int64_t (*coarse_now_ms)() noexcept nogil
    CoreQuota *(*quota_new)(
        uint64_t num_samples, uint64_t window_ms, int64_t limit, bint elapsed
    ) noexcept nogil
    void (*quota_free)(CoreQuota *sensor) noexcept nogil
    int64_t (*quota_record)(CoreQuota *sensor, uint64_t amount, int64_t now_ms) noexcept nogil
    int64_t (*quota_record_and_throttle_ms)(
        CoreQuota *sensor, uint64_t amount, int64_t now_ms
    ) noexcept nogil
    int64_t (*quota_record_many)(
        CoreQuota *sensor, const int64_t *amounts, size_t count, int64_t now_ms
    ) noexcept nogil
    double (*quota_rate)(CoreQuota *sensor, int64_t now_ms) noexcept nogil
    int64_t (*quota_throttle_ms)(CoreQuota *sensor, int64_t now_ms) noexcept nogil
    int64_t (*quota_limit)(CoreQuota *sensor) noexcept nogil
    void (*quota_set_limit)(CoreQuota *sensor, int64_t limit, int64_t now_ms) noexcept nogil
    uint64_t (*quota_total)(CoreQuota *sensor) noexcept nogil
    void (*quota_snapshot)(
        CoreQuota *sensor, int64_t now_ms, CoreQuotaSnapshot *snapshot
    ) noexcept nogil
    int64_t (*quota_try_reserve)(
        CoreQuota *sensor, uint64_t amount, int64_t now_ms, CoreQuotaToken *token
    ) noexcept nogil
    int64_t (*quota_settle)(
        CoreQuota *sensor, const CoreQuotaToken *token, uint64_t actual, int64_t now_ms
    ) noexcept nogil
    CoreCache *(*cache_new)(
        uint64_t max_bytes, int64_t ttl_ms, bint record_stats, bint tell
    ) noexcept
    void (*cache_free)(CoreCache *cache) noexcept
    object (*cache_key)(object key)
    object (*cache_get)(CoreCache *cache, object key, int64_t now_ms, object default)
    int (*cache_contains)(CoreCache *cache, object key, int64_t now_ms) except -1
    int64_t (*cache_lookup_position)(
        CoreCache *cache, object key, int64_t target_offset, int64_t now_ms
    ) except -5
    int64_t (*cache_find_position)(
        CoreCache *cache,
        const uint8_t *key,
        size_t length,
        int64_t target_offset,
        int64_t now_ms,
    ) noexcept nogil
    int (*cache_put)(
        CoreCache *cache,
        object key,
        object value,
        const CoreIndex *index,
        uint64_t weight,
        int64_t now_ms,
    ) except -1
    int (*cache_remove)(CoreCache *cache, object key) except -1
    int64_t (*cache_remove_if)(CoreCache *cache, object predicate) except -1
    int64_t (*cache_sweep)(CoreCache *cache, int64_t now_ms) except -1
    int (*cache_resize)(CoreCache *cache, uint64_t max_bytes) except -1
    int (*cache_set_ttl)(CoreCache *cache, int64_t ttl_ms) except -1
    void (*cache_close)(CoreCache *cache) noexcept
    bint (*cache_is_closed)(CoreCache *cache) noexcept nogil
    size_t (*cache_len)(CoreCache *cache) noexcept nogil
    uint64_t (*cache_weight)(CoreCache *cache) noexcept nogil
    uint64_t (*cache_max_bytes)(CoreCache *cache) noexcept nogil
    int64_t (*cache_ttl_ms)(CoreCache *cache) noexcept nogil
    void (*cache_stats)(CoreCache *cache, CoreCacheStats *stats) noexcept
    object (*cache_take_removed)(CoreCache *cache)
    int (*load_begin)(
        CoreCache *cache, object key, int64_t now_ms, CoreBegin *begin
    ) except -1
    void (*load_fail)(CoreTurn *turn, PyObject *error, int64_t now_ms) noexcept
    int (*load_finish)(
        CoreTurn *turn, object value, const CoreIndex *index, uint64_t weight, int64_t now_ms
    ) except -1
    bint (*load_wait)(CoreTurn *turn, uint64_t duration_ms) noexcept nogil
    object (*load_outcome)(CoreTurn *turn, object again)
    void (*load_let_go)(CoreTurn *turn) noexcept


@cython.final
cdef class CachedIndex:
    cdef bytes _data
    cdef Py_ssize_t _rows
    cdef Py_buffer _position
    cdef Py_buffer _first_offset
    cdef Py_buffer _last_offset
    cdef Py_buffer _data_length
    cdef CoreIndex _index

    # Return the row of the first entry whose last offset is at least `target_offset`, or -1 past
    # the end.
    cdef Py_ssize_t find_row(self, int64_t target_offset) noexcept nogil
    # Return the byte position of that entry, or -1 past the end.
    cdef int64_t find_position(self, int64_t target_offset) noexcept nogil


@cython.final
cdef class CachedOffsetIndex:
    cdef bytes _data
    cdef CoreIndex _index

    # Find the last entry at or below an offset, or (base offset, 0) if there is no such entry.
    cdef void find(
        self, int64_t target_offset, int64_t *offset, int32_t *position
    ) noexcept nogil


@cython.final
cdef class QuotaSensor:
    cdef CoreQuota *_sensor
    cdef object __weakref__
    cdef readonly int64_t num_samples
    cdef readonly int64_t window_ms
    cdef readonly str rate_mode
    # Whether a caller gave the time. If so, times of another clock must not be mixed in.
    cdef bint _given_time

    cdef int64_t _now(self, object now_ms) except? -1
    # Return the latest time that the sensor knows if earlier callers gave the time and this caller
    # does not. Otherwise do the same as `_now`.
    cdef int64_t _now_or_latest(self, object now_ms) except? -1

    # Record bytes without the interpreter lock. Amounts are at most 2**48. Returns 0, or one of the
    # codes above.
    cdef int64_t record_nogil(self, uint64_t amount, int64_t now_ms) noexcept nogil
    # Record bytes and return the milliseconds to wait, or one of the codes above.
    cdef int64_t record_and_throttle_nogil(self, uint64_t amount, int64_t now_ms) noexcept nogil
    # Return the milliseconds to wait.
    cdef int64_t throttle_nogil(self, int64_t now_ms) noexcept nogil


@cython.final
cdef class Reservation:
    cdef QuotaSensor _sensor
    cdef CoreQuotaToken _token
    cdef readonly uint64_t amount

    cdef void give_back(self, int64_t now_ms) noexcept


@cython.final
cdef class ByteBudget:
    cdef object _on_return
    cdef readonly int64_t limit_bytes
    cdef readonly int64_t ahead_limit_bytes
    cdef readonly int64_t used_bytes
    cdef readonly int64_t ahead_bytes
    cdef readonly int64_t most_bytes
    cdef public bint guarded
    cdef public bint closed

    cdef void give_back(self, Permit permit) noexcept


@cython.final
cdef class Permit:
    cdef ByteBudget _budget
    # The array hides the buffer from the garbage collector. Otherwise CPython up to 3.12 clears a
    # memoryview in garbage although its buffer is in use, and crashes when the buffer is released.
    cdef Py_buffer _view[1]
    cdef bint _holds
    cdef bint _owed
    cdef readonly int64_t size_bytes
    cdef readonly bint ahead
    cdef object __weakref__


@cython.final
cdef class ChangeCount:
    cdef readonly int64_t count


@cython.final
cdef class Place:
    cdef readonly object segment
    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly str log_key
    cdef readonly tuple index_key


@cython.final
cdef class KnownPlaces:
    cdef readonly object change
    cdef readonly object lineage
    cdef readonly tuple places
    cdef int64_t held_at

    cpdef Place at(self, int64_t offset)


@cython.final
cdef class PlaceTable:
    cdef object _changes
    cdef ChangeCount _change_count
    cdef Py_ssize_t _most
    cdef dict _known

    cpdef KnownPlaces current(self, partition, lineage)


@cython.final
cdef class OpenFiles:
    cdef Py_ssize_t _most
    cdef int64_t _keep_ms
    cdef object _now_ms
    cdef dict _files

    cdef int64_t now(self) except? -1


@cython.final
cdef class IndexCache:
    cdef CoreCache *_cache
    cdef object _clock
    cdef object _on_removal
    cdef bint _record_stats
    cdef object __weakref__

    # Look up an offset without the interpreter lock in the index that is the value of a key. The
    # key is given by its bytes (see `native_key`). Returns a byte position, -1 if the offset is
    # past the end of the index, or one of the codes above. `now_ms` is the time of the cache's
    # clock, which is `coarse_now_ms()` by default.
    cdef int64_t find_position(
        self, const uint8_t *key, size_t length, int64_t target_offset, int64_t now_ms
    ) noexcept nogil

    cdef int64_t _now(self) except? -1
    cdef int _tell(self) except -1
    cdef object _get_or_load(self, object key, object loader, object timeout_ms)
    cdef object _load(self, object key, object loader, CoreBegin *begin)
    cdef object _wait(self, CoreTurn *turn, object key, int64_t deadline_ms)


# Return a monotonic time in milliseconds. It is a few milliseconds behind the exact clock, but
# reading it costs much less.
cdef int64_t coarse_now_ms() noexcept nogil
