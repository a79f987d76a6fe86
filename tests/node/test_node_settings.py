"""Clients change settings of topics and of a node while it runs, and see the effect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
)

from tests.integration.admin_wire import BROKER, SET, AdminWire
from tests.kafka_tools import run_tool, wait_until
from tests.node.node_clients import SMALL, consume, create, produce, values
from tests.node.nodes import NodeProcess, running_node

TIERING = {
    "remote.log.manager.task.interval.ms": 200,
    "tierlog.retention.max.deleted.ratio": 1,
}
TIERED, COPY_OFF = "remote.storage.enable", "remote.log.copy.disable"


def change(node: NodeProcess, resource: ConfigResource, settings: Mapping[str, str | None]) -> None:
    """Set settings with librdkafka, or remove those that are None."""
    resource.incremental_configs = [
        ConfigEntry(
            name,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    (future,) = node.admin.incremental_alter_configs([resource]).values()
    future.result(30)


def topic() -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, "orders")


def broker() -> ConfigResource:
    return ConfigResource(ResourceType.BROKER, "1")


def setting(node: NodeProcess, resource: ConfigResource, name: str) -> tuple[str, ConfigSource]:
    (future,) = node.admin.describe_configs([resource]).values()
    entry = future.result(30)[name]
    return entry.value, ConfigSource(entry.source)


def earliest(node: NodeProcess) -> int:
    (future,) = node.admin.list_offsets(
        {TopicPartition("orders", 0): OffsetSpec.earliest()}
    ).values()
    return int(future.result(30).offset)


def stored(store: Path) -> list[Path]:
    return sorted(store.glob("orders-*/0/*.log"))


def test_retention_of_a_topic_changes_at_once_and_for_good(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders", settings=SMALL)
        produce(node, "orders", values(0, 8000))
        assert earliest(node) == 0
        change(node, topic(), {"retention.bytes": "200000"})
        wait_until(lambda: earliest(node) > 0, 30, what="retention")
        kept = earliest(node)
        change(node, topic(), {"retention.bytes": None, "segment.ms": "12345"})
        node.kill()
    with running_node(tmp_path) as node:
        assert earliest(node) == kept
        assert setting(node, topic(), "segment.ms") == (
            "12345",
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
        )
        assert setting(node, topic(), "retention.bytes") == ("-1", ConfigSource.DEFAULT_CONFIG)


def test_segment_size_changes_at_once(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders")
        folder = tmp_path / "data" / "logs" / "orders-0"
        produce(node, "orders", values(0, 3000))
        assert len(list(folder.glob("*.log"))) == 1
        change(node, topic(), {"internal.segment.bytes": "50000"})
        produce(node, "orders", values(3000, 3000))
        assert len(list(folder.glob("*.log"))) > 3


def test_tiering_is_switched_on_paused_and_off(tmp_path: Path) -> None:
    """KIP-950: a topic with data is tiered; a pause keeps what is there; the end deletes it."""
    store = tmp_path / "store"
    data = values(0, 9000)
    with running_node(tmp_path, TIERING, store=store.as_uri()) as node:
        create(node, "orders", settings=SMALL)
        produce(node, "orders", data[:4000])
        change(node, topic(), {TIERED: "true", "local.retention.bytes": "0"})
        folder = tmp_path / "data" / "logs" / "orders-0"
        wait_until(lambda: len(list(folder.glob("*.log"))) == 1, 60, what="local retention")
        assert consume(node, "orders", 4000) == list(enumerate(data[:4000]))

        change(node, topic(), {COPY_OFF: "true", "local.retention.bytes": None})
        before = stored(store)
        produce(node, "orders", data[4000:8000])
        # Copies are paused, and so is local retention; all of it can be read.
        assert len(list(folder.glob("*.log"))) > 3
        assert consume(node, "orders", 8000) == list(enumerate(data[:8000]))
        assert stored(store) == before

        with pytest.raises(KafkaException) as refused:
            change(node, topic(), {TIERED: "false"})
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
        change(node, topic(), {TIERED: "false", "remote.log.delete.on.disable": "true"})
        wait_until(lambda: not stored(store), 60, what="deleted objects")
        first = earliest(node)
        assert 0 < first < 4000
        assert consume(node, "orders", 8000 - first, start=first)[0] == (first, data[first])
        node.kill()
    with running_node(tmp_path, TIERING, store=store.as_uri()) as node:
        assert earliest(node) == first
        change(node, topic(), {TIERED: "true", COPY_OFF: None, "local.retention.bytes": "0"})
        wait_until(lambda: len(list(folder.glob("*.log"))) == 1, 60, what="local retention")
        assert len(consume(node, "orders", 8000 - first, start=first)) == 8000 - first


def test_settings_of_the_node_survive_a_crash(tmp_path: Path) -> None:
    quota = "remote.log.manager.copy.max.bytes.per.second"
    with running_node(tmp_path, {"log.retention.hours": 2}) as node:
        create(node, "orders")
        hours = str(2 * 3_600_000)
        assert setting(node, topic(), "retention.ms")[0] == hours
        change(node, broker(), {quota: "1000000"})
        with AdminWire(node.bootstrap_servers) as wire:
            # librdkafka refuses an empty name.
            for_all = [("log.retention.ms", SET, "99999999"), (quota, SET, "5")]
            assert wire.alter(BROKER, "", for_all)[0] == 0
        node.kill()
    with running_node(tmp_path, {"log.retention.hours": 2}) as node:
        assert setting(node, broker(), quota) == (
            "1000000",
            ConfigSource.DYNAMIC_BROKER_CONFIG,
        )
        assert setting(node, topic(), "retention.ms") == (
            "99999999",
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        )
        change(node, broker(), {quota: None})
        assert setting(node, broker(), quota)[0] == "5"


def test_the_copy_quota_changes_at_once(tmp_path: Path) -> None:
    quota = "remote.log.manager.copy.max.bytes.per.second"
    store = tmp_path / "store"
    settings = {"remote.log.manager.task.interval.ms": 200, quota: 1}
    with running_node(tmp_path, settings, store=store.as_uri()) as node:
        create(node, "orders", settings=SMALL | {TIERED: "true"})
        produce(node, "orders", values(0, 8000))
        # The first segment passes; it uses up the quota of the window.
        wait_until(lambda: len(stored(store)) == 1, 60, what="a copy")
        assert len(list((tmp_path / "data" / "logs" / "orders-0").glob("*.log"))) > 4
        change(node, broker(), {quota: str(2**63 - 1)})
        wait_until(lambda: len(stored(store)) > 4, 60, what="copies")


def test_kafka_python_changes_settings(tmp_path: Path) -> None:
    from kafka.admin import ConfigResource as PlainResource
    from kafka.admin import ConfigResourceType, KafkaAdminClient

    with running_node(tmp_path) as node:
        create(node, "orders")
        client: Any = KafkaAdminClient(bootstrap_servers=node.bootstrap_servers)
        resource = PlainResource(ConfigResourceType.TOPIC, "orders", {"retention.ms": "4321"})
        client.alter_configs([resource])
        client.close()
        assert setting(node, topic(), "retention.ms")[0] == "4321"


@pytest.mark.integration
def test_kafkas_tool_changes_settings(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders")
        tool = "kafka.admin.ConfigCommand"
        own = ("--bootstrap-server", node.bootstrap_servers, "--entity-type")
        orders = (*own, "topics", "--entity-name", "orders")
        run_tool(tool, *orders, "--alter", "--add-config", "retention.ms=77,segment.ms=5000")
        run_tool(tool, *orders, "--alter", "--delete-config", "segment.ms")
        assert "retention.ms=77" in run_tool(tool, *orders, "--describe")
        every = (*own, "brokers", "--entity-default")
        run_tool(tool, *every, "--alter", "--add-config", "log.retention.ms=66")
        assert "log.retention.ms=66" in run_tool(tool, *every, "--describe")
        assert setting(node, topic(), "segment.ms")[0] == "604800000"
