"""Runs a round of compaction on a log.

A round first learns the last offset of each key in the dirty section. Then it writes the segments
again without the records that compaction removes (Kafka's ``Cleaner``).

The native core decides which batches and records are kept. The memory of a round is limited by the
budget for keys and by the largest batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.config.topic import TopicConfig
from tierlog.errors import CorruptDataError
from tierlog.log.index_files import AbortedTransaction, read_transaction_index
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.log.writer.batches import HEADER_BYTES, max_timestamp_ms
from tierlog.log.writer.compaction import RolledFacts, Round, group_segments
from tierlog.log.writer.files import create_file, write_all
from tierlog.log.writer.segment import segment_path
from tierlog.log.writer.swap import CLEANED
from tierlog.types import StopReason

__all__ = ["CleanedSegment", "CompactionJob", "rolled_facts"]

_STEP_BYTES = 4 << 20
_NEVER_MS = 2**63 - 1
_TRANSACTION_ENTRY_BYTES = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedSegment:
    """A new segment, which is written and synced under names that end with ``.cleaned``.

    ``replaced`` has the base offsets of the segments that the new segment replaces."""

    base_offset: int
    replaced: tuple[int, ...]
    newest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob:
    """A round on one log. ``segments`` has all segments of the log; the last one is active.
    ``should_stop`` is called between steps; if it returns True, the round ends early."""

    directory: str
    topic: TopicConfig
    round: Round
    segments: Sequence[SegmentFiles]
    last_records: dict[int, tuple[int | None, int]]
    now_ms: int
    max_decompressed_bytes: int
    should_stop: Callable[[], bool]

    def run(self, budget_bytes: int, replace: Callable[[CleanedSegment], bool]) -> int | None:
        """Compact the log, and call `replace` with each new segment.

        Return the end offset of the compacted part of the log, or None if `should_stop` or
        `replace` ended the round early. Raises CorruptDataError for a damaged segment and OSError
        when the disk fails.
        """
        aborted = self._aborted_transactions()
        keys = self._learn_keys(budget_bytes, aborted)
        end_offset = keys.latest_offset + 1
        cleaner = _core.LogCleaner(
            self.now_ms,
            self.topic.delete_retention_ms,
            self.round.end_offset,
            self.max_decompressed_bytes,
            aborted,
            self.last_records,
        )
        facts = [_with_indexes(one) for one in self._segments_below(end_offset)]
        for group in group_segments(facts, self.topic):
            cleaned = self._clean(group, cleaner, keys)
            if cleaned is None or not replace(cleaned):
                return None
        return end_offset

    def _segments_below(self, end_offset: int) -> list[SegmentFiles]:
        return [one for one in self.segments[:-1] if one.base_offset < end_offset]

    def _aborted_transactions(self) -> list[AbortedTransaction]:
        """Return the entries of all transaction indexes of the log. A transaction with
        records in the round may end in a later segment."""
        found: list[AbortedTransaction] = []
        for segment in self.segments:
            path = segment.transaction_index_path
            if path is None:
                continue
            with open(path, "rb") as file:
                data = file.read()
            # The index of the active segment may be growing.
            data = data[: len(data) - len(data) % _TRANSACTION_ENTRY_BYTES]
            index = read_transaction_index(data, segment.base_offset)
            columns = index.producer_id, index.first_offset, index.last_offset
            rows = zip(*(one.tolist() for one in (*columns, index.last_stable_offset)), strict=True)
            found += (AbortedTransaction(*row) for row in rows)
        return found

    def _learn_keys(
        self, budget_bytes: int, aborted: Sequence[AbortedTransaction]
    ) -> _core.KeyOffsets:
        first_dirty = self.round.first_dirty_offset
        dirty = [
            one
            for one in self._segments_below(self.round.end_offset)
            if (one.next_base_offset or 0) > first_dirty
        ]
        records = sum(scan_segment(one.log_path, verify_crc=False).summary.records for one in dirty)
        keys = _core.KeyOffsets(
            budget_bytes,
            records,
            self.max_decompressed_bytes,
            [one for one in aborted if one.last_offset >= first_dirty],
        )
        for segment in dirty:
            is_full = keys.add_segment(
                segment.log_path, first_dirty, segment.next_base_offset or self.round.end_offset
            )
            if is_full:
                break
        return keys

    def _clean(
        self, group: Sequence[RolledFacts], cleaner: _core.LogCleaner, keys: _core.KeyOffsets
    ) -> CleanedSegment | None:
        """Write one new segment for a group of segments. Return None if `should_stop` ends the
        round."""
        base = group[0].base_offset
        draft = _Draft(self.directory, base, self.topic.index_interval_bytes)
        try:
            for segment in group:
                path = segment_path(self.directory, segment.base_offset, "log")
                position = 0
                while position < segment.size_bytes:
                    if self.should_stop():
                        return None
                    data, end = cleaner.copy(path, position, _STEP_BYTES, keys)
                    if end == position:
                        raise _too_short(path, position, segment.size_bytes)
                    draft.append(data)
                    position = end
            modified_ns = os.stat(path).st_mtime_ns
            newest_ms = draft.finish(cleaner.take_transaction_index(), modified_ns)
        finally:
            draft.close()
        return CleanedSegment(
            base_offset=base,
            replaced=tuple(one.base_offset for one in group),
            newest_ms=newest_ms,
        )


def _too_short(path: str, position: int, size_bytes: int) -> CorruptDataError:
    return CorruptDataError(
        reason="truncated",
        path=path,
        position=position,
        expected=f"{size_bytes} bytes, as when the segment was rolled",
        found="the end of the file",
    )


class _Draft:
    """The ``.cleaned`` files of a new segment."""

    def __init__(self, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self._indexer = _core.SegmentIndexer(base_offset, index_interval_bytes, None)
        self._paths = {
            kind: segment_path(directory, base_offset, kind) + CLEANED
            for kind in ("log", "index", "timeindex", "txnindex")
        }
        self._fds: dict[str, int] = {}
        self._size_bytes = {"log": 0, "index": 0, "timeindex": 0, "txnindex": 0}
        try:
            for kind in ("log", "index", "timeindex"):
                self._create(kind)
        except OSError:
            self.close()
            raise

    def _create(self, kind: str) -> None:
        self._fds[kind] = create_file(self._paths[kind], exclusive=True)

    def _append(self, kind: str, data: bytes) -> None:
        write_all(self._fds[kind], data, self._size_bytes[kind])
        self._size_bytes[kind] += len(data)

    def append(self, data: bytes) -> None:
        """Append batches and their index entries."""
        if not data:
            return
        position = self._size_bytes["log"]
        self._append("log", data)
        table = BatchTable(self._indexer.push(data, position, False))
        if table.stop_reason is not StopReason.END:
            raise table.stop_error(self._paths["log"])
        offsets, times, _ = self._indexer.take_entries()
        self._append("index", offsets)
        self._append("timeindex", times)

    def finish(self, transaction_index: bytes, modified_ns: int) -> int:
        """Sync the files and return the largest timestamp. The files get the modification time of
        the newest replaced file, as in Kafka."""
        newest_ms = self._indexer.max_timestamp_ms
        times, _ = self._indexer.roll(0, _NEVER_MS)
        self._append("timeindex", times)
        if transaction_index:
            self._create("txnindex")
            self._append("txnindex", transaction_index)
        for fd in self._fds.values():
            os.utime(fd, ns=(modified_ns, modified_ns))
        _core.sync_files({self._paths[kind]: fd for kind, fd in self._fds.items()})
        return newest_ms if newest_ms >= 0 else modified_ns // 1_000_000

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


def rolled_facts(segment: SegmentFiles, newest_ms: int, *, with_first: bool) -> RolledFacts:
    """Return the facts of a rolled segment. With ``with_first``, the timestamp of its first batch
    is read from the file."""
    return RolledFacts(
        base_offset=segment.base_offset,
        next_base_offset=segment.next_base_offset or segment.base_offset,
        size_bytes=segment.size_bytes,
        newest_ms=newest_ms,
        first_ms=_first_ms(segment.log_path) if with_first else -1,
    )


def _with_indexes(segment: SegmentFiles) -> RolledFacts:
    index_bytes, time_index_bytes = (
        os.stat(path).st_size if path is not None else 0
        for path in (segment.offset_index_path, segment.time_index_path)
    )
    facts = rolled_facts(segment, -1, with_first=False)
    return facts._replace(index_bytes=index_bytes, time_index_bytes=time_index_bytes)


def _first_ms(path: str) -> int:
    with open(path, "rb") as file:
        return max_timestamp_ms(file.read(HEADER_BYTES))
