"""What a follower's state directory learns of the store while another broker leads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.tools.golden_copy import copy_log_dir
from tierlog.broker import BrokerAnswer
from tierlog.clock import ManualClock
from tierlog.config import load_config
from tierlog.errors import RemoteStorageError
from tierlog.log.checkpoint import TopicPartition
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.layout import indexes_key, log_key
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar, TierListener
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


@pytest.mark.parametrize(("gone", "kept"), [((0, 1), (2,)), ((1,), (0, 1, 2)), ((0, 1, 2), ())])
def test_new_leader_forgets_what_the_last_one_has_deleted(
    copied: tuple[RemoteLogSegmentMetadata, ...],
    tmp_path: Path,
    gone: tuple[int, ...],
    kept: tuple[int, ...],
) -> None:
    """Retention deletes from the front; a segment that is missing behind others is a loss."""
    root = tmp_path / "store"
    partition = copied[0].topic_id_partition
    metadata = SqliteRemoteLogMetadataManager(tmp_path / "new-leader.sqlite")
    learner = StoreLearner(open_store(root.as_uri()), metadata)
    assert learner.follow(partition)
    for row in gone:
        for key in (indexes_key(copied[row]), log_key(copied[row])):
            (root / key).unlink()
    learner.take_over([partition], lambda _: None)
    assert metadata.list(partition) == tuple(copied[row] for row in kept)
    metadata.close()


class LedByFirst:
    """Stands for a broker that says that broker 1 leads every partition."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        answer = BrokerAnswer(
            leader_id=1, leader_epoch=9, last_stable_offset=480, compacted=False, replica_count=2
        )
        return dict.fromkeys(partitions, answer)

    def dynamic_settings(self, broker_id: int) -> None:
        return None


class OneInterval:
    """Ends a run after one interval, in which `during` runs. It does not wait for the hour that
    an interval takes, so no task runs again unless the look asks for that."""

    def __init__(self, sidecar: Sidecar, during: Callable[[], object]) -> None:
        self._manager = sidecar.manager
        self._during: Callable[[], object] | None = during

    def wait(self, timeout: float | None = None) -> bool:
        assert self._manager.wait_until_idle()
        during, self._during = self._during, None
        if during is None:
            return True
        during()
        return False


def index_files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*Index") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("keeps_files", [True, False])
def test_running_follower_knows_new_segments_after_one_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_files: bool
) -> None:
    monkeypatch.setattr("tierlog.sidecar.sidecar.BrokerClient", LedByFirst)
    first = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    second = tmp_path / "disk2"
    shutil.copytree(first, second)
    properties = (second / "meta.properties").read_text()
    (second / "meta.properties").write_text(properties.replace("node.id=1", "node.id=2"))
    folders = [tmp_path / "index-1", tmp_path / "index-2"]

    def sidecar_of(log_dir: Path, index_dir: Path) -> Sidecar:
        given = {
            "remote.log.manager.task.interval.ms": "3600000",
            "tierlog.bootstrap.servers": "broker:9092",
        }
        if keeps_files:
            given["tierlog.remote.index.dir"] = str(index_dir)
        return Sidecar(
            [str(log_dir)],
            (tmp_path / "store").as_uri(),
            state_dir=str(tmp_path / f"state-{log_dir.name}"),
            config=load_config(properties=given),
        )

    with sidecar_of(first, folders[0]) as leader, sidecar_of(second, folders[1]) as follower:
        follower.run(OneInterval(follower, leader.run_once), TierListener())
        (partition,) = leader.metadata.partitions()
        copied = leader.metadata.list(partition)
        assert len(copied) == 3
        assert [one.segment_id for one in follower.metadata.list(partition)] == [
            one.segment_id for one in copied
        ]
        assert index_files(folders[0]) == index_files(folders[1])
        assert bool(index_files(folders[0])) is keeps_files
