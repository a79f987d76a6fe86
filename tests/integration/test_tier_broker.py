"""The main job on a running, unmodified Kafka broker: tier, read back, let Kafka's tools judge."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dump_text import parse_log_dump
from tests.kafka_tools import KafkaBroker, dump_log_segments
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.open import open_reader
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store

pytestmark = pytest.mark.integration

SMALL = {"internal.segment.bytes": "16384", "index.interval.bytes": "512"}
TOPICS = ("plain", "squeezed", "money")


def tierlog(*arguments: str, expect: int = 0) -> str:
    """Runs the command as a user would; returns its standard output."""
    command = [str(Path(sys.executable).with_name("tierlog")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == expect, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def produce(broker: KafkaBroker, topic: str, count: int, **settings: Any) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "batch.num.messages": 10,
            "linger.ms": 1,
            **settings,
        }
    )
    for number in range(count):
        producer.produce(
            topic,
            key=None if number % 7 == 0 else f"key-{number}",
            value=None if number % 13 == 0 else f"{topic}-{number}-" + text(number),
            headers=[("n", str(number).encode()), ("none", None)] if number % 5 == 0 else None,
            partition=0,
        )
        producer.poll(0)
    assert producer.flush(30) == 0


def text(number: int) -> str:
    """Up to 300 printable characters that do not compress away."""
    digest = hashlib.sha512(str(number).encode()).hexdigest()
    return (digest * 3)[: number % 300]


def transact(broker: KafkaBroker, name: str, rounds: list[str]) -> Any:
    """Transactions of 60 records each, ended as `rounds` says; returns the producer."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": name,
            # Longer than the tests take: an open transaction must stay open.
            "transaction.timeout.ms": 900_000,
            "linger.ms": 1,
        }
    )
    producer.init_transactions(30)
    for number, end in enumerate(rounds):
        producer.begin_transaction()
        for record in range(60):
            producer.produce("money", f"{name}-{number}-{record}-" + "y" * 100, partition=0)
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
    return producer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), log_dirs=2) as running:
        for topic in TOPICS:
            running.create_topic(topic, config=SMALL)
        produce(running, "plain", 1200)
        produce(running, "squeezed", 1200, **{"compression.type": "zstd"})
        transact(running, "done", ["commit", "abort", "commit", "abort", "commit"])
        open_producer = transact(running, "open", ["leave open"])
        transact(running, "later", ["commit"] * 6)
        yield running
        del open_producer


