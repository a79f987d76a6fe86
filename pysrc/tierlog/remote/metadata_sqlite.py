"""The durable metadata manager: one SQLite file, loaded into memory, every change committed first.

Schema version 1 (``user_version``; ``application_id`` is the ASCII text ``tlog``):

| Table | Columns |
|---|---|
| ``segment`` | ``topic_id, topic, partition, segment_id`` (identity), ``description`` (the rest, \
as in `segment_json`), ``state, event_timestamp_ms, broker_id, custom_metadata`` (what an update \
replaces; for the time this column counts, not the description) |
| ``highest_offset`` | ``topic_id, topic, partition, epoch, offset``: the highest offset ever \
finished, which outlives the segments |
| ``partition_state`` | ``topic_id, topic, partition, leader_epoch, delete_state, \
log_start_offset``: what is known of a partition as a whole |
| ``truncation`` | ``topic_id, partition, segment_id, offset``: where a segment was cut |

Commits are synchronous (WAL, ``synchronous=FULL``): what `add` or `update` returned from survives
a power cut, and what it raised from has not happened. One process at a time may have the file
open; it holds a lock on ``<file>.lock``.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter

from tierlog.errors import CorruptDataError, RemoteMetadataError
from tierlog.remote.metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata_memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.partition_metadata import PartitionChange, PartitionMetadata
from tierlog.remote.segment_json import SegmentDescription, decode_segment, encode_segment
from tierlog.types import TopicIdPartition

__all__ = ["SqliteRemoteLogMetadataManager"]

SCHEMA_VERSION = 1
APPLICATION_ID = int.from_bytes(b"tlog", "big")
# Where SQLite's own file header keeps these two numbers.
_USER_VERSION_POSITION = 60
_APPLICATION_ID_POSITION = 68

_SCHEMA = """
CREATE TABLE segment (
    topic_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    segment_id TEXT NOT NULL,
    description BLOB NOT NULL,
    state INTEGER NOT NULL,
    event_timestamp_ms INTEGER NOT NULL,
    broker_id INTEGER NOT NULL,
    custom_metadata BLOB,
    PRIMARY KEY (topic_id, partition, segment_id)
) WITHOUT ROWID;
CREATE TABLE highest_offset (
    topic_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, epoch)
) WITHOUT ROWID;
"""
_MORE_TABLES = """
CREATE TABLE IF NOT EXISTS partition_state (
    topic_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    delete_state INTEGER,
    log_start_offset INTEGER,
    PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS truncation (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    segment_id TEXT NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, segment_id)
) WITHOUT ROWID;
"""
_UPSERT_SEGMENT = """
INSERT INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET description = excluded.description, state = excluded.state,
    event_timestamp_ms = excluded.event_timestamp_ms, broker_id = excluded.broker_id,
    custom_metadata = excluded.custom_metadata
"""
_DELETE_SEGMENT = "DELETE FROM segment WHERE topic_id = ? AND partition = ? AND segment_id = ?"
_SET_HIGHEST = "INSERT OR REPLACE INTO highest_offset VALUES (?, ?, ?, ?, ?)"
# After these the file is as it was, so the next change may be tried.
_HARMLESS = {"SQLITE_FULL", "SQLITE_BUSY", "SQLITE_NOMEM"}


class SqliteRemoteLogMetadataManager(InMemoryRemoteLogMetadataManager):
    """A `RemoteLogMetadataManager` in the SQLite file `path`, which is created if missing.

    RemoteMetadataError when another process has it open, CorruptDataError when the file is not
    such a database. Not to be used in a child after a fork.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(ready=False)
        self._path = os.path.abspath(os.fspath(path))
        self._process_id = os.getpid()
        self._failure: str | None = None
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with ExitStack() as undo:
            self._lock_descriptor = _take_lock(self._path)
            undo.callback(os.close, self._lock_descriptor)
            self._database = self._open()
            undo.callback(self._database.close)
            self._load_all()
            undo.pop_all()
        self.mark_ready()

    def __repr__(self) -> str:
        return f"SqliteRemoteLogMetadataManager({self._path!r})"

    def load(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Take `segments` as they are, in whatever state, in one commit: a rebuild."""
        with self._lock:
            self._check_usable(None)
            taken = list(segments)
            with self._transaction() as database:
                for metadata in taken:
                    _write(database, metadata)
                super().load(taken)
                for partition in {metadata.topic_id_partition for metadata in taken}:
                    totals = self._partition(partition).totals()
                    highest = tuple((epoch, offset) for epoch, (offset, _) in totals.items())
                    _write_highest(database, partition, highest)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                super().close()
                self._database.close()
                os.close(self._lock_descriptor)

    # -- reading

    def _open(self) -> sqlite3.Connection:
        with ExitStack() as undo:
            try:
                database = sqlite3.connect(
                    self._path, isolation_level=None, check_same_thread=False
                )
                undo.callback(database.close)
                self._prepare(database)
            except sqlite3.Error as error:
                raise self._unreadable(error) from error
            undo.pop_all()
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables:
            self._check_number(database, "application_id", APPLICATION_ID, _APPLICATION_ID_POSITION)
            self._check_number(database, "user_version", SCHEMA_VERSION, _USER_VERSION_POSITION)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(_MORE_TABLES)
        if not tables:
            database.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
            _sync_folder(os.path.dirname(self._path))

    def _check_number(
        self, database: sqlite3.Connection, name: str, expected: int, position: int
    ) -> None:
        (found,) = database.execute(f"PRAGMA {name}").fetchone()
        if found != expected:
            raise CorruptDataError(
                reason="unknown_version",
                path=self._path,
                position=position,
                expected=f"{name} {expected}",
                found=f"{name} {found}",
                hint="not a metadata database of this version of tierlog; choose another file",
            )

    def _load_all(self) -> None:
        try:
            rows = self._database.execute(
                "SELECT segment.*, truncation.offset FROM segment LEFT JOIN truncation"
                " USING (topic_id, partition, segment_id)"
            )
            # In the order of their offsets each one goes to the end of its epoch's list.
            super().load(sorted(map(self._segment, rows), key=attrgetter("start_offset")))
            for row in self._database.execute("SELECT * FROM highest_offset"):
                topic_id, topic, number, epoch, offset = row
                partition = TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)
                self._partition(partition).set_highest(int(epoch), int(offset))
            for row in self._database.execute("SELECT * FROM partition_state"):
                topic_id, topic, number, leader_epoch, delete_state, log_start_offset = row
                partition = TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)
                known = self._partition(partition)
                known.leader_epoch, known.log_start_offset = leader_epoch, log_start_offset
                if delete_state is not None:
                    known.delete_state = RemotePartitionDeleteState(delete_state)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        except (TypeError, ValueError) as error:
            raise self._bad_row(str(error)) from None

    def _segment(self, row: tuple[object, ...]) -> RemoteLogSegmentMetadata:
        """The segment of one row. ValueError or CorruptDataError when it is damaged."""
        topic_id, topic, partition, segment_id, description, state, *changes = row
        if not isinstance(description, bytes) or not isinstance(state, int):
            raise ValueError(f"segment {segment_id}: columns of another type")
        known = decode_segment(
            description,
            path=self._path,
            position=0,
            state=RemoteLogSegmentState(state),
            changes=_checked_changes(segment_id, changes),
        ).metadata
        name = known.topic_id_partition
        if (topic_id, topic, partition, segment_id) != (
            name.topic_id,
            name.topic,
            name.partition,
            known.segment_id.id,
        ):
            raise ValueError(f"segment {segment_id}: its description names {known.segment_id}")
        return known

    def _bad_row(self, found: str) -> CorruptDataError:
        return CorruptDataError(
            reason="bad_row",
            path=self._path,
            position=0,
            expected="rows that each describe a segment",
            found=found,
            hint="rebuild the metadata from the bucket",
        )

    def _unreadable(self, error: sqlite3.Error) -> Exception:
        """Damage is CorruptDataError; anything else (no access, no space) is worth a new try."""
        if isinstance(error, sqlite3.OperationalError):
            return RemoteMetadataError(f"{self._path}: cannot open the metadata: {error}")
        return CorruptDataError(
            reason="bad_database",
            path=self._path,
            position=0,
            expected="an SQLite database",
            found=str(error),
            hint="rebuild the metadata from the bucket",
        )

    # -- writing

    def _persist(self, partition: TopicIdPartition, change: PartitionChange) -> None:
        with self._transaction() as database:
            if change.segment is not None:
                _write(database, change.segment)
            _write_highest(database, partition, change.highest)
            if change.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                key = (partition.topic_id, partition.partition)
                for table in ("segment", "highest_offset", "partition_state", "truncation"):
                    database.execute(
                        f"DELETE FROM {table} WHERE topic_id = ? AND partition = ?", key
                    )
                known = PartitionMetadata(partition)
                known.leader_epoch = self._known(partition).leader_epoch
                _write_state(database, known, PartitionChange(leader_epoch=change.leader_epoch))
            else:
                _write_state(database, self._known(partition), change)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it or nothing. After an input or output error nothing more is written, since
        nobody knows then what the disk holds (only a fresh start reads it back)."""
        if os.getpid() != self._process_id:
            raise RemoteMetadataError(f"{self._path}: opened before the fork of this process")
        if self._failure is not None:
            raise RemoteMetadataError(
                f"{self._path}: closed for changes after {self._failure}; open it again"
            )
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            if error.sqlite_errorname not in _HARMLESS:
                self._failure = str(error)
            raise RemoteMetadataError(f"{self._path}: change not stored: {error}") from error


def _write(database: sqlite3.Connection, metadata: RemoteLogSegmentMetadata) -> None:
    partition = metadata.topic_id_partition
    identity = (partition.topic_id, partition.topic, partition.partition)
    if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
        key = (partition.topic_id, partition.partition, metadata.segment_id.id)
        database.execute(_DELETE_SEGMENT, key)
        database.execute(
            "DELETE FROM truncation WHERE topic_id = ? AND partition = ? AND segment_id = ?", key
        )
        return
    database.execute(
        _UPSERT_SEGMENT,
        (
            *identity,
            metadata.segment_id.id,
            encode_segment(SegmentDescription(metadata=metadata)),
            metadata.state.value,
            metadata.event_timestamp_ms,
            metadata.broker_id,
            metadata.custom_metadata,
        ),
    )
    if metadata.truncation_offset is not None:
        key = (partition.topic_id, partition.partition, metadata.segment_id.id)
        database.execute(
            "INSERT OR REPLACE INTO truncation VALUES (?, ?, ?, ?)",
            (*key, metadata.truncation_offset),
        )


def _write_highest(
    database: sqlite3.Connection, partition: TopicIdPartition, pairs: tuple[tuple[int, int], ...]
) -> None:
    identity = (partition.topic_id, partition.topic, partition.partition)
    for epoch, offset in pairs:
        database.execute(_SET_HIGHEST, (*identity, epoch, offset))


def _write_state(
    database: sqlite3.Connection, known: PartitionMetadata, change: PartitionChange
) -> None:
    def after(new: int | None, old: int | None) -> int | None:
        return old if new is None else new

    partition = known.partition
    database.execute(
        "INSERT OR REPLACE INTO partition_state VALUES (?, ?, ?, ?, ?, ?)",
        (
            *(partition.topic_id, partition.topic, partition.partition),
            after(change.leader_epoch, known.leader_epoch),
            after(change.delete_state, known.delete_state),
            after(change.log_start_offset, known.log_start_offset),
        ),
    )


def _checked_changes(segment_id: object, columns: list[object]) -> dict[str, object]:
    event_timestamp_ms, broker_id, custom_metadata, truncation_offset = columns
    if not isinstance(event_timestamp_ms, int) or not isinstance(broker_id, int):
        raise ValueError(f"segment {segment_id}: columns of another type")
    if custom_metadata is not None and not isinstance(custom_metadata, bytes):
        raise ValueError(f"segment {segment_id}: custom metadata is no blob")
    return {
        "event_timestamp_ms": event_timestamp_ms,
        "broker_id": broker_id,
        "custom_metadata": custom_metadata,
        "truncation_offset": truncation_offset,
    }


def _take_lock(path: str) -> int:
    """A lock that ends with the process, however that ends."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RemoteMetadataError(
            f"{path}: in use by another process (lock on {path}.lock); stop that one or give "
            "each its own file"
        ) from None
    return descriptor


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
