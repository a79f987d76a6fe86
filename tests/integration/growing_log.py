"""A log that is written, tiered and expired by a real broker while it is read."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message, Producer

from tests.fetch.views import Row, consumed
from tests.integration.kafka_wire import KafkaWire
from tests.integration.tiered_logs import KafkaBeside
from tests.kafka_tools import KafkaBroker
from tests.oracle import batches as oracle
from tierlog.clock import ManualClock
from tierlog.reader.types import (
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)
from tierlog.tiering.copy import SegmentCopier
from tierlog.types import TopicIdPartition

__all__ = ["GROWING", "GROWING_CONFIG", "LiveHost", "Reader", "Writer"]

GROWING = "growing"
# One or two rolled segments are local as well; some twenty in all, and the rest is gone.
GROWING_CONFIG = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": 12_288,
    "index.interval.bytes": 512,
    "local.retention.bytes": 24_576,
    "retention.bytes": 300_000,
    "file.delete.delay.ms": 300,
}
RECORDS = 10


class LiveHost(KafkaBeside):
    """Asks the broker at every look where the borders are now."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lock = threading.Lock()
        self.wire = KafkaWire(self.broker.bootstrap_servers)

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        with self._lock:
            return self.look(self.wire, partition.topic)

    def expire(self, topic: str, log_start_offset: int) -> int:
        """Segments wholly below the log start leave our store too; returns how many."""
        copier = SegmentCopier(self.storage, self.metadata, clock=ManualClock(), broker_id=1)
        gone = [
            one
            for one in self.metadata.list(self.partitions[topic])
            if one.end_offset < log_start_offset
        ]
        for one in gone:
            copier.delete(one)
        return len(gone)

    def close(self) -> None:
        self.wire.__exit__()
        super().close()


class Writer(threading.Thread):
    """Writes transactions, every third of them aborted, and keeps the ledger of what was acked.

    After each one it brings into our store what has rolled: well before Kafka deletes it.
    """

    def __init__(self, broker: KafkaBroker, host: LiveHost, transactions: int) -> None:
        super().__init__(name="writer")
        self.acked: dict[int, Row] = {}
        self.aborted: set[int] = set()
        self.expired = 0
        self.error: BaseException | None = None
        self._host = host
        self._transactions = transactions
        self._random = random.Random(11)
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "growing",
                "linger.ms": 1,
                "batch.num.messages": 4,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        try:
            self._producer.init_transactions(30)
            for number in range(self._transactions):
                self._write(number)
                view = self._host.view(self._host.partitions[GROWING])
                assert view is not None
                self._host.copy(GROWING, view.last_stable_offset)
                self.expired += self._host.expire(GROWING, view.log_start_offset)
        except BaseException as error:
            self.error = error
            raise

    def _write(self, number: int) -> None:
        written: list[int] = []
        self._producer.begin_transaction()
        for record in range(RECORDS):
            key = f"{number}-{record}".encode()
            value = self._random.randbytes(self._random.randint(0, 600))
            self._producer.produce(
                GROWING, key=key, value=value, partition=0, on_delivery=self._ledger(written, value)
            )
        self._producer.flush(30)
        assert len(written) == RECORDS
        if number % 3 == 2:
            self.aborted.update(written)
            self._producer.abort_transaction(30)
        else:
            self._producer.commit_transaction(30)

    def _ledger(self, written: list[int], value: bytes) -> Callable[[object, Message], None]:
        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            key = message.key()
            assert isinstance(key, bytes)
            self.acked[offset] = (offset, key, value)
            written.append(offset)

        return delivered

    def rows(self, isolation: IsolationLevel) -> list[Row]:
        """What a reader of everything would have seen."""
        hidden = self.aborted if isolation is IsolationLevel.READ_COMMITTED else ()
        return [row for offset, row in sorted(self.acked.items()) if offset not in hidden]


@dataclass
class Reader:
    """A consumer of ours: goes on from offset to offset, to the log start when it fell behind."""

    host: LiveHost
    partition: TopicIdPartition
    isolation: IsolationLevel
    offset: int
    max_bytes: Sequence[int]
    rows: list[Row] = field(default_factory=list)
    # [from, to) that had expired before it came there.
    missed: list[tuple[int, int]] = field(default_factory=list)
    sources: list[FetchSource] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self.begin = self.offset
        self._turn = 0

    def step(self) -> PartitionData:
        """One fetch, and what a client makes of it."""
        self._turn += 1
        asked = FetchPartition(
            partition=self.partition,
            fetch_offset=self.offset,
            max_bytes=self.max_bytes[self._turn % len(self.max_bytes)],
        )
        request = FetchRequest(partitions=(asked,), max_wait_ms=0, isolation_level=self.isolation)
        (answer,) = self.host.fetcher.fetch_sync(request).partitions
        if answer.error is FetchError.OFFSET_OUT_OF_RANGE:
            assert self.offset < answer.log_start_offset, answer
            self.missed.append((self.offset, answer.log_start_offset))
            self.offset = answer.log_start_offset
        elif answer.error is not FetchError.NONE:
            # It expires at this very moment: a client asks again.
            assert answer.error is FetchError.KAFKA_STORAGE_ERROR, answer
            self.failed += 1
        elif answer.size_bytes:
            self.rows += consumed(answer.records, self.offset, answer.aborted_transactions)
            batches, _, _ = oracle.scan(bytes(answer.records))
            self.offset = batches[-1].last_offset + 1
            if not self.sources or self.sources[-1] is not answer.source:
                self.sources.append(answer.source)
        return answer

    def expected(self, rows: Sequence[Row]) -> list[Row]:
        """Of all there ever were, those between its beginning and where it is now."""
        return [
            row
            for row in rows
            if self.begin <= row[0] < self.offset
            and not any(start <= row[0] < end for start, end in self.missed)
        ]

    def reachable(self) -> int:
        """How far it can come now."""
        view = self.host.view(self.partition)
        assert view is not None
        committed = self.isolation is IsolationLevel.READ_COMMITTED
        return view.last_stable_offset if committed else view.high_watermark
