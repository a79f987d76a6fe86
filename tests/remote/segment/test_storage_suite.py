"""tierlog's own storage manager under the suite that it ships."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.urls import LocalStore, open_store
from tierlog.testing import StorageConformance


class TestFiles(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> RemoteStorageManager:
        return ObjectStorageManager(LocalStore(tmp_path / "store"))


class TestMemory(StorageConformance):
    @pytest.fixture
    def storage(self) -> RemoteStorageManager:
        return ObjectStorageManager(open_store(f"memory:///{uuid4()}"))
