"""What the usual read of a file looks up: places, marks, and whether it is the usual one at all."""

from __future__ import annotations

import os
import struct
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiering.fetch.tier import made_batch
from tierlog import _core
from tierlog._hot import (
    ByteBudget,
    FileReads,
    IndexCache,
    KnownPlaces,
    Place,
    PlaceTable,
    ReadMarks,
)
from tierlog.tiering.fetch.remote import RemoteRead
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PARTITION = TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=3)


class Segment:
    """What is asked of a segment's metadata here: its name."""

    def __init__(self, number: int) -> None:
        self.segment_id = RemoteLogSegmentId(topic_id_partition=PARTITION, id=f"{number:021d}A")


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
    changes = {PARTITION: 1}
    table = PlaceTable(changes.__getitem__, 2)
    one = place(1, 0, 9)
    assert table.current(PARTITION, "lineage").at(5) is None
    table.keep(PARTITION, KnownPlaces(1, "lineage", (one,)))
    assert table.current(PARTITION, "lineage").at(5) is one
    assert table.current(PARTITION, "another").at(5) is None
    changes[PARTITION] = 2
    assert table.current(PARTITION, "lineage").at(5) is None
    assert table.current(PARTITION, "lineage").change == 2
    changes[PARTITION] = 1
    table.forget(PARTITION)
    assert table.current(PARTITION, "lineage").at(5) is None


def test_a_table_keeps_so_many_partitions() -> None:
    table = PlaceTable(lambda _partition: 1, 2)
    names = [TopicIdPartition(topic_id=TOPIC_ID, topic="t", partition=n) for n in range(4)]
    for name in names:
        table.keep(name, KnownPlaces(1, None, (place(1, 0, 9),)))
    assert [table.current(name, None).at(0) is None for name in names] == [True, True, False, False]


def test_errors_of_who_is_asked_come_through() -> None:
    table = PlaceTable({}.__getitem__, 2)
    with pytest.raises(KeyError):
        table.current(PARTITION, None)
    with pytest.raises(TypeError):
        Place(Segment(1), 0, 9, None)  # type: ignore[arg-type]


# -- marks


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60),
)
def test_marks_are_those_of_the_last_readers(most: int, steps: list[tuple[bool, int]]) -> None:
    """Against a table of all of them: the last `most` are there, and never more than twice that."""
    marks, model, at = ReadMarks(most), OrderedDict[int, int](), place(1, 0, 9)
    for now_ms, (is_put, offset) in enumerate(steps):
        if is_put:
            marks.put(TOPIC_ID, 3, offset, at, 7, now_ms)
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
    marks.put(TOPIC_ID, 3, 5, one, 7, 0)
    assert marks.take("AAAAAAAAAAAAAAAAAAAAAg", 3, 5) is None
    assert marks.take(TOPIC_ID, 4, 5) is None
    del one
    assert kept() is not None
    marks.clear()
    assert kept() is None
    assert len(marks) == 0


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
        self.index: _core.SegmentIndex | None = _core.SegmentIndex(data, 0, 119, ends[60])
        self.asked: list[Place] = []
        self.place = place(1, 0, 119)
        self.table = PlaceTable(lambda _partition: 1, 10)
        self.table.keep(PARTITION, KnownPlaces(1, None, (self.place,)))
        self.cache = IndexCache(1 << 20)
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
            lambda _key: self.file,
            self.budget,
            self.streams,
            self.marks,
            now_ms,
            64 << 10,
        )

    def index_of(self, asked: Place) -> _core.SegmentIndex | None:
        self.asked.append(asked)
        return self.index

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
    assert reads.budget.used_bytes == found.end_position - found.start_position
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
    reads.marks.put(TOPIC_ID, 3, 51, reads.place, 0, 0)
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


def test_a_truncated_file_has_no_answer(reads: Reads, tmp_path: Path) -> None:
    os.truncate(tmp_path / "segment.log", sum(map(len, reads.batches[:40])))
    assert reads.read(101) is None
    assert reads.read(51) is not None
