# Quota sensors: a part of `_hot.pyx`.


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
QuotaSnapshot.__doc__ = "The figures of a sensor at one moment. ``limit_bytes_per_second`` is None for no limit."


# Means the latest time that the sensor knows.
cdef int64_t LATEST_MS = INT64_MIN

# The buffer formats of int64 in native byte order.
cdef tuple INT64_FORMATS = (b"l", b"q", b"@l", b"@q", b"=q")


cdef int64_t limit_of(object limit) except? -1:
    """Return a limit as the core expects it: -1 means no limit."""
    return -1 if limit is None else whole_from(limit, "a limit", 0)


cdef object refused(int64_t code, object amount):
    """Return the exception for a code of the core's quota functions."""
    if code == QUOTA_AMOUNT_TOO_LARGE:
        return OverflowError(f"expected at most 2**48 bytes in one call, found {amount}")
    if code == QUOTA_WINDOW_FULL:
        return OverflowError(f"the window holds 2**62 bytes or more and cannot take {amount} more")
    if code == QUOTA_NOT_RESERVED:
        return ClosedError("this reservation was settled or cancelled before")
    if code == QUOTA_NEEDS_WINDOW:
        return ValueError("reservations need rate='window', found rate='elapsed'")
    return ValueError("expected num_samples from 1 to 3,600 and window_ms from 1 to 86,400,000")


@cython.final
cdef class QuotaSensor:
    """Measures bytes per second over a rolling window, and says how long to wait to stay within a
    limit.

    ``QuotaSensor(num_samples=61, window_ms=1000, limit_bytes_per_second=None, rate="window")``: The
    window has `num_samples` (1 to 3,600) buckets of `window_ms` (1 to 86,400,000) each.
    ``rate="window"`` divides the bytes of all live buckets by the length of the whole window
    (KIP-956). ``rate="elapsed"`` divides them by the time since the oldest live sample began, but
    at least by `window_ms` (Kafka's ``SimpleRate``). A limit of None means no limit, and a limit of
    0 blocks all bytes.

    Amounts are whole bytes from 0 to 2**48. A value that is not an integer (also a bool or NaN)
    raises TypeError, a negative amount ValueError, and a larger amount OverflowError. `now_ms` is
    the time of any clock that counts milliseconds; by default the machine's monotonic clock is
    read, which is exact to 4 ms. The sensor's own time never goes back, even if the caller's clock
    does. Threads may share a sensor, and no thread ever waits. A forked child continues with its
    own copy of the sensor.
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
        # The sensor is null if the arguments were refused. The core ignores null.
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
        # Written only once, because threads share the cache line of this field.
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
        """Count `amount` bytes."""
        cdef int64_t code = core.quota_record(self._sensor, whole_from(amount, "an amount", 0), self._now(now_ms))
        if code < 0:
            raise refused(code, amount)

    def record_and_throttle_ms(self, amount, now_ms=None):
        """Count `amount` bytes and return the milliseconds to wait until the rate is within the
        limit.
        """
        cdef int64_t throttle_ms = core.quota_record_and_throttle_ms(
            self._sensor, whole_from(amount, "an amount", 0), self._now(now_ms)
        )
        if throttle_ms < 0:
            raise refused(throttle_ms, amount)
        return throttle_ms

    def record_many(self, amounts, now_ms=None):
        """Count the sum of all amounts in a buffer of int64, as one record.

        Returns the milliseconds to wait. The sum is at most 2**48 bytes.
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
            raise ValueError("expected amounts of 0 or more, found a negative amount")
        if throttle_ms < 0:
            raise refused(throttle_ms, "these amounts")
        return throttle_ms

    def rate(self, now_ms=None):
        """Return the bytes per second."""
        return core.quota_rate(self._sensor, self._now(now_ms))

    def throttle_ms(self, now_ms=None):
        """Return the milliseconds to wait until the rate is within the limit if no more bytes are
        counted.
        """
        return core.quota_throttle_ms(self._sensor, self._now(now_ms))

    @property
    def limit(self):
        """The limit in bytes per second; None means no limit."""
        cdef int64_t limit = core.quota_limit(self._sensor)
        return None if limit < 0 else limit

    def set_limit(self, limit_bytes_per_second, now_ms=None):
        """Change the limit at once. Counted bytes stay counted. None means no limit, and 0 blocks.

        `now_ms` has the same meaning as in `Reservation.settle`.
        """
        core.quota_set_limit(self._sensor, limit_of(limit_bytes_per_second), self._now_or_latest(now_ms))

    def total(self):
        """Return all bytes ever counted or reserved, minus the bytes given back, modulo 2**64."""
        return core.quota_total(self._sensor)

    def snapshot(self, now_ms=None):
        """Return rate, limit, totals and overshoot at one moment without blocking other threads."""
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
        """Return a `Reservation` of `amount` bytes, or the milliseconds after which to ask again.

        If every byte is reserved before it is sent, every sliding window holds at most the limit
        plus one reservation. Raises ValueError unless the sensor has ``rate="window"``.
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
    """Bytes that a `QuotaSensor` granted and that are not used yet.

    ``settle(actual)`` reports how many bytes were used. Unused bytes are given back, and bytes
    beyond the reservation are counted now. ``cancel()`` gives all bytes back. If neither was
    called, the end of a ``with`` block or of the last reference gives all bytes back.
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
        """Report that `actual` bytes were used. Raises ClosedError if it was settled or cancelled
        before.

        If `now_ms` is None, the machine's clock is read. But if earlier calls of the sensor passed
        `now_ms`, the latest time that the sensor knows is used instead.
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
        """Give all bytes back. Does nothing if the reservation was settled or cancelled before."""
        with cython.critical_section(self):
            if self._sensor is not None:
                self.give_back(self._sensor._now_or_latest(now_ms))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with cython.critical_section(self):
            self.give_back(LATEST_MS)
