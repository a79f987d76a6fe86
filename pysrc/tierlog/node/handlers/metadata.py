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
    topics = list(_topics(node, view, request))
    broker = _Broker(node_id=view.node_id, host=client.node_host, port=client.node_port)
    return MetadataResponse(
        brokers=[broker],
        cluster_id=view.cluster_id,
        controller_id=view.node_id,
        topics=topics,
        error_code=ErrorCode.NONE,
    )


def _topics(node: Node, view: ClusterView, request: Any) -> Iterator[Any]:
    # Version 0 has no null: no topic stands for all of them.
    if request.topics is None or (request.version == 0 and not request.topics):
        for topic in view.topics:
            _note_use(node, topic)
            yield _topic(view, topic)
        return
    for asked in request.topics:
        if asked.topic_id is not None:
            found = view.by_id.get(kafka_uuid(asked.topic_id))
        else:
            found = view.by_name.get(asked.name)
        if found is not None:
            _note_use(node, found)
            yield _topic(view, found)
        else:
            yield _unknown_topic(asked)


def _note_use(node: Node, topic: TopicView) -> None:
    if topic.partitions:
        node.cluster.touch_topics([topic.partitions[0].stored_as.topic_id])


def _unknown_topic(asked: Any) -> Any:
    code, name = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, asked.name
    if asked.topic_id is not None:
        code, name = ErrorCode.UNKNOWN_TOPIC_ID, None
    else:
        try:
            check_topic_name(name)
        except ValueError:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return _Topic(error_code=code, name=name, topic_id=asked.topic_id, partitions=[])


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
