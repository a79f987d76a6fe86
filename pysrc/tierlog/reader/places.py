"""Finds the remote segment that holds an offset, and remembers the segment until the metadata
changes.

The lineage has a leader epoch for each offset, and this epoch decides which segment holds the
offset. Only offsets that were written in epochs of the lineage, and were not truncated later, are
part of the log.
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
    """Finds places in a metadata manager. Any thread.

    The places of a partition are remembered until its metadata or the lineage changes.
    """

    def __init__(
        self, metadata: RemoteLogMetadataManager, gap_start_of: GapStartOf | None = None
    ) -> None:
        self._metadata = metadata
        self._gaps = KnownGaps(metadata, gap_start_of)
        self._table = PlaceTable(metadata.changes, metadata.change_count, _MAX_PARTITIONS)
        # Returns the place of an offset if the place was found before and the metadata has not
        # changed.
        self.find_known = self._table.find

    def find(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offset: int,
        stay: Place | None = None,
    ) -> Place | None:
        """Return the place of `offset`; Return None when no finished segment of the lineage holds
        the offset. If several places hold the offset, return `stay`, the present place of a reader,
        unless the metadata has changed."""
        known = self._table.current(partition, lineage)
        if stay is not None and stay.holds(offset) and stay in known.places:
            return stay
        place = known.at(offset)
        if place is None:
            place = self._find_in_metadata(partition, lineage, offset)
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
        """Return the place of `offset` and `offset` itself. If `offset` has no place, return those
        of the next offset that has a place."""
        place = self.find(partition, lineage, offset, stay)
        if place is not None:
            return place, offset
        # A lineage may begin inside a segment if the earlier records of the segment were deleted.
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
        """Return the first gap that overlaps [`offset`, `next_offset`), or None.

        For `log_start_offset` and `end_offset` see `missing_offsets`.
        """
        gaps = self._gaps.of(
            partition, lineage, log_start_offset=log_start_offset, end_offset=end_offset
        )
        touching = (one for one in gaps if one.last_offset >= offset)
        gap = next(touching, None)
        return None if gap is None or gap.first_offset >= next_offset else gap

    def is_current(self, place: Place) -> bool:
        """Return whether the metadata of the segment is unchanged since the look-up."""
        segment: RemoteLogSegmentMetadata = place.segment
        return self._metadata.get(segment.segment_id) == segment

    def forget(self, partition: TopicIdPartition) -> None:
        """Forget the places of a partition."""
        self._table.forget(partition)

    def _find_in_metadata(
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
