"""A node in a thread of this process, and what it does without waiting for an interval."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tierlog.clock import SystemClock
from tierlog.config import Config
from tierlog.errors import ConfigError, TierlogError
from tierlog.node.embedded import EmbeddedNode
from tierlog.reader.open import read

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "0",
}
LATE = {"remote.log.manager.task.interval.ms": "3600000"}


def start(
    folder: Path, settings: Mapping[str, str] | None = None, *, store: str | None = None
) -> EmbeddedNode:
    config = Config.from_properties(LATE | dict(settings or {}))
    return EmbeddedNode(str(folder / "data"), store, config=config)


def create(node: EmbeddedNode, topic: str, settings: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    (future,) = admin.create_topics([NewTopic(topic, 1, 1, config=dict(settings))]).values()
    future.result(30)


def write(node: EmbeddedNode, topic: str, values: list[bytes]) -> None:
    """Write each value in a batch of its own."""
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "batch.num.messages": 1})
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda one, _: errors.append(one))
    assert producer.flush(60) == 0
    assert errors == [None] * len(values)


def local_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "data" / "logs").rglob("*.log"))


def test_all_records_are_tiered_at_once_and_leave_the_disk(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    values = [b"%d" % number for number in range(100)]
    with start(tmp_path, store=store) as node:
        create(node, "orders", TIERED)
        create(node, "local", {})
        write(node, "orders", values)
        write(node, "local", [b"stays"])
        assert local_bytes(tmp_path) > 1_000
        node.tier_now()
        assert (
            local_bytes(tmp_path)
            == (tmp_path / "data/logs/local-0" / f"{0:020}.log").stat().st_size
        )
        assert node.sent_bytes > 1_000
        node.tier_now()
    found = [row.value for columns in read(store, "orders", 0) for row in columns.records()]
    assert found == values
    assert not list((tmp_path / "store").glob("local-*"))
    node.close()


def test_the_copy_quota_of_the_settings_holds(tmp_path: Path) -> None:
    settings = {
        "remote.log.manager.copy.max.bytes.per.second": str(1 << 20),
        "remote.log.manager.copy.quota.window.num": "1",
        "tierlog.copy.quota.mode": "pace",
    }
    clock = SystemClock()
    with start(tmp_path, settings, store=(tmp_path / "store").as_uri()) as node:
        create(node, "orders", TIERED)
        write(node, "orders", [bytes(900_000)] * 4)
        began_ms = clock.monotonic_ms()
        node.tier_now()
        # Four segments; the first needs no wait.
        assert clock.monotonic_ms() - began_ms >= 3 * 800


def test_what_was_not_tiered_is_an_error_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with start(tmp_path, store=(tmp_path / "store").as_uri()) as node:
        create(node, "orders", TIERED)
        write(node, "orders", [b"one", b"two"])
        folder = (
            tmp_path / "store" / f"orders-{node.cluster.cluster_view().by_name['orders'].topic_id}"
        )
        folder.write_text("no folder")
        with pytest.raises(
            TierlogError, match=r"orders-0: offsets 0 to 1 are not in the store: .*Not a dir"
        ):
            node.tier_now()
        folder.unlink()
        node.tier_now()
        assert list(folder.rglob("*.log"))


def test_retention_is_applied_at_once(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    settings = {"tierlog.retention.max.deleted.ratio": "1"}
    short = {"retention.bytes": "0"}
    with start(tmp_path, settings, store=store) as node:
        create(node, "tiered", TIERED | short)
        create(node, "local", {"internal.segment.bytes": "100000", **short})
        write(node, "tiered", [bytes(1_000)])
        write(node, "local", [bytes(60_000)] * 3)
        node.tier_now()
        node.expire_now()
        view = node.cluster.cluster_view()
        starts = {}
        for name in ("tiered", "local"):
            found = node.cluster.view(view.by_name[name].partitions[0].stored_as)
            assert found is not None
            starts[name] = found.log_start_offset
        # The active segment of the local topic stays.
        assert starts == {"tiered": 1, "local": 2}
        assert not list((tmp_path / "store").rglob("*.log"))


def test_a_node_without_a_store_tiers_nothing(tmp_path: Path) -> None:
    with start(tmp_path) as node:
        node.expire_now()
        assert node.sent_bytes == 0
        with pytest.raises(ConfigError, match="no store"):
            node.tier_now()


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(OSError, match="data"):
        start(tmp_path)
