"""The harness: the real Kafka resolves, dumps what is stored, starts, stops and is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.kafka_tools import KafkaBroker, KafkaToolsError, classpath, dump_log_segments, wait_until
from tests.kafka_tools.golden import (
    dump_as_stored,
    golden_segments,
    manifest,
    truth_records,
    truth_text,
)

# One JVM start each: a compressed log, a torn one the tool gives up on, cut lines, markers.
DUMPED = [
    ("clean", "broker-snappy", 0),
    ("clean", "transactions", 0),
    ("clean", "sizes", 8),
    ("unclean", "crash-preallocated", -1),
]


def copied_directory(source: Path, target: Path) -> list[Path]:
    """Copy a partition directory away from the golden one; the files that have stored texts."""
    shutil.copytree(source, target)
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    return sorted(p for p in target.iterdir() if p.suffix in suffixes and p.stat().st_size)


def test_classpath_is_resolved_once_and_remembered(tmp_path: Path) -> None:
    jars = classpath(tmp_path).split(":")
    assert any(Path(jar).name == "kafka_2.13-4.3.1.jar" for jar in jars)
    assert all(Path(jar).is_file() for jar in jars)
    (remembered,) = tmp_path.iterdir()
    before = remembered.stat().st_mtime_ns
    assert classpath(tmp_path).split(":") == jars
    assert remembered.stat().st_mtime_ns == before


def test_classpath_without_maven_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = shutil.which("java")
    assert java is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(KafkaToolsError, match=r"^mvn not found on PATH: .*package maven"):
        classpath(tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(KafkaToolsError, match=r"^java not found on PATH"):
        classpath(tmp_path / "cache")


@pytest.mark.parametrize(("data_set", "topic", "base_offset"), DUMPED)
def test_dump_prints_exactly_the_stored_text(
    data_set: str, topic: str, base_offset: int, tmp_path: Path
) -> None:
    segments = golden_segments(topic, data_set)
    wanted = segments[-1] if base_offset < 0 else segments[0]
    if base_offset > 0:
        (wanted,) = (s for s in segments if s.base_offset == base_offset)
    paths = copied_directory(wanted.path.parent, tmp_path / wanted.path.parent.name)
    texts = dump_as_stored(paths)
    assert texts[wanted.path.name].count("\nbaseOffset: ") == wanted.batch_count
    for path in paths:
        assert texts[path.name] == truth_text(wanted.path.with_name(path.name)), path.name


def test_dump_takes_one_path_or_many_and_refuses_none(tmp_path: Path) -> None:
    path = shutil.copy(golden_segments("broker-zstd", "clean")[0].path, tmp_path)
    assert dump_log_segments(path) == dump_log_segments([path])
    assert dump_log_segments(path).startswith(f"Dumping {path}\nLog starting offset: 0\n")
    with pytest.raises(ValueError, match="without commas"):
        dump_log_segments([])


def test_a_failing_tool_shows_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(KafkaToolsError, match="NoSuchFileException") as caught:
        dump_log_segments(tmp_path / f"{0:020d}.log")
    assert "Dumping" in caught.value.stdout


def test_manifest_describes_the_files_that_are_there() -> None:
    segments = golden_segments()
    assert {s.data_set for s in segments} == {"clean", "unclean"}
    assert {codec for s in segments for codec in s.codecs} == {
        *("none", "gzip", "snappy", "lz4", "zstd")
    }
    for segment in segments:
        assert segment.path.stat().st_size == segment.size_bytes, segment.name
        assert truth_text(segment.path).count("\nbaseOffset: ") == segment.batch_count
    data = segments[0].path.parents[3]
    there = (p for name in manifest()["data_sets"] for p in data.glob(f"{name}/disk*/*/*.log"))
    found = {path for path in there if is_live(path)}
    assert found == {s.path for s in segments}


def is_live(log: Path) -> bool:
    return not log.parent.name.endswith("-delete")


def test_truth_records_agree_with_the_manifest() -> None:
    for data_set, held in manifest()["data_sets"].items():
        for facts in held["partitions"]:
            rows = truth_records(data_set, facts["topic"], facts["partition"])
            assert len(rows) == facts["record_count"]
            stable = facts["last_stable_offset"]
            assert all(row["offset"] < stable for row in rows if row["read_committed"])


def test_wait_until_gives_up_at_the_deadline() -> None:
    ticks = iter(range(100))
    with pytest.raises(TimeoutError, match="pigs fly: not true within 5 s"):
        wait_until(
            lambda: False,
            5,
            what="pigs fly",
            interval_s=0,
            clock=lambda: float(next(ticks)),
        )
    assert next(ticks) < 10


@pytest.mark.integration
def test_broker_starts_stops_and_is_killed(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka", log_dirs=2) as broker:
        broker.create_topic("a-b", partitions=2, config={"internal.segment.bytes": 65_536})
        homes = {broker.partition_dir("a-b", n).parent for n in range(2)}
        assert homes == set(broker.log_dirs)
        broker.stop()
        broker.stop()
        assert all((path / ".kafka_cleanshutdown").exists() for path in broker.log_dirs)
        address = broker.bootstrap_servers
        broker.start()
        pid = broker.pid
        assert pid is not None
        assert broker.bootstrap_servers == address
        broker.kill()
        assert not any((path / ".kafka_cleanshutdown").exists() for path in broker.log_dirs)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(FileNotFoundError, match="no a-b-7 under"):
            broker.partition_dir("a-b", 7)


@pytest.mark.integration
def test_broker_with_bad_settings_says_why(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka", properties={"log.retention.bytes": "many"})
    with pytest.raises(KafkaToolsError, match=r"log\.retention\.bytes"):
        broker.start()
    assert broker.pid is None


@pytest.mark.integration
def test_broker_with_tiered_storage_moves_segments(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    tier = tmp_path / "tier"
    with KafkaBroker(tmp_path / "kafka", tiered_dir=tier) as broker:
        config = {"remote.storage.enable": "true", "internal.segment.bytes": 20_000}
        broker.create_topic("cold", config=config)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(5):
            producer.produce("cold", b"x" * 15_000, partition=0)
            producer.flush(30)
        wait_until(lambda: any(tier.rglob("*.log")), 60, what="a segment in the tier")
        # A clean stop may wait half a minute for the consumer of the metadata topic.
        broker.kill()
