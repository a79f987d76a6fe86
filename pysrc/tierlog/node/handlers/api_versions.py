"""ApiVersions (18), versions 0 to 4. No features.

A version that is not known here is answered in version 0 with UNSUPPORTED_VERSION and the versions
that are, so that the client can try again (KIP-511).
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle", "refuse_version"]

KEY = 18
VERSIONS = (0, 4)
REQUEST = ApiVersionsRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the APIs of this node with their versions."""
    return _response(node, ErrorCode.NONE)


def refuse_version(node: Node) -> Any:
    """Return the answer to a version that is not known here, for version 0."""
    return _response(node, ErrorCode.UNSUPPORTED_VERSION)


def _response(node: Node, error: ErrorCode) -> Any:
    row = ApiVersionsResponse.ApiVersion
    keys = [
        row(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(node.versions.items())
    ]
    return ApiVersionsResponse(error_code=error, api_keys=keys, throttle_time_ms=0)
