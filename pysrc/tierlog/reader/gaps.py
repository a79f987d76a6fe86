"""Finds the offsets that a tier lacks, for every reader, listing and audit.

A tier should hold all offsets of a log. A segment covers all offsets up to the next segment, even
if the segment was compacted or ends with control batches. Offsets that retention and DeleteRecords
remove lie below the log start offset, or their segment is recorded as being deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from tierlog.errors import ConfigError, GapError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.description import decode_segment
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import indexes_key
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import TopicIdPartition

__all__ = [
    "Gap",
    "GapStartOf",
    "KnownGaps",
    "OnGap",
    "gap_error",
    "gap_handler",
    "gap_start_in",
    "missing_offsets",
    "raise_gap",
    "unknown_end",
]

OnGap = Literal["fail", "skip"] | Callable[[GapError], object]
"""The action of a reader at a gap: raise the error, skip the gap, or call a function and then skip
the gap."""

GapStartOf = Callable[[RemoteLogSegmentMetadata], int | None]
"""Returns the gap start offset that is stored with a segment. The function is called only if
offsets before the segment seem to be missing. `gap_start_in` makes a function that asks the
store."""

_MAX_PARTITIONS = 4096
_HINT = "tierlog verify names what is missing; --on-gap skip (on_gap, onGap) reads past it"


class Gap(NamedTuple):
    """Offsets `first_offset` to `last_offset`, both included, that no segment holds.

    `following` is the segment after these offsets; None at the end of the tier.
    """

    first_offset: int
    last_offset: int
    following: RemoteLogSegmentMetadata | None


def missing_offsets(
    segments: Iterable[RemoteLogSegmentMetadata],
    lineage: LeaderEpochs | None,
    *,
    log_start_offset: int | None = None,
    end_offset: int | None = None,
    gap_start_of: GapStartOf | None = None,
) -> list[Gap]:
    """Return the gaps of a partition, by offset.

    The tier should hold the offsets of `lineage` (None: of any leader epoch) from
    `log_start_offset` up to, not including, `end_offset`. If `log_start_offset` is None, there is
    no gap before the first segment. If `end_offset` is None, there is no gap after the last
    segment. If a segment has a gap start offset, the offsets from there up to the segment are not
    missing, because the log had deleted these offsets before they were copied.
    """
    held = sorted(
        (
            (first, last, number, segment)
            for number, segment in enumerate(segments)
            for first, last in _held_ranges(segment, lineage)
        ),
        key=lambda one: one[:3],
    )
    gaps: list[Gap] = []
    next_offset = log_start_offset
    for first, last, _, segment in held:
        if next_offset is not None and first > next_offset:
            start = None if gap_start_of is None else gap_start_of(segment)
            end = first if start is None or first != segment.start_offset else min(first, start)
            if next_offset < end:
                gaps.append(Gap(next_offset, end - 1, segment))
        next_offset = max(last + 1, 0 if next_offset is None else next_offset)
    if end_offset is not None and next_offset is not None and next_offset < end_offset:
        gaps.append(Gap(next_offset, end_offset - 1, None))
    return gaps


class KnownGaps:
    """Remembers `missing_offsets` of each partition until its metadata changes."""

    def __init__(
        self, metadata: RemoteLogMetadataManager, gap_start_of: GapStartOf | None = None
    ) -> None:
        self._metadata = metadata
        self._gap_start_of = gap_start_of
        self._kept: dict[TopicIdPartition, tuple[object, list[Gap]]] = {}

    def of(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        *,
        log_start_offset: int | None = None,
        end_offset: int | None = None,
    ) -> list[Gap]:
        """Return the gaps by offset. The offsets of a segment that is being deleted are no gap,
        because retention removes the segment."""
        state = (
            self._metadata.changes(partition),
            lineage,
            log_start_offset,
            end_offset,
        )
        kept = self._kept.get(partition)
        if kept is not None and kept[0] == state:
            return kept[1]
        known = (
            one
            for one in self._metadata.list(partition)
            if one.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED
        )
        gaps = missing_offsets(
            known,
            lineage,
            log_start_offset=log_start_offset,
            end_offset=end_offset,
            gap_start_of=self._gap_start_of,
        )
        if len(self._kept) >= _MAX_PARTITIONS:
            self._kept.clear()
        self._kept[partition] = state, gaps
        return gaps


def _held_ranges(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs | None
) -> list[tuple[int, int]]:
    if lineage is not None:
        return ranges_in_lineage(segment, lineage)
    first, last = segment.start_offset, segment.served_end_offset
    return [(first, last)] if first <= last else []


def gap_start_in(storage: RemoteStorageManager) -> GapStartOf:
    """Return a function that reads gap start offsets from the `.indexes` objects of `storage`."""

    def gap_start_of(segment: RemoteLogSegmentMetadata) -> int | None:
        kind = IndexKind.METADATA
        section = bytes(storage.fetch_indexes(segment, [kind])[kind])
        return decode_segment(section, path=indexes_key(segment), position=0).gap_start_offset

    return gap_start_of


def gap_error(partition: TopicIdPartition, first_offset: int, last_offset: int | None) -> GapError:
    """Return the error for missing offsets; `last_offset` is None when the end is unknown."""
    return GapError(partition.topic, partition.partition, first_offset, last_offset, hint=_HINT)


def unknown_end(partition: TopicIdPartition, offset: int) -> GapError:
    """Return the error for a log that continues at `offset` and whose end is unknown."""
    hint = (
        "a .log object there has no .indexes object: it is being copied, or tierlog index rebuild "
        "makes it again; --on-gap skip (on_gap, onGap) reads what is before it"
    )
    return GapError(partition.topic, partition.partition, offset, None, hint=hint)


def gap_handler(on_gap: OnGap) -> Callable[[GapError], object]:
    """Return the function to call at a gap. Raises ConfigError for an unknown action."""
    if callable(on_gap):
        return on_gap
    if on_gap == "fail":
        return raise_gap
    if on_gap == "skip":
        return lambda _error: None
    raise ConfigError(f"on_gap: expected fail, skip or a function, found {on_gap!r}")


def raise_gap(error: GapError) -> None:
    """Raise the error. This is the default action of every reader at a gap."""
    raise error
