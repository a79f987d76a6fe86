"""Reads partitions back from a store, by the store's own words.

The segments' metadata (from a metadata manager, or from the bucket itself) leads to a segment, its
remoteLogIndex to a position in it, and one ranged request fetches a run of whole entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tierlog.columns import RecordColumns
from tierlog.config import QuotaConfig
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.records import decode_records
from tierlog.quota import QuotaManager
from tierlog.remote.indexes import IndexKind
from tierlog.remote.layout import indexes_key, log_key, parse_rdi
from tierlog.remote.log_index import RemoteLogIndexEntries, decode_remote_log_index
from tierlog.remote.metadata import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.storage import RemoteStorageManager
from tierlog.tiering.lineage import ranges_in_lineage
from tierlog.tiering.log_reader import (
    FETCH_BYTES,
    PartitionSummary,
    SegmentSummary,
    rows_between,
)
from tierlog.types import StopReason, TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog.remote.index_cache import RemoteIndexCache

__all__ = ["StoreReader"]


class StoreReader:
    """Reads what a metadata manager knows from the objects of a store."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        fetch_bytes: int = FETCH_BYTES,
        index_cache: RemoteIndexCache | None = None,
        fetch_quota: QuotaManager | None = None,
    ) -> None:
        """`index_cache` is one of the same store; without it each read asks for its indexes.
        Reads of `.log` objects wait while `fetch_quota` is exceeded."""
        self._storage = storage
        self._index_cache = index_cache
        self._metadata = metadata
        self._fetch_bytes = fetch_bytes
        self._fetch_quota = fetch_quota or QuotaManager.for_fetches(QuotaConfig())

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`."""
        found = []
        for partition in self._metadata.partitions():
            segments = self._finished(partition)
            if segments:
                found.append(
                    PartitionSummary(
                        topic=partition.topic,
                        partition=partition.partition,
                        topic_id=partition.topic_id,
                        log_start_offset=min(segment.start_offset for segment in segments),
                        log_end_offset=max(segment.end_offset for segment in segments) + 1,
                        segment_count=len(segments),
                        size_bytes=sum(segment.segment_size_bytes for segment in segments),
                    )
                )
        return sorted(found, key=lambda one: (one.topic, one.partition, one.topic_id or ""))

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """See `LogReader`."""
        return [
            SegmentSummary(
                base_offset=metadata.start_offset,
                end_offset=metadata.end_offset,
                size_bytes=metadata.segment_size_bytes,
                max_timestamp_ms=metadata.max_timestamp_ms,
                leader_epochs=tuple(epoch for epoch, _ in metadata.leader_epochs),
                name=log_key(metadata),
                state=metadata.state.name,
            )
            for metadata in self._metadata.list(self._partition(topic, partition))
        ]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`."""
        wanted = self._partition(topic, partition)
        segments = self._finished(wanted)
        first = min(segment.start_offset for segment in segments)
        begin = min(entry.start_offset for entry in self._lineage(wanted))
        return max(first, begin), max(segment.end_offset for segment in segments) + 1

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """See `LogReader`. One ranged request per piece; before it two small ones per segment,
        or none for indexes that the cache has."""
        wanted = self._partition(topic, partition)
        lineage = self._lineage(wanted)
        offset = start_offset
        while end_offset is None or offset < end_offset:
            found = self._segment_from(wanted, lineage, offset)
            if found is None:
                return
            segment, offset = found
            limit = _last_offset_in_lineage(segment, lineage, offset) + 1
            stop = limit if end_offset is None else min(limit, end_offset)
            for records in self._read_segment(segment, offset):
                piece = rows_between(records, offset, stop)
                if len(piece):
                    yield piece
                if len(records.batches) and int(records.batches.last_offset[-1]) + 1 >= stop:
                    break
            offset = limit

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`."""
        wanted = self._partition(topic, partition)
        lineage = self._lineage(wanted)
        for segment in self._metadata.segments_by_timestamp(wanted, timestamp_ms):
            entries = self._entries(segment)
            row = entries.lookup_timestamp(timestamp_ms)
            for first, last in ranges_in_lineage(segment, lineage) if row is not None else ():
                start = max(first, int(entries.first_offset[row]))
                for records in self._read_segment(segment, start):
                    late = np.flatnonzero(
                        (records.timestamp_ms >= timestamp_ms)
                        & (records.offset >= start)
                        & (records.offset <= last)
                    )
                    if len(late):
                        return int(records.offset[late[0]])
        return None

    def _partition(self, topic: str, partition: int) -> TopicIdPartition:
        named = [
            one
            for one in self._metadata.partitions()
            if one.partition == partition
            and topic in (one.topic, one.topic_id)
            and self._finished(one)
        ]
        if len(named) == 1:
            return named[0]
        if named:
            ids = ", ".join(one.topic_id for one in named)
            raise OutOfRangeError(
                f"{topic}-{partition}: several topics had this name; give one of the ids {ids}"
            )
        raise OutOfRangeError(f"{self._storage!r} holds no segment of {topic}-{partition}")

    def _finished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            metadata
            for metadata in self._metadata.list(partition)
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    def _lineage(self, partition: TopicIdPartition) -> LeaderEpochs:
        """The leader epochs that the newest segment was uploaded with."""
        newest = max(
            self._finished(partition), key=lambda one: (one.leader_epochs[-1][0], one.end_offset)
        )
        if self._index_cache is not None:
            return self._index_cache.get(newest).leader_epochs
        section = self._storage.fetch_indexes(newest, [IndexKind.LEADER_EPOCH])
        return parse_leader_epochs(bytes(section[IndexKind.LEADER_EPOCH]), log_key(newest))

    def _segment_from(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, int] | None:
        """The segment of the lineage that holds `offset`, or the next one after a gap."""
        # A lineage may begin inside a segment: the records before were deleted.
        starts = {one.start_offset for one in self._finished(partition)}
        starts |= {entry.start_offset for entry in lineage}
        for candidate in [offset, *sorted(start for start in starts if start > offset)]:
            epoch = lineage.epoch_for(candidate)
            if epoch is not None:
                segment = self._metadata.lookup(partition, epoch, candidate)
                if segment is not None:
                    return segment, candidate
        return None

    def _entries(self, segment: RemoteLogSegmentMetadata) -> RemoteLogIndexEntries:
        if self._index_cache is not None:
            return self._index_cache.get(segment).remote_log_index
        section = self._storage.fetch_indexes(segment, [IndexKind.REMOTE_LOG])
        return decode_remote_log_index(section[IndexKind.REMOTE_LOG], path=indexes_key(segment))

    def _read_segment(
        self, segment: RemoteLogSegmentMetadata, offset: int
    ) -> Iterator[RecordColumns]:
        """The batches from the one that reaches `offset` on, as many whole entries at a time as
        one request may fetch."""
        entries = self._entries(segment)
        row = entries.lookup_offset(offset)
        while row is not None and row < len(entries):
            start = self._position(segment, entries, row)
            end, row = start + int(entries.data_length[row]), row + 1
            while row < len(entries) and end - start < self._fetch_bytes:
                end, row = end + int(entries.data_length[row]), row + 1
            yield self._decode(segment, self._fetch(segment, start, end), start)

    def _fetch(self, segment: RemoteLogSegmentMetadata, start: int, end: int) -> Buffer:
        with self._fetch_quota.transfer(end - start) as transfer:
            data = self._storage.fetch_log_segment(segment, start, end)
            transfer.moved(end - start)
        return data

    def _position(
        self, segment: RemoteLogSegmentMetadata, entries: RemoteLogIndexEntries, row: int
    ) -> int:
        key, position = parse_rdi(entries.rdi[row], segment.topic_id_partition)
        if str(key) != log_key(segment):
            raise CorruptDataError(
                reason="bad_rdi",
                path=log_key(segment),
                position=int(entries.position[row]),
                expected=f"a position in {log_key(segment)}",
                found=str(key),
            )
        return position

    def _decode(
        self, segment: RemoteLogSegmentMetadata, data: Buffer, position: int
    ) -> RecordColumns:
        try:
            records = decode_records(data)
        except CorruptDataError as error:
            raise _moved(error, log_key(segment), position) from None
        table = records.batches
        if table.stop_reason is not StopReason.END:
            raise CorruptDataError(
                reason=table.stop_reason.value,
                path=log_key(segment),
                position=position + table.stop_position,
                expected=table.stop_expected,
                found=table.stop_found,
            )
        return records


def _moved(error: CorruptDataError, path: str, by: int) -> CorruptDataError:
    return CorruptDataError(
        reason=error.reason,
        path=path,
        position=error.position + by,
        expected=error.expected,
        found=error.found,
        hint=error.hint,
    )


def _last_offset_in_lineage(
    segment: RemoteLogSegmentMetadata, lineage: LeaderEpochs, offset: int
) -> int:
    """How far from `offset` on the segment holds what the lineage says."""
    for start, end in ranges_in_lineage(segment, lineage):
        if start <= offset <= end:
            return end
    return offset
