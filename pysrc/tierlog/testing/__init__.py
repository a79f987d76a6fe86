"""A Kafka node for tests (docs/TESTING.md), and conformance suites for object stores, storage
managers and metadata managers (docs/PLUGINS.md).

    from tierlog.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path): return MyStore(tmp_path)

Suites need pytest, which is imported when a suite is. The pytest plugin `plugin` has the fixture
`tierlog_node`; without pytest, `NodeForTests` is a context manager.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierlog.testing.faults import FaultyStore, StoreFault
    from tierlog.testing.metadata import MetadataConformance
    from tierlog.testing.node import NodeForTests, ShiftedClock
    from tierlog.testing.storage import StorageConformance
    from tierlog.testing.stores import StoreConformance

__all__ = [
    "FaultyStore",
    "MetadataConformance",
    "NodeForTests",
    "ShiftedClock",
    "StorageConformance",
    "StoreConformance",
    "StoreFault",
]

_HOMES = {
    "FaultyStore": "faults",
    "MetadataConformance": "metadata",
    "NodeForTests": "node",
    "ShiftedClock": "node",
    "StorageConformance": "storage",
    "StoreConformance": "stores",
    "StoreFault": "faults",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tierlog.testing' has no attribute {name!r}")
    return getattr(import_module(f"tierlog.testing.{_HOMES[name]}"), name)
