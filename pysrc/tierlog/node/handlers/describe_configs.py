"""DescribeConfigs (32), versions 1 to 4: settings of topics, of this node and of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.handlers.resources import ResourceType, find_fault
from tierlog.node.node import Node
from tierlog.node.settings import NodeSettings, SettingSource, SettingView, Synonym

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 32
VERSIONS = (1, 4)
REQUEST = DescribeConfigsRequest

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Setting = _Result.DescribeConfigsResourceResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the settings of each resource."""
    results = [_describe(node, request, one) for one in request.resources]
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe(node: Node, request: Any, asked: Any) -> Any:
    kind, name = asked.resource_type, asked.resource_name
    fault = find_fault(node, kind, name)
    found = _views(node, kind, name) if fault is None else ()
    error, text = (ErrorCode.NONE, "") if fault is None else fault
    keys = asked.configuration_keys
    return _Result(
        error_code=error,
        error_message=text,
        resource_type=kind,
        resource_name=name,
        configs=[_setting(one, request) for one in found if keys is None or one.name in keys],
    )


def _views(node: Node, kind: int, name: str) -> Sequence[SettingView]:
    settings = NodeSettings(node.config, is_archive=True)
    if node.local is not None:
        settings = node.local.settings
    if kind == ResourceType.NODE:
        return settings.node_views() if name else settings.all_nodes_views()
    own = node.view.by_name[name].settings
    if node.local is not None:
        return settings.topic_views(own)
    # What an archive knows of a topic.
    return [
        SettingView(
            name=key,
            value=value,
            synonyms=(Synonym(key, value, SettingSource.TOPIC),),
            type=TOPIC_SETTINGS[key].type,
        )
        for key, value in own.items()
    ]


def _setting(view: SettingView, request: Any) -> Any:
    synonyms = view.synonyms if request.include_synonyms else ()
    return _Setting(
        name=view.name,
        value=view.value,
        read_only=view.is_read_only,
        config_source=view.source,
        is_sensitive=view.is_private,
        synonyms=[
            _Setting.DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in synonyms
        ],
        config_type=view.type,
        documentation=view.doc if request.include_documentation else None,
    )
