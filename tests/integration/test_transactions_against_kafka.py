"""A real broker still gives the answers that transactions of this node are compared with, and
writes the same states of transactions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.kafka_tools import KafkaBroker, dump_log_segments
from tests.node.nodes import running_node
from tests.node.transactions.conversation import TOPIC, converse

pytestmark = pytest.mark.integration

RECORDED = Path(__file__).parents[1] / "node" / "transactions" / "kafka-4.3.txt"


def hold(bootstrap: str) -> list[str]:
    host, _, port = bootstrap.rpartition(":")
    return converse((host, int(port)))


def states(folder: Path) -> list[str]:
    """The records of ``__transaction_state`` in words of Kafka's tool, without the times.

    The records of one id keep their order. A broker answers EndTxn before it writes the last state,
    so the records of another id may come before this state.
    """
    logs = sorted((folder / "__transaction_state-0").glob("*.log"))
    dumped = dump_log_segments(logs, "--transaction-log-decoder")
    found = re.findall(r"^\| offset.* key: (\{.*)", dumped, re.MULTILINE)
    said = [_sorted_partitions(re.sub(r"\d{13}", "a time", line)) for line in found]
    return sorted(said, key=lambda line: line.partition(" payload: ")[0])


def _sorted_partitions(line: str) -> str:
    return re.sub(
        r'"partitionIds":\[([\d,]*)\]',
        lambda match: f"partitions {sorted(match[1].split(','))}",
        line,
    )


def test_the_recorded_answers_are_those_of_a_broker(tmp_path: Path) -> None:
    """To record them anew: write what `converse` returns to the file."""
    properties = {"offsets.topic.num.partitions": "50"}
    with KafkaBroker(tmp_path / "kafka", properties=properties) as broker:
        broker.create_topic(TOPIC, 3)
        theirs = hold(broker.bootstrap_servers)
        broker.stop()
        their_states = states(broker.log_dirs[0])
    assert theirs == RECORDED.read_text().splitlines()
    with running_node(tmp_path / "node") as node:
        node.admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(30)
        assert hold(node.bootstrap_servers) == theirs
        assert node.stop() == 0
    assert len(their_states) > 100
    assert states(tmp_path / "node" / "data" / "logs") == their_states
