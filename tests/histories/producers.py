"""Producers that go on until told to stop: idempotent ones, and one with transactions."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from tests.histories.consumers import Row
from tests.integration.ledger import Ledger, Partition, digest

__all__ = ["Fate", "IdempotentWriter", "TransactionLedger", "TransactionalWriter", "Writer"]

# What a writer sends between two waits, and how often.
BURST, BURSTS_PER_S = 5, 12
TEXT = "abcdefghijklmnopqrstuvwxyz0123456789"


class Fate(StrEnum):
    """How a transaction ended. UNKNOWN: a commit was asked for, and its answer never came."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class TransactionLedger:
    """The records of each transaction and how it ended. Written by one thread."""

    def __init__(self) -> None:
        self._records: list[tuple[Fate, frozenset[int]]] = []

    def note(self, fate: Fate, records: frozenset[int]) -> None:
        """Note how the transaction with these records ended."""
        self._records.append((fate, records))

    def count(self, fate: Fate) -> int:
        """Return the number of transactions that ended so."""
        return sum(one is fate for one, _ in tuple(self._records))

    def records(self, fate: Fate) -> frozenset[int]:
        """Return the records of all transactions that ended so."""
        return frozenset().union(*(found for one, found in tuple(self._records) if one is fate))

    def first_unsettled(self, rows: Sequence[Row], offset: int) -> int:
        """Return the offset below which every transaction has ended, seen from `offset`: where the
        last one with a record up to there began, since one begins when the last one has ended."""
        last = offset + 1
        known = {content: records for _, records in tuple(self._records) for content in records}
        within = [row for row in rows if row.offset <= offset and row.digest in known]
        if not within:
            return last
        records = known[within[-1].digest]
        return min(row.offset for row in within if row.digest in records)


class Writer(ABC, threading.Thread):
    """A producer in a thread. ``may_send`` holds a partition back while its copies are behind."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        ledger: Ledger,
        partitions: Sequence[Partition],
        *,
        seed: int,
        may_send: Callable[[Partition], bool],
        settings: dict[str, object],
    ) -> None:
        super().__init__(name=name)
        self.error: BaseException | None = None
        self._settings = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 300_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **settings,
        }
        self._ledger = ledger
        self._partitions = partitions
        self._may_send = may_send
        self._random = random.Random(seed)
        self._stopped = threading.Event()
        self._number = 0

    def run(self) -> None:
        """Send bursts until stopped."""
        try:
            self._go_on()
        except BaseException as error:  # noqa: BLE001 - raised again by `stop`
            self.error = error

    def stop(self) -> None:
        """End the thread; raise what it raised."""
        self._stopped.set()
        self.join()
        if self.error is not None:
            raise self.error

    @abstractmethod
    def _go_on(self) -> None: ...

    def _producer(self) -> Any:
        from confluent_kafka import Producer

        return Producer(self._settings, error_cb=lambda _: None)

    def _is_over(self) -> bool:
        return self._stopped.wait(1 / BURSTS_PER_S)

    def _send_burst(self, producer: Any) -> list[int]:
        """Send some records to one partition; return their digests."""
        partition = self._random.choice(self._partitions)
        if not self._may_send(partition):
            producer.poll(0)
            return []
        return [self._send(producer, partition) for _ in range(BURST)]

    def _send(self, producer: Any, partition: Partition) -> int:
        self._number += 1
        key = f"{self.name}-{self._number}"
        size = self._random.randrange(100, 2000)
        text = "".join(self._random.choices(TEXT, k=size))
        value = None if self._number % 17 == 0 else f"{key} {text}".encode()
        headers = [("number", str(self._number).encode()), ("none", None)][: self._number % 3]
        timestamp_ms = time.time_ns() // 1_000_000
        content = digest(timestamp_ms, key.encode(), value, headers)
        delivered = self._ledger.expect_ack(partition, content)
        try:
            producer.produce(
                partition[0],
                key=key,
                value=value,
                partition=partition[1],
                timestamp=timestamp_ms,
                headers=headers,
                on_delivery=delivered,
            )
        except BufferError:
            self._ledger.note_failure()
        producer.poll(0)
        return content


class IdempotentWriter(Writer):
    """An idempotent producer without transactions."""

    def _go_on(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        producer = self._producer()
        while not self._is_over():
            try:
                self._send_burst(producer)
            except KafkaException as error:
                # An unclean election may lose what its sequence numbers continue. A refused record
                # names the fatal error by its code alone.
                if not error.args[0].fatal() and error.args[0].code() != KafkaError._FATAL:
                    raise
                producer = self._producer()
        producer.flush(400)


class TransactionalWriter(Writer):
    """Transactions that are committed, aborted, or left by a producer that dies."""

    def __init__(self, *args: Any, transactions: TransactionLedger, **options: Any) -> None:
        super().__init__(*args, **options)
        self._transactions = transactions

    def _go_on(self) -> None:
        from confluent_kafka import KafkaException

        producer = self._new_producer()
        while not self._stopped.is_set():
            sent: set[int] = set()
            is_committing = False
            try:
                producer.begin_transaction()
                for _ in range(self._random.randrange(1, 6)):
                    sent.update(self._send_burst(producer))
                    self._is_over()
                producer.flush(400)
                end = self._random.choices(["commit", "abort", "die"], [6, 3, 1])[0]
                if end == "commit":
                    is_committing = True
                    self._repeat(producer.commit_transaction)
                    self._transactions.note(Fate.COMMITTED, frozenset(sent))
                    continue
                if end == "abort":
                    self._repeat(producer.abort_transaction)
                else:
                    producer = self._new_producer()
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    is_committing = False
                    self._repeat(producer.abort_transaction)
                else:
                    producer = self._new_producer()
            # The next producer with this id has aborted what this one left open.
            fate = Fate.UNKNOWN if is_committing else Fate.ABORTED
            self._transactions.note(fate, frozenset(sent))

    def _new_producer(self) -> Any:
        producer = self._producer()
        self._repeat(producer.init_transactions)
        return producer

    def _repeat(self, call: Callable[[float], None]) -> None:
        """Call until it succeeds; the client says which errors may pass."""
        from confluent_kafka import KafkaException

        deadline_s = time.monotonic() + 400
        while True:
            try:
                call(20)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
            else:
                return
