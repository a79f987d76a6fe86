"""What lies at the path of a read: segments of log directories, or of a store.

A catalog is one look: whatever is asked of it later is answered by what was there then. Damage is
a `Finding` and takes what it hides out of the read; with ``fail_on_corrupt`` it is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_udfs.source_filters import Wanted
from spark_udfs.source_options import SourceOptions
from spark_udfs.source_plan import Catalog, Finding, Mark, Partition, ReadRange, overlapping
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.files import read_small
from tierlog.log.index_files import AbortedTransaction, OffsetIndex, read_offset_index
from tierlog.log.log_dir import LogDir, PartitionLog, open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.bucket import Problem, bucket_metadata
from tierlog.remote.indexes import IndexKind
from tierlog.remote.layout import MAX_TOPIC_LABEL, ObjectKey, indexes_key, log_key
from tierlog.remote.log_index import RemoteLogIndexEntries, decode_remote_log_index
from tierlog.remote.metadata import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.storage import RemoteStorageManager
from tierlog.remote.store import open_store
from tierlog.tiering.committed import StableLog
from tierlog.tiering.fetch.aborted import TransactionReader
from tierlog.tiering.fetch.local import LocalRead
from tierlog.tiering.fetch.remote import RemoteRead
from tierlog.tiering.fetch.types import IsolationLevel
from tierlog.tiering.lineage import ranges_in_lineage
from tierlog.tiering.local_reader import LocalReader
from tierlog.tiering.store_reader import StoreReader
from tierlog.tools.sources import Source, SourceKind, source_of
from tierlog.types import StopReason, TopicIdPartition

__all__ = [
    "LogDirCatalog",
    "StoreCatalog",
    "log_index_entries",
    "offset_index",
    "open_catalog",
    "open_storage",
]

_PARALLEL_READS = 8
_MAX_INDEX_BYTES = 64 << 20
_MAX_MARKS = 1024
_HARMLESS_ENDS = (StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL)


def open_catalog(options: SourceOptions, *, settled: bool = False) -> Catalog:
    """Looks at the path; ConfigError, OSError or RemoteStorageError when that cannot be done.

    ``settled``: log directories end where the log is known to stay as it is."""
    source = _source(options.path)
    if source.is_store:
        return StoreCatalog.open(source.location, options)
    return LogDirCatalog(
        open_log_dir(*_folders(source.location)),
        read_committed=options.read_committed,
        fail_on_corrupt=options.fail_on_corrupt,
        settled=settled,
    )


def open_storage(path: str) -> RemoteStorageManager | None:
    """The storage of a store, None for log directories. Its clients belong to this process."""
    source = _source(path)
    return RemoteStorageManager(open_store(source.location)) if source.is_store else None


def _source(path: str) -> Source:
    if len(_folders(path)) > 1:
        return Source(SourceKind.LOG_DIR, path)
    return source_of(path)


def _folders(path: str) -> list[str]:
    """Several directories by commas, as in a broker's ``log.dirs``."""
    if "://" in path or os.path.lexists(path):
        return [path]
    return [part.strip() for part in path.split(",") if part.strip()]


class _Findings:
    """Damage as findings, or as errors."""

    def __init__(self, fail_on_corrupt: bool) -> None:
        self._fail_on_corrupt = fail_on_corrupt
        self.found: list[Finding] = []

    def note(
        self, error: CorruptDataError, partition: Partition, start_offset: int | None = None
    ) -> None:
        """Notes what is wrong, or raises it."""
        if self._fail_on_corrupt:
            raise error
        self.found.append(Finding.of(error, partition, start_offset))


# -- log directories


