# The usual read of a file: a part of `_hot.pyx`.


@cython.final
cdef class FileReads:
    """Reads of segments whose place, index and file are here, in one call each.

    `answer` is the tuple class of what is found. ``index_of(place)`` gives its `SegmentIndex` and
    ``open_file(log_key)`` its `ReadFile`, or None, unless `files` has it open; without `files` there
    are none. With a `cache` of entries that have ``index`` and, once they were compared with a
    segment, that as ``asked``, most come from there; not while there are `distrusted` segments.
    Without `now_ms` the machine's coarse monotonic clock says when a mark was made. `streams` has the
    keys of those that go on otherwise.
    """

    def __cinit__(
        self,
        answer,
        PlaceTable places not None,
        index_of,
        IndexCache cache,
        distrusted,
        OpenFiles files,
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
        self._files = files
        self._open_file = open_file
        self._budget = budget
        self._streams = streams
        self._marks = marks
        self._now_ms = now_ms
        self._reach_bytes = reach_bytes

    cdef int64_t now(self) except? -1:
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

    def read(
        self,
        partition,
        lineage,
        offset,
        max_bytes,
        upper_offset,
        bint minimum_one,
        count=None,
    ):
        """An answer (records, first offset, next offset, segment, position, end position, 1,
        False, False), or None when it takes more than that. `count` is called with the bytes that
        were asked of the file, also when they held no answer."""
        cdef int64_t at, most, last
        cdef tuple name
        cdef Place place
        cdef Permit permit
        cdef CoreRead found
        if self.closed or self._files is None:
            return None
        at = clamped(offset)
        name = (partition.topic_id, partition.partition)
        place = self._places.look_up(name, partition, lineage).find(at)
        if place is None or self.goes_on(place, offset, at):
            return None
        index = self.find_index(place)
        if index is None:
            return None
        file = self._files.find(place.log_key)
        if file is None:
            file = self._open_file(place.log_key)
            if file is None:
                return None
        most = min(max(clamped(max_bytes), 0), self._budget.limit_bytes)
        last = min(place.last_offset, clamped(upper_offset) - 1)
        data = core.segment_read(
            index, file, self._reach_bytes, at, last, most, minimum_one, &found
        )
        if count is not None and found.read_bytes > 0:
            count(found.read_bytes)
        if data is None:
            return None
        permit = self._budget.room(len(<bytes>data), False, False)
        if permit is None or self.closed:
            return None
        end = found.position + <int64_t>(found.end - found.start)
        self._marks.mark(place, found.next_offset, end, self.now())
        return TUPLE_NEW(
            self._answer,
            (
                permit.hold_part(<bytes>data, found.start, found.end),
                found.first_offset,
                found.next_offset,
                place.segment,
                found.position,
                end,
                1,
                False,
                False,
            ),
        )

    cdef bint goes_on(self, Place place, offset, int64_t at) except -1:
        """Whether somebody may go on there who has read before."""
        if self._marks.holds(place, at):
            return True
        return bool(self._streams) and (place.name[0], place.name[1], offset) in self._streams


cdef object TUPLE_NEW = tuple.__new__


cdef inline int64_t clamped(object value) except? -1:
    """A whole number as near as 64 bits come."""
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow == 0:
        return number
    return INT64_MAX if overflow > 0 else INT64_MIN + 1
