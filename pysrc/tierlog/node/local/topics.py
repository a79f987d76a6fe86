"""The topics of a node that has no controller, durable in an SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from tierlog.errors import ConfigError
from tierlog.types import random_kafka_uuid

__all__ = ["StoredTopic", "TopicStore"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS topic (
    name TEXT PRIMARY KEY,
    topic_id TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    first_run INTEGER NOT NULL,
    settings TEXT NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS node_settings (node TEXT PRIMARY KEY, settings TEXT NOT NULL) STRICT;
"""
_FORMAT = "1"
_PRODUCER_ID_BLOCK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic. ``leader_epoch`` grows with every start of the node."""

    name: str
    topic_id: str
    partitions: int
    settings: Mapping[str, str]
    leader_epoch: int


class TopicStore:
    """Topics, their settings, and the producer ids that were given out. Any thread; calls block.

    ConfigError when the file is of another format or is no database.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)
            found = self._value("format", _FORMAT)
            if found != _FORMAT:
                raise ConfigError(f"{path}: expected format {_FORMAT}, found {found}")
            self.cluster_id = self._value("cluster_id", random_kafka_uuid())
            self._run = int(self._value("run", "-1")) + 1
            self._set("run", str(self._run))
            self._next_producer_id = self._reserved = int(self._value("producer_ids", "0"))
        except (sqlite3.DatabaseError, ValueError) as error:
            self._database.close()
            raise ConfigError(f"{path}: cannot be used: {error}") from error
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file; may be repeated."""
        with self._lock:
            self._database.close()

    def _value(self, name: str, default: str) -> str:
        """Return a value, which is stored as `default` the first time."""
        row = self._database.execute("SELECT value FROM node WHERE name = ?", (name,)).fetchone()
        if row is None:
            self._set(name, default)
            return default
        return str(row[0])

    def _set(self, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO node VALUES (?, ?)", (name, value))

    # -- topics

    def topics(self) -> list[StoredTopic]:
        """Return the topics that are not deleted."""
        return self._select(deleted=0)

    def deleted_topics(self) -> list[StoredTopic]:
        """Return the topics whose deletion has begun and is not finished."""
        return self._select(deleted=1)

    def _select(self, *, deleted: int) -> list[StoredTopic]:
        with self._lock:
            rows = self._database.execute(
                "SELECT name, topic_id, partitions, first_run, settings FROM topic "
                "WHERE deleted = ? ORDER BY name",
                (deleted,),
            ).fetchall()
        return [
            StoredTopic(
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                settings=json.loads(settings),
                leader_epoch=self._run - first_run,
            )
            for name, topic_id, partitions, first_run, settings in rows
        ]

    def create(self, name: str, partitions: int, settings: Mapping[str, str]) -> StoredTopic:
        """Store a new topic durably and return it. KeyError when its name is taken."""
        topic_id = random_kafka_uuid()
        row = (name, topic_id, partitions, self._run, _text_of(settings))
        try:
            with self._lock:
                self._database.execute(
                    "INSERT INTO topic (name, topic_id, partitions, first_run, settings) "
                    "VALUES (?, ?, ?, ?, ?)",
                    row,
                )
        except sqlite3.IntegrityError as error:
            raise KeyError(name) from error
        return StoredTopic(
            name=name,
            topic_id=topic_id,
            partitions=partitions,
            settings=dict(settings),
            leader_epoch=0,
        )

    def set_partitions(self, topic_id: str, partitions: int) -> None:
        """Store the number of partitions of a topic durably."""
        with self._lock:
            self._database.execute(
                "UPDATE topic SET partitions = ? WHERE topic_id = ?", (partitions, topic_id)
            )

    def set_settings(self, topic_id: str, settings: Mapping[str, str]) -> None:
        """Store the settings of a topic durably."""
        with self._lock:
            self._database.execute(
                "UPDATE topic SET settings = ? WHERE topic_id = ?", (_text_of(settings), topic_id)
            )

    def begin_deletion(self, topic_id: str) -> None:
        """Record durably that a topic is to be deleted; a crash then resumes the deletion. Its
        name is free only after `finish_deletion`."""
        with self._lock:
            self._database.execute("UPDATE topic SET deleted = 1 WHERE topic_id = ?", (topic_id,))

    def finish_deletion(self, topic_id: str) -> None:
        """Forget a deleted topic."""
        with self._lock:
            self._database.execute("DELETE FROM topic WHERE topic_id = ?", (topic_id,))

    # -- settings of the node

    def node_settings(self, node: str) -> Mapping[str, str]:
        """Return the dynamic settings of a node, those of all nodes for an empty name."""
        with self._lock:
            row = self._database.execute(
                "SELECT settings FROM node_settings WHERE node = ?", (node,)
            ).fetchone()
        return {} if row is None else dict(json.loads(row[0]))

    def set_node_settings(self, node: str, settings: Mapping[str, str]) -> None:
        """Store them durably."""
        with self._lock:
            self._database.execute(
                "INSERT OR REPLACE INTO node_settings VALUES (?, ?)", (node, _text_of(settings))
            )

    # -- producers

    def next_producer_id(self) -> int:
        """Return a producer id that was never given out, also not by an earlier process."""
        with self._lock:
            if self._next_producer_id == self._reserved:
                self._reserved += _PRODUCER_ID_BLOCK
                self._set("producer_ids", str(self._reserved))
            self._next_producer_id += 1
            return self._next_producer_id - 1


def _text_of(settings: Mapping[str, str]) -> str:
    return json.dumps(dict(settings), sort_keys=True)
