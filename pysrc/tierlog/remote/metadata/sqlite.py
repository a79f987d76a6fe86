"""The durable metadata manager: one SQLite file, every change committed before it is visible.

The file is described in `schema`. What is known of a partition and its epochs as a whole
(sizes, highest offsets, leader, deletion, log start) is read when the file is opened; the segments
of a partition are read when one of them is first asked for, and then kept in memory.

What a call returned from survives a power cut, and what it raised from has not happened. One
process at a time may have the file open.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from tierlog.remote.metadata.database import MetadataDatabase
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.partition import PartitionChange, PartitionMetadata
from tierlog.remote.metadata.schema import (
    INSERT_EPOCH,
    INSERT_PARTITION,
    INSERT_SEGMENT,
    SELECT_SEGMENTS,
    epoch_row,
    partition_row,
    read_epoch,
    read_partition,
    read_segment,
    read_segments,
    segment_row,
)
from tierlog.remote.metadata.segment_sets import Row
from tierlog.types import TopicIdPartition

__all__ = ["SqliteRemoteLogMetadataManager"]

_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_PARTITION_GONE = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
# The numbers of the partitions that have segments: one step in the tree for each.
_SELECT_HELD = """
WITH RECURSIVE held (number) AS (
    SELECT min(partition_number) FROM segment
    UNION ALL
    SELECT (SELECT min(partition_number) FROM segment WHERE partition_number > held.number)
    FROM held WHERE held.number IS NOT NULL
) SELECT number FROM held WHERE number IS NOT NULL
"""
_DELETE_SEGMENT = (
    "DELETE FROM segment WHERE partition_number = ? AND start_offset = ? AND segment_id = ?"
)
_DELETE_SEGMENTS = "DELETE FROM segment WHERE partition_number = ?"
_DELETE_EPOCH = "DELETE FROM epoch WHERE partition_number = ? AND epoch = ?"
_DELETE_EPOCHS = "DELETE FROM epoch WHERE partition_number = ?"


class SqliteRemoteLogMetadataManager(InMemoryRemoteLogMetadataManager):
    """A `RemoteLogMetadataManager` in the SQLite file `path`, which is created if missing.

    While more than `max_loaded_segments` (about 1 KB each) are in memory, those of the partitions
    that were not asked for the longest leave it. A version 2 file is rewritten when it is opened.

    RemoteMetadataError when another process has it open, CorruptDataError when the file is not
    such a database; for a partition whose rows are damaged, when it is first asked for. Not to be
    used in a child after a fork.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_loaded_segments: int = 1_000_000
    ) -> None:
        super().__init__(ready=False)
        self._max_loaded_segments = max_loaded_segments
        # How many segments each one had when it was last asked for, the oldest look first.
        self._in_memory: dict[TopicIdPartition, int] = {}
        self._in_memory_count = 0
        self._numbers: dict[TopicIdPartition, int] = {}
        self._last_number = 0
        with ExitStack() as undo:
            self._file = MetadataDatabase(os.path.abspath(os.fspath(path)))
            undo.callback(self._file.close)
            self._load_totals()
            undo.pop_all()
        self.mark_ready()

    def __repr__(self) -> str:
        return f"SqliteRemoteLogMetadataManager({self._file.path!r})"

    @property
    def path(self) -> str:
        """The SQLite file."""
        return self._file.path

    @property
    def failure(self) -> str | None:
        """Why the file takes no changes any more; None while it does."""
        return self._file.failure

    def load(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Take `segments` as they are, in whatever state, in one commit: a rebuild."""
        by_partition: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
        for metadata in segments:
            by_partition.setdefault(metadata.topic_id_partition, []).append(metadata)
        with self._lock:
            self._check_usable(None)
            taken: dict[PartitionMetadata, int] = {}
            with self._file.transaction() as database:
                for partition, new in by_partition.items():
                    known = self._loaded(partition).copy()
                    number = taken[known] = self._number_of(partition, len(taken))
                    for metadata in new:
                        _write_segment(database, number, known.get(metadata.segment_id), metadata)
                        known.put(metadata)
                    database.execute(INSERT_PARTITION, partition_row(number, known))
                    _write_totals(database, number, known.totals())
            for known, number in taken.items():
                self._partitions[known.partition] = known
                self._keep_number(known.partition, number)
            self.change_count.changed()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                super().close()
                self._file.close()

    # -- reading

    def _load_totals(self) -> None:
        """Everything but the segments."""
        by_number: dict[int, PartitionMetadata] = {}
        try:
            for row in self._file.checked_rows("SELECT * FROM partition"):
                number, known = read_partition(row, self._change_numbers)
                by_number[number] = self._partitions[known.partition] = known
                self._keep_number(known.partition, number)
            for row in self._file.checked_rows("SELECT * FROM epoch"):
                number, epoch, highest_offset, size_bytes = read_epoch(row)
                _of(by_number, number).set_highest(epoch, highest_offset)
                _of(by_number, number).set_size(epoch, size_bytes)
                if size_bytes:
                    # The rows of its segments may be lost; loading compares them with the sums.
                    _of(by_number, number).is_loaded = False
            for (number,) in self._file.rows(_SELECT_HELD):
                _of(by_number, number).is_loaded = False
        except (TypeError, ValueError) as error:
            raise self._file.bad_row(error) from None

    def _loaded(self, partition: TopicIdPartition) -> PartitionMetadata:
        known = self._known(partition)
        if not known.is_loaded:
            self._load_segments(known)
        if known.has_segments() or partition in self._in_memory:
            self._in_memory_count += len(known) - self._in_memory.pop(partition, 0)
            self._in_memory[partition] = len(known)
            self._make_room()
        return known

    def _load_segments(self, known: PartitionMetadata) -> None:
        rows = self._file.checked_rows(SELECT_SEGMENTS, self._numbers[known.partition])
        try:
            known.load_segments(
                read_segments(known.partition, rows), partial(self._read_row, known.partition)
            )
        except (TypeError, ValueError) as error:
            raise self._file.bad_row(error) from None
        finally:
            if not known.is_loaded:
                known.unload()

    def _read_row(self, partition: TopicIdPartition, row: Row) -> RemoteLogSegmentMetadata:
        try:
            return read_segment(partition, row)
        except (TypeError, ValueError) as error:
            raise self._file.bad_row(error) from None

    def _make_room(self) -> None:
        """Let go of others than the one asked for last, which is the last one in the dict."""
        # After a failure nobody knows what a second look at the file would find.
        while (
            self._in_memory_count > self._max_loaded_segments
            and len(self._in_memory) > 1
            and self._file.failure is None
        ):
            partition = next(iter(self._in_memory))
            self._in_memory_count -= self._in_memory.pop(partition)
            self._partitions[partition].unload()

    # -- writing

    def _persist(self, partition: TopicIdPartition, change: PartitionChange) -> None:
        known, number = self._known(partition), self._number_of(partition)
        with self._file.transaction() as database:
            if change.delete_state is _PARTITION_GONE:
                _forget(database, number, known, change)
                return
            is_new = partition not in self._numbers
            if is_new or change.segment is None or change.leader_epoch is not None:
                database.execute(INSERT_PARTITION, partition_row(number, known, change))
            if change.segment is not None:
                before = known.get(change.segment.segment_id)
                _write_segment(database, number, before, change.segment)
            _write_totals(database, number, known.totals_after(change))
        self._keep_number(partition, number)

    def _number_of(self, partition: TopicIdPartition, others: int = 0) -> int:
        """Its number in the file, or one that is free when `others` take one before it."""
        return self._numbers.get(partition, self._last_number + 1 + others)

    def _keep_number(self, partition: TopicIdPartition, number: int) -> None:
        self._numbers[partition] = number
        self._last_number = max(self._last_number, number)


def _of(by_number: dict[int, PartitionMetadata], number: object) -> PartitionMetadata:
    if not isinstance(number, int) or number not in by_number:
        raise ValueError(f"a row of partition number {number!r:.40}, which is not in the file")
    return by_number[number]


def _forget(
    database: sqlite3.Connection, number: int, known: PartitionMetadata, change: PartitionChange
) -> None:
    """Take a partition out of the file, but for its leader."""
    database.execute(_DELETE_SEGMENTS, (number,))
    database.execute(_DELETE_EPOCHS, (number,))
    nothing = PartitionMetadata(known.partition)
    nothing.leader_epoch = known.leader_epoch
    database.execute(
        INSERT_PARTITION,
        partition_row(number, nothing, PartitionChange(leader_epoch=change.leader_epoch)),
    )


def _write_segment(
    database: sqlite3.Connection,
    number: int,
    before: RemoteLogSegmentMetadata | None,
    after: RemoteLogSegmentMetadata,
) -> None:
    """Only where a segment starts could make its row another one."""
    if before is not None and (after.state is _GONE or before.start_offset != after.start_offset):
        name = before.segment_id.id
        database.execute(_DELETE_SEGMENT, (number, before.start_offset, name))
    if after.state is not _GONE:
        database.execute(INSERT_SEGMENT, segment_row(number, after))


def _write_totals(
    database: sqlite3.Connection, number: int, totals: Mapping[int, tuple[int, int]]
) -> None:
    for epoch, (highest_offset, size_bytes) in totals.items():
        if highest_offset < 0 and size_bytes == 0:
            database.execute(_DELETE_EPOCH, (number, epoch))
        else:
            database.execute(INSERT_EPOCH, epoch_row(number, epoch, highest_offset, size_bytes))
