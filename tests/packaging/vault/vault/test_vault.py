"""The package's own tests: the suites that tierlog ships."""

from pathlib import Path

import pytest

from tierlog.testing import MetadataConformance, StorageConformance, StoreConformance
from vault import VaultMetadata, VaultStorage, VaultStore  # type: ignore[import-not-found]


class TestStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> VaultStore:
        return VaultStore(str(tmp_path / "vault"))


class TestStorage(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> VaultStorage:
        manager = VaultStorage()
        manager.configure({"drawers": str(tmp_path / "drawers")})
        return manager


class TestMetadata(MetadataConformance):
    @pytest.fixture
    def manager(self, tmp_path: Path) -> VaultMetadata:
        made = VaultMetadata()
        made.configure({"database": str(tmp_path / "vault.sqlite")})
        return made
