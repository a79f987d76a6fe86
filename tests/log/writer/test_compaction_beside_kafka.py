"""A broker's own cleaner and ours compact the same bytes, and leave the same."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.kafka_tools import KafkaBroker, dump_log_segments, wait_until
from tests.log.writer.power_cuts import PowerCutError, cut_at
from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import build
from tests.oracle.model import Record
from tests.proofs import usually
from tierlog import decode_records, scan_segment
from tierlog.clock import ManualClock
from tierlog.config.topic import TopicConfig
from tierlog.log import checkpoint
from tierlog.log.checkpoint import CLEANER_OFFSETS, read_offset_checkpoint

# No record is compacted while this is a topic's min.compaction.lag.ms.
HOLD_MS = 10**15
DELETE_RETENTION_MS = 1000
SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 6000,
    "index.interval.bytes": 300,
    "min.cleanable.dirty.ratio": 0,
    "min.compaction.lag.ms": HOLD_MS,
    "delete.retention.ms": DELETE_RETENTION_MS,
}
OURS = TopicConfig(
    cleanup_policy=("compact",),
    internal_segment_bytes=6000,
    index_interval_bytes=300,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DELETE_RETENTION_MS,
)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER = [
    *("base_offset", "last_offset", "base_timestamp_ms", "max_timestamp_ms", "leader_epoch"),
    *("producer_id", "producer_epoch", "base_sequence", "attributes", "record_count", "magic"),
]


@dataclass(frozen=True)
class Topic:
    """A topic of the broker, and its producer."""

    name: str
    codec: str = "none"
    append_time: bool = False
    transactional: bool = False

    @property
    def settings(self) -> dict[str, object]:
        kind = "LogAppendTime" if self.append_time else "CreateTime"
        return SETTINGS | {"message.timestamp.type": kind}


TOPICS = [
    *(Topic(codec, codec=codec) for codec in CODECS),
    Topic("appended", append_time=True),
    Topic("transactions", transactional=True),
]
Rows = list[tuple[int, bytes | None, bytes | None]]


def produce(producer: Producer, topic: str, numbers: range) -> None:
    """Keys that come again and again, keys that come once, tombstones, headers."""
    for number in numbers:
        key = b"%d" % (number * 7 % 60) if number % 3 else b"only %d" % number
        value = None if number % 11 == 5 else b"value %d " % number * 4
        headers = [("h", b"%d" % number)] if number % 4 == 0 else []
        producer.produce(topic, value, key, partition=0, headers=headers)
        if number % 8 == 7:
            producer.flush(30)
    assert producer.flush(30) == 0


def write(broker: KafkaBroker, topic: Topic, numbers: range) -> None:
    settings: dict[str, object] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "compression.type": topic.codec,
        "enable.idempotence": True,
        "linger.ms": 1000,
    }
    if not topic.transactional:
        produce(Producer(settings), topic.name, numbers)
        return
    producers = [
        Producer(settings | {"transactional.id": f"writer {number}"}) for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
    half = len(numbers) // 8
    for part in range(8):
        inside = numbers[part * half : (part + 1) * half]
        for producer in producers:
            producer.begin_transaction()
            produce(producer, topic.name, inside)
        for number, producer in enumerate(producers):
            if (part + number) % 3 == 1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)


def set_lag(broker: KafkaBroker, lag_ms: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry(
        "min.compaction.lag.ms", str(lag_ms), incremental_operation=AlterConfigOpType.SET
    )
    resources = [
        ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
        for topic in TOPICS
    ]
    for done in admin.incremental_alter_configs(resources).values():
        done.result(30)


def logs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def cleaned_offsets(root: Path) -> dict[str, int]:
    found = read_offset_checkpoint(root / CLEANER_OFFSETS)
    return {topic.name: found.get(checkpoint.TopicPartition(topic.name, 0), -1) for topic in TOPICS}


def run_the_cleaner(broker: KafkaBroker) -> None:
    """Let the broker compact all of its rolled segments."""
    (root,) = broker.log_dirs
    active = {topic.name: int(logs_in(root / f"{topic.name}-0")[-1].stem) for topic in TOPICS}
    set_lag(broker, 0)
    wait_until(lambda: cleaned_offsets(root) == active, 60, what="the cleaner")
    set_lag(broker, HOLD_MS)


Step = tuple[Path, Path, dict[str, int]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """Of each round of the broker: the directory before it, the one after it, and where the round
    before ended."""
    folder = tmp_path_factory.mktemp("steps")
    properties = {"log.cleaner.backoff.ms": 100, "file.delete.delay.ms": 0}
    found: list[Step] = []
    with KafkaBroker(folder / "kafka", properties=properties) as broker:
        (root,) = broker.log_dirs
        for topic in TOPICS:
            broker.create_topic(topic.name, config=topic.settings)
        cleaned = dict.fromkeys((topic.name for topic in TOPICS), -1)
        for number in range(usually(3, thorough=6)):
            for topic in TOPICS:
                write(broker, topic, range(number * 300, number * 300 + 320))
            broker.stop()
            before, after = folder / f"before {number}", folder / f"after {number}"
            shutil.copytree(root, before)
            broker.start()
            run_the_cleaner(broker)
            broker.stop()
            shutil.copytree(root, after)
            found.append((before, after, cleaned))
            cleaned = cleaned_offsets(root)
            broker.start()
    return found


def time_of_round(logs: list[Path]) -> int:
    """When the broker's round was, by the newest delete horizon."""
    horizons = [0]
    for path in logs:
        table = scan_segment(path)
        horizons += table.base_timestamp_ms[table.has_delete_horizon].tolist()
    return max(horizons) - DELETE_RETENTION_MS


