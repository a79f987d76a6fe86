# cython: language_level=3
"""What another package's Cython code cimports. The table is that of rust/py/src/capsule.rs."""

cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


ctypedef struct CoreApi:
    uint32_t version
    uint32_t size_bytes
    void (*lookup_offset_index)(
        const uint8_t *data,
        size_t length,
        int64_t base_offset,
        int64_t target_offset,
        int64_t *offset,
        int32_t *position,
    ) noexcept nogil
    Py_ssize_t (*lookup_log_index)(
        const int64_t *last_offset, size_t rows, int64_t target_offset
    ) noexcept nogil


@cython.final
cdef class CachedIndex:
    cdef bytes _data
    cdef Py_ssize_t _rows
    cdef Py_buffer _position
    cdef Py_buffer _first_offset
    cdef Py_buffer _last_offset
    cdef Py_buffer _data_length

    # Row of the entry that holds an offset or what follows it; -1 past the end.
    cdef Py_ssize_t find_row(self, int64_t target_offset) noexcept nogil
    # Byte position of that entry; -1 past the end.
    cdef int64_t find_position(self, int64_t target_offset) noexcept nogil


@cython.final
cdef class CachedOffsetIndex:
    cdef bytes _data
    cdef const uint8_t *_start
    cdef size_t _length
    cdef readonly int64_t base_offset

    # The largest entry at or below an offset; (base offset, 0) when there is none.
    cdef void find(
        self, int64_t target_offset, int64_t *offset, int32_t *position
    ) noexcept nogil
