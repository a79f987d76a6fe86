"""Two brokers, a sidecar beside each, one store: leadership moves there and back under load."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.support import wait_until
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.topic import METADATA_TOPIC
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store

pytestmark = pytest.mark.integration

TOPIC = "orders"
POLICY = {"internal.segment.bytes": "65536", "min.insync.replicas": "1"}


class Ledger:
    """A producer and what was acked: offset to checksum."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 20,
                "log_level": 0,
            },
            error_cb=lambda _: None,
        )
        self.acked: dict[int, int] = {}

    def produce(self, count: int) -> None:
        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.acked[message.offset()] = zlib.crc32(message.value())

        for number in range(count):
            value = f"{len(self.acked)}-{number}-".encode() + bytes(1000)
            self._producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0


@contextmanager
def sidecar(
    broker: KafkaBroker,
    store: Path,
    state: Path,
    index_dir: Path | None = None,
    metadata: str = "sqlite",
) -> Iterator[list[str]]:
    """`tierlog tier` beside `broker`; the lines it says."""
    command = [str(Path(sys.executable).with_name("tierlog")), "tier"]
    command += [*map(str, broker.log_dirs), "--to", store.as_uri(), "--state-dir", str(state)]
    command += ["--bootstrap", broker.bootstrap_servers, "--interval", "0.3", "--topic", TOPIC]
    command += ["--metadata", metadata]
    said: list[str] = []
    settings = {} if index_dir is None else {"TIERLOG_REMOTE_INDEX_DIR": str(index_dir)}
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | settings,
    ) as process:

        def read() -> None:
            assert process.stderr is not None
            said.extend(line.rstrip("\n") for line in process.stderr)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield said
            assert process.poll() is None, said
        finally:
            process.terminate()
            process.wait(60)
            reader.join()


def admin_of(broker: KafkaBroker) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def create_topic(broker: KafkaBroker) -> None:
    """Replicas on both brokers, led by the second."""
    from confluent_kafka.cimpl import NewTopic

    admin = admin_of(broker)
    wanted = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[2, 1]], config=POLICY)
    wait_until(lambda: len(admin.list_topics(timeout=10).brokers) == 2, 60, what="two brokers")
    admin.create_topics([wanted])[TOPIC].result(30)


def create_metadata_topic(broker: KafkaBroker) -> None:
    """As a cluster with tiered storage has it."""
    from confluent_kafka.cimpl import NewTopic

    wanted = NewTopic(METADATA_TOPIC, num_partitions=3, replica_assignment=[[1]] * 3)
    admin = admin_of(broker)
    admin.create_topics([wanted])[METADATA_TOPIC].result(30)


def leader(broker: KafkaBroker) -> int:
    admin = admin_of(broker)
    topics = admin.list_topics(timeout=10).topics
    return int(topics[TOPIC].partitions[0].leader) if TOPIC in topics else -1


def in_sync(broker: KafkaBroker) -> int:
    admin = admin_of(broker)
    return len(admin.list_topics(timeout=10).topics[TOPIC].partitions[0].isrs)


def elect_preferred(broker: KafkaBroker) -> None:
    from confluent_kafka import ElectionType, TopicPartition

    admin = admin_of(broker)
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(TOPIC, 0)]).result(30)


def stored(store: Path) -> list[RemoteLogSegmentMetadata]:
    found = list_segments(open_store(store.as_uri()))
    return sorted(found, key=lambda one: (one.start_offset, one.end_offset))


def boundary(broker: KafkaBroker) -> int:
    """Where the active segment of its replica begins."""
    return open_log_dir(*broker.log_dirs).partition(TOPIC, 0).segments[-1].base_offset


def wait_for_copies(store: Path, leading: KafkaBroker) -> None:
    end = boundary(leading)
    wait_until(
        lambda: any(one.end_offset + 1 >= end for one in stored(store)),
        60,
        what=f"everything below {end} in the store",
    )


def test_leadership_moves_there_and_back(tmp_path: Path) -> None:
    store = tmp_path / "store"
    replicated = {
        "auto.leader.rebalance.enable": "false",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "2000",
    }
    with ExitStack() as stack:
        one = stack.enter_context(KafkaBroker(tmp_path / "one", properties=replicated))
        two = KafkaBroker(tmp_path / "two", join=one, properties=replicated | {"node.id": "2"})
        stack.enter_context(two)
        create_topic(one)
        store.mkdir()
        for name, broker in (("one", one), ("two", two)):
            stack.enter_context(sidecar(broker, store, tmp_path / f"state-{name}"))
        ledger = Ledger(f"{one.bootstrap_servers},{two.bootstrap_servers}")
        ledger.produce(400)
        assert leader(one) == 2
        wait_for_copies(store, two)
        two.kill()
        wait_until(lambda: leader(one) == 1, 60, what="the first broker leads")
        ledger.produce(400)
        wait_for_copies(store, one)
        two.start()
        wait_until(lambda: in_sync(one) == 2, 60, what="both in sync")
        elect_preferred(one)
        wait_until(lambda: leader(one) == 2, 60, what="the second broker leads again")
        ledger.produce(400)
        wait_for_copies(store, two)
        end = boundary(two)
    segments = stored(store)
    assert {segment.broker_id for segment in segments} == {1, 2}
    # Whoever took over asked the store first: what lies there twice is a segment at each seam.
    once = sum(segment.end_offset - segment.start_offset + 1 for segment in segments)
    assert once - end <= 2 * 100
    read = {
        offset: zlib.crc32(value or b"")
        for records in tierlog.read(store.as_uri(), TOPIC, 0)
        for offset, value in zip(records.offset.tolist(), records.values, strict=True)
    }
    assert {offset: crc for offset, crc in ledger.acked.items() if offset < end} == {
        offset: crc for offset, crc in read.items() if offset in ledger.acked and offset < end
    }
    assert sorted(read) == list(range(len(read)))


def index_files(folder: Path) -> dict[str, bytes]:
    """The remote index files below `folder`, by path."""
    found = (path for path in folder.rglob("*Index") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("metadata", ["sqlite", "topic"])
def test_running_follower_keeps_the_same_remote_index_files(tmp_path: Path, metadata: str) -> None:
    """It learns of each segment while it runs: the follower began beside an empty store."""
    store = tmp_path / "store"
    folders = {name: tmp_path / f"index-{name}" for name in ("one", "two")}
    with ExitStack() as stack:
        one = stack.enter_context(KafkaBroker(tmp_path / "one"))
        two = KafkaBroker(tmp_path / "two", join=one, properties={"node.id": "2"})
        stack.enter_context(two)
        create_topic(one)
        create_metadata_topic(one)
        store.mkdir()
        for name, broker in (("one", one), ("two", two)):
            state = tmp_path / f"state-{name}"
            stack.enter_context(sidecar(broker, store, state, folders[name], metadata))
        ledger = Ledger(f"{one.bootstrap_servers},{two.bootstrap_servers}")
        known: dict[str, bytes] = {}

        def follower_has_more() -> bool:
            ours = index_files(folders["one"])
            return ours != known and ours == index_files(folders["two"])

        for _ in range(2):
            ledger.produce(400)
            wait_for_copies(store, two)
            wait_until(follower_has_more, 30, what="the leader's remote index files beside both")
            known.update(index_files(folders["one"]))
    assert {segment.broker_id for segment in stored(store)} == {2}
    assert index_files(folders["one"]) == index_files(folders["two"])
    assert len(index_files(folders["one"])) >= 3
    assert (tmp_path / "state-two" / "metadata.sqlite").exists() is (metadata == "sqlite")
