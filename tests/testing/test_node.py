"""A node for tests: its time and its store obey the test, and clients never get wrong bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tierlog.clock import SystemClock
from tierlog.errors import TierlogError
from tierlog.testing import FaultyStore, NodeForTests, ShiftedClock, StoreFault

READ_FAULTS = ["503", "truncated", "flipped"]
VALUES = [b"order %d" % number * 50 for number in range(200)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeForTests]:
    with NodeForTests(tmp_path) as made:
        yield made


def write(node: NodeForTests, topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def consume(node: NodeForTests, count: int, timeout_s: float) -> list[Any]:
    """Return the values that came within the timeout, `count` at most."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "reader"})
    with closing(consumer):
        consumer.assign([TopicPartition("orders", 0, 0)])
        messages = consumer.consume(count, timeout_s)
        assert [one for one in messages if one.error()] == []
        return [one.value() for one in messages]


def stored(folder: Path) -> list[Path]:
    return list((folder / "store").rglob("orders-*/0/*.log"))


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_read_fault_hides_records_and_shows_no_wrong_ones(node: NodeForTests, fault: str) -> None:
    node.create_topic("orders")
    write(node)
    node.tier_now()
    with node.store.fault(fault):
        got = consume(node, len(VALUES), 3)
        assert got == VALUES[: len(got)]
        assert len(got) < len(VALUES)
        assert node.store.struck > 0
    assert consume(node, len(VALUES), 60) == VALUES


def test_a_slow_store_is_slow(node: NodeForTests) -> None:
    node.create_topic("orders")
    write(node)
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    with node.store.fault(StoreFault.SLOW, delay_ms=400):
        node.tier_now()
        assert node.store.struck >= 2
    # The .log object and its .indexes object.
    assert clock.monotonic_ms() - began_ms >= 800
    assert consume(node, len(VALUES), 60) == VALUES


def test_a_refused_copy_is_an_error_with_its_cause(node: NodeForTests, tmp_path: Path) -> None:
    node.create_topic("orders")
    write(node)
    with node.store.fault("503"), pytest.raises(TierlogError, match=r"orders-0: .* 503 Service"):
        node.tier_now()
    assert any("503" in line for line in node.reports)
    assert stored(tmp_path) == []
    node.tier_now()
    assert len(stored(tmp_path)) == 1
    assert consume(node, len(VALUES), 60) == VALUES


def test_a_stale_store_hides_new_objects_only(node: NodeForTests, tmp_path: Path) -> None:
    node.create_topic("orders")
    store = node.store
    store.put_bytes("old", b"old")
    with store.fault("stale"):
        store.put_bytes("new", b"new")
        assert [info.key for info in store.list() if info.key in ("old", "new")] == ["old"]
        assert bytes(store.get_range("old", 0, 3)) == b"old"
        with pytest.raises(TierlogError, match="not there yet"):
            store.head("new")
    assert store.head("new").size_bytes == 3
    assert (tmp_path / "store" / "new").exists()


def test_one_fault_at_a_time(node: NodeForTests) -> None:
    store: FaultyStore = node.store
    with store.fault("flipped"), pytest.raises(ValueError, match="flipped lasts"):
        store.fault("503").__enter__()
    with pytest.raises(ValueError, match="noise"):
        store.fault("noise").__enter__()


def test_records_expire_when_time_has_passed(node: NodeForTests, tmp_path: Path) -> None:
    node.create_topic("orders", settings={"retention.ms": str(86_400_000)})
    write(node)
    node.tier_now()
    node.clock.advance(timedelta(hours=23))
    node.expire_now()
    assert len(stored(tmp_path)) == 1
    node.clock.advance(timedelta(hours=2))
    node.expire_now()
    assert stored(tmp_path) == []
    consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "reader"})
    with closing(consumer):
        ends = consumer.get_watermark_offsets(TopicPartition("orders", 0), 30)
    assert ends == (len(VALUES), len(VALUES))


def test_time_does_not_go_back() -> None:
    clock = ShiftedClock()
    before_ms, monotonic_ms = clock.now_ms(), clock.monotonic_ms()
    clock.advance(timedelta(seconds=5))
    assert clock.now_ms() - before_ms >= 5_000
    assert clock.monotonic_ms() - monotonic_ms >= 5_000
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(timedelta(seconds=-1))
