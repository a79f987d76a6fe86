"""Reads partitions from a store.

The list of segments comes from a metadata manager or from the bucket itself. `RemoteBatchReader`
finds and fetches the batches.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from tierlog.columns import RecordColumns
from tierlog.config import Config, RemoteLogConfig
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.index_files import read_producer_snapshot
from tierlog.quota import QuotaManager
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.charges import FetchQuota, Payer, QuotaPayer
from tierlog.reader.committed import RemoteAborted, StableLog, committed_rows
from tierlog.reader.damage import (
    LostRecords,
    OnCorrupt,
    damage_handler,
    decode_past_damage,
    raise_damage,
)
from tierlog.reader.gaps import KnownGaps, OnGap, gap_error, gap_handler, gap_start_in, unknown_end
from tierlog.reader.kept_indexes import Indexes, KeptIndexes
from tierlog.reader.lineage import newest_segment, ranges_in_lineage
from tierlog.reader.log_reader import (
    FETCH_BYTES,
    PartitionSummary,
    SegmentSummary,
    rows_between,
)
from tierlog.reader.memory import FetchMemory, Permit
from tierlog.reader.places import Place
from tierlog.reader.positions import IndexLookups, range_in
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.remote_read import RemoteRead
from tierlog.reader.types import IsolationLevel
from tierlog.remote.index_files.lookups import index_views
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import indexes_key, log_key
from tierlog.remote.segment.log_index import RemoteLogIndexEntries, decode_remote_log_index
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from tierlog.remote.index_cache.cache import RemoteIndexCache

__all__ = ["StoreReader"]

# The first request is small, since the caller may want one record. Later requests are larger.
_FIRST_BYTES = 256 << 10
_GROWTH = 4
# A larger number would not make a single sequential reader faster. The settings may allow less.
_MOST_MEMORY_BYTES = 96 << 20
_MOST_WINDOW_BYTES = 64 << 20
_MOST_THREADS = 8
_NO_LIMIT = 2**63


class StoreReader:
    """Reads the segments that a metadata manager lists from the objects of a store."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        fetch_bytes: int = FETCH_BYTES,
        index_cache: RemoteIndexCache | None = None,
        fetch_quota: FetchQuota | None = None,
        alarm: Callable[[Exception], object] | None = None,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        config: Config | None = None,
        on_gap: OnGap = "fail",
        on_corrupt: OnCorrupt = "fail",
        has_unfinished: Callable[[TopicIdPartition, int], bool] | None = None,
        adopted: Mapping[str, str] | None = None,
    ) -> None:
        """`index_cache` belongs to the same store. If `index_cache` is None, each call requests the
        indexes that it needs. Requests for `.log` objects are charged to `fetch_quota`, by default
        to the quota that `config` sets, and wait while it is exceeded. `config` also bounds memory
        and threads. For ``alarm`` see `RemoteBatchReader`. ``on_gap`` is the action at offsets that
        the store lacks. ``on_corrupt`` is the action at damage. For ``has_unfinished`` see
        `StoreListing`. ``adopted`` maps the id under which a topic is archived to the id that the
        topic got later."""
        self._storage = storage
        self._index_cache = index_cache
        self._metadata = metadata
        self._adopted = adopted or {}
        self._fetch_bytes = fetch_bytes
        self._alarm = alarm
        self._on_gap = on_gap
        self._report_damage = damage_handler(on_corrupt)
        self._has_unfinished = has_unfinished or (lambda _require_partition, _offset: False)
        self._committed = isolation_level is IsolationLevel.READ_COMMITTED
        self._config = config or Config()
        self._index_files = index_views(self._config.remote_index.dir)
        quota = fetch_quota or QuotaManager.for_fetches(self._config.quota)
        self._payer: Payer = QuotaPayer(quota)

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`."""
        found = []
        for partition in self._metadata.partitions():
            segments = self._finished_segments(partition)
            if segments:
                found.append(
                    PartitionSummary(
                        topic=partition.topic,
                        partition=partition.partition,
                        topic_id=self._adopted.get(partition.topic_id, partition.topic_id),
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
            for metadata in self._metadata.list(self._require_partition(topic, partition))
        ]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`."""
        wanted = self._require_partition(topic, partition)
        segments = self._finished_segments(wanted)
        indexes = self._indexes()
        first = min(segment.start_offset for segment in segments)
        begin = min(entry.start_offset for entry in self._lineage(wanted, indexes))
        end = max(segment.end_offset for segment in segments) + 1
        if self._committed:
            end = min(end, self._first_open_offset(wanted, indexes))
        return max(first, begin), end

    def check_end(self, topic: str, partition: int) -> None:
        """See `LogReader`. The log is known to continue when a `.log` object after the newest
        segment has no `.indexes` object."""
        wanted = self._require_partition(topic, partition)
        end = max(segment.end_offset for segment in self._finished_segments(wanted)) + 1
        if self._has_unfinished(wanted, end):
            gap_handler(self._on_gap)(unknown_end(wanted, end))

    def extent(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return (first offset, offset after the last) of all segments, including offsets that are
        not part of the log or not committed. Return None if there are no segments. The call makes
        no request."""
        known = self._find_partition(topic, partition)
        if known is None:
            return None
        segments = self._finished_segments(known)
        first = min(segment.start_offset for segment in segments)
        return first, max(segment.end_offset for segment in segments) + 1

    def read(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int | None = None,
        *,
        beyond: StableLog | None = None,
    ) -> Iterator[RecordColumns]:
        """See `LogReader`. The first records take two round trips to the store, or one if the
        indexes are cached. The first requests are small, and later requests grow to a few MiB.
        Bytes of a slow store are read ahead. The fetch quota counts bytes when they are requested,
        read-ahead included.

        Readers of committed records stop at a transaction whose end is not in the store, unless
        ``beyond``, the directory of the same log, shows how it ended.
        """
        wanted, indexes = self._require_partition(topic, partition), self._indexes()
        is_open_ended = end_offset is None
        with ThreadPoolExecutor(1) as beside:
            self._load_first(wanted, start_offset, indexes, beside)
            lineage = self._lineage(wanted, indexes)
        aborted = None
        if self._committed:
            if beyond is None:
                beyond = StableLog.nothing(wanted)
                stable_end = self._first_open_offset(wanted, indexes)
            else:
                stable_end = beyond.last_stable_offset
            end_offset = stable_end if end_offset is None else min(end_offset, stable_end)
            transactions = TransactionReader(self._storage, self._metadata, index_cache=indexes)
            aborted = RemoteAborted(transactions, wanted, lineage, beyond)
        yield from self._read_records(wanted, lineage, indexes, start_offset, end_offset, aborted)
        if is_open_ended:
            self.check_end(topic, partition)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`."""
        wanted, indexes = self._require_partition(topic, partition), self._indexes()
        lineage, lookups = self._lineage(wanted, indexes), self._lookups(indexes)
        for segment in self._metadata.segments_by_timestamp(wanted, timestamp_ms):
            for first, last in ranges_in_lineage(segment, lineage):
                start = lookups.older_until(segment, first, timestamp_ms)
                has_older = start > first
                for records in self._read_records(
                    wanted, lineage, indexes, start, last + 1, include_control=True
                ):
                    late = np.flatnonzero(records.timestamp_ms >= timestamp_ms)
                    if len(late):
                        if not has_older and not late[0]:
                            self._check_gap_before(wanted, lineage, first)
                        return int(records.offset[late[0]])
                    has_older = True
        return None

    def _check_gap_before(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> None:
        """Report a gap that ends right before `offset`, because the gap may have held the
        record."""
        for gap in KnownGaps(self._metadata, gap_start_in(self._storage)).of(partition, lineage):
            if gap.last_offset == offset - 1:
                error = gap_error(partition, gap.first_offset, gap.last_offset)
                gap_handler(self._on_gap)(error)

    def _lookups(self, indexes: Indexes) -> IndexLookups:
        return IndexLookups(self._storage, indexes, self._index_files)

    def _require_partition(self, topic: str, partition: int) -> TopicIdPartition:
        known = self._find_partition(topic, partition)
        if known is None:
            raise OutOfRangeError(f"{self._storage.url} holds no segment of {topic}-{partition}")
        return known

    def _find_partition(self, topic: str, partition: int) -> TopicIdPartition | None:
        """Return the partition with that topic name or id; None when the partition has no segment.
        Raises OutOfRangeError when several topics of the store had the name."""
        named = [
            one
            for one in self._metadata.partitions()
            if one.partition == partition
            and topic in (one.topic, one.topic_id, self._adopted.get(one.topic_id))
            and self._finished_segments(one)
        ]
        if len(named) > 1:
            ids = ", ".join(one.topic_id for one in named)
            raise OutOfRangeError(
                f"{topic}-{partition}: several topics had this name; give one of the ids {ids}"
            )
        return next(iter(named), None)

    def _finished_segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            metadata
            for metadata in self._metadata.list(partition)
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    def _indexes(self) -> Indexes:
        return KeptIndexes(self._storage) if self._index_cache is None else self._index_cache

    def _load_first(
        self,
        partition: TopicIdPartition,
        start_offset: int,
        indexes: Indexes,
        beside: Executor,
    ) -> None:
        """Load the indexes of the first segment while another thread loads the indexes of the
        newest segment, which have the lineage. If the request fails, the read of the segment gets
        the error."""
        segments = self._finished_segments(partition)
        ahead = [one for one in segments if one.end_offset >= start_offset]
        first = min(ahead, key=lambda one: one.start_offset, default=None)
        if first is None or first == self._newest(partition):
            return
        if not self._lookups(indexes).has_offset(first, max(start_offset, first.start_offset)):
            beside.submit(indexes.get, first)

    def _lineage(self, partition: TopicIdPartition, indexes: Indexes) -> LeaderEpochs:
        """Return the leader epochs that the newest segment was uploaded with."""
        newest = self._newest(partition)
        section = self._section(newest, IndexKind.LEADER_EPOCH, indexes)
        return parse_leader_epochs(section, log_key(newest))

    def _section(
        self,
        segment: RemoteLogSegmentMetadata,
        kind: IndexKind,
        indexes: Indexes,
    ) -> bytes:
        """Return a section of the segment's indexes. A section may be sound even if other sections
        are damaged."""
        try:
            return bytes(indexes.get(segment).section(kind))
        except CorruptDataError:
            return bytes(self._storage.fetch_indexes(segment, [kind])[kind])

    def producer_snapshot(self, topic: str, partition: int, offset: int) -> bytes | None:
        """Return the producer state before `offset`. Return None unless a segment ends right before
        `offset`."""
        known = self._find_partition(topic, partition)
        if known is None:
            return None
        segments = self._finished_segments(known)
        before = [one for one in segments if one.end_offset + 1 == offset]
        newest = max(before, key=lambda one: one.leader_epochs[-1][0], default=None)
        if newest is None:
            return None
        # The snapshot of a segment is the state at its end.
        return self._section(newest, IndexKind.PRODUCER_SNAPSHOT, self._indexes())

    def _first_open_offset(self, partition: TopicIdPartition, indexes: Indexes) -> int:
        """Return the first offset of the oldest transaction whose end is not in the store. If all
        transactions have ended, return the offset after the last record."""
        newest = self._newest(partition)
        snapshot = self._section(newest, IndexKind.PRODUCER_SNAPSHOT, indexes)
        states = read_producer_snapshot(snapshot)
        firsts = states.current_txn_first_offset
        return int(min(firsts[firsts >= 0], default=newest.end_offset + 1))

    def _newest(self, partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
        return newest_segment(self._finished_segments(partition))

    def _entries(
        self, segment: RemoteLogSegmentMetadata, indexes: Indexes
    ) -> RemoteLogIndexEntries:
        section = self._section(segment, IndexKind.REMOTE_LOG, indexes)
        return decode_remote_log_index(section, path=indexes_key(segment))

    def _read_records(
        self,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        indexes: Indexes,
        start_offset: int,
        end_offset: int | None,
        aborted: RemoteAborted | None = None,
        *,
        include_control: bool = False,
    ) -> Iterator[RecordColumns]:
        offset = start_offset
        with closing(self._open_batches(partition, indexes, start_offset, end_offset)) as batches:
            while end_offset is None or offset < end_offset:
                found = batches.reader.places.find_or_next(partition, lineage, offset)
                if found is None or found[1] > offset:
                    ends = [one for one in (found and found[1], end_offset) if one is not None]
                    batches.reader.check_gap(
                        partition, lineage, offset, min(ends, default=_NO_LIMIT)
                    )
                if found is None or (end_offset is not None and found[1] >= end_offset):
                    return
                place, offset = found
                is_checked = True
                try:
                    read = batches.read_next(partition, lineage, offset)
                except CorruptDataError as error:
                    read = self._read_damaged(place, offset, indexes, error)
                    is_checked = False
                if read.first_offset >= 0:
                    left_out = () if aborted is None else aborted.of(read)
                    pieces = self._decode(
                        read, offset, is_checked=is_checked, include_control=include_control
                    )
                    for piece in pieces:
                        rows = rows_between(piece, offset, end_offset)
                        # No reference is kept here, because the caller decides how long the columns
                        # live.
                        del piece
                        yield from committed_rows(rows, left_out)
                        del rows
                offset = read.next_offset
                del read

    def _decode(
        self, read: RemoteRead, offset: int, *, is_checked: bool, include_control: bool
    ) -> Iterator[RecordColumns]:
        """Yield the records of the batches that were read. ``is_checked`` is true if the checksums
        of the batches were verified before. Damage below `offset` is not reported."""
        segment = read.segment
        assert segment is not None

        def report(error: CorruptDataError, first_offset: int, last_offset: int) -> None:
            error = error.located(log_key(segment), shift=read.start_position)
            if last_offset >= offset:
                self._report_damage(_lost_records(segment, first_offset, last_offset, error))

        return decode_past_damage(
            memoryview(read.records),
            read.first_offset,
            read.next_offset,
            report,
            verify_crc=not is_checked,
            include_control=include_control,
            max_decompressed_bytes=self._config.log.batch_max_decompressed_bytes,
        )

    def _read_damaged(
        self, place: Place, offset: int, indexes: Indexes, error: CorruptDataError
    ) -> RemoteRead:
        """Return the damaged bytes of the index entry that holds `offset`. If there is no index,
        return no bytes, and report the rest of the segment as lost."""
        segment, report = place.segment, self._report_damage
        if report is raise_damage:
            raise error
        try:
            found = range_in(self._entries(segment, indexes), offset)
        except CorruptDataError:
            found = None
        if found is None:
            report(_lost_records(segment, offset, segment.end_offset, error))
            return RemoteRead(b"", -1, segment.end_offset + 1)
        start, end, first_offset, last_offset = found
        self._payer.charge(end - start)
        data = self._storage.fetch_log_segment(segment, start, end)
        return RemoteRead(data, first_offset, last_offset + 1, segment, start, end)

    def _open_batches(
        self,
        partition: TopicIdPartition,
        indexes: Indexes,
        start_offset: int,
        end_offset: int | None,
    ) -> _SequentialBatches:
        def open_reader(memory: FetchMemory, read_ahead: ReadAheadSettings) -> RemoteBatchReader:
            return RemoteBatchReader(
                self._storage,
                self._metadata,
                memory=memory,
                index_cache=indexes,
                index_files=self._index_files,
                alarm=self._alarm,
                on_gap=self._on_gap,
                memory_wait_ms=0,
                read_ahead=read_ahead,
            )

        segments = self._finished_segments(partition)
        expected_bytes = _bytes_between(segments, start_offset, end_offset)
        settings = self._config.remote_log
        return _SequentialBatches(
            open_reader, self._payer, self._fetch_bytes, expected_bytes, settings
        )


class _SequentialBatches:
    """Reads batches for one caller, one read after the other. Each caller has its own
    `RemoteBatchReader`. A child process that continues the read gets another `RemoteBatchReader`.

    The memory limit covers only bytes that are held here, not batches that the caller keeps.
    """

    def __init__(
        self,
        open_reader: Callable[[FetchMemory, ReadAheadSettings], RemoteBatchReader],
        payer: Payer,
        fetch_bytes: int,
        expected_bytes: int,
        settings: RemoteLogConfig,
    ) -> None:
        self._open_reader = open_reader
        self._payer = payer
        self._fetch_bytes = fetch_bytes
        self._memory_bytes = min(settings.fetch_memory_bytes, _MOST_MEMORY_BYTES)
        self._read_ahead = ReadAheadSettings(
            threads=min(settings.reader_threads, _MOST_THREADS),
            chunk_bytes=_FIRST_BYTES,
            max_window_bytes=min(expected_bytes, _MOST_WINDOW_BYTES),
        )
        self._max_bytes = min(_FIRST_BYTES, fetch_bytes)
        self._read_bytes = 0
        # The returned batches, by the permit that owns the bytes.
        self._kept: dict[int, weakref.ref[Permit]] = {}
        self._open()

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._memory = FetchMemory(self._memory_bytes, read_ahead_share=1.0)
        self.reader = self._open_reader(self._memory, self._read_ahead)

    def close(self) -> None:
        """Drop the chunks that were read ahead, and end the threads."""
        if self._process_id == os.getpid():
            self.reader.close()

    def read_next(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> RemoteRead:
        """Return the batches from `offset` on."""
        if self._process_id != os.getpid():
            # After a fork, the threads exist only in the parent process, and locks that they held
            # are never released here.
            self._open()
        self._memory.resize(self._memory_bytes + self._kept_bytes())
        while True:
            read = self.reader.read_batches(
                partition,
                lineage,
                offset,
                self._max_bytes,
                _NO_LIMIT,
                minimum_one=True,
                payer=self._payer,
            )
            if not read.refused:
                break
            # The caller keeps more bytes alive than the permits show, or the batch is very large.
            self._memory.resize(self._memory.limit_bytes + max(self._memory_bytes, _FIRST_BYTES))
        records = memoryview(read.records)
        if isinstance(records.obj, Permit):
            self._kept[id(records.obj)] = weakref.ref(records.obj)
        self._read_bytes += records.nbytes
        self._max_bytes = min(max(_FIRST_BYTES, _GROWTH * self._read_bytes), self._fetch_bytes)
        return read

    def _kept_bytes(self) -> int:
        """Return the bytes of the batches that the caller still holds."""
        alive = {key: owner for key, known in self._kept.items() if (owner := known()) is not None}
        self._kept = {key: self._kept[key] for key in alive}
        return sum(owner.size_bytes for owner in alive.values())


def _bytes_between(
    segments: Iterable[RemoteLogSegmentMetadata], start_offset: int, end_offset: int | None
) -> int:
    """Return about how many bytes lie between two offsets."""
    total = 0
    for one in segments:
        end = one.end_offset if end_offset is None else min(one.end_offset, end_offset - 1)
        offsets = end - max(one.start_offset, start_offset) + 1
        if offsets > 0:
            total += one.segment_size_bytes * offsets // (one.end_offset - one.start_offset + 1)
    return total


def _lost_records(
    segment: RemoteLogSegmentMetadata, first_offset: int, last_offset: int, error: CorruptDataError
) -> LostRecords:
    partition = segment.topic_id_partition
    return LostRecords(
        topic=partition.topic,
        partition=partition.partition,
        first_offset=first_offset,
        last_offset=last_offset,
        error=error,
    )
