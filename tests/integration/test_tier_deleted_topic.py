"""A topic is deleted on a real broker, and made again: whose archive goes, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.support import wait_until
from tests.sidecar.configs import tier_config
from tierlog.broker import BrokerClient, BrokerUnavailableError
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store
from tierlog.sidecar import Outcome, Sidecar, TierReport, TierRow

pytestmark = pytest.mark.integration

SMALL = {"internal.segment.bytes": "16384"}
WEEK_MS = 7 * 86_400_000


def produce(broker: KafkaBroker, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})
    for _ in range(60):
        producer.produce(topic, bytes(1_000), partition=0)
        producer.flush(30)


def delete(broker: KafkaBroker, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic], operation_timeout=20)[topic].result(30)
    gone = [disk / f"{topic}-0" for disk in broker.log_dirs]
    wait_until(lambda: not any(path.exists() for path in gone), 30, what=f"{topic} gone from disk")


def topic_id_of(broker: KafkaBroker, topic: str) -> str:
    def found() -> str | None:
        return open_log_dir(*broker.log_dirs).partition(topic, 0).topic_id

    wait_until(lambda: found() is not None, 30, what="topic id")
    return str(found())


class House:
    """A broker, and passes of a sidecar with a clock that is told how late it is."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.clock = ManualClock()
        (folder / "store").mkdir()

    def tier(self, after_ms: int = 0, *, dry_run: bool = False) -> TierReport:
        self.clock.advance(after_ms)
        with Sidecar(
            [str(path) for path in self.broker.log_dirs],
            (self.folder / "store").as_uri(),
            state_dir=str(self.folder / "state"),
            config=tier_config(
                bootstrap_servers=self.broker.bootstrap_servers,
                deleted_topic_retention_ms=WEEK_MS,
            ),
            clock=self.clock,
            dry_run=dry_run,
        ) as sidecar:
            return sidecar.run_once()

    def archived(self) -> dict[str, int]:
        """Segments in the store by topic id."""
        counts: dict[str, int] = {}
        for segment in list_segments(open_store((self.folder / "store").as_uri())):
            topic_id = segment.topic_id_partition.topic_id
            counts[topic_id] = counts.get(topic_id, 0) + 1
        return counts


def gone(rows: tuple[TierRow, ...], topic_id: str) -> int:
    assert {(row.topic, row.reason, row.text) for row in rows} <= {
        ("reborn", "partition_deleted", f"topic {topic_id} is deleted")
    }
    return len(rows)


def test_the_archive_of_a_deleted_topic(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        house = House(broker, tmp_path)
        for topic in ("kept", "reborn"):
            broker.create_topic(topic, config=SMALL)
            produce(broker, topic)
        kept_id, first_id = topic_id_of(broker, "kept"), topic_id_of(broker, "reborn")
        assert house.tier().ok
        copied = house.archived()
        assert copied.keys() == {kept_id, first_id}

        delete(broker, "reborn")
        (warning,) = house.tier().warnings
        assert f"topic reborn ({first_id}) is deleted" in warning
        broker.create_topic("reborn", config=SMALL)
        produce(broker, "reborn")
        again_id = topic_id_of(broker, "reborn")
        report = house.tier(WEEK_MS - 1)
        assert (report.ok, report.of(Outcome.EXPIRED)) == (True, ())
        assert house.archived().keys() == {kept_id, first_id, again_id}

        would = house.tier(1, dry_run=True)
        assert gone(would.of(Outcome.WOULD_EXPIRE), first_id) == copied[first_id]
        assert house.archived().keys() == {kept_id, first_id, again_id}
        report = house.tier()
        assert report.ok
        assert gone(report.of(Outcome.EXPIRED), first_id) == copied[first_id]
        assert house.archived().keys() == {kept_id, again_id}
        assert house.archived()[kept_id] == copied[kept_id]
        left = [path.parent.parent.name for path in (tmp_path / "store").rglob("*-*.log")]
        assert set(left) == {f"kept-{kept_id}", f"reborn-{again_id}"}


def hide(broker: KafkaBroker, *topics: str) -> None:
    """Strangers, which we are, may not know of these topics."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    rules = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.DENY,
        )
        for topic in topics
    ]
    for future in admin.create_acls(rules).values():
        future.result(30)


def test_topic_ids_over_a_topics_life(tmp_path: Path) -> None:
    """What the broker hides from strangers, there or not, nobody takes for a no."""
    closed = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with KafkaBroker(tmp_path / "kafka", properties=closed) as broker:
        names = ["orders", "nobody", "hidden", "hidden-and-gone"]
        stranger = BrokerClient(broker.bootstrap_servers, cluster_id="another")
        with pytest.raises(ConfigError, match="expected cluster another"):
            stranger.topic_ids(names)
        client = BrokerClient(broker.bootstrap_servers, cluster_id=broker.cluster_id, timeout_s=2.0)
        assert client.topic_ids([]) == {}
        assert client.topic_ids(names) == dict.fromkeys(names)
        for topic in ("orders", "hidden"):
            broker.create_topic(topic)
        topic_id = topic_id_of(broker, "orders")
        hide(broker, "hidden", "hidden-and-gone")
        known = {"orders": topic_id, "nobody": None}
        wait_until(lambda: client.topic_ids(names) == known, 30, what="the rules in force")
        delete(broker, "orders")
        assert client.topic_ids(names) == {"orders": None, "nobody": None}
        broker.create_topic("orders")
        assert client.topic_ids(names)["orders"] not in (None, topic_id)
        broker.kill()
        with pytest.raises(BrokerUnavailableError, match="does not answer"):
            client.topic_ids(names)
