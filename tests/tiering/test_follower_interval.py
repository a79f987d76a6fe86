"""A manager that follows a partition, beside the one that leads it, over the same metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiering.hosts import GoldenLog
from tierlog.clock import ManualClock
from tierlog.config import RemoteIndexConfig
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager

INTERVAL_MS = ManagerOptions().config.manager_task_interval_ms
# A task pool rounds the times of idle tasks up to 1/256 of the interval.
LONGEST_INTERVAL_MS = INTERVAL_MS + INTERVAL_MS // 256


def index_files(folder: Path) -> dict[str, bytes]:
    """The remote index files below `folder`, by path."""
    found = (path for path in folder.rglob("*Index") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("keeps_files", [True, False])
def test_running_follower_knows_new_segments_after_one_interval(
    tmp_path: Path, keeps_files: bool
) -> None:
    (tmp_path / "store").mkdir()
    storage = ObjectStorageManager(open_store((tmp_path / "store").as_uri()))
    metadata = SqliteRemoteLogMetadataManager(tmp_path / "metadata.sqlite")
    clock = ManualClock()
    folders = [tmp_path / "index-1", tmp_path / "index-2"]
    logs = [GoldenLog(tmp_path / name, "epochs-0") for name in ("leader", "follower")]
    leader, follower = (
        RemoteLogManager(
            storage,
            metadata,
            broker_id=number,
            clock=clock,
            options=ManagerOptions(
                index_config=RemoteIndexConfig(dir=str(folder) if keeps_files else None)
            ),
        )
        for number, folder in enumerate(folders, 1)
    )
    follower.become_follower(logs[1].partition, 9, logs[1])
    follower.run_until_idle()
    assert logs[1].highest_remote_offset == -1
    leader.become_leader(logs[0].partition, 9, logs[0])
    leader.run_until_idle()
    clock.advance(LONGEST_INTERVAL_MS)
    assert follower.follower_pool.run_due()
    assert not follower.follower_pool.run_due()
    assert logs[1].highest_remote_offset == logs[0].highest_remote_offset > 0
    assert index_files(folders[0]) == index_files(folders[1])
    assert bool(index_files(folders[0])) is keeps_files
    for manager in (leader, follower):
        manager.close()
    metadata.close()
