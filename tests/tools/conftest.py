"""A store with the golden logs in it, tiered once for all tests that only read it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tierlog.clock import ManualClock
from tierlog.config import Config, RemoteIndexConfig
from tierlog.sidecar import Sidecar, TierReport

LOG_DIRS = tuple(str(DATA_DIR / "clean" / disk) for disk in ("disk1", "disk2"))


def tier_golden(store: Path, state_dir: Path) -> TierReport:
    """One pass over the clean golden log directories."""
    with Sidecar(
        LOG_DIRS,
        store.as_uri(),
        state_dir=str(state_dir),
        config=Config(remote_index=RemoteIndexConfig(dir=str(state_dir / "index"))),
        clock=ManualClock(),
    ) as sidecar:
        return sidecar.run_once()


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store; not to be changed."""
    place = tmp_path_factory.mktemp("golden-store")
    report = tier_golden(place / "store", place / "state")
    assert report.ok
    return place / "store"


@pytest.fixture
def store_copy(golden_store: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to be damaged."""
    return Path(shutil.copytree(golden_store, tmp_path / "store"))
