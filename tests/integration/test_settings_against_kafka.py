"""The same administration of a real broker and of a node: the answers have to be the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.integration.admin_wire import AdminWire
from tests.kafka_tools import KafkaBroker, run_tool
from tests.node.nodes import NodeProcess, running_node

pytestmark = pytest.mark.integration


class Both(NamedTuple):
    """A broker and a node, each with tiered storage, and a connection to each."""

    kafka: AdminWire
    node: AdminWire
    process: NodeProcess


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    root = tmp_path_factory.mktemp("both")
    store = (root / "store").as_uri()
    with (
        KafkaBroker(root / "kafka", tiered_dir=root / "tier") as broker,
        running_node(root / "node", store=store) as process,
        AdminWire(broker.bootstrap_servers) as kafka,
        AdminWire(process.bootstrap_servers) as node,
    ):
        yield Both(kafka, node, process)


Assignments = list[list[int]] | None
PARTITIONS: list[list[tuple[str, int, Assignments]]] = [
    [("grown", 2, None)],
    [("grown", 1, None)],
    [("grown", 0, None)],
    [("grown", -1, None)],
    [("nosuch", 3, None)],
    [("", 3, None)],
    [("grown", 4, [[1]])],
    [("grown", 3, [[1], [1]])],
    [("grown", 3, [[2]])],
    [("grown", 3, [[1, 2]])],
    [("grown", 3, [[1, 1]])],
    [("grown", 3, [[]])],
    [("grown", 3, [])],
    [("grown", 3, None), ("grown", 4, None)],
    [("grown", 3, None), ("nosuch", 4, None)],
    [("grown", 5, [[1], [1]])],
    [("grown", 7, None)],
    [("grown", 7, None)],
]


def test_partitions_are_added_as_by_kafka(both: Both) -> None:
    for wire in both.kafka, both.node:
        assert wire.create_topic("grown", 2) == 0
    for version in range(4):
        for wanted in PARTITIONS:
            expected = both.kafka.create_partitions(wanted, validate_only=True, version=version)
            found = both.node.create_partitions(wanted, validate_only=True, version=version)
            assert found == expected, wanted
    for wanted in PARTITIONS:
        expected = both.kafka.create_partitions(wanted)
        assert both.node.create_partitions(wanted) == expected, wanted
    assert len(both.process.admin.list_topics("grown", 30).topics["grown"].partitions) == 7


def test_kafkas_tool_adds_partitions(both: Both) -> None:
    assert both.node.create_topic("widened", 1) == 0
    own = ("--bootstrap-server", both.process.bootstrap_servers, "--topic", "widened")
    tool = "org.apache.kafka.tools.TopicCommand"
    run_tool(tool, *own, "--alter", "--partitions", "3")
    assert "PartitionCount: 3" in run_tool(tool, *own, "--describe")
