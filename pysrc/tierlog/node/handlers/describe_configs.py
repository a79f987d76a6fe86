"""DescribeConfigs (32), versions 1 to 4: settings of topics and of this node. No synonyms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse

from tierlog.config import Config, settings
from tierlog.config.load import SECTIONS
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 32
VERSIONS = (1, 4)
REQUEST = DescribeConfigsRequest

_TOPIC, _BROKER = 2, 4
_OF_TOPIC, _OF_FILE, _DEFAULT = 1, 4, 5
_STRING = 2
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Setting = _Result.DescribeConfigsResourceResult


class _Shown(NamedTuple):
    """A setting as clients see it."""

    name: str
    value: str | None
    source: int
    is_private: bool = False
    about: str | None = None


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the settings of each resource."""
    results = [_describe(node, request, one) for one in request.resources]
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe(node: Node, request: Any, asked: Any) -> Any:
    error, text, found = ErrorCode.NONE, None, []
    if asked.resource_type == _TOPIC:
        topic = node.view.by_name.get(asked.resource_name)
        if topic is None:
            error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic"
        else:
            found = [_Shown(*one, _OF_TOPIC) for one in topic.settings.items()]
    elif asked.resource_type == _BROKER:
        if asked.resource_name in ("", str(node.view.node_id)):
            found = list(_of_node(node.config))
        else:
            error, text = ErrorCode.INVALID_REQUEST, f"this node is {node.view.node_id}"
    else:
        error, text = ErrorCode.INVALID_REQUEST, "expected a topic or a broker"
    keys = asked.configuration_keys
    return _Result(
        error_code=error,
        error_message=text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[
            _setting(one, bool(request.include_documentation))
            for one in found
            if keys is None or one.name in keys
        ],
    )


def _of_node(config: Config) -> Iterator[_Shown]:
    for part, section in SECTIONS.items():
        for name, one in settings(section):
            value = getattr(getattr(config, part), name)
            source = _DEFAULT if value == one.default else _OF_FILE
            shown = None if one.private else one.kind.show(value)
            yield _Shown(one.name, shown, source, one.private, one.doc)


def _setting(shown: _Shown, with_text: bool) -> Any:
    return _Setting(
        name=shown.name,
        value=shown.value,
        read_only=True,
        config_source=shown.source,
        is_sensitive=shown.is_private,
        synonyms=[],
        config_type=_STRING,
        documentation=shown.about if with_text else None,
    )
