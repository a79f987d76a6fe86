"""The durable metadata manager, which uses one SQLite file. Every change is committed before it is
visible.

`schema` describes the file. The totals of partitions and epochs (sizes, highest offsets, leader,
deletion, log start) are read when the file is opened. The segments of a partition are read on their
first use and then kept in memory.

A change survives a power cut once its call has returned. A call that raised has changed nothing.
Only one process at a time may have the file open.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from tierlog.remote.database import Database
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
    METADATA_SCHEMA,
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

_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_PARTITION_DELETED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
# Selects the numbers of the partitions that have segments, with one index step per partition
# instead of one per segment.
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

    About `max_loaded_segments` segments (1 KB each) at most stay in memory. Above this number, the
    least recently used partitions are unloaded. A file of version 2 is rewritten when it is opened.

    Raises RemoteMetadataError when another process has the file open, and CorruptDataError when the
    file is not such a database. The first use of a partition with damaged rows raises
    CorruptDataError. A child process must not use the manager after a fork.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_loaded_segments: int = 1_000_000
    ) -> None:
        super().__init__(ready=False)
        self._max_loaded_segments = max_loaded_segments
        # Number of segments that each loaded partition had at its last use; the least recently used
        # partition is first.
        self._loaded_sizes: dict[TopicIdPartition, int] = {}
        self._loaded_count = 0
        self._numbers: dict[TopicIdPartition, int] = {}
        self._last_number = 0
        with ExitStack() as undo:
            self._file = Database(os.path.abspath(os.fspath(path)), METADATA_SCHEMA)
            undo.callback(self._file.close)
            self._load_totals()
            undo.pop_all()
        self.mark_ready()

    def __repr__(self) -> str:
        return f"SqliteRemoteLogMetadataManager({self._file.path!r})"

    @property
    def path(self) -> str:
        """Path of the SQLite file."""
        return self._file.path

    @property
    def failure(self) -> str | None:
        """The reason why the file accepts no more changes; None while it accepts changes."""
        return self._file.failure

    def load(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Store `segments` in their present states in one commit, for a rebuild."""
        by_partition: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
        for metadata in segments:
            by_partition.setdefault(metadata.topic_id_partition, []).append(metadata)
        with self._lock:
            self._check_usable(None)
            numbers: dict[PartitionMetadata, int] = {}
            with self._file.transaction() as database:
                for partition, new in by_partition.items():
                    state = self._find_loaded_partition(partition).copy()
                    number = numbers[state] = self._number_of(partition, len(numbers))
                    for metadata in new:
                        _write_segment(database, number, state.get(metadata.segment_id), metadata)
                        state.put(metadata)
                    database.execute(INSERT_PARTITION, partition_row(number, state))
                    _write_totals(database, number, state.totals())
            for state, number in numbers.items():
                self._partitions[state.partition] = state
                self._record_number(state.partition, number)
            self.change_count.changed()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                super().close()
                self._file.close()

    # -- reading

    def _load_totals(self) -> None:
        """Load everything except the segments."""
        by_number: dict[int, PartitionMetadata] = {}
        try:
            for row in self._file.checked_rows(
                "SELECT * FROM partition", subject="table partition"
            ):
                number, state = read_partition(row, self._change_numbers)
                by_number[number] = self._partitions[state.partition] = state
                self._record_number(state.partition, number)
            for row in self._file.checked_rows("SELECT * FROM epoch", subject="table epoch"):
                number, epoch, highest_offset, size_bytes = read_epoch(row)
                _find_numbered(by_number, number).set_highest(epoch, highest_offset)
                _find_numbered(by_number, number).set_size(epoch, size_bytes)
                if size_bytes:
                    # The rows of the epoch's segments may be lost. Loading detects this by
                    # comparing the sums.
                    _find_numbered(by_number, number).is_loaded = False
            for (number,) in self._file.rows(_SELECT_HELD):
                _find_numbered(by_number, number).is_loaded = False
        except (TypeError, ValueError) as error:
            raise self._file.bad_row(error) from None

    def _find_loaded_partition(self, partition: TopicIdPartition) -> PartitionMetadata:
        state = self._find_partition(partition)
        if not state.is_loaded:
            self._load_segments(state)
        if state.has_segments() or partition in self._loaded_sizes:
            self._loaded_count += len(state) - self._loaded_sizes.pop(partition, 0)
            self._loaded_sizes[partition] = len(state)
            self._unload_oldest()
        return state

    def _load_segments(self, state: PartitionMetadata) -> None:
        rows = self._file.checked_rows(
            SELECT_SEGMENTS,
            self._numbers[state.partition],
            subject=f"table segment of {state.partition}",
        )
        try:
            state.load_segments(
                read_segments(state.partition, rows), partial(self._read_row, state.partition)
            )
        except (TypeError, ValueError) as error:
            raise self._file.bad_row(error) from None
        finally:
            if not state.is_loaded:
                state.unload()

    def _read_row(self, partition: TopicIdPartition, row: Row) -> RemoteLogSegmentMetadata:
        try:
            return read_segment(partition, row)
        except (TypeError, ValueError) as error:
            raise self._file.bad_row(error) from None

    def _unload_oldest(self) -> None:
        """Unload the least recently used partitions, but never the most recently used one, which is
        last in the dict."""
        # After a failure, no partition is unloaded, because reading the file again may not give the
        # same rows.
        while (
            self._loaded_count > self._max_loaded_segments
            and len(self._loaded_sizes) > 1
            and self._file.failure is None
        ):
            partition = next(iter(self._loaded_sizes))
            self._loaded_count -= self._loaded_sizes.pop(partition)
            self._partitions[partition].unload()

    # -- writing

    def _persist(self, partition: TopicIdPartition, change: PartitionChange) -> None:
        state, number = self._find_partition(partition), self._number_of(partition)
        with self._file.transaction() as database:
            if change.delete_state is _PARTITION_DELETED:
                _delete_partition(database, number, state, change)
                return
            is_new = partition not in self._numbers
            if is_new or change.segment is None or change.leader_epoch is not None:
                database.execute(INSERT_PARTITION, partition_row(number, state, change))
            if change.segment is not None:
                before = state.get(change.segment.segment_id)
                _write_segment(database, number, before, change.segment)
            _write_totals(database, number, state.totals_after(change))
        self._record_number(partition, number)

    def _number_of(self, partition: TopicIdPartition, others: int = 0) -> int:
        """Return the partition's number; for a new one, the next free number plus `others`."""
        return self._numbers.get(partition, self._last_number + 1 + others)

    def _record_number(self, partition: TopicIdPartition, number: int) -> None:
        self._numbers[partition] = number
        self._last_number = max(self._last_number, number)


