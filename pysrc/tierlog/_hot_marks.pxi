# Where readers go on: a part of `_hot.pyx`.


@cython.final
cdef class ReadMarks:
    """Where readers go on that have read once: the last `most` of them at least, and at most twice
    as many.

    ``ReadMarks(most)``, with 0 none at all. A reader is known by partition and offset. Two tables
    of plain numbers take turns, so that letting go of old marks costs little. Any thread.
    """

    def __cinit__(self, Py_ssize_t most):
        cdef Py_ssize_t rows = 1
        # At least half of a table is free, so that a row is found in a few steps.
        while rows < 2 * most:
            rows *= 2
        self._most = most
        self._last_row = rows - 1
        self._young = <Mark *>PyMem_Calloc(rows, sizeof(Mark))
        self._old = <Mark *>PyMem_Calloc(rows, sizeof(Mark))
        if self._young is NULL or self._old is NULL:
            raise MemoryError

    def __dealloc__(self):
        self.wipe(self._young)
        self.wipe(self._old)
        PyMem_Free(self._young)
        PyMem_Free(self._old)

    def __len__(self):
        cdef Py_ssize_t row, count = 0
        for row in range(self._last_row + 1):
            count += (self._young[row].place is not NULL) + (self._old[row].place is not NULL)
        return count

    def put(self, offset, Place place not None, position, now_ms):
        """Somebody has read up to `offset` at `now_ms`, which is byte `position` of `place`."""
        self.mark(
            place,
            whole_from(offset, "an offset", 0),
            whole_from(position, "a position", 0),
            whole(now_ms, "a time"),
        )

    def take(self, str topic_id not None, partition, offset):
        """(place, position, now_ms) of who goes on there, once; None when there is nobody."""
        cdef tuple name = (topic_id, partition)
        cdef int64_t at = clamped(offset)
        if at < 0:
            return None
        with cython.critical_section(self):
            old = self.taken(self._old, name, at)
            young = self.taken(self._young, name, at)
            # Else a reader who goes on and on would push out those who have read once.
            self._count -= young is not None
        return old if young is None else young

    def clear(self):
        """Nobody goes on."""
        with cython.critical_section(self):
            self._count = 0
            self.wipe(self._young)
            self.wipe(self._old)

    cdef bint holds(self, Place place, int64_t offset) noexcept:
        with cython.critical_section(self):
            return (
                self.row_of(self._young, place.name_hash, offset).place is not NULL
                or self.row_of(self._old, place.name_hash, offset).place is not NULL
            )

    cdef void mark(self, Place place, int64_t offset, int64_t position, int64_t now_ms) noexcept:
        cdef Mark *row
        cdef PyObject *before
        if self._most == 0:
            return
        with cython.critical_section(self):
            row = self.row_of(self._young, place.name_hash, offset)
            if row.place is NULL:
                if self._count >= self._most:
                    self._count = 0
                    self._young, self._old = self._old, self._young
                    self.wipe(self._young)
                    row = self.row_of(self._young, place.name_hash, offset)
                self._count += 1
            before = row.place
            Py_INCREF(place)
            row.place, row.offset = <PyObject *>place, offset
            row.position, row.now_ms = position, now_ms
            Py_XDECREF(before)

    cdef Mark *row_of(self, Mark *rows, Py_hash_t name_hash, int64_t offset) noexcept:
        """The row of that mark, or a free one where it may go."""
        cdef Py_ssize_t row = self.first_row(name_hash, offset)
        while rows[row].place is not NULL:
            if rows[row].offset == offset and (<Place>rows[row].place).name_hash == name_hash:
                break
            row = (row + 1) & self._last_row
        return &rows[row]

    cdef Py_ssize_t first_row(self, Py_hash_t name_hash, int64_t offset) noexcept:
        """Where the search for a mark begins."""
        cdef uint64_t mixed = (<uint64_t>name_hash + <uint64_t>offset) * 0x9E3779B97F4A7C15ULL
        return <Py_ssize_t>(mixed >> 32) & self._last_row

    cdef object taken(self, Mark *rows, tuple name, int64_t offset):
        """What the row of a mark says, which is free then; None when there is none."""
        cdef Mark *row = self.row_of(rows, hash(name), offset)
        if row.place is NULL or (<Place>row.place).name != name:
            return None
        cdef Place place = <Place>row.place
        found = (place, row.position, row.now_ms)
        self.free(rows, row - rows)
        Py_DECREF(place)
        return found

    cdef void free(self, Mark *rows, Py_ssize_t row) noexcept:
        """Those behind a row that are found past it move up."""
        cdef Py_ssize_t behind = (row + 1) & self._last_row
        cdef Py_ssize_t first
        while rows[behind].place is not NULL:
            first = self.first_row((<Place>rows[behind].place).name_hash, rows[behind].offset)
            if ((behind - first) & self._last_row) >= ((behind - row) & self._last_row):
                rows[row] = rows[behind]
                row = behind
            behind = (behind + 1) & self._last_row
        rows[row].place = NULL

    cdef void wipe(self, Mark *rows) noexcept:
        cdef PyObject *place
        cdef Py_ssize_t row
        if rows is NULL:
            return
        for row in range(self._last_row + 1):
            place = rows[row].place
            if place is not NULL:
                # Whoever the place takes along may look here.
                rows[row].place = NULL
                Py_DECREF(<object>place)
