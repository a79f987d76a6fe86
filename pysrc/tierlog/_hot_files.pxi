# Files that stay open for a while: a part of `_hot.pyx`.


@cython.final
cdef class OpenFile:
    """An open file, and the time from which its name has to be opened again."""

    cdef object file
    cdef int64_t expires_ms


@cython.final
cdef class OpenFiles:
    """Open files by name, each for `keep_ms`: after that another file may have the name.

    Any thread. ``OpenFiles(most, keep_ms, now_ms=None)`` keeps the `most` files that were opened
    last. Without `now_ms` the machine's coarse monotonic clock is read. A file closes when its last
    reader releases it.
    """

    def __cinit__(self, Py_ssize_t most, int64_t keep_ms, now_ms=None):
        self._most = most
        self._keep_ms = keep_ms
        self._now_ms = now_ms
        self._files = {}

    def __len__(self):
        return len(self._files)

    def get(self, str name not None):
        """Return the file of that name for one read; None when it has to be opened."""
        opened = <OpenFile>self._files.get(name)
        if opened is None or opened.expires_ms <= self.now():
            return None
        return opened.file

    def put(self, str name not None, file):
        """Keep `file`, which was just opened by that name."""
        opened = <OpenFile>OpenFile.__new__(OpenFile)
        opened.file = file
        opened.expires_ms = self.now() + self._keep_ms
        with cython.critical_section(self):
            # Removed and inserted, so that the table stays in the order of opening.
            self._files.pop(name, None)
            self._files[name] = opened
            while len(self._files) > self._most:
                self._files.pop(next(iter(self._files)), None)

    def forget(self, str name not None):
        """Forget a file, because its name was given to another one or removed."""
        self._files.pop(name, None)

    cdef int64_t now(self) except? -1:
        return core.coarse_now_ms() if self._now_ms is None else self._now_ms()