def _find_numbered(by_number: dict[int, PartitionMetadata], number: object) -> PartitionMetadata:
    if not isinstance(number, int) or number not in by_number:
        raise ValueError(f"a row of partition number {number!r:.40}, which does not exist")
    return by_number[number]


def _delete_partition(
    database: sqlite3.Connection, number: int, state: PartitionMetadata, change: PartitionChange
) -> None:
    """Delete a partition from the file, except for its leader epoch."""
    database.execute(_DELETE_SEGMENTS, (number,))
    database.execute(_DELETE_EPOCHS, (number,))
    nothing = PartitionMetadata(state.partition)
    nothing.leader_epoch = state.leader_epoch
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
    """Replace a segment's row. The row's primary key changes only with the start offset."""
    if before is not None and (
        after.state is _DELETED or before.start_offset != after.start_offset
    ):
        name = before.segment_id.id
        database.execute(_DELETE_SEGMENT, (number, before.start_offset, name))
    if after.state is not _DELETED:
        database.execute(INSERT_SEGMENT, segment_row(number, after))


def _write_totals(
    database: sqlite3.Connection, number: int, totals: Mapping[int, tuple[int, int]]
) -> None:
    for epoch, (highest_offset, size_bytes) in totals.items():
        if highest_offset < 0 and size_bytes == 0:
            database.execute(_DELETE_EPOCH, (number, epoch))
        else:
            database.execute(INSERT_EPOCH, epoch_row(number, epoch, highest_offset, size_bytes))
