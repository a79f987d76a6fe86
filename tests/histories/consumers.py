"""What stock consumers read, and what tierlog reads: rows that can be compared."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tierlog
from tests.integration.ledger import Partition, digest
from tests.integration.tier_process import TIERLOG
from tests.kafka_tools.support import wait_until

__all__ = ["ISOLATIONS", "Row", "Tail", "end_offsets", "read_archive", "read_cat", "read_cluster"]

ISOLATIONS = ("read_uncommitted", "read_committed")
PATIENCE_S = 400


class Row(NamedTuple):
    """A record: where it is, and the digest of all its fields."""

    offset: int
    digest: int


class Tail(threading.Thread):
    """A stock consumer that reads partitions from their beginning on, until stopped."""

    def __init__(self, bootstrap: str, partitions: Iterable[Partition], isolation: str) -> None:
        super().__init__(name=f"tail-{isolation}")
        self.rows: dict[Partition, list[Row]] = defaultdict(list)
        self.positions: dict[Partition, int] = {}
        self.error: str | None = None
        self._partitions = tuple(partitions)
        self._isolation = isolation
        self._consumer = _consumer(bootstrap, isolation)
        self._stopped = threading.Event()

    def run(self) -> None:
        """Read until stopped, or until the consumer cannot go on."""
        self._consumer.assign(_from_the_start(self._partitions))
        while not self._stopped.is_set() and self.error is None:
            for message in self._consumer.consume(500, timeout=0.5):
                self._take(message)

    def _take(self, message: Any) -> None:
        partition, error = (message.topic(), message.partition()), message.error()
        if error is None:
            self.rows[partition].append(_row(message))
        elif error.name() == "_PARTITION_EOF":
            # Its offset lies behind markers of transactions, which are no records.
            self.positions[partition] = message.offset()
        elif not _passes(error):
            self.error = str(error)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()
        self._consumer.close()

    def wait_for(self, ends: dict[Partition, int]) -> None:
        """Wait until the consumer has read up to these offsets."""
        wait_until(
            lambda: (
                self.error is not None
                or all(self.positions.get(one, -1) >= ends[one] for one in self._partitions)
            ),
            PATIENCE_S,
            what=f"{self.name} at {ends}",
        )


def _consumer(bootstrap: str, isolation: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "histories",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        },
        error_cb=lambda _: None,
    )


def _from_the_start(partitions: Iterable[Partition]) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(*one, 0) for one in partitions]


def _passes(error: Any) -> bool:
    """Return whether the error is one of a broker that is away."""
    return bool(error.retriable()) or error.name().startswith("_TRANSPORT")


def _row(message: Any) -> Row:
    _, timestamp_ms = message.timestamp()
    fields = timestamp_ms, message.key(), message.value(), message.headers() or []
    return Row(message.offset(), digest(*fields))


def end_offsets(bootstrap: str, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the high watermarks, once every transaction has ended below them."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = {TopicPartition(*one): OffsetSpec.latest() for one in partitions}

    def ends(isolation: Any) -> dict[Partition, int]:
        found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=20)
        return {(one.topic, one.partition): future.result().offset for one, future in found.items()}

    wait_until(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        PATIENCE_S,
        what="the end of every transaction",
        interval_s=0.5,
    )
    return ends(IsolationLevel.READ_UNCOMMITTED)


def read_cluster(bootstrap: str, partition: Partition, isolation: str, end: int) -> list[Row]:
    """Read a partition as it is in the cluster, up to offset `end`."""
    tail = Tail(bootstrap, [partition], isolation)
    tail.start()
    try:
        tail.wait_for({partition: end})
    finally:
        tail.stop()
    assert tail.error is None, tail.error
    return tail.rows[partition]


def read_archive(
    source: str, partition: Partition, isolation: Any, store: str | None = None
) -> list[Row]:
    """Read a partition with `tierlog.read`."""
    return list(_archived(source, partition, isolation, store))


def _archived(
    source: str, partition: Partition, isolation: Any, store: str | None
) -> Iterator[Row]:
    topic, number = partition
    for columns in tierlog.read(source, topic, number, store=store, isolation_level=isolation):
        for record in columns.records():
            headers = [(name.decode(), value) for name, value in record.headers]
            fields = record.timestamp_ms, record.key, record.value, headers
            yield Row(record.offset, digest(*fields))


def read_cat(
    log_dir: Path, partition: Partition, isolation: str, store: str
) -> tuple[list[Row], str]:
    """Read a partition with ``tierlog cat``; also return what it said on stderr."""
    name = f"{partition[0]}:{partition[1]}"
    command = [TIERLOG, "cat", str(log_dir), name, "--store", store, "-J"]
    if isolation == "read_committed":
        command.append("--read-committed")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return [_row_of_line(line) for line in done.stdout.splitlines()], done.stderr


def _row_of_line(line: str) -> Row:
    found = json.loads(line)
    named: Sequence[str | None] = found.get("headers", ())
    headers = [
        (name, None if value is None else value.encode())
        for name, value in zip(named[::2], named[1::2], strict=True)
    ]
    value = found["payload"]
    fields = found["ts"], found["key"].encode(), None if value is None else value.encode(), headers
    return Row(found["offset"], digest(*fields))
