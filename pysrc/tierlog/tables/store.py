"""The catalog of a store's segments, from its listing and `.indexes` objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.committed import StableLog
from tierlog.reader.gaps import KnownGaps, gap_error, gap_start_in, unknown_end
from tierlog.reader.lineage import newest_segment, ranges_in_lineage
from tierlog.reader.remote_read import RemoteRead
from tierlog.reader.store_listing import StoreListing
from tierlog.reader.store_reader import StoreReader
from tierlog.reader.types import IsolationLevel
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.bucket import Problem, ProblemReason
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import (
    MAX_TOPIC_LABEL,
    ObjectKey,
    indexes_key,
    log_key,
    parse_key,
)
from tierlog.remote.segment.log_index import RemoteLogIndexEntries, decode_remote_log_index
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.urls import open_store
from tierlog.tables.filters import Wanted
from tierlog.tables.findings import Findings
from tierlog.tables.options import SourceOptions, View
from tierlog.tables.plan import Finding, Mark, Partition, ReadRange, overlapping, share
from tierlog.types import TopicIdPartition

__all__ = ["StoreCatalog", "log_index_entries"]

_PARALLEL_READS = 8


class StoreCatalog:
    """The catalog of a store. See `Catalog`."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        listing: StoreListing,
        options: SourceOptions,
        *,
        settled: bool,
    ) -> None:
        committed, uncommitted = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        self._storage = storage
        self._listing = listing
        self._metadata = listing.metadata
        self._reader = StoreReader(
            storage,
            listing.metadata,
            isolation_level=committed if options.read_committed else uncommitted,
            config=options.config,
        )
        self._read_committed = options.read_committed
        self._settled = settled
        self._findings = Findings(options.fail_on_corrupt)
        # Other views than records and batches show missing offsets and do not fail.
        self._fail_on_gap = options.fail_on_gap and options.view in (View.RECORDS, View.BATCHES)
        self._gaps = KnownGaps(listing.metadata, gap_start_in(storage))
        self._lineages: dict[Partition, LeaderEpochs] = {}

    @classmethod
    def open(cls, url: str, options: SourceOptions, *, settled: bool = False) -> StoreCatalog:
        """List the store and read the description of each segment of the selected topics.

        A stream sets ``settled``. Segments that are still being copied are then left to a later
        trigger of the stream.
        """
        store = open_store(url)
        problems: list[Problem] = []
        listing = StoreListing(
            store,
            lambda key: _may_be_wanted(options, key),
            None if options.fail_on_corrupt else problems.append,
        )
        catalog = cls(ObjectStorageManager(store), listing, options, settled=settled)
        catalog._findings.found += [
            _finding_of(problem)
            for problem in problems
            if problem.hides_segment or catalog._may_hide(problem)
        ]
        return catalog

    def _may_hide(self, problem: Problem) -> bool:
        """Return whether the problem is a `.log` object without an `.indexes` object (an active
        copy or a damaged segment) whose first offset no finished segment holds."""
        if problem.reason is not ProblemReason.LOG_WITHOUT_INDEXES:
            return False
        key = parse_key(problem.key)
        return not any(
            segment.start_offset <= key.base_offset <= segment.end_offset
            for one in self._metadata.partitions()
            if (one.topic_id, one.partition) == (key.topic_id, key.partition)
            for segment in self._finished(one)
        )

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
        """See `Catalog`. The range is empty when the leader epochs of the newest segment are
        damaged."""
        try:
            return self._reader.bounds(_topic_id(partition), partition.partition)
        except CorruptDataError as error:
            self._findings.note(error, partition)
            return 0, 0

    def check_end(self, partition: Partition) -> None:
        """See `Catalog`. Raises GapError when a `.log` object behind the newest segment has no
        `.indexes` object. With ``settled``, no error is raised, because a later trigger reads that
        segment when its copy is finished."""
        if self._settled or not self._fail_on_gap:
            return
        wanted = _identity(partition)
        end = max(one.end_offset for one in self._finished(wanted)) + 1
        if self._listing.has_unfinished(wanted, end):
            raise unknown_end(wanted, end)

    def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> int | None:
        """See `Catalog`."""
        return self._reader.offset_for_timestamp(
            _topic_id(partition), partition.partition, timestamp_ms
        )

    def ranges(
        self, partition: Partition, start_offset: int, end_offset: int, wanted: Wanted
    ) -> list[ReadRange]:
        """See `Catalog`. If several segments have the same offsets, the offsets are read only
        once."""
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
            offset = end
            if wanted.may_have(segment.max_timestamp_ms):
                found.append(_remote_range(partition, segment, start, end))
        self._check_gaps(partition, lineage, start_offset, end_offset)
        try:
            return self._without_aborted(partition, lineage, found)
        except CorruptDataError as error:
            # If a transaction index is damaged, it is unknown which records were aborted.
            self._findings.note(error, partition, start_offset)
            return []

    def marks(self, ranges: Sequence[ReadRange]) -> Iterable[Sequence[Mark]]:
        """See `Catalog`. Makes several requests at a time."""
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
        """Return the leader epochs in the `.indexes` object of the newest segment."""
        known = self._lineages.get(partition)
        if known is None:
            segments = self._finished(_identity(partition))
            newest = newest_segment(segments)
            kind = IndexKind.LEADER_EPOCH
            section = self._storage.fetch_indexes(newest, [kind])[kind]
            known = parse_leader_epochs(bytes(section), log_key(newest))
            self._lineages[partition] = known
        return known

    def _check_gaps(
        self, partition: Partition, lineage: LeaderEpochs, start_offset: int, end_offset: int
    ) -> None:
        """Raise GapError when the store lacks some of the offsets. Note a finding instead if gaps
        are skipped, or if a segment that was already reported as damaged has these offsets."""
        wanted = _identity(partition)
        for gap in self._gaps.of(wanted, lineage, end_offset=end_offset):
            first, last = max(gap.first_offset, start_offset), min(gap.last_offset, end_offset - 1)
            if first > last:
                continue
            missing = gap_error(wanted, gap.first_offset, gap.last_offset)
            if self._fail_on_gap and not self._listing.has_reported(missing):
                raise missing
            error = CorruptDataError(
                reason="missing_segment",
                path=f"{self._storage!r}",
                position=0,
                expected=f"offsets {first} to {last} of {partition}",
                found="no segment that holds them",
            )
            self._findings.note(error, partition, first, last + 1, may_fail=False)

    def _without_aborted(
        self, partition: Partition, lineage: LeaderEpochs, ranges: list[ReadRange]
    ) -> list[ReadRange]:
        """Return the ranges, each with the aborted transactions whose records are left out."""
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
    """Return the remoteLogIndex of a segment; None when it is damaged."""
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
        size_bytes=share(segment.segment_size_bytes, end - start, offsets),
    )


def _may_be_wanted(options: SourceOptions, key: ObjectKey) -> bool:
    """Return whether a segment may be selected, judging only by its key. The key has only the first
    part of a long topic name."""
    topics = options.topics
    cut_short = len(key.topic_label) == MAX_TOPIC_LABEL
    names = {name[:MAX_TOPIC_LABEL] for name in topics.required}
    if topics.pattern is not None or not names:
        return cut_short or topics.wants(key.topic_label, key.topic_id, key.partition)
    return key.topic_label in names or key.topic_id in names


def _finding_of(problem: Problem) -> Finding:
    error = CorruptDataError(
        reason=problem.reason.value,
        path=problem.key,
        position=0,
        expected=problem.expected,
        found=problem.found,
    )
    return Finding(partition=Partition("", None, -1), error=error)


def _identity(partition: Partition) -> TopicIdPartition:
    return TopicIdPartition(
        topic_id=_topic_id(partition), topic=partition.topic, partition=partition.partition
    )


def _topic_id(partition: Partition) -> str:
    assert partition.topic_id is not None
    return partition.topic_id
