"""What the time that archives of deleted topics are kept changes, beside a real broker."""

from __future__ import annotations

import pytest

from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.support import wait_until
from tests.settings.observing import Place, Said, command
from tierlog.clock import ManualClock
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import LocalStore

# The archive of a cluster's last topic never goes.
KEPT, DELETED = "kept", "deleted"


def archived_of_a_deleted_topic(place: Place) -> set[str]:
    """The topics in the store two seconds after a pass found one of two deleted."""
    clock = ManualClock()
    with (
        pytest.MonkeyPatch.context() as patch,
        KafkaBroker(place.folder / "kafka") as broker,
    ):
        patch.setattr("tierlog.clock.SystemClock", lambda: clock)
        for topic in (KEPT, DELETED):
            broker.create_topic(topic, config={"internal.segment.bytes": "16384"})
            _produce(broker, topic)
        assert "2 segments copied" in _tier(place, broker).err
        _delete(broker, DELETED)
        _tier(place, broker)
        clock.advance(2_000)
        _tier(place, broker)
    return {one.topic_id_partition.topic for one in list_segments(LocalStore(place.store))}


def _tier(place: Place, broker: KafkaBroker) -> Said:
    (log_dir,) = broker.log_dirs
    said = command(
        "tier",
        *(str(log_dir), "--config", place.write_config()),
        *("--to", place.store.as_uri(), "--state-dir", str(place.folder / "state")),
        *("--bootstrap", broker.bootstrap_servers, "--once"),
    )
    assert said.code == 0, said.err
    return said


def _produce(broker: KafkaBroker, topic: str) -> None:
    """One rolled segment, and the active one."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 5})
    for _ in range(20):
        producer.produce(topic, bytes(1_000), partition=0)
    assert producer.flush(30) == 0


def _delete(broker: KafkaBroker, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)
    (log_dir,) = broker.log_dirs
    wait_until(lambda: not (log_dir / f"{topic}-0").exists(), 30, what=f"{topic} gone from disk")
