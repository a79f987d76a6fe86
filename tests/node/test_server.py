"""Clients find the cluster; one that breaks the protocol is disconnected alone."""

from __future__ import annotations

import struct

import pytest
from aiokafka.client import AIOKafkaClient
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest

from tests.node.running import RawClient, running
from tierlog.config import Config, NodeConfig
from tierlog.errors import ConfigError
from tierlog.node.apis import APIS, supported_versions
from tierlog.node.server import open_listener


def test_librdkafka_finds_the_topics() -> None:
    with running() as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        found = admin.list_topics(timeout=30)
        assert found.cluster_id == "a-cluster"
        assert [(one.id, one.port) for one in found.brokers.values()] == [(1, server.address[1])]
        assert sorted(found.topics["orders"].partitions) == [0, 1, 2]
        unknown = admin.list_topics("nothing", timeout=30).topics["nothing"]
        assert unknown.error.name() == "UNKNOWN_TOPIC_OR_PART"


def test_kafka_python_finds_the_topics() -> None:
    with running() as server:
        admin = KafkaAdminClient(bootstrap_servers=server.bootstrap)
        (topic,) = admin.describe_topics(["orders"])
        admin.close()
    assert [one["partition_index"] for one in topic["partitions"]] == [0, 1, 2]


async def bootstrapped(bootstrap: str) -> set[int]:
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    await client.set_topics(["orders"])
    found = client.cluster.partitions_for_topic("orders")
    await client.close()
    return set(found or ())


def test_aiokafka_finds_the_topics() -> None:
    import asyncio

    with running() as server:
        assert asyncio.run(bootstrapped(server.bootstrap)) == {0, 1, 2}


def test_every_version_of_metadata_is_answered() -> None:
    with running() as server, RawClient(server.address) as client:
        low, high = APIS[3].VERSIONS
        for version in range(low, high + 1):
            topics = [MetadataRequest.MetadataRequestTopic(name="orders")]
            client.request(MetadataRequest(topics=topics), version, correlation_id=version)
            answer = client.read_frame()
            assert answer is not None
            assert struct.unpack_from(">i", answer)[0] == version


@pytest.mark.parametrize("version", range(5))
def test_versions_are_those_of_the_table(version: int) -> None:
    with running() as server, RawClient(server.address) as client:
        client.request(ApiVersionsRequest(), version)
        answer = client.read_frame()
    assert answer is not None
    found = ApiVersionsResponse.decode(answer, version=version, header=True)
    rows = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}
    assert rows == supported_versions()


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    with running() as server, RawClient(server.address) as client:
        client.send_frame(struct.pack(">hhih", 18, 99, 7, -1) + b"\0\1\2garbage")
        answer = client.read_frame()
        assert answer is not None
        assert struct.unpack_from(">ih", answer) == (7, 35)
        found = ApiVersionsResponse.decode(answer, version=0, header=True)
        assert 18 in {one.api_key for one in found.api_keys}
        # The client tries again on the same connection.
        client.request(ApiVersionsRequest(), 0)
        assert client.read_frame() is not None


def test_pipelined_requests_are_answered_in_order() -> None:
    with running() as server, RawClient(server.address) as client:
        for number in range(500):
            client.request(MetadataRequest(topics=None), 1, correlation_id=number)
        for number in range(500):
            answer = client.read_frame()
            assert answer is not None
            assert struct.unpack_from(">i", answer)[0] == number


LIMIT = 1000


@pytest.mark.parametrize("size", [-1, -5, 0, 2**31 - 1, LIMIT + 1])
def test_a_frame_of_a_wrong_size_ends_the_connection_at_once(size: int) -> None:
    config = Config(node=NodeConfig(request_max_bytes=LIMIT))
    with running(config=config) as server, RawClient(server.address) as client:
        client.send(struct.pack(">i", size))
        assert client.is_disconnected()
        assert f"a frame of {size} bytes: expected 1 to {LIMIT}" in server.said[0]


def test_a_frame_of_the_largest_size_is_answered() -> None:
    config = Config(node=NodeConfig(request_max_bytes=LIMIT))
    with running(config=config) as server, RawClient(server.address) as client:
        # Bytes after the request are ignored.
        client.send_frame(struct.pack(">hhih", 18, 0, 7, -1).ljust(LIMIT, b"\0"))
        assert client.read_frame() is not None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512), id="TLS"),
        pytest.param(struct.pack(">ihhih", 10, 3, 99, 1, -1), id="unknown version"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="unknown API"),
        pytest.param(struct.pack(">ihhih", 10, 3, 1, 1, 500), id="client id past the end"),
        pytest.param(struct.pack(">ih", 2, 3), id="half a header"),
    ],
)
def test_another_protocol_ends_the_connection_with_one_line(data: bytes) -> None:
    with running() as server, RawClient(server.address) as client:
        client.send(data)
        assert client.is_disconnected()
        assert len(server.said) == 1
        with RawClient(server.address) as honest:
            honest.request(MetadataRequest(topics=None), 1)
            assert honest.read_frame() is not None


def test_a_listener_that_others_reach_needs_permission() -> None:
    with pytest.raises(ConfigError, match="--allow-remote-clients"):
        open_listener("0.0.0.0", 0)
    open_listener("0.0.0.0", 0, allow_remote_clients=True).close()
    open_listener("localhost", 0).close()
