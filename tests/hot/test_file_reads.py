"""What the usual read of a file looks up: places, marks, and whether it is the usual one at all."""

from __future__ import annotations

import os
import struct
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fetch.tier import made_batch
from tierlog import _core
from tierlog._hot import (
    ByteBudget,
    ChangeCount,
    FileReads,
    IndexCache,
    KnownPlaces,
    OpenFiles,
    Place,
    PlaceTable,
    ReadMarks,
)
from tierlog.reader.remote import RemoteRead
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PARTITION = TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=3)


class Segment:
    """What is asked of a segment's metadata here: its name."""

    def __init__(self, number: int, partition: int = 3) -> None:
        name = replace(PARTITION, partition=partition)
        self.segment_id = RemoteLogSegmentId(topic_id_partition=name, id=f"{number:021d}A")


def place(number: int, first: int, last: int) -> Place:
    return Place(Segment(number), first, last, f"key {number}")


# -- places


@given(
    st.lists(st.integers(0, 40), min_size=0, max_size=12, unique=True),
    st.integers(-(2**63), 2**63 - 1),
)
def test_places_are_found_by_offset(bounds: list[int], far: int) -> None:
    ends = sorted(bounds)
    places = [
        place(number, first, last)
        for number, (first, last) in enumerate(zip(ends[::2], ends[1::2], strict=False))
    ]
    known = KnownPlaces(1, None, tuple(places))
    for offset in (*range(-1, 43), far):
        expected = [one for one in places if one.first_offset <= offset <= one.last_offset]
        assert known.at(offset) is (expected[0] if expected else None)


def test_a_table_forgets_what_has_changed() -> None:
    changes, count = {PARTITION: 1}, ChangeCount()
    table = PlaceTable(changes.__getitem__, count, 2)
    one = place(1, 0, 9)
    assert table.current(PARTITION, "lineage").at(5) is None
    table.keep(PARTITION, KnownPlaces(1, "lineage", (one,)))
    assert table.current(PARTITION, "lineage").at(5) is one
    assert table.current(PARTITION, "another").at(5) is None
    changes[PARTITION] = 2
    count.changed()
    assert table.current(PARTITION, "lineage").at(5) is None
    assert table.current(PARTITION, "lineage").change == 2
    changes[PARTITION] = 1
    count.changed()
    assert table.current(PARTITION, "lineage").at(5) is one
    table.forget(PARTITION)
    assert table.current(PARTITION, "lineage").at(5) is None


def test_a_partition_is_asked_for_its_changes_only_after_a_change() -> None:
    asked: list[TopicIdPartition] = []
    count, other = ChangeCount(), TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=4)

    def changes(partition: TopicIdPartition) -> int:
        asked.append(partition)
        # What is found out after the count was looked at must be looked at again.
        if len(asked) == 3:
            count.changed()
        return 1

    table, one = PlaceTable(changes, count, 2), place(1, 0, 9)
    table.keep(PARTITION, KnownPlaces(1, None, (one,)))
    expected = [1, 1, 1, 2, 3, 4, 4]
    for number, asks in enumerate(expected):
        assert table.current(PARTITION, None).at(5) is one
        assert asked == [PARTITION] * asks
        if number in (2, 3):
            count.changed()
    assert table.current(other, None).at(5) is None
    assert asked[-1] is other


def test_a_table_keeps_so_many_partitions() -> None:
    table = PlaceTable(lambda _partition: 1, ChangeCount(), 2)
    names = [TopicIdPartition(topic_id=TOPIC_ID, topic="t", partition=n) for n in range(4)]
    for name in names:
        table.keep(name, KnownPlaces(1, None, (place(1, 0, 9),)))
    assert [table.current(name, None).at(0) is None for name in names] == [True, True, False, False]


def test_errors_of_who_is_asked_come_through() -> None:
    table = PlaceTable({}.__getitem__, ChangeCount(), 2)
    with pytest.raises(KeyError):
        table.current(PARTITION, None)
    with pytest.raises(TypeError):
        Place(Segment(1), 0, 9, None)  # type: ignore[arg-type]


