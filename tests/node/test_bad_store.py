"""A store on a bad day: local partitions go on, cold reads end with an error that is retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.record import MemoryRecords

from tests.node.running import RawClient
from tierlog.clock import SystemClock
from tierlog.node.error_codes import ErrorCode
from tierlog.testing import NodeForTests

VERSION = 11
VALUES = [b"order %d" % number * 50 for number in range(200)]
# Clients try again after these, and after an empty answer.
RETRIED = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE}
WAIT_MS = 300
# A store that answers none of the requests of a test in time.
HANG_MS = 20_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeForTests]:
    settings = {"remote.fetch.max.wait.ms": str(WAIT_MS)}
    with NodeForTests(tmp_path, settings) as made:
        made.create_topic("cold")
        made.create_topic("warm", settings={"remote.storage.enable": "false"})
        write(made, "cold")
        write(made, "warm")
        made.tier_now()
        yield made


def write(node: NodeForTests, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def fetched(client: RawClient, *topics: str) -> dict[str, tuple[int, bytes]]:
    """Error and records of each topic, from one fetch at offset 0."""
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=4 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.FetchPartition(
                        partition=0,
                        current_leader_epoch=-1,
                        fetch_offset=0,
                        log_start_offset=-1,
                        partition_max_bytes=1 << 20,
                    )
                ],
            )
            for name in topics
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
    client.request(request, VERSION)
    answer = client.read_frame()
    assert answer is not None
    found = FetchResponse.decode(answer, version=VERSION, header=True)
    return {
        one.topic: (one.partitions[0].error_code, bytes(one.partitions[0].records or b""))
        for one in found.responses
    }


def values_of(records: bytes) -> list[bytes | None]:
    batches, found = MemoryRecords(records), []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        found += [record.value for record in batch]
    return found


def address(node: NodeForTests) -> tuple[str, int]:
    host, _, port = node.bootstrap_servers.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("fault", ["slow", "503", "truncated", "flipped"])
def test_cold_reads_are_retried_and_others_go_on(node: NodeForTests, fault: str) -> None:
    clock = SystemClock()
    with RawClient(address(node)) as client:
        with node.store.fault(fault, delay_ms=HANG_MS):
            for _ in range(3):
                began_ms = clock.monotonic_ms()
                both = fetched(client, "cold", "warm")
                error, records = both["cold"]
                assert error in RETRIED
                assert (error == ErrorCode.NONE) == (fault == "slow")
                assert records == b""
                assert both["warm"][0] == ErrorCode.NONE
                assert values_of(both["warm"][1]) == VALUES
                assert values_of(fetched(client, "warm")["warm"][1]) == VALUES
                assert clock.monotonic_ms() - began_ms < HANG_MS
            write(node, "warm")
            assert node.store.struck > 0
        lines = [line for line in node.reports if line.startswith("fetch of cold-0: ")]
        assert len(lines) == (fault != "slow")
        assert all("KAFKA_STORAGE_ERROR" in line for line in lines)
        error, records = ErrorCode.NONE, b""
        while error == ErrorCode.NONE and not records:
            error, records = fetched(client, "cold")["cold"]
        assert values_of(records) == VALUES
