"""A host for tests of the manager: one partition of the golden logs in a folder of its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR
from tierlog.log.eligibility import StableOffset, StableSource
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.types import TopicIdPartition

__all__ = ["GoldenLog"]

CLEAN = DATA_DIR / "clean"


class GoldenLog:
    """A `LocalLog` over a copy of a golden partition; what it is told is in plain attributes."""

    def __init__(self, folder: Path, name: str, **settings: int | bool | None) -> None:
        (source,) = CLEAN.glob(f"disk*/{name}")
        self.directory = folder / name / name
        shutil.copytree(source, self.directory)
        for beside in source.parent.iterdir():
            if beside.is_file():
                shutil.copy(beside, folder / name)
        self.settings = TopicSettings(**settings)  # type: ignore[arg-type]
        self.highest_remote_offset = -1
        self.log_start_offset = 0
        self.starts: list[int] = []
        self.looks = 0
        self.gone = False
        log = self._list()
        # The broker was stopped in good order: all of it is committed.
        self.high_watermark = log.high_watermark or 0
        self.log_start_offset = log.segments[0].base_offset
        assert log.topic_id is not None
        self.partition = TopicIdPartition(
            topic_id=log.topic_id, topic=log.topic, partition=log.partition
        )
        self._view: LogView | None = None

    @property
    def log(self) -> PartitionLog:
        view = self.view()
        assert view is not None
        return view.log

    def configure(self, **settings: int | bool | None) -> None:
        """Other topic settings from the next look on."""
        self.settings = replace(self.settings, **settings)  # type: ignore[arg-type]
        self._view = None

    def changed(self) -> None:
        """What is on disk has changed."""
        self._view = None

    def view(self) -> LogView | None:
        self.looks += 1
        if self.gone:
            return None
        if self._view is None:
            stable = StableOffset(value=self.high_watermark, source=StableSource.BROKER)
            self._view = LogView(
                log=replace(self._list(), log_start_offset=self.log_start_offset),
                stable=stable,
                log_start_offset=self.log_start_offset,
                topic=self.settings,
            )
        return self._view

    def advance_log_start_offset(self, offset: int) -> None:
        assert offset > self.log_start_offset
        self.log_start_offset = offset
        self.starts.append(offset)
        self._view = None

    def raise_highest_remote_offset(self, offset: int) -> None:
        self.highest_remote_offset = max(self.highest_remote_offset, offset)

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        for segment in self.log.segments:
            end = segment.next_base_offset
            if end is not None and end <= local_log_start_offset:
                for path in self.directory.glob(f"{segment.base_offset:020d}.*"):
                    os.unlink(path)
        self._view = None

    def _list(self) -> PartitionLog:
        listing = open_log_dir(str(self.directory.parent)).listing()
        (log,) = listing.partitions
        return log
