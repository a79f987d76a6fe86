# A part of `_hot.pyx`: look-ups of the segments that hold offsets.


@cython.final
cdef class ChangeCount:
    """The number of changes so far. A caller that reads the count before a look-up may use the
    result of the look-up until the count differs.
    """

    def __cinit__(self):
        self.count = 1

    def changed(self):
        """Count a change. Call this after look-ups can see the change."""
        with cython.critical_section(self):
            self.count += 1


@cython.final
cdef class Place:
    """The offsets `first_offset` to `last_offset` (inclusive) of a segment. All of them are part of
    the log. ``log_key`` is the key of the segment's object, and ``index_key`` is the key of the
    segment's entry in the index cache.
    """

    def __cinit__(self, segment, int64_t first_offset, int64_t last_offset, str log_key not None):
        partition = segment.segment_id.topic_id_partition
        self.segment = segment
        self.index_key = (partition.topic_id, partition.partition, segment.segment_id.id)
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_key = log_key

    def __reduce__(self):
        raise TypeError("a Place belongs to the look-ups of this process and cannot be pickled")

    def holds(self, int64_t offset):
        """Return whether `offset` is one of these offsets."""
        return self.first_offset <= offset <= self.last_offset

    def is_of(self, Place other not None):
        """Return whether both places are in the same segment."""
        return self is other or self.segment.segment_id == other.segment.segment_id

    def __repr__(self):
        return f"Place({self.log_key}, {self.first_offset}..{self.last_offset})"


@cython.final
cdef class KnownPlaces:
    """The known places of one partition, in ascending order. They were found for a lineage when the
    partition's number of changes was ``change``. Only ``held_at`` is updated: the count of all
    changes at which the places were last valid.
    """

    def __cinit__(self, change, lineage, tuple places not None):
        self.change = change
        self.lineage = lineage
        self.places = places

    cpdef Place at(self, int64_t offset):
        """Return the place of an offset, or None if it is not known."""
        cdef Py_ssize_t low = 0, high = len(self.places), middle
        while low < high:
            middle = (low + high) // 2
            if (<Place>self.places[middle]).first_offset <= offset:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        place = <Place>self.places[low - 1]
        return place if place.last_offset >= offset else None


@cython.final
cdef class PlaceTable:
    """`KnownPlaces` by partition. Any thread may use it.

    ``PlaceTable(changes, change_count, most)`` keeps at most `most` partitions.
    ``changes(partition)`` returns a number that differs after each change of the partition. It is
    called only if `change_count`, which counts the changes of all partitions, has changed.
    """

    def __cinit__(self, changes, ChangeCount change_count not None, Py_ssize_t most):
        self._changes = changes
        self._change_count = change_count
        self._most = most
        self._known = {}

    cpdef KnownPlaces current(self, partition, lineage):
        """Return the places of a partition that are still valid; there may be none."""
        cdef tuple name = (partition.topic_id, partition.partition)
        # The counts are read first, so that a later look-up is at least as new as they are.
        cdef int64_t count = self._change_count.count
        known = <KnownPlaces>self._known.get(name)
        if known is not None and known.held_at == count and known.lineage is lineage:
            return known
        change = self._changes(partition)
        if (
            known is None
            or known.change != change
            or (known.lineage is not lineage and known.lineage != lineage)
        ):
            return KnownPlaces.__new__(KnownPlaces, change, lineage, ())
        known.held_at = count
        return known

    def find(self, partition, lineage, offset):
        """Return the place of an offset if it is known and still valid, else None."""
        return self.current(partition, lineage).at(offset)

    def keep(self, partition, KnownPlaces known not None):
        """Replace the places of a partition."""
        self._known[(partition.topic_id, partition.partition)] = known
        while len(self._known) > self._most:
            try:
                self._known.pop(next(iter(self._known)), None)
            except (RuntimeError, StopIteration):
                # Another thread removes partitions, too.
                return

    def forget(self, partition):
        """Forget the places of a partition."""
        self._known.pop((partition.topic_id, partition.partition), None)
