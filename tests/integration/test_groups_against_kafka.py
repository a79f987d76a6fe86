"""A real broker still gives the answers that consumer groups of this node are compared with."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tests.kafka_tools import KafkaBroker
from tests.node.groups.conversation import TOPIC, converse

pytestmark = pytest.mark.integration

RECORDED = Path(__file__).parents[1] / "node" / "groups" / "kafka-4.3.txt"
_LOW = 2**64 - 1


def topic_id(bootstrap: str) -> uuid.UUID:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(60).topic_id
    high, low = found.get_most_significant_bits(), found.get_least_significant_bits()
    return uuid.UUID(int=(high & _LOW) << 64 | (low & _LOW))


def test_the_recorded_answers_are_those_of_a_broker(tmp_path: Path) -> None:
    """To record them anew: write what `converse` returns to the file."""
    properties = {"group.max.size": "3", "group.initial.rebalance.delay.ms": "0"}
    with KafkaBroker(tmp_path / "kafka", properties=properties) as broker:
        broker.create_topic(TOPIC, 3)
        host, _, port = broker.bootstrap_servers.rpartition(":")
        found = converse((host, int(port)), topic_id(broker.bootstrap_servers))
    assert found == RECORDED.read_text().splitlines()
