"""A partition's remote index files: what is written, when a new file begins, what look-ups find."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.oracle import remote_index as oracle
from tests.remote.index_files.model import MOST, NAMES, Model, Tiered, folder, tiered
from tests.remote.index_files.support import (
    ROW,
    as_oracle,
    check,
    fetcher,
    found,
    metadata_of,
    open_files,
)
from tierlog.errors import ClosedError, CorruptDataError, RemoteResourceNotFoundError
from tierlog.testing.segments import partition_of, segment


def constant(value: int) -> Callable[[int], int]:
    return lambda _: value


# -- what is written


def test_nothing_is_made_before_there_is_something(tmp_path: Path) -> None:
    files = open_files(tmp_path / "indexes")
    assert files.last_offset is None
    assert files.lookup_offset(0) is None
    assert files.lookup_timestamp(-1) is None
    assert list(files.entries()) == []
    assert files.drop_below(5) == files.truncate_to(5) == files.catch_up([], fetcher()) == 0
    assert files.append(segment("empty", 0, 5, size_bytes=0), b"") == 0
    files.close()
    assert not (tmp_path / "indexes").exists()


def test_appended_files_are_the_oracles(tmp_path: Path) -> None:
    model = Model()
    with_trailer = tmp_path / "indexes"
    files = open_files(with_trailer)
    for source in ROW:
        assert files.append(source.metadata, source.data) == model.append(source) == 10
        check(files, model, with_trailer)
    again = open_files(with_trailer)
    assert again.findings == ()
    check(again, model, with_trailer)


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)]
)
def test_any_buffer(kind: Callable[[bytes], bytes], tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    files.append(ROW[0].metadata, kind(ROW[0].data))
    model.append(ROW[0])
    check(files, model, tmp_path)


def test_rotation_by_bytes_keeps_segments_together(tmp_path: Path) -> None:
    size = 2 * len(ROW[0].data) + 30
    files, model = open_files(tmp_path, rotate_bytes=size), Model(rotate_bytes=size)
    for source in ROW:
        files.append(source.metadata, source.data)
        model.append(source)
    check(files, model, tmp_path)
    assert [file.base_offset for file in model.files] == [0, 200, 400]


def test_a_segment_above_the_size_has_a_file_of_its_own(tmp_path: Path) -> None:
    files, model = open_files(tmp_path, rotate_bytes=1), Model(rotate_bytes=1)
    for source in ROW:
        files.append(source.metadata, source.data)
        model.append(source)
    check(files, model, tmp_path)
    assert len(model.files) == len(ROW)


@pytest.mark.parametrize(
    ("times", "bases"),
    [
        ((1_000, 1_500, 1_999, 2_000, 5_000, 5_001), [0, 300, 400]),
        ((5_000, 1_000, 1_001, 4_000, 9_000, 0), [0, 400]),
        ((-1, 10**15, -1, 5, 10**15, 7), [0]),
        ((0, -(2**63), 2**62, 0, 2**62, 2**63 - 1), [0, 200, 500]),
    ],
)
def test_rotation_by_the_time_of_records(
    times: tuple[int, ...], bases: list[int], tmp_path: Path
) -> None:
    files, model = open_files(tmp_path, rotate_ms=1_000), Model(rotate_ms=1_000)
    for number, time in enumerate(times):
        start = 100 * number
        source = tiered(start, start + 99, timestamp_ms=constant(time))
        files.append(source.metadata, source.data)
        model.append(source)
    check(files, model, tmp_path)
    assert [file.base_offset for file in model.files] == bases


def test_relative_offsets_have_31_bits(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    far = tiered(100, MOST + 250, per_entry=2**30)
    assert len(far.entries) == 3
    for source in (ROW[0], far):
        files.append(source.metadata, source.data)
        model.append(source)
    check(files, model, tmp_path)
    assert [file.base_offset for file in model.files] == [0, 2**30 + 100]
    too_long = tiered(2**40, 2**40 + MOST + 1, per_entry=2**32)
    with pytest.raises(CorruptDataError, match="2\\^31"):
        files.append(too_long.metadata, too_long.data)
    assert open_files(tmp_path).findings == ()


def test_a_segment_that_leaves_offsets_out_begins_a_file(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    for source in (ROW[0], ROW[2], ROW[3]):
        files.append(source.metadata, source.data)
        model.append(source)
    check(files, model, tmp_path)
    assert [file.base_offset for file in model.files] == [0, 200]
    assert files.lookup_offset(150) is None


# -- overlaps


def test_what_is_there_is_left_out(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    sources = [ROW[0], tiered(50, 149), tiered(20, 90), tiered(145, 205, per_entry=7), ROW[0]]
    added = []
    for source in sources:
        added.append(files.append(source.metadata, source.data))
        model.append(source)
    assert added == [10, 5, 0, 9, 0]
    check(files, model, tmp_path)
    assert open_files(tmp_path).findings == ()


def test_bases_ascend_where_segments_overlap(tmp_path: Path) -> None:
    files, model = open_files(tmp_path, rotate_bytes=1), Model(rotate_bytes=1)
    for source in (tiered(50, 60), tiered(50, 149, per_entry=100), tiered(40, 300, per_entry=261)):
        files.append(source.metadata, source.data)
        model.append(source)
    assert [file.base_offset for file in model.files] == [50, 61, 150]
    check(files, model, tmp_path)
    check(open_files(tmp_path), model, tmp_path)


# -- what is not taken


def damaged(source: Tiered, **fields: object) -> bytes:
    """With another entry in the middle, its checksum right."""
    entries = list(source.entries)
    entries[4] = replace(entries[4], **fields)  # type: ignore[arg-type]
    return oracle.encode(entries)


OTHER = tiered(0, 99, name="of another")
ELSEWHERE = ROW[0].entries[4].rdi.replace(b"orders-", b"ORDERS-")
BAD_ENTRIES = {
    "trailer": (oracle.encode(ROW[0].entries, trailer=True), "trailer"),
    "torn": (ROW[0].data[:-1], "truncated"),
    "zeros": (ROW[0].data + bytes(100), "bad_length"),
    "another segment": (OTHER.data, "bad_rdi"),
    "one of another": (damaged(ROW[0], rdi=OTHER.entries[4].rdi), "bad_rdi"),
    "another partition": (damaged(ROW[0], rdi=ELSEWHERE), "bad_rdi"),
    "no rdi": (damaged(ROW[0], rdi=b""), "bad_rdi"),
    "no rdi at the end": (damaged(tiered(0, 49, name="0-99"), rdi=b""), "bad_rdi"),
    "bucket": (damaged(ROW[0], rdi=b"s3://elsewhere/" + ROW[0].entries[4].rdi), "bad_rdi"),
    "wrong place": (damaged(ROW[0], rdi=ROW[0].entries[5].rdi), "bad_rdi"),
    "no number": (damaged(ROW[0], rdi=ROW[0].entries[4].rdi[:-1] + b"x"), "bad_rdi"),
    "long number": (damaged(ROW[0], rdi=ROW[0].entries[4].rdi + b"0" * 16), "bad_rdi"),
    "another length": (damaged(ROW[0], data_length=99), "bad_rdi"),
    "common offsets": (damaged(ROW[0], first_offset=39), "bad_rdi"),
    "past the segment": (tiered(0, 109, name="0-99").data, "wrong_segment"),
    "larger than the segment": (tiered(0, 99, name="0-99", per_entry=9).data, "wrong_segment"),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_entries_that_are_not_the_segments_are_refused(name: str, tmp_path: Path) -> None:
    data, message = BAD_ENTRIES[name]
    files = open_files(tmp_path)
    with pytest.raises(CorruptDataError, match=message):
        files.append(ROW[0].metadata, data)
    with pytest.raises(CorruptDataError, match=message):
        files.catch_up([ROW[0].metadata], lambda _: data)
    with pytest.raises(CorruptDataError, match=message):
        files.rebuild([ROW[0].metadata], lambda _: data)
    assert files.last_offset is None
    assert files.append(ROW[0].metadata, ROW[0].data) == 10


def test_every_bit_of_appended_entries_counts(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    source = tiered(0, 19)
    for position in range(len(source.data)):
        for bit in range(8):
            flipped = bytearray(source.data)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptDataError):
                files.append(source.metadata, flipped)
    assert not folder(tmp_path).exists()


def test_segments_of_another_partition_are_refused(tmp_path: Path) -> None:
    other = segment("other", 0, 9, partition=partition_of(number=1))
    files = open_files(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: files.append(other, b""),
        lambda: files.catch_up([other], fetcher()),
        lambda: files.rebuild([other], fetcher()),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="does not belong to"):
            call()


# -- catching up


def test_catching_up_asks_for_what_is_missing_only(tmp_path: Path) -> None:
    files, model = open_files(tmp_path, rotate_bytes=2_500), Model(rotate_bytes=2_500)
    asked: list[str] = []
    fetch = fetcher(*ROW, asked=asked)
    assert files.catch_up(metadata_of(ROW[:2]), fetch) == 20
    assert files.catch_up(metadata_of(reversed(ROW)), fetch) == 40
    assert files.catch_up(metadata_of(ROW), fetch) == 0
    assert asked == [source.metadata.segment_id.id for source in ROW]
    model.catch_up(ROW)
    check(files, model, tmp_path)


def test_a_segment_with_nothing_at_its_end_is_fetched_once(tmp_path: Path) -> None:
    asked: list[str] = []
    short = Tiered(ROW[0].metadata, ROW[0].entries[:-1])
    files = open_files(tmp_path)
    for _ in range(3):
        files.catch_up([short.metadata], fetcher(short, asked=asked))
    assert len(asked) == 1
    files.catch_up(metadata_of(ROW[:2]), fetcher(short, ROW[1], asked=asked))
    assert len(asked) == 2
    assert as_oracle(files.lookup_offset(95)) is None
    assert open_files(tmp_path).findings == ()


def test_what_is_done_stays_when_the_store_fails(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    with pytest.raises(RemoteResourceNotFoundError):
        files.catch_up(metadata_of(ROW), fetcher(*ROW[:3]))
    model.catch_up(ROW[:3])
    check(files, model, tmp_path)
    assert files.catch_up(metadata_of(ROW), fetcher(*ROW)) == 30


def test_an_earlier_segment_fills_its_gap(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    for batch in ([ROW[1], ROW[4]], [ROW[0]], [ROW[2], ROW[3]]):
        assert files.catch_up(metadata_of(batch), fetcher(*batch)) == model.catch_up(batch)
        check(files, model, tmp_path)
    assert open_files(tmp_path).findings == ()
    assert len(list(files.entries())) == 50


# -- truncation


@pytest.mark.parametrize("offset", [*range(40), 99, 100, 101, 195, 200, 201, 299, 300, 1_000])
@pytest.mark.parametrize("rotate_bytes", [1, 1 << 20])
def test_truncation(offset: int, rotate_bytes: int, tmp_path: Path) -> None:
    files = open_files(tmp_path, rotate_bytes=rotate_bytes)
    model = Model(rotate_bytes=rotate_bytes)
    files.catch_up(metadata_of(ROW[:3]), fetcher(*ROW))
    model.catch_up(ROW[:3])
    assert files.truncate_to(offset) == model.truncate_to(offset)
    assert files.truncate_to(offset) == 0
    if model.files:
        check(files, model, tmp_path)
    later = tiered(offset, offset + 55, name="the new leader's")
    assert files.append(later.metadata, later.data) == model.append(later) == 6
    check(files, model, tmp_path)
    again = open_files(tmp_path)
    assert again.findings == ()
    check(again, model, tmp_path)


@pytest.mark.parametrize("offset", [0, 5, 10, 95, 100, 150, 155, 299])
def test_catching_up_follows_a_cut_in_the_metadata(offset: int, tmp_path: Path) -> None:
    cut = [source.cut(offset) for source in ROW[:3]]
    later = tiered(offset, 420, name="the new leader's")
    told, untold, model = open_files(tmp_path / "a"), open_files(tmp_path / "b"), Model()
    told.catch_up(metadata_of(ROW[:3]), fetcher(*ROW))
    for files in (told, untold):
        files.catch_up(metadata_of([*cut, later]), fetcher(*ROW, later))
    model.catch_up([*cut, later])
    check(told, model, tmp_path / "a")
    check(untold, model, tmp_path / "b")


def test_a_cut_of_segments_that_metadata_has_forgotten_in_part(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.catch_up(metadata_of(ROW[:3]), fetcher(*ROW))
    files.catch_up([ROW[1].cut(50).metadata], fetcher(*ROW))
    assert files.last_offset == 49


def test_what_was_cut_may_come_back(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    files.append(ROW[0].metadata, ROW[0].data)
    files.truncate_to(55)
    files.append(ROW[0].metadata, ROW[0].data)
    model.append(ROW[0])
    model.truncate_to(55)
    model.append(ROW[0])
    check(files, model, tmp_path)
    assert open_files(tmp_path).findings == ()


# -- dropping, rebuilding, deleting


def test_whole_files_below_the_log_start_offset_go(tmp_path: Path) -> None:
    files, model = open_files(tmp_path, rotate_bytes=1), Model(rotate_bytes=1)
    files.catch_up(metadata_of(ROW), fetcher(*ROW))
    model.catch_up(ROW)
    for offset in (0, 99, 100, 250, 100, 599):
        assert files.drop_below(offset) == model.drop_below(offset)
        check(files, model, tmp_path)
    assert files.catch_up(metadata_of(ROW), fetcher()) == 0
    assert files.drop_below(600) == 1
    assert files.last_offset is None
    assert found(tmp_path) == {}


def test_a_rebuild_is_what_appending_makes(tmp_path: Path) -> None:
    files, model = open_files(tmp_path, rotate_bytes=2_500), Model(rotate_bytes=2_500)
    wrong = tiered(0, 1_000, name="of another lineage")
    files.append(wrong.metadata, wrong.data)
    assert files.rebuild(metadata_of(reversed(ROW)), fetcher(*ROW)) == 60
    model.catch_up(ROW)
    check(files, model, tmp_path)
    check(open_files(tmp_path, rotate_bytes=2_500), model, tmp_path)
    assert files.rebuild([], fetcher()) == 0
    assert found(tmp_path) == {}


def test_the_old_files_stay_when_a_rebuild_fails(tmp_path: Path) -> None:
    files, model = open_files(tmp_path), Model()
    files.catch_up(metadata_of(ROW), fetcher(*ROW))
    model.catch_up(ROW)
    with pytest.raises(RemoteResourceNotFoundError):
        files.rebuild(metadata_of(ROW), fetcher(*ROW[:3]))
    check(files, model, tmp_path)


def test_deleting_leaves_what_is_not_ours(tmp_path: Path) -> None:
    files = open_files(tmp_path / "a")
    files.append(ROW[0].metadata, ROW[0].data)
    files.delete()
    assert list((tmp_path / "a").iterdir()) == []
    files = open_files(tmp_path / "a")
    files.append(ROW[0].metadata, ROW[0].data)
    (folder(tmp_path / "a") / "notes.txt").write_text("mine")
    files.delete()
    assert found(tmp_path / "a") == {"notes.txt": b"mine"}
    with pytest.raises(ClosedError):
        files.append(ROW[0].metadata, ROW[0].data)


def test_nothing_after_close(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.close()
    files.close()
    calls: list[Callable[[], object]] = [
        lambda: files.append(ROW[0].metadata, ROW[0].data),
        lambda: files.catch_up(metadata_of(ROW), fetcher(*ROW)),
        lambda: files.rebuild(metadata_of(ROW), fetcher(*ROW)),
        lambda: files.lookup_offset(0),
        lambda: files.lookup_timestamp(0),
        lambda: files.drop_below(0),
        lambda: files.truncate_to(0),
        lambda: files.entries(),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert not folder(tmp_path).exists()


# -- large files, threads


def test_look_ups_in_an_index_of_many_blocks(tmp_path: Path) -> None:
    source = tiered(0, 49_999, timestamp_ms=lambda offset: 1_000 + (offset * 7_919) % 100_003)
    files = open_files(tmp_path)
    files.append(source.metadata, source.data)
    assert len(source.entries) == 5_000
    for offset in range(0, 50_000, 997):
        assert as_oracle(files.lookup_offset(offset)) == source.entries[offset // 10]
    for time in [*range(0, 101_000, 4_999), 101_002]:
        expected = oracle.lookup_timestamp(source.entries, time)
        assert as_oracle(files.lookup_timestamp(time)) == expected
    assert files.lookup_timestamp(2**62) is None


def test_readers_beside_a_writer(tmp_path: Path) -> None:
    """Whatever the writer does, a reader finds an entry that holds its offset, or none."""
    files = open_files(tmp_path, rotate_bytes=2_500)
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        number = 0
        while not done.is_set():
            number += 7
            offset = number % 700
            entry = files.lookup_offset(offset)
            if entry is not None and not entry.first_offset <= offset <= entry.last_offset:
                wrong.append((offset, entry))
            files.lookup_timestamp(1_000_000 + offset)

    def guarded() -> None:
        try:
            read()
        except BaseException as error:
            wrong.append(error)
            raise

    readers = [threading.Thread(target=guarded) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for cycle in range(15):
            files.catch_up(metadata_of(ROW), fetcher(*ROW))
            files.truncate_to(55 + 30 * cycle)
            later = tiered(55 + 30 * cycle, 700, name=f"cycle {cycle}", per_entry=13)
            files.append(later.metadata, later.data)
            files.rebuild(metadata_of(ROW[:4]), fetcher(*ROW))
            files.drop_below(250)
            files.rebuild(metadata_of(ROW), fetcher(*ROW))
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    assert open_files(tmp_path).findings == ()


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    files, model = open_files(tmp_path, rotate_bytes=2_500), Model(rotate_bytes=2_500)
    threads = [
        threading.Thread(target=files.catch_up, args=(metadata_of(ROW), fetcher(*ROW)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model.catch_up(ROW)
    check(files, model, tmp_path)


def test_names_of_files(tmp_path: Path) -> None:
    open_files(tmp_path).append(ROW[1].metadata, ROW[1].data)
    assert sorted(found(tmp_path)) == sorted(f"{100:020d}.{name}" for name in NAMES)
