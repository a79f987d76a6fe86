"""Checks a broker's log directory. The check reads all files and changes nothing.

The check verifies the checksum of every batch, and the checkpoints. It also compares offsets with
file names and adjacent segments, leader epochs with their checkpoint, the index files with the
batches, and the log's end with the high watermark. After a damaged batch, the check continues at
the next position in the offset index, so that one damaged batch does not hide another. With
``deep``, the check also decodes every record, and looks for aborted transactions that the
transaction index lacks.

The broker may be running. If the broker changes files during the check, the findings about these
files are notes, not problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.files import StrPath, printable, read_small
from tierlog.log.log_dir import PartitionLog, Skipped, SkipReason, open_log_dir
from tierlog.log.rebuild import rebuild_indexes
from tierlog.log.records import MAX_DECOMPRESSED_BYTES, check_records
from tierlog.log.segment import scan_segment
from tierlog.log.segment_checks import Problem, check_batches
from tierlog.log.segment_files import SegmentFiles
from tierlog.tools.findings import Place, Report, Tally
from tierlog.tools.index_checks import (
    TAIL_FAULTS,
    check_aborts,
    check_offset_index,
    check_snapshot,
    check_time_index,
    check_txn_index,
    indexed_positions,
)
from tierlog.tools.progress import Progress, QuietProgress
from tierlog.types import StopReason

__all__ = ["verify_log_dir"]

# A broker refuses segment.index.bytes above 2^31 - 1, and most brokers have less than a hundredth
# of this value.
_INDEX_LIMIT_BYTES = 256 << 20

_RESTORE = (
    "the batches before this byte are sound; restore the segment from another replica or from "
    "the remote tier"
)
_TAIL = (
    "nothing to do: a running broker is still writing here; a stopped broker cuts this off when it "
    "starts"
)
_REBUILD = "stop the broker, remove this file and start it again: it rebuilds indexes from the log"
_INDEX_TAIL = "nothing to do: the broker rebuilds the index when it starts after a crash"
_CHECKPOINT = "restore the file from a backup, or remove it with the broker stopped"
_LOOK_AGAIN = "nothing to do: run verify again if the broker is running"

_WRITTEN_SO = (
    "the checksum of the batch is right, so the producer wrote it like this: compare it with "
    "another replica, and check the producer"
)
_CHANGED = ("changed", "the batches that were there a moment ago", "fewer", _LOOK_AGAIN)
_DECODE_BYTES = 4 << 20

# The maximum number of damaged batches of a segment that are reported one by one.
_MAX_SCANS = 50
_LAST_STOPS = frozenset({StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL})

# Skipped names that are harmless.
_HARMLESS = frozenset({SkipReason.UNKNOWN_NAME, SkipReason.SWAP, SkipReason.PARTITION_STRAY})


def verify_log_dir(
    path: StrPath,
    *,
    deep: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    progress: Progress | None = None,
) -> Report:
    """Check a broker's log directory. Raises the errors of ``open_log_dir``; damage is a finding.

    With ``deep``, a batch is also a finding if its decompressed size exceeds
    ``max_decompressed_bytes``.
    """
    most_bytes = max_decompressed_bytes if deep else None
    watching = progress or QuietProgress()
    listing = open_log_dir(path).listing()
    tally = Tally()
    _skips(listing.skipped, tally)
    _damaged_checkpoints(listing.problems, tally)
    watching.start(
        sum(segment.size_bytes for log in listing.partitions for segment in log.segments)
    )
    for log in listing.partitions:
        tally.partitions += 1
        tally.place = Place(log.topic, log.partition)
        _skips(log.skipped, tally)
        _damaged_checkpoints(log.problems, tally)
        end_offset = None
        for segment in log.segments:
            tally.place = Place(log.topic, log.partition, segment.base_offset)
            end_offset = _verify_segment(log, segment, tally, most_bytes)
            watching.advance(segment.size_bytes, log.name)
        tally.place = Place(log.topic, log.partition)
        _check_end(log, end_offset, tally)
    return tally.report(printable(str(path)), deep=deep)


def _skips(skipped: Iterable[Skipped], tally: Tally) -> None:
    for skip in skipped:
        harmless = skip.reason.routine or skip.reason in _HARMLESS
        say = tally.note if harmless else tally.problem
        say(
            skip.path,
            skip.reason.name.lower(),
            "files of a log only",
            skip.reason.value + (f" ({skip.detail})" if skip.detail else ""),
            "nothing to do" if harmless else "find out which program made it and move it away",
        )


def _damaged_checkpoints(problems: Iterable[CorruptDataError], tally: Tally) -> None:
    for problem in problems:
        tally.error(problem, "", _CHECKPOINT)


def _check_end(log: PartitionLog, end_offset: int | None, tally: Tally) -> None:
    """Check that the log reaches the high watermark. Consumers may have read every record below the
    high watermark."""
    if end_offset is None or log.high_watermark is None or log.high_watermark <= end_offset:
        return
    tally.problem(
        log.directory,
        "log_too_short",
        f"a log that reaches its high watermark {log.high_watermark}",
        f"one that ends at offset {end_offset}",
        "records that were committed are missing: restore the log from another replica",
    )


def _verify_segment(
    log: PartitionLog, segment: SegmentFiles, tally: Tally, most_bytes: int | None
) -> int | None:
    """Check one segment and its indexes. Check the records, too, unless `most_bytes` is None.

    Return the offset after the last batch. If the segment cannot be read, add a finding and return
    None.
    """
    try:
        # Read the indexes before the log, so that every entry points at a batch that the log
        # already has.
        indexes = {kind: (path, data) for kind, path, data in _read_indexes(segment, tally)}
        tables = _scan(segment, indexes["index"][1] if "index" in indexes else b"")
    except OSError as error:
        _cannot_read(segment.log_path, error, tally)
        return None
    tally.add_segment(segment.size_bytes)
    _check_stops(segment, tables, tally)
    for problem in _misplaced(log, segment, tables[0]):
        tally.problem(
            segment.log_path,
            problem.field,
            problem.expected,
            problem.found,
            "compare with another replica: the segment, its name or a checkpoint is of another log",
            problem.position,
        )
    for kind, (path, data) in indexes.items():
        faults = _faults(kind, data, tables[0], segment.base_offset)
        _report_faults(path, faults, segment, tables[0], tally)
    if most_bytes is not None and tables[0].stop_reason in _LAST_STOPS:
        _verify_records(segment, tables[0].stop_position, tally, most_bytes)
        if tables[0].is_transactional.any() or tables[0].is_control.any():
            _verify_aborts(segment, indexes, tally)
    ends = [int(table.last_offset[-1]) + 1 for table in tables if len(table)]
    return max(ends, default=segment.base_offset)


def _scan(segment: SegmentFiles, offset_index: bytes) -> list[BatchTable]:
    """Scan the segment from its start, and again from the next indexed batch after each damaged
    batch."""
    tables = [scan_segment(segment.log_path)]
    positions = indexed_positions(offset_index)
    while tables[-1].stop_reason not in _LAST_STOPS and len(tables) < _MAX_SCANS:
        behind = positions[positions > tables[-1].stop_position]
        if len(behind) == 0:
            break
        tables.append(scan_segment(segment.log_path, start=int(behind[0])))
    return tables


def _verify_records(
    segment: SegmentFiles, end_position: int, tally: Tally, most_bytes: int
) -> None:
    """Decode all batches with valid checksums, a few MiB at a time."""
    position, window = 0, _DECODE_BYTES
    try:
        with segment.open() as handle:
            while position < end_position:
                end = min(position + window, end_position)
                table = check_records(
                    handle,
                    position,
                    end,
                    verify_crc=False,
                    max_decompressed_bytes=most_bytes,
                )
                stop = table.stop_position
                if stop == position and end == end_position:
                    tally.note(segment.log_path, *_CHANGED, position)
                    return
                window = _DECODE_BYTES if stop > position else 2 * window
                position = stop
    except CorruptDataError as error:
        tally.error(error, segment.log_path, error.hint or _WRITTEN_SO)
    except OSError as error:
        _cannot_read(segment.log_path, error, tally)


def _verify_aborts(
    segment: SegmentFiles, indexes: dict[str, tuple[str, bytes]], tally: Tally
) -> None:
    path = f"{segment.log_path.removesuffix('.log')}.txnindex"
    _, snapshot = indexes.get("snapshot", ("", b""))
    _, data = indexes.get("txnindex", ("", b""))
    try:
        rebuilt = rebuild_indexes(
            segment.log_path,
            base_offset=segment.base_offset,
            producer_snapshot=None if check_snapshot(snapshot) else snapshot,
        )
    except CorruptDataError as error:
        tally.error(error, segment.log_path, _WRITTEN_SO)
        return
    except OSError as error:
        _cannot_read(segment.log_path, error, tally)
        return
    for fault in check_aborts(data, rebuilt.transaction_index):
        tally.error(fault, path, _REBUILD)


def _cannot_read(path: str, error: OSError, tally: Tally) -> None:
    """Report a file that cannot be read. If the file is missing, the finding is a note, since a
    running broker may delete files."""
    if isinstance(error, FileNotFoundError):
        tally.note(path, "vanished", "the file of the listing", "none any more", _LOOK_AGAIN)
        return
    tally.problem(
        path,
        "unreadable",
        "a file that can be read",
        error.strerror or str(error),
        "look at the file and the disk, then run verify again",
    )


def _check_stops(segment: SegmentFiles, tables: Sequence[BatchTable], tally: Tally) -> None:
    """Report why each scan stopped, and the position at which the next scan found batches."""
    for table, following in zip(tables, (*tables[1:], None), strict=True):
        tally.add_batches(table)
        reason = table.stop_reason
        if reason is StopReason.END:
            continue
        unfinished = reason in _LAST_STOPS and segment.is_active
        say, action = (tally.note, _TAIL) if unfinished else (tally.problem, _RESTORE)
        if following is not None and len(following):
            action += (
                f"; sound again from byte {following.position[0]}, "
                f"offset {following.base_offset[0]}"
            )
        say(
            segment.log_path,
            reason.value,
            table.stop_expected,
            table.stop_found,
            action,
            table.stop_position,
        )


def _misplaced(log: PartitionLog, segment: SegmentFiles, table: BatchTable) -> Iterator[Problem]:
    # When the scan stopped early, the missing offsets have been reported.
    stopped_early = table.stop_reason is not StopReason.END
    yield from check_batches(
        base_offset=table.base_offset,
        last_offset=table.last_offset,
        position=table.position,
        leader_epoch=table.leader_epoch,
        segment_base=segment.base_offset,
        next_base=None if stopped_early else segment.next_base_offset,
        lineage=log.leader_epochs,
        allow_gaps=log.compacted is not False,
        magic=table.magic,
    )


def _read_indexes(segment: SegmentFiles, tally: Tally) -> Iterator[tuple[str, str, bytes]]:
    """Yield kind, path and bytes of each index file; add a finding for a missing or unreadable
    file."""
    paths = {
        "index": segment.offset_index_path,
        "timeindex": segment.time_index_path,
        "txnindex": segment.transaction_index_path,
        "snapshot": segment.start_snapshot_path,
    }
    for kind, path in paths.items():
        if path is None:
            if kind in ("index", "timeindex"):
                name = f"{segment.log_path.removesuffix('.log')}.{kind}"
                tally.note(name, "missing", "an index", "none", _INDEX_TAIL)
            continue
        try:
            yield kind, path, read_small(path, _INDEX_LIMIT_BYTES)
        except OSError as error:
            _cannot_read(path, error, tally)
        except CorruptDataError as error:
            tally.error(error, path, _REBUILD)


def _faults(kind: str, data: bytes, table: BatchTable, base_offset: int) -> list[CorruptDataError]:
    if kind == "index":
        return check_offset_index(data, table, base_offset)
    if kind == "timeindex":
        return check_time_index(data, table, base_offset)
    return check_txn_index(data, table) if kind == "txnindex" else check_snapshot(data)


def _report_faults(
    path: str,
    faults: list[CorruptDataError],
    segment: SegmentFiles,
    table: BatchTable,
    tally: Tally,
) -> None:
    for fault in faults:
        if segment.is_active and fault.reason == "zero_tail":
            continue
        # The scan stopped at a damaged batch, and the index may be right about later batches.
        if fault.reason == "past_the_log" and table.stop_reason is not StopReason.END:
            continue
        # A crash leaves the tail of an active index in any state.
        after_crash = segment.is_active and fault.reason in TAIL_FAULTS
        say, action = (tally.note, _INDEX_TAIL) if after_crash else (tally.problem, _REBUILD)
        say(path, fault.reason, fault.expected, fault.found, action, fault.position)
