# cython: language_level=3, cdivision=True
"""What another package's compiled code does with our sensors and caches: loops without the lock."""

from libc.stdint cimport int64_t

from tierlog._hot cimport QuotaSensor

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    clockid_t CLOCK_MONOTONIC
    clockid_t CLOCK_MONOTONIC_COARSE
    int clock_gettime(clockid_t clock, timespec *now)


cdef inline int64_t clock_ms(clockid_t clock) noexcept nogil:
    cdef timespec now
    clock_gettime(clock, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


def record_given(
    QuotaSensor sensor, int64_t amount, int64_t first_ms, int64_t until_ms, int64_t per_ms
):
    """So many records and checks in each millisecond; how many found the quota exceeded."""
    cdef int64_t exceeded = 0, now_ms, number
    with nogil:
        for now_ms in range(first_ms, until_ms):
            for number in range(per_ms):
                if sensor.record_and_throttle_nogil(amount, now_ms) != 0:
                    exceeded += 1
    return exceeded


def record_clocked(QuotaSensor sensor, int64_t amount, int64_t records, bint coarse):
    """The same, each at the time of the clock."""
    cdef int64_t exceeded = 0, number
    cdef clockid_t clock = CLOCK_MONOTONIC_COARSE if coarse else CLOCK_MONOTONIC
    with nogil:
        for number in range(records):
            if sensor.record_and_throttle_nogil(amount, clock_ms(clock)) != 0:
                exceeded += 1
    return exceeded
