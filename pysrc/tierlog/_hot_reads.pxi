# The usual read of a file: a part of `_hot.pyx`.


@cython.final
cdef class FileReads:
    """Reads of segments whose place, index and file are here, in one call each.

    `answer` is the tuple class of what is found. ``index_of(place)`` gives its `SegmentIndex` and
    ``open_file(log_key)`` its `ReadFile`, or None. With a `cache` of entries that have ``index``
    and, once they were compared with a segment, that as ``asked``, most come from there; not while
    there are `distrusted` segments. Without `now_ms` the machine's coarse monotonic clock says when
    a mark was made. `streams` has the keys of those that go on otherwise.
    """

    def __cinit__(
        self,
        answer,
        PlaceTable places not None,
        index_of,
        IndexCache cache,
        distrusted,
        open_file,
        ByteBudget budget not None,
        streams,
        ReadMarks marks not None,
        now_ms,
        int64_t reach_bytes,
    ):
        self._answer = answer
        self._places = places
        self._index_of = index_of
        self._cache = cache
        self._distrusted = distrusted
        self._open_file = open_file
        self._budget = budget
        self._streams = streams
        self._marks = marks
        self._now_ms = now_ms
        self._reach_bytes = reach_bytes

    cdef object now(self):
        return core.coarse_now_ms() if self._now_ms is None else self._now_ms()

    cdef object find_index(self, Place place):
        """Out of the cache, if it was compared with this segment before; else by asking."""
        if self._cache is not None and not self._distrusted:
            entry = core.cache_get(self._cache._cache, place.index_key, self._cache._now(), None)
            if entry is not None and entry.asked is place.segment:
                index = entry.index
                if index is not None:
                    return index
        return self._index_of(place)

    def read(self, partition, lineage, offset, max_bytes, upper_offset, bint minimum_one):
        """An answer (records, first offset, next offset, segment, position, end position, 1,
        False), or None when it takes more than that."""
        cdef int64_t at = clamped(offset)
        cdef int64_t most = min(max(clamped(max_bytes), 0), self._budget.limit_bytes)
        cdef tuple key = (partition.topic_id, partition.partition, offset)
        cdef Place place
        cdef Permit permit
        cdef CoreRead found
        cdef int64_t last
        if self.closed or key in self._streams or self._marks.holds(key):
            return None
        place = self._places.look_up(partition, lineage).find(at)
        if place is None:
            return None
        index = self.find_index(place)
        if index is None:
            return None
        last = min(place.last_offset, clamped(upper_offset) - 1)
        file = self._open_file(place.log_key)
        if file is None:
            return None
        records = core.segment_read(
            index, file, self._reach_bytes, at, last, most, minimum_one, &found
        )
        if records is None:
            return None
        permit = self._budget.room(len(<bytes>records), False, False)
        if permit is None or self.closed:
            return None
        next_offset, end = found.next_offset, found.position + permit.size_bytes
        self._marks.mark((key[0], key[1], next_offset), (place, end, self.now()))
        return TUPLE_NEW(
            self._answer,
            (
                permit.hold(records),
                found.first_offset,
                next_offset,
                place.segment,
                found.position,
                end,
                1,
                False,
            ),
        )


cdef object TUPLE_NEW = tuple.__new__


cdef inline int64_t clamped(object value) except? -1:
    """A whole number as near as 64 bits come."""
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return number
    return INT64_MAX if overflow > 0 else INT64_MIN + 1
