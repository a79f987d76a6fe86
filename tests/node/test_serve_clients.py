"""Clients of other projects read a served archive: every record, in both isolation levels.

The truth is `tierlog.read`, whose own judge is Kafka. A consumer of each project reads each
partition of a store, of a log directory, and of both as one log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.node.golden_archive import (
    LOG_DIR,
    TRANSACTIONS_LOG_DIR,
    Row,
    golden_archive,
    records_of,
)
from tests.node.running import PATIENCE_S, Running, serving
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.open import open_reader

# These clients open other codecs only with further packages.
PLAIN = ("epochs", "idempotent", "codec-none")
LEVELS = [pytest.param(False, id="uncommitted"), pytest.param(True, id="committed")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return golden_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module", params=["store", "directory", "both"])
def served(request: pytest.FixtureRequest, archive: str) -> Iterator[tuple[Running, str]]:
    """The server, and the kind of its sources."""
    sources = {"store": [archive], "directory": [LOG_DIR], "both": [archive, LOG_DIR]}
    with serving(*sources[request.param]) as server:
        yield server, request.param


def truth(kind: str, archive: str, topic: str, partition: int, committed: bool) -> list[Row]:
    source = archive if kind == "store" else LOG_DIR
    store = archive if kind == "both" else None
    return records_of(source, topic, partition, store=store, committed=committed)


def partitions_of(kind: str, archive: str) -> list[tuple[str, int]]:
    """The partitions that have records."""
    if kind == "store":
        return [(one.topic, one.partition) for one in open_reader(archive).partitions()]
    logs = open_log_dir(LOG_DIR).partitions()
    # KRaft's own log is no topic.
    return [(one.topic, one.partition) for one in logs if not one.is_cluster_metadata]


def consumer_of(server: Running, committed: bool) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
            "fetch.queue.backoff.ms": 1,
        }
    )


def read_all(
    consumer: Consumer, partitions: list[tuple[str, int]]
) -> dict[tuple[str, int], list[Row]]:
    """All records of some partitions."""
    consumer.assign([TopicPartition(*one, OFFSET_BEGINNING) for one in partitions])
    rows: dict[tuple[str, int], list[Row]] = {one: [] for one in partitions}
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        at = message.topic(), message.partition()
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(at)
        else:
            rows[at].append(row_of(message))
    return rows


def row_of(message: Message) -> Row:
    return message.offset(), message.key(), message.value(), message.timestamp()[1]


def test_committed_records_of_a_store_leave_out_aborted_ones(tmp_path: Path) -> None:
    url = golden_archive(tmp_path, TRANSACTIONS_LOG_DIR)
    partitions = [("transactions", 0), ("transactions-java", 0)]
    with serving(url) as server:
        found = {}
        for committed in (False, True):
            consumer = consumer_of(server, committed)
            found[committed] = read_all(consumer, partitions)
            consumer.close()
    for one in partitions:
        for committed, rows in found.items():
            assert rows[one] == records_of(url, *one, committed=committed)
        assert 0 < len(found[True][one]) < len(found[False][one])


@pytest.mark.parametrize("committed", LEVELS)
def test_librdkafka_reads_every_record(
    served: tuple[Running, str], archive: str, committed: bool
) -> None:
    server, kind = served
    consumer = consumer_of(server, committed)
    found = read_all(consumer, partitions_of(kind, archive))
    for (topic, partition), rows in found.items():
        assert rows == truth(kind, archive, topic, partition, committed), topic
    consumer.close()


@pytest.mark.parametrize("committed", LEVELS)
def test_librdkafka_reads_from_every_offset(
    served: tuple[Running, str], archive: str, committed: bool
) -> None:
    """Across the border between the store and the directory."""
    server, kind = served
    consumer = consumer_of(server, committed)
    rows = truth(kind, archive, "epochs", 0, committed)
    consumer.assign([TopicPartition("epochs", 0, rows[0][0])])
    assert consumer.poll(PATIENCE_S) is not None
    for row in rows:
        consumer.seek(TopicPartition("epochs", 0, row[0]))
        message = consumer.poll(PATIENCE_S)
        while message is not None and message.error() is not None:
            message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert row_of(message) == row
    consumer.close()


def test_librdkafka_seeks_by_time(served: tuple[Running, str], archive: str) -> None:
    server, kind = served
    consumer = consumer_of(server, False)
    rows = truth(kind, archive, "times-appended", 0, False)
    for wanted in {row[3] for row in rows} | {rows[0][3] - 1, rows[-1][3] + 1}:
        expected = next((row[0] for row in rows if row[3] >= wanted), -1)
        asked = TopicPartition("times-appended", 0, wanted)
        (found,) = consumer.offsets_for_times([asked], timeout=PATIENCE_S)
        assert found.offset == expected
    consumer.close()


@pytest.mark.parametrize("committed", LEVELS)
def test_kafka_python_reads_every_record(
    served: tuple[Running, str], archive: str, committed: bool
) -> None:
    server, kind = served
    level = "read_committed" if committed else "read_uncommitted"
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=server.bootstrap, isolation_level=level, enable_auto_commit=False
    )
    for topic in PLAIN:
        expected = truth(kind, archive, topic, 0, committed)
        at = kafka.TopicPartition(topic, 0)
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        found: list[Row] = []
        while len(found) < len(expected):
            for records in consumer.poll(timeout_ms=1_000).values():
                found += [(row.offset, row.key, row.value, row.timestamp) for row in records]
        assert found == expected, topic
        assert consumer.end_offsets([at])[at] >= (found[-1][0] + 1 if found else 0)
    consumer.close()


async def read_with_aiokafka(
    bootstrap: str, topic: str, partition: int, committed: bool, count: int
) -> list[Row]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed" if committed else "read_uncommitted",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        at = aiokafka.TopicPartition(topic, partition)
        consumer.assign([at])
        await consumer.seek_to_beginning(at)
        rows: list[Row] = []
        while len(rows) < count:
            row = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            rows.append((row.offset, row.key, row.value, row.timestamp))
        return rows
    finally:
        await consumer.stop()


@pytest.mark.parametrize("committed", LEVELS)
def test_aiokafka_reads_every_record(
    served: tuple[Running, str], archive: str, committed: bool
) -> None:
    server, kind = served
    for topic in PLAIN:
        expected = truth(kind, archive, topic, 0, committed)
        found = asyncio.run(
            read_with_aiokafka(server.bootstrap, topic, 0, committed, len(expected))
        )
        assert found == expected, topic
