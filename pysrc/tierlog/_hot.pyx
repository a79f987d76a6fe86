# cython: language_level=3, freethreading_compatible=True, autotestdict=False, auto_pickle=False
"""The per-request look-ups at the lowest call cost, and the same for Cython without the lock.

Every answer comes from the Rust core, through the C function table it exports; nothing is parsed
here. What is cached was verified once and lies in memory that nobody changes.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.pycapsule cimport PyCapsule_GetPointer

from tierlog import _core

__all__ = ["CachedIndex", "CachedOffsetIndex"]

cdef uint32_t VERSION = 1

cdef const CoreApi *load(object capsule) except NULL:
    """The table, if it is the one this file was written for."""
    # GetPointer refuses a null pointer and a capsule of another name.
    cdef const CoreApi *table = <const CoreApi *>PyCapsule_GetPointer(
        capsule, b"tierlog._core._C_API"
    )
    if table.version != VERSION or table.size_bytes < sizeof(CoreApi):
        raise ImportError(
            f"tierlog._hot needs version {VERSION} of the core's C API "
            f"({sizeof(CoreApi)} bytes), found version {table.version} "
            f"({table.size_bytes} bytes): install both from one wheel"
        )
    if table.lookup_offset_index == NULL or table.lookup_log_index == NULL:
        raise ImportError("the core's C API has no functions: install tierlog again")
    return table


# Keeps the table alive.
cdef object CAPSULE = _core._C_API
cdef const CoreApi *core = load(CAPSULE)


@cython.final
cdef class CachedIndex:
    """A remoteLogIndex, verified once, for any number of look-ups.

    ``CachedIndex(data)`` takes the bytes of a remoteLogIndex with or without its trailer (a buffer
    that is not ``bytes`` is copied) and raises ``CorruptDataError`` unless every entry is good.
    Threads may share it. Offsets are Kafka offsets, positions byte positions.
    """

    def __cinit__(self, object data):
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        decoded = _core.decode_remote_log_index(data)
        columns = dict(decoded.columns())
        self._data = data
        self._rows = len(decoded)
        PyObject_GetBuffer(columns["position"], &self._position, PyBUF_SIMPLE)
        PyObject_GetBuffer(columns["first_offset"], &self._first_offset, PyBUF_SIMPLE)
        PyObject_GetBuffer(columns["last_offset"], &self._last_offset, PyBUF_SIMPLE)
        PyObject_GetBuffer(columns["data_length"], &self._data_length, PyBUF_SIMPLE)

    def __dealloc__(self):
        # A view that was never taken has no owner, and releasing it does nothing.
        PyBuffer_Release(&self._position)
        PyBuffer_Release(&self._first_offset)
        PyBuffer_Release(&self._last_offset)
        PyBuffer_Release(&self._data_length)

    def __len__(self):
        return self._rows

    cdef Py_ssize_t find_row(self, int64_t target_offset) noexcept nogil:
        return core.lookup_log_index(
            <const int64_t *>self._last_offset.buf, self._rows, target_offset
        )

    cdef int64_t find_position(self, int64_t target_offset) noexcept nogil:
        cdef Py_ssize_t row = self.find_row(target_offset)
        return -1 if row < 0 else (<const int64_t *>self._position.buf)[row]

    def lookup_position(self, int64_t target_offset):
        """Byte position of the first entry whose last offset reaches an offset; -1 past the end."""
        return self.find_position(target_offset)

    def lookup(self, int64_t target_offset):
        """(position, first offset, last offset, data length) of that entry; None past the end."""
        cdef Py_ssize_t row = self.find_row(target_offset)
        if row < 0:
            return None
        return (
            (<const int64_t *>self._position.buf)[row],
            (<const int64_t *>self._first_offset.buf)[row],
            (<const int64_t *>self._last_offset.buf)[row],
            (<const int32_t *>self._data_length.buf)[row],
        )

    def rdi(self, int64_t position):
        """Where the data of the entry at a position lies: untrusted bytes."""
        return _core.read_remote_entry(self._data, position)[6]


@cython.final
cdef class CachedOffsetIndex:
    """A segment's offset index (``.index``), checked once, for any number of look-ups.

    ``CachedOffsetIndex(data, base_offset)`` takes the file's bytes, zero tail or not, and raises
    ``CorruptDataError`` unless its entries ascend. Threads may share it.
    """

    def __cinit__(self, object data, int64_t base_offset):
        if type(data) is not bytes:
            data = bytes(memoryview(data))
        _offsets, _positions, valid_length = _core.parse_offset_index(data, base_offset)
        self._data = data
        self._start = <const uint8_t *>PyBytes_AS_STRING(data)
        self._length = valid_length
        self.base_offset = base_offset

    cdef void find(
        self, int64_t target_offset, int64_t *offset, int32_t *position
    ) noexcept nogil:
        core.lookup_offset_index(
            self._start, self._length, self.base_offset, target_offset, offset, position
        )

    def lookup(self, int64_t target_offset):
        """(offset, position) of the largest entry at or below an offset; (base offset, 0) if none.

        The offset is the last one of the batch at that position, so scan forward from there
        (Kafka's ``OffsetIndex.lookup``).
        """
        cdef int64_t offset = 0
        cdef int32_t position = 0
        self.find(target_offset, &offset, &position)
        return offset, position
