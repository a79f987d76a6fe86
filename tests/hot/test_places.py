"""Look-ups of each read: the place of an offset, and files that stay open."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog import _core
from tierlog._hot import ChangeCount, KnownPlaces, OpenFiles, Place, PlaceTable
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
    assert table.find(PARTITION, "lineage", 5) is one
    assert table.find(PARTITION, "lineage", 10) is None
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
