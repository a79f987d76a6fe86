"""DeleteRecords on a running broker: each segment is copied once, and the reasons are true.

DeleteRecords moves the leader-epoch checkpoint at once, and the log-start checkpoint with the next
flush, which comes within a minute by default.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.support import wait_until
from tests.sidecar.configs import tier_config
from tests.sidecar.running import QUICK, Told, running
from tierlog.log.log_dir import open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.sidecar import Outcome

pytestmark = pytest.mark.integration

SMALL = {"internal.segment.bytes": "16384"}
# No flush of checkpoints and no retention by time: `flush_log_starts` is the only flush.
NO_TIMERS = {"log.initial.task.delay.ms": 3_600_000, "log.cleaner.backoff.ms": 200}
# One pass over a few small segments takes a second or two; a pass that never ends takes them all.
PASS_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    root = tmp_path_factory.mktemp("kafka")
    with KafkaBroker(root, properties=NO_TIMERS) as running_broker:
        yield running_broker


def produce(broker: KafkaBroker, topic: str, keys: list[str]) -> None:
    """One record of a kilobyte per key, three in a batch."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 3})
    for number, key in enumerate(keys):
        producer.produce(topic, f"{key} {number} ".ljust(1_000, "."), key, partition=0)
    assert producer.flush(30) == 0


def begin_transaction(broker: KafkaBroker, topic: str) -> Any:
    """The producer of an open transaction with one record."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"of-{topic}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", b"open", partition=0)
    producer.flush(30)
    return producer


def base_offsets(broker: KafkaBroker, topic: str) -> list[int]:
    """Of the rolled segments on the broker's disk."""
    (disk,) = broker.log_dirs
    log = open_log_dir(str(disk)).partition(topic, 0)
    return [segment.base_offset for segment in log.rolled_segments]


def checkpoint(broker: KafkaBroker, name: str) -> str:
    path = broker.log_dirs[0] / name
    return path.read_text() if path.exists() else ""


def wait_for_epochs(broker: KafkaBroker, topic: str, log_start: int) -> None:
    path = broker.partition_dir(topic, 0) / "leader-epoch-checkpoint"
    wait_until(
        lambda: path.read_text() == f"0\n1\n0 {log_start}\n", 30, what=f"epochs from {log_start}"
    )


def flush_log_starts(broker: KafkaBroker, topic: str, log_start: int) -> None:
    """Have the broker write its log-start checkpoint, as it does when a topic is deleted."""
    from confluent_kafka.admin import AdminClient

    def is_flushed() -> bool:
        return f"{topic} 0 {log_start}\n" in checkpoint(broker, "log-start-offset-checkpoint")

    assert not is_flushed()
    broker.create_topic(f"other-than-{topic}")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([f"other-than-{topic}"])[f"other-than-{topic}"].result(30)
    wait_until(is_flushed, 30, what=f"log start {log_start} of {topic} in the checkpoint")


