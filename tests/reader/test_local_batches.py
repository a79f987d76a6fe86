"""Whole batches out of log directories, against the oracle at every offset of the golden logs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fetch.views import GOLDEN, golden_view, oracle_batches, whole_view
from tests.kafka_tools.golden import DATA_DIR
from tests.oracle import build
from tests.oracle.model import Batch, Record
from tierlog.errors import CorruptDataError
from tierlog.log.same_log import VanishedError
from tierlog.reader.local_batches import LocalBatchReader, LocalRead
from tierlog.reader.types import FetchView

LIMITS = (0, 5_000, 1 << 20)


def expected(
    batches: Sequence[tuple[int, Batch]],
    offset: int,
    max_bytes: int,
    upper_offset: int,
    minimum_one: bool,
) -> bytes:
    """The rule, written down: one segment, whole batches, the first one whatever its size."""
    left = [(base, one) for base, one in batches if one.last_offset >= offset]
    if not left or left[0][0] >= upper_offset:
        return b""
    answer = b""
    for base, one in left:
        if base != left[0][0] or one.last_offset >= upper_offset:
            break
        if len(answer) + len(one.data) > max_bytes and not (minimum_one and not answer):
            break
        answer += one.data
        if len(answer) > max_bytes:
            break
    return answer


@pytest.mark.parametrize(("data_set", "name"), GOLDEN)
def test_every_offset_of_every_golden_log(data_set: str, name: str) -> None:
    view = golden_view(data_set, name)
    batches = oracle_batches(view.log)
    reader = LocalBatchReader(max_indexes=2)
    end = view.log_end_offset
    for offset in range(view.log_start_offset, end + 2):
        for max_bytes, upper_offset, minimum_one in cases(offset, end):
            given = (offset, max_bytes, upper_offset)
            read = reader.read_batches(view, *given, minimum_one=minimum_one)
            records = bytes(read.records)
            assert records == expected(batches, *given, minimum_one), (given, minimum_one)
            if records:
                check_places(read, view, offset)


def cases(offset: int, end: int) -> list[tuple[int, int, bool]]:
    """Three of nine (limit, upper offset, at least one) for each offset, others for the next."""
    uppers = ((end, True), (end, False), ((offset + end) // 2, True))
    every = [(max_bytes, *upper) for max_bytes in LIMITS for upper in uppers]
    return every[offset % 3 :: 3]


def check_places(read: LocalRead, view: FetchView, offset: int) -> None:
    (segment,) = [one for one in view.log.segments if one.base_offset == read.segment_base]
    whole = Path(segment.log_path).read_bytes()
    assert whole[read.start_position : read.end_position] == bytes(read.records)
    assert read.first_offset <= max(offset, read.first_offset)
    assert read.next_offset > offset


# -- logs of our own


@pytest.fixture
def own(tmp_path: Path) -> tuple[FetchView, Path]:
    """A golden partition in a folder that may be spoilt."""
    (source,) = (DATA_DIR / "clean").glob("disk*/codec-none-0")
    shutil.copytree(source, tmp_path / "logs" / "codec-none-0")
    for beside in source.parent.iterdir():
        if beside.is_file():
            shutil.copy(beside, tmp_path / "logs")
    folder = tmp_path / "logs"
    return whole_view(folder, "codec-none-0"), folder / "codec-none-0"


def all_records(reader: LocalBatchReader, view: FetchView) -> bytes:
    offset, found = view.log_start_offset, b""
    while offset < view.log_end_offset:
        read = reader.read_batches(view, offset, 1 << 20, view.log_end_offset, minimum_one=True)
        assert read.next_offset > offset
        found += bytes(read.records)
        offset = read.next_offset
    return found


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"\xff" * len(data),
        lambda data: data[:-3],
        lambda data: b"\0" * len(data),
        lambda data: data[:8] + bytes([0, 0, 0, 0x7F]) + data[12:],
        # Sound to look at, and every position a few bytes off.
        lambda data: b"".join(
            data[at : at + 4] + (int.from_bytes(data[at + 4 : at + 8]) + 7).to_bytes(4)
            for at in range(0, len(data), 8)
        ),
        # Sound, and far too late: the batch lies before what it says.
        lambda data: b"".join(
            (number + 1).to_bytes(4) + data[-4:] for number in range(len(data) // 8)
        ),
        lambda data: b"",
    ],
    ids=["ones", "cut", "zeros", "descending", "shifted", "too late", "empty"],
)
def test_a_damaged_offset_index_costs_a_walk_and_nothing_else(
    own: tuple[FetchView, Path], spoil: Callable[[bytes], bytes]
) -> None:
    view, folder = own
    truth = all_records(LocalBatchReader(), view)
    for path in folder.glob("*.index"):
        path.write_bytes(spoil(path.read_bytes()))
    assert all_records(LocalBatchReader(), view) == truth


def test_a_damaged_batch_is_never_handed_out(own: tuple[FetchView, Path]) -> None:
    view, _ = own
    batches = oracle_batches(view.log)
    base, third = batches[2]
    path = Path(view.log.segments[0].log_path)
    data = bytearray(path.read_bytes())
    data[third.position + 80] ^= 1
    path.write_bytes(data)
    reader, end = LocalBatchReader(), view.log_end_offset
    read = reader.read_batches(view, 0, 1 << 20, end, minimum_one=True)
    assert bytes(read.records) == batches[0][1].data + batches[1][1].data, "what is before it"
    with pytest.raises(CorruptDataError, match=f"bad_crc at byte {third.position}") as caught:
        reader.read_batches(view, third.base_offset, 1 << 20, end, minimum_one=True)
    assert caught.value.path == str(path)
    assert base == 0
    after = batches[3][1]
    read = reader.read_batches(view, after.base_offset, 700, end, minimum_one=True)
    assert bytes(read.records)[: len(after.data)] == after.data, "what is behind it"


def test_a_claimed_length_is_compared_before_anything_is_read(
    own: tuple[FetchView, Path],
) -> None:
    view, _ = own
    path = Path(view.log.segments[0].log_path)
    data = bytearray(path.read_bytes())
    for length in (2**30, 2**31 - 1, -1, 0, 13, -(2**31)):
        data[8:12] = length.to_bytes(4, "big", signed=True)
        path.write_bytes(data)
        with pytest.raises(CorruptDataError):
            LocalBatchReader().read_batches(view, 0, 100, view.log_end_offset, minimum_one=True)


def test_a_batch_larger_than_every_limit_is_read_whole(tmp_path: Path) -> None:
    view = golden_view("clean", "sizes-0")
    (largest,) = [one for _, one in oracle_batches(view.log) if len(one.data) > 900_000]
    reader, end = LocalBatchReader(), view.log_end_offset
    read = reader.read_batches(view, largest.last_offset, 1, end, minimum_one=True)
    assert bytes(read.records) == largest.data
    assert reader.read_batches(view, largest.last_offset, 1, end, minimum_one=False).records == b""


def test_the_active_segment_ends_where_its_last_whole_batch_does(
    own: tuple[FetchView, Path],
) -> None:
    view, folder = own
    active = view.log.segments[-1]
    truth = all_records(LocalBatchReader(), view)
    index = folder / f"{active.base_offset:020d}.index"
    index.write_bytes(index.read_bytes().ljust(4096, b"\0"))
    whole = Path(active.log_path).read_bytes()
    more = view.log_end_offset
    torn = build.batch([Record(offset=more, timestamp_ms=1, key=b"k", value=b"v" * 100)])
    for tail in (b"\0" * 5_000, torn[:-1], torn[:20], torn[:5], b"\0"):
        Path(active.log_path).write_bytes(whole + tail)
        now = whole_view(folder.parent, folder.name)
        assert all_records(LocalBatchReader(), now) == truth
        read = LocalBatchReader().read_batches(now, more, 1 << 20, more + 10, minimum_one=True)
        assert (read.records, read.next_offset) == (b"", -1)


@pytest.mark.parametrize("fate", ["deleted", "renamed", "a FIFO", "a symlink"])
def test_what_is_no_longer_there_asks_for_another_look(
    own: tuple[FetchView, Path], fate: str
) -> None:
    view, _ = own
    path = Path(view.log.segments[0].log_path)
    copy = path.with_suffix(".log.deleted")
    path.rename(copy)
    if fate == "deleted":
        copy.unlink()
    if fate == "a FIFO":
        os.mkfifo(path)
    if fate == "a symlink":
        path.symlink_to(copy)
    error = VanishedError if fate in ("deleted", "renamed") else OSError
    with pytest.raises(error):
        LocalBatchReader().read_batches(view, 0, 1 << 20, view.log_end_offset, minimum_one=True)


def test_what_was_listed_after_its_beginning_went_asks_for_another_look(
    own: tuple[FetchView, Path],
) -> None:
    """The first batch that is still here is not the next one of the log."""
    view, _ = own
    late = replace(view, log=replace(view.log, segments=view.log.segments[1:]))
    begin = late.log.segments[0].base_offset
    with pytest.raises(VanishedError, match=f"offset {begin - 1} lies below {begin}"):
        LocalBatchReader().read_batches(late, begin - 1, 100, view.log_end_offset, minimum_one=True)
    read = LocalBatchReader().read_batches(late, begin, 100, view.log_end_offset, minimum_one=True)
    assert read.first_offset == begin


def test_what_was_cut_short_asks_for_another_look(own: tuple[FetchView, Path]) -> None:
    view, _ = own
    path = Path(view.log.segments[0].log_path)
    os.truncate(path, path.stat().st_size - 1)
    last = oracle_batches(golden_view("clean", "codec-none-0").log)
    offset = max(one.base_offset for base, one in last if base == 0)
    with pytest.raises((VanishedError, CorruptDataError)):
        LocalBatchReader().read_batches(
            view, offset, 1 << 20, view.log_end_offset, minimum_one=True
        )


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_from_before_batches(tmp_path: Path, magic: int) -> None:
    (source,) = (DATA_DIR / "clean").glob("disk*/empty-0")
    folder = tmp_path / "logs" / "empty-0"
    shutil.copytree(source, folder)
    for beside in source.parent.iterdir():
        if beside.is_file():
            shutil.copy(beside, tmp_path / "logs")
    records = [
        Record(offset=offset, timestamp_ms=1_000 + offset, key=b"k", value=b"v" * 50, headers=())
        for offset in range(20)
    ]
    (folder / f"{0:020d}.log").write_bytes(build.legacy_messages(records, magic=magic))
    view = whole_view(folder.parent, folder.name)
    batches = oracle_batches(view.log)
    for offset in range(20):
        for max_bytes in (0, 200, 1 << 20):
            given = (offset, max_bytes, 20)
            read = LocalBatchReader().read_batches(view, *given, minimum_one=True)
            assert bytes(read.records) == expected(batches, *given, True)


def test_indexes_are_kept_only_while_their_files_stay_the_same(
    own: tuple[FetchView, Path],
) -> None:
    view, folder = own
    reader = LocalBatchReader(max_indexes=1)
    truth = all_records(reader, view)
    other = replace(view)
    for path in folder.glob("*.index"):
        path.write_bytes(b"")
    assert all_records(reader, other) == truth
