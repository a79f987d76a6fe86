"""The catalog of the segments in log directories."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    TopicPartition,
    read_offset_checkpoint,
)
from tierlog.log.files import read_small
from tierlog.log.index_files import AbortedTransaction, OffsetIndex, read_offset_index
from tierlog.log.log_dir import LogDir, PartitionLog
from tierlog.log.names import Skipped, SkipReason, parse_partition_directory
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.committed import StableLog
from tierlog.reader.local_batches import LocalRead
from tierlog.reader.local_reader import LocalReader
from tierlog.tables.filters import Wanted
from tierlog.tables.findings import Findings
from tierlog.tables.options import TopicChoice
from tierlog.tables.plan import Finding, Mark, Partition, ReadRange, overlapping, share
from tierlog.types import StopReason

__all__ = ["LogDirCatalog", "offset_index"]

_MAX_INDEX_BYTES = 64 << 20
_MAX_MARKS = 1024
# Files that are skipped for these reasons have no records of the log.
_HARMLESS = (SkipReason.UNKNOWN_NAME, SkipReason.SWAP, SkipReason.PARTITION_STRAY)
# If one of these checkpoints is damaged, it is unknown where logs start and end.
_CHECKPOINTS = (HIGH_WATERMARKS, LOG_START_OFFSETS, CLEANER_OFFSETS)
_NO_PARTITION = Partition("", None, -1)
_HARMLESS_ENDS = (StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL)


class LogDirCatalog:
    """The log directories of a broker, running or not.

    A broker stores its high watermark only every few seconds, so records above the stored high
    watermark are read, too. With ``settled``, records above the high watermark are not read,
    because a new leader may replace them.
    """

    def __init__(
        self,
        logs: LogDir,
        topics: TopicChoice,
        *,
        read_committed: bool,
        fail_on_corrupt: bool,
        settled: bool = False,
    ) -> None:
        listing = logs.listing()
        self._reader = LocalReader(logs)
        self._read_committed = read_committed
        self._settled = settled
        self._findings = Findings(fail_on_corrupt)
        self._logs = {
            Partition(log.topic, log.topic_id, log.partition): log for log in listing.partitions
        }
        for skipped in listing.skipped:
            name = os.path.basename(skipped.path)
            found = parse_partition_directory(name)
            if found and topics.wants(found.topic, None, found.partition):
                self._note_skipped(skipped, Partition(found.topic, None, found.partition))
            elif name in _CHECKPOINTS:
                self._note_skipped(skipped, _NO_PARTITION)
        for problem in listing.problems:
            if os.path.basename(problem.path or "") in _CHECKPOINTS:
                self._findings.note(problem, _NO_PARTITION)
        for root in logs.paths:
            for gone in _gone(root):
                if topics.wants(gone.topic, None, gone.partition) and not self._has(gone):
                    self._note_gone(root, Partition(gone.topic, None, gone.partition))
        self._stable: dict[Partition, StableLog] = {}

    def partitions(self) -> list[Partition]:
        """See `Catalog`."""
        return list(self._logs)

    def findings(self) -> list[Finding]:
        """See `Catalog`."""
        return list(self._findings.found)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `Catalog`. The call reads the end of the active segment. For a read of committed
        records, the call reads the whole active segment. If this segment is damaged, no record of
        the log can be read. With ``settled``, if the high watermark is unknown, the bounds cover
        only the rolled segments."""
        start, end = self._bounds(partition)
        log = self._logs[partition]
        if self._settled and log.segments:
            last = log.segments[-1].base_offset
            end = min(end, last if log.high_watermark is None else log.high_watermark)
        return start, max(start, end)

    def _bounds(self, partition: Partition) -> tuple[int, int]:
        log = self._logs[partition]
        for skipped in log.skipped:
            self._note_skipped(skipped, partition)
        for problem in log.problems:
            self._findings.note(problem, partition)
        start = log.log_start_offset or 0
        if log.segments:
            first = log.segments[0].base_offset
            self._note_missing(log, partition, _known_start(log), first)
            start = max(start, first)
        try:
            end = max(start, self._readable_end(partition))
        except CorruptDataError as error:
            self._findings.note(error, partition, start)
            return start, start
        if log.high_watermark is not None and end < log.high_watermark:
            # Consumers may have read all records below the high watermark.
            known_end = max(start, self._end_offset(partition))
            # If the end of a transaction is missing, no committed record after its start is read.
            self._note_missing(log, partition, known_end, log.high_watermark, unread_from=end)
        return start, end

    def _readable_end(self, partition: Partition) -> int:
        """Return the end of the readable records. Raises CorruptDataError when it is unknown which
        records are committed."""
        log = self._logs[partition]
        if not self._read_committed or not log.segments:
            return self._end_offset(partition)
        stable = self._stable[partition] = StableLog.of(log)
        _check_whole(log.segments[-1], self._end_offset(partition))
        return stable.last_stable_offset

    def check_end(self, partition: Partition) -> None:
        """See `Catalog`. There is nothing to check, because a log in a directory ends with its last
        file."""

    def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> int | None:
        """See `Catalog`."""
        return self._reader.offset_for_timestamp(partition.topic, partition.partition, timestamp_ms)

    def ranges(
        self, partition: Partition, start_offset: int, end_offset: int, wanted: Wanted
    ) -> list[ReadRange]:
        """See `Catalog`. The timestamps in `wanted` are ignored, because a broker's time index may
        be wrong."""
        log = self._logs[partition]
        try:
            aborted = self._aborted(partition, start_offset, end_offset)
        except CorruptDataError as error:
            # If a transaction index is damaged, it is unknown which records were aborted.
            self._findings.note(error, partition, start_offset, end_offset)
            return []
        found = []
        offset = log.segments[0].base_offset if log.segments else end_offset
        for segment in log.segments:
            self._note_missing(log, partition, max(offset, start_offset), segment.base_offset)
            after = end_offset if segment.next_base_offset is None else segment.next_base_offset
            offset = after
            start, end = max(start_offset, segment.base_offset), min(end_offset, after)
            if start < end:
                found.append(
                    ReadRange(
                        partition=partition,
                        segment=segment,
                        start_offset=start,
                        end_offset=end,
                        size_bytes=share(
                            segment.size_bytes, end - start, after - segment.base_offset
                        ),
                        aborted=overlapping(aborted, start, end),
                        has_all=log.compacted is False,
                    )
                )
        return found

    def marks(self, ranges: Sequence[ReadRange]) -> Iterator[Sequence[Mark]]:
        """See `Catalog`."""
        for one in ranges:
            assert isinstance(one.segment, SegmentFiles)
            yield _marks_of(one.segment)

    def _note_skipped(self, skipped: Skipped, partition: Partition) -> None:
        """Note a skipped file that may have records. The reasons have the same names as in `tierlog
        verify`."""
        if skipped.reason.routine or skipped.reason in _HARMLESS:
            return
        error = CorruptDataError(
            reason=skipped.reason.name.lower(),
            path=skipped.path,
            position=0,
            expected="files of a log",
            found=skipped.reason.value + (f" ({skipped.detail})" if skipped.detail else ""),
        )
        self._findings.note(error, partition)

    def _has(self, wanted: TopicPartition) -> bool:
        return any((one.topic, one.partition) == wanted for one in self._logs)

    def _note_gone(self, root: str, partition: Partition) -> None:
        error = CorruptDataError(
            reason="missing_partition",
            path=os.path.join(root, str(partition)),
            position=0,
            expected="the directory of a partition that the checkpoints name",
            found="none",
        )
        self._findings.note(error, partition)

    def _note_missing(
        self,
        log: PartitionLog,
        partition: Partition,
        start_offset: int,
        end_offset: int,
        *,
        unread_from: int | None = None,
    ) -> None:
        """Note that no file has the offsets from `start_offset` up to `end_offset` (exclusive),
        although another file or the high watermark shows that they existed."""
        if start_offset < end_offset:
            error = CorruptDataError(
                reason="missing_segment",
                path=log.directory,
                position=0,
                expected=f"offsets {start_offset} to {end_offset - 1}",
                found="no segment that holds them",
                hint="if the broker tiers by itself, they are in its tier; "
                "onCorrupt=quarantine reads the others",
            )
            unread = start_offset if unread_from is None else unread_from
            self._findings.note(error, partition, unread, end_offset)

    def _end_offset(self, partition: Partition) -> int:
        """Return the offset after the last batch of the active segment; 0 when there are no
        segments."""
        segments = self._logs[partition].segments
        if not segments:
            return 0
        active = segments[-1]
        index = offset_index(active)
        with active.open() as handle:
            for position in (0,) if index is None else (int(index.position[-1]), 0):
                table = scan_segment(handle, position, verify_crc=False)
                if len(table) and int(table.last_offset[-1]) >= active.base_offset:
                    break
        end = int(table.last_offset[-1]) + 1 if len(table) else active.base_offset
        if table.stop_reason not in _HARMLESS_ENDS:
            self._findings.note(table.stop_error(active.log_path), partition, end)
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