class Archive:
    """The store of one topic, and the commands of an operator."""

    def __init__(self, broker: KafkaBroker, folder: Path, topic: str) -> None:
        self._broker, self._folder, self._topic = broker, folder, topic
        self.store = folder / "store"
        self.store.mkdir()

    def base_offsets(self) -> list[int]:
        """Of all `.log` objects, a copy that was made twice included."""
        return sorted(int(path.name[:20]) for path in self.store.rglob("*.log"))

    def tier(self, state: str, *options: str) -> dict[int, dict[str, Any]]:
        """One pass of the command; its rows by base offset."""
        command = ["tier", *map(str, self._broker.log_dirs), "--to", self.store.as_uri()]
        command += ["--state-dir", str(self._folder / state), "--topic", self._topic, "--once"]
        command += ["--bootstrap", self._broker.bootstrap_servers, "--format", "json", *options]
        done = run(*command)
        assert done.returncode == 0, done.stderr
        return {row["base_offset"]: row for row in json.loads(done.stdout)["segments"]}

    def verify(self) -> None:
        done = run("verify", self.store.as_uri(), "--deep")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "no problems" in done.stdout

    def offsets(self) -> list[int]:
        return [
            record.offset
            for columns in tierlog.read(self.store.as_uri(), self._topic, 0)
            for record in columns.records()
        ]

    def sidecar(self, **tier: Any) -> Any:
        """A sidecar beside the broker that goes on, and what it tells."""
        return running(
            self._folder,
            list(self._broker.log_dirs),
            tier_config(
                QUICK,
                bootstrap_servers=self._broker.bootstrap_servers,
                topics=(self._topic,),
                **tier,
            ),
        )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command. A pass that does not end is a TimeoutExpired."""
    command = [sys.executable, "-m", "tierlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PASS_S)


def reasons(rows: dict[int, dict[str, Any]]) -> dict[int, str]:
    return {base: row["reason"] for base, row in rows.items()}


@pytest.mark.parametrize("sidecar_starts", ["before", "after"])
def test_each_segment_is_copied_once(
    sidecar_starts: str, broker: KafkaBroker, tmp_path: Path
) -> None:
    """An open transaction holds the segments back until DeleteRecords has cut the third of them.

    The broker's last stable offset then is at the log start: the first two may be copied.
    """
    topic = f"deleted-{sidecar_starts}"
    broker.create_topic(topic, config=SMALL)
    transaction = begin_transaction(broker, topic)
    produce(broker, topic, ["a"] * 80)
    bases = base_offsets(broker, topic)
    assert len(bases) >= 4
    log_start = (bases[2] + bases[3]) // 2
    archive = Archive(broker, tmp_path, topic)
    with ExitStack() as stack:
        told = Told()
        if sidecar_starts == "before":
            told = stack.enter_context(archive.sidecar())
            wait_until(told.looks(2), 30, what="two looks before DeleteRecords")
        broker.delete_records(topic, 0, log_start)
        wait_for_epochs(broker, topic, log_start)
        waiting = archive.tier("dry", "--dry-run")
        assert {reasons(waiting)[base] for base in bases[2:]} == {"not_stable"}
        assert "is not below the last stable offset" in waiting[bases[-1]]["text"]
        if sidecar_starts == "after":
            told = stack.enter_context(archive.sidecar())
        transaction.commit_transaction(30)
        wait_until(lambda: len(told.bases(Outcome.COPIED)) >= len(bases), PASS_S, what="copies")
        wait_until(told.looks(5), 30, what="looks after the copies")
        flush_log_starts(broker, topic, log_start)
        wait_until(told.looks(5), 30, what="looks after the log start has moved")
    assert told.bases(Outcome.COPIED) == [(topic, base) for base in bases]
    assert told.failures == told.warnings == []
    assert archive.base_offsets() == bases
    for state in ("state", "anew"):
        rows = archive.tier(state)
        assert {reasons(rows)[base] for base in bases[:2]} == {"below_log_start"}
        assert f"below the log start {log_start}" in rows[bases[0]]["text"]
        assert {reasons(rows)[base] for base in bases[2:]} == {"copied"}
        assert [row["reason"] for base, row in rows.items() if base not in bases] == ["active"]
    assert archive.base_offsets() == bases
    archive.verify()
    # An archive that began before DeleteRecords goes on to have what it had.
    first = 0 if sidecar_starts == "before" else log_start
    assert archive.offsets() == list(range(first, max(rows)))


def compacted(broker: KafkaBroker, topic: str) -> None:
    """Write a log of which the cleaner has removed every other seven records."""
    broker.create_topic(
        topic,
        config={
            **SMALL,
            "cleanup.policy": "compact,delete",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        },
    )
    produce(broker, topic, [f"key-{n}" if n // 7 % 2 else "hot" for n in range(400)])

    def is_clean() -> bool:
        active = open_log_dir(str(broker.log_dirs[0])).partition(topic, 0).segments[-1].base_offset
        return f"{topic} 0 {active}\n" in checkpoint(broker, "cleaner-offset-checkpoint")

    wait_until(is_clean, 60, what="the cleaner has reached the active segment")


def first_offset(broker: KafkaBroker, topic: str, base_offset: int) -> int:
    """The first offset that the cleaner has left in a segment."""
    path = broker.partition_dir(topic, 0) / f"{base_offset:020d}.log"
    return int(scan_segment(path).base_offset[0])


def consumed(broker: KafkaBroker, topic: str, log_start: int, log_end: int) -> list[int]:
    """The offsets that a consumer of the broker gets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "a"})
    consumer.assign([TopicPartition(topic, 0, log_start)])
    found: list[int] = []
    while not found or found[-1] < log_end - 1:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        found.append(message.offset() or 0)
    consumer.close()
    return found


def test_a_compacted_topic_is_tiered_after_deleted_records(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """The leader epochs begin inside the first segment, which lost its front to compaction."""
    topic = "compacted"
    compacted(broker, topic)
    rolled = base_offsets(broker, topic)
    first = next(
        n for n, base in enumerate(rolled) if n and first_offset(broker, topic, base) > base
    )
    kept = rolled[first:]
    assert len(kept) >= 3
    log_start = (first_offset(broker, topic, kept[0]) + kept[1]) // 2
    broker.delete_records(topic, 0, log_start)
    # The cleaner deletes the segments of such a topic that lie below its log start.
    wait_until(lambda: base_offsets(broker, topic) == kept, 30, what="deleted segments")
    wait_for_epochs(broker, topic, log_start)
    archive = Archive(broker, tmp_path, topic)
    with archive.sidecar(include_compacted_topics=True) as told:
        wait_until(lambda: len(told.bases(Outcome.COPIED)) >= len(kept), 30, what="copies")
        # The log goes on, and the cleaner with it.
        produce(broker, topic, [f"later-{number}" for number in range(40)])
        flush_log_starts(broker, topic, log_start)
        wait_until(told.looks(5), 30, what="looks after the log start has moved")
    assert told.failures == []
    # What rolled or was merged in the last moment.
    archive.tier("state", "--include-compacted")
    for state in ("state", "anew"):
        rows = archive.tier(state, "--include-compacted")
        assert set(reasons(rows).values()) == {"copied", "active"}
    archive.verify()
    # The cleaner goes on in segments that were copied: the archive has at least what is left.
    read = [one for one in consumed(broker, topic, log_start, 440) if one < max(rows)]
    assert [one for one in archive.offsets() if one in set(read)] == read
