"""Finds offsets by time and by name over both tiers (Kafka's ListOffsets).

| Timestamp | Name | Answer |
|---|---|---|
| -1 | latest | where a reader of this isolation level stops |
| -2 | earliest | the log start offset |
| -3 | max timestamp | the first visible record with the largest timestamp |
| -4 | earliest local | the local log start offset |
| -5 | latest tiered | the last offset in the tier |
| -6 | earliest pending upload | the first offset that is not in the tier yet |
| >= 0 | by time | the first record, in offset order, of that time or later |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from tierlog.batches import BatchTable
from tierlog.errors import TierlogError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.records import MAX_DECOMPRESSED_BYTES, decode_pieces
from tierlog.log.same_log import VanishedError, require_same_topic
from tierlog.log.segment import scan_segment
from tierlog.reader.charges import UNCHARGED, Payer
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.reader.local_batches import LocalBatchReader
from tierlog.reader.positions import late_rows
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import FetchError, FetchView, IsolationLevel
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentMetadata
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["OffsetAnswer", "OffsetReader", "SpecialTimestamp", "TimeSearch"]

_READ_BYTES = 1 << 20


class SpecialTimestamp(IntEnum):
    """Names that a request may have instead of a time, with Kafka's numbers."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """An offset that was found; unknown fields are -1. ``text`` explains an error to a person."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1
    error: FetchError = FetchError.NONE
    text: str = ""

    @property
    def is_worth_keeping(self) -> bool:
        """Whether a later request for the same time can use this answer. An answer with a record
        can be used again, because this record is still the first record of its time."""
        return self.error is FetchError.NONE and self.timestamp_ms >= 0


_NOTHING = OffsetAnswer()
_Found = tuple[int, int]


@dataclass(slots=True)
class TimeSearch:
    """The progress of a search by time. With it, the search is resumed after a wait for its
    quota."""

    # For each searched time, an offset below which all records in the tier are older.
    older_until: dict[int, int] = field(default_factory=dict)
    # For each searched time, the (offset, time) of the first record of that time or later.
    found: dict[int, _Found] = field(default_factory=dict)


class _ThrottledError(Exception):
    """The quota is used up."""


