"""This node answers producers, consumers and administrators of transactions as Kafka 4.3 does."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import NewTopic

from tests.node.nodes import running_node
from tests.node.transactions.conversation import TOPIC, converse

# Recorded from a real broker by tests/integration/test_transactions_against_kafka.py.
KAFKA = Path(__file__).with_name("kafka-4.3.txt")


def test_answers_are_those_of_kafka(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(30)
        host, _, port = node.bootstrap_servers.rpartition(":")
        found = converse((host, int(port)))
        assert node.errors.read_text() == ""
    assert found == KAFKA.read_text().splitlines()
