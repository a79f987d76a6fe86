"""Make the golden log directories anew, with a real broker: `python tests/data/make.py [SET ...]`.

Run by hand, with java, mvn and confluent-kafka at hand; takes about a minute. README.md beside
this file says what comes out. Each set named (default: all) is made in a temporary directory and
replaces `tests/data/<set>/` and its part of manifest.json only when it is complete.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_DIR = Path(__file__).resolve().parent
sys.path.insert(0, str(DATA_DIR.parents[1]))

from tests.data.maker import capture, consuming, topics, workloads  # noqa: E402
from tests.data.maker.deposed import make_deposed  # noqa: E402
from tests.data.maker.legacy import make_legacy  # noqa: E402
from tests.kafka_tools import KafkaBroker, wait_until  # noqa: E402

KAFKA_VERSION = "4.3.1"
# The same in every run: 22 characters, as Kafka's Uuid prints.
CLUSTER_ID = "dGllcmxvZy1nb2xkZW4tMQ"
BROKER_PROPERTIES = {
    "log.retention.check.interval.ms": 300,
    "log.initial.task.delay.ms": 300,
    "log.cleaner.backoff.ms": 200,
    # Indexes are pre-sized to this; what a crash leaves stays small.
    "log.index.size.max.bytes": 4_096,
    "producer.id.expiration.ms": 2_000_000_000,
}
# As the defaults relate: checkpoints lag behind the log. Only shorter, to be made in seconds.
CRASH_PROPERTIES = BROKER_PROPERTIES | {
    "replica.high.watermark.checkpoint.interval.ms": 3_000,
    "log.flush.offset.checkpoint.interval.ms": 3_000,
    "log.flush.start.offset.checkpoint.interval.ms": 1_000,
}
SIZE_LIMIT_BYTES = 8 << 20
FILE_LIMIT_BYTES = 1_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    name: str
    topics: list[workloads.Topic]
    properties: dict[str, int]
    crash: bool
    last_words: Callable[[workloads.Stage], None]


def quiet(_stage: workloads.Stage) -> None:
    """Say nothing before the stop."""


def burst(stage: workloads.Stage) -> None:
    """Write right after a checkpoint, so that the crash comes before the next one."""
    topic = next(t for t in topics.unclean_topics() if t.name == "crash-burst")
    directory = stage.broker.partition_dir(topic.name, 0).parent
    raised = stage.broker.partition_dir("crash-deleted-records", 0).parent
    start_offsets = raised / "log-start-offset-checkpoint"
    wait_until(
        lambda: (
            start_offsets.exists() and "crash-deleted-records 0 290" in start_offsets.read_text()
        ),
        30,
        what="the raised start offset in its checkpoint",
    )
    # The broker keeps writing it on a timer, changed or not.
    checkpoint = directory / "replication-offset-checkpoint"
    before = checkpoint.stat().st_mtime_ns
    wait_until(lambda: checkpoint.stat().st_mtime_ns != before, 30, what="a fresh checkpoint")
    workloads.later(60, 9)(stage, topic)


def data_sets() -> list[DataSet]:
    return [
        DataSet(
            name="clean",
            topics=topics.clean_topics(),
            properties=BROKER_PROPERTIES,
            crash=False,
            last_words=quiet,
        ),
        DataSet(
            name="unclean",
            topics=topics.unclean_topics(),
            properties=CRASH_PROPERTIES,
            crash=True,
            last_words=burst,
        ),
    ]


def write_logs(data_set: DataSet, broker: KafkaBroker) -> None:
    """Run every phase of every topic, taking the broker down in the set's way after each."""
    stage = workloads.Stage(broker=broker, now_ms=int(time.time() * 1000))
    phases = max(len(topic.phases) for topic in data_set.topics)
    for number in range(phases):
        broker.start()
        for topic in data_set.topics:
            if number == 0:
                broker.create_topic(topic.name, topic.partitions, topic.config)
            if number < len(topic.phases):
                topic.phases[number](stage, topic)
        if number == phases - 1:
            data_set.last_words(stage)
        if data_set.crash:
            broker.kill()
        else:
            broker.stop()
    stage.held.clear()


def topic_of(data_set: DataSet, directory: Path) -> workloads.Topic:
    """The topic of a partition directory; Kafka's internal ones are known by their underscores."""
    name, _ = capture.split_name(directory)
    known = {topic.name: topic for topic in data_set.topics}
    if name.startswith("__"):
        return workloads.Topic(
            name=name, exercises=("internal log of Kafka",), phases=(), config={}
        )
    return known[name]


