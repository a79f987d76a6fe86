# Files that stay open for a while: a part of `_hot.pyx`.


@cython.final
cdef class OpenFile:
    """A file, and until when it is the one of its name as far as anybody knows."""

    cdef object file
    cdef int64_t expires_ms


@cython.final
cdef class OpenFiles:
    """Open files by name, each for `keep_ms`: then it may be another one that has the name.

    ``OpenFiles(most, keep_ms, now_ms=None)`` keeps the `most` opened last. Without `now_ms` the
    machine's coarse monotonic clock is read. A file that is let go of closes when the last reader
    has. Any thread.
    """

    def __cinit__(self, Py_ssize_t most, int64_t keep_ms, now_ms=None):
        self._most = most
        self._keep_ms = keep_ms
        self._now_ms = now_ms
        self._files = {}

    def __len__(self):
        return len(self._files)

    def get(self, str name not None):
        """The file of that name, for a read that begins now; None when it is to be opened."""
        opened = <OpenFile>self._files.get(name)
        if opened is None or opened.expires_ms <= self.now():
            return None
        return opened.file

    def put(self, str name not None, file):
        """`file` has just been opened by that name."""
        opened = <OpenFile>OpenFile.__new__(OpenFile)
        opened.file = file
        opened.expires_ms = self.now() + self._keep_ms
        with cython.critical_section(self):
            # Out and in again, so that the first one in the table is the one opened longest ago.
            self._files.pop(name, None)
            self._files[name] = opened
            while len(self._files) > self._most:
                self._files.pop(next(iter(self._files)), None)

    def forget(self, str name not None):
        """Another file has that name now, or none."""
        self._files.pop(name, None)

    cdef int64_t now(self) except? -1:
        return core.coarse_now_ms() if self._now_ms is None else self._now_ms()
