"""OffsetForLeaderEpoch (23), versions 2 to 4: where a leader epoch ended."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode, error_code_of
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.node import Node
from tierlog.reader.types import FetchView

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 23
VERSIONS = (2, 4)
REQUEST = OffsetForLeaderEpochRequest

_Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_Partition = _Topic.EpochEndOffset


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return for each partition the largest epoch up to the one asked for, and its end."""
    topics = []
    for topic in request.topics:
        partitions = [await _look_up(node, topic.topic, one) for one in topic.partitions]
        topics.append(_Topic(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


async def _look_up(node: Node, topic: str, asked: Any) -> Any:
    found, error = find_partition(node.view, topic, None, asked.partition)
    if found is None:
        return _answer(asked, error)
    failed = await node.cluster.prepare([found.stored_as])
    if found.stored_as in failed:
        return _answer(asked, error_code_of(failed[found.stored_as]))
    view = node.cluster.view(found.stored_as)
    if view is None:
        return _answer(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if 0 <= asked.current_leader_epoch < view.leader_epoch:
        return _answer(asked, ErrorCode.FENCED_LEADER_EPOCH)
    if asked.current_leader_epoch > view.leader_epoch:
        return _answer(asked, ErrorCode.UNKNOWN_LEADER_EPOCH)
    return _answer(asked, ErrorCode.NONE, *_epoch_end(view, asked.leader_epoch))


def _epoch_end(view: FetchView, epoch: int) -> tuple[int, int]:
    """Return the largest epoch up to `epoch` that the log has, and the offset after it; -1, -1
    when all epochs are later or `epoch` is later than all of them."""
    lineage = view.log.leader_epochs
    if lineage is None or epoch > view.leader_epoch:
        return -1, -1
    known = [one.epoch for one in lineage if one.epoch <= epoch]
    if not known:
        # The first epoch begins where all that is asked for ends.
        return epoch, lineage.entries[0].start_offset
    end = lineage.end_offset(known[-1], view.log_end_offset)
    return known[-1], -1 if end is None else end


def _answer(asked: Any, error: ErrorCode, epoch: int = -1, end_offset: int = -1) -> Any:
    return _Partition(
        error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )
