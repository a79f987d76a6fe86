"""DescribeCluster (60), versions 0 to 2. No authorized operations."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeClusterRequest, DescribeClusterResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 60
VERSIONS = (0, 2)
REQUEST = DescribeClusterRequest

_BROKERS = 1


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the cluster: this node."""
    view = node.view
    broker = DescribeClusterResponse.DescribeClusterBroker(
        broker_id=view.node_id,
        host=client.node_host,
        port=client.node_port,
        rack=None,
        is_fenced=False,
    )
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=view.cluster_id,
        controller_id=view.node_id,
        brokers=[broker],
    )
