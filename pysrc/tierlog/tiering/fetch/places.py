"""Which segment of the tier an offset is read from, remembered while nothing changes.

The leader epoch of an offset, as the lineage has it, decides about the segment; of that segment
only what was written in epochs of the lineage, and was not cut off later, is part of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.remote.layout import log_key
from tierlog.remote.metadata import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.tiering.lineage import ranges_in_lineage
from tierlog.types import TopicIdPartition

__all__ = ["Place", "SegmentPlaces"]

_MAX_PARTITIONS = 4096
_MAX_PLACES = 64


class Place:
    """The offsets `first_offset` to `last_offset` (inclusive) of a segment: part of the log, each
    of them. ``log_key`` names the object."""

    __slots__ = ("first_offset", "last_offset", "log_key", "segment")

    def __init__(
        self, segment: RemoteLogSegmentMetadata, first_offset: int, last_offset: int
    ) -> None:
        self.segment = segment
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.log_key = log_key(segment)

    def holds(self, offset: int) -> bool:
        """Whether `offset` is one of these."""
        return self.first_offset <= offset <= self.last_offset

    def is_of(self, other: Place) -> bool:
        """Whether both are of one segment."""
        return self is other or self.segment.segment_id == other.segment.segment_id

    def __repr__(self) -> str:
        return f"Place({self.log_key}, {self.first_offset}..{self.last_offset})"


class _Known:
    """What was found out about one partition; replaced, never changed."""

    __slots__ = ("change", "firsts", "lineage", "places")

    def __init__(self, change: int, lineage: LeaderEpochs, places: tuple[Place, ...]) -> None:
        self.change = change
        self.lineage = lineage
        self.places = places
        self.firsts = [place.first_offset for place in places]

    def at(self, offset: int) -> Place | None:
        index = bisect_right(self.firsts, offset) - 1
        if index >= 0 and self.places[index].last_offset >= offset:
            return self.places[index]
        return None


class SegmentPlaces:
    """Answers from a metadata manager, kept per partition until its number of changes or the
    lineage is another one. Any thread."""

    def __init__(self, metadata: RemoteLogMetadataManager) -> None:
        self._metadata = metadata
        self._known: OrderedDict[TopicIdPartition, _Known] = OrderedDict()

    def known(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> Place | None:
        """`find`, as far as that was found before and holds still."""
        return self._current(partition, lineage).at(offset)

    def find(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        stay: Place | None = None,
    ) -> Place | None:
        """Where `offset` is; None when no finished segment of the lineage holds it. Of several
        places `stay`, where a reader is already, if nothing has changed since."""
        known = self._current(partition, lineage)
        if stay is not None and stay.holds(offset) and stay in known.places:
            return stay
        place = known.at(offset)
        if place is None:
            place = self._look_up(partition, lineage, offset)
            if place is not None:
                self._remember(partition, known, place)
        return place

    def find_or_next(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        stay: Place | None = None,
    ) -> tuple[Place, int] | None:
        """As `find`, else the place of the next offset that has one, and that offset."""
        place = self.find(partition, lineage, offset, stay)
        if place is not None:
            return place, offset
        # A lineage may begin inside a segment: the records before were deleted.
        starts = {
            one.start_offset
            for one in self._metadata.list(partition)
            if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        }
        starts |= {entry.start_offset for entry in lineage}
        for candidate in sorted(start for start in starts if start > offset):
            place = self.find(partition, lineage, candidate)
            if place is not None:
                return place, candidate
        return None

    def is_current(self, place: Place) -> bool:
        """Whether the segment is still what it was when it was looked up."""
        return self._metadata.get(place.segment.segment_id) == place.segment

    def forget(self, partition: TopicIdPartition) -> None:
        """Ask again next time."""
        self._known.pop(partition, None)

    def _current(self, partition: TopicIdPartition, lineage: LeaderEpochs) -> _Known:
        # Asked first: what is looked up afterwards is at least as new.
        change = self._metadata.changes(partition)
        known = self._known.get(partition)
        if (
            known is None
            or known.change != change
            or (known.lineage is not lineage and known.lineage != lineage)
        ):
            known = _Known(change, lineage, ())
        return known

    def _look_up(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> Place | None:
        epoch = lineage.epoch_for(offset)
        if epoch is None:
            return None
        segment = self._metadata.lookup(partition, epoch, offset)
        if segment is None:
            return None
        for first, last in ranges_in_lineage(segment, lineage):
            if first <= offset <= last:
                return Place(segment, first, last)
        return None

    def _remember(self, partition: TopicIdPartition, known: _Known, place: Place) -> None:
        kept = known.places if len(known.places) < _MAX_PLACES else ()
        places = sorted((*kept, place), key=lambda one: (one.first_offset, one.last_offset))
        self._known[partition] = _Known(known.change, known.lineage, tuple(places))
        while len(self._known) > _MAX_PARTITIONS:
            try:
                self._known.popitem(last=False)
            except KeyError:
                return
