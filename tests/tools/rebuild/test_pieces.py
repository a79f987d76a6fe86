"""A segment in pieces is the segment: every cut, embedded batches, damage, all kinds of sources."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka_tools.golden import DATA_DIR
from tests.oracle import build
from tests.oracle.model import Record
from tests.oracle.strategies import Segment, profile, st_damaged_segment, st_segment
from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.files import SegmentHandle
from tierlog.log.rebuild import RebuiltIndexes
from tierlog.log.segment import scan_segment, scan_segment_in_parts
from tierlog.tools.rebuild.index import (
    RebuildPlan,
    RebuildReport,
    plan_rebuild,
    rebuild_index,
    rebuild_report,
    rebuild_task,
    scan_task,
)
from tierlog.tools.rebuild.pieces import (
    FoundPiece,
    PieceRange,
    cut_segment,
    find_piece,
    pieced,
)
from tierlog.tools.rebuild.segment import SegmentReading, WholeSegment
from tierlog.tools.rebuild.segment_bytes import FileBytes, ObjectBytes, SegmentBytes

ROOM = 1 << 20


def source_of(path: Path) -> SegmentBytes:
    return FileBytes(path=str(path))


def object_of(path: Path) -> SegmentBytes:
    """The same as the object of a store, of which little more than a range is fetched at first."""
    size_bytes = path.stat().st_size
    url = path.parent.as_uri()
    return ObjectBytes(url=url, key=path.name, size_bytes=size_bytes, beyond_bytes=10)


def ranges(
    path: Path, piece_bytes: int, base_offset: int = 0, source: SegmentBytes | None = None
) -> list[PieceRange]:
    size_bytes = path.stat().st_size
    found = cut_segment(
        source or source_of(path),
        size_bytes,
        piece_bytes=piece_bytes,
        chain_bytes=max(size_bytes, 1),
        task=0,
        segment=0,
        name="topic-0",
        base_offset=base_offset,
        next_base_offset=None,
    )
    return [replace(one, max_outline_bytes=ROOM) for one in found]


def columns(table: BatchTable) -> dict[str, list[int]]:
    names = (*BatchTable.__annotations__,)
    return {name: getattr(table, name).tolist() for name in names}


def told(reading: SegmentReading, base_offset: int) -> object:
    """All that a segment is asked for."""
    try:
        rebuilt = reading.rebuild(
            base_offset=base_offset, index_interval_bytes=100, producer_snapshot=None
        )
    except CorruptDataError as error:
        return error.reason, error.position, error.expected, error.found
    return outcome_of(rebuilt), [columns(table) for table in reading.tables(rebuilt)]


def outcome_of(rebuilt: RebuiltIndexes) -> object:
    table = rebuilt.table
    stop = (table.stop_reason, table.stop_position, table.stop_expected, table.stop_found)
    bare = {name: getattr(rebuilt, name) for name in rebuilt.__slots__ if name != "table"}
    return bare, columns(table), stop, table.range_crc32c


def whole(path: Path, base_offset: int) -> object:
    with SegmentHandle(path) as handle:
        return told(WholeSegment(handle), base_offset)


def in_pieces(
    path: Path,
    found: Sequence[FoundPiece],
    base_offset: int,
    source: SegmentBytes | None = None,
) -> tuple[object, int]:
    """The same put together, and how many ranges had to be scanned again for it."""
    with pieced(source or source_of(path), found) as reading:
        return told(reading, base_offset), reading.scanned_again


def base_of(data: bytes) -> int:
    """The first batch's offset, as a file would be named; 0 where that is none."""
    return max(int.from_bytes(data[:8], signed=True), 0)