def partition_facts(
    data_set: DataSet, broker: KafkaBroker, directory: Path, texts: dict[str, str]
) -> dict[str, Any]:
    """Ask the restarted broker about a partition, and check that it and the dump texts agree."""
    topic = topic_of(data_set, directory)
    partition = capture.split_name(directory)[1]
    offsets = consuming.partition_offsets(broker, topic.name, partition)
    rows = consuming.consume(broker, topic.name, partition)
    logs = [texts[path.name] for path in sorted(directory.glob("*.log"))]
    dumped = [x for text in logs for x in capture.data_offsets(text)]
    visible = [offset for offset in dumped if offset >= offsets["log_start_offset"]]
    if visible != [row["offset"] for row in rows]:
        raise RuntimeError(f"{directory.name}: dump text and consumer differ")
    truth = directory.parents[1] / "truth" / f"{directory.name}.records.jsonl.gz"
    truth.parent.mkdir(exist_ok=True)
    truth.write_bytes(gzip.compress(consuming.as_lines(rows).encode(), 9, mtime=0))
    return {
        "topic": topic.name,
        "partition": partition,
        "log_dir": directory.parent.name,
        "config": {key: str(value) for key, value in topic.config.items()},
        "exercises": list(topic.exercises),
        "record_count": len(rows),
        **offsets,
    }


def make(data_set: DataSet, root: Path) -> dict[str, Any]:
    """Make one set, put it below DATA_DIR and return its part of the manifest."""
    broker = KafkaBroker(
        root / "kafka", log_dirs=2, properties=data_set.properties, cluster_id=CLUSTER_ID
    )
    copied = root / "golden" / data_set.name
    try:
        write_logs(data_set, broker)
        capture.copy_log_dirs(broker.log_dirs, copied, controller_log=not data_set.crash)
        directories = capture.partition_dirs(copied)
        texts = {directory: capture.dump_partition(directory) for directory in directories}
        broker.start()
        facts = {
            directory: partition_facts(data_set, broker, directory, texts[directory])
            for directory in directories
            if capture.split_name(directory)[0] != capture.CONTROLLER_LOG
        }
        broker.stop()
    finally:
        broker.kill()
    segments = []
    for directory in directories:
        topic = topic_of(data_set, directory)
        end_offset = facts[directory]["high_watermark"] if directory in facts else None
        segments += capture.segment_rows(directory, texts[directory], topic, end_offset)
    shutil.rmtree(DATA_DIR / data_set.name, ignore_errors=True)
    shutil.move(copied, DATA_DIR / data_set.name)
    return {
        "stop": "kill -9" if data_set.crash else "clean",
        "kafka_version": KAFKA_VERSION,
        "cluster_id": CLUSTER_ID,
        "log_dirs": [path.name for path in broker.log_dirs],
        "partitions": list(facts.values()),
        "segments": segments,
    }


def check_sizes() -> None:
    """Golden files are cloned by everybody: refuse to let them grow."""
    files = [path for path in DATA_DIR.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sizes = {path: path.stat().st_size for path in files}
    total = sum(sizes.values())
    print(f"{len(sizes)} files, {total:,} bytes", file=sys.stderr)
    large = [path.name for path, size in sizes.items() if size > FILE_LIMIT_BYTES]
    if total > SIZE_LIMIT_BYTES or large:
        raise RuntimeError(f"too large: {total:,} bytes in all, beyond the file limit: {large}")


def main(names: list[str]) -> None:
    path = DATA_DIR / "manifest.json"
    held = json.loads(path.read_text())["data_sets"] if path.exists() else {}
    for data_set in data_sets():
        if names and data_set.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="tierlog-golden-") as root:
            held[data_set.name] = make(data_set, Path(root))
        print(f"{data_set.name}: {len(held[data_set.name]['segments'])} segments", file=sys.stderr)
    path.write_text(json.dumps({"data_sets": held}, indent=1, ensure_ascii=False) + "\n")
    if not names or "deposed" in names:
        with tempfile.TemporaryDirectory(prefix="tierlog-golden-") as root:
            make_deposed(Path(root), DATA_DIR / "deposed")
    if not names or "legacy" in names:
        with tempfile.TemporaryDirectory(prefix="tierlog-golden-") as root:
            make_legacy(Path(root), DATA_DIR / "legacy")
    check_sizes()


if __name__ == "__main__":
    main(sys.argv[1:])
