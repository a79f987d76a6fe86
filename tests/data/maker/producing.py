"""Seeded messages, and producers that put exactly the wanted messages into one record batch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from tests.kafka_tools import KafkaBroker

# 2023-11-14T22:13:20Z. Topics whose timestamps need not be recent start here, so that their
# records are the same in every run.
EPOCH_MS = 1_700_000_000_000
WORDS = ("offset", "segment", "batch", "epoch", "leader", "replica", "tier", "bucket", "quota")
Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message to send; `timestamp_ms` 0 lets the client take the present."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[Header] = ()
    partition: int = 0


def text(rng: random.Random, size_bytes: int) -> bytes:
    """Compressible printable text of exactly `size_bytes`."""
    words: list[str] = []
    length = -1
    while length < size_bytes:
        word = rng.choice(WORDS) + str(rng.randrange(100))
        words.append(word)
        length += len(word) + 1
    return " ".join(words).encode()[:size_bytes]


def noise(rng: random.Random, size_bytes: int) -> bytes:
    """Printable text that hardly compresses."""
    return bytes(rng.choices(range(33, 127), k=size_bytes))


def mixed(seed: str, count: int, *, start_ms: int = EPOCH_MS, step_ms: int = 10) -> list[Sent]:
    """`count` messages combining null, empty and filled keys, values and headers."""
    rng = random.Random(seed)
    return [
        Sent(
            key=None if i % 7 == 0 else b"" if i % 11 == 0 else f"key-{i % 50}".encode(),
            value=None if i % 13 == 0 else text(rng, rng.choice((0, 1, 9, 60, 200, 700))),
            timestamp_ms=start_ms + i * step_ms,
            headers=_headers(rng, i),
        )
        for i in range(count)
    ]


def _headers(rng: random.Random, i: int) -> list[Header]:
    if i % 5 == 0:
        return [("trace", f"{rng.randrange(1 << 32):08x}".encode())]
    if i % 6 == 0:
        return [("n", None), ("n", b""), ("schlüssel", b"\x00\xff\n"), ("", b"empty key")]
    return []


def grouped(seed: str, messages: Sequence[Sent], largest: int = 20) -> Iterator[Sequence[Sent]]:
    """Cut into batches of 1 to `largest` messages."""
    rng = random.Random(seed + "/batches")
    start = 0
    while start < len(messages):
        size = rng.randint(1, largest)
        yield messages[start : start + size]
        start += size


class BatchProducer:
    """A producer whose every `send` becomes one record batch per partition."""

    def __init__(self, broker: KafkaBroker, **settings: object) -> None:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.client = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "acks": "all",
                "linger.ms": 60_000,
                "batch.size": 4_000_000,
                "message.max.bytes": 2_000_000,
                # Restarts and kills of the broker are part of the work, not worth a line each.
                "log_level": 0,
            }
            | named
        )
        self._errors: list[KafkaError] = []

    def send(self, topic: str, messages: Iterable[Sent]) -> None:
        """One batch; returns when the broker has it."""
        for message in messages:
            self.client.produce(
                topic,
                key=message.key,
                value=message.value,
                partition=message.partition,
                headers=list(message.headers),
                timestamp=message.timestamp_ms,
                on_delivery=self._delivered,
            )
        left = self.client.flush(30)
        if left or self._errors:
            raise RuntimeError(f"{topic}: {left} messages not delivered, errors {self._errors}")

    def send_all(self, topic: str, batches: Iterable[Iterable[Sent]]) -> None:
        for batch in batches:
            self.send(topic, batch)

    def begin(self) -> None:
        self.client.begin_transaction()

    def commit(self) -> None:
        self.client.commit_transaction(30)

    def abort(self) -> None:
        self.client.abort_transaction(30)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)


def transactional(broker: KafkaBroker, transactional_id: str) -> BatchProducer:
    """A producer ready for transactions; those left open outlive the making of the data."""
    producer = BatchProducer(
        broker, transactional_id=transactional_id, transaction_timeout_ms=900_000
    )
    producer.client.init_transactions(60)
    return producer
