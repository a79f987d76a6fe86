# A part of `_hot.pyx`: the budget of held bytes.


@cython.final
cdef class ByteBudget:
    """Counts the bytes of the held permits, up to a limit. Any thread may use it.

    ``ByteBudget(limit_bytes, ahead_limit_bytes, on_return)``. No call waits. A caller that waits
    for bytes by other means sets ``guarded``. Then ``on_return()`` is called each time a permit is
    returned, in the thread that returns the permit, also in a finalizer. Exceptions of
    ``on_return`` go to ``sys.unraisablehook``.
    """

    def __cinit__(self, limit_bytes, ahead_limit_bytes, on_return):
        self._on_return = on_return
        self.set_limits(limit_bytes, ahead_limit_bytes)

    def set_limits(self, limit_bytes, ahead_limit_bytes):
        """Set the limits. Permits that are held stay valid."""
        self.limit_bytes = whole_from(limit_bytes, "limit_bytes", 1)
        self.ahead_limit_bytes = whole_from(ahead_limit_bytes, "ahead_limit_bytes", 0)

    def take(self, size_bytes, bint ahead=False, bint waited=False):
        """Return a `Permit`, or None if the limit does not allow it now.

        A permit above the limit is granted if no other permit is held. With `ahead` the limit of
        read-ahead applies, too, and no permit above a limit is granted. While a caller waits
        (``guarded``), only callers that have `waited` get permits.
        """
        cdef Permit permit
        cdef int64_t size = whole(size_bytes, "a size")
        if size < 0:
            raise ValueError(f"no room of {size} bytes")
        with cython.critical_section(self):
            if self.closed or (self.guarded and not waited):
                return None
            if self.used_bytes > self.limit_bytes - size and (ahead or self.used_bytes > 0):
                return None
            if ahead:
                if self.ahead_bytes > self.ahead_limit_bytes - size:
                    return None
                self.ahead_bytes += size
            self.used_bytes += size
            if self.used_bytes > self.most_bytes:
                self.most_bytes = self.used_bytes
        permit = Permit.__new__(Permit)
        permit._budget = self
        permit._owed = True
        permit.size_bytes = size
        permit.ahead = ahead
        return permit

    cdef void give_back(self, Permit permit) noexcept:
        """Count a permit as returned, but only once."""
        cdef bint told = False
        with cython.critical_section(self):
            if permit._owed:
                permit._owed = False
                self.used_bytes -= permit.size_bytes
                if permit.ahead:
                    self.ahead_bytes -= permit.size_bytes
                told = self.guarded
        if told:
            self._on_return()


@cython.final
@cython.freelist(64)
@cython.no_gc_clear
cdef class Permit:
    """A share of `size_bytes` of a `ByteBudget`. `ahead` is true if it was granted for read-ahead.

    `release`, or the end of the last reference to the permit, returns the share to the budget.
    After `hold`, each view of the bytes is such a reference.
    """

    def __dealloc__(self):
        # Releasing a buffer that was never filled in does nothing.
        PyBuffer_Release(self._view)
        if self._budget is not None:
            self._budget.give_back(self)

    def __reduce__(self):
        raise TypeError("a Permit belongs to its budget and cannot be pickled")

    def release(self):
        """Return the share to the budget; further calls do nothing."""
        self._budget.give_back(self)

    def hold(self, data):
        """Return a read-only view of `data`. The view keeps `data` and the share. Call this only
        once.
        """
        if self._holds:
            raise ValueError("this permit holds something already")
        PyObject_GetBuffer(data, self._view, PyBUF_SIMPLE)
        self._holds = True
        return PyMemoryView_FromObject(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self._holds:
            raise BufferError("this permit holds nothing")
        PyBuffer_FillInfo(view, self, self._view[0].buf, self._view[0].len, True, flags)
