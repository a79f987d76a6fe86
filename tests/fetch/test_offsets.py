"""Offsets by time and by name, against every record of the golden logs, across every border."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fetch.two_tiers import TIERED, TwoTiers, boundaries
from tests.fetch.views import oracle_batches
from tests.oracle import batches as oracle
from tierlog.fetch.offsets import OffsetReader, SpecialTimestamp
from tierlog.log.log_dir import PartitionLog
from tierlog.log.same_log import VanishedError
from tierlog.reader.memory import FetchMemory
from tierlog.reader.positions import IndexFilesOf
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import FetchError, IsolationLevel
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.index_files.lookups import index_views
from tierlog.remote.segment.indexes import IndexKind


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    yield made
    made.close()


def times(log: PartitionLog, start: int) -> list[tuple[int, int]]:
    """(offset, time) of every record from `start` on, control records too."""
    return [
        (record.offset, record.timestamp_ms)
        for _, batch in oracle_batches(log)
        for record in oracle.records(batch)
        if record.offset >= start
    ]


def first_late(rows: list[tuple[int, int]], timestamp_ms: int) -> tuple[int, int]:
    return next((row for row in rows if row[1] >= timestamp_ms), (-1, -1))


def written_index_files(tiers: TwoTiers, folder: Path) -> IndexFilesOf | None:
    """The remote index files of all partitions, as a node writes them."""
    for partition in tiers.metadata.partitions():
        with closing(RemoteIndexFiles(folder, partition, rotate_bytes=500, rotate_ms=-1)) as files:
            for segment in tiers.metadata.list(partition):
                kind = IndexKind.REMOTE_LOG
                files.append(segment, tiers.storage.fetch_indexes(segment, [kind])[kind])
    return index_views(folder)


@pytest.mark.parametrize("way", ["cache", "index files", "scan"])
@pytest.mark.parametrize(("data_set", "name"), TIERED)
def test_times_around_every_record(
    tiers: TwoTiers, tmp_path: Path, data_set: str, name: str, way: str
) -> None:
    partition = tiers.add(data_set, name)
    whole = tiers.views[partition]
    rows = times(whole.log, whole.log_start_offset)
    cached = way == "cache"
    remote = tiers.remote
    if not cached:
        remote = RemoteBatchReader(
            tiers.storage,
            tiers.metadata,
            memory=FetchMemory(64 << 20),
            index_files=written_index_files(tiers, tmp_path) if way == "index files" else None,
        )
    reader = OffsetReader(remote, tiers.metadata)
    asked = sorted({at + by for _, at in rows for by in (-1, 0, 1)} | {0, 2**62})
    for number, border in enumerate(boundaries(whole)):
        tiers.views[partition] = whole
        tiers.drop_local(partition, max(border, whole.log_start_offset))
        view = tiers.views[partition]
        for timestamp_ms in asked[number :: 7 if cached else 23]:
            found = reader.look_up(view, partition, timestamp_ms)
            expected = first_late(rows, timestamp_ms)
            assert (found.offset, found.timestamp_ms) == expected, (border, timestamp_ms)
            if found.offset >= 0 and view.log.leader_epochs is not None:
                assert found.leader_epoch == view.log.leader_epochs.epoch_for(found.offset)
        newest = reader.look_up(view, partition, SpecialTimestamp.MAX_TIMESTAMP)
        largest = max((at for _, at in rows), default=-1)
        assert (newest.offset, newest.timestamp_ms) == first_late(rows, largest)


def test_the_names(tiers: TwoTiers) -> None:
    partition = tiers.add("clean", "transactions-0")
    whole = tiers.views[partition]
    border = whole.log.segments[2].base_offset
    tiers.drop_local(partition, border)
    view = replace(tiers.views[partition], high_watermark=whole.high_watermark - 1, leader_epoch=9)
    reader = OffsetReader(tiers.remote, tiers.metadata)

    def offset(name: int, **options: object) -> tuple[int, int]:
        found = reader.look_up(view, partition, name, **options)  # type: ignore[arg-type]
        return found.offset, found.leader_epoch

    active = whole.log.segments[-1].base_offset
    assert offset(-1) == (view.high_watermark, 9)
    assert offset(-1, isolation_level=IsolationLevel.READ_COMMITTED) == (
        view.last_stable_offset,
        9,
    )
    assert offset(-1, follower=True) == (view.log_end_offset, 9)
    assert offset(-2) == (0, 0)
    assert offset(-4) == (border, 0)
    assert offset(-5)[0] == active - 1
    assert offset(-6)[0] == active
    for unknown in (-7, -(2**63)):
        answer = reader.look_up(view, partition, unknown)
        assert (answer.offset, answer.error) == (-1, FetchError.UNSUPPORTED_VERSION)
        assert str(unknown) in answer.text


def test_what_is_above_the_readers_end_is_not_told(tiers: TwoTiers) -> None:
    partition = tiers.add("clean", "codec-none-0")
    view = replace(tiers.views[partition], high_watermark=100, last_stable_offset=50)
    reader = OffsetReader(tiers.remote, tiers.metadata)
    rows = dict(times(view.log, 0))
    for limit, isolation in ((100, 0), (50, 1)):
        level = IsolationLevel(isolation)
        below = reader.look_up(view, partition, rows[limit - 1], isolation_level=level)
        assert 0 <= below.offset < limit
        above = reader.look_up(view, partition, max(rows.values()), isolation_level=level)
        assert (above.offset, above.timestamp_ms) == (-1, -1)


def test_without_a_tier_and_while_nothing_is_known_of_it(tiers: TwoTiers) -> None:
    partition = tiers.add("clean", "codec-none-0")
    whole = tiers.views[partition]
    plain = replace(whole, tiered=False)
    nothing = OffsetReader()
    for name in (-5, -6):
        assert nothing.look_up(plain, partition, name).offset == -1
    empty = OffsetReader(tiers.remote, type(tiers.metadata)())
    assert empty.look_up(whole, partition, -5).offset == -1
    assert empty.look_up(whole, partition, -6).offset == whole.log_start_offset
    moved = replace(whole, local_log_start_offset=whole.log.segments[1].base_offset)
    assert empty.look_up(moved, partition, -6).offset == -1, "not known yet"


def test_a_deposed_leaders_end_is_cut_to_the_lineage(tiers: TwoTiers) -> None:
    """What an earlier leader tiered beyond where the next one began is not this log's."""
    partition = tiers.add("clean", "epochs-0")
    whole = tiers.views[partition]
    lineage = whole.log.leader_epochs
    assert lineage is not None
    cut = type(lineage)(((0, 0), (5, 100)))  # type: ignore[arg-type]
    view = replace(whole, log=replace(whole.log, leader_epochs=cut))
    reader = OffsetReader(tiers.remote, tiers.metadata)
    found = reader.look_up(view, partition, -5)
    assert (found.offset, found.leader_epoch) == (99, 0)


