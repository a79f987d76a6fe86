"""The topics of the data sets: how each is set up, what is written to it, what it exercises."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

from tests.kafka_tools import KafkaBroker, run_tool, wait_until

from .producing import (
    EPOCH_MS,
    BatchProducer,
    Sent,
    grouped,
    mixed,
    noise,
    text,
    transactional,
)

KEEP_FOR_EVER = {"retention.ms": -1}
SMALL_SEGMENTS = KEEP_FOR_EVER | {"internal.segment.bytes": 24_576}
DENSE_INDEXES = SMALL_SEGMENTS | {"index.interval.bytes": 512}


@dataclass(slots=True, kw_only=True)
class Stage:
    """What workloads share during one run of a broker."""

    broker: KafkaBroker
    now_ms: int
    # Producers with open transactions; must live until the broker is down.
    held: list[BatchProducer] = field(default_factory=list)


Workload = Callable[[Stage, "Topic"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """`phases[n]` runs after the broker's n-th start, if there are that many."""

    name: str
    exercises: tuple[str, ...]
    phases: tuple[Workload, ...]
    config: Mapping[str, object] = field(default_factory=lambda: SMALL_SEGMENTS)
    partitions: int = 1


def plain(count: int, **settings: object) -> Workload:
    """`count` mixed messages at fixed timestamps from a producer with `settings`."""

    def run(stage: Stage, topic: Topic) -> None:
        messages = mixed(topic.name, count)
        producer = BatchProducer(stage.broker, **settings)
        producer.send_all(topic.name, grouped(topic.name, messages))

    return run


def later(count: int, number: int) -> Workload:
    """A further `count` messages, for the `number`-th start of the broker."""

    def run(stage: Stage, topic: Topic) -> None:
        seed = f"{topic.name}/{number}"
        messages = mixed(seed, count, start_ms=EPOCH_MS + number * 3_600_000)
        BatchProducer(stage.broker).send_all(topic.name, grouped(seed, messages))

    return run


def nothing(_stage: Stage, _topic: Topic) -> None:
    """Leave the topic as it is."""


def sizes(largest_bytes: int, codec: str) -> Workload:
    """Values of 1 byte up to `largest_bytes`, one per batch, then all small ones in one batch.

    What follows the largest makes its segment roll.
    """

    def run(stage: Stage, topic: Topic) -> None:
        rng = random.Random(topic.name)
        make = noise if codec == "none" else text
        exact = [1, 2, 127, 128, 1_000, 8_191, 8_192, 65_536, largest_bytes, 100_000, 65_536]
        messages = [
            Sent(key=f"{size}".encode(), value=make(rng, size), timestamp_ms=EPOCH_MS + i)
            for i, size in enumerate(exact)
        ]
        producer = BatchProducer(stage.broker, compression_type=codec)
        producer.send_all(topic.name, ([message] for message in messages))
        producer.send(topic.name, messages[:6])

    return run


def binary_values(stage: Stage, topic: Topic) -> None:
    """Bytes that no text dump shows faithfully: every byte value, newlines, invalid UTF-8."""
    everything = bytes(range(256))
    values = [everything, b"\n", b"\r\n\r\n", b"\xff\xfe", "grün Ж 漢 🙂".encode(), b"\x00" * 64]
    messages = [
        Sent(
            key=value[::-1],
            value=value,
            timestamp_ms=EPOCH_MS + i,
            headers=[(f"h{i}", value), ("日本", None)],
        )
        for i, value in enumerate(values)
    ]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        BatchProducer(stage.broker, compression_type=codec).send(topic.name, messages * 3)


def many_headers(stage: Stage, topic: Topic) -> None:
    """Records with 0 to 200 headers, repeated names, null and empty values."""
    rng = random.Random(topic.name)
    messages = []
    for i in range(120):
        count = rng.choice((0, 1, 2, 3, 10)) if i % 40 else 200
        headers = [
            (f"header-{n % 4}", rng.choice((None, b"", b"value", text(rng, 30))))
            for n in range(count)
        ]
        value = text(rng, rng.randrange(50)) if i % 3 else None
        sent = Sent(key=None, value=value, timestamp_ms=EPOCH_MS + i, headers=headers)
        messages.append(sent)
    BatchProducer(stage.broker).send_all(topic.name, grouped(topic.name, messages, 9))


