# Room for bytes: a part of `_hot.pyx`.


@cython.final
cdef class ByteBudget:
    """How many bytes may be held at a time, and how many are.

    ``ByteBudget(limit_bytes, ahead_limit_bytes, on_return)``. Threads share it and none ever
    waits: who has to, does so elsewhere, sets ``guarded``, and is told by ``on_return()`` when room
    comes back - by whatever thread gave it back, also out of a finalizer. What that raises goes to
    ``sys.unraisablehook``.
    """

    def __cinit__(self, limit_bytes, ahead_limit_bytes, on_return):
        self._on_return = on_return
        self.set_limits(limit_bytes, ahead_limit_bytes)

    def set_limits(self, limit_bytes, ahead_limit_bytes):
        """Other limits from now on; what is taken stays taken."""
        self.limit_bytes = whole_from(limit_bytes, "limit_bytes", 1)
        self.ahead_limit_bytes = whole_from(ahead_limit_bytes, "ahead_limit_bytes", 0)

    def take(self, size_bytes, bint ahead=False, bint waited=False):
        """A `Permit`, None when there is no room.

        More than the limit is had while nobody else has any; `ahead` by who can do without, within
        a limit of its own. While somebody waits (``guarded``) there is room only for who has
        `waited`.
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
        """Counts it, once; an exception of the listener is printed."""
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
    """Room for `size_bytes` in a `ByteBudget`; `ahead`: for what nobody has asked for yet.

    It comes back with `release`, or with the last reference to the permit. With `hold` every view
    of the bytes held is one.
    """

    def __dealloc__(self):
        # A view that was never taken has no owner, and releasing it does nothing.
        PyBuffer_Release(self._view)
        if self._budget is not None:
            self._budget.give_back(self)

    def __reduce__(self):
        raise TypeError("a Permit belongs to its budget and cannot be pickled")

    def release(self):
        """The room is free for others, once, however often this is called."""
        self._budget.give_back(self)

    def hold(self, data):
        """A read-only view of `data`, which keeps it and its room; once."""
        if self._holds:
            raise ValueError("this permit holds something already")
        PyObject_GetBuffer(data, self._view, PyBUF_SIMPLE)
        self._holds = True
        return PyMemoryView_FromObject(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self._holds:
            raise BufferError("this permit holds nothing")
        PyBuffer_FillInfo(view, self, self._view[0].buf, self._view[0].len, True, flags)
