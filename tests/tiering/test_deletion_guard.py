"""Retention that would delete most of an archive stops before it deletes anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.tiering.hosts import GoldenLog
from tierlog.clock import ManualClock
from tierlog.config import RemoteLogConfig
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import ManagerListener
from tierlog.tiering.task_pool import TaskFailure

PARTITIONS = ("epochs-0", "codec-none-0", "orders.eu-west_1-0")
PASS_MS = 60_000


@dataclass
class Told(ManagerListener):
    failures: list[str] = field(default_factory=list)

    def on_task_failure(self, failure: TaskFailure) -> None:
        self.failures.append(str(failure.error))


class Archive:
    """The golden partitions in a store, under a manager that is run by hand."""

    def __init__(self, folder: Path, max_ratio: float) -> None:
        (folder / "store").mkdir()
        self.store = open_store((folder / "store").as_uri())
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.clock = ManualClock()
        self.told = Told()
        self.manager = RemoteLogManager(
            ObjectStorageManager(self.store),
            self.metadata,
            broker_id=1,
            clock=self.clock,
            options=ManagerOptions(
                config=RemoteLogConfig(retention_max_deleted_ratio=max_ratio), listener=self.told
            ),
        )
        self.logs = [GoldenLog(folder / "logs", name) for name in PARTITIONS]
        for log in self.logs:
            self.manager.become_leader(log.partition, 9, log)
        self.run()
        self.sizes = {log.partition.topic: self.segments(log) for log in self.logs}

    def run(self) -> None:
        self.clock.advance(PASS_MS)
        self.manager.run_until_idle()

    def segments(self, log: GoldenLog) -> list[int]:
        """Sizes of the archived segments, the oldest first."""
        found = sorted(self.metadata.list(log.partition), key=lambda one: one.start_offset)
        return [one.segment_size_bytes for one in found]

    def keep_newest(self, *topics: str) -> float:
        """Retention of these topics leaves the newest archived segment; the part that goes."""
        gone = 0
        for log in self.logs:
            *old, newest = self.sizes[log.partition.topic]
            if log.partition.topic in topics:
                local = sum(one.size_bytes for one in log.log.segments[-1:])
                log.configure(retention_bytes=newest + local)
                gone += sum(old)
        return gone / sum(map(sum, self.sizes.values()))


def test_the_golden_archive_has_several_segments_of_each(tmp_path: Path) -> None:
    archive = Archive(tmp_path, 0.5)
    assert all(len(sizes) >= 2 for sizes in archive.sizes.values()), archive.sizes
    assert archive.told.failures == []


def test_most_of_the_archive_goes_only_when_it_is_allowed(tmp_path: Path) -> None:
    """Each partition keeps a segment: together they would lose more than the ratio."""
    archive = Archive(tmp_path, 0.5)
    part = archive.keep_newest(*(log.partition.topic for log in archive.logs))
    assert 0.5 < part < 1
    archive.run()
    assert {log.partition.topic: archive.segments(log) for log in archive.logs} == archive.sizes
    assert [log.starts for log in archive.logs] == [[], [], []]
    (failure,) = archive.told.failures
    total = sum(map(sum, archive.sizes.values()))
    assert f"retention would delete {round(part * total)} of the archive's {total} bytes" in failure
    assert "epochs-0 (2 of 3 segments, 45411 of 68973 bytes)" in failure
    assert "--allow-deletion" in failure
    archive.run()
    assert len(archive.told.failures) == 2
    archive.manager.set_max_deleted_ratio(part)
    archive.run()
    assert [len(archive.segments(log)) for log in archive.logs] == [1, 1, 1]
    assert len(archive.told.failures) == 2


def test_a_part_of_the_archive_goes_as_retention_says(tmp_path: Path) -> None:
    archive = Archive(tmp_path, 0.5)
    part = archive.keep_newest("epochs")
    assert 0 < part < 0.5
    archive.run()
    assert len(archive.segments(archive.logs[0])) == 1
    assert archive.told.failures == []


@pytest.mark.parametrize("max_ratio", [0.5, 1.0])
def test_all_of_a_partition_goes_only_when_everything_is_allowed(
    tmp_path: Path, max_ratio: float
) -> None:
    """Also when it is less than the ratio of the whole archive."""
    archive = Archive(tmp_path, max_ratio)
    log = archive.logs[0]
    assert sum(archive.sizes["epochs"]) < sum(map(sum, archive.sizes.values())) / 2
    log.configure(retention_ms=1)
    archive.run()
    if max_ratio == 1:
        assert archive.segments(log) == []
        assert archive.told.failures == []
        return
    assert archive.segments(log) == archive.sizes["epochs"]
    (failure,) = archive.told.failures
    assert "the whole archive of epochs-0 (3 of 3 segments" in failure


def test_deletions_that_were_decided_before_go_on(tmp_path: Path) -> None:
    """The log start has moved durably: no reader reaches these records any more."""
    archive = Archive(tmp_path, 0.5)
    log = archive.logs[0]
    log.log_start_offset = log.log.segments[-1].base_offset
    log.changed()
    archive.run()
    assert archive.segments(log) == []
    assert archive.told.failures == []
