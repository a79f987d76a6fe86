"""Requests of an administrator as they go over the wire, and the answers as they come."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

__all__ = ["APPEND", "BROKER", "DELETE", "SET", "SUBTRACT", "TOPIC", "AdminWire", "Change"]

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
# Name, operation and value.
Change = tuple[str, int, str | None]


class AdminWire:
    """One connection to one broker."""

    def __init__(self, bootstrap_servers: str, timeout_s: float = 60) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._replies = self._socket.makefile("rb")

    def __enter__(self) -> AdminWire:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._socket.close()

    def ask(self, request: Any, answer: Any, version: int) -> Any:
        """Send a request of kafka-python and return its answer."""
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id="admin")
        self._socket.sendall(bytes(request.encode(version=version, header=True, framed=True)))
        (size_bytes,) = struct.unpack(">i", self._replies.read(4))
        data = self._replies.read(size_bytes)
        return answer.decode(data, version=version, header=True, framed=False)

    def create_topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> int:
        """Create a topic and return the code."""
        topic = CreateTopicsRequest.CreatableTopic
        wanted = topic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[
                topic.CreatableTopicConfig(name=key, value=value)
                for key, value in (settings or {}).items()
            ],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
        return int(self.ask(request, CreateTopicsResponse, 7).topics[0].error_code)

    def create_partitions(
        self,
        topics: Sequence[tuple[str, int, Sequence[Sequence[int]] | None]],
        *,
        validate_only: bool = False,
        version: int = 3,
    ) -> list[tuple[str, int]]:
        """Ask for a number of partitions of each topic; name and code of each answer."""
        topic = CreatePartitionsRequest.CreatePartitionsTopic
        wanted = [
            topic(
                name=name,
                count=count,
                assignments=None
                if nodes is None
                else [topic.CreatePartitionsAssignment(broker_ids=list(one)) for one in nodes],
            )
            for name, count, nodes in topics
        ]
        request = CreatePartitionsRequest(
            topics=wanted, timeout_ms=30_000, validate_only=validate_only
        )
        answer = self.ask(request, CreatePartitionsResponse, version)
        return sorted((one.name, one.error_code) for one in answer.results)

    def alter(
        self,
        kind: int,
        name: str,
        changes: Sequence[Change],
        *,
        validate_only: bool = False,
        version: int = 1,
    ) -> tuple[int, str | None]:
        """IncrementalAlterConfigs of one resource; its code and text."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ]
        wanted = resource(resource_type=kind, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=validate_only)
        answer = self.ask(request, IncrementalAlterConfigsResponse, version).responses[0]
        return answer.error_code, answer.error_message

    def replace(
        self,
        kind: int,
        name: str,
        settings: Sequence[tuple[str, str | None]],
        *,
        validate_only: bool = False,
        version: int = 2,
    ) -> int:
        """AlterConfigs of one resource; its code."""
        resource = AlterConfigsRequest.AlterConfigsResource
        configs = [resource.AlterableConfig(name=key, value=value) for key, value in settings]
        wanted = resource(resource_type=kind, resource_name=name, configs=configs)
        request = AlterConfigsRequest(resources=[wanted], validate_only=validate_only)
        return int(self.ask(request, AlterConfigsResponse, version).responses[0].error_code)

    def describe(
        self,
        kind: int,
        name: str,
        keys: Sequence[str] | None = None,
        *,
        synonyms: bool = True,
        version: int = 4,
    ) -> Any:
        """DescribeConfigs of one resource; its answer."""
        resource = DescribeConfigsRequest.DescribeConfigsResource
        wanted = resource(
            resource_type=kind,
            resource_name=name,
            configuration_keys=None if keys is None else list(keys),
        )
        request = DescribeConfigsRequest(
            resources=[wanted], include_synonyms=synonyms, include_documentation=False
        )
        return self.ask(request, DescribeConfigsResponse, version).results[0]
