# A part of `_hot.pyx`: files that are kept open for a limited time.


@cython.final
cdef class OpenFile:
    """An open file, and the time from which its name has to be opened again."""

    cdef object file
    cdef int64_t expires_ms


@cython.final
cdef class OpenFiles:
    """Open files by name. Each is kept for `keep_ms`, because later another file may have the name.

    Any thread may use it. ``OpenFiles(most, keep_ms, now_ms=None)`` keeps at most the `most` files
    that were opened last. `now_ms` is a function that returns the time; the default is the
    machine's coarse monotonic clock. A file is closed when its last reader releases it.
    """

    def __cinit__(self, Py_ssize_t most, int64_t keep_ms, now_ms=None):
        self._most = most
        self._keep_ms = keep_ms
        self._now_ms = now_ms
        self._files = {}

    def __len__(self):
        return len(self._files)

    def get(self, str name not None):
        """Return the file of that name for one read, or None if it has to be opened."""
        opened = <OpenFile>self._files.get(name)
        if opened is None or opened.expires_ms <= self.now():
            return None
        return opened.file

    def put(self, str name not None, file):
        """Keep `file`, which was just opened under that name."""
        opened = <OpenFile>OpenFile.__new__(OpenFile)
        opened.file = file
        opened.expires_ms = self.now() + self._keep_ms
        with cython.critical_section(self):
            # Remove the name before inserting it, so that the table stays in the order of opening.
            self._files.pop(name, None)
            self._files[name] = opened
            while len(self._files) > self._most:
                self._files.pop(next(iter(self._files)), None)

    def forget(self, str name not None):
        """Forget a file, because it was removed or another file now has its name."""
        self._files.pop(name, None)

    cdef int64_t now(self) except? -1:
        return core.coarse_now_ms() if self._now_ms is None else self._now_ms()
