"""ListOffsets where the tier lacks offsets: an answer never passes over a record it cannot know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fetch.tier import FIRST_TIMESTAMP_MS, PARTITION, Tier, made_batch, tier_only
from tierlog.fetch.offsets import OffsetAnswer, SpecialTimestamp
from tierlog.fetch.setup import open_fetcher
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.gaps import OnGap
from tierlog.reader.types import FetchError, FetchView
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.types import TopicIdPartition

SEGMENTS, RECORDS = 5, 10
END = SEGMENTS * RECORDS


class Host:
    """A host of one partition."""

    def __init__(self, view: FetchView) -> None:
        self._view = view

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return self._view if partition == PARTITION else None


class Log:
    """Five segments of ten records in the tier, without those of `missing`; `local` more records
    in the directory."""

    def __init__(self, folder: Path, *missing: int, local: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.tier = Tier(folder / "tier")
        for start in range(0, END, RECORDS):
            self.tier.add([made_batch(offset) for offset in range(start, start + RECORDS)])
        kept = [one for number, one in enumerate(self.tier.segments) if number not in missing]
        self.metadata = InMemoryRemoteLogMetadataManager(ready=False)
        self.metadata.load(kept)
        self.metadata.mark_ready()
        end = END + local
        view = tier_only(self.tier, end)
        active = folder / f"{END:020d}.log"
        active.write_bytes(b"".join(made_batch(offset) for offset in range(END, end)))
        self.view = replace(view, local_log_start_offset=END, log=local_log(view.log, active))

    def at(self, timestamp: int, on_gap: OnGap = "fail") -> OffsetAnswer:
        if timestamp >= 0:
            timestamp += FIRST_TIMESTAMP_MS
        storage, metadata = self.tier.storage, self.metadata
        with open_fetcher(Host(self.view), storage, metadata, on_gap=on_gap) as fetcher:
            return fetcher.list_offset_sync(PARTITION, timestamp)


def local_log(log: PartitionLog, path: Path) -> PartitionLog:
    active = SegmentFiles(
        base_offset=END,
        next_base_offset=None,
        log_path=str(path),
        size_bytes=path.stat().st_size,
    )
    (path.parent / "partition.metadata").write_text(f"version: 0\ntopic_id: {log.topic_id}\n")
    return replace(log, segments=(active,), directory=str(path.parent))


def require_gap(answer: OffsetAnswer, first: int, last: int) -> None:
    assert (answer.error, answer.offset) == (FetchError.KAFKA_STORAGE_ERROR, -1)
    assert f"offsets {first} to {last} are in no segment" in answer.text


@pytest.mark.parametrize("local", [0, 10])
def test_time_in_or_right_after_missing_segments_is_an_error(tmp_path: Path, local: int) -> None:
    log = Log(tmp_path, 1, 2, local=local)
    for time in (10, 20, 29, 30):
        require_gap(log.at(time), 10, 29)
        assert log.at(time, "skip").offset == 30
    for time in (0, 5, 9, 31, 45, *range(50, 50 + local)):
        assert log.at(time).offset == time
    assert log.at(50 + local) == OffsetAnswer()


def test_missing_segments_at_the_beginning_of_the_log(tmp_path: Path) -> None:
    log = Log(tmp_path, 0)
    for time in (0, 9, 10):
        require_gap(log.at(time), 0, 9)
        assert log.at(time, "skip").offset == 10
    assert log.at(11).offset == 11
    assert log.at(SpecialTimestamp.EARLIEST).offset == 0
    log.view = replace(log.view, log_start_offset=10)
    assert log.at(0).offset == 10


@pytest.mark.parametrize("local", [0, 10])
def test_missing_segments_at_the_end_of_the_tier(tmp_path: Path, local: int) -> None:
    log = Log(tmp_path, 3, 4, local=local)
    assert log.at(29).offset == 29
    for time in (30, 45, 50):
        require_gap(log.at(time), 30, 49)
        assert log.at(time, "skip").offset == (50 if local else -1)
    if local:
        assert log.at(51).offset == 51


def test_largest_time_may_be_missing(tmp_path: Path) -> None:
    newest = SpecialTimestamp.MAX_TIMESTAMP
    log = Log(tmp_path / "end", 4)
    require_gap(log.at(newest), 40, 49)
    assert log.at(newest, "skip").offset == 39
    assert Log(tmp_path / "middle", 2).at(newest).offset == 49
    assert Log(tmp_path / "local", 4, local=2).at(newest).offset == 51
    require_gap(Log(tmp_path / "one", 4, local=1).at(newest), 40, 49)


def test_names_need_no_record(tmp_path: Path) -> None:
    log = Log(tmp_path, 0, 2)
    for name, offset in ((SpecialTimestamp.LATEST, 50), (SpecialTimestamp.EARLIEST, 0)):
        assert log.at(name).offset == offset
