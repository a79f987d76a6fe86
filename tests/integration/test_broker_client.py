"""What a real broker answers a sidecar, over its restarts and the life of a topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_tools import KafkaBroker, wait_until
from tierlog.broker import BrokerAnswer, BrokerClient, BrokerUnavailableError
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.log_dir import open_log_dir

pytestmark = pytest.mark.integration

ORDERS = TopicPartition("orders", 0)


def answer(client: BrokerClient) -> BrokerAnswer | None:
    return client.ask([ORDERS, TopicPartition("nobody", 3)]).get(ORDERS)


def test_one_client_over_a_topics_life(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    policy = {"cleanup.policy": "compact,delete", "retention.ms": 1000, "retention.bytes": 77}
    with KafkaBroker(tmp_path / "kafka") as broker:
        with pytest.raises(ConfigError, match="expected cluster another"):
            answer(BrokerClient(broker.bootstrap_servers, cluster_id="another"))
        client = BrokerClient(broker.bootstrap_servers, cluster_id=broker.cluster_id, timeout_s=2.0)
        assert answer(client) is None
        broker.create_topic("orders", config=policy)
        first = answer(client)
        topic_id = open_log_dir(*broker.log_dirs).partition("orders", 0).topic_id
        assert first == BrokerAnswer(
            leader_id=1,
            last_stable_offset=0,
            compacted=True,
            leader_epoch=0,
            topic_id=topic_id,
            replica_count=1,
            retention_ms=1000,
            retention_bytes=77,
        )
        broker.kill()
        with pytest.raises(BrokerUnavailableError, match="does not answer"):
            answer(client)
        broker.start()
        again = answer(client)
        assert again is not None
        assert again.topic_id == topic_id
        assert again.leader_epoch is not None
        assert again.leader_epoch > 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics(["orders"])["orders"].result(30)
        # The controller confirms the deletion before the broker's metadata cache has applied it.
        wait_until(lambda: answer(client) is None, timeout_s=30, what="the topic to be gone")
        broker.create_topic("orders")
        reborn = answer(client)
        assert reborn is not None
        assert reborn.topic_id != topic_id
