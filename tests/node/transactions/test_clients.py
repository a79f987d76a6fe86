"""Real transactional clients at a node, and consumers that read only what is committed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.kafka_tools import dump_log_segments, wait_until
from tests.node.nodes import running_node
from tests.node.transactions.clients import QUIET, Reader, begin, create, transactional


def test_a_committed_reader_sees_whole_transactions_only(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders", 2)
        committed, all_records = (
            Reader(node, "orders"),
            Reader(node, "orders", isolation="read_uncommitted"),
        )
        first, second = transactional(node, "first"), transactional(node, "second")
        begin(first, "orders", [b"a1", b"a2"])
        assert committed.values() == []
        assert committed.end() == 0
        begin(second, "orders", [b"b1"])
        second.commit_transaction(30)
        # The open transaction holds back the one that is committed.
        assert committed.values() == []
        assert all_records.values() == [b"a1", b"a2", b"b1"]
        first.abort_transaction(30)
        assert committed.values() == [b"b1"]
        assert committed.end() == all_records.end() == 5
        begin(first, "orders", [b"a3"], partition=1)
        first.produce("orders", b"a4", partition=0)
        first.commit_transaction(30)
        assert committed.values() == [b"b1", b"a4"]
        other = Reader(node, "orders", 1)
        assert other.values() == [b"a3"]
        for one in (committed, all_records, other):
            one.close()
        assert node.errors.read_text() == ""


def test_a_zombie_is_fenced(tmp_path: Path) -> None:
    """The second producer with the same id ends the transaction of the first, for ever."""
    with running_node(tmp_path) as node:
        create(node, "orders")
        zombie = transactional(node, "worker")
        begin(zombie, "orders", [b"lost"])
        worker = transactional(node, "worker")
        reader = Reader(node, "orders")
        assert (reader.values(), reader.end()) == ([], 2)
        with pytest.raises(KafkaException) as caught:
            zombie.commit_transaction(30)
        assert caught.value.args[0].code() == KafkaError._FENCED
        begin(worker, "orders", [b"kept"])
        worker.commit_transaction(30)
        assert reader.values() == [b"kept"]
        reader.close()


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with running_node(tmp_path, settings) as node:
        create(node, "orders")
        slow = transactional(node, "slow", **{"transaction.timeout.ms": 1000})
        begin(slow, "orders", [b"late"])
        reader = Reader(node, "orders")
        wait_until(lambda: reader.end() == 2, 30, what="the abort")
        assert reader.values() == []
        with pytest.raises(KafkaException):
            slow.commit_transaction(30)
        reader.close()


def test_aiokafka_and_kafka_python_commit_and_abort(tmp_path: Path) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka import TopicPartition as AioPartition
    from kafka import KafkaProducer

    async def with_aiokafka(address: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="aio")
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait("orders", b"aio 1", partition=0)
            await producer.send_and_wait("orders", b"aio 2", partition=1)
            await producer.send_offsets_to_transaction({AioPartition("orders", 0): 3}, "workers")
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"aio lost", partition=0)
        await producer.abort_transaction()
        await producer.stop()

    with running_node(tmp_path) as node:
        create(node, "orders", 2)
        address = node.bootstrap_servers
        asyncio.run(with_aiokafka(address))
        producer = KafkaProducer(bootstrap_servers=address, transactional_id="plain")
        producer.init_transactions()
        for value, is_commit in ((b"plain 1", True), (b"plain lost", False), (b"plain 2", True)):
            producer.begin_transaction()
            producer.send("orders", value, partition=0).get(30)
            (producer.commit_transaction if is_commit else producer.abort_transaction)()
        producer.close()
        reader, other = Reader(node, "orders"), Reader(node, "orders", 1)
        assert reader.values() == [b"aio 1", b"plain 1", b"plain 2"]
        assert other.values() == [b"aio 2"]
        reader.close()
        other.close()
        assert node.errors.read_text() == ""


def test_offsets_count_when_their_transaction_is_committed(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders")
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "workers", **QUIET}
        )
        at = TopicPartition("orders", 0)

        def committed() -> int:
            return int(consumer.committed([at], 30)[0].offset)

        producer = transactional(node, "worker")
        for offset, is_commit in ((5, False), (7, True)):
            begin(producer, "orders", [b"result"])
            wanted = [TopicPartition("orders", 0, offset)]
            producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), 30)
            (producer.commit_transaction if is_commit else producer.abort_transaction)(30)
            assert committed() == (offset if is_commit else -1001)
        # What is decided is kept, what is open is not: the node is killed in a transaction.
        begin(producer, "orders", [b"result"])
        wanted = [TopicPartition("orders", 0, 9)]
        producer.send_offsets_to_transaction(wanted, consumer.consumer_group_metadata(), 30)
        consumer.close()
        node.kill()
        producer.purge()
    with running_node(tmp_path) as node:
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap_servers, "group.id": "workers", **QUIET}
        )
        with pytest.raises(KafkaException) as caught:
            consumer.committed([at], 2)
        assert caught.value.args[0].code() == KafkaError._TIMED_OUT
        transactional(node, "worker")
        assert committed() == 7
        consumer.close()


def test_cold_aborted_records_are_left_out(tmp_path: Path) -> None:
    """Segments with aborted transactions are read back from the store."""
    settings = {
        "remote.log.manager.task.interval.ms": 200,
        "tierlog.retention.max.deleted.ratio": 1,
    }
    tiered = {
        "internal.segment.bytes": "100000",
        "remote.storage.enable": "true",
        "local.retention.bytes": "0",
    }
    folder = tmp_path / "data" / "logs" / "orders-0"
    store = (tmp_path / "store").as_uri()
    with running_node(tmp_path, settings, store=store) as node:
        create(node, "orders", 1, tiered)
        producer = transactional(node, "worker", **{"batch.size": 20_000})
        expected = []
        for number in range(12):
            values = [b"%d-%d" % (number, row) * 100 for row in range(200)]
            begin(producer, "orders", values)
            if number % 3:
                producer.commit_transaction(30)
                expected += values
            else:
                producer.abort_transaction(30)
        wait_until(lambda: len(list(folder.glob("*.log"))) == 1, 60, what="local retention")
        reader = Reader(node, "orders")
        assert reader.values() == expected
        assert len(Reader(node, "orders", isolation="read_uncommitted").values()) == 2400
        reader.close()
        node.kill()
    with running_node(tmp_path, settings, store=store) as node:
        reader = Reader(node, "orders")
        assert reader.values() == expected
        reader.close()


def test_kafkas_tool_reads_what_a_transaction_leaves(tmp_path: Path) -> None:
    """Segments, transaction indexes and producer snapshots, one of an open transaction."""
    with running_node(tmp_path) as node:
        create(node, "orders", 1, {"internal.segment.bytes": "20000"})
        producer = transactional(node, "worker", **{"batch.size": 2000})
        for number in range(6):
            begin(producer, "orders", [b"%d" % row * 200 for row in range(60)])
            if number % 2:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
        begin(producer, "orders", [b"open"])
        assert node.stop() == 0
        producer.purge()
    folder = tmp_path / "data" / "logs" / "orders-0"
    said = dump_log_segments(sorted(folder.glob("*.log")), "--deep-iteration")
    assert "isvalid: false" not in said
    assert said.count("endTxnMarker: COMMIT") == said.count("endTxnMarker: ABORT") == 3
    aborted = dump_log_segments(sorted(folder.glob("*.txnindex")))
    assert aborted.count("producerId: ") == 3
    newest = dump_log_segments(sorted(folder.glob("*.snapshot"))[-1:])
    assert "currentTxnFirstOffset: OptionalLong[" in newest or "Some(" in newest