class LogDirCatalog:
    """The log directories of a broker, running or not.

    A broker writes its high watermark down every few seconds only, so what lies above is read as
    well, unless it has to be ``settled``: after a change of leaders it may be another.
    """

    def __init__(
        self, logs: LogDir, *, read_committed: bool, fail_on_corrupt: bool, settled: bool = False
    ) -> None:
        self._reader = LocalReader(logs)
        self._read_committed = read_committed
        self._settled = settled
        self._findings = _Findings(fail_on_corrupt)
        self._logs = {
            Partition(log.topic, log.topic_id, log.partition): log for log in logs.partitions()
        }
        self._stable: dict[Partition, StableLog] = {}

    def partitions(self) -> list[Partition]:
        """See `Catalog`."""
        return list(self._logs)

    def findings(self) -> list[Finding]:
        """See `Catalog`."""
        return list(self._findings.found)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `Catalog`. Of the active segment the end is read; for committed records all of it,
        and nothing of the log can be read when that is damaged. The rolled segments alone are
        settled where the high watermark is not known."""
        start, end = self._bounds(partition)
        log = self._logs[partition]
        if self._settled and log.segments:
            last = log.segments[-1].base_offset
            end = min(end, last if log.high_watermark is None else log.high_watermark)
        return start, max(start, end)

    def _bounds(self, partition: Partition) -> tuple[int, int]:
        log = self._logs[partition]
        start = log.log_start_offset or 0
        if not log.segments:
            return start, start
        start = max(start, log.segments[0].base_offset)
        if not self._read_committed:
            return start, max(start, self._end_offset(partition, log.segments[-1]))
        try:
            stable = self._stable[partition] = StableLog.of(log)
        except CorruptDataError as error:
            self._findings.note(error, partition, start)
            return start, start
        return start, max(start, stable.last_stable_offset)

    def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> int | None:
        """See `Catalog`; damaged segments before it are passed over."""
        return self._reader.offset_for_timestamp(partition.topic, partition.partition, timestamp_ms)

    def ranges(
        self, partition: Partition, start_offset: int, end_offset: int, wanted: Wanted
    ) -> list[ReadRange]:
        """See `Catalog`. No index of a broker is trusted with the times in a segment."""
        log = self._logs[partition]
        aborted = self._aborted(partition, start_offset, end_offset)
        found = []
        for segment in log.segments:
            after = end_offset if segment.next_base_offset is None else segment.next_base_offset
            start, end = max(start_offset, segment.base_offset), min(end_offset, after)
            if start < end and segment.size_bytes:
                found.append(
                    ReadRange(
                        partition=partition,
                        segment=segment,
                        start_offset=start,
                        end_offset=end,
                        size_bytes=_share(
                            segment.size_bytes, end - start, after - segment.base_offset
                        ),
                        aborted=overlapping(aborted, start, end),
                    )
                )
        return found

    def marks(self, ranges: Sequence[ReadRange]) -> Iterator[Sequence[Mark]]:
        """See `Catalog`."""
        for one in ranges:
            assert isinstance(one.segment, SegmentFiles)
            yield _marks_of(one.segment)

    def _end_offset(self, partition: Partition, active: SegmentFiles) -> int:
        """After the last batch of the active segment."""
        index = offset_index(active)
        with active.open() as handle:
            for position in (0,) if index is None else (int(index.position[-1]), 0):
                table = scan_segment(handle, position, verify_crc=False)
                if len(table) and int(table.last_offset[-1]) >= active.base_offset:
                    break
        end = int(table.last_offset[-1]) + 1 if len(table) else active.base_offset
        if table.stop_reason not in _HARMLESS_ENDS:
            error = CorruptDataError(
                reason=table.stop_reason.value,
                path=active.log_path,
                position=table.stop_position,
                expected=table.stop_expected,
                found=table.stop_found,
            )
            self._findings.note(error, partition, end)
        return end

    def _aborted(
        self, partition: Partition, start_offset: int, end_offset: int
    ) -> tuple[AbortedTransaction, ...]:
        stable = self._stable.get(partition)
        if stable is None or not stable.log.segments:
            return ()
        first = _segment_of(stable.log, start_offset)
        read = LocalRead(
            first_offset=start_offset, next_offset=end_offset, segment_base=first.base_offset
        )
        return TransactionReader().of_local(stable.view(), read) + stable.active_aborted


def _segment_of(log: PartitionLog, offset: int) -> SegmentFiles:
    return next(
        (one for one in reversed(log.segments) if one.base_offset <= offset), log.segments[0]
    )


def offset_index(segment: SegmentFiles) -> OffsetIndex | None:
    """A broker's offset index, for what it is worth; None when it is damaged or not there."""
    path = segment.offset_index_path
    if path is None:
        return None
    try:
        found = read_offset_index(read_small(path, _MAX_INDEX_BYTES), segment.base_offset)
    except (CorruptDataError, OSError):
        return None
    return found if len(found.offset) else None


def _marks_of(segment: SegmentFiles) -> list[Mark]:
    """Some of the entries of its offset index, evenly."""
    index = offset_index(segment)
    if index is None:
        return []
    step = -(-len(index.offset) // _MAX_MARKS)
    return list(map(Mark, index.offset[::step].tolist(), index.position[::step].tolist()))


def _share(size_bytes: int, offsets: int, of_offsets: int) -> int:
    return max(1, size_bytes * offsets // max(1, of_offsets))


# -- stores


class StoreCatalog:
    """The segments of a store, by its own words."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        read_committed: bool,
        fail_on_corrupt: bool,
    ) -> None:
        isolation = IsolationLevel.READ_COMMITTED if read_committed else None
        self._storage = storage
        self._metadata = metadata
        self._reader = StoreReader(
            storage, metadata, isolation_level=isolation or IsolationLevel.READ_UNCOMMITTED
        )
        self._read_committed = read_committed
        self._findings = _Findings(fail_on_corrupt)
        self._lineages: dict[Partition, LeaderEpochs] = {}

    @classmethod
    def open(cls, url: str, options: SourceOptions) -> StoreCatalog:
        """Lists the store and asks it about each segment of the topics that are wanted."""
        store = open_store(url)
        problems: list[Problem] = []
        metadata = bucket_metadata(
            store,
            wanted=lambda key: _may_be_wanted(options, key),
            on_problem=None if options.fail_on_corrupt else problems.append,
        )
        catalog = cls(
            RemoteStorageManager(store),
            metadata,
            read_committed=options.read_committed,
            fail_on_corrupt=options.fail_on_corrupt,
        )
        catalog._findings.found += [
            _finding_of(problem) for problem in problems if problem.hides_segment
        ]
        return catalog

    def partitions(self) -> list[Partition]:
        """See `Catalog`."""
        return [
            Partition(one.topic, one.topic_id, one.partition)
            for one in self._metadata.partitions()
            if self._finished(one)
        ]

    def findings(self) -> list[Finding]:
        """See `Catalog`."""
        return list(self._findings.found)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `Catalog`; nothing of a partition whose newest segment does not say how the log
        went."""
        try:
            return self._reader.bounds(_topic_id(partition), partition.partition)
        except CorruptDataError as error:
            self._findings.note(error, partition)
            return 0, 0

    def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> int | None:
        """See `Catalog`."""
        return self._reader.offset_for_timestamp(
            _topic_id(partition), partition.partition, timestamp_ms
        )

    def ranges(
        self, partition: Partition, start_offset: int, end_offset: int, wanted: Wanted
    ) -> list[ReadRange]:
        """See `Catalog`; what several copies of a segment hold is read from one."""
        lineage = self._lineage(partition)
        parts = sorted(
            (max(first, start_offset), min(last + 1, end_offset), number, segment)
            for number, segment in enumerate(self._finished(_identity(partition)))
            for first, last in ranges_in_lineage(segment, lineage)
        )
        found: list[ReadRange] = []
        offset = start_offset
        for first, end, _, segment in parts:
            start = max(first, offset)
            if start >= end:
                continue
            self._note_gap(partition, offset, start)
            offset = end
            if wanted.may_have(segment.max_timestamp_ms):
                found.append(_remote_range(partition, segment, start, end))
        self._note_gap(partition, offset, end_offset)
        try:
            return self._without_aborted(partition, lineage, found)
        except CorruptDataError as error:
            # Without a transaction index nobody knows what was aborted.
            self._findings.note(error, partition, start_offset)
            return []

    def marks(self, ranges: Sequence[ReadRange]) -> Iterable[Sequence[Mark]]:
        """See `Catalog`; several requests at a time."""
        if not ranges:
            return []
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="tierlog-plan") as pool:
            return list(pool.map(self._marks, ranges))

    def _marks(self, one: ReadRange) -> Sequence[Mark]:
        assert isinstance(one.segment, RemoteLogSegmentMetadata)
        entries = log_index_entries(self._storage, one.segment)
        if entries is None:
            return []
        ends = entries.data_length.astype("int64").cumsum()
        return list(map(Mark, entries.first_offset.tolist(), [0, *ends.tolist()[:-1]]))

    def _finished(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            one
            for one in self._metadata.list(partition)
            if one.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    def _lineage(self, partition: Partition) -> LeaderEpochs:
        """The leader epochs that the newest segment was uploaded with."""
        known = self._lineages.get(partition)
        if known is None:
            segments = self._finished(_identity(partition))
            newest = max(segments, key=lambda one: (one.leader_epochs[-1][0], one.end_offset))
            kind = IndexKind.LEADER_EPOCH
            section = self._storage.fetch_indexes(newest, [kind])[kind]
            known = parse_leader_epochs(bytes(section), log_key(newest))
            self._lineages[partition] = known
        return known

    def _note_gap(self, partition: Partition, start_offset: int, end_offset: int) -> None:
        """Segments that follow each other leave no gap between their offsets."""
        if start_offset < end_offset:
            error = CorruptDataError(
                reason="missing_segment",
                path=f"{self._storage!r}",
                position=0,
                expected=f"offsets {start_offset} to {end_offset - 1} of {partition}",
                found="no segment that holds them",
            )
            self._findings.note(error, partition, start_offset)

    def _without_aborted(
        self, partition: Partition, lineage: LeaderEpochs, ranges: list[ReadRange]
    ) -> list[ReadRange]:
        """The ranges with what is to be left out of them."""
        if not self._read_committed or not ranges:
            return ranges
        first = ranges[0].segment
        assert isinstance(first, RemoteLogSegmentMetadata)
        view = StableLog.nothing(_identity(partition)).view(lineage)
        read = RemoteRead(
            records=b"",
            first_offset=ranges[0].start_offset,
            next_offset=ranges[-1].end_offset,
            segment=first,
        )
        transactions = TransactionReader(self._storage, self._metadata)
        aborted = transactions.of_remote(view, _identity(partition), read)
        return [
            one.leaving_out(overlapping(aborted, one.start_offset, one.end_offset))
            for one in ranges
        ]


def log_index_entries(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> RemoteLogIndexEntries | None:
    """The remoteLogIndex of a segment, None when it is damaged."""
    kind = IndexKind.REMOTE_LOG
    try:
        section = storage.fetch_indexes(segment, [kind])[kind]
        return decode_remote_log_index(section, path=indexes_key(segment))
    except CorruptDataError:
        return None


def _remote_range(
    partition: Partition, segment: RemoteLogSegmentMetadata, start: int, end: int
) -> ReadRange:
    offsets = segment.end_offset - segment.start_offset + 1
    return ReadRange(
        partition=partition,
        segment=segment,
        start_offset=start,
        end_offset=end,
        size_bytes=_share(segment.segment_size_bytes, end - start, offsets),
    )


def _may_be_wanted(options: SourceOptions, key: ObjectKey) -> bool:
    """By its key alone, which has a long topic name cut short."""
    topics = options.topics
    cut_short = len(key.topic_label) == MAX_TOPIC_LABEL
    names = {name[:MAX_TOPIC_LABEL] for name in topics.required}
    if topics.pattern is not None or not names:
        return cut_short or topics.wants(key.topic_label, key.topic_id, key.partition)
    return key.topic_label in names or key.topic_id in names


def _finding_of(problem: Problem) -> Finding:
    return Finding(
        partition=Partition("", None, -1),
        path=problem.key,
        reason=problem.reason.value,
        position=0,
        expected=problem.expected,
        found=problem.found,
    )


def _identity(partition: Partition) -> TopicIdPartition:
    return TopicIdPartition(
        topic_id=_topic_id(partition), topic=partition.topic, partition=partition.partition
    )


def _topic_id(partition: Partition) -> str:
    assert partition.topic_id is not None
    return partition.topic_id
