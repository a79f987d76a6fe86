"""The SQLite metadata store's file when it is old, foreign, damaged or hostile."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.primitives import crc32c
from tests.proofs import usually
from tierlog import _core
from tierlog.errors import CorruptDataError, RemoteMetadataError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.schema import SCHEMA
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.testing.events import MARKED, cut, delete_partition, finish, move
from tierlog.testing.segments import DELETING, FINISHED, PARTITION, STARTED, partition_of, segment

ROOT = Path(__file__).resolve().parents[3]
GOLDEN_V2 = ROOT / "tests" / "data" / "metadata" / "v2.sqlite"
PAYMENTS = partition_of("payments", 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.fixture
def old(path: Path) -> Path:
    """A copy of a file of schema version 2, as the code of that time left it."""
    shutil.copy(GOLDEN_V2, path)
    return path


@pytest.fixture
def written(path: Path) -> Path:
    """A file with something in every table."""
    manager = SqliteRemoteLogMetadataManager(path)
    finish(
        manager,
        segment(
            "a",
            0,
            99,
            epochs=((0, 0), (3, 50)),
            bytes_per_epoch=((0, 60), (3, 40)),
            custom_metadata=b"locator",
            log_crc32c=7,
        ),
        leader_epoch=4,
    )
    cut(manager, segment("a", 0, 99), 70)
    manager.add(segment("b", 100, 199, epochs=((3, 50),)))
    manager.advance_log_start_offset(PARTITION, 5)
    finish(manager, segment("c", 0, 9, partition=PAYMENTS))
    delete_partition(manager, MARKED, partition=PAYMENTS)
    manager.close()
    return path


def change(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        database.execute(statement)
    database.close()


def seal(path: Path) -> None:
    """Give each row the checksum of the values that it has now."""
    database = sqlite3.connect(path, isolation_level=None)
    for table in ("partition", "epoch", "segment"):
        try:
            rows = database.execute(f"SELECT * FROM {table}").fetchall()
        except sqlite3.OperationalError:
            # Text that is none: SQLite itself finds it.
            continue
        database.execute(f"DELETE FROM {table}")
        for row in rows:
            with suppress(TypeError):
                row = (*row[:-1], _core.row_checksum(row[:-1]))
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    database.close()


def ask(path: Path) -> None:
    """Open it and ask for every segment."""
    manager = SqliteRemoteLogMetadataManager(path)
    try:
        for partition in manager.partitions():
            manager.list(partition)
    finally:
        manager.close()


def version_of(path: Path) -> int:
    database = sqlite3.connect(path)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    return int(version)


def content(path: Path) -> list[str]:
    database = sqlite3.connect(path)
    lines = list(database.iterdump())
    database.close()
    return lines


# -- version 2


def segments_of_version_2() -> list[RemoteLogSegmentMetadata]:
    """What was put into the golden file."""
    after: dict[str, Any] = {"event_timestamp_ms": 6_000, "broker_id": 2, "state": FINISHED}
    return [
        segment(
            "full",
            0,
            99,
            epochs=((0, 0), (3, 50)),
            bytes_per_epoch=((0, 60), (3, 40)),
            custom_metadata=b"\x00locator",
            log_crc32c=0xFFFFFFFF,
            txn_index_empty=True,
            **after,
        ),
        segment(
            "foreign",
            100,
            199,
            epochs=((3, 50), (4, 150), (5, 150), (7, 180)),
            size_bytes=500,
            **after,
        ),
        segment(
            "deleting",
            200,
            249,
            epochs=((7, 180),),
            log_crc32c=0,
            **{**after, "event_timestamp_ms": 6_001, "state": DELETING},
        ),
        segment("started", 250, 299, epochs=((7, 180),), custom_metadata=b"", state=STARTED),
    ]


def test_version_2_is_taken_over(old: Path) -> None:
    for _ in range(2):
        manager = SqliteRemoteLogMetadataManager(old)
        assert list(manager.list(PARTITION)) == segments_of_version_2()
        epochs = (0, 1, 3, 4, 5, 7, 8)
        sizes = [manager.remote_log_size(PARTITION, epoch) for epoch in epochs]
        assert sizes == [60, 0, 40, 0, 0, 500, 0]
        highest = [manager.highest_offset_for_epoch(PARTITION, epoch) for epoch in epochs]
        assert highest == [49, None, 149, None, 179, 249, 399]
        (far,) = manager.list(PAYMENTS)
        assert (far.start_offset, far.end_offset) == (2**62, 2**63 - 2)
        assert far.leader_epochs == ((2**31 - 1, 2**62),)
        assert far.segment_size_bytes == manager.remote_log_size(PAYMENTS, 2**31 - 1) == 2**31 - 1
        assert manager.leader_epoch(PARTITION) == -1
        assert manager.log_start_offset(PARTITION) is None
        manager.close()
        assert version_of(old) == 3
    change(old, "PRAGMA integrity_check")


def test_version_2_goes_on(old: Path) -> None:
    manager = SqliteRemoteLogMetadataManager(old)
    started = segments_of_version_2()[-1]
    move(manager, started, FINISHED, leader_epoch=9)
    manager.close()
    manager = SqliteRemoteLogMetadataManager(old)
    assert manager.remote_log_size(PARTITION, 7) == 600
    assert manager.highest_offset_for_epoch(PARTITION, 7) == 299
    assert manager.leader_epoch(PARTITION) == 9
    manager.close()


@pytest.mark.parametrize("rows", range(1, 6))
def test_killed_half_way_version_2_is_as_it_was(old: Path, rows: int) -> None:
    before = content(old)
    script = (
        "import os, signal, sys\n"
        "from tierlog.remote.metadata import schema\n"
        "from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager\n"
        "left, sealed = int(sys.argv[2]), schema.with_checksum\n"
        "def dying(*values):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if not left: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return sealed(*values)\n"
        "schema.with_checksum = dying\n"
        "SqliteRemoteLogMetadataManager(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", script, str(old), str(rows)]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    assert version_of(old) == 2
    assert content(old) == before
    test_version_2_is_taken_over(old)


def test_without_room_version_2_is_as_it_was(old: Path) -> None:
    before = content(old)
    script = (
        "import resource, sys\n"
        "from tierlog.errors import RemoteMetadataError\n"
        "from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))\n"
        "try: SqliteRemoteLogMetadataManager(sys.argv[1])\n"
        "except RemoteMetadataError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(old)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "cannot open the database" in done.stdout
    assert version_of(old) == 2
    assert content(old) == before
    test_version_2_is_taken_over(old)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE segment SET state = 9",
        "UPDATE segment SET state = 1.5",
        "UPDATE segment SET segment_id = CAST(x'ff' AS TEXT)",
        "UPDATE epoch SET highest_offset = 'x'",
        "UPDATE partition SET topic = '../up'",
    ],
)
def test_damage_of_version_2_is_found_afterwards_too(old: Path, damage: str) -> None:
    change(old, damage)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=str(old)) as caught:
            ask(old)
        assert caught.value.hint is not None
        assert "run tierlog tier" in caught.value.hint


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER TABLE segment ADD COLUMN more",
        "DROP TABLE epoch",
        "CREATE TRIGGER t AFTER DELETE ON segment BEGIN DELETE FROM epoch; END",
    ],
)
def test_a_damaged_version_2_is_refused_and_left_alone(old: Path, damage: str) -> None:
    change(old, damage)
    before = content(old) if "CAST" not in damage else []
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=str(old)) as caught:
            SqliteRemoteLogMetadataManager(old)
        assert caught.value.hint is not None
        assert "run tierlog tier" in caught.value.hint
    assert version_of(old) == 2
    assert not before or content(old) == before


# -- version 3


def test_the_documented_schema_is_the_one_in_use() -> None:
    documented = (ROOT / "docs" / "FORMATS.md").read_text(encoding="utf-8")
    assert f"```sql{SCHEMA}```" in documented


def test_not_a_database(path: Path) -> None:
    path.write_bytes(b"something else entirely " * 100)
    with pytest.raises(CorruptDataError, match="expected an SQLite database") as caught:
        SqliteRemoteLogMetadataManager(path)
    assert caught.value.path == str(path)
    assert path.read_bytes() == b"something else entirely " * 100


def test_a_database_of_somebody_else(path: Path) -> None:
    change(path, "CREATE TABLE mine (x)")
    before = path.read_bytes()
    with pytest.raises(CorruptDataError, match=r"application_id 0.*choose another file"):
        SqliteRemoteLogMetadataManager(path)
    assert path.read_bytes() == before
    path.unlink()
    change(path, "PRAGMA application_id = 7")
    with pytest.raises(CorruptDataError, match="application_id 7"):
        SqliteRemoteLogMetadataManager(path)


def test_a_later_schema(written: Path) -> None:
    change(written, "PRAGMA user_version = 4")
    with pytest.raises(CorruptDataError, match="user_version 2 or 3, found user_version 4"):
        SqliteRemoteLogMetadataManager(written)


def test_an_earlier_schema(written: Path) -> None:
    change(written, "PRAGMA user_version = 1")
    before = written.read_bytes()
    with pytest.raises(CorruptDataError, match=r"found user_version 1 .*run tierlog tier"):
        SqliteRemoteLogMetadataManager(written)
    assert written.read_bytes() == before


def test_statistics_of_sqlite_are_no_damage(written: Path) -> None:
    change(written, "ANALYZE")
    ask(written)


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE epoch",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON segment (end_offset)",
        "CREATE VIEW more AS SELECT * FROM segment",
        "CREATE TRIGGER t AFTER INSERT ON segment BEGIN DELETE FROM epoch; END",
        "ALTER TABLE segment ADD COLUMN more",
        "ALTER TABLE epoch RENAME COLUMN size_bytes TO size",
    ],
)
def test_other_tables_are_refused(written: Path, damage: str) -> None:
    change(written, damage)
    before = content(written)
    with pytest.raises(CorruptDataError, match=r"tables of schema version 3.*run tierlog tier"):
        SqliteRemoteLogMetadataManager(written)
    assert content(written) == before


OPENING = [
    "UPDATE partition SET topic_id = 'short'",
    "UPDATE partition SET topic = '../up'",
    "UPDATE partition SET topic = CAST(x'ff' AS TEXT)",
    "UPDATE partition SET partition = -1",
    "UPDATE partition SET partition = 0.5",
    "UPDATE partition SET partition = 'x'",
    "UPDATE partition SET number = number + 10",
    "UPDATE partition SET number = -number",
    "UPDATE partition SET leader_epoch = -2",
    "UPDATE partition SET leader_epoch = 2147483648",
    "UPDATE partition SET leader_epoch = 'x'",
    "UPDATE partition SET delete_state = 2",
    "UPDATE partition SET delete_state = 0.5",
    "UPDATE partition SET delete_state = 'x'",
    "UPDATE partition SET log_start_offset = -1",
    "UPDATE partition SET log_start_offset = x'00'",
    "DELETE FROM partition",
    "UPDATE epoch SET partition_number = partition_number + 77",
    "UPDATE epoch SET partition_number = 'x' || partition_number",
    "UPDATE epoch SET epoch = epoch - 100",
    "UPDATE epoch SET highest_offset = -5",
    "UPDATE epoch SET highest_offset = 'x'",
    "UPDATE epoch SET size_bytes = -1",
    "UPDATE epoch SET size_bytes = 1.5",
    "UPDATE segment SET partition_number = 77",
    "UPDATE segment SET partition_number = 'x' || partition_number",
]
TWICE = """INSERT INTO segment SELECT partition_number, start_offset + 1, segment_id, end_offset,
    max_timestamp_ms, event_timestamp_ms, broker_id, 0, size_bytes, first_epoch, first_epoch_offset,
    txn_index_empty, log_crc32c, truncation_offset, later_epochs, epoch_sizes, NULL, checksum
    FROM segment"""
ASKING = [
    "UPDATE segment SET segment_id = 'short'",
    "UPDATE segment SET segment_id = 7",
    "UPDATE segment SET segment_id = x'00'",
    "UPDATE segment SET start_offset = -1",
    "UPDATE segment SET start_offset = 0.5",
    "UPDATE segment SET start_offset = 'x'",
    "UPDATE segment SET end_offset = start_offset - 1",
    "UPDATE segment SET end_offset = 9223372036854775807",
    "UPDATE segment SET end_offset = end_offset + 0.5",
    "UPDATE segment SET max_timestamp_ms = 'x'",
    "UPDATE segment SET event_timestamp_ms = x''",
    "UPDATE segment SET broker_id = 2147483648",
    "UPDATE segment SET broker_id = 1.5",
    "UPDATE segment SET state = 3",
    "UPDATE segment SET state = -1",
    "UPDATE segment SET state = 0.5",
    "UPDATE segment SET size_bytes = -1",
    "UPDATE segment SET size_bytes = 2147483648",
    "UPDATE segment SET first_epoch = -1",
    "UPDATE segment SET first_epoch = 9",
    "UPDATE segment SET first_epoch_offset = start_offset + 1",
    "UPDATE segment SET txn_index_empty = 2",
    "UPDATE segment SET txn_index_empty = 'x'",
    "UPDATE segment SET log_crc32c = -1",
    "UPDATE segment SET log_crc32c = 4294967296",
    "UPDATE segment SET log_crc32c = ''",
    "UPDATE segment SET log_crc32c = 0.5",
    "UPDATE segment SET truncation_offset = -1",
    "UPDATE segment SET truncation_offset = x''",
    "UPDATE segment SET truncation_offset = 10",
    "UPDATE segment SET later_epochs = x'00'",
    "UPDATE segment SET later_epochs = 'twelve bytes'",
    "UPDATE segment SET later_epochs = zeroblob(12)",
    "UPDATE segment SET later_epochs = zeroblob(24)",
    "UPDATE segment SET epoch_sizes = x'00'",
    "UPDATE segment SET epoch_sizes = x''",
    "UPDATE segment SET epoch_sizes = zeroblob(12)",
    "UPDATE segment SET custom_metadata = 'text'",
    "UPDATE segment SET custom_metadata = 7",
    "UPDATE segment SET state = 2",
    "DELETE FROM segment WHERE state = 1 AND partition_number = 1",
    "UPDATE epoch SET size_bytes = size_bytes + 1",
    "UPDATE epoch SET highest_offset = highest_offset - 1",
    "UPDATE epoch SET highest_offset = NULL",
    "DELETE FROM epoch",
    TWICE,
]


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("damage", OPENING)
def test_damage_that_stops_the_opening(written: Path, damage: str, is_sealed: bool) -> None:
    change(written, damage)
    if is_sealed:
        seal(written)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=str(written)) as caught:
            SqliteRemoteLogMetadataManager(written)
        assert caught.value.hint is not None
        assert "run tierlog tier" in caught.value.hint


@pytest.mark.parametrize("damage", ASKING)
def test_damage_that_stops_the_first_question(written: Path, damage: str) -> None:
    change(written, damage)
    seal(written)
    manager = SqliteRemoteLogMetadataManager(written)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=str(written)) as caught:
            manager.list(PARTITION)
        assert caught.value.hint is not None
        assert "run tierlog tier" in caught.value.hint
        with pytest.raises(CorruptDataError):
            manager.add(segment("new", 500, 599), leader_epoch=5)
    assert manager.leader_epoch(PARTITION) == 4
    manager.close()


def test_damage_of_one_partition_leaves_the_others(written: Path) -> None:
    change(written, "UPDATE segment SET end_offset = -1 WHERE partition_number = 1")
    seal(written)
    manager = SqliteRemoteLogMetadataManager(written)
    assert len(manager.list(PAYMENTS)) == 1
    assert PARTITION in manager.partitions()
    with pytest.raises(CorruptDataError):
        manager.lookup(PARTITION, 0, 5)
    manager.close()


@pytest.mark.parametrize(
    "change_of_one",
    [
        "start_offset = -1",
        "end_offset = -1",
        "end_offset = 9223372036854775807",
        "end_offset = end_offset + 0.5",
        "first_epoch_offset = 1",
        "first_epoch = -1",
        "first_epoch = 2147483648",
        "size_bytes = -1",
        "size_bytes = 2147483648",
        "state = 3",
        "txn_index_empty = 2",
        "segment_id = 7",
    ],
)
def test_a_damaged_segment_is_never_just_not_there(path: Path, change_of_one: str) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    finish(manager, segment("a", 0, 9, size_bytes=0))
    manager.close()
    change(path, f"UPDATE segment SET {change_of_one}")
    seal(path)
    manager = SqliteRemoteLogMetadataManager(path)
    with pytest.raises(CorruptDataError, match=str(path)):
        manager.lookup(PARTITION, 0, 5)
    manager.close()


def test_damage_of_one_row_is_found_when_it_is_asked_for(path: Path) -> None:
    """What is needed to find a segment is looked at with the partition, the rest with the row."""
    manager = SqliteRemoteLogMetadataManager(path)
    finish(manager, segment("a", 0, 9), segment("b", 10, 19))
    manager.close()
    change(path, "UPDATE segment SET broker_id = 'x' WHERE start_offset = 10")
    seal(path)
    manager = SqliteRemoteLogMetadataManager(path)
    found = manager.lookup(PARTITION, 0, 5)
    assert found is not None
    assert found.start_offset == 0
    for _ in range(2):
        for ask_for_it in (
            lambda: manager.lookup(PARTITION, 0, 15),
            lambda: manager.list(PARTITION),
            lambda: list(manager.segments_by_timestamp(PARTITION, 0)),
            lambda: move(manager, segment("b", 10, 19), DELETING),
        ):
            with pytest.raises(CorruptDataError, match=str(path)):
                ask_for_it()
    assert manager.remote_log_size(PARTITION, 0) == 200
    manager.close()


def test_a_row_with_another_value_is_named(written: Path) -> None:
    change(written, "UPDATE segment SET event_timestamp_ms = event_timestamp_ms + 1")
    manager = SqliteRemoteLogMetadataManager(written)
    with pytest.raises(CorruptDataError) as refused:
        manager.list(PARTITION)
    assert f"in table segment of {PARTITION}, row with partition_number 1, start_offset 0" in str(
        refused.value
    )
    assert "tierlog tier" in str(refused.value)
    manager.close()


def test_the_checksum_of_a_row_is_the_documented_one(written: Path) -> None:
    database = sqlite3.connect(written)
    for table in ("partition", "epoch", "segment"):
        for *values, checksum in database.execute(f"SELECT * FROM {table}"):
            data = b""
            for value in values:
                if value is None:
                    data += b"\0"
                elif isinstance(value, int):
                    data += b"\1" + value.to_bytes(8, "big", signed=True)
                else:
                    is_text = isinstance(value, str)
                    content_of = value.encode() if is_text else value
                    data += b"\2" if is_text else b"\3"
                    data += len(content_of).to_bytes(8, "big") + content_of
            assert checksum == crc32c(data)
    database.close()


def test_a_file_that_lost_its_list_of_tables_is_not_empty(written: Path) -> None:
    damaged = bytearray(written.read_bytes())
    # How many tables the first page lists, after the header of the file.
    assert int.from_bytes(damaged[103:105], "big") == 4
    damaged[104] = 0
    written.write_bytes(damaged)
    with pytest.raises(CorruptDataError, match=r"bad_schema.*run tierlog tier"):
        SqliteRemoteLogMetadataManager(written)
    assert version_of(written) == 3


@pytest.mark.parametrize("number", [1, 2])
def test_a_partition_that_lost_all_its_segments_is_not_empty(written: Path, number: int) -> None:
    change(written, f"DELETE FROM segment WHERE partition_number = {number}")
    partition = PARTITION if number == 1 else PAYMENTS
    manager = SqliteRemoteLogMetadataManager(written)
    assert partition in manager.partitions()
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"bad_row.*run tierlog tier"):
            manager.list(partition)
    manager.close()


def test_a_file_that_lost_its_end(written: Path) -> None:
    whole = written.read_bytes()
    for size_bytes in range(1, len(whole), 511):
        written.write_bytes(whole[:size_bytes])
        with pytest.raises(CorruptDataError, match="run tierlog tier"):
            SqliteRemoteLogMetadataManager(written)
        assert written.read_bytes() == whole[:size_bytes]


def answers(path: Path) -> list[object]:
    """All that the file says."""
    manager = SqliteRemoteLogMetadataManager(path)
    try:
        return [
            (
                partition,
                list(manager.list(partition)),
                manager.leader_epoch(partition),
                manager.log_start_offset(partition),
                manager.partition_delete_state(partition),
                [manager.remote_log_size(partition, epoch) for epoch in range(5)],
                [manager.highest_offset_for_epoch(partition, epoch) for epoch in range(5)],
            )
            for partition in sorted(manager.partitions(), key=str)
        ]
    finally:
        manager.close()


def test_damaged_bytes_are_an_error_or_change_no_answer(written: Path) -> None:
    whole, expected = written.read_bytes(), answers(written)
    # Most of the file is room for more rows.
    filled = [position for position, byte in enumerate(whole) if byte]
    chance = random.Random(4)
    refused = 0
    for _ in range(usually(1_500, thorough=60_000)):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 8])):
            place = filled if chance.random() < 0.9 else range(len(whole))
            damaged[chance.choice(place)] ^= 1 << chance.randrange(8)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{written}{suffix}").unlink(missing_ok=True)
        written.write_bytes(damaged)
        try:
            assert answers(written) == expected
        except (CorruptDataError, RemoteMetadataError):
            refused += 1
    assert refused > 500


def test_damage_of_the_schema_text_is_an_error_in_words(written: Path) -> None:
    """SQLite quotes the damaged schema in its message, which is no text then."""
    sound = written.read_bytes()
    begin = sound.index(b"CREATE TABLE")
    for position in range(begin, begin + 400, 7):
        for byte in (0x00, 0x80, 0xC3, 0xFF):
            damaged = bytearray(sound)
            damaged[position] = byte
            written.write_bytes(damaged)
            with pytest.raises((CorruptDataError, RemoteMetadataError)) as raised:
                SqliteRemoteLogMetadataManager(written)
            assert str(written) in str(raised.value)
