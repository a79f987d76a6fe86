"""Starts servers with the same records, and reads and writes the records."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from tests.kafka_tools import KafkaBroker, wait_until
from tests.node.nodes import NodeProcess, running_node
from tests.node.running import RawClient
from tierlog import scan_segment

from .frame import Timed

# Answers to producers are read by the length of the name.
TOPIC, OTHER_TOPIC = "bench", "other"
ROOT = Path(__file__).parents[1]
# Requests that are sent before their answers are read.
PIPELINED = 20
PRODUCE_VERSION = 8
WAIT_S = 120
# The queue holds all records, since a client with a full queue pauses for a second.
UNBOUNDED_QUEUE = {"queued.max.messages.kbytes": 2_000_000, "queued.min.messages": 10_000_000}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server with the bench's topic, and its process."""

    bootstrap: str
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def cpu_seconds(self) -> float:
        """Return the processor time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_bytes(self) -> int:
        """Return the memory that the process holds."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def batches_of(segment: Path, size_bytes: int) -> list[bytes]:
    """Return the batches that lie completely in the first `size_bytes` of a segment."""
    data, table = segment.read_bytes(), scan_segment(segment, verify_crc=False)
    borders = [*table.position.tolist(), table.stop_position]
    return [data[start:end] for start, end in pairwise(borders) if end <= size_bytes]


def create_topic(
    bootstrap: str, name: str = TOPIC, settings: Mapping[str, object] | None = None
) -> None:
    """Create a topic of one partition."""
    config = {key: str(value).lower() for key, value in (settings or {}).items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, 1, 1, config={"retention.ms": "-1"} | config)
    while True:
        try:
            admin.create_topics([topic])[name].result(WAIT_S)
            break
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    # A broker answers before it leads the partition.
    wait_until(lambda: is_led(admin, name), WAIT_S, what="a leader")


def is_led(admin: AdminClient, name: str) -> bool:
    """Whether the topic's end can be asked of its leader."""
    (found,) = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()}).values()
    try:
        return bool(found.result(WAIT_S).offset == 0)
    except KafkaException:
        return False


def write(
    server: Served, batches: Sequence[bytes], *, pipelined: int = PIPELINED, topic: str = TOPIC
) -> list[float]:
    """Append batches in one request each, some before the first answer, and return the seconds that
    each group took."""
    took = []
    with RawClient(server.address) as client:
        for start in range(0, len(batches), pipelined):
            group = batches[start : start + pipelined]
            began = time.perf_counter()
            for batch in group:
                client.request(produce_request(batch, topic), PRODUCE_VERSION)
            errors = [produce_error(client.read_frame()) for _ in group]
            took.append(time.perf_counter() - began)
            if any(errors):
                raise RuntimeError(f"batches were refused with errors {set(errors)}")
    return took


def produce_request(batch: bytes, name: str = TOPIC) -> Any:
    """Return a request with one batch and acks of all. As Kafka wants it, the batch says offset 0,
    which no checksum covers."""
    topic: Any = ProduceRequest.TopicProduceData
    data = topic.PartitionProduceData(index=0, records=bytes(8) + batch[8:])
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[topic(name=name, partition_data=[data])],
    )


def produce_error(answer: bytes | None) -> int:
    """Return the error of an answer to a produce request."""
    assert answer is not None
    # Before the error are the correlation id, one topic, its name, one partition and its index.
    error: int = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4)[0]
    return error


def read(server: Served, records: int, *, of_server: bool = False) -> Timed:
    """Read the topic with librdkafka, and measure from the first message to the last. With
    ``of_server``, the measured time is the CPU time of the server."""
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "bench"}
    consumer = Consumer(settings | {"enable.auto.commit": False} | UNBOUNDED_QUEUE)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    messages = consumer.consume(1, WAIT_S)
    began, before = time.perf_counter(), server.cpu_seconds()
    count, size_bytes = len(messages), sum(len(one) for one in messages)
    while count < records and messages:
        messages = consumer.consume(min(10_000, records - count), 5)
        count += len(messages)
        size_bytes += sum(len(one) for one in messages)
    seconds, cpu_seconds = time.perf_counter() - began, server.cpu_seconds() - before
    consumer.close()
    # A tick is the smallest time that can be measured.
    busy = max(cpu_seconds, 1 / TICKS)
    return Timed(
        seconds=busy if of_server else seconds,
        cpu_seconds=busy,
        result={"records": count, "bytes": size_bytes},
    )


def node(
    stack: ExitStack,
    folder: Path,
    settings: Mapping[str, object] | None = None,
    *,
    store: str | None = None,
) -> Served:
    """Start a node of tierlog."""
    process: NodeProcess = stack.enter_context(running_node(folder, settings, store=store))
    return Served(bootstrap=process.bootstrap_servers, pid=process.process.pid)


def ready_frames(stack: ExitStack, segment: Path, frame_bytes: int) -> Served:
    """Start the responder with ready frames of a segment; see `peers.ready_frames`."""
    command = [sys.executable, "-m", "benches.peers.ready_frames"]
    process = stack.enter_context(
        subprocess.Popen(
            [*command, str(segment), TOPIC, str(frame_bytes)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return Served(bootstrap=f"127.0.0.1:{port}", pid=process.pid)


def kafka(stack: ExitStack, folder: Path, *, tiered: bool = False) -> Served:
    """Start a broker. With `tiered`, it uses LocalTieredStorage."""
    tier = folder / "tier" if tiered else None
    broker = stack.enter_context(KafkaBroker(folder / "kafka", tiered_dir=tier))
    assert broker.pid is not None
    return Served(bootstrap=broker.bootstrap_servers, pid=broker.pid)


def fetch_request(offset: int, max_bytes: int) -> Any:
    """Return a request for the records of the bench's topic from an offset on."""
    topic: Any = FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=10_000,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=TOPIC, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )
