"""A node and a real broker with the same bytes: what do consumers read from every offset?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from tests.fetch.views import Row, consumed
from tests.integration.kafka_wire import KafkaWire, WireAsk
from tests.kafka_tools import KafkaBroker
from tests.node.nodes import NodeProcess, running_node
from tests.node.running import RawClient
from tierlog.fetch.offsets import SpecialTimestamp
from tierlog.log.index_files import AbortedTransaction
from tierlog.reader.types import FetchError, IsolationLevel

pytestmark = pytest.mark.integration

TOPIC = "orders"
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "12288",
    "index.interval.bytes": "512",
    "local.retention.bytes": "24576",
    "retention.bytes": "90000",
}
NODE = {"remote.log.manager.task.interval.ms": 100, "tierlog.retention.max.deleted.ratio": 1}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS, PASSES, STEP = 60, 3, 40
FIRST_ROUNDS = 20


class Mirror:
    """Sends records to a broker, and the batches that the broker made of them to a node."""

    def __init__(self, broker: KafkaBroker, node: NodeProcess) -> None:
        self.rows: list[Row] = []
        self._truth = KafkaWire(broker.bootstrap_servers)
        host, _, port = node.bootstrap_servers.rpartition(":")
        self._node = RawClient((host, int(port)))
        settings = {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        self._producers = [Producer(settings | {"compression.type": one}) for one in CODECS]
        self._rounds = 0

    def close(self) -> None:
        self._truth.__exit__()
        self._node.__exit__()

    def send(self) -> None:
        """Write one more round to both; `rows` then has what the broker shows."""
        producer = self._producers[self._rounds % len(CODECS)]
        for number in range(RECORDS):
            # Values that no codec makes small.
            value = (
                b"%d/" % self._rounds + number.to_bytes(2) * 30 + bytes(range(number, 2 * number))
            )
            producer.produce(TOPIC, value or None, b"%d" % number, partition=0)
        assert producer.flush(60) == 0
        self._rounds += 1
        first = len(self.rows)
        (data,) = self._truth.fetch([WireAsk(TOPIC, first, 1 << 24)], isolation=0)
        assert data.error == 0
        new = consumed(data.records, first, None)
        assert [row[0] for row in new] == list(range(first, first + RECORDS))
        assert self._forward(data.records) == first
        self.rows += new

    def _forward(self, records: bytes) -> int:
        topic = ProduceRequest.TopicProduceData
        one = topic.PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[topic(name=TOPIC, partition_data=[one])],
        )
        self._node.request(request, 8)
        frame = self._node.read_frame()
        assert frame is not None
        answer = ProduceResponse.decode(frame, version=8, header=True)
        (answered,) = answer.responses[0].partition_responses
        assert answered.error_code == 0, answered
        return int(answered.base_offset)


@contextmanager
def writing(mirror: Mirror) -> Iterator[threading.Semaphore]:
    """Write a round in another thread for each release of the semaphore."""
    allowed, is_over = threading.Semaphore(0), threading.Event()

    def write() -> None:
        while allowed.acquire() and not is_over.is_set():
            mirror.send()

    failed: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield allowed
    finally:
        is_over.set()
        allowed.release()
        thread.join()
    assert not failed, failed


def read_every_offset(
    ours: KafkaWire, mirror: Mirror, level: IsolationLevel, allowed: threading.Semaphore
) -> tuple[int, int]:
    """Read once from every offset that the node has, and compare with what the broker shows.

    Return the log start offset and the local log start offset before that."""
    start = offset_of(ours, SpecialTimestamp.EARLIEST)
    local_start = offset_of(ours, SpecialTimestamp.EARLIEST_LOCAL)
    end = len(mirror.rows)
    for first in range(start, end, STEP):
        allowed.release()
        asks = [WireAsk(TOPIC, offset, 2000) for offset in range(first, min(first + STEP, end))]
        answers = ours.fetch_each(asks, isolation=int(level))
        for ask, data in zip(asks, answers, strict=True):
            if data.error == FetchError.OFFSET_OUT_OF_RANGE:
                assert ask.offset < offset_of(ours, SpecialTimestamp.EARLIEST)
                continue
            assert data.error == 0, (ask, data)
            aborted = None
            if data.aborted is not None:
                aborted = [AbortedTransaction(*one, 0, 0) for one in data.aborted]
            rows = consumed(data.records, ask.offset, aborted)
            assert rows, ask
            assert rows == mirror.rows[ask.offset : ask.offset + len(rows)]
    return start, local_start


def offset_of(ours: KafkaWire, timestamp: int) -> int:
    answer = ours.list_offset(TOPIC, timestamp)
    assert answer.error == 0
    return answer.offset


def read_all(node: NodeProcess, start: int, last: int, level: str) -> list[Row]:
    """Read with librdkafka from `start` up to the record at `last`."""
    settings = {
        "bootstrap.servers": node.bootstrap_servers,
        "group.id": "reader",
        "isolation.level": level,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, 0, start)])
    rows: list[Row] = []
    while not rows or rows[-1][0] < last:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def test_every_offset_while_records_are_tiered_and_expire(tmp_path: Path) -> None:
    with (
        KafkaBroker(tmp_path / "kafka") as broker,
        running_node(tmp_path / "node", NODE, store=(tmp_path / "store").as_uri()) as node,
        KafkaWire(node.bootstrap_servers) as ours,
    ):
        broker.create_topic(TOPIC)
        wanted = NewTopic(TOPIC, 1, 1, config=TIERED)
        node.admin.create_topics([wanted])[TOPIC].result(30)
        mirror = Mirror(broker, node)
        try:
            for _ in range(FIRST_ROUNDS):
                mirror.send()
            seen: list[tuple[int, int]] = []
            with writing(mirror) as allowed:
                while len(seen) < 2 * PASSES or len({start for start, _ in seen}) < PASSES:
                    seen += [
                        read_every_offset(ours, mirror, one, allowed) for one in IsolationLevel
                    ]
            # Both tiers were read, and the borders moved meanwhile.
            assert sum(start < local_start for start, local_start in seen) >= PASSES
            assert len({local_start for _, local_start in seen}) >= PASSES
            start = offset_of(ours, SpecialTimestamp.EARLIEST)
            for level in ("read_committed", "read_uncommitted"):
                found = read_all(node, start, len(mirror.rows) - 1, level)
                # Earlier ones may have expired meanwhile.
                assert found == mirror.rows[found[0][0] :]
            assert not node.errors.read_text()
        finally:
            mirror.close()