def compact(folder: Path, now_ms: int, cleaned_offset: int) -> int | None:
    clock = ManualClock(now_ms)
    writer = open_writer(folder, OURS, clock=clock, log_start_offset=0)
    writer.cleaned_offset = None if cleaned_offset < 0 else cleaned_offset
    end_offset = writer.compact(1 << 20)
    writer.close()
    return end_offset


def content(folder: Path, suffix: str) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(folder.glob(f"*.{suffix}"))}


def rows(path: Path) -> list[tuple[object, ...]]:
    records = decode_records(path, include_control=True)
    return [tuple(one) for one in records.records()]


def headers(path: Path) -> list[tuple[int, ...]]:
    table = scan_segment(path)
    return list(zip(*(getattr(table, name).tolist() for name in HEADER), strict=True))


@pytest.mark.parametrize("topic", TOPICS, ids=lambda one: one.name)
def test_the_log_is_that_of_the_broker(topic: Topic, steps: list[Step], tmp_path: Path) -> None:
    removed = 0
    for number, (before, after, cleaned) in enumerate(steps):
        ours, theirs = tmp_path / f"{number}" / f"{topic.name}-0", after / f"{topic.name}-0"
        shutil.copytree(before / f"{topic.name}-0", ours)
        size_bytes = sum(len(one) for one in content(ours, "log").values())
        end_offset = compact(ours, time_of_round(logs_in(theirs)), cleaned[topic.name])
        assert end_offset == cleaned_offsets(after)[topic.name]
        removed += size_bytes - sum(len(one) for one in content(ours, "log").values())
        for path in logs_in(theirs):
            assert headers(ours / path.name) == headers(path), path
            assert rows(ours / path.name) == rows(path), path
        kinds = ["txnindex", "snapshot"]
        if topic.codec == "none":
            kinds += ["log", "index", "timeindex"]
        for kind in kinds:
            assert content(ours, kind) == content(theirs, kind), (number, kind)
    assert removed > 0


