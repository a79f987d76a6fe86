"""200 partitions in the store, asked for in one fetch: every record comes, in bounded memory."""

from __future__ import annotations

import os
from pathlib import Path

from confluent_kafka import Producer
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.record import MemoryRecords

from tests.kafka_tools import wait_until
from tests.node.node_clients import create
from tests.node.nodes import NodeProcess, running_node
from tests.node.running import RawClient

MIB = 1 << 20
VERSION = 11
PARTITIONS = 200
RECORDS = 25
VALUE_BYTES = 10_000
# Less than the 50 MiB that one request asks for.
BUDGET_BYTES = 44 * MIB
SETTINGS = {
    "tierlog.fetch.memory.bytes": BUDGET_BYTES,
    # What does not fit into the queue is UNKNOWN_SERVER_ERROR, as at a broker.
    "remote.log.reader.max.pending.tasks": PARTITIONS,
    "remote.log.manager.task.interval.ms": 200,
    "tierlog.retention.max.deleted.ratio": 1,
}
COLD = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    # All records of a partition and a part of the last one's batch.
    "internal.segment.bytes": str(RECORDS * (VALUE_BYTES + 200)),
    "file.delete.delay.ms": "0",
}


def resident_bytes(node: NodeProcess) -> int:
    fields = Path(f"/proc/{node.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def value(partition: int, number: int) -> bytes:
    return (b"%d-%d " % (partition, number)).ljust(VALUE_BYTES, b".")


def write(node: NodeProcess) -> None:
    """Write one segment to each partition, and a record that makes the next one begin."""
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "linger.ms": 50})
    for number in range(RECORDS + 1):
        for partition in range(PARTITIONS):
            producer.produce("orders", value(partition, number), partition=partition)
        assert producer.flush(60) == 0


def fetched(client: RawClient, offsets: dict[int, int]) -> dict[int, bytes]:
    """Records of the partitions, each from its offset, from one request."""
    topic = FetchRequest.FetchTopic
    partitions = [
        topic.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=MIB // 4,
        )
        for partition, offset in offsets.items()
    ]
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=2**31 - 1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic="orders", partitions=partitions)],
        forgotten_topics_data=[],
        rack_id="",
    )
    client.request(request, VERSION)
    answer = client.read_frame()
    assert answer is not None
    found = FetchResponse.decode(answer, version=VERSION, header=True).responses[0].partitions
    assert [one.error_code for one in found] == [0] * len(offsets)
    return {one.partition_index: bytes(one.records or b"") for one in found}


def values_of(records: bytes) -> list[bytes | None]:
    batches, found = MemoryRecords(records), []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        found += [record.value for record in batch]
    return found


def read_all(node: NodeProcess, client: RawClient) -> int:
    """Read the cold records of all partitions; return the most memory of the node."""
    found: dict[int, list[bytes | None]] = {partition: [] for partition in range(PARTITIONS)}
    most = 0
    while left := {at: len(values) for at, values in found.items() if len(values) < RECORDS}:
        for partition, records in fetched(client, left).items():
            # A batch may begin below the offset.
            found[partition] += values_of(records)[: RECORDS - len(found[partition])]
        most = max(most, resident_bytes(node))
    for partition, values in found.items():
        assert values == [value(partition, number) for number in range(RECORDS)]
    return most


def test_one_fetch_of_200_cold_partitions_keeps_within_its_memory(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with running_node(tmp_path, SETTINGS, store=store.as_uri()) as node:
        create(node, "orders", PARTITIONS, COLD)
        write(node)
        logs = tmp_path / "data" / "logs"
        firsts = [logs / f"orders-{at}" / f"{0:020d}.log" for at in range(PARTITIONS)]
        wait_until(lambda: not any(map(Path.exists, firsts)), 120, what="local retention")
        host, _, port = node.bootstrap_servers.rpartition(":")
        with RawClient((host, int(port))) as client:
            before = resident_bytes(node)
            grown = max(read_all(node, client) for _ in range(3)) - before
            print(f"grown by {grown / MIB:.1f} MiB, {grown / BUDGET_BYTES:.2f} of the budget")
            assert grown <= BUDGET_BYTES * 1.1
