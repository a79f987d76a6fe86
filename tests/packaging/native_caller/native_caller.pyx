# cython: language_level=3
"""A broker's request path in small: quota and look-up without the interpreter lock."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from tierlog._hot cimport CACHE_CLOSED, CACHE_MISS, IndexCache, QuotaSensor, coarse_now_ms


def record(QuotaSensor sensor, uint64_t amount, int64_t times, int64_t now_ms):
    """Records `amount` so many times, and sums up how long that was told to wait."""
    cdef int64_t throttled_ms = 0
    cdef int64_t found
    with nogil:
        for _ in range(times):
            found = sensor.record_and_throttle_nogil(amount, now_ms)
            if found < 0:
                break
            throttled_ms += found
    return throttled_ms if found >= 0 else found


def look_up(IndexCache cache, const uint8_t[::1] key, int64_t offsets):
    """The sum of the positions of every offset below `offsets`; a code if one has none."""
    cdef int64_t total = 0
    cdef int64_t found = 0
    cdef int64_t offset
    with nogil:
        for offset in range(offsets):
            # The clock that the cache reads itself when it is used from Python.
            found = cache.find_position(&key[0], key.shape[0], offset, coarse_now_ms())
            if found < 0:
                break
            total += found
    return total if found >= 0 else found


def wait_until_throttled(QuotaSensor sensor, int64_t now_ms, int64_t timeout_ms):
    """Turns until another thread has recorded too much: only ends if that one can run."""
    cdef int64_t deadline_ms = coarse_now_ms() + timeout_ms
    cdef bint throttled = False
    with nogil:
        while not throttled and coarse_now_ms() < deadline_ms:
            throttled = sensor.throttle_nogil(now_ms) > 0
    return throttled


def codes():
    """What a look-up says besides positions."""
    return CACHE_MISS, CACHE_CLOSED