def test_the_tool_finds_nothing_wrong(steps: list[Step], tmp_path: Path) -> None:
    for topic in TOPICS:
        before, after, cleaned = steps[-1]
        folder = tmp_path / f"{topic.name}-0"
        shutil.copytree(before / folder.name, folder)
        now_ms = time_of_round(logs_in(after / folder.name))
        compact(folder, now_ms, cleaned[topic.name])
    for flags, kinds in (
        (("--deep-iteration", "--print-data-log"), ("log",)),
        (("--index-sanity-check",), ("index", "timeindex")),
        (("--verify-index-only",), ("index", "timeindex")),
        ((), ("index", "timeindex", "txnindex", "snapshot")),
    ):
        files = [one for kind in kinds for one in sorted(tmp_path.glob(f"*/*.{kind}"))]
        said = dump_log_segments([one for one in files if one.stat().st_size], *flags)
        assert not re.search("mismatch|Found|isvalid: false|corrupt|Exception", said), said


def write_keys(folder: Path) -> None:
    """A log of ours whose segments become fewer."""
    writer = open_writer(folder, replace(OURS, internal_segment_bytes=2000))
    for number in range(200):
        value = None if number % 11 == 5 else b"value %d " % number * 4
        record = Record(offset=0, timestamp_ms=NOW_MS, key=b"%d" % (number * 7 % 30), value=value)
        writer.append(build.batch([record]), leader_epoch=0)
    writer.flush()
    writer._close_files()


def compact_until(folder: Path, calls: int) -> list[str]:
    """Compact a log, and die before the call with that number; return the calls before."""
    writer = open_writer(folder, OURS, log_start_offset=0, is_clean=False, recovery_point=200)
    with cut_at(calls) as made, suppress(PowerCutError):
        writer.compact(1 << 20)
    writer._close_files()
    return made


def rows_of_ours(folder: Path) -> Rows:
    """What our own start makes of a copy of the log."""
    copy = folder.with_name(f"copy of {folder.name}")
    shutil.copytree(folder, copy)
    writer = open_writer(copy, OURS, log_start_offset=0, is_clean=False, recovery_point=200)
    logs = [decode_records(one.log_path) for one in writer.view().segments]
    writer._close_files()
    shutil.rmtree(copy)
    return [(one.offset, one.key, one.value) for columns in logs for one in columns.records()]


def rows_of_broker(broker: KafkaBroker, topic: str, partitions: int) -> dict[int, Rows]:
    """All records of a topic, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
        }
    )
    found: dict[int, Rows] = {one: [] for one in range(partitions)}
    ended: set[int] = set()
    consumer.assign([TopicPartition(topic, one, 0) for one in range(partitions)])

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.5):
            partition = message.partition()
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
            else:
                found[partition].append((message.offset(), message.key(), message.value()))
        return len(ended) == partitions

    try:
        wait_until(is_read, 60, what="all records")
    finally:
        consumer.close()
    return found


def test_a_broker_starts_on_every_state_that_a_kill_leaves(tmp_path: Path) -> None:
    """One partition for each rename or deletion of a round, which was ended right before it."""
    template = tmp_path / "template"
    write_keys(template)
    whole = tmp_path / "whole"
    shutil.copytree(template, whole)
    made = compact_until(whole, 10**6)
    steps = [row for row, name in enumerate(made) if name in ("rename", "unlink")]
    calls = [*steps, len(made)]
    assert len(logs_in(whole)) < len(logs_in(template))
    assert len(calls) > 20
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("killed", partitions=len(calls), config=SETTINGS)
        broker.stop()
        (root,) = broker.log_dirs
        (root / ".kafka_cleanshutdown").unlink()
        expected: dict[int, Rows] = {}
        for partition, number in enumerate(calls):
            folder = root / f"killed-{partition}"
            for path in folder.iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            shutil.copytree(template, folder, dirs_exist_ok=True)
            compact_until(folder, number)
            expected[partition] = rows_of_ours(folder)
        assert len({len(one) for one in expected.values()}) > 2
        broker.start()
        assert rows_of_broker(broker, "killed", len(calls)) == expected
