"""Assignments of partitions to brokers. They are read and written as JSON in the format of Kafka's
own tool.

People and scripts write the files, so the parser treats them as hostile. The parser limits the size
of a file. The errors of the parser name the file and the entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition, is_topic_name

__all__ = [
    "ANY_LOG_DIR",
    "Assignment",
    "Placement",
    "format_assignment",
    "parse_assignment",
    "parse_topics",
    "partition_name",
    "read_json",
]

ANY_LOG_DIR = "any"
"""Lets the broker choose the log directory, or leave the replica in its present log directory."""

_MAX_FILE_BYTES = 64 << 20
_MAX_NUMBER = (1 << 31) - 1
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Placement:
    """The replicas of a partition, the preferred leader first, and a log directory for each."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()

    def log_dir_of(self, broker_id: int) -> str:
        """Return the log directory of a replica."""
        if not self.log_dirs:
            return ANY_LOG_DIR
        return self.log_dirs[self.replicas.index(broker_id)]


Assignment = Mapping[TopicPartition, Placement]


def partition_name(partition: TopicPartition) -> str:
    """Return the name of a partition as Kafka's tool prints it: ``orders-0``."""
    return f"{partition.topic}-{partition.partition}"


def read_json(path: str) -> str:
    """Return the text of a JSON file. Raises ConfigError when the file is too large or not
    UTF-8."""
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: expected at most {_MAX_FILE_BYTES} bytes, found more")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8, found another byte at {error.start}") from error


def parse_assignment(text: str, source: str) -> dict[TopicPartition, Placement]:
    """Return the assignment in the JSON of Kafka's ``--reassignment-json-file``.

    ``source`` is the file's name in errors. Raises ConfigError for an unknown version, for an empty
    or duplicate replica and for a duplicate partition; the error names the entry.
    """
    found: dict[TopicPartition, Placement] = {}
    for number, entry in enumerate(_entries(text, source, "partitions")):
        where = f"{source}: partitions[{number}]"
        partition = TopicPartition(_topic(entry, where), _number(entry, "partition", where))
        placement = _placement(entry, f"{where} ({partition_name(partition)})")
        if partition in found:
            raise ConfigError(f"{where}: {partition_name(partition)} occurs twice; remove one")
        found[partition] = placement
    if not found:
        raise ConfigError(f"{source}: expected at least one partition, found none")
    return found


def parse_topics(text: str, source: str) -> list[str]:
    """Return the topics in the JSON of Kafka's ``--topics-to-move-json-file``."""
    entries = _entries(text, source, "topics")
    return [_topic(entry, f"{source}: topics[{n}]") for n, entry in enumerate(entries)]


def format_assignment(assignment: Assignment) -> str:
    """Return the JSON of an assignment in one line, as Kafka's tool prints it."""
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(placement.replicas),
            "log_dirs": [placement.log_dir_of(one) for one in placement.replicas],
        }
        for partition, placement in sorted(assignment.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


def _entries(text: str, source: str, name: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: expected JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get(name), list):
        raise ConfigError(
            f"{source}: expected an object with a list {name!r}, found {_short(text)}"
        )
    version = document.get("version")
    if version != 1 or isinstance(version, bool):
        raise ConfigError(f"{source}: expected version 1, found {_short(version)}")
    for number, entry in enumerate(document[name]):
        if not isinstance(entry, dict):
            raise ConfigError(
                f"{source}: {name}[{number}]: expected an object, found {_short(entry)}"
            )
    entries: list[dict[str, Any]] = document[name]
    return entries


def _topic(entry: Mapping[str, Any], where: str) -> str:
    topic = entry.get("topic")
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise ConfigError(f"{where}: expected a topic's name, found {_short(topic)}")
    return topic


def _number(entry: Mapping[str, Any], name: str, where: str) -> int:
    return _id(entry.get(name), f"{where}: {name}")


def _id(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_NUMBER:
        raise ConfigError(
            f"{where}: expected a number from 0 to {_MAX_NUMBER}, found {_short(value)}"
        )
    return value


def _placement(entry: Mapping[str, Any], where: str) -> Placement:
    given = entry.get("replicas")
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where}: expected a list of broker ids, found {_short(given)}")
    replicas = tuple(_id(one, f"{where}: replicas") for one in given)
    _refuse_duplicates(replicas, where)
    log_dirs = entry.get("log_dirs")
    if log_dirs is None:
        return Placement(replicas)
    if (
        not isinstance(log_dirs, list)
        or len(log_dirs) != len(replicas)
        or not all(isinstance(one, str) and one for one in log_dirs)
    ):
        raise ConfigError(
            f"{where}: log_dirs: expected one absolute path or 'any' for each of the "
            f"{len(replicas)} replicas, found {_short(log_dirs)}"
        )
    for one in log_dirs:
        if one != ANY_LOG_DIR and not one.startswith("/"):
            raise ConfigError(f"{where}: log_dirs: expected an absolute path, found {_short(one)}")
    return Placement(replicas, () if set(log_dirs) == {ANY_LOG_DIR} else tuple(log_dirs))


def _refuse_duplicates(replicas: Iterable[int], where: str) -> None:
    seen: set[int] = set()
    for one in replicas:
        if one in seen:
            raise ConfigError(f"{where}: replicas: broker {one} occurs twice; remove one")
        seen.add(one)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return repr(shown) if isinstance(value, str) else shown
