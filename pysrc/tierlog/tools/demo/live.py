"""Runs the live demo: a real Kafka client writes to a node and reads every record back.

Before the client reads, the node tiers the records under a quota and drops its local copies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from tierlog.clock import Clock
from tierlog.errors import TierlogError
from tierlog.quota import PACE_SLACK_MS
from tierlog.reader.open import read
from tierlog.remote.segment.layout import LOG_SUFFIX
from tierlog.remote.urls import open_store
from tierlog.tools.demo.records import DemoRecord, demo_record, find_difference
from tierlog.tools.output import human_size
from tierlog.tools.progress import Progress

__all__ = ["NODE_SETTINGS", "QUOTA_BYTES_PER_SECOND", "DemoNode", "LiveResult", "run_live"]

TOPIC = "orders"
PARTITIONS = 4
RECORDS = 24_000
QUOTA_BYTES_PER_SECOND = 6 << 20
_SEGMENT_BYTES = 1 << 20
_READS = 40
_SAMPLE_MS = 50
_SILENCE_MS = 30_000
# Compression codecs that every client supports.
_CODECS = (None, "gzip")

# The quota counts over short windows, so that the quota limits even a copy of a few seconds.
NODE_SETTINGS = {
    "remote.log.manager.copy.max.bytes.per.second": str(QUOTA_BYTES_PER_SECOND),
    "remote.log.manager.copy.quota.window.num": "2",
    "tierlog.copy.quota.mode": "pace",
    # The demo itself starts the tiering.
    "remote.log.manager.task.interval.ms": "3600000",
}
_TOPIC_SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": str(_SEGMENT_BYTES),
    "local.retention.bytes": "0",
    "retention.ms": "-1",
}


class DemoNode(Protocol):
    """The node that the demo runs against; see `tierlog.node.embedded.EmbeddedNode`."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def sent_bytes(self) -> int: ...
    def tier_now(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class LiveResult:
    """The measurements of the demo. ``sent`` has pairs of a time in ms and the bytes copied until
    then. ``hot_us`` and ``cold_us`` are the times from a seek to the first record after it."""

    data_dir: str
    store_url: str
    topic: str = TOPIC
    partitions: int = PARTITIONS
    records: int = 0
    record_bytes: int = 0
    write_ms: int = 0
    log_bytes: int = 0
    quota_bytes_per_second: int = QUOTA_BYTES_PER_SECOND
    sent: list[tuple[int, int]] = field(default_factory=list)
    segments: int = 0
    left_local_bytes: int = 0
    hot_us: list[float] = field(default_factory=list)
    cold_us: list[float] = field(default_factory=list)
    read_ms: int = 0
    records_equal: int = 0
    read_alone_ms: int = 0
    records_equal_alone: int = 0
    all_ms: int = 0
    mismatches: list[str] = field(default_factory=list)

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent to the store."""
        return self.sent[-1][1] if self.sent else 0

    @property
    def copy_ms(self) -> int:
        """The time from the start of the copies to the last copied byte."""
        return next((ms for ms, size_bytes in self.sent if size_bytes == self.sent_bytes), 0)

    @property
    def keeps_quota(self) -> bool:
        """Whether the copies were never further ahead of the quota than paced copies may be: one
        segment and `PACE_SLACK_MS`."""
        return all(
            size_bytes <= self.quota_bytes_per_second * (ms + PACE_SLACK_MS) / 1000 + _SEGMENT_BYTES
            for ms, size_bytes in self.sent
        )

    @property
    def passed(self) -> bool:
        """Whether every record came back from the store alone, within the quota."""
        everything = self.records_equal == self.records_equal_alone == self.records > 0
        return everything and not self.mismatches and self.keeps_quota and not self.left_local_bytes


def run_live(
    node: DemoNode,
    result: LiveResult,
    *,
    clock: Clock,
    timer_ns: Callable[[], int],
    progress: Callable[[str], AbstractContextManager[Progress]],
    say: Callable[[str], object],
    records: int = RECORDS,
    silence_ms: int = _SILENCE_MS,
) -> None:
    """Run the demo against `node`, whose data directory and store are those of `result`, and fill
    in `result`.

    ``say`` receives a line at the end of each step. A client gives up when it gets no answer for
    `silence_ms`.
    """
    demo = _LiveDemo(node, result, clock, timer_ns, progress, say, silence_ms)
    result.records = records
    began_ms = clock.monotonic_ms()
    demo.create_topic()
    demo.write()
    result.hot_us = demo.measure_reads()
    demo.tier()
    try:
        result.cold_us = demo.measure_reads()
        demo.read_back()
    except TierlogError as error:
        result.mismatches.append(f"the client: {error}")
    try:
        demo.read_alone()
    except TierlogError as error:
        result.mismatches.append(f"without the node: {error}")
    result.all_ms = clock.monotonic_ms() - began_ms


class _LiveDemo:
    def __init__(
        self,
        node: DemoNode,
        result: LiveResult,
        clock: Clock,
        timer_ns: Callable[[], int],
        progress: Callable[[str], AbstractContextManager[Progress]],
        say: Callable[[str], object],
        silence_ms: int,
    ) -> None:
        self._node = node
        self._result = result
        self._clock = clock
        self._timer_ns = timer_ns
        self._progress = progress
        self._say = say
        self._silence_ms = silence_ms
        self._start_ms = clock.now_ms()

    def create_topic(self) -> None:
        """Create the topic as any client does."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        with closing(KafkaAdminClient(bootstrap_servers=self._node.bootstrap_servers)) as admin:
            topic = NewTopic(TOPIC, PARTITIONS, 1, topic_configs=_TOPIC_SETTINGS)
            admin.create_topics([topic])
        self._say(
            f"started    a Kafka node at {self._node.bootstrap_servers}, in this process; topic "
            f"{TOPIC} with {PARTITIONS} partitions"
        )

    # -- writing

    def write(self) -> None:
        """Write the records; each partition has one codec."""
        from kafka import KafkaProducer

        result, began_ms = self._result, self._clock.monotonic_ms()
        with ExitStack() as opened, self._progress("writing") as bar:
            producers = [
                opened.enter_context(
                    closing(
                        KafkaProducer(
                            bootstrap_servers=self._node.bootstrap_servers,
                            acks="all",
                            linger_ms=20,
                            batch_size=64 << 10,
                            compression_type=codec,
                        )
                    )
                )
                for codec in _CODECS
            ]
            bar.start(result.records)
            sent = []
            for number in range(result.records):
                record = demo_record(number, self._start_ms)
                partition = number % PARTITIONS
                producer = producers[partition % len(_CODECS)]
                future = producer.send(TOPIC, partition=partition, **record._asdict())
                sent.append(future)
                result.record_bytes += len(record.key or b"") + len(record.value or b"")
                bar.advance(1)
            for future in sent:
                future.get(self._silence_ms / 1000)
        result.write_ms = self._clock.monotonic_ms() - began_ms
        result.log_bytes = self._local_bytes()
        self._say(
            f"wrote      {result.records:,} records, {human_size(result.record_bytes)}, with "
            f"kafka-python in {_seconds(result.write_ms)}: "
            f"{_per_second(result.records, result.write_ms):,.0f} records/s"
        )

    def _local_bytes(self) -> int:
        """Return the bytes of log in the data directory."""
        logs = os.path.join(self._result.data_dir, "logs")
        return sum(
            os.path.getsize(os.path.join(folder, name))
            for folder, _, names in os.walk(logs)
            for name in names
            if name.endswith(".log")
        )

    # -- tiering

    def tier(self) -> None:
        """Copy all segments under the quota. The node then drops its local copies."""
        result, node = self._result, self._node
        began_bytes, began_ms = node.sent_bytes, self._clock.monotonic_ms()
        with ThreadPoolExecutor(1) as threads, self._progress("tiering") as bar:
            bar.start(result.log_bytes)
            tiering = threads.submit(node.tier_now)
            is_done = False
            while not is_done:
                is_done = tiering.done()
                before = result.sent_bytes
                now_bytes = node.sent_bytes - began_bytes
                result.sent.append((self._clock.monotonic_ms() - began_ms, now_bytes))
                bar.advance(now_bytes - before)
                self._clock.sleep(0 if is_done else _SAMPLE_MS)
            tiering.result()
        result.left_local_bytes = self._local_bytes()
        objects = open_store(result.store_url).list()
        result.segments = sum(one.key.endswith(LOG_SUFFIX) for one in objects)
        rate = _per_second(result.sent_bytes, result.copy_ms)
        self._say(
            f"tiered     {result.segments} segments, {human_size(result.sent_bytes)}, to "
            f"{result.store_url} in {_seconds(result.copy_ms)}: {human_size(int(rate))}/s under a "
            f"quota of {human_size(result.quota_bytes_per_second)}/s"
        )
        self._say(
            f"dropped    the local copies: {human_size(result.log_bytes)} of log before, "
            f"{human_size(result.left_local_bytes)} now"
        )

    # -- reading

    def measure_reads(self) -> list[float]:
        """Return the microseconds from a seek to the first record after it, for offsets all over
        the topic."""
        from kafka import TopicPartition

        found = []
        with self._consumer(max_partition_fetch_bytes=64 << 10) as consumer:
            for number in range(_READS):
                # The step between offsets has no common divisor with the number of records, so the
                # offsets are spread over the whole topic.
                record = number * 7_919 % self._result.records
                partition = TopicPartition(TOPIC, record % PARTITIONS)
                consumer.assign([partition])
                began_ns = self._timer_ns()
                consumer.seek(partition, record // PARTITIONS)
                next(self._messages(consumer))
                found.append((self._timer_ns() - began_ns) / 1000)
        return found

    def read_back(self) -> None:
        """Read every record through the node and compare it with the record that was sent."""
        from kafka import TopicPartition

        result, began_ms = self._result, self._clock.monotonic_ms()
        with self._consumer() as consumer, self._progress("reading") as bar:
            bar.start(result.records)
            partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            messages = self._messages(consumer)
            for _ in range(result.records):
                message = next(messages)
                found = DemoRecord(
                    message.key, message.value, list(message.headers), message.timestamp
                )
                result.records_equal += self._is_equal(message.partition, message.offset, found)
                bar.advance(1)
        result.read_ms = self._clock.monotonic_ms() - began_ms
        self._say(
            f"read back  {result.records:,} records from the store through the node in "
            f"{_seconds(result.read_ms)}: {_per_second(result.records, result.read_ms):,.0f} "
            f"records/s; {result.records_equal:,} are equal"
        )

    def read_alone(self) -> None:
        """Read every record from the store without the node."""
        result, began_ms = self._result, self._clock.monotonic_ms()
        for partition in range(PARTITIONS):
            for columns in read(result.store_url, TOPIC, partition):
                for row in columns.records():
                    headers = [(name.decode(), value or b"") for name, value in row.headers]
                    found = DemoRecord(row.key, row.value, headers, row.timestamp_ms)
                    result.records_equal_alone += self._is_equal(partition, row.offset, found)
        result.read_alone_ms = self._clock.monotonic_ms() - began_ms
        self._say(
            f"read again {result.records_equal_alone:,} equal records from the store alone, "
            f"without the node, in {_seconds(result.read_alone_ms)}"
        )

    def _consumer(self, **options: Any) -> AbstractContextManager[Any]:
        from kafka import KafkaConsumer

        servers = self._node.bootstrap_servers
        return closing(
            KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, **options)
        )

    def _messages(self, consumer: Any) -> Iterator[Any]:
        """Yield the messages of a consumer. Raise TierlogError when no message arrives in time."""
        while True:
            messages = consumer.poll(timeout_ms=self._silence_ms, max_records=5_000)
            if not messages:
                raise TierlogError(f"{TOPIC}: no record in {_seconds(self._silence_ms)}")
            for one in messages.values():
                yield from one

    def _is_equal(self, partition: int, offset: int, found: DemoRecord) -> bool:
        """Compare a record with the record that was written at this offset; note the difference."""
        expected = demo_record(offset * PARTITIONS + partition, self._start_ms)
        difference = find_difference(found, expected)
        if difference is not None:
            self._result.mismatches.append(f"{TOPIC}:{partition} @ {offset}: {difference}")
        return difference is None


def _per_second(amount: float, time_ms: int) -> float:
    return amount * 1000 / max(time_ms, 1)


def _seconds(time_ms: float) -> str:
    return f"{time_ms / 1000:.1f} s"
