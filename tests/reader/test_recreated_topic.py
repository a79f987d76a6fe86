"""A topic that is deleted, and created again under its name, while it is read: no record of one is
taken for one of the other, and what is missing is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import tierlog
from tests.tiering.topic_lives import END, NAME, NEW, OLD, Lives, RecordRow
from tierlog.columns import RecordColumns
from tierlog.errors import OutOfRangeError
from tierlog.log.log_dir import open_log_dir
from tierlog.log.same_log import VanishedError
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.open import open_reader
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager

NAMES = pytest.mark.parametrize("topic", [NAME, OLD.partition.topic_id], ids=["name", "id"])
ISOLATIONS = pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    return Lives(tmp_path)


def rows_of(pieces: Iterable[RecordColumns]) -> list[RecordRow]:
    return [(one.offset, one.value) for piece in pieces for one in piece.records()]


def until_error(
    pieces: Iterator[RecordColumns], error: type[BaseException]
) -> tuple[list[RecordRow], str]:
    """The rows before an error, and what it says."""
    rows: list[RecordRow] = []
    try:
        for piece in pieces:
            rows += rows_of([piece])
    except error as raised:
        return rows, str(raised)
    pytest.fail(f"no error after {len(rows)} records")


@NAMES
@ISOLATIONS
@pytest.mark.parametrize("read_before", range(3))
def test_a_directory_alone(lives: Lives, topic: str, isolation: str, read_before: int) -> None:
    """Whoever began with the old one gets its records or an error, never the new one's."""
    reader = LocalReader(open_log_dir(lives.logs))
    pieces = tierlog.read(lives.logs, topic, 0, isolation_level=isolation)  # type: ignore[arg-type]
    rows = [row for _ in range(read_before) for row in rows_of([next(pieces)])]
    assert rows == OLD.rows[: read_before * 20]
    lives.recreate()
    if read_before:
        more, text = until_error(pieces, VanishedError)
        assert more == []
        assert NEW.partition.topic_id in text
    elif topic == NAME:
        assert rows_of(pieces) == NEW.rows
    else:
        until_error(pieces, OutOfRangeError)
    assert rows_of(reader.read(NAME, 0, 0)) == NEW.rows


@NAMES
@ISOLATIONS
@pytest.mark.parametrize("border", [0, 20, 40])
@pytest.mark.parametrize("recreated", [True, False])
@pytest.mark.parametrize("read_before", [1, 2, 3])
def test_a_directory_and_its_store(
    lives: Lives, topic: str, isolation: str, border: int, recreated: bool, read_before: int
) -> None:
    """What the store has of the old topic is read to its end, and then it is said that there was
    more."""
    lives.copy(InMemoryRemoteLogMetadataManager())
    lives.delete_below(border)
    pieces = tierlog.read(
        lives.logs,
        topic,
        0,
        store=lives.url,
        isolation_level=isolation,  # type: ignore[arg-type]
    )
    rows: list[RecordRow] = []
    for _ in range(read_before):
        rows += rows_of([next(pieces)])
    if recreated:
        lives.recreate()
        lives.copy(InMemoryRemoteLogMetadataManager())
    else:
        lives.delete()
    if len(rows) == END:
        assert rows_of(pieces) == []
    else:
        more, text = until_error(pieces, OutOfRangeError)
        rows += more
        assert rows == OLD.rows[: max(40, len(rows))]
        assert f"{topic}-0" in text
        assert str(len(rows)) in text
    assert rows == OLD.rows[: len(rows)]


def test_an_end_that_the_store_still_reaches(lives: Lives) -> None:
    lives.copy(InMemoryRemoteLogMetadataManager())
    pieces = tierlog.read(lives.logs, NAME, 0, 0, 35, store=lives.url)
    rows = rows_of([next(pieces)])
    lives.recreate()
    assert rows + rows_of(pieces) == OLD.rows[:35]


def test_what_was_copied_before_it_was_deleted(lives: Lives) -> None:
    """The store is looked at once more."""
    lives.copy(InMemoryRemoteLogMetadataManager(), 0, 20)
    pieces = tierlog.read(lives.logs, NAME, 0, store=lives.url)
    rows = rows_of([next(pieces)])
    lives.copy(InMemoryRemoteLogMetadataManager(), 20, 40)
    lives.recreate()
    assert rows + until_error(pieces, OutOfRangeError)[0] == OLD.rows[:40]


@ISOLATIONS
def test_a_store_with_both_beside_the_directory_of_one(lives: Lives, isolation: str) -> None:
    """The name is that of the topic which the directory has."""
    metadata = InMemoryRemoteLogMetadataManager()
    lives.copy(metadata)
    lives.recreate()
    lives.copy(metadata)
    for border in (0, 20, 40):
        lives.delete_below(border)
        for topic in (NAME, NEW.partition.topic_id):
            reader = open_reader(
                lives.logs,
                store=lives.url,
                isolation_level=isolation,  # type: ignore[arg-type]
            )
            assert rows_of(reader.read(topic, 0, 0)) == NEW.rows
            assert reader.bounds(topic, 0) == (0, END)
            assert reader.offset_for_timestamp(topic, 0, NEW.first_ms + 7) == 7
            names = {one.name for one in reader.segments(topic, 0) if "://" not in one.name}
            assert not any(OLD.partition.topic_id in name for name in names)
        old = rows_of(tierlog.read(lives.logs, OLD.partition.topic_id, 0, store=lives.url))
        assert old == OLD.rows[:40], "what is left of the old one"


def test_a_store_with_the_old_one_beside_the_directory_of_the_new_one(lives: Lives) -> None:
    lives.copy(InMemoryRemoteLogMetadataManager())
    lives.recreate()
    lives.delete_below(40)
    reader = open_reader(lives.logs, store=lives.url)
    assert rows_of(reader.read(NAME, 0, 0)) == NEW.rows[40:]
    assert reader.bounds(NAME, 0) == (40, END)
    assert reader.offset_for_timestamp(NAME, 0, 0) == 40


def test_a_directory_that_does_not_know_its_topic_beside_two_of_the_name(lives: Lives) -> None:
    """Which of them it is nobody can tell: that is an error, and not as if there were none."""
    lives.copy(InMemoryRemoteLogMetadataManager())
    lives.recreate()
    lives.copy(InMemoryRemoteLogMetadataManager())
    lives.delete_below(40)
    (lives.directory / "partition.metadata").unlink()
    reader = open_reader(lives.logs, store=lives.url)
    for ask in (
        lambda: rows_of(reader.read(NAME, 0, 0)),
        lambda: reader.bounds(NAME, 0),
        lambda: reader.segments(NAME, 0),
        lambda: reader.offset_for_timestamp(NAME, 0, 0),
    ):
        with pytest.raises(OutOfRangeError, match="several topics"):
            ask()
