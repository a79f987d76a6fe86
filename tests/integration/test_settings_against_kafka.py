"""The same administration of a real broker and of a node: the answers have to be the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.integration.admin_wire import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    AdminWire,
    Change,
)
from tests.kafka_tools import KafkaBroker, run_tool, wait_until
from tests.node.nodes import NodeProcess, running_node

pytestmark = pytest.mark.integration


# What the broker of these tests is started with.
SAME_AS_BROKER = {"log.cleaner.dedupe.buffer.size": 4 << 20}


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
        running_node(root / "node", SAME_AS_BROKER, store=store) as process,
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


# -- settings

LONG_MAX = str(2**63 - 1)
WAIT, INTERVAL = "remote.fetch.max.wait.ms", "remote.log.manager.task.interval.ms"
THREADS = "remote.log.reader.threads"
TIERED, COPY_OFF = "remote.storage.enable", "remote.log.copy.disable"
OFF: list[Change] = [(TIERED, SET, "false"), ("remote.log.delete.on.disable", SET, "true")]

# One conversation: each request meets what those before it have left.
ALTERED: list[tuple[int, str, list[Change]]] = [
    (TOPIC, "changed", [("retention.ms", SET, "5")]),
    (TOPIC, "changed", [("retention.ms", SET, "5"), ("retention.ms", SET, "6")]),
    (TOPIC, "changed", [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)]),
    *((TOPIC, "changed", [("retention.ms", SET, text)]) for text in ("x", "-2", None, "", " 7 ")),
    (TOPIC, "changed", [("retention.mss", SET, "5")]),
    (TOPIC, "changed", [("retention.mss", DELETE, None)]),
    (TOPIC, "changed", [("", SET, "5")]),
    (TOPIC, "changed", [("", DELETE, None)]),
    (TOPIC, "changed", [("retention.ms", APPEND, "5")]),
    (TOPIC, "changed", [("retention.ms", SUBTRACT, "5")]),
    (TOPIC, "changed", [("retention.ms", 7, "5")]),
    (TOPIC, "changed", [("retention.ms", APPEND, None)]),
    (TOPIC, "changed", [("cleanup.policy", APPEND, "delete")]),
    (TOPIC, "changed", [("cleanup.policy", SUBTRACT, "compact")]),
    (TOPIC, "changed", [("cleanup.policy", SET, "foo")]),
    (TOPIC, "changed", [("cleanup.policy", SET, "delete")]),
    (TOPIC, "changed", [("segment.bytes", SET, "100")]),
    (TOPIC, "changed", [("internal.segment.bytes", SET, "100")]),
    (TOPIC, "changed", [("message.timestamp.type", SET, "logappendtime")]),
    (TOPIC, "changed", [("message.timestamp.type", SET, "LogAppendTime")]),
    (TOPIC, "changed", [("flush.messages", SET, "0")]),
    (TOPIC, "changed", [("max.message.bytes", SET, "-1")]),
    (TOPIC, "changed", [("index.interval.bytes", SET, "-1")]),
    (TOPIC, "changed", [("segment.ms", SET, "0")]),
    (TOPIC, "changed", [("segment.index.bytes", SET, "3")]),
    (TOPIC, "changed", [("local.retention.ms", SET, "-3")]),
    # Without tiering these need not go together (KIP-950).
    (TOPIC, "changed", [(COPY_OFF, SET, "true"), ("local.retention.ms", SET, "3")]),
    (TOPIC, "changed", [(COPY_OFF, DELETE, None), ("local.retention.ms", DELETE, None)]),
    (TOPIC, "changed", [(TIERED, SET, "yes")]),
    (TOPIC, "changed", [(TIERED, SET, "TRUE")]),
    (TOPIC, "changed", [(TIERED, SET, "false")]),
    (TOPIC, "changed", [(TIERED, DELETE, None)]),
    (TOPIC, "changed", [(COPY_OFF, SET, "true"), ("local.retention.ms", SET, "3")]),
    (TOPIC, "changed", [(COPY_OFF, SET, "true"), ("local.retention.bytes", SET, "3")]),
    (TOPIC, "changed", [("local.retention.ms", SET, "1000000000")]),
    (TOPIC, "changed", [("local.retention.ms", SET, "-1")]),
    (TOPIC, "changed", [("retention.bytes", SET, "100"), ("local.retention.bytes", SET, "101")]),
    (TOPIC, "changed", [("retention.bytes", SET, "100"), ("local.retention.bytes", SET, "100")]),
    (TOPIC, "changed", [(COPY_OFF, SET, "true"), ("local.retention.ms", SET, "7")]),
    (TOPIC, "changed", [("local.retention.ms", SET, "3")]),
    (TOPIC, "changed", OFF),
    (TOPIC, "changed", []),
    (TOPIC, "nosuch", [("retention.ms", SET, "5")]),
    (TOPIC, "", [("retention.ms", SET, "5")]),
    (TOPIC, "a/b", [("retention.ms", SET, "5")]),
    (3, "x", [("retention.ms", SET, "5")]),
    (99, "x", []),
    (BROKER, "7", [(WAIT, SET, "5")]),
    (BROKER, "x", [(WAIT, SET, "5")]),
    (BROKER, "1", [(WAIT, SET, "5")]),
    (BROKER, "", [(WAIT, SET, "6")]),
    (BROKER, "1", [(WAIT, SET, "0")]),
    (BROKER, "1", [(WAIT, SET, "x")]),
    (BROKER, "1", [(WAIT, SET, None)]),
    (BROKER, "1", [(WAIT, APPEND, "5")]),
    (BROKER, "1", [(WAIT, SET, "5"), (WAIT, SET, "5")]),
    (BROKER, "1", [(INTERVAL, SET, "500")]),
    (BROKER, "1", [("nosuch.setting", DELETE, None)]),
    (BROKER, "1", [(THREADS, SET, "500")]),
    (BROKER, "1", [(THREADS, SET, "4")]),
    (BROKER, "1", [(THREADS, SET, "20")]),
    (BROKER, "1", [("log.retention.ms", SET, "77777")]),
    (BROKER, "", [("log.retention.ms", SET, "99999999")]),
    (BROKER, "", [("log.segment.bytes", SET, "2000000")]),
    (BROKER, "", [("log.segment.bytes", SET, "20")]),
    (BROKER, "1", [("log.message.timestamp.type", SET, "LogAppendTime")]),
    (BROKER, "1", [("max.connections.per.ip", SET, "50")]),
    (BROKER, "1", [("remote.log.manager.copy.max.bytes.per.second", SET, LONG_MAX)]),
    (BROKER, "1", [("remote.log.index.file.cache.total.size.bytes", SET, "0")]),
]

# What a node has of its own, or with another default, with the reason.
DIFFERENT = {
    # docs/CONFIG.md: Kafka has no limit on these.
    "max.connections",
    "max.connections.per.ip",
    "queued.max.request.bytes",
    "socket.request.max.bytes",
    # The seed of KIP-956 says 61.
    "remote.log.manager.copy.quota.window.num",
    # Those of the two processes.
    "log.dirs",
    "group.initial.rebalance.delay.ms",
    "remote.log.manager.task.interval.ms",
    "remote.log.storage.manager.class.name",
    "remote.log.metadata.manager.class.name",
    # What a node has below its own name, tierlog.copy.lag.
    "remote.copy.lag.ms",
}


def described(wire: AdminWire, kind: int, name: str) -> dict[str, Any]:
    answer = wire.describe(kind, name)
    assert answer.error_code == 0
    return {
        one.name: (
            one.value,
            one.read_only,
            one.config_source,
            one.is_sensitive,
            one.config_type,
            [(synonym.name, synonym.value, synonym.source) for synonym in one.synonyms],
        )
        for one in answer.configs
    }


def assert_same_settings(both: Both, topic: str) -> None:
    """Compare what both have; a broker applies a little later what its controller confirms."""
    for kind, name in ((TOPIC, topic), (BROKER, "1"), (BROKER, "")):
        ours = described(both.node, kind, name)

        def differences(
            kind: int = kind, name: str = name, ours: dict[str, Any] = ours
        ) -> list[Any]:
            kafkas = described(both.kafka, kind, name)
            return [
                (key, kafkas[key], value)
                for key, value in ours.items()
                if key in kafkas and key not in DIFFERENT and kafkas[key] != value
            ]

        try:
            wait_until(lambda: not differences(), 10, what="the same settings")
        except TimeoutError:
            assert differences() == []
        assert len(ours) >= {TOPIC: 18, BROKER: 2}[kind]


def test_settings_are_changed_and_shown_as_by_kafka(both: Both) -> None:
    for wire in both.kafka, both.node:
        assert wire.create_topic("changed", 2, {"retention.ms": "1000000"}) == 0
    assert described(both.node, BROKER, "") == {}
    for kind, name, changes in ALTERED:
        for validate_only in True, False:
            expected, _ = both.kafka.alter(kind, name, changes, validate_only=validate_only)
            found, text = both.node.alter(kind, name, changes, validate_only=validate_only)
            assert found == expected, (kind, name, changes, validate_only, text)
    assert_same_settings(both, "changed")
    for kind, name in ((TOPIC, "nosuch"), (TOPIC, ""), (TOPIC, "a/b"), (BROKER, "7"), (3, "")):
        expected = both.kafka.describe(kind, name).error_code
        assert both.node.describe(kind, name).error_code == expected


REPLACED: list[tuple[int, str, list[tuple[str, str | None]]]] = [
    (TOPIC, "replaced", [("retention.ms", "8")]),
    (TOPIC, "replaced", [("retention.bytes", "8"), ("segment.ms", "9")]),
    (TOPIC, "replaced", [("retention.ms", "8"), ("retention.ms", "9")]),
    (TOPIC, "replaced", [("retention.ms", None)]),
    (TOPIC, "replaced", [("nosuch", "8")]),
    (TOPIC, "nosuch", []),
    (BROKER, "7", []),
    (3, "", []),
    (BROKER, "1", [(WAIT, "7")]),
    (BROKER, "1", [(WAIT, "0")]),
]


def test_settings_are_replaced_as_by_kafka(both: Both) -> None:
    for wire in both.kafka, both.node:
        assert wire.create_topic("replaced", 1, {"retention.ms": "1000000"}) == 0
    for version in range(3):
        for kind, name, settings in REPLACED:
            expected = both.kafka.replace(kind, name, settings, version=version)
            assert both.node.replace(kind, name, settings, version=version) == expected, settings
    assert_same_settings(both, "replaced")
