# Where readers go on: a part of `_hot.pyx`.


@cython.final
cdef class ReadMarks:
    """Where readers go on that have read once: the last `most` of them at least, and at most twice
    as many.

    ``ReadMarks(most)``, with 0 none at all. A reader is known by topic id, partition and offset. Two tables take turns,
    so that letting go of old marks costs nothing. Any thread.
    """

    def __cinit__(self, Py_ssize_t most):
        self._most = most
        self.clear()

    def __len__(self):
        return len(self._young) + len(self._old)

    def put(self, str topic_id not None, partition, offset, Place place not None, position, now_ms):
        """Somebody has read up to `offset` at `now_ms`, which is byte `position` of `place`."""
        self.mark((topic_id, partition, offset), (place, position, now_ms))

    def take(self, str topic_id not None, partition, offset):
        """(place, position, now_ms) of who goes on there, once; None when there is nobody."""
        cdef tuple key = (topic_id, partition, offset)
        old = self._old.pop(key, None)
        return self._young.pop(key, old)

    def clear(self):
        """Nobody goes on."""
        self._young = {}
        self._old = {}

    cdef bint holds(self, tuple key) except -1:
        return key in self._young or key in self._old

    cdef int mark(self, tuple key, tuple value) except -1:
        if len(self._young) >= self._most:
            if self._most == 0:
                return 0
            self._old, self._young = self._young, {}
        self._young[key] = value
        return 0
