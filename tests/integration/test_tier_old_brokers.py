"""`tierlog tier --bootstrap` beside brokers that give topics no ids, and after their upgrade."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.kafka_tools.old_kafka import old_broker, zookeeper
from tests.kafka_tools.support import wait_until
from tierlog.broker import BrokerAnswer, BrokerClient
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.log_dir import open_log_dir
from tierlog.types import derived_topic_id

pytestmark = pytest.mark.integration

ORDERS = TopicPartition("orders", 0)
SMALL = {"segment.bytes": "16384", "retention.ms": "-1"}


def create_topic(bootstrap: str, topic: str, config: dict[str, str]) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([wanted])[topic].result(30)


def produce(bootstrap: str, topic: str, numbers: range, **settings: Any) -> Any:
    """One record of a kilobyte per number; the producer, with its transaction still open."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 5, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, value_of(number), b"key", partition=0)
    assert producer.flush(30) == 0
    return producer


def value_of(number: int) -> bytes:
    return str(number).encode().ljust(1_000, b".")


class Operator:
    """The log directory of the broker, the store, and what the command says."""

    def __init__(self, folder: Path) -> None:
        self.log_dir = folder / "disk"
        self.store = folder / "store"
        self.store.mkdir()
        self._state = folder / "state"
        self.said = ""

    def tier(self, bootstrap: str, *options: str) -> dict[tuple[str, int], dict[str, Any]]:
        command = [sys.executable, "-m", "tierlog", "tier", str(self.log_dir)]
        command += ["--to", self.store.as_uri(), "--state-dir", str(self._state), "--once"]
        command += ["--bootstrap", bootstrap, "--format", "json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.said = done.stderr
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["segments"]
        return {(row["topic"], row["base_offset"]): row for row in rows}

    def rolled(self, topic: str) -> list[int]:
        log = open_log_dir(str(self.log_dir)).partition(topic, 0)
        return [segment.base_offset for segment in log.rolled_segments]

    def archived(self) -> list[tuple[str, int]]:
        """Folder and base offset of each `.log` object."""
        found = self.store.rglob("*.log")
        return sorted((path.parent.parent.name, int(path.name[:20])) for path in found)

    def values(self, *, with_log_dir: bool = False) -> list[bytes]:
        """Of the records in the store, or in both."""
        url = self.store.as_uri()
        source, store = (str(self.log_dir), url) if with_log_dir else (url, None)
        return [
            bytes(record.value or b"")
            for columns in tierlog.read(source, "orders", 0, store=store)
            for record in columns.records()
        ]


def test_a_cluster_without_topic_ids_and_its_upgrade(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    with zookeeper("2.4", tmp_path) as servers:
        with old_broker("2.4", tmp_path, servers) as bootstrap:
            create_topic(bootstrap, "orders", SMALL)
            create_topic(bootstrap, "keyed", {**SMALL, "cleanup.policy": "compact"})
            produce(bootstrap, "orders", range(60))
            produce(bootstrap, "keyed", range(60))
            first = operator.rolled("orders")
            assert len(first) >= 3
            client = BrokerClient(bootstrap, timeout_s=5.0)
            assert client.ask([ORDERS])[ORDERS] == BrokerAnswer(
                leader_id=0,
                last_stable_offset=60,
                compacted=False,
                leader_epoch=0,
                topic_id=None,
                replica_count=1,
                retention_ms=-1,
                retention_bytes=-1,
            )
            cluster_id = client.cluster_id()
            assert cluster_id is not None
            derived = f"orders-{derived_topic_id(cluster_id, 'orders')}"
            rows = operator.tier(bootstrap)
            assert "2 topics without a topic id (keyed, orders)" in operator.said
            assert operator.archived() == [(derived, base) for base in first]
            assert {row["reason"] for name, row in rows.items() if name[0] == "keyed"} == {
                "compacted"
            }
        # Topic ids came with 2.8, and with its inter-broker protocol.
        with old_broker("2.8", tmp_path, servers) as bootstrap:
            client = BrokerClient(bootstrap, timeout_s=5.0)

            def topic_id() -> str | None:
                answer = client.ask([ORDERS]).get(ORDERS)
                return None if answer is None else answer.topic_id

            wait_until(lambda: topic_id() is not None, 30, what="a topic id")
            produce(bootstrap, "orders", range(60, 120))
            second = operator.rolled("orders")
            assert len(second) > len(first)
            operator.tier(bootstrap)
            assert f"orders-0: topic id {topic_id()} is new; its archive stays" in operator.said
            assert operator.archived() == [(derived, base) for base in second]
            # What the broker has not made stable waits.
            transaction = produce(bootstrap, "orders", range(120, 160), **{"transactional.id": "a"})
            rows = operator.tier(bootstrap)
            held = [base for base in operator.rolled("orders") if base not in second]
            assert {rows["orders", base]["reason"] for base in held[1:]} == {"not_stable"}
            transaction.commit_transaction(30)
            operator.tier(bootstrap)
            assert operator.archived() == [(derived, base) for base in operator.rolled("orders")]
    values = [value_of(number) for number in range(160)]
    assert operator.values(with_log_dir=True) == values
    assert operator.values() == values[: len(operator.values())]


def test_a_broker_that_cannot_say_what_is_compacted(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    any_topic = {"auto.create.topics.enable": "true", "log.segment.bytes": 16_384}
    with (
        zookeeper("0.10", tmp_path) as servers,
        old_broker("0.10", tmp_path, servers, any_topic) as bootstrap,
    ):
        produce(bootstrap, "orders", range(60))
        rolled = operator.rolled("orders")
        assert len(rolled) >= 3
        client = BrokerClient(bootstrap, timeout_s=5.0)
        assert client.ask([ORDERS])[ORDERS] == BrokerAnswer(
            leader_id=0, last_stable_offset=60, compacted=None, replica_count=1
        )
        rows = operator.tier(bootstrap)
        assert {row["reason"] for row in rows.values()} == {"compaction_unknown"}
        assert "brokers before 0.11 cannot" in rows["orders", 0]["text"]
        cluster_id = client.cluster_id()
        assert f"cluster {cluster_id} as the broker says" in operator.said
        operator.tier(bootstrap, "--topic", "orders", "--include-compacted")
        derived = f"orders-{derived_topic_id(str(cluster_id), 'orders')}"
        assert operator.archived() == [(derived, base) for base in rolled]
    assert operator.values(with_log_dir=True) == [value_of(n) for n in range(60)]
