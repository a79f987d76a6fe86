"""`tierlog tier` as it is meant to be used: a process beside a broker that is produced to.

A real producer keeps a ledger of what was acked. Meanwhile the broker deletes its own segments
soon, the sidecar is killed and started again and again, the broker too, and a topic is deleted and
made again. Afterwards every acked record below the last rolled segment has to come back from the
store alone. ``SOAK_SECONDS`` is how long the load goes on.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.integration.ledger import Ledger, digest
from tests.integration.tier_process import Tier, run, running
from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.support import LOOPBACK, free_ports, wait_until
from tests.proofs import usually
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store

pytestmark = pytest.mark.integration

SOAK_S = float(os.environ.get("SOAK_SECONDS", usually(40, thorough=180)))
SEGMENT_BYTES = 1 << 20
RECORD_BYTES = 4096
RECORDS_PER_S = 300
# Twice the load, paced: a copy takes so long that a kill strikes it in the middle at times.
COPY_QUOTA = "3MiB"
# The broker keeps 8 segments, which are some 20 s of load: so long may the sidecar be away.
POLICY = {
    "segment.bytes": SEGMENT_BYTES,
    "retention.bytes": 8 * SEGMENT_BYTES,
    "file.delete.delay.ms": 1000,
}
BROKER = {
    "log.retention.check.interval.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 1000,
    "log.initial.task.delay.ms": 1000,
}
TOPICS = {"orders": 2, "reborn": 1}
# How often each topic is created. Each life begins at offset 0 again.
LIVES = {"orders": 1, "reborn": 2}
PAUSE = threading.Event()
# What the sidecar says of its broker.
AWAY, BACK = "does not answer: ", "the broker answers again"


class Load:
    """A producer that goes on until told to stop, with its ledger of acked records.

    A topic that is made again begins at offset 0 again, so an offset may have been acked twice.
    """

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 20,
                "message.timeout.ms": 30_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            },
            error_cb=lambda _: None,
        )
        self.ledger = Ledger()
        self.sent = 0
        self._stop, self._rest = threading.Event(), threading.Event()
        self._random = random.Random(7)
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """What piles up for a broker that is away comes all at once, and may be too old by then."""
        self._rest.set()
        yield
        self._rest.clear()

    def _run(self) -> None:
        partitions = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
        while not self._stop.wait(10 / RECORDS_PER_S):
            for _ in range(0 if self._rest.is_set() else 10):
                topic, number = partitions[self.sent % len(partitions)]
                self.sent += 1
                value = self._random.randbytes(RECORD_BYTES // 2).hex().encode()
                self._send(topic, number, value)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def _send(self, topic: str, number: int, value: bytes) -> None:
        from confluent_kafka import KafkaException

        delivered = self.ledger.expect_ack((topic, number), digest(value))
        try:
            self._producer.produce(topic, value, partition=number, on_delivery=delivered)
        except (BufferError, KafkaException):
            # The queue is full while the broker is away, or the topic is gone just now.
            self.ledger.note_failure()

    def find_strange(self, topic: str, number: int, stored: Mapping[int, int]) -> list[int]:
        """Return the offsets at which the partition cannot have such a record.

        An offset that was acked in each life of the topic has one of the acked records, or one
        that was never acked. Any other offset has a record that was sent to the partition: a
        retry stores a record twice when the broker dies before its ack.
        """
        acked, ledger = self.ledger.acked_at((topic, number)), self.ledger
        return [
            offset
            for offset, content in stored.items()
            if content
            not in (
                ledger.sent[topic, number]
                if len(acked[offset]) < LIVES[topic]
                else acked[offset] | ledger.unsettled
            )
        ]


def log_of(broker: KafkaBroker, topic: str, number: int) -> PartitionLog:
    return open_log_dir(*broker.log_dirs).partition(topic, number)


def topic_id_of(broker: KafkaBroker, topic: str) -> str:
    """The id of a topic, which the broker writes a moment after it made the directory."""
    wait_until(lambda: log_of(broker, topic, 0).topic_id is not None, 30, what="topic id")
    return str(log_of(broker, topic, 0).topic_id)


def live_through(broker: KafkaBroker, tier: Tier, load: Load) -> None:
    """What happens meanwhile, in parts of the load, so that it is the same on a slow machine."""
    from confluent_kafka.admin import AdminClient

    def restart_sidecar() -> None:
        tier.kill()
        tier.start()

    def make_topic_again() -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["reborn"], operation_timeout=20)["reborn"].result(30)
        wait_until(lambda: not on_disk(broker, "reborn-0"), 30, what="reborn gone from disk")
        broker.create_topic("reborn", TOPICS["reborn"], config=POLICY)

    def restart_broker() -> None:
        broker.kill()
        with load.resting():
            wait_until(lambda: tier.has_said(AWAY), 60, what="the sidecar's warning")
            broker.start()
            wait_until(lambda: tier.has_said(BACK), 60, what="the sidecar's relief")

    steps: list[tuple[float, Callable[[], None]]] = [
        (0.15, restart_sidecar),
        (0.25, restart_sidecar),
        (0.35, make_topic_again),
        (0.45, restart_sidecar),
        (0.60, restart_broker),
        (0.75, restart_sidecar),
        (0.85, restart_sidecar),
    ]
    # On a slow machine the steps themselves take long: some load has to follow the last one.
    rest_s = 3.0
    while steps or rest_s > 0:
        passed = load.sent / (RECORDS_PER_S * SOAK_S)
        if steps and passed >= steps[0][0]:
            steps.pop(0)[1]()
        if not steps and passed >= 1:
            rest_s -= 0.5
        tier.scrape()
        PAUSE.wait(0.5)


def on_disk(broker: KafkaBroker, name: str) -> bool:
    return any((root / name).is_dir() for root in broker.log_dirs)


def stored_bases(store: Path, log: PartitionLog) -> set[int]:
    folder = store / f"{log.topic}-{log.topic_id}" / str(log.partition)
    return {int(path.name[:20]) for path in folder.glob("*.indexes")}


def caught_up(broker: KafkaBroker, tier: Tier, store: Path) -> bool:
    tier.scrape()
    logs = [log for log in open_log_dir(*broker.log_dirs).partitions() if log.topic in TOPICS]
    rolled = all(
        {segment.base_offset for segment in log.rolled_segments} <= stored_bases(store, log)
        for log in logs
    )
    return rolled and tier.lags[-1:] == [0.0]


def test_nothing_acked_is_lost(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    store, state = tmp_path / "store", tmp_path / "state"
    with KafkaBroker(tmp_path / "kafka", log_dirs=2, properties=BROKER) as broker:
        for topic, partitions in TOPICS.items():
            broker.create_topic(topic, partitions, config=POLICY)
        arguments = [*map(str, broker.log_dirs), "--to", store.as_uri(), "--state-dir", str(state)]
        arguments += ["--interval", "0.5", "--bootstrap", broker.bootstrap_servers]
        arguments += ["--copy-quota", COPY_QUOTA, "--copy-quota-mode", "pace"]
        address = f"{LOOPBACK}:{port}"
        tier = Tier([*arguments, "--metrics", address], f"http://{address}/metrics")
        first_id = topic_id_of(broker, "reborn")
        with running(tier), Load(broker.bootstrap_servers) as load:
            live_through(broker, tier, load)
            load.stop()
            wait_until(lambda: caught_up(broker, tier, store), 120, what="copy lag back at 0")
            assert tier.end() == 0
        again = run("tier", *arguments, "--once")
        assert again.stderr.startswith("0 segments copied;")
    # Retention of a broker that runs would take files away that are compared here.
    logs = [log_of(broker, topic, n) for topic, count in TOPICS.items() for n in range(count)]
    assert logs[-1].topic_id != first_id
    for log in logs:
        check_partition(load, store, log)
    check_first_life(load, store, "reborn", first_id)
    run("verify", store.as_uri(), "--deep")
    check_agreement(store, state)
    check_what_it_said(tier)
    settled = sum("interrupted copy" in line for line in tier.stderr)
    print(f"{len(load.ledger.acks)} acked, {load.ledger.failed} failed, {settled} copies settled")


def check_partition(load: Load, store: Path, log: PartitionLog) -> None:
    """All that is rolled is in the store; what the broker still has is there byte for byte."""
    boundary = log.segments[-1].base_offset
    assert log.segments[0].base_offset > 0, "the broker deleted nothing: no test of the archive"
    stored = read_back(load, store, log.topic, str(log.topic_id), log.partition)
    assert sorted(stored) == list(range(boundary))
    for segment in list_segments(open_store(store.as_uri())):
        name = segment.topic_id_partition
        if (name.topic_id, name.partition) != (log.topic_id, log.partition):
            continue
        local = [one for one in log.segments if one.base_offset == segment.start_offset]
        for one in local:
            key = f"{segment.start_offset:020d}-{segment.segment_id.id}.log"
            folder = store / f"{log.topic}-{log.topic_id}" / str(log.partition)
            assert (folder / key).read_bytes() == Path(one.log_path).read_bytes()


def check_first_life(load: Load, store: Path, topic: str, topic_id: str) -> None:
    """What was copied of the topic before it was deleted is there still, without a hole."""
    stored = read_back(load, store, topic, topic_id, 0)
    assert stored
    assert sorted(stored) == list(range(len(stored)))


def read_back(load: Load, store: Path, topic: str, topic_id: str, number: int) -> dict[int, int]:
    """Offset and digest of every record in the store, each of them one that was sent there."""
    stored: dict[int, int] = {}
    for records in tierlog.read(store.as_uri(), topic_id, number):
        for offset, value in zip(records.offset.tolist(), records.values, strict=True):
            assert offset not in stored
            assert value is not None
            stored[offset] = digest(value)
    assert load.find_strange(topic, number, stored) == []
    return stored


def check_agreement(store: Path, state: Path) -> None:
    """Store and state know the same segments, all of them finished; nothing else is there."""
    problems: list[Any] = []
    listed = list_segments(open_store(store.as_uri()), on_problem=problems.append)
    in_store = {segment.segment_id for segment in listed}
    assert problems == []
    metadata = SqliteRemoteLogMetadataManager(state / "metadata.sqlite")
    try:
        known = [one for name in metadata.partitions() for one in metadata.list(name)]
    finally:
        metadata.close()
    assert {one.state for one in known} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    assert {one.segment_id for one in known} == in_store
    files = [path.relative_to(store) for path in store.rglob("*") if path.is_file()]
    # A claim tells of each leadership.
    others = [path for path in files if path.parts[0] not in ("claims", "cluster.json")]
    assert len(others) == 2 * len(in_store)


def check_what_it_said(tier: Tier) -> None:
    said = "\n".join(tier.stderr)
    assert "Traceback" not in said
    # Not at every look; on a busy machine the broker may be late with an answer besides.
    away, back = said.count(AWAY), said.count(BACK)
    assert 1 <= back <= away <= 3, said
    assert min(tier.lags) >= 0
    assert tier.lags[-1] == 0