def compare(data: bytes, piece_bytes: int) -> int:
    with TemporaryDirectory() as folder:
        path = Path(folder, "segment.log")
        path.write_bytes(data)
        found = [find_piece(one) for one in ranges(path, piece_bytes, base_of(data))]
        travelled = pickle.loads(pickle.dumps(found[::-1]))
        put_together, again = in_pieces(path, travelled, base_of(data))
        expected = whole(path, base_of(data))
        assert put_together == expected
        # Every range of an object is a request and a file.
        stored, least = object_of(path), max(piece_bytes, len(data) // 4)
        found = [find_piece(one) for one in ranges(path, least, base_of(data), stored)]
        assert in_pieces(path, found, base_of(data), stored)[0] == expected
        return again


@profile(60)
@given(st_segment(max_batches=14), st.integers(20, 2000))
def test_valid_segments(segment: Segment, piece_bytes: int) -> None:
    compare(segment.data, piece_bytes)


@profile(150)
@given(st_damaged_segment(max_batches=8), st.integers(20, 800))
def test_damaged_segments(data: bytes, piece_bytes: int) -> None:
    compare(data, piece_bytes)


def plain_batches(count: int, *, value: bytes = b"value", first_offset: int = 0) -> bytes:
    batches = []
    for number in range(count):
        offset = first_offset + 3 * number
        records = [
            Record(offset=offset + one, timestamp_ms=1000 + number, key=b"key", value=value)
            for one in range(3)
        ]
        batches.append(build.batch(records, leader_epoch=number // 7))
    return b"".join(batches)


def test_every_cut_is_stitched_at_once() -> None:
    """Where nothing looks like a batch but batches, nothing is read twice."""
    data = plain_batches(40)
    for piece_bytes in range(len(data) // 40, len(data), 37):
        assert compare(data, piece_bytes) == 0, piece_bytes


def log_of_logs() -> bytes:
    """Batches whose values hold batches, with offsets that the segment may have."""
    inner = plain_batches(30, first_offset=50)
    return b"".join(
        build.batch([Record(offset=offset, timestamp_ms=5, key=None, value=inner + b"end")])
        for offset in range(0, 400, 8)
    )


def test_embedded_batches_fool_the_search_and_not_the_fold(tmp_path: Path) -> None:
    data = log_of_logs()
    path = tmp_path / "segment.log"
    path.write_bytes(data)
    borders = set(scan_segment(path).position.tolist())
    fooled = 0
    for cuts in (3, 5, 9):
        found = [find_piece(one) for one in ranges(path, len(data) // cuts)]
        guesses = [one.piece.start_position for one in found if one.piece is not None]
        fooled += len(set(guesses) - borders)
        put_together, again = in_pieces(path, found, 0)
        assert put_together == whole(path, 0)
        assert again >= len(set(guesses) - borders)
    # A last range may be all inside of one value: then what is found goes on to its end.
    one = build.batch([Record(offset=0, timestamp_ms=5, key=None, value=plain_batches(90))])
    path.write_bytes(one)
    found = [find_piece(wanted) for wanted in ranges(path, len(one) // 2)]
    assert found[1].piece is not None
    assert found[1].piece.batches > 0
    fooled += 1
    assert in_pieces(path, found, 0)[0] == whole(path, 0)
    # Without the comparison of borders these bytes would have been taken for batches.
    fold = _core.SegmentFold(100, 0, None, ROOM)
    assert not fold.fits(found[1].piece)
    assert fooled > 0


@pytest.mark.parametrize("cuts", [2, 3, 7])
def test_damage_anywhere(cuts: int, tmp_path: Path) -> None:
    data = plain_batches(60)
    path = tmp_path / "segment.log"
    borders = {len(data) * number // cuts for number in range(1, cuts)}
    inside = {border + shift for border in borders for shift in (-1, 0, 1, 12, 25, 70)}
    for position in sorted(inside | set(range(3, len(data), 997))):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        found = [find_piece(one) for one in ranges(path, len(data) // cuts)]
        assert in_pieces(path, found, 0)[0] == whole(path, 0), position


def test_a_batch_over_several_ranges(tmp_path: Path) -> None:
    large = build.batch([Record(offset=30, timestamp_ms=9, key=None, value=b"x" * 9000)])
    data = plain_batches(10) + large + plain_batches(10, first_offset=31)
    assert compare(data, 700) == 0


def test_pieces_of_another_state_of_the_file_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(plain_batches(40))
    found = [find_piece(one) for one in ranges(path, 1500)]
    # The same positions, other timestamps: every border fits.
    path.write_bytes(plain_batches(40, value=b"other"))
    put_together, again = in_pieces(path, found, 0)
    assert put_together == whole(path, 0)
    assert again == len(found)


def test_ranges_without_room_for_their_outline(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    path.write_bytes(plain_batches(40))
    found = [
        find_piece(replace(one, max_outline_bytes=number % 2 * ROOM))
        for number, one in enumerate(ranges(path, 1000))
    ]
    assert in_pieces(path, found, 0) == (whole(path, 0), 0)


@profile(60)
@given(st_segment(max_batches=20), st.integers(1, 700), st.integers(1, 2000))
def test_parts_are_cut_as_by_a_walk(segment: Segment, piece_bytes: int, part_bytes: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "segment.log")
        path.write_bytes(segment.data)
        walked = [columns(table) for table in scan_segment_in_parts(path, part_bytes) if len(table)]
        parts, tables = _core.PartTables(part_bytes), list[_core.Batches]()
        position = 0
        for wanted in ranges(path, piece_bytes):
            if position < wanted.until:
                with SegmentHandle(path) as handle:
                    piece = _core.scan_piece(handle, position, wanted.until, -1, ROOM)
                tables += parts.take(piece)
                position = piece.end_position
        tables.append(parts.finish())
        assert [columns(BatchTable(table)) for table in tables if len(table)] == walked


def run(plan: RebuildPlan) -> RebuildReport:
    pieces = [one for task in plan.scans for one in scan_task(task)]
    left = plan.with_pieces(pieces)
    outcomes = [one for task in left.tasks for one in rebuild_task(task)]
    return rebuild_report(left, outcomes)


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("disk", ["clean/disk1", "clean/disk2", "unclean/disk1", "unclean/disk2"])
def test_golden_directories(disk: str, tmp_path: Path) -> None:
    source = str(DATA_DIR / disk)
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    expected = rebuild_index(source, target=str(alone), now_ms=0)
    plan = plan_rebuild(
        source, target=str(cut), dry_run=False, now_ms=0, slots=16, piece_bytes=2000
    )
    assert len([one for task in plan.scans for one in task.ranges]) > 5
    found = run(plan)
    assert found.segments == expected.segments
    assert found.summary.size_bytes == expected.summary.size_bytes
    assert tree(cut) == tree(alone)