class OffsetReader:
    """Looks up offsets. Blocking, any thread.

    ``remote`` and ``metadata`` belong to the tier, None when nothing is tiered.
    """

    def __init__(
        self,
        remote: RemoteBatchReader | None = None,
        metadata: RemoteLogMetadataManager | None = None,
        *,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self._remote = remote
        self._metadata = metadata
        self._max_decompressed_bytes = max_decompressed_bytes
        self._local = LocalBatchReader()

    def look_up(
        self,
        view: FetchView,
        partition: TopicIdPartition,
        timestamp: int,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        follower: bool = False,
        payer: Payer = UNCHARGED,
        search: TimeSearch | None = None,
    ) -> OffsetAnswer:
        """Return the answer for a time in ms or for one of `SpecialTimestamp`. The answer for any
        other negative number is UNSUPPORTED_VERSION, as in Kafka.

        The requests of the search are charged to `payer`. While the payer's quota has no room, the
        answer is THROTTLING_QUOTA_EXCEEDED, and a later call with the same `search` resumes the
        search. Raises the same errors as reads, and VanishedError when the log changed after the
        view.
        """
        upper_offset = view.high_watermark
        if follower:
            upper_offset = view.log_end_offset
        elif isolation_level is IsolationLevel.READ_COMMITTED:
            upper_offset = min(view.last_stable_offset, view.high_watermark)
        tier = _Tier(partition, payer, search or TimeSearch())
        try:
            return self._answer(view, tier, timestamp, upper_offset)
        except _ThrottledError:
            text = f"{partition}: the fetch quota is used up"
            return OffsetAnswer(error=FetchError.THROTTLING_QUOTA_EXCEEDED, text=text)

    def _answer(
        self, view: FetchView, tier: _Tier, timestamp: int, upper_offset: int
    ) -> OffsetAnswer:
        partition = tier.partition
        if timestamp >= 0:
            return self._by_time(view, tier, timestamp, upper_offset)
        if timestamp < min(SpecialTimestamp):
            names = ", ".join(f"{one} {one.name.lower()}" for one in SpecialTimestamp)
            text = f"timestamp {timestamp}: expected a time in ms, or one of {names}"
            return OffsetAnswer(error=FetchError.UNSUPPORTED_VERSION, text=text)
        match SpecialTimestamp(timestamp):
            case SpecialTimestamp.LATEST:
                return OffsetAnswer(offset=upper_offset, leader_epoch=_latest_epoch(view))
            case SpecialTimestamp.EARLIEST:
                return _answer_at(view, view.log_start_offset)
            case SpecialTimestamp.MAX_TIMESTAMP:
                return self._find_newest(view, tier, upper_offset)
            case SpecialTimestamp.EARLIEST_LOCAL:
                return _answer_at(view, view.local_log_start_offset)
            case SpecialTimestamp.LATEST_TIERED:
                offset, epoch = self._highest_remote(view, partition)
                return OffsetAnswer(offset=offset, leader_epoch=epoch)
            case SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
                return self._find_pending(view, partition)

    # -- the tier's end

    def _highest_remote(self, view: FetchView, partition: TopicIdPartition) -> tuple[int, int]:
        """Return the last offset in the tier that belongs to this log, and its leader epoch. If the
        tier has no such offset, return (-1, -1)."""
        lineage = view.log.leader_epochs
        if self._metadata is None or lineage is None or not view.tiered:
            return -1, -1
        for epoch, _ in reversed(lineage.entries):
            highest = self._metadata.highest_offset_for_epoch(partition, epoch)
            if highest is not None:
                end = lineage.end_offset(epoch, view.log_end_offset)
                return (highest if end is None else min(highest, end - 1)), epoch
        return -1, -1

    def _find_pending(self, view: FetchView, partition: TopicIdPartition) -> OffsetAnswer:
        if not view.tiered or self._metadata is None:
            return _NOTHING
        highest, _ = self._highest_remote(view, partition)
        if highest >= 0:
            return _answer_at(view, max(highest + 1, view.log_start_offset))
        # The content of the tier is unknown, although the local log begins after the log start.
        unknown = view.local_log_start_offset != view.log_start_offset
        return _NOTHING if unknown else _answer_at(view, view.log_start_offset)

    # -- by time

    def _by_time(
        self, view: FetchView, tier: _Tier, timestamp_ms: int, upper_offset: int
    ) -> OffsetAnswer:
        found = self._remote_by_time(view, tier, timestamp_ms)
        if found is None:
            found = self._local_by_time(view, tier, timestamp_ms)
        if found is None or found[0] >= upper_offset:
            return _NOTHING
        offset, written_ms = found
        lineage = view.log.leader_epochs
        epoch = None if lineage is None else lineage.epoch_for(offset)
        return OffsetAnswer(
            offset=offset, timestamp_ms=written_ms, leader_epoch=-1 if epoch is None else epoch
        )

    def _find_newest(self, view: FetchView, tier: _Tier, upper_offset: int) -> OffsetAnswer:
        """Return the first record with the largest timestamp.

        That is usually the record with the largest timestamp of a segment. But this timestamp may
        belong to offsets that are not part of this log, or that the reader does not see. In this
        case, a binary search finds the largest timestamp for which there is a record.
        """
        times = {
            segment.max_timestamp_ms for segment, _, _ in self._remote_ranges(view, tier.partition)
        }
        for table in _local_tables(view):
            if len(table.max_timestamp_ms):
                times.add(int(table.max_timestamp_ms.max()))
        newest, nothing_at_ms = _NOTHING, -1
        for timestamp_ms in [*sorted((one for one in times if one > 0), reverse=True), 0]:
            newest = self._by_time(view, tier, timestamp_ms, upper_offset)
            if newest.offset >= 0:
                break
            nothing_at_ms = timestamp_ms
        while 0 <= newest.timestamp_ms < nothing_at_ms - 1:
            middle_ms = (newest.timestamp_ms + nothing_at_ms + 1) // 2
            found = self._by_time(view, tier, middle_ms, upper_offset)
            if found.offset >= 0:
                newest = found
            else:
                nothing_at_ms = middle_ms
        self._check_gap(view, tier, newest.offset + 1, upper_offset)
        return newest

    def _check_gap(self, view: FetchView, tier: _Tier, offset: int, next_offset: int) -> None:
        """Report a gap that overlaps [`offset`, `next_offset`), because the gap may have held the
        record."""
        lineage = view.log.leader_epochs
        if self._remote is None or lineage is None or not view.tiered:
            return
        self._remote.check_gap(
            tier.partition,
            lineage,
            offset,
            next_offset,
            log_start_offset=view.log_start_offset,
            tier_end_offset=view.local_log_start_offset,
        )

    def _remote_ranges(
        self, view: FetchView, partition: TopicIdPartition, timestamp_ms: int = 0
    ) -> list[tuple[RemoteLogSegmentMetadata, int, int]]:
        """Return (segment, first offset, last offset) for the offsets of the log that only the tier
        has, in offset order."""
        lineage = view.log.leader_epochs
        if self._metadata is None or lineage is None or not view.tiered:
            return []
        start, end = view.log_start_offset, view.local_log_start_offset
        found = [
            (segment, max(first, start), min(last, end - 1))
            for segment in self._metadata.segments_by_timestamp(partition, timestamp_ms, start)
            for first, last in ranges_in_lineage(segment, lineage)
        ]
        found = [one for one in found if one[1] <= one[2]]
        return sorted(found, key=lambda one: (one[1], one[2]))

    def _remote_by_time(
        self, view: FetchView, tier: _Tier, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Return (offset, time) of the first record in the tier that is not older. If a segment has
        only such records that are not part of the log, the search continues in the next segment."""
        lineage, search = view.log.leader_epochs, tier.search
        if self._remote is None or lineage is None:
            return None
        if timestamp_ms in search.found:
            return search.found[timestamp_ms]
        for segment, first, last in self._remote_ranges(view, tier.partition, timestamp_ms):
            start = max(first, search.older_until.get(timestamp_ms, 0))
            if start <= last:
                start = self._remote.older_until(segment, start, timestamp_ms)
            has_older = start > first
            for records, next_offset in self._read_remote(view, tier, lineage, start, last):
                older, found = self._find_late(records, timestamp_ms, start, last)
                has_older = has_older or older
                if found is not None:
                    if not has_older:
                        self._check_gap(view, tier, first - 1, first)
                    search.found[timestamp_ms] = found
                    return found
                search.older_until[timestamp_ms] = next_offset
        return None

    def _read_remote(
        self, view: FetchView, tier: _Tier, lineage: LeaderEpochs, offset: int, last: int
    ) -> Iterator[tuple[Buffer, int]]:
        """Yield the batches from `offset` to `last`, and with each item the offset after its
        batches."""
        assert self._remote is not None
        while offset <= last:
            read = self._remote.read_batches(
                tier.partition,
                lineage,
                offset,
                _READ_BYTES,
                last + 1,
                minimum_one=True,
                log_start_offset=view.log_start_offset,
                payer=tier.payer,
            )
            if read.throttled:
                raise _ThrottledError
            if read.refused:
                raise TierlogError(f"{tier.partition}: no memory for a search by time just now")
            if read.first_offset < 0:
                return
            yield read.records, read.next_offset
            offset = read.next_offset

    def _local_by_time(
        self, view: FetchView, tier: _Tier, timestamp_ms: int
    ) -> tuple[int, int] | None:
        has_older, found = self._find_late_here(view, timestamp_ms)
        if not has_older:
            end = view.local_log_start_offset
            self._check_gap(view, tier, end - 1, end)
        return found

    def _find_late_here(
        self, view: FetchView, timestamp_ms: int
    ) -> tuple[bool, tuple[int, int] | None]:
        """Return the result of `_find_late` for the local log."""
        has_older = False
        start, segments = max(view.log_start_offset, view.local_log_start_offset), view.log.segments
        if segments and segments[0].base_offset > start:
            raise VanishedError(f"{view.log.name}: begins at {segments[0].base_offset} by now")
        for table in _local_tables(view):
            for row in late_rows(table, timestamp_ms, start):
                base, end = int(table.base_offset[row]), int(table.last_offset[row])
                read = self._local.read_batches(view, base, 0, end + 1, minimum_one=True)
                older, found = self._find_late(read.records, timestamp_ms, start, end)
                has_older = has_older or older or bool((table.last_offset[:row] >= start).any())
                if found is not None:
                    return has_older, found
            has_older = has_older or bool((table.last_offset >= start).any())
        return has_older, None

    def _find_late(
        self, records: Buffer, timestamp_ms: int, first: int, last: int
    ) -> tuple[bool, tuple[int, int] | None]:
        """Return whether the first record is older than `timestamp_ms`, and the (offset, timestamp
        in ms) of the first record that is not older. Only offsets from `first` to `last` count."""
        has_older = False
        if not memoryview(records).nbytes:
            return has_older, None
        # Control records count, as in Kafka.
        for columns in decode_pieces(
            records, include_control=True, max_decompressed_bytes=self._max_decompressed_bytes
        ):
            offsets, times = columns.offset, columns.timestamp_ms
            inside = np.flatnonzero((offsets >= first) & (offsets <= last))
            late = np.flatnonzero(times[inside] >= timestamp_ms)
            if len(late):
                row = inside[late[0]]
                return has_older or bool(late[0]), (int(offsets[row]), int(times[row]))
            has_older = has_older or bool(len(inside))
            del columns, offsets, times
        return has_older, None


@dataclass(frozen=True, slots=True)
class _Tier:
    """A search in the tier: its partition, payer and progress."""

    partition: TopicIdPartition
    payer: Payer
    search: TimeSearch


def _local_tables(view: FetchView) -> Iterator[BatchTable]:
    """Yield the batches of each local segment, from a scan of the headers that ends at damage."""
    for segment in view.log.segments:
        try:
            with segment.open() as handle:
                table = scan_segment(handle, verify_crc=False)
        except FileNotFoundError as error:
            raise VanishedError(f"{segment.log_path}: gone meanwhile") from error
        require_same_topic(view.log)
        yield table


def _answer_at(view: FetchView, offset: int) -> OffsetAnswer:
    lineage = view.log.leader_epochs
    epoch = None if lineage is None else lineage.epoch_for(offset)
    return OffsetAnswer(offset=offset, leader_epoch=-1 if epoch is None else epoch)


def _latest_epoch(view: FetchView) -> int:
    lineage = view.log.leader_epochs
    if view.leader_epoch >= 0 or lineage is None or not lineage.entries:
        return view.leader_epoch
    return lineage.entries[-1].epoch
