"""The pytest plugin: a Kafka node with a cold tier as a fixture (docs/TESTING.md).

Suites that do not use it load it, too: everything else is imported when a fixture is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tierlog.testing import NodeForTests

__all__ = ["tierlog_node", "tierlog_node_settings"]


@pytest.fixture
def tierlog_node_settings() -> Mapping[str, str]:
    """Settings of `tierlog_node`, as of a ``server.properties``; a test or a suite overrides it."""
    return {}


@pytest.fixture
def tierlog_node(
    tmp_path_factory: pytest.TempPathFactory, tierlog_node_settings: Mapping[str, str]
) -> Iterator[NodeForTests]:
    """A Kafka node in this process, on a free port, with a cold tier in a temporary directory."""
    with warnings.catch_warnings():
        # kafka-python reads its schemas in a way that Python 3.11 and 3.12 deprecate.
        warnings.simplefilter("ignore", DeprecationWarning)
        from tierlog.testing.node import NodeForTests

    with NodeForTests(tmp_path_factory.mktemp("tierlog-node"), tierlog_node_settings) as node:
        yield node