@pytest.mark.parametrize("name", ["times-shuffled-0", "transactions-0", "epochs-0"])
def test_the_newest_record_that_a_reader_may_see(tiers: TwoTiers, name: str) -> None:
    """Wherever what it may see ends, in the middle of segments too."""
    partition = tiers.add("clean", name)
    whole = tiers.views[partition]
    tiers.drop_local(partition, boundaries(whole)[2])
    rows = times(whole.log, whole.log_start_offset)
    ends = [one.base_offset for _, one in oracle_batches(whole.log)]
    for end in [one for one in ends if one > boundaries(whole)[2]][::3]:
        view = replace(tiers.views[partition], high_watermark=end, last_stable_offset=end)
        reader = OffsetReader(tiers.remote, tiers.metadata)
        found = reader.look_up(view, partition, SpecialTimestamp.MAX_TIMESTAMP)
        visible = [row for row in rows if row[0] < end]
        newest = max(visible, key=lambda row: (row[1], -row[0]))
        assert (found.offset, found.timestamp_ms) == newest, end


def test_a_segment_that_goes_meanwhile_asks_for_another_look(tiers: TwoTiers) -> None:
    partition = tiers.add("clean", "codec-none-0")
    view = tiers.views[partition]
    first = view.log.segments[0]
    gone = replace(
        view, log=replace(view.log, segments=(replace(first, log_path=first.log_path + "x"),))
    )
    with pytest.raises(VanishedError):
        OffsetReader().look_up(gone, partition, 0)