# -- marks


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60),
)
@example(3, [(True, 0), (True, 1), *[(False, 0), (True, 0)] * 4, (True, 2), (False, 1)])
def test_marks_are_those_of_the_last_readers(most: int, steps: list[tuple[bool, int]]) -> None:
    """Against a table of all of them: the last `most` are there, and never more than twice that."""
    marks, model, at = ReadMarks(most), OrderedDict[int, int](), place(1, 0, 9)
    for now_ms, (is_put, offset) in enumerate(steps):
        if is_put:
            marks.put(offset, at, 7, now_ms)
            model.pop(offset, None)
            model[offset] = now_ms
        else:
            found = marks.take(TOPIC_ID, 3, offset)
            recent = list(model)[-most:] if most else []
            if offset in recent:
                assert found is not None
            assert found is None or found == (at, 7, model[offset])
            model.pop(offset, None)
            assert marks.take(TOPIC_ID, 3, offset) is None
        assert len(marks) <= 2 * most


def test_marks_hold_their_places_no_longer_than_they_last() -> None:
    marks, one = ReadMarks(2), place(1, 0, 9)
    kept = weakref.ref(one.segment)
    marks.put(5, one, 7, 0)
    assert marks.take("AAAAAAAAAAAAAAAAAAAAAg", 3, 5) is None
    assert marks.take(TOPIC_ID, 4, 5) is None
    del one
    assert kept() is not None
    marks.clear()
    assert kept() is None
    assert len(marks) == 0


def test_marks_of_two_partitions_are_two(tmp_path: Path) -> None:
    marks, one = ReadMarks(100), place(1, 0, 9)
    other = Place(Segment(2, partition=4), 0, 9, "key 2")
    for offset in range(50):
        marks.put(offset, one, 1, offset)
        marks.put(offset, other, 2, offset)
    assert len(marks) == 100
    for offset in range(50):
        assert marks.take(TOPIC_ID, 4, offset) == (other, 2, offset)
        assert marks.take(TOPIC_ID, 3, offset) == (one, 1, offset)
    for bad in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="0 or more"):
            marks.put(bad[0], one, bad[1], 0)
    assert len(marks) == 0
    # A mark that was taken is nobody's, by whatever number.
    assert marks.take(TOPIC_ID, 3, -1) is None
    assert marks.take(TOPIC_ID, 3, 2**70) is None


def test_a_mark_goes_while_its_place_takes_others_along() -> None:
    """What goes with an old mark may use the marks itself."""
    marks = ReadMarks(3)
    seen = []
    for number in range(20):
        gone = place(number, 0, 9)
        weakref.finalize(gone.segment, lambda: seen.append(marks.take(TOPIC_ID, 3, 5)))
        marks.put(100 + number, gone, 1, 2)
        del gone
    assert len(seen) >= 12
    assert len(marks) <= 6


# -- open files


def opened_file(path: Path) -> _core.ReadFile:
    with path.open("rb") as opened:
        return _core.ReadFile(opened.fileno())


