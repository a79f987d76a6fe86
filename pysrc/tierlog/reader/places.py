"""Which segment of the tier an offset is read from, remembered while nothing changes.

The leader epoch of an offset, as the lineage has it, decides about the segment; of that segment
only what was written in epochs of the lineage, and was not cut off later, is part of the log.
"""

from __future__ import annotations

from tierlog._hot import KnownPlaces, Place, PlaceTable
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.gaps import Gap, GapStartOf, KnownGaps
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.layout import log_key
from tierlog.types import TopicIdPartition

__all__ = ["Place", "SegmentPlaces"]

_MAX_PARTITIONS = 4096
_MAX_PLACES = 64


class SegmentPlaces:
    """Answers from a metadata manager, kept per partition until its number of changes or the
    lineage is another one. Any thread."""

    def __init__(
        self, metadata: RemoteLogMetadataManager, gap_start_of: GapStartOf | None = None
    ) -> None:
        self._metadata = metadata
        self._gaps = KnownGaps(metadata, gap_start_of)
        self._table = PlaceTable(metadata.changes, metadata.change_count, _MAX_PARTITIONS)
        # Where an offset is, when that was found before and nothing has changed since.
        self.find_known = self._table.find

    def find(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        stay: Place | None = None,
    ) -> Place | None:
        """Where `offset` is; None when no finished segment of the lineage holds it. Of several
        places `stay`, where a reader is already, if nothing has changed since."""
        known = self._table.current(partition, lineage)
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

    def find_gap(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        next_offset: int,
        *,
        log_start_offset: int | None = None,
        end_offset: int | None = None,
    ) -> Gap | None:
        """Return the first gap that reaches into [`offset`, `next_offset`), None without one.

        `log_start_offset` and `end_offset` are those of `missing_offsets`.
        """
        gaps = self._gaps.of(
            partition, lineage, log_start_offset=log_start_offset, end_offset=end_offset
        )
        touching = (one for one in gaps if one.last_offset >= offset)
        gap = next(touching, None)
        return None if gap is None or gap.first_offset >= next_offset else gap

    def is_current(self, place: Place) -> bool:
        """Whether the segment is still what it was when it was looked up."""
        segment: RemoteLogSegmentMetadata = place.segment
        return self._metadata.get(segment.segment_id) == segment

    def forget(self, partition: TopicIdPartition) -> None:
        """Ask again next time."""
        self._table.forget(partition)

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
                return Place(segment, first, last, log_key(segment))
        return None

    def _remember(self, partition: TopicIdPartition, known: KnownPlaces, place: Place) -> None:
        kept = known.places if len(known.places) < _MAX_PLACES else ()
        places = sorted((*kept, place), key=lambda one: (one.first_offset, one.last_offset))
        self._table.keep(partition, KnownPlaces(known.change, known.lineage, tuple(places)))
