# cython: language_level=3, cdivision=True
"""Loops over sensors and caches without the interpreter lock, like code of another package."""

from libc.stdint cimport int64_t, uint8_t

from tierlog._hot cimport IndexCache, QuotaSensor, coarse_now_ms

from tierlog._hot import native_key

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    clockid_t CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec *now)


cdef inline int64_t exact_now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


def record_given(
    QuotaSensor sensor, int64_t amount, int64_t first_ms, int64_t until_ms, int64_t per_ms
):
    """Record and check `per_ms` times in each millisecond. Return how many checks found the quota
    exceeded."""
    cdef int64_t exceeded = 0, now_ms, number
    with nogil:
        for now_ms in range(first_ms, until_ms):
            for number in range(per_ms):
                if sensor.record_and_throttle_nogil(amount, now_ms) != 0:
                    exceeded += 1
    return exceeded


def record_clocked(QuotaSensor sensor, int64_t amount, int64_t records, bint coarse):
    """Record and check `records` times, each at the time of the clock. Return how many checks found
    the quota exceeded."""
    cdef int64_t exceeded = 0, number
    with nogil:
        for number in range(records):
            if sensor.record_and_throttle_nogil(
                amount, coarse_now_ms() if coarse else exact_now_ms()
            ) != 0:
                exceeded += 1
    return exceeded


cdef class Finder:
    """Looks up keys of equal length in a cache. The keys are in memory in the order of their
    use."""

    cdef IndexCache cache
    cdef bytes keys
    cdef Py_ssize_t count
    cdef Py_ssize_t length

    def __init__(self, IndexCache cache, list keys):
        natives = [native_key(key) for key in keys]
        self.cache = cache
        self.keys = b"".join(natives)
        self.count = len(natives)
        self.length = len(natives[0])
        if len(self.keys) != self.count * self.length:
            raise ValueError("keys of more than one length")

    def __call__(self, int64_t repeats):
        """Look up all keys `repeats` times, and read the clock for each. Return the number of
        hits."""
        cdef const uint8_t *start = self.keys
        cdef const uint8_t *end = start + len(self.keys)
        cdef const uint8_t *key
        cdef int64_t hits = 0, repeat
        with nogil:
            for repeat in range(repeats):
                key = start
                while key < end:
                    if self.cache.find_position(key, self.length, 0, coarse_now_ms()) >= 0:
                        hits += 1
                    key += self.length
        return hits