def shuffled_times(stage: Stage, topic: Topic) -> None:
    """Timestamps go back and forth by hours, within batches and between them; one is from 2001."""
    rng = random.Random(topic.name)
    messages = mixed(topic.name, 500)
    moved = [
        Sent(
            key=message.key,
            value=message.value,
            headers=message.headers,
            timestamp_ms=message.timestamp_ms + i * 20_000 + rng.randrange(-7_200_000, 7_200_000),
        )
        for i, message in enumerate(messages)
    ]
    moved[250] = Sent(key=b"old", value=b"2001-09-09", timestamp_ms=1_000_000_000_000)
    BatchProducer(stage.broker).send_all(topic.name, grouped(topic.name, moved))


def idempotent(stage: Stage, topic: Topic) -> None:
    """Three idempotent producers take turns over all partitions."""
    producers = [BatchProducer(stage.broker, enable_idempotence=True) for _ in range(3)]
    messages = mixed(topic.name, 900, start_ms=stage.now_ms)
    for i, batch in enumerate(grouped(topic.name, messages)):
        partition = i % topic.partitions
        aimed = [
            Sent(
                key=message.key,
                value=message.value,
                timestamp_ms=message.timestamp_ms,
                headers=message.headers,
                partition=partition,
            )
            for message in batch
        ]
        producers[i % 3].send(topic.name, aimed)


class TransactionScript:
    """Shorthand for the transaction workloads: numbered batches on one topic."""

    def __init__(self, stage: Stage, topic: Topic) -> None:
        self.stage = stage
        self.topic = topic.name
        self.sent = 0

    def producer(self, name: str) -> BatchProducer:
        return transactional(self.stage.broker, f"{self.topic}-{name}")

    def batch(self, producer: BatchProducer, count: int = 5) -> None:
        start_ms = self.stage.now_ms + self.sent * 10
        self.sent += count
        producer.send(self.topic, mixed(f"{self.topic}/{self.sent}", count, start_ms=start_ms))

    def whole(self, producer: BatchProducer, batches: int, *, commit: bool) -> None:
        producer.begin()
        for _ in range(batches):
            self.batch(producer)
        if commit:
            producer.commit()
        else:
            producer.abort()


def transactions(stage: Stage, topic: Topic) -> None:
    """Committed, aborted, interleaved, fenced, segment-spanning; nothing left open."""
    script = TransactionScript(stage, topic)
    a, b = script.producer("a"), script.producer("b")
    outsider = BatchProducer(stage.broker, enable_idempotence=True)
    for turn in range(6):
        script.whole(a, 2, commit=True)
        script.whole(b, 1, commit=turn % 2 == 0)
        script.batch(outsider, 3)
    a.begin()
    b.begin()
    for _ in range(3):
        script.batch(a, 2)
        script.batch(b, 2)
    a.abort()
    b.commit()
    b.begin()
    for turn in range(14):
        script.batch(b, 8)
        script.whole(a, 1, commit=turn % 3 != 0)
    b.abort()
    fenced = script.producer("fenced")
    fenced.begin()
    script.batch(fenced)
    stage.held.append(fenced)
    script.whole(script.producer("fenced"), 1, commit=True)


def leave_open(stage: Stage, topic: Topic) -> None:
    """Open two transactions, then go on writing until segments above the open ones have rolled."""
    script = TransactionScript(stage, topic)
    script.sent = 100_000
    a, left = script.producer("a"), script.producer("left-open")
    script.whole(a, 2, commit=True)
    left.begin()
    script.batch(left, 4)
    for turn in range(8):
        script.whole(a, 2, commit=turn % 2 == 0)
    script.batch(left, 2)
    late = script.producer("left-open-late")
    late.begin()
    script.batch(late, 1)
    stage.held += [left, late]


