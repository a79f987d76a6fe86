"""One log over a directory and a store: every record once, wherever the border is, or moves to."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import tierlog
from tests.tiering.hosts import GoldenLog
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError, GapError, OutOfRangeError
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.open import open_reader
from tierlog.reader.store_reader import StoreReader
from tierlog.reader.tiered_reader import TieredReader
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.bucket import bucket_metadata
from tierlog.remote.segment.layout import claim_cluster
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.manager import RemoteLogManager

TOPIC = "codec-none"


class Both:
    """A golden partition, tiered, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.log = GoldenLog(folder, f"{TOPIC}-0")
        self.logs = str(self.log.directory.parent)
        self.truth = list(records_of(LocalReader(open_log_dir(self.logs)).read(TOPIC, 0, 0)))
        (folder / "store").mkdir()
        self.url = (folder / "store").as_uri()
        store = open_store(self.url)
        claim_cluster(store, "a-cluster")
        manager = RemoteLogManager(
            ObjectStorageManager(store),
            InMemoryRemoteLogMetadataManager(),
            broker_id=1,
            clock=ManualClock(),
        )
        manager.become_leader(self.log.partition, 4, self.log)
        manager.run_until_idle()
        manager.close()
        self.bases = [one.base_offset for one in self.log.log.segments]

    def delete_below(self, offset: int) -> None:
        self.log.delete_local_segments(offset)


def records_of(pieces: object) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (one.offset, one.key, one.value)
        for piece in pieces  # type: ignore[attr-defined]
        for one in piece.records()
    ]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


def test_every_record_once_wherever_the_border_is(both: Both) -> None:
    for border in both.bases:
        both.delete_below(border)
        reader = open_reader(both.logs, store=both.url)
        assert reader.bounds(TOPIC, 0) == (0, both.truth[-1][0] + 1)
        for start in (0, border - 1, border, border + 1, 650):
            for end in (None, border, border + 5, 700):
                expected = [
                    row for row in both.truth if row[0] >= start and (end is None or row[0] < end)
                ]
                assert records_of(reader.read(TOPIC, 0, start, end)) == expected
        (summary,) = reader.partitions()
        assert summary.log_start_offset == 0
        assert len(reader.segments(TOPIC, 0)) == summary.segment_count


def test_the_border_moves_while_it_is_read(both: Both) -> None:
    pieces = tierlog.read(both.logs, TOPIC, 0, store=both.url)
    seen = records_of([next(pieces)])
    both.delete_below(both.bases[-1])
    seen += records_of(pieces)
    assert seen == both.truth


class WatchedReader(LocalReader):
    """Counts how often it is looked where the directory begins, and where it ends."""

    looks = scans = 0

    def start_offset(self, topic: str, partition: int) -> int | None:
        self.looks += 1
        return super().start_offset(topic, partition)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        self.scans += 1
        return super().bounds(topic, partition)


def test_the_directory_is_looked_at_where_a_tier_ends_not_for_each_piece(both: Both) -> None:
    both.delete_below(both.bases[2])
    opened = open_store(both.url)
    remote = StoreReader(ObjectStorageManager(opened), bucket_metadata(opened), fetch_bytes=1)
    local = WatchedReader(open_log_dir(both.logs), fetch_bytes=1)
    pieces = list(TieredReader(local, remote).read(TOPIC, 0, 0))
    assert len(pieces) > 20
    assert records_of(pieces) == both.truth
    assert (local.looks, local.scans) == (2, 0)


def test_what_was_copied_after_the_reading_began(both: Both, tmp_path: Path) -> None:
    """The store is looked at again when the directory has lost what was not in it."""
    store = Path(both.url.removeprefix("file://"))
    later = [one for base in both.bases[1:] for one in store.rglob(f"{base:020d}-*")]
    for number, path in enumerate(later):
        path.rename(tmp_path / str(number))
    pieces = tierlog.read(both.logs, TOPIC, 0, store=both.url)
    seen = records_of([next(pieces)])
    for number, path in enumerate(later):
        (tmp_path / str(number)).rename(path)
    both.delete_below(both.bases[-1])
    assert seen + records_of(pieces) == both.truth


def test_a_log_whose_start_was_deleted(both: Both) -> None:
    """Nothing is missing where neither tier has anything before."""
    store = Path(both.url.removeprefix("file://"))
    for path in store.rglob("0*-*"):
        path.unlink()
    both.delete_below(both.bases[1])
    pieces = tierlog.read(both.logs, TOPIC, 0, store=both.url)
    assert records_of(pieces) == [row for row in both.truth if row[0] >= both.bases[1]]


def test_a_hole_between_the_tiers_is_an_error(both: Both) -> None:
    both.delete_below(both.bases[-1])
    reader = open_reader(both.logs, store=both.url)
    lost = both.bases[-2]
    for path in Path(both.url.removeprefix("file://")).rglob(f"{lost:020d}-*"):
        os.unlink(path)
    reader = open_reader(both.logs, store=both.url)
    with pytest.raises(
        GapError, match=rf"offsets {lost} to {both.bases[-1] - 1} are in no segment"
    ):
        records_of(reader.read(TOPIC, 0, 0))
    reader = open_reader(both.logs, store=both.url, on_gap="skip")
    rest = [row for row in both.truth if not lost <= row[0] < both.bases[-1]]
    assert records_of(reader.read(TOPIC, 0, 0)) == rest


def test_offsets_by_time_over_both(both: Both) -> None:
    whole = LocalReader(open_log_dir(both.logs))
    times = [one.timestamp_ms for piece in whole.read(TOPIC, 0, 0) for one in piece.records()]
    expected = {at: whole.offset_for_timestamp(TOPIC, 0, at) for at in times[::31]}
    expected[max(times) + 1] = None
    for border in both.bases[1:]:
        both.delete_below(border)
        reader = open_reader(both.logs, store=both.url)
        for at, offset in expected.items():
            assert reader.offset_for_timestamp(TOPIC, 0, at) == offset


def test_in_an_event_loop(both: Both) -> None:
    both.delete_below(both.bases[2])

    async def main() -> list[tuple[int, bytes | None, bytes | None]]:
        seen = []
        async for piece in tierlog.read_async(both.logs, TOPIC, 0, 10, 600, store=both.url):
            seen += records_of([piece])
        return seen

    assert asyncio.run(main()) == [row for row in both.truth if 10 <= row[0] < 600]


def test_what_only_one_of_them_has(both: Both, tmp_path: Path) -> None:
    reader = open_reader(both.logs, store=both.url)
    with pytest.raises(OutOfRangeError):
        records_of(reader.read("unknown", 0, 0))
    for path in both.log.directory.glob("0*"):
        path.unlink()
    only_remote = records_of(open_reader(both.logs, store=both.url).read(TOPIC, 0, 0))
    assert only_remote == [row for row in both.truth if row[0] < both.bases[-1]]
    with pytest.raises(ConfigError, match="a store beside a store"):
        open_reader(both.url, store=both.url)
