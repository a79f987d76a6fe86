"""This node answers members, committers and administrators as Kafka 4.3 does."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.node.groups.conversation import converse
from tests.node.running import TOPIC_ID, running
from tierlog.config import Config, GroupConfig
from tierlog.types import kafka_uuid_bytes

# Recorded from a real broker by tests/integration/test_groups_against_kafka.py.
KAFKA = Path(__file__).with_name("kafka-4.3.txt")


def test_answers_are_those_of_kafka() -> None:
    config = Config(group=GroupConfig(max_size=3, initial_rebalance_delay_ms=0))
    with running(config=config) as server:
        found = converse(server.address, uuid.UUID(bytes=kafka_uuid_bytes(TOPIC_ID)))
        assert server.said == []
    assert found == KAFKA.read_text().splitlines()
