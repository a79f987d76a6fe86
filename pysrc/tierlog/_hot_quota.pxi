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
        """Return rate, limit, totals and overshoot of one moment without blocking other threads."""
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
