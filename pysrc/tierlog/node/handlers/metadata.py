"""Metadata (3), versions 0 to 13. No authorized operations; topics are never created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tierlog.node.cluster_view import ClusterView, PartitionView, TopicView
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node
from tierlog.types import check_topic_name, kafka_uuid, kafka_uuid_bytes

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 3
VERSIONS = (0, 13)
REQUEST = MetadataRequest

_Broker = MetadataResponse.MetadataResponseBroker
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the topics that the request names, or all of them."""
    view = node.view
    broker = _Broker(node_id=view.node_id, host=client.node_host, port=client.node_port)
    return MetadataResponse(
        brokers=[broker],
        cluster_id=view.cluster_id,
        controller_id=view.node_id,
        topics=list(_topics(view, request)),
        error_code=ErrorCode.NONE,
    )


def _topics(view: ClusterView, request: Any) -> Iterator[Any]:
    # Version 0 has no null: no topic stands for all of them.
    if request.topics is None or (request.version == 0 and not request.topics):
        yield from (_topic(view, topic) for topic in view.topics)
        return
    for asked in request.topics:
        if asked.topic_id is not None:
            yield _topic_by_id(view, asked.topic_id)
        else:
            yield _topic_by_name(view, asked.name)


def _topic_by_id(view: ClusterView, topic_id: UUID) -> Any:
    found = view.by_id.get(kafka_uuid(topic_id))
    if found is not None:
        return _topic(view, found)
    code = ErrorCode.UNKNOWN_TOPIC_ID
    return _Topic(error_code=code, name=None, topic_id=topic_id, partitions=[])


def _topic_by_name(view: ClusterView, name: str) -> Any:
    found = view.by_name.get(name)
    if found is not None:
        return _topic(view, found)
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except ValueError:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return _Topic(error_code=code, name=name, partitions=[])


def _topic(view: ClusterView, topic: TopicView) -> Any:
    return _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=UUID(bytes=kafka_uuid_bytes(topic.topic_id)),
        is_internal=topic.is_internal,
        partitions=[_partition(view, one) for one in topic.partitions],
    )


def _partition(view: ClusterView, partition: PartitionView) -> Any:
    return _Partition(
        error_code=ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=view.node_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=[view.node_id],
        isr_nodes=[view.node_id],
        offline_replicas=[],
    )
