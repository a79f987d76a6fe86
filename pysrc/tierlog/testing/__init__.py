"""Conformance suites for object stores, storage managers and metadata managers (docs/PLUGINS.md).

    from tierlog.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path): return MyStore(tmp_path)

They need pytest, which is imported when a suite is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierlog.testing.metadata import MetadataConformance
    from tierlog.testing.storage import StorageConformance
    from tierlog.testing.stores import StoreConformance

__all__ = ["MetadataConformance", "StorageConformance", "StoreConformance"]

_HOMES = {
    "MetadataConformance": "metadata",
    "StorageConformance": "storage",
    "StoreConformance": "stores",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tierlog.testing' has no attribute {name!r}")
    return getattr(import_module(f"tierlog.testing.{_HOMES[name]}"), name)