def _gone(root: str) -> Iterator[TopicPartition]:
    """Yield the partitions that both checkpoints of a log directory name, but that have no
    directory. A broker that deletes or moves a partition removes its recovery point at once, so
    such a partition is not yielded."""
    try:
        named = [
            read_offset_checkpoint(os.path.join(root, name))
            for name in (HIGH_WATERMARKS, RECOVERY_POINTS)
        ]
    except (CorruptDataError, OSError):
        return
    for one in sorted(named[0].keys() & named[1].keys()):
        if not os.path.lexists(os.path.join(root, f"{one.topic}-{one.partition}")):
            yield one


def _known_start(log: PartitionLog) -> int:
    """Return the first offset that the log should have.

    A broker that deletes segments also raises the start of the first leader epoch. If this epoch
    starts below the first segment, segments are missing that the broker has not deleted."""
    start = log.segments[0].base_offset
    epochs = log.leader_epochs.entries if log.leader_epochs else ()
    # If the log start offset is below the first segment, the offsets in between are in the remote
    # tier. If the log start offset is above the start of the first segment, this segment also has
    # deleted offsets.
    if not epochs or log.log_start_offset != start:
        return start
    return min(start, epochs[0].start_offset)


def _check_whole(active: SegmentFiles, end: int) -> None:
    """Raise CorruptDataError when a scan from the start of the active segment stops before offset
    `end`. A batch with a wrong length stops the scan, although an index may lead to the batches
    after that batch."""
    with active.open() as handle:
        table = scan_segment(handle, verify_crc=False)
    if end > (int(table.last_offset[-1]) + 1 if len(table) else active.base_offset):
        raise table.stop_error(active.log_path)


def _segment_of(log: PartitionLog, offset: int) -> SegmentFiles:
    return next(
        (one for one in reversed(log.segments) if one.base_offset <= offset), log.segments[0]
    )


def offset_index(segment: SegmentFiles) -> OffsetIndex | None:
    """Return the broker's offset index, which may be wrong; None when it is damaged, missing or
    empty."""
    path = segment.offset_index_path
    if path is None:
        return None
    try:
        found = read_offset_index(read_small(path, _MAX_INDEX_BYTES), segment.base_offset)
    except (CorruptDataError, OSError):
        return None
    return found if len(found.offset) else None


def _marks_of(segment: SegmentFiles) -> list[Mark]:
    """Return at most `_MAX_MARKS` entries of the segment's offset index, evenly spaced."""
    index = offset_index(segment)
    if index is None:
        return []
    step = -(-len(index.offset) // _MAX_MARKS)
    return list(map(Mark, index.offset[::step].tolist(), index.position[::step].tolist()))
