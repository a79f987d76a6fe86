"""What remote reads do when the tier is not what it should be: nothing wrong is ever served."""

from __future__ import annotations

import random
import struct
from itertools import product
from pathlib import Path

import pytest

from tests.fetch.tier import Later, Tier, check, expected, made_batch
from tests.oracle.build import repair_crc
from tests.reader.lineages import lineage_of
from tierlog.clock import ManualClock
from tierlog.errors import (
    CorruptDataError,
    GapError,
    OutOfRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tierlog.reader.memory import FetchMemory
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind, encode_indexes
from tierlog.remote.segment.layout import log_key
from tierlog.remote.segment.log_index import encode_remote_log_index

NO_LIMIT = 2**60
COUNT = 400
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Two segments of 400 batches of about 1 KB, runs of 32 KiB."""
    tier = Tier(tmp_path, remote_index_interval_bytes=32 << 10)
    for start in (0, COUNT):
        tier.add([made_batch(start + one, size=1000) for one in range(COUNT)])
    tier.store.reads.clear()
    return tier


def position_of(tier: Tier, row: int) -> int:
    segment = tier.truth[row].segment
    return sum(len(one.data) for one in tier.truth[:row] if one.segment == segment)


# -- bytes


def test_a_byte_flipped_on_the_way_is_fetched_again(tier: Tier) -> None:
    reader = tier.reader()
    times = [0]

    def flip_once(key: str, _position: int, data: bytes) -> bytes:
        if key.endswith(".log"):
            times[0] += 1
            if times[0] == 1:
                return data[:700] + bytes([data[700] ^ 4]) + data[701:]
        return data

    tier.store.change = flip_once
    read = tier.read(reader, 0, 100)
    check(read, expected(tier.truth, 0, 100, NO_LIMIT, True))
    assert times == [2]


@pytest.mark.parametrize("place", [0, 8, 16, 20, 40, 500])
def test_a_byte_flipped_for_good_is_an_error_that_names_it(tier: Tier, place: int) -> None:
    """Base offset, length, magic, checksum, header, records: before it and after it all is well."""
    row = 123
    key, _ = tier.keys(0)
    tier.store.damage(key, position_of(tier, row) + place, mask=0x10)
    reader = tier.reader()
    for offset in range(100, row):
        read = tier.read(reader, offset, 4000)
        assert read.next_offset <= row
        assert bytes(read.records) == b"".join(
            one.data for one in tier.truth[offset : read.next_offset]
        )
    with pytest.raises(CorruptDataError) as raised:
        tier.read(reader, row, 4000)
    error = raised.value
    assert (error.path, error.position) == (key, position_of(tier, row))
    for offset in range(row + 1, COUNT):
        wanted = expected(tier.truth, offset, 4000, NO_LIMIT, True)
        check(tier.read(reader, offset, 4000), wanted)
    assert error.__context__ is None
    del read
    reader.close()
    assert tier.memory.used_bytes == 0


@pytest.mark.parametrize("row", [0, 1, 57, 200, COUNT - 2, COUNT - 1])
@pytest.mark.parametrize("slow_ms", [0, 2**40])
def test_a_base_offset_that_no_checksum_covers(tier: Tier, row: int, slow_ms: int) -> None:
    """One bit of it flipped, up or down, within the segment or far beyond: its records are never
    taken for others, nor others left out."""
    key, _ = tier.keys(0)
    for bit in (0, 1, 3, 5, 8, 40):
        place, mask = 7 - bit // 8, 1 << bit % 8
        tier.store.damage(key, position_of(tier, row) + place, mask)
        reader = tier.reader(read_ahead=ReadAheadSettings(slow_ms=slow_ms))
        for limit in (0, 2500, 60_000):
            for begin in {0, max(0, row - 40), max(0, row - 1), row, row + 1}:
                offset = begin
                while offset < COUNT:
                    try:
                        read = tier.read(reader, offset, limit)
                    except CorruptDataError:
                        assert offset in (row - 1, row, row + 1)
                        break
                    wanted = tier.truth[offset : read.next_offset]
                    assert bytes(read.records) == b"".join(one.data for one in wanted)
                    offset = read.next_offset
        reader.close()
        tier.store.damage(key, position_of(tier, row) + place, mask)


def test_any_byte_flipped_anywhere_is_never_served(tier: Tier) -> None:
    chance = random.Random(5)
    key, indexes = tier.keys(0)
    sound = {name: tier.store.path(name).read_bytes() for name in (key, indexes)}
    for _ in range(150):
        victim = chance.choice([key, indexes])
        at = chance.randrange(len(sound[victim]))
        tier.store.damage(victim, at, mask=1 << chance.randrange(8))
        reader = tier.reader()
        for offset in chance.sample(range(COUNT), 8):
            limit = chance.choice([0, 3000, 50_000])
            try:
                read = tier.read(reader, offset, limit)
            except CorruptDataError:
                assert victim == key
                continue
            wanted = expected(tier.truth, offset, limit, NO_LIMIT, True)
            data = b"".join(one.data for one in wanted)
            assert read.records
            assert data.startswith(bytes(read.records))
            assert victim == key or data == bytes(read.records)
        reader.close()
        tier.store.path(victim).write_bytes(sound[victim])


def test_a_claim_of_a_gibibyte_is_refused_before_memory_is_taken(tier: Tier) -> None:
    row = 200
    key, _ = tier.keys(0)
    data = bytearray(tier.store.path(key).read_bytes())
    at = position_of(tier, row)
    for claim in (1 << 30, 2**31 - 1, -1, len(data)):
        data[at + 8 : at + 12] = struct.pack(">i", claim)
        tier.store.path(key).write_bytes(data)
        for reader in (tier.reader(), tier.reader()):
            with pytest.raises(CorruptDataError, match=r"bad_length|torn|bad_crc"):
                tier.read(reader, row, 1000)
    assert tier.memory.most_bytes < 1 << 20


def test_a_batch_longer_than_the_memory_is_read_alone(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add([made_batch(0), made_batch(1, size=900_000), made_batch(2)])
    tier.memory = FetchMemory(100_000)
    reader = tier.reader(memory_wait_ms=0)
    read = tier.read(reader, 1, 1 << 20)
    check(read, [tier.truth[1]])
    assert tier.read(reader, 0, 1 << 20).refused
    del read
    check(tier.read(reader, 0, 1 << 20), [tier.truth[0]])


@pytest.mark.parametrize("memory_bytes", [1, 16, 17, 18, 60, 200])
def test_the_smallest_memory_there_is(tier: Tier, memory_bytes: int) -> None:
    """Every batch is larger, and is had alone, after its head."""
    tier.memory = FetchMemory(memory_bytes)
    reader = tier.reader(memory_wait_ms=0)
    for row in (0, 1, len(tier.truth) - 1):
        check(tier.read(reader, tier.truth[row].base_offset), [tier.truth[row]])
    assert tier.memory.used_bytes == 0


# -- objects


def test_a_missing_object_is_a_storage_error_never_out_of_range(tier: Tier) -> None:
    tier.store.delete(tier.keys(0)[0])
    for _ in range(2):
        with pytest.raises(RemoteResourceNotFoundError, match=tier.keys(0)[0]):
            tier.read(tier.reader(), 5)
    reader = tier.reader()
    check(tier.read(reader, COUNT, 0), [tier.truth[COUNT]])


def test_a_short_object_and_an_ignored_range_are_storage_errors(tier: Tier) -> None:
    reader = tier.reader()
    tier.read(reader, 0, 1)
    sound = tier.store.path(tier.keys(0)[0]).read_bytes()
    tier.store.change = lambda _key, _position, data: data[:-1]
    with pytest.raises(RemoteStorageError, match="expected"):
        tier.read(reader, 50, 1000)
    tier.store.change = lambda _key, _position, _data: sound
    with pytest.raises(RemoteStorageError, match="expected"):
        tier.read(reader, 50, 1000)
    tier.store.change = lambda _key, _position, data: data
    tier.store.path(tier.keys(0)[0]).write_bytes(sound[: position_of(tier, 60)])
    with pytest.raises(RemoteStorageError):
        tier.read(reader, 70, 1000)
    reader.close()
    assert tier.memory.used_bytes == 0


def test_swapped_objects_are_noticed(tier: Tier) -> None:
    first, second = (tier.store.path(tier.keys(number)[0]) for number in (0, 1))
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1][: len(data[0])])
    second.write_bytes(data[0])
    reader = tier.reader()
    for offset in (0, 33, COUNT + 3):
        with pytest.raises((CorruptDataError, RemoteStorageError)):
            tier.read(reader, offset, 1000)


@pytest.mark.parametrize("slow_ms", [0, 1_000_000], ids=["read ahead", "in place"])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("max_bytes", [900, 5_000])
def test_whole_batches_from_elsewhere_in_the_segment(
    tier: Tier, max_bytes: int, rows: int, slow_ms: int
) -> None:
    """One answer of a reader's way through the log begins some batches too late: no checksum is
    wrong, and still no batch is left out. Each answer in turn."""
    ends = {position_of(tier, row): row for row in range(COUNT)}
    number, struck = 0, True
    while struck:
        number += 1
        struck, seen = False, 0

        def astray(key: str, position: int, data: bytes, strikes: int = number) -> bytes:
            nonlocal struck, seen
            if not key.endswith(".log") or key != tier.keys(0)[0]:
                return data
            seen += 1
            row = ends.get(position)
            if seen != strikes or row is None or row + rows >= COUNT:
                return data
            struck = True
            shift = position_of(tier, row + rows)
            return (
                tier.store.path(key).read_bytes()[shift : shift + len(data)].ljust(len(data), b"\0")
            )

        tier.store.change = astray
        reader = tier.reader(read_ahead=ReadAheadSettings(slow_ms=slow_ms))
        offset = 0
        while offset < 60:
            read = tier.read(reader, offset, max_bytes)
            assert read.first_offset == offset, f"answer {number}: {offset} was passed over"
            offset = read.next_offset
        reader.close()
        if number > 60:
            break
    assert number > 1


def test_the_same_offsets_of_another_partition_are_noticed_where_a_run_begins(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path, remote_index_interval_bytes=1)
    tier.add([made_batch(one, size=100_000) for one in range(5)])
    path = tier.store.path(tier.keys(0)[0])
    data = bytearray(path.read_bytes())
    at = position_of(tier, 3)
    batch = data[at : at + len(tier.truth[3].data)]
    # The same batch at another time, with a checksum that is right.
    batch[27:43] = struct.pack(">qq", 1, 1)
    data[at : at + len(batch)] = repair_crc(bytes(batch))
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match="wrong_batch"):
        tier.read(tier.reader(), 3, 1000)


# -- segments that change under the reader


def delete(tier: Tier, number: int) -> None:
    gone = tier.segments[number]
    tier.metadata.update(gone.update_to(DELETING, event_timestamp_ms=1))
    tier.storage.delete_log_segment_data(gone)


def test_a_segment_deleted_between_lookup_and_read(tier: Tier) -> None:
    for warm in (False, True):
        reader = tier.reader()
        if warm:
            tier.add([made_batch(one, size=1000) for one in range(COUNT)])
            tier.read(reader, 7, 1)
        number = 2 if warm else 0
        done: list[bool] = []

        def delete_first(key: str, number: int = number, done: list[bool] = done) -> None:
            if not done and key in tier.keys(number):
                done.append(True)
                delete(tier, number)

        tier.store.before_read = delete_first
        with pytest.raises(OutOfRangeError, match="was deleted while"):
            tier.read(reader, 7, 1000)
        assert done
        tier.store.before_read = lambda _key: None


def test_a_segment_with_a_foreign_epoch_in_its_middle(tmp_path: Path) -> None:
    """Of one segment the lineage has the beginning and the end; the middle is in another one."""
    tier = Tier(tmp_path, remote_index_interval_bytes=2_000)
    own = [made_batch(one, size=500, epoch=0 if one < 50 else 4) for one in range(200)]
    foreign = [made_batch(one, size=300, epoch=2) for one in range(50, 80)]
    tier.add(own, lineage=lineage_of((0, 0), (4, 50)))
    tier.lineage = lineage_of((0, 0), (2, 50), (4, 80))
    tier.add(foreign, lineage=lineage_of((0, 0), (2, 50)))
    truth = own[:50] + foreign + own[80:]
    for slow_ms, limit in product((0, 2**40), (1, 3_000, 1 << 20)):
        reader = tier.reader(read_ahead=ReadAheadSettings(slow_ms=slow_ms))
        offset, found = 0, b""
        while offset < 200:
            read = tier.read(reader, offset, limit)
            found += bytes(read.records)
            offset = read.next_offset
        assert found == b"".join(truth)
        assert tier.alarms == []
        reader.close()
    tier.storage.delete_log_segment_data(tier.segments[1])
    gone = tier.segments[1]
    tier.metadata.update(gone.update_to(DELETING, event_timestamp_ms=1))
    reader = tier.reader()
    offset, found = 0, b""
    while offset < 200:
        read = tier.read(reader, offset, 3_000)
        found += bytes(read.records)
        offset = read.next_offset
    assert found == b"".join(own[:50] + own[80:])


def test_another_segment_steps_in_for_a_deleted_one(tier: Tier) -> None:
    twin = tier.add([made_batch(one, size=1000) for one in range(COUNT)])
    reader = tier.reader()
    served = tier.read(reader, 7, 1).segment
    assert served is not None
    number = tier.segments.index(served)

    def delete_first(_key: str) -> None:
        tier.store.before_read = lambda _key: None
        delete(tier, number)

    tier.store.before_read = delete_first
    read = tier.read(reader, 8, 1000)
    assert read.segment is not None
    assert {served.segment_id, read.segment.segment_id} == {
        tier.segments[0].segment_id,
        twin.segment_id,
    }
    assert bytes(read.records) == tier.truth[8].data


def test_a_truncated_segment_ends_where_it_was_cut(tier: Tier) -> None:
    first = tier.segments[0]
    tier.metadata.update(first.update_to(FINISHED, event_timestamp_ms=1, truncation_offset=100))
    reader = tier.reader(on_gap="skip")
    for offset in (0, 50, 99):
        read = tier.read(reader, offset, 1 << 20)
        assert bytes(read.records) == b"".join(one.data for one in tier.truth[offset:100])
    assert tier.read(reader, 100).first_offset == COUNT
    with pytest.raises(GapError, match=f"offsets 100 to {COUNT - 1} are in no segment"):
        tier.read(tier.reader(), 100)


def test_overlapping_segments_after_leader_changes(tmp_path: Path) -> None:
    """What a deposed leader went on writing is not served, whoever uploaded when."""
    tier = Tier(tmp_path)
    old, new = lineage_of((0, 0)), lineage_of((0, 0), (1, 100), (2, 180))
    epoch_zero = [made_batch(one, size=500) for one in range(150)]
    epoch_one = [made_batch(one, size=700, epoch=1) for one in range(100, 180)]
    epoch_two = [made_batch(one, size=300, epoch=2) for one in range(180, 260)]
    truth = epoch_zero[:100] + epoch_one + epoch_two
    tier.add(epoch_zero, lineage=old)
    tier.add(epoch_zero[60:100] + epoch_one[:40], lineage=new)
    tier.add(epoch_zero[90:100] + epoch_one + epoch_two[:20], lineage=new)
    tier.add(epoch_one[70:] + epoch_two, lineage=new)
    tier.lineage = new
    for limit, start, slow_ms in product((1, 3000, 1 << 20), range(0, 260, 7), (0, 2**40)):
        reader = tier.reader(read_ahead=ReadAheadSettings(slow_ms=slow_ms))
        offset, found = start, b""
        while offset < 260:
            read = tier.read(reader, offset, limit)
            found += bytes(read.records)
            assert read.next_offset > offset
            offset = read.next_offset
        assert found == b"".join(truth[start:])
        reader.close()
    tier.lineage = old
    reader = tier.reader()
    assert tier.read(reader, 149).first_offset == 149
    with pytest.raises(OutOfRangeError):
        tier.read(reader, 150)


def test_a_stream_that_has_to_change_segments_leaves_nothing_out(tmp_path: Path) -> None:
    """Another segment has the offset as well, and every read finds the metadata changed."""
    tier = Tier(tmp_path, remote_index_interval_bytes=2_000)
    log = [made_batch(one, size=500) for one in range(300)]
    for begin, end in ((0, 150), (90, 200), (120, 260), (250, 300)):
        tier.add(log[begin:end])
    for limit in (1, 2_000, 9_000):
        reader = tier.reader(read_ahead=ReadAheadSettings(slow_ms=0, chunk_bytes=4_000))
        offset, found = 0, b""
        while offset < 300:
            tier.metadata.claim_leadership(
                tier.partition, 1 + tier.metadata.leader_epoch(tier.partition)
            )
            read = tier.read(reader, offset, limit)
            found += bytes(read.records)
            offset = read.next_offset
        assert found == b"".join(log)
        reader.close()


def test_a_batch_that_straddles_the_end_of_its_epoch_is_no_part_of_the_log(
    tmp_path: Path,
) -> None:
    tier = Tier(tmp_path)
    tier.add([made_batch(0, records=5), made_batch(5, records=5)], lineage=lineage_of((0, 0)))
    tier.lineage = lineage_of((0, 0), (1, 8))
    tier.add([made_batch(8, epoch=1)])
    reader = tier.reader()
    assert tier.read(reader, 0).next_offset == 5
    for offset in (5, 7, 8):
        assert tier.read(reader, offset).first_offset == 8


# -- indexes


def test_damaged_indexes_cost_time_and_raise_an_alarm(tier: Tier, tmp_path: Path) -> None:
    _, indexes = tier.keys(0)
    tier.store.damage(indexes, tier.store.path(indexes).stat().st_size - 5)
    with RemoteIndexCache(tier.storage, tmp_path / "cache") as cache:
        for reader in (tier.reader(), tier.reader(index_cache=cache)):
            tier.alarms.clear()
            for offset in (300, 17, 399, 17):
                check(
                    tier.read(reader, offset, 3000),
                    expected(tier.truth, offset, 3000, NO_LIMIT, True),
                )
            (alarm,) = tier.alarms
            assert isinstance(alarm, CorruptDataError)
            assert alarm.path is not None
            assert indexes in alarm.path
            assert alarm.__traceback__ is None
            reader.close()
    assert tier.memory.used_bytes == 0


def test_missing_indexes_are_an_alarm_too(tier: Tier) -> None:
    tier.store.delete(tier.keys(0)[1])
    reader = tier.reader()
    check(tier.read(reader, 300, 3000), expected(tier.truth, 300, 3000, NO_LIMIT, True))
    (alarm,) = tier.alarms
    assert isinstance(alarm, RemoteResourceNotFoundError)


def test_a_walk_is_not_walked_twice_and_the_index_is_tried_again(tmp_path: Path) -> None:
    clock = ManualClock()
    tier = Tier(tmp_path)
    tier.add([made_batch(one, size=100_000) for one in range(60)])
    indexes = tier.store.path(tier.keys(0)[1])
    sound = indexes.read_bytes()
    indexes.write_bytes(sound[:-1])
    reader = tier.reader(clock=clock)
    tier.store.reads.clear()
    tier.read(reader, 55, 1)
    assert tier.store.count()[1] >= 5
    tier.read(reader, 58, 1)
    assert tier.store.count() == (0, 1)
    indexes.write_bytes(sound)
    tier.read(reader, 20, 1)
    assert tier.store.count()[0] == 0
    clock.advance(60_000)
    tier.read(reader, 30, 1)
    assert tier.store.count()[0] == 1
    tier.read(reader, 40, 1)
    assert tier.store.count() == (0, 1)
    assert len(tier.alarms) == 1


def rewritten_indexes(tier: Tier, change: dict[IndexKind, bytes]) -> None:
    """The indexes of the first segment with other sections, their checksums right.

    Without batch checksums: those belong to the offset index that was there before.
    """
    path = tier.store.path(tier.keys(0)[1])
    data = path.read_bytes()
    header = IndexesHeader.parse(data, path="x", object_size_bytes=len(data))
    sections: dict[IndexKind, bytes] = {
        kind: bytes(header.read_section(kind, data))
        for kind in IndexKind
        if kind not in (IndexKind.METADATA, IndexKind.BATCH_CHECKSUM)
    }
    metadata = header.description(header.read_section(IndexKind.METADATA, data)).metadata
    path.write_bytes(encode_indexes(SegmentDescription(metadata=metadata), {**sections, **change}))


def wrong_offset_index(tier: Tier, shift: int) -> bytes:
    """Entries that point `shift` bytes beside the batches."""
    return b"".join(
        struct.pack(">ii", one.last_offset, position_of(tier, row) + shift)
        for row, one in enumerate(tier.truth[:COUNT])
        if row and row % 5 == 0
    )


@pytest.mark.parametrize("shift", [1, -1, 100, 1048 * 7])
def test_an_index_that_leads_astray_is_not_believed(tier: Tier, shift: int) -> None:
    rewritten_indexes(tier, {IndexKind.OFFSET: wrong_offset_index(tier, shift)})
    reader = tier.reader()
    for offset in range(0, COUNT, 13):
        wanted = expected(tier.truth, offset, 3000, NO_LIMIT, True)
        check(tier.read(reader, offset, 3000), wanted)
    assert len(tier.alarms) <= 1


def test_a_remote_log_index_of_another_object_is_not_believed(tier: Tier) -> None:
    for rdi in (f"{log_key(tier.segments[1])}:0", "somewhere/else.log:0", "x"):
        size = tier.segments[0].segment_size_bytes
        entries = encode_remote_log_index([0], [COUNT - 1], [0], [0], [size], [rdi.encode()])
        rewritten_indexes(tier, {IndexKind.REMOTE_LOG: entries, IndexKind.OFFSET: b""})
        reader = tier.reader()
        tier.store.reads.clear()
        tier.alarms.clear()
        check(tier.read(reader, 300, 3000), expected(tier.truth, 300, 3000, NO_LIMIT, True))
        assert {key for key, _, _ in tier.store.reads} == set(tier.keys(0))
        (alarm,) = tier.alarms
        assert "bad_rdi" in str(alarm)


def test_positions_past_the_object_are_not_believed(tier: Tier) -> None:
    beyond = b"".join(struct.pack(">ii", one, 10_000_000 + one) for one in range(10, 300, 10))
    rewritten_indexes(tier, {IndexKind.OFFSET: beyond})
    check(tier.read(tier.reader(), 200, 3000), expected(tier.truth, 200, 3000, NO_LIMIT, True))
    (alarm,) = tier.alarms
    assert "bad_position" in str(alarm)


def test_a_store_that_fails_is_not_taken_for_missing_indexes(tier: Tier) -> None:
    def broken(_key: str) -> None:
        raise RemoteStorageError("broken")

    tier.store.before_read = broken
    with pytest.raises(RemoteStorageError, match="broken"):
        tier.read(tier.reader(), 5)
    assert tier.alarms == []


# -- memory


def test_a_read_that_finds_no_memory_says_so_and_asks_for_nothing(tier: Tier) -> None:
    tier.memory = FetchMemory(20_000)
    reader = tier.reader(memory_wait_ms=0)
    tier.read(reader, 0, 1)
    held = tier.memory.acquire(20_000, 0)
    assert held is not None
    tier.store.reads.clear()
    read = tier.read(reader, 100, 5000)
    assert (read.refused, bytes(read.records), read.next_offset) == (True, b"", 100)
    assert tier.store.count() == (0, 0)
    held.release()
    check(tier.read(reader, 100, 5000), expected(tier.truth, 100, 5000, NO_LIMIT, True))


def test_a_read_waits_for_memory_and_no_read_is_larger_than_all_of_it(tier: Tier) -> None:
    tier.memory = FetchMemory(30_000)
    reader = tier.reader(memory_wait_ms=20_000)
    held = tier.memory.acquire(30_000, 0)
    assert held is not None
    later = Later(lambda: tier.read(reader, 100, 1 << 30))
    held.release()
    read = later.result()
    assert memoryview(read.records).nbytes <= 30_000
    assert read.next_offset > 105
    assert tier.memory.most_bytes <= 30_000


def test_a_few_bytes_do_not_keep_many_alive(tier: Tier) -> None:
    reader = tier.reader()
    read = tier.read(reader, 100, 1100)
    assert tier.memory.used_bytes <= 4 * memoryview(read.records).nbytes
    assert isinstance(reader, RemoteBatchReader)
