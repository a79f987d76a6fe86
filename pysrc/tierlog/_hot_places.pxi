# Where offsets lie in the tier: a part of `_hot.pyx`.


@cython.final
cdef class ChangeCount:
    """How often anything has changed. Whoever remembers the count before it looked something up may
    go by what it found until the count is another one, and need not ask."""

    def __cinit__(self):
        self.count = 1

    def changed(self):
        """Something has, and can be seen by who asks now."""
        with cython.critical_section(self):
            self.count += 1


@cython.final
cdef class Place:
    """The offsets `first_offset` to `last_offset` (inclusive) of a segment: part of the log, each
    of them. ``log_key`` names the object, ``index_key`` its entry of the index cache."""

    def __cinit__(self, segment, int64_t first_offset, int64_t last_offset, str log_key not None):
        partition = segment.segment_id.topic_id_partition
        self.segment = segment
        self.index_key = (partition.topic_id, partition.partition, segment.segment_id.id)
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_key = log_key

    def __reduce__(self):
        raise TypeError("a Place belongs to what was looked up in this process")

    def holds(self, int64_t offset):
        """Whether `offset` is one of these."""
        return self.first_offset <= offset <= self.last_offset

    def is_of(self, Place other not None):
        """Whether both are of one segment."""
        return self is other or self.segment.segment_id == other.segment.segment_id

    def __repr__(self):
        return f"Place({self.log_key}, {self.first_offset}..{self.last_offset})"


@cython.final
cdef class KnownPlaces:
    """What was found out about one partition as of a number of its changes, for a lineage: places
    that ascend. Replaced, never changed, but for the count of all changes at which it still held."""

    def __cinit__(self, change, lineage, tuple places not None):
        self.change = change
        self.lineage = lineage
        self.places = places

    cpdef Place at(self, int64_t offset):
        """The place of an offset; None when it is not known."""
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
    """`KnownPlaces` by partition. ``PlaceTable(changes, change_count, most)``: ``changes(partition)``
    is a number that is another one after every change, asked only when the `change_count` of all
    partitions has moved; `most` partitions are kept. Any thread."""

    def __cinit__(self, changes, ChangeCount change_count not None, Py_ssize_t most):
        self._changes = changes
        self._change_count = change_count
        self._most = most
        self._known = {}

    cpdef KnownPlaces current(self, partition, lineage):
        """What is known of a partition and holds still; maybe nothing."""
        cdef tuple name = (partition.topic_id, partition.partition)
        # Both are looked at first: what is looked up afterwards is at least as new.
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
        """The place of an offset that is known and holds still; None without one."""
        return self.current(partition, lineage).at(offset)

    def keep(self, partition, KnownPlaces known not None):
        """From now on that."""
        self._known[(partition.topic_id, partition.partition)] = known
        while len(self._known) > self._most:
            try:
                self._known.pop(next(iter(self._known)), None)
            except (RuntimeError, StopIteration):
                # Another thread is at it as well.
                return

    def forget(self, partition):
        """Nothing is known any more."""
        self._known.pop((partition.topic_id, partition.partition), None)
