"""Kafka's Java client and tools use the transactions of a node, as KIP-890 says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_tools import run_tool
from tests.node.nodes import NodeProcess, running_node
from tests.node.transactions.clients import Reader, begin, create, transactional

pytestmark = pytest.mark.integration

_TOOLS = "org.apache.kafka.tools"
RECORDS = 5000


def transactions(node: NodeProcess, *arguments: str) -> list[list[str]]:
    """The rows that kafka-transactions.sh prints."""
    said = run_tool(
        f"{_TOOLS}.TransactionsCommand", "--bootstrap-server", node.bootstrap_servers, *arguments
    )
    return [line.split() for line in said.splitlines()[1:] if line.strip()]


def test_the_java_client_writes_and_copies_exactly_once(tmp_path: Path) -> None:
    """Each end of a transaction begins a new epoch, so the client uses transaction version 2."""
    with running_node(tmp_path) as node:
        create(node, "in")
        create(node, "out")
        address = node.bootstrap_servers
        run_tool(
            f"{_TOOLS}.ProducerPerformance",
            *("--topic", "in", "--num-records", str(RECORDS), "--record-size", "100"),
            *("--throughput", "-1", "--bootstrap-server", address),
            *("--transactional-id", "writer", "--transaction-duration-ms", "20"),
        )
        run_tool(
            f"{_TOOLS}.TransactionalMessageCopier",
            *("--broker-list", address, "--input-topic", "in", "--input-partition", "0"),
            *("--output-topic", "out", "--transaction-size", "300", "--consumer-group", "copiers"),
            *("--transactional-id", "copier", "--max-messages", str(RECORDS)),
        )
        read, copied = Reader(node, "in"), Reader(node, "out")
        assert len(read.values()) == RECORDS
        assert copied.values() == read.values()
        (row,) = transactions(node, "describe", "--transactional-id", "copier")
        assert row[1] == "copier"
        epoch, ends = int(row[3]), copied.end() - RECORDS
        assert epoch == ends > RECORDS / 300 - 1
        read.close()
        copied.close()
        assert node.errors.read_text() == ""


def test_an_administrator_sees_and_ends_transactions(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        create(node, "orders")
        producer = transactional(node, "worker")
        begin(producer, "orders", [b"open"])
        ((name, _, producer_id, state),) = transactions(node, "list")
        assert (name, state) == ("worker", "Ongoing")
        (described,) = transactions(node, "describe", "--transactional-id", "worker")
        assert described[-1] == "orders-0"
        at = ("--topic", "orders", "--partition", "0")
        ((found_id, *_, start),) = transactions(node, "describe-producers", *at)
        assert (found_id, start) == (producer_id, "0")
        reader = Reader(node, "orders")
        assert reader.end() == 0
        transactions(node, "abort", *at, "--start-offset", "0")
        assert (reader.values(), reader.end()) == ([], 2)
        reader.close()
        producer.purge()
