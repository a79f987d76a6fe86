"""ApiVersions (18), versions 0 to 4. One feature: a node, not an archive, has transaction.version.

A version that is not known here is answered in version 0 with UNSUPPORTED_VERSION and the versions
that are, so that the client can try again (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node
from tierlog.node.transactions.rules import BUMPS_EPOCH

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle", "refuse_version"]

KEY = 18
VERSIONS = (0, 4)
REQUEST = ApiVersionsRequest

_NO_FEATURES: Mapping[str, Any] = {}
# Clients begin transactions as KIP-890 says when this feature is finalized at version 2.
_FEATURES: Mapping[str, Any] = {
    "supported_features": [
        ApiVersionsResponse.SupportedFeatureKey(
            name="transaction.version", min_version=0, max_version=BUMPS_EPOCH
        )
    ],
    "finalized_features_epoch": 0,
    "finalized_features": [
        ApiVersionsResponse.FinalizedFeatureKey(
            name="transaction.version",
            min_version_level=BUMPS_EPOCH,
            max_version_level=BUMPS_EPOCH,
        )
    ],
}


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the APIs of this node with their versions."""
    return _response(node, ErrorCode.NONE)


def refuse_version(node: Node) -> Any:
    """Return the answer to a request of an unknown version. It is encoded in version 0."""
    return _response(node, ErrorCode.UNSUPPORTED_VERSION)


def _response(node: Node, error: ErrorCode) -> Any:
    return ApiVersionsResponse(
        error_code=error,
        api_keys=_keys(node),
        throttle_time_ms=0,
        **(_NO_FEATURES if node.transactions is None else _FEATURES),
    )


def _keys(node: Node) -> list[Any]:
    row = ApiVersionsResponse.ApiVersion
    return [
        row(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(node.versions.items())
    ]