@pytest.fixture(scope="module")
def store_dir(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that one `tierlog tier --once` beside the running broker has filled."""
    folder = tmp_path_factory.mktemp("store")
    state = tmp_path_factory.mktemp("state")
    arguments = [str(path) for path in broker.log_dirs]
    arguments += ["--to", folder.as_uri(), "--state-dir", str(state), "--once"]
    arguments += ["--bootstrap", broker.bootstrap_servers]
    tierlog("tier", *arguments)
    return folder


def partition_log(broker: KafkaBroker, topic: str) -> PartitionLog:
    return open_log_dir(*map(str, broker.log_dirs)).partition(topic, 0)


def last_stable_offset(broker: KafkaBroker, topic: str) -> int:
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    futures = admin.list_offsets(
        {TopicPartition(topic, 0): OffsetSpec.latest()},
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    (future,) = futures.values()
    return int(future.result(30).offset)


def stored(store_dir: Path, topic: str) -> list[RemoteLogSegmentMetadata]:
    found = list_segments(open_store(store_dir.as_uri()))
    wanted = [one for one in found if one.topic_id_partition.topic == topic]
    return sorted(wanted, key=lambda one: one.start_offset)


def original(broker: KafkaBroker, metadata: RemoteLogSegmentMetadata) -> SegmentFiles:
    log = partition_log(broker, metadata.topic_id_partition.topic)
    (segment,) = [one for one in log.segments if one.base_offset == metadata.start_offset]
    return segment


@pytest.mark.parametrize("topic", TOPICS)
def test_every_eligible_segment_is_copied_and_no_other(
    topic: str, broker: KafkaBroker, store_dir: Path
) -> None:
    stable = last_stable_offset(broker, topic)
    log = partition_log(broker, topic)
    eligible = [
        segment.base_offset
        for segment in log.rolled_segments
        if segment.next_base_offset is not None and segment.next_base_offset <= stable
    ]
    assert len(eligible) >= 2
    assert [metadata.start_offset for metadata in stored(store_dir, topic)] == eligible
    if topic == "money":
        # The open transaction holds back rolled segments after it.
        assert len(eligible) < len(log.rolled_segments)


def offsets_for_times(broker: KafkaBroker, topic: str, times: list[int]) -> dict[int, int]:
    """The broker's own answer to ListOffsets by each time; -1 for none."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    answers = {}
    for time_ms in times:
        (future,) = admin.list_offsets(
            {TopicPartition(topic, 0): OffsetSpec.for_timestamp(time_ms)}
        ).values()
        answers[time_ms] = int(future.result(30).offset)
    return answers


def test_offsets_by_time_are_those_of_the_broker(broker: KafkaBroker, store_dir: Path) -> None:
    """Around every transaction marker and its neighbours, whose times are close together."""
    log = partition_log(broker, "money")
    markers: list[int] = []
    for segment in log.segments:
        table = scan_segment(segment.log_path)
        markers += table.max_timestamp_ms[table.is_control].tolist()
    assert len(markers) >= 8
    times = sorted({time_ms + step for time_ms in markers for step in (-1, 0, 1)})
    answers = offsets_for_times(broker, "money", times)
    (logs,) = {str(Path(log.directory).parent)}
    local = open_reader(logs)
    both = open_reader(logs, store=store_dir.as_uri())
    alone = open_reader(store_dir.as_uri())
    _, stored_end = alone.bounds("money", 0)
    for time_ms, offset in answers.items():
        expected = None if offset < 0 else offset
        assert local.offset_for_timestamp("money", 0, time_ms) == expected
        assert both.offset_for_timestamp("money", 0, time_ms) == expected
        if 0 <= offset < stored_end:
            assert alone.offset_for_timestamp("money", 0, time_ms) == expected
    control = {offset for offset in answers.values() if offset in marker_offsets(log)}
    assert control, "at least one answer is a marker"


def marker_offsets(log: PartitionLog) -> set[int]:
    tables = [scan_segment(segment.log_path) for segment in log.segments]
    return {offset for table in tables for offset in table.base_offset[table.is_control].tolist()}


@pytest.mark.parametrize("topic", TOPICS)
def test_stored_objects_are_kafkas_bytes_and_kafkas_tool_reads_them(
    topic: str, broker: KafkaBroker, store_dir: Path, tmp_path: Path
) -> None:
    storage = ObjectStorageManager(open_store(store_dir.as_uri()))
    linked = []
    for metadata in stored(store_dir, topic):
        source = Path(original(broker, metadata).log_path)
        data = bytes(storage.fetch_log_segment(metadata, 0))
        assert data == source.read_bytes()
        # The tool insists on the base offset as the file's name.
        linked.append(tmp_path / f"{metadata.start_offset:020d}.log")
        linked[-1].write_bytes(data)
    dumped = dump_log_segments(linked, "--deep-iteration", "--print-data-log")
    batches = parse_log_dump(dumped)
    table = [batch for path in linked for batch in scan_segment(path).base_offset.tolist()]
    assert [batch.base_offset for batch in batches] == table


@pytest.mark.parametrize("topic", TOPICS)
def test_cat_prints_what_kafkas_tool_prints(
    topic: str, broker: KafkaBroker, store_dir: Path
) -> None:
    segments = stored(store_dir, topic)
    lines = tierlog("cat", store_dir.as_uri(), f"{topic}:0", "-o", "beginning", "-e", "-J")
    records = {row["offset"]: row for row in map(json.loads, lines.splitlines())}
    paths = [Path(original(broker, metadata).log_path) for metadata in segments]
    dumped = dump_log_segments(paths, "--deep-iteration", "--print-data-log")
    for batch in parse_log_dump(dumped):
        for record in batch.records:
            if batch.is_control:
                assert record.offset not in records
                continue
            row = records.pop(record.offset)
            assert row["ts"] == record.timestamp_ms
            assert size_of(row, "key") == record.key_size
            assert size_of(row, "payload") == record.value_size
            names = ",".join(row.get("headers", [])[::2])
            assert record.header_keys.startswith(f"{names}]")
            if row["payload"]:
                assert record.line.endswith(f"payload: {row['payload']}")
    assert records == {}


def size_of(row: dict[str, Any], name: str) -> int:
    """Bytes of a key or payload in the JSON envelope, -1 for null."""
    value = row[name]
    if value is None:
        return -1
    if row.get(f"{name}_encoding") == "base64":
        return len(base64.b64decode(value))
    return len(value.encode())


@pytest.mark.parametrize("topic", TOPICS)
def test_rebuilt_indexes_pass_kafkas_sanity_check(
    topic: str, broker: KafkaBroker, store_dir: Path, tmp_path: Path
) -> None:
    storage = ObjectStorageManager(open_store(store_dir.as_uri()))
    names = {
        IndexKind.OFFSET: ".index",
        IndexKind.TIME: ".timeindex",
        IndexKind.TRANSACTION: ".txnindex",
        IndexKind.PRODUCER_SNAPSHOT: ".snapshot",
    }
    files: dict[IndexKind, list[Path]] = {kind: [] for kind in names}
    for metadata in stored(store_dir, topic):
        base = tmp_path / f"{metadata.start_offset:020d}"
        base.with_suffix(".log").write_bytes(storage.fetch_log_segment(metadata, 0))
        for kind, section in storage.fetch_indexes(metadata, names).items():
            is_snapshot = kind is IndexKind.PRODUCER_SNAPSHOT
            offset = metadata.end_offset + 1 if is_snapshot else metadata.start_offset
            if kind is not IndexKind.TRANSACTION or len(section):
                files[kind].append(tmp_path / f"{offset:020d}{names[kind]}")
                files[kind][-1].write_bytes(section)
    checked = files[IndexKind.OFFSET] + files[IndexKind.TIME]
    said = dump_log_segments(checked, "--index-sanity-check")
    for path in checked:
        assert f"{path.name} passed sanity check." in said
    # Without the flag the tool looks every entry up in the log beside the index.
    said = dump_log_segments([path for paths in files.values() for path in paths])
    for complaint in ("Mismatches", "Found timestamp mismatch", "are not found", "out of order"):
        assert complaint not in said


def test_a_second_pass_copies_nothing_again(
    broker: KafkaBroker, store_dir: Path, tmp_path: Path
) -> None:
    """Also without the state directory of the first: the store itself knows."""
    before = sorted(path.name for path in store_dir.rglob("*"))
    arguments = [str(path) for path in broker.log_dirs]
    arguments += ["--to", store_dir.as_uri(), "--state-dir", str(tmp_path / "state"), "--once"]
    tierlog("tier", *arguments, "--bootstrap", broker.bootstrap_servers)
    assert sorted(path.name for path in store_dir.rglob("*")) == before


def test_verify_finds_nothing_wrong(store_dir: Path) -> None:
    tierlog("verify", store_dir.as_uri(), "--deep")