def test_files_stay_open_for_so_long_and_so_many(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    now_ms = [0]
    files = OpenFiles(2, 1_000, lambda: now_ms[0])
    first = opened_file(tmp_path / "one")
    files.put("a", first)
    assert files.get("a") is first
    assert files.get("b") is None
    now_ms[0] = 999
    assert files.get("a") is first
    now_ms[0] = 1_000
    assert files.get("a") is None
    # Opened anew, it is the one that stays when there are too many.
    files.put("b", opened_file(tmp_path / "one"))
    files.put("a", first)
    files.put("c", opened_file(tmp_path / "one"))
    assert (files.get("a"), files.get("b"), len(files)) == (first, None, 2)
    files.forget("a")
    files.forget("never there")
    assert files.get("a") is None


def test_a_file_closes_when_the_last_reader_has_let_go(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    files = OpenFiles(2, 1_000)
    files.put("a", opened_file(tmp_path / "one"))
    file = files.get("a")
    assert file is not None
    descriptor = file.fileno()
    files.forget("a")
    assert os.pread(descriptor, 1, 0) == b"1"
    identity = os.fstat(descriptor)
    del file
    with suppress(OSError):
        # Somebody else's by now, if it is one.
        assert not os.path.samestat(os.fstat(descriptor), identity)


# -- reads


class Reads:
    """Reads of one segment of batches of two records, and everything they look at."""

    def __init__(
        self,
        folder: Path,
        limit_bytes: int = 1 << 20,
        now_ms: Callable[[], int] | None = lambda: 4711,
    ) -> None:
        batches = [made_batch(2 * row, size=500, records=2) for row in range(60)]
        ends = [sum(map(len, batches[:row])) for row in range(61)]
        data = b"".join(struct.pack(">ii", 2 * row + 1, ends[row]) for row in range(5, 60, 5))
        self.batches, path = batches, folder / "segment.log"
        path.write_bytes(b"".join(batches))
        with path.open("rb") as opened:
            self.file: _core.ReadFile | None = _core.ReadFile(opened.fileno())
        self.index: _core.SegmentIndex | None = _core.SegmentIndex(data, b"", 0, 119, ends[60])
        self.asked: list[Place] = []
        self.place = place(1, 0, 119)
        self.table = PlaceTable(lambda _partition: 1, ChangeCount(), 10)
        self.table.keep(PARTITION, KnownPlaces(1, None, (self.place,)))
        self.cache = IndexCache(1 << 20)
        self.now_ms, self.opened = 0, 0
        self.files = OpenFiles(2, 1_000, lambda: self.now_ms)
        self.distrusted: set[object] = set()
        self.streams: set[tuple[str, int, int]] = set()
        self.budget = ByteBudget(limit_bytes, 0, lambda: None)
        self.marks = ReadMarks(10)
        self.reads = FileReads(
            RemoteRead,
            self.table,
            self.index_of,
            self.cache,
            self.distrusted,
            self.files,
            self.open_file,
            self.budget,
            self.streams,
            self.marks,
            now_ms,
            64 << 10,
        )

    def index_of(self, asked: Place) -> _core.SegmentIndex | None:
        self.asked.append(asked)
        return self.index

    def open_file(self, _key: str) -> _core.ReadFile | None:
        self.opened += 1
        return self.file

    def read(self, offset: int = 51, max_bytes: int = 1, upper: int = 2**70) -> RemoteRead | None:
        return self.reads.read(PARTITION, None, offset, max_bytes, upper, True)


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    return Reads(tmp_path)


def test_a_read_is_whole(reads: Reads) -> None:
    found = reads.read(51, 2_500)
    assert found is not None
    assert bytes(found.records) == reads.batches[25] + reads.batches[26]
    assert (found.first_offset, found.next_offset, found.requests) == (50, 54, 1)
    assert found.segment is reads.place.segment
    start = sum(map(len, reads.batches[:25]))
    assert (found.start_position, found.end_position) == (start, start + len(found.records))  # type: ignore[arg-type]
    assert reads.marks.take(TOPIC_ID, 3, 54) == (reads.place, found.end_position, 4711)
    # With what was read around it.
    size_bytes = found.end_position - found.start_position
    assert size_bytes <= reads.budget.used_bytes <= 4 * size_bytes
    del found
    assert reads.budget.used_bytes == 0


def test_without_a_clock_the_machines_own_dates_a_mark(tmp_path: Path) -> None:
    reads = Reads(tmp_path, now_ms=None)
    before_ms = time.monotonic_ns() // 1_000_000
    found = reads.read()
    after_ms = time.monotonic_ns() // 1_000_000
    assert found is not None
    mark = reads.marks.take(TOPIC_ID, 3, found.next_offset)
    assert mark is not None
    # The coarse clock is a tick behind, of 10 ms at most.
    assert before_ms - 100 <= mark[2] <= after_ms


def test_what_is_not_the_usual_read_is_left_alone(reads: Reads) -> None:
    assert reads.read(upper=51) is None
    assert reads.read(offset=120) is None
    assert reads.read(offset=2**64) is None
    # Before the first entry of the index.
    assert reads.read(offset=3) is None
    reads.streams.add((TOPIC_ID, 3, 51))
    assert reads.read() is None
    reads.streams.clear()
    reads.marks.put(51, reads.place, 0, 0)
    assert reads.read() is None
    # Still there for who takes it.
    assert reads.marks.take(TOPIC_ID, 3, 51) is not None
    file, reads.file = reads.file, None
    assert reads.read() is None
    reads.file, index, reads.index = file, reads.index, None
    assert reads.read() is None
    reads.index = index
    reads.reads.closed = True
    assert reads.read() is None
    assert reads.budget.used_bytes == 0
    assert len(reads.marks) == 0
    reads.reads.closed = False
    assert reads.read() is not None


def test_there_is_no_read_without_room(tmp_path: Path) -> None:
    reads = Reads(tmp_path, 2_000)
    first = reads.read()
    assert first is not None
    assert reads.read(71) is None
    del first
    assert reads.read(71) is not None
    reads.budget.closed = True
    assert reads.read() is None
    assert reads.budget.take(1) is None
    reads.budget.closed, reads.budget.guarded = False, True
    assert reads.read() is None


def test_an_entry_of_the_cache_that_was_compared_is_not_asked_for(reads: Reads) -> None:
    entry = SimpleNamespace(asked=None, index=reads.index)
    reads.cache.put(reads.place.index_key, entry, 1)
    assert reads.read() is not None
    assert reads.asked == [reads.place]
    entry.asked = reads.place.segment
    reads.index = None
    assert reads.read() is not None
    assert len(reads.asked) == 1
    reads.distrusted.add("somebody")
    assert reads.read() is None
    assert len(reads.asked) == 2
    reads.distrusted.clear()
    entry.index = None
    assert reads.read() is None
    reads.cache.remove(reads.place.index_key)
    assert reads.read() is None
    assert len(reads.asked) == 4


def test_other_things_than_indexes_and_files_are_refused(reads: Reads) -> None:
    reads.index = "no index"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="SegmentIndex"):
        reads.read()
    with pytest.raises(TypeError):
        reads.read(offset="51")  # type: ignore[arg-type]
    assert reads.budget.used_bytes == 0


def test_an_open_file_is_not_asked_for(reads: Reads) -> None:
    assert reads.file is not None
    reads.files.put(reads.place.log_key, reads.file)
    assert reads.read() is not None
    assert reads.opened == 0
    reads.now_ms = 1_000
    assert reads.read(71) is not None
    assert reads.opened == 1


def test_marks_outlast_what_is_known_of_a_partition(reads: Reads) -> None:
    """A mark is the partition's, not the place's."""
    found = reads.read()
    assert found is not None
    again = place(1, 0, 119)
    reads.table.keep(PARTITION, KnownPlaces(1, None, (again,)))
    assert reads.read(found.next_offset) is None
    assert reads.marks.take(TOPIC_ID, 3, found.next_offset) is not None


def test_a_few_bytes_do_not_keep_many(tmp_path: Path) -> None:
    """The first read of a batch between two entries brings all five."""
    reads = Reads(tmp_path)
    found = reads.read(58)
    assert found is not None
    assert bytes(found.records) == reads.batches[29]
    assert reads.budget.used_bytes == len(reads.batches[29])


def test_a_truncated_file_has_no_answer(reads: Reads, tmp_path: Path) -> None:
    os.truncate(tmp_path / "segment.log", sum(map(len, reads.batches[:40])))
    assert reads.read(101) is None
    assert reads.read(51) is not None