def java_transactions(stage: Stage, topic: Topic) -> None:
    """Kafka's own client, whose second-generation transactions raise the epoch at every end."""
    run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic.name, "--num-records", "400", "--record-size", "100"),
        *("--throughput", "800", "--transactional-id", f"{topic.name}-id"),
        *("--transaction-duration-ms", "40"),
        *("--producer-props", f"bootstrap.servers={stage.broker.bootstrap_servers}"),
    )


def compacted(stage: Stage, topic: Topic) -> None:
    """Keys overwritten and deleted round after round by several producers, cleaned twice."""
    for cleaning in range(2):
        start_ms = stage.now_ms - 3_600_000 + cleaning * 600_000
        for turn in range(4):
            seed = f"{topic.name}/{cleaning}/{turn}"
            producer = BatchProducer(stage.broker, enable_idempotence=True)
            producer.send_all(topic.name, grouped(seed, _keyed(seed, 150, start_ms)))
            start_ms += 60_000
        wait_until_cleaned(stage.broker, topic.name)


def compacted_transactions(stage: Stage, topic: Topic) -> None:
    """As `compacted`, in transactions; aborted records and spent markers go with the cleaning."""
    start_ms = stage.now_ms - 3_600_000
    for cleaning in range(2):
        producers = [transactional(stage.broker, f"{topic.name}-{n}") for n in range(2)]
        for turn in range(12):
            seed = f"{topic.name}/{cleaning}/{turn}"
            producer = producers[turn % 2]
            producer.begin()
            producer.send_all(topic.name, grouped(seed, _keyed(seed, 40, start_ms)))
            start_ms += 10_000
            if turn % 4 == 2:
                producer.abort()
            else:
                producer.commit()
        wait_until_cleaned(stage.broker, topic.name)


def _keyed(seed: str, count: int, start_ms: int) -> list[Sent]:
    rng = random.Random(seed)
    return [
        Sent(
            key=f"account-{rng.randrange(60)}".encode(),
            value=None if rng.random() < 0.15 else text(rng, rng.randrange(10, 120)),
            timestamp_ms=start_ms + i * 100,
        )
        for i in range(count)
    ]


def wait_until_cleaned(broker: KafkaBroker, topic: str) -> None:
    """Until the cleaner's checkpoint has reached the active segment of partition 0."""
    directory = broker.partition_dir(topic, 0)
    checkpoint = directory.parent / "cleaner-offset-checkpoint"

    def cleaned() -> bool:
        active = max(int(path.stem) for path in directory.glob("*.log"))
        rows = [line.split(" ") for line in checkpoint.read_text().splitlines()[2:]]
        return any(row[0] == topic and int(row[2]) >= active for row in rows)

    wait_until(cleaned, 60, what=f"cleaning of {topic}")


def delete_records(before_offset: int) -> Workload:
    """Write as `plain`, then raise the log start offset into the middle of a segment."""

    def run(stage: Stage, topic: Topic) -> None:
        plain(600)(stage, topic)
        directory = stage.broker.partition_dir(topic.name, 0)
        first = directory / f"{0:020d}.log"
        stage.broker.delete_records(topic.name, 0, before_offset)
        wait_until(lambda: not first.exists(), 60, what=f"deletion of {first.name}")

    return run


def delete_topic(stage: Stage, topic: Topic) -> None:
    """Delete the topic; its directory stays under a `-delete` name for file.delete.delay.ms."""
    directory = stage.broker.partition_dir(topic.name, 0)
    admin = AdminClient({"bootstrap.servers": stage.broker.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic.name])[topic.name].result(30)
    wait_until(lambda: not directory.exists(), 60, what=f"renaming of {directory.name}")


def spread(stage: Stage, topic: Topic) -> None:
    """Messages dealt out over all partitions by one producer."""
    messages = [
        Sent(
            key=message.key,
            value=message.value,
            timestamp_ms=message.timestamp_ms,
            headers=message.headers,
            partition=i % topic.partitions,
        )
        for i, message in enumerate(mixed(topic.name, 600))
    ]
    producer = BatchProducer(stage.broker, compression_type="lz4")
    producer.send_all(topic.name, grouped(topic.name, messages, 80))
