"""One segment from a broker's directory into a store: what is accepted, refused and left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.tiering.copying import FailingStore, Tier, three_batches
from tierlog._core import crc32c
from tierlog.clock import ManualClock
from tierlog.errors import CorruptDataError
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment import scan_segment, scan_segment_in_parts
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.bucket import describe_segments, list_segments
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import indexes_key, log_key
from tierlog.remote.segment.log_index import decode_remote_log_index
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import (
    CopyFailedError,
    PreparedSegment,
    SegmentCopier,
    SegmentRefusedError,
    prepare,
)

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path / "store")


@pytest.fixture(scope="module")
def log() -> PartitionLog:
    return open_log_dir(str(DATA_DIR / "clean" / "disk1")).partition("codec-none", 0)


def prepared(log: PartitionLog, segment: SegmentFiles) -> PreparedSegment:
    with segment.open() as handle:
        return prepare(log, segment, handle)


def test_objects_hold_kafkas_bytes_and_describe_themselves(tier: Tier, log: PartitionLog) -> None:
    segment = log.rolled_segments[0]
    finished = tier.copy(log, segment)
    assert finished.state is FINISHED
    assert tier.states() == [FINISHED]
    assert tier.keys() == sorted([log_key(finished), indexes_key(finished)])
    original = Path(segment.log_path).read_bytes()
    assert bytes(tier.storage.fetch_log_segment(finished, 0)) == original
    assert finished.log_crc32c == crc32c(original)
    assert (
        finished.segment_size_bytes
        == len(original)
        == sum(size for _, size in finished.bytes_per_epoch or ())
    )
    (found,) = list_segments(tier.store)
    assert found.segment_id == finished.segment_id
    assert found.leader_epochs == finished.leader_epochs
    entries = decode_remote_log_index(
        tier.storage.fetch_indexes(finished, [IndexKind.REMOTE_LOG])[IndexKind.REMOTE_LOG]
    )
    assert int(entries.first_offset[0]) == segment.base_offset
    assert int(entries.last_offset[-1]) == finished.end_offset
    assert int(entries.data_length.sum()) == len(original)


def test_every_flipped_bit_is_found_and_placed(tmp_path: Path) -> None:
    own, segment, data = three_batches(tmp_path)
    prepared(own, segment)
    starts = scan_segment(data).position.tolist()
    path = Path(segment.log_path)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(flipped)
        with pytest.raises(SegmentRefusedError) as caught:
            prepared(own, segment)
        start = max(start for start in starts if start <= bit // 8)
        end = min([start_ for start_ in starts if start_ > start], default=len(data))
        # A wrong base offset may show first where the batch before or after no longer meets it.
        reach = range(max(0, start - 61), min(end + 61, len(data)) + 1)
        assert any(position in reach for position in positions(caught.value)), (bit, caught.value)
        assert str(path) in str(caught.value)


def positions(error: SegmentRefusedError) -> Iterator[int]:
    for finding in error.findings:
        for match in re.finditer(r"byte (\d+)", finding):
            yield int(match[1])


def test_a_segment_of_too_many_batches_is_looked_at_in_parts(
    tier: Tier, log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same checks, metadata and entries, whatever the table that is kept."""
    monkeypatch.setattr("tierlog.tiering.copy.PART_BYTES", 3000)
    segment = log.rolled_segments[0]
    with segment.open() as handle:
        ready = prepare(log, segment, handle, max_table_rows=3)
        assert not ready.rebuilt.table_complete
        assert len(ready.rebuilt.table) == 0
        finished = tier.copier.copy(ready, handle).metadata
    whole = tier.copy(log, segment)
    assert finished.log_crc32c == whole.log_crc32c
    assert finished.bytes_per_epoch == whole.bytes_per_epoch
    first, second = describe_segments(tier.store)
    assert (first.batch_count, first.record_count) == (second.batch_count, second.record_count)
    sections = tier.storage.fetch_indexes(finished, [IndexKind.REMOTE_LOG])
    entries = decode_remote_log_index(sections[IndexKind.REMOTE_LOG])
    assert len(entries) > 1
    assert int(entries.data_length.sum()) == finished.segment_size_bytes
    assert int(entries.last_offset[-1]) == finished.end_offset
    damaged = replace(segment, next_base_offset=finished.end_offset)
    with damaged.open() as handle, pytest.raises(SegmentRefusedError, match="last_offset"):
        prepare(log, damaged, handle, max_table_rows=3)


