"""A sidecar whose real broker stops answering does no more than it was allowed to before."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_tools import KafkaBroker
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store

pytestmark = pytest.mark.integration

SMALL = {"internal.segment.bytes": "16384"}


def produce(broker: KafkaBroker, *topics: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 10})
    for topic in topics:
        for number in range(60):
            producer.produce(topic, bytes(1_000), key=str(number), partition=0)
    assert producer.flush(30) == 0


def tier(broker: KafkaBroker, folder: Path, state: str, log_dir: Path | None = None) -> str:
    """One pass as a user would run it; what it printed."""
    command = [str(Path(sys.executable).with_name("tierlog")), "tier"]
    dirs = broker.log_dirs if log_dir is None else [log_dir]
    command += [*map(str, dirs), "--to", (folder / "store").as_uri(), "--once"]
    command += ["--state-dir", str(folder / state), "--bootstrap", broker.bootstrap_servers]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def archived(folder: Path) -> list[tuple[str, int]]:
    found = list_segments(open_store((folder / "store").as_uri()))
    return sorted((one.topic_id_partition.topic, one.start_offset) for one in found)


def test_what_a_broker_said_last_holds_when_it_is_silent(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("plain", config=SMALL)
        # The cleaner does not reach it: only the topic's settings say that it is compacted.
        broker.create_topic("squeezed", config=SMALL | {"cleanup.policy": "compact"})
        produce(broker, "plain", "squeezed")
        tier(broker, tmp_path, "state")
        first = archived(tmp_path)
        assert {topic for topic, _ in first} == {"plain"}
        produce(broker, "plain", "squeezed")
        broker.stop()
        said = tier(broker, tmp_path, "state")
        second = archived(tmp_path)
        assert {topic for topic, _ in second} == {"plain"}
        assert len(second) > len(first)
        assert "its last answers are used" in said
        # A state directory that was lost knows of no policy and no leader.
        said = tier(broker, tmp_path, "lost")
        assert "the broker has never said whether this topic is compacted" in said
        assert archived(tmp_path) == second
        assert len(list(broker.partition_dir("squeezed", 0).glob("*.log"))) > 1


def test_a_followers_sidecar_makes_no_leader_of_it(tmp_path: Path) -> None:
    """Its directories are those of broker 2, and the leader's copies are not in its state."""
    (tmp_path / "store").mkdir()
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("plain", config=SMALL)
        produce(broker, "plain")
        # Stopped in good order it leaves checkpoints by which everything could be copied.
        broker.stop()
        follower = tmp_path / "follower"
        shutil.copytree(broker.log_dirs[0], follower)
        properties = follower / "meta.properties"
        properties.write_text(properties.read_text().replace("node.id=1", "node.id=2"))
        broker.start()
        said = tier(broker, tmp_path, "state", follower)
        assert "broker 1 leads this partition and tiers it" in said
        broker.stop()
        for state in ("state", "lost"):
            tier(broker, tmp_path, state, follower)
            assert archived(tmp_path) == []
