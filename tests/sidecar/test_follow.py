"""What a follower's state directory learns of the store while another broker leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.errors import RemoteStorageError
from tierlog.remote.layout import indexes_key, log_key
from tierlog.remote.metadata import RemoteLogSegmentMetadata
from tierlog.remote.metadata_sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.store import open_store
from tierlog.sidecar import Sidecar
from tierlog.sidecar.learn import StoreLearner


@pytest.fixture
def copied(tmp_path: Path) -> tuple[RemoteLogSegmentMetadata, ...]:
    """The three segments that a leader has copied to the folder `store`."""
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    url, state_dir = (tmp_path / "store").as_uri(), str(tmp_path / "state")
    with Sidecar([str(log_dir)], url, state_dir=state_dir, clock=ManualClock()) as leader:
        assert leader.run_once().ok
        (partition,) = leader.metadata.partitions()
        return leader.metadata.list(partition)


def test_follower_learns_and_forgets(
    copied: tuple[RemoteLogSegmentMetadata, ...], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    partition = copied[0].topic_id_partition
    metadata = SqliteRemoteLogMetadataManager(tmp_path / "follower.sqlite")
    learner = StoreLearner(open_store(root.as_uri()), metadata)

    def known() -> list[int]:
        return [one.start_offset for one in metadata.list(partition)]

    # A copy under way: its `.log` object is there, its `.indexes` object is not.
    held_back = (root / indexes_key(copied[2])).read_bytes()
    (root / indexes_key(copied[2])).unlink()
    assert learner.follow(partition)
    assert known() == [one.start_offset for one in copied[:2]]
    assert not learner.follow(partition)
    (root / indexes_key(copied[2])).write_bytes(held_back)
    assert learner.follow(partition)
    assert known() == [one.start_offset for one in copied]
    for key in (indexes_key(copied[0]), log_key(copied[0])):
        (root / key).unlink()
    assert learner.follow(partition)
    assert known() == [one.start_offset for one in copied[1:]]
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    with pytest.raises(RemoteStorageError):
        learner.follow(partition)
    assert known() == [one.start_offset for one in copied[1:]]
    metadata.close()
