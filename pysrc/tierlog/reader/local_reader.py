"""Reads partitions from the log directories of a running or stopped broker, and changes nothing
there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from tierlog.batches import BatchTable
from tierlog.columns import RecordColumns
from tierlog.config import LogConfig
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.files import SegmentHandle, read_small
from tierlog.log.index_files import OffsetIndex, read_offset_index
from tierlog.log.log_dir import LogDir, PartitionLog
from tierlog.log.records import DECODE_BUDGET_BYTES, decode_records
from tierlog.log.same_log import VanishedError, require_same_topic
from tierlog.log.segment import scan_segment
from tierlog.log.segment_checks import Misplaced, first_misplaced
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.committed import StableLog, committed_rows
from tierlog.reader.damage import (
    LostRecords,
    NextBatch,
    OnCorrupt,
    damage_handler,
    find_next_batch,
    raise_damage,
)
from tierlog.reader.log_reader import (
    FETCH_BYTES,
    PartitionSummary,
    SegmentSummary,
    rows_between,
)
from tierlog.reader.positions import late_rows
from tierlog.reader.types import IsolationLevel
from tierlog.types import StopReason

__all__ = ["LocalReader"]

_MAX_INDEX_BYTES = 64 << 20


class LocalReader:
    """Reads a broker's log directories. Records above the high watermark are read, too, because a
    directory does not show the high watermark of a running broker.

    A reader of committed records first reads the active segment once. The active segment shows the
    last stable offset, at which the reader stops, and its own aborted transactions.
    """

    def __init__(
        self,
        logs: LogDir,
        *,
        fetch_bytes: int = FETCH_BYTES,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        config: LogConfig | None = None,
        on_corrupt: OnCorrupt = "fail",
    ) -> None:
        """`config` limits the decompressed size of one batch. ``on_corrupt`` decides what happens
        at damage."""
        self._logs = logs
        self._report_damage = damage_handler(on_corrupt)
        self._config = config or LogConfig()
        self._fetch_bytes = fetch_bytes
        self._committed = isolation_level is IsolationLevel.READ_COMMITTED
        # Topic names by id, so that not all directories have to be searched.
        self._names: dict[str, str] = {}

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`."""
        return [
            PartitionSummary(
                topic=log.topic,
                partition=log.partition,
                topic_id=log.topic_id,
                log_start_offset=log.log_start_offset,
                log_end_offset=None,
                segment_count=len(log.segments),
                size_bytes=sum(segment.size_bytes for segment in log.segments),
            )
            for log in self._logs.partitions()
        ]

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """See `LogReader`."""
        log = self._find_log(topic, partition)
        found = []
        for segment in log.segments:
            end = segment.next_base_offset
            epochs: tuple[int, ...] = ()
            if log.leader_epochs is not None and end is not None:
                clipped = log.leader_epochs.clipped(segment.base_offset, end)
                epochs = tuple(entry.epoch for entry in clipped)
            found.append(
                SegmentSummary(
                    base_offset=segment.base_offset,
                    end_offset=None if end is None else end - 1,
                    size_bytes=segment.size_bytes,
                    max_timestamp_ms=None,
                    leader_epochs=epochs,
                    name=segment.log_path,
                    state="active" if segment.is_active else "rolled",
                )
            )
        return found

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`. The call scans the active segment to find the end of the log."""
        log = self._find_log(topic, partition)
        start = log.log_start_offset
        if self._committed:
            # A read reports the damage.
            fails = self._report_damage is raise_damage
            stable = StableLog.of(log, report=raise_damage if fails else lambda _: None)
            return stable.start_offset if start is None else start, stable.last_stable_offset
        if not log.segments:
            return start or 0, start or 0
        active = log.segments[-1]
        end = active.base_offset
        with active.open() as handle:
            table = scan_segment(handle, verify_crc=False)
        if len(table):
            end = int(table.last_offset[-1]) + 1
        return log.segments[0].base_offset if start is None else start, end

    def read(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int | None = None,
        *,
        stable: StableLog | None = None,
    ) -> Iterator[RecordColumns]:
        """See `LogReader`. ``stable`` is the log of a reader of committed records.

        Raises FileNotFoundError or VanishedError when segments or the whole topic were deleted
        meanwhile, even if there is another topic with the same name now.
        """
        log = self._find_log(topic, partition) if stable is None else stable.log
        if stable is None and self._committed:
            stable = StableLog.of(log, report=self._report_damage)
        if stable is not None:
            stable_end = stable.last_stable_offset
            end_offset = stable_end if end_offset is None else min(end_offset, stable_end)
        start = max(start_offset, log.log_start_offset or 0)
        is_open_ended = end_offset is None
        for segment in log.segments:
            following = segment.next_base_offset
            if following is not None and following <= start:
                continue
            if end_offset is not None and segment.base_offset >= end_offset:
                return
            aborted = stable.aborted_in(segment) if stable is not None else ()
            for records in self._read_segment(log, segment, start, end_offset):
                yield from committed_rows(rows_between(records, start, end_offset), aborted)
        if is_open_ended and stable is not None:
            # The read ended at the last stable offset, and records may be missing after it.
            with suppress(FileNotFoundError, VanishedError):
                _check_end(log)

    def check_end(self, topic: str, partition: int) -> None:
        """See `LogReader`. Raises CorruptDataError when the log in the directory ends before its
        high watermark, or before a batch that the offset index of the active segment lists."""
        _check_end(self._find_log(topic, partition))

    def topic_id(self, topic: str, partition: int) -> str | None:
        """Return the id of the topic with that name (or id); None when the topic is unknown."""
        try:
            log = self._find_log(topic, partition)
        except OutOfRangeError:
            return None
        if log.topic_id is not None:
            self._names[log.topic_id] = log.topic
        return log.topic_id

    def start_offset(self, topic: str, partition: int) -> int | None:
        """Return the first offset in the directory; None when the partition has no segment."""
        try:
            log = self._find_log(topic, partition)
        except OutOfRangeError:
            return None
        if not log.segments:
            return None
        return max(log.log_start_offset or 0, log.segments[0].base_offset)

    def recorded_log_start(self, topic: str, partition: int) -> int:
        """Return the log start offset in the broker's checkpoint; 0 when the checkpoint does not
        list the partition."""
        try:
            return self._find_log(topic, partition).recorded_log_start or 0
        except OutOfRangeError:
            return 0

    def stable_log(
        self, topic: str, partition: int, earlier: Callable[[int], bytes | None]
    ) -> StableLog:
        """Return the stable log of the partition now; ``earlier`` as in `ProducerStates`."""
        log = self._find_log(topic, partition)
        return StableLog.of(log, earlier, self._report_damage)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`. The search scans the batch headers of one segment after another."""
        log = self._find_log(topic, partition)
        start = log.log_start_offset or 0
        for segment in log.segments:
            with segment.open() as handle:
                table = scan_segment(handle, verify_crc=False)
            late = late_rows(table, timestamp_ms, start)
            if not late:
                continue
            begin = int(table.base_offset[late[0]])
            for records in self._read_segment(log, segment, begin, include_control=True):
                rows = np.flatnonzero(
                    (records.timestamp_ms >= timestamp_ms) & (records.offset >= start)
                )
                if len(rows):
                    return int(records.offset[rows[0]])
        return None

    def _find_log(self, topic: str, partition: int) -> PartitionLog:
        name = self._names.get(topic, topic)
        try:
            log = self._logs.partition(name, partition)
            if topic in (name, log.topic_id):
                return log
            raise OutOfRangeError(f"{log.directory}: expected topic {topic}, found {log.topic_id}")
        except OutOfRangeError:
            for log in self._logs.partitions():
                if log.partition == partition and topic == log.topic_id:
                    return log
            raise

    def _read_segment(
        self,
        log: PartitionLog,
        segment: SegmentFiles,
        offset: int,
        end_offset: int | None = None,
        *,
        include_control: bool = False,
    ) -> Iterator[RecordColumns]:
        """Yield the records from the batch that holds `offset` to the batch that holds
        `end_offset`. The records before a damaged batch are yielded before the error of that batch
        is raised. If the reader skips damage, the records after the batch are yielded, too."""
        with segment.open() as handle:
            require_same_topic(log)
            position, known = 0, max(offset, segment.base_offset)
            while position < handle.size_bytes and (end_offset is None or known < end_offset):
                try:
                    for records in self._read_sound(
                        log, segment, handle, position, known, end_offset, include_control
                    ):
                        position = records.batches.stop_position
                        known = max(known, int(records.batches.last_offset[-1]) + 1)
                        yield records
                        # Release these records before the next records are decoded.
                        del records
                    return
                except CorruptDataError as error:
                    position, known = self._pass_over(log, segment, handle, position, known, error)

    def _pass_over(
        self,
        log: PartitionLog,
        segment: SegmentFiles,
        handle: SegmentHandle,
        position: int,
        known: int,
        error: CorruptDataError,
    ) -> tuple[int, int]:
        """Report the damage of `error`. Return the position and the offset at which the read
        continues. The batches up to `position` are sound, and the first lost offset is `known`."""
        size_bytes, next_base = handle.size_bytes, segment.next_base_offset
        last = None if next_base is None else next_base - 1
        after = NextBatch(size_bytes, max(known, next_base or 0), last)
        # The batch that begins at `start` holds the byte of the error.
        start = scan_segment(handle, position, error.position, verify_crc=False).stop_position
        if start < size_bytes:
            after = find_next_batch(handle, size_bytes, start, known, next_base)
        if after.last_lost_offset is not None and after.last_lost_offset < known:
            # All damaged batches are below the offsets to read.
            return after.position, known
        self._report_damage(
            LostRecords(
                topic=log.topic,
                partition=log.partition,
                first_offset=known,
                last_offset=after.last_lost_offset,
                error=error,
            )
        )
        return after.position, after.offset

    def _read_sound(
        self,
        log: PartitionLog,
        segment: SegmentFiles,
        handle: SegmentHandle,
        position: int,
        offset: int,
        end_offset: int | None,
        include_control: bool,
    ) -> Iterator[RecordColumns]:
        """Yield the records of the batches after `position`, beginning with the batch that holds
        `offset`, until a damaged batch."""
        index = _offset_index(log, segment)
        table = scan_segment(handle, position, verify_crc=False)
        misplaced = _first_misplaced(log, segment, table, index, is_start=not position)
        sound = len(table) if misplaced is None else misplaced.sound_batches
        bases, ends = table.base_offset[:sound], table.last_offset[:sound]
        starts = np.append(table.position, table.stop_position)
        position = int(starts[np.searchsorted(ends, offset)])
        end_position = int(starts[sound])
        if end_offset is not None:
            end_position = int(starts[np.searchsorted(bases, end_offset)])
        window = self._fetch_bytes
        while position < end_position:
            end = min(position + window, end_position)
            records = self._decode(segment, handle, position, end, include_control)
            batches = records.batches
            read_bytes = batches.stop_position - position
            if not read_bytes:
                if end == end_position:
                    raise _changed_error(segment, position)
                # One batch is larger than the window.
                window *= 2
                continue
            if batches.stop_reason is StopReason.MEMORY_BUDGET:
                window = 2 * read_bytes
            else:
                window = max(window, min(2 * window, self._fetch_bytes))
            position += read_bytes
            yield records
            del records, batches
        known_end = int(ends[-1]) + 1 if sound else offset
        if end_offset is None or known_end < end_offset:
            if misplaced is not None:
                hint = _missing_hint(segment, known_end) if sound == len(table) else None
                raise misplaced.problem.as_error(segment.log_path, hint)
            _require_sound_end(segment, table)
            _require_high_watermark(log, segment, table)

    def _decode(
        self,
        segment: SegmentFiles,
        handle: SegmentHandle,
        start: int,
        end: int,
        include_control: bool,
    ) -> RecordColumns:
        """Decode sound batches within the memory budget."""

        def decode(end: int) -> RecordColumns:
            return decode_records(
                handle,
                start,
                end,
                include_control=include_control,
                max_decompressed_bytes=self._config.batch_max_decompressed_bytes,
                budget_bytes=DECODE_BUDGET_BYTES,
            )

        try:
            return decode(end)
        except CorruptDataError as error:
            # Decode only up to the damaged byte, so that the damaged batch is cut off.
            records = decode(error.position)
            if len(records.batches):
                return records
            raise error.located(segment.log_path) from None


def _missing_hint(segment: SegmentFiles, known_end: int) -> str:
    """Return a hint for a gap between sound batches and the next segment. The directory does not
    show whether the end of the file or the next file is missing, so both cases are damage."""
    last = "on" if segment.next_base_offset is None else f"to {segment.next_base_offset - 1}"
    return (
        f"offsets {known_end} {last} are in no file: the end of this one or the files after it are "
        "missing; read another replica or the store, --on-corrupt skip reads past them"
    )


def _check_end(log: PartitionLog) -> None:
    """Raise CorruptDataError if the active segment ends before an offset that other files of the
    directory contain."""
    if not log.segments:
        return
    active = log.segments[-1]
    with active.open() as handle:
        require_same_topic(log)
        index = _offset_index(log, active)
        table = scan_segment(handle, verify_crc=False)
    misplaced = _first_misplaced(log, active, table, index)
    if misplaced is not None:
        raise misplaced.problem.as_error(active.log_path)
    _require_sound_end(active, table)
    _require_high_watermark(log, active, table)


def _require_high_watermark(log: PartitionLog, segment: SegmentFiles, table: BatchTable) -> None:
    """Raise CorruptDataError if the log ends below the high watermark. Consumers may have read all
    records below the high watermark."""
    end = int(table.last_offset[-1]) + 1 if len(table) else segment.base_offset
    if segment.is_active and log.high_watermark is not None and end < log.high_watermark:
        raise CorruptDataError(
            reason="log_too_short",
            path=segment.log_path,
            position=table.stop_position,
            expected=f"offsets up to the high watermark {log.high_watermark}",
            found=f"an end at offset {end}",
            hint="records that were committed are missing: read another replica",
        )


def _changed_error(segment: SegmentFiles, position: int) -> CorruptDataError:
    return CorruptDataError(
        reason="changed",
        path=segment.log_path,
        position=position,
        expected="the batch that was there when the segment was opened",
        found="other bytes",
    )


def _offset_index(log: PartitionLog, segment: SegmentFiles) -> OffsetIndex | None:
    """Return the offset index. Return None when the index is missing or damaged, or when the
    batches alone show all damage.

    The index is read before the batches, so that each entry points at a batch in the log.
    """
    path = segment.offset_index_path
    if path is None or (log.compacted is False and not segment.is_active):
        return None
    try:
        data = read_small(path, _MAX_INDEX_BYTES)
        return read_offset_index(data, segment.base_offset, tail="anything")
    except (CorruptDataError, OSError):
        return None


def _first_misplaced(
    log: PartitionLog,
    segment: SegmentFiles,
    table: BatchTable,
    index: OffsetIndex | None,
    *,
    is_start: bool = True,
) -> Misplaced | None:
    """Return the first batch that contradicts the segment's name, neighbours or offset index.

    ``is_start`` says that the table begins at the start of the segment, not after a damaged batch.
    """
    begin = segment.base_offset if is_start or not len(table) else int(table.base_offset[0])
    return first_misplaced(
        table,
        segment_base=begin,
        next_base=segment.next_base_offset,
        allow_gaps=log.compacted is not False,
        index=index,
    )


def _require_sound_end(segment: SegmentFiles, table: BatchTable) -> None:
    """Raise CorruptDataError for a damaged end. The active segment of a running or killed broker
    may end with a torn batch or zeros."""
    harmless = (StopReason.TORN_TAIL, StopReason.ZERO_TAIL) if segment.is_active else ()
    if table.stop_reason not in (StopReason.END, *harmless):
        raise CorruptDataError(
            reason=table.stop_reason.value,
            path=segment.log_path,
            position=table.stop_position,
            expected=table.stop_expected,
            found=table.stop_found,
        )
