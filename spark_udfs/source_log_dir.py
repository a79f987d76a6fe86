"""Log directories as a catalog: what lies there, and what a broker's offset index says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_udfs.source_filters import Wanted
from spark_udfs.source_findings import Findings
from spark_udfs.source_plan import Finding, Mark, Partition, ReadRange, overlapping, share
from tierlog.errors import CorruptDataError
from tierlog.log.files import read_small
from tierlog.log.index_files import AbortedTransaction, OffsetIndex, read_offset_index
from tierlog.log.log_dir import LogDir, PartitionLog
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.tiering.committed import StableLog
from tierlog.tiering.fetch.aborted import TransactionReader
from tierlog.tiering.fetch.local import LocalRead
from tierlog.tiering.local_reader import LocalReader
from tierlog.types import StopReason

__all__ = ["LogDirCatalog", "offset_index"]

_MAX_INDEX_BYTES = 64 << 20
_MAX_MARKS = 1024
_HARMLESS_ENDS = (StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL)


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
        self._findings = Findings(fail_on_corrupt)
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
        """See `Catalog`."""
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
