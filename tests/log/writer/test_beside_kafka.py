"""What Kafka says about the directories that we write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kafka_tools import KafkaBroker, dump_log_segments, wait_until
from tests.kafka_tools.golden import GoldenSegment, golden_segments
from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import build
from tests.oracle.model import Record
from tierlog import scan_segment
from tierlog.clock import SystemClock
from tierlog.config.topic import TopicConfig
from tierlog.log.checkpoint import read_partition_metadata
from tierlog.log.writer.directory import LogDirWriter
from tierlog.log.writer.partition import PartitionWriter, WriterOptions
from tierlog.log.writer.validation import AppendOrigin

MAX = 2**63 - 1
INDEXES = ("log", "index", "timeindex", "txnindex")
# Partitions that one run of a broker wrote from their first byte on: after a restart a broker
# counts index.interval.bytes anew.
WRITTEN_IN_ONE_RUN = [
    *("broker-gzip", "broker-lz4", "broker-snappy", "broker-zstd", "codec-gzip", "codec-lz4"),
    *("codec-none", "codec-snappy", "codec-zstd", "headers", "idempotent", "orders.eu-west_1"),
    *("rolled-by-index", "sizes", "times-shuffled", "transactions-java"),
]


def append_segment(writer: PartitionWriter, segment: GoldenSegment) -> None:
    """Append the batches of a broker's segment one by one, as they came to the broker."""
    data = segment.path.read_bytes()
    table = scan_segment(data)
    rows = zip(
        table.position.tolist(),
        table.size_bytes.tolist(),
        table.leader_epoch.tolist(),
        table.base_offset.tolist(),
        strict=True,
    )
    for position, size_bytes, epoch, base_offset in rows:
        batch = data[position : position + size_bytes]
        # A coordinator may write transaction markers.
        origin = AppendOrigin.COORDINATOR
        assert writer.append(batch, leader_epoch=epoch, origin=origin).base_offset == base_offset


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("topic", WRITTEN_IN_ONE_RUN)
def test_files_equal_those_of_the_broker(topic: str, tmp_path: Path) -> None:
    partition = 0
    segments = [one for one in golden_segments(topic, "clean") if one.partition == partition]
    config = TopicConfig(
        index_interval_bytes=segments[0].index_interval_bytes,
        message_timestamp_after_max_ms=MAX,
        segment_ms=MAX,
        max_message_bytes=1 << 30,
    )
    writer = open_writer(
        tmp_path,
        config,
        log_start_offset=segments[0].base_offset,
        options=WriterOptions(producer_id_expiration_ms=MAX),
    )
    for segment in segments:
        append_segment(writer, segment)
        writer.roll()
        for kind in INDEXES:
            theirs = content(segment.path.with_suffix(f".{kind}"))
            if not segment.rolled and theirs is not None and kind != "log":
                theirs = theirs.rstrip(b"\0")
            assert content(tmp_path / f"{segment.path.stem}.{kind}") == theirs, kind
        snapshot = f"{segment.next_base_offset:020d}.snapshot"
        theirs = content(segment.path.with_name(snapshot))
        assert theirs in (None, content(tmp_path / snapshot))
    writer.close()


def write_batches(writer: PartitionWriter, first: int, count: int) -> None:
    """Append `count` batches of two records, named by their offsets."""
    for number in range(first, first + count):
        values = [b"%d" % (2 * number + row) for row in range(2)]
        records = [
            Record(offset=row, timestamp_ms=NOW_MS + number, key=b"key", value=value * 40)
            for row, value in enumerate(values)
        ]
        writer.append(build.batch(records), leader_epoch=0)


def test_the_tool_finds_nothing_wrong(tmp_path: Path) -> None:
    """DumpLogSegments with each of its checks, over rolled segments and one that is open."""
    topic = TopicConfig(internal_segment_bytes=20_000, message_timestamp_after_max_ms=MAX)
    writer = open_writer(tmp_path / "orders-0", topic)
    write_batches(writer, 0, 400)
    writer.flush()
    logs = sorted((tmp_path / "orders-0").glob("*.log"))
    assert len(logs) > 3
    for flags, kinds in (
        (("--deep-iteration", "--print-data-log"), ("log",)),
        (("--index-sanity-check",), ("index", "timeindex")),
        (("--verify-index-only",), ("index", "timeindex")),
        ((), ("index", "timeindex", "snapshot")),
    ):
        files = [one for kind in kinds for one in sorted((tmp_path / "orders-0").glob(f"*.{kind}"))]
        said = dump_log_segments([one for one in files if one.stat().st_size], *flags)
        assert not re.search("mismatch|Found|isvalid: false|corrupt|Exception", said), said
    assert said.count("producerId") == 0
    deep = dump_log_segments(logs, "--deep-iteration", "--print-data-log")
    assert [int(one) for one in re.findall(r"^\| offset: (\d+)", deep, re.MULTILINE)] == list(
        range(800)
    )
    writer.close()


def read_all(broker: KafkaBroker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:

        def is_read() -> bool:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None
                values.append(message.value() or b"")
            return len(values) >= count

        wait_until(is_read, 60, what="all records")
    finally:
        consumer.close()
    return values


def test_a_broker_goes_on_from_our_log_directory(tmp_path: Path) -> None:
    """A real broker serves the bytes that we wrote, appends to them, and we go on after it."""
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("orders", config={"internal.segment.bytes": 20_000, "retention.ms": -1})
        broker.stop()
        (root,) = broker.log_dirs
        mark = root / ".kafka_cleanshutdown"
        topic_id = read_partition_metadata(root / "orders-0" / "partition.metadata")
        topic = TopicConfig(internal_segment_bytes=20_000, message_timestamp_after_max_ms=MAX)
        ours = {("orders", 0, topic_id): topic}

        logs = LogDirWriter(str(root), cluster_id=broker.cluster_id, node_id=1, clock=SystemClock())
        logs.open_all(ours)
        write_batches(logs.writer("orders", 0), 0, 400)
        logs.close()
        assert mark.exists()
        written = {one.name: one.read_bytes() for one in (root / "orders-0").glob("*.log")}
        snapshots = {one.name: one.read_bytes() for one in (root / "orders-0").glob("*.snapshot")}
        assert len(written) > 3

        broker.start()
        expected = [b"%d" % offset * 40 for offset in range(800)]
        assert read_all(broker, "orders", 800) == expected
        for name, data in (written | snapshots).items():
            assert (root / "orders-0" / name).read_bytes() == data, name
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}
        )
        producer.produce("orders", b"from the broker", partition=0)
        assert producer.flush(30) == 0
        broker.stop()

        logs = LogDirWriter(str(root), cluster_id=broker.cluster_id, node_id=1, clock=SystemClock())
        logs.open_all(ours)
        writer = logs.writer("orders", 0)
        assert (writer.log_end_offset, writer.cut_bytes) == (801, 0)
        epoch = writer.leader_epochs.entries[-1].epoch
        data = build.batch([Record(offset=0, timestamp_ms=NOW_MS, key=None, value=b"ours again")])
        assert writer.append(data, leader_epoch=epoch).base_offset == 801
        logs.close()
        broker.start()
        assert read_all(broker, "orders", 802)[800:] == [b"from the broker", b"ours again"]
