"""Committed offsets and groups in the state directory, in an SQLite file.

Schema version 2 (``user_version``; ``application_id`` is the ASCII text ``tlgr``) is `SCHEMA`;
version 1 has no `PENDING`. Each row ends with its checksum.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tierlog.node.groups.types import SavedGroup
from tierlog.remote.database import Database, DatabaseSchema, with_checksum

__all__ = [
    "GROUPS_FILE",
    "Change",
    "CommittedOffset",
    "OffsetStore",
    "TopicPartition",
    "add_pending",
    "commit_offsets",
    "delete_group",
    "delete_offsets",
    "end_pending",
    "expire_offsets",
    "save_group",
]

# Name of the file in the state directory.
GROUPS_FILE = "groups.sqlite"
SCHEMA = """
CREATE TABLE consumer_group (
    group_id TEXT NOT NULL PRIMARY KEY,
    protocol_type TEXT,
    generation INTEGER NOT NULL,
    empty_since_ms INTEGER,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE committed_offset (
    group_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    commit_ms INTEGER NOT NULL,
    expire_ms INTEGER,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (group_id, topic, partition)
) WITHOUT ROWID;
"""
# Offsets that are committed when the transaction of their producer is.
PENDING = """
CREATE TABLE pending_offset (
    producer_id INTEGER NOT NULL,
    group_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    commit_ms INTEGER NOT NULL,
    expire_ms INTEGER,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (producer_id, group_id, topic, partition)
) WITHOUT ROWID;
"""


def _add_pending_table(database: sqlite3.Connection) -> None:
    """Make a file of version 1 one of version 2."""
    database.execute(PENDING.strip().rstrip(";"))
    database.execute("PRAGMA user_version = 2")


_SCHEMA = DatabaseSchema(
    application_id=int.from_bytes(b"tlgr", "big"),
    version=2,
    versions={1: SCHEMA, 2: SCHEMA + PENDING},
    upgrade=_add_pending_table,
    rows="groups and committed offsets",
    remedy="move the file away; groups then start from their clients' auto.offset.reset",
)
# More partitions than this are found faster in one read of all partitions of the group.
_MAX_SINGLE_READS = 100
_INSERT_OFFSET = "INSERT OR REPLACE INTO committed_offset VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_PENDING = "INSERT OR REPLACE INTO pending_offset VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_GROUP = "INSERT OR REPLACE INTO consumer_group VALUES (?, ?, ?, ?, ?)"


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """``leader_epoch`` is -1 when the client did not tell it. ``expire_ms`` is the time at which a
    client wants it to expire, None for the retention of the settings."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int | None = None


Change: TypeAlias = Callable[[sqlite3.Connection], None]


def save_group(group: SavedGroup) -> Change:
    return lambda database: _execute(database, _INSERT_GROUP, with_checksum(*group))


def commit_offsets(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Change:
    rows = [with_checksum(group_id, *at, *one) for at, one in offsets.items()]

    def change(database: sqlite3.Connection) -> None:
        database.executemany(_INSERT_OFFSET, rows)

    return change


def add_pending(
    producer_id: int, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Change:
    """Keep offsets until the transaction of a producer ends."""
    rows = [with_checksum(producer_id, group_id, *at, *one) for at, one in offsets.items()]

    def change(database: sqlite3.Connection) -> None:
        database.executemany(_INSERT_PENDING, rows)

    return change


def end_pending(
    producer_id: int, committed: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
) -> Change:
    """Forget the offsets of a producer that wait, and commit these, by their groups."""
    changes = [commit_offsets(group_id, offsets) for group_id, offsets in committed.items()]

    def change(database: sqlite3.Connection) -> None:
        for one in changes:
            one(database)
        _execute(database, "DELETE FROM pending_offset WHERE producer_id = ?", (producer_id,))

    return change


def delete_offsets(group_id: str, partitions: Iterable[TopicPartition]) -> Change:
    rows = [(group_id, *at) for at in partitions]

    def change(database: sqlite3.Connection) -> None:
        database.executemany(
            "DELETE FROM committed_offset WHERE group_id = ? AND topic = ? AND partition = ?", rows
        )

    return change


def delete_group(group_id: str) -> Change:
    """Delete a group and its committed offsets."""

    def change(database: sqlite3.Connection) -> None:
        for table in ("pending_offset", "committed_offset", "consumer_group"):
            _execute(database, f"DELETE FROM {table} WHERE group_id = ?", (group_id,))

    return change


def expire_offsets(
    group_id: str, topics: Sequence[str] | None, now_ms: int, retention_ms: int
) -> Change:
    """Delete what is older than the retention; of `topics` only, unless they are None."""
    condition = (
        "DELETE FROM committed_offset WHERE group_id = ? AND "
        "coalesce(expire_ms <= ?, commit_ms <= ?)"
    )

    def change(database: sqlite3.Connection) -> None:
        values = (group_id, now_ms, now_ms - retention_ms)
        if topics is None:
            _execute(database, condition, values)
        else:
            rows = [(*values, topic) for topic in topics]
            database.executemany(f"{condition} AND topic = ?", rows)

    return change


def _execute(database: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> None:
    database.execute(statement, values)


class OffsetStore:
    """The file `path`, created if missing. Its calls block; not thread-safe.

    RemoteMetadataError when another process has it open, CorruptDataError when it is damaged.
    """

    def __init__(self, path: str) -> None:
        self._file = Database(path, _SCHEMA)

    @property
    def path(self) -> str:
        return self._file.path

    def groups(self) -> list[SavedGroup]:
        rows = self._file.checked_rows(
            "SELECT * FROM consumer_group ORDER BY group_id", subject="consumer_group"
        )
        return [SavedGroup(*row[:-1]) for row in rows]

    def offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, in the order of their partitions; those of
        `partitions` that there are, unless it is None."""
        where = "SELECT * FROM committed_offset WHERE group_id = ?"
        if partitions is not None and len(partitions) <= _MAX_SINGLE_READS:
            found: dict[TopicPartition, CommittedOffset] = {}
            for at in partitions:
                found |= self._read(f"{where} AND topic = ? AND partition = ?", group_id, *at)
            return found
        found = self._read(f"{where} ORDER BY topic, partition", group_id)
        wanted = found if partitions is None else set(partitions)
        return {at: one for at, one in found.items() if at in wanted}

    def pending(self) -> list[tuple[int, str, TopicPartition, CommittedOffset]]:
        """Return the offsets that wait for the end of a transaction, with producer and group."""
        rows = self._file.checked_rows("SELECT * FROM pending_offset", subject="pending_offset")
        return [
            (row[0], row[1], TopicPartition(*row[2:4]), CommittedOffset(*row[4:9])) for row in rows
        ]

    def topics(self, group_id: str) -> list[str]:
        """Return the topics that a group has committed offsets of."""
        query = "SELECT DISTINCT topic FROM committed_offset WHERE group_id = ?"
        return [topic for (topic,) in self._file.rows(query, group_id)]

    def has_offsets(self, group_id: str) -> bool:
        query = "SELECT 1 FROM committed_offset WHERE group_id = ? LIMIT 1"
        return next(self._file.rows(query, group_id), None) is not None

    def apply(self, changes: Iterable[Change]) -> None:
        """Make all changes in one commit, durable on return; RemoteMetadataError when the file
        cannot be written, and none of them is made."""
        with self._file.transaction() as database:
            for change in changes:
                change(database)

    def close(self) -> None:
        self._file.close()

    def _read(self, query: str, *values: object) -> dict[TopicPartition, CommittedOffset]:
        rows = self._file.checked_rows(query, *values, subject="committed_offset")
        return {TopicPartition(*row[1:3]): CommittedOffset(*row[3:8]) for row in rows}