def test_a_file_cut_between_the_two_looks_is_refused(
    log: PartitionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of too many batches is read twice: the second look must reach the same end."""
    source = log.rolled_segments[0]
    path = tmp_path / Path(source.log_path).name
    path.write_bytes(Path(source.log_path).read_bytes())
    segment = replace(source, log_path=str(path))

    def cut_first(*arguments: Any, **settings: Any) -> Iterator[Any]:
        path.write_bytes(path.read_bytes()[: int(scan_segment(path).position[4])])
        return scan_segment_in_parts(*arguments, **settings)

    monkeypatch.setattr("tierlog.tiering.copy.scan_segment_in_parts", cut_first)
    with segment.open() as handle, pytest.raises(SegmentRefusedError, match="when read again"):
        prepare(log, segment, handle, max_table_rows=3)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    own, segment, data = three_batches(tmp_path)
    path = Path(segment.log_path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(SegmentRefusedError):
            prepared(own, segment)


def test_zeros_after_the_last_batch_are_refused(tmp_path: Path) -> None:
    own, segment, data = three_batches(tmp_path)
    Path(segment.log_path).write_bytes(data + bytes(4096))
    with pytest.raises(SegmentRefusedError, match=r"zero_tail at byte \d+"):
        prepared(own, segment)


def test_a_damaged_index_beside_a_good_log_is_not_tiered(
    tier: Tier, broker_copy: list[str]
) -> None:
    log = open_log_dir(broker_copy[0]).partition("codec-none", 0)
    segment = log.rolled_segments[0]
    assert segment.offset_index_path is not None
    Path(segment.offset_index_path).write_bytes(b"\xff" * 64)
    finished = tier.copy(log, segment)
    section = tier.storage.fetch_indexes(finished, [IndexKind.OFFSET])[IndexKind.OFFSET]
    assert bytes(section[:8]) != b"\xff" * 8


def test_a_file_that_changes_after_its_scan_leaves_nothing(tier: Tier, tmp_path: Path) -> None:
    own, segment, data = three_batches(tmp_path)
    with segment.open() as handle:
        ready = prepare(own, segment, handle)
        changed = bytearray(data)
        changed[-1] ^= 1
        Path(segment.log_path).write_bytes(changed)
        with pytest.raises(CorruptDataError, match="changed_during_copy"):
            tier.copier.copy(ready, handle)
    assert tier.keys() == []
    assert tier.states() == []


def test_a_renamed_file_is_still_copied_whole(tier: Tier, tmp_path: Path) -> None:
    own, segment, data = three_batches(tmp_path)
    with segment.open() as handle:
        path = Path(segment.log_path)
        path.rename(path.with_name(path.name + ".deleted"))
        finished = tier.copier.copy(prepare(own, segment, handle), handle).metadata
    assert bytes(tier.storage.fetch_log_segment(finished, 0)) == data


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("verb", ["put_stream", "put_bytes", "head"])
def test_a_store_that_fails_leaves_nothing_behind(
    verb: str, after: bool, log: PartitionLog, tmp_path: Path
) -> None:
    real = open_store((tmp_path / "store").as_uri())
    tier = Tier(tmp_path / "store", FailingStore(real, verb, 1, after=after))
    with pytest.raises(CopyFailedError):
        tier.copy(log, log.rolled_segments[0])
    assert list(real.list()) == []
    assert tier.states() == []
    again = tier.copy(log, log.rolled_segments[0])
    assert again.state is FINISHED


class Interrupted(BaseException):
    """A process that ends right here."""


@pytest.mark.parametrize("whole", [False, True])
def test_an_interrupted_copy_is_settled_by_the_next_run(
    whole: bool, log: PartitionLog, tmp_path: Path
) -> None:
    segment = log.rolled_segments[0]
    seen = 0

    def gate(size_bytes: int) -> None:
        nonlocal seen
        seen += size_bytes
        if not whole or seen > segment.size_bytes:
            raise Interrupted

    tier = Tier(tmp_path / "store")
    with pytest.raises(Interrupted):
        tier.copy(log, segment, gate)
    (partition,) = tier.metadata.partitions()
    (started,) = tier.metadata.list(partition)
    assert started.state is STARTED
    if whole:
        # The .log got through, the .indexes did not: nobody may take that for a segment.
        assert tier.keys() == [log_key(started)]
    assert tier.copier.resume(started) is None
    assert tier.keys() == []
    assert tier.states() == []


def test_a_copy_whose_last_word_got_lost_is_finished_by_the_next_run(
    log: PartitionLog, tmp_path: Path
) -> None:
    tier = Tier(tmp_path / "store")
    segment = log.rolled_segments[0]
    finished = tier.copy(log, segment)
    forgetful = InMemoryRemoteLogMetadataManager()
    forgetful.add(replace(finished, state=STARTED))
    copier = SegmentCopier(tier.storage, forgetful, clock=ManualClock(), broker_id=1)
    (partition,) = forgetful.partitions()
    settled = copier.resume(forgetful.list(partition)[0])
    assert settled is not None
    assert settled.state is FINISHED
    assert forgetful.list(partition)[0].state is FINISHED
