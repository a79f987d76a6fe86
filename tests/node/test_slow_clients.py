"""Clients that take nothing of their answers: the node keeps its memory and serves others."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from kafka.protocol.consumer import FetchRequest, FetchResponse

from tests.node.nodes import NodeProcess, running_node
from tests.node.running import RawClient
from tests.oracle import batches as oracle

MIB = 1 << 20
VERSION = 11
RECORDS = 24 * 1024
SLOW_CLIENTS = 30
# Far more than a socket holds.
ANSWER_BYTES = 8 * MIB
# Two of the answers, and less than one of the honest client.
MEMORY_BYTES = 17 * MIB
SETTINGS = {
    "tierlog.fetch.local.memory.bytes": MEMORY_BYTES,
    "tierlog.serve.connection.stall.ms": 1000,
}


def resident_bytes(node: NodeProcess) -> int:
    fields = Path(f"/proc/{node.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(node: NodeProcess) -> None:
    node.admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
    settings = {"bootstrap.servers": node.bootstrap_servers, "batch.num.messages": 64}
    producer = Producer(settings | {"queue.buffering.max.messages": RECORDS, "linger.ms": 50})
    for number in range(RECORDS):
        producer.produce("orders", b"%08d" % number * 125, partition=0)
    assert producer.flush(60) == 0


def fetch_from(offset: int, max_bytes: int) -> FetchRequest:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=200,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic="orders", partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
    )


def records_of(answer: bytes | None) -> bytes:
    assert answer is not None
    found = FetchResponse.decode(answer, version=VERSION, header=True)
    (partition,) = found.responses[0].partitions
    assert partition.error_code == 0
    return bytes(partition.records or b"")


def test_answers_that_no_client_takes_keep_within_the_memory(tmp_path: Path) -> None:
    with running_node(tmp_path, SETTINGS) as node, ExitStack() as stack:
        fill(node)
        host, _, port = node.bootstrap_servers.rpartition(":")
        address = host, int(port)
        before = most = resident_bytes(node)
        for _ in range(SLOW_CLIENTS):
            slow = stack.enter_context(RawClient(address))
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.request(fetch_from(0, ANSWER_BYTES), VERSION)
        honest = stack.enter_context(RawClient(address))
        offset, empty = 0, 0
        while offset < RECORDS:
            honest.request(fetch_from(offset, MIB), VERSION)
            found, reason, _ = oracle.scan(records_of(honest.read_frame()))
            assert reason == "end"
            most = max(most, resident_bytes(node))
            if found:
                assert found[0].base_offset == offset
                offset = found[-1].last_offset + 1
            empty += not found
        # It waited until the slow ones were disconnected.
        assert empty
        assert most - before < MEMORY_BYTES + 16 * MIB
