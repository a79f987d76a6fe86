"""DescribeLogDirs (35), versions 1 to 5: directories, and each store as ``remote://``."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeLogDirsRequest, DescribeLogDirsResponse

from tierlog.errors import TierlogError
from tierlog.node.cluster_view import LogDirView
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode, error_code_of
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 35
VERSIONS = (1, 5)
REQUEST = DescribeLogDirsRequest

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = _Result.DescribeLogDirsTopic
_Partition = _Topic.DescribeLogDirsPartition


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the bytes of each partition in each directory and store."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, one) for topic in request.topics for one in topic.partitions}
    error, found = ErrorCode.NONE, []
    try:
        found = [_result(one) for one in await node.cluster.list_log_dirs(wanted)]
    except (TierlogError, OSError) as failed:
        error = error_code_of(failed)
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=error, results=found)


def _result(found: LogDirView) -> Any:
    topics: dict[str, list[Any]] = {}
    for topic, index, size_bytes in found.sizes:
        row = _Partition(
            partition_index=index, partition_size=size_bytes, offset_lag=0, is_future_key=False
        )
        topics.setdefault(topic, []).append(row)
    return _Result(
        error_code=ErrorCode.NONE,
        log_dir=found.path,
        topics=[_Topic(name=name, partitions=rows) for name, rows in topics.items()],
        total_bytes=-1,
        usable_bytes=-1,
        is_cordoned=False,
    )
