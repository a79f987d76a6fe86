"""What only the SQLite metadata manager risks: its file, its schema, its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.remote.metadata.histories import HISTORY_PARTITIONS, history
from tierlog.errors import RemoteMetadataError
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.testing.events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    cut,
    delete_partition,
    finish,
    found_at,
    move,
)
from tierlog.testing.segments import (
    DELETING,
    FINISHED,
    GONE,
    PARTITION,
    STARTED,
    partition_of,
    segment,
    uuid_of,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def test_everything_comes_back(path: Path) -> None:
    with_all = segment(
        "a",
        0,
        99,
        epochs=((0, 0), (3, 50)),
        bytes_per_epoch=((0, 60), (3, 40)),
        custom_metadata=b"\x00locator",
        log_crc32c=0xFFFFFFFF,
        txn_index_empty=True,
    )
    plain, gone = segment("b", 100, 199), segment("c", 200, 299)
    first = SqliteRemoteLogMetadataManager(path)
    finish(first, with_all, gone)
    first.add(plain)
    move(first, gone, DELETING, GONE)
    before = first.list(PARTITION)
    first.close()
    second = SqliteRemoteLogMetadataManager(path)
    assert second.list(PARTITION) == before
    assert before[0] == replace(with_all, state=FINISHED, event_timestamp_ms=6_000)
    assert second.highest_offset_for_epoch(PARTITION, 0) == 299
    assert second.remote_log_size(PARTITION, 3) == 40
    second.close()


def test_the_highest_offset_outlives_its_segment(path: Path) -> None:
    first = SqliteRemoteLogMetadataManager(path)
    longer = segment("longer", 0, 99)
    finish(first, longer)
    move(first, longer, DELETING, GONE)
    finish(first, segment("shorter", 0, 49))
    first.close()
    second = SqliteRemoteLogMetadataManager(path)
    assert second.highest_offset_for_epoch(PARTITION, 0) == 99
    second.close()


def test_leaders_cuts_deletions_and_log_starts_come_back(path: Path) -> None:
    first = SqliteRemoteLogMetadataManager(path)
    metadata = segment("a", 0, 99)
    finish(first, metadata, leader_epoch=6)
    cut(first, metadata, 40)
    other, gone = partition_of("orders", 1), partition_of("orders", 2)
    first.advance_log_start_offset(PARTITION, 17)
    first.claim_leadership(other, 3)
    delete_partition(first, MARKED, DELETION_STARTED, partition=other)
    first.claim_leadership(other, 4)
    finish(first, segment("b", 0, 9, partition=gone))
    steps = (MARKED, DELETION_STARTED, DELETION_FINISHED)
    delete_partition(first, *steps, partition=gone, leader_epoch=2)
    first.close()
    second = SqliteRemoteLogMetadataManager(path)
    assert [found_at(second, offset) for offset in (39, 40)] == [uuid_of("a"), None]
    assert second.highest_offset_for_epoch(PARTITION, 0) == 39
    leaders = [second.leader_epoch(name) for name in (PARTITION, other, gone)]
    assert leaders == [6, 4, 2]
    assert second.log_start_offset(PARTITION) == 17
    assert second.log_start_offset(other) is None
    assert second.partition_delete_state(other) is DELETION_STARTED
    assert second.partition_delete_state(gone) is None
    assert second.list(gone) == ()
    assert second.highest_offset_for_epoch(gone, 0) is None
    assert second.partitions() == (PARTITION, other)
    second.close()


def test_commits_wait_for_the_disk(path: Path) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    assert manager._file.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert manager._file.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    manager.close()


def test_load_is_durable(path: Path) -> None:
    first = SqliteRemoteLogMetadataManager(path)
    segments = [segment(str(n), n * 10, n * 10 + 9, state=FINISHED) for n in range(300)]
    first.load(segments)
    first.close()
    second = SqliteRemoteLogMetadataManager(path)
    assert list(second.list(PARTITION)) == segments
    assert second.highest_offset_for_epoch(PARTITION, 0) == 2_999
    second.close()


def test_one_process_at_a_time(path: Path) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    with pytest.raises(RemoteMetadataError, match="in use by another process"):
        SqliteRemoteLogMetadataManager(path)
    script = (
        "import sys; from tierlog.errors import RemoteMetadataError\n"
        "from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager\n"
        "try: SqliteRemoteLogMetadataManager(sys.argv[1])\n"
        "except RemoteMetadataError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert f"{path}: in use by another process" in done.stdout
    manager.close()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""


def test_a_killed_writer_leaves_before_or_after(path: Path) -> None:
    """Killed at any moment, twelve times on one file: what is there is what was acknowledged, or
    one event more."""
    script = (
        "import sys\n"
        "from tests.remote.metadata.histories import history\n"
        "from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager\n"
        "manager = SqliteRemoteLogMetadataManager(sys.argv[1])\n"
        "for number, happen in enumerate(history()):\n"
        "    if number >= int(sys.argv[2]):\n"
        "        happen(manager)\n"
        "        print(number, flush=True)\n"
    )
    events, done = history(), 0
    expected = InMemoryRemoteLogMetadataManager()
    for kill_after in range(3, 39, 3):
        command = [sys.executable, "-c", script, str(path), str(done)]
        last = done - 1
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                last = int(line)
                if last == done + kill_after:
                    os.kill(writer.pid, signal.SIGKILL)
        assert last >= done + kill_after
        for happen in events[done : last + 1]:
            happen(expected)
        done = last + 1
        manager = SqliteRemoteLogMetadataManager(path)
        if everything(manager) != everything(expected):
            events[done](expected)
            done += 1
        assert everything(manager) == everything(expected)
        manager.close()


def everything(manager: InMemoryRemoteLogMetadataManager) -> list[object]:
    """All that is known of the partitions of `history`."""
    return [
        (
            manager.list(name),
            manager.leader_epoch(name),
            manager.partition_delete_state(name),
            manager.log_start_offset(name),
            manager.remote_log_size(name, 0),
            manager.highest_offset_for_epoch(name, 0),
        )
        for name in HISTORY_PARTITIONS
    ]


def test_a_copy_that_a_crash_cut_off_is_listed_but_never_counts(path: Path) -> None:
    first = SqliteRemoteLogMetadataManager(path)
    finish(first, segment("a", 0, 9))
    first.add(segment("b", 10, 19), leader_epoch=3)
    first.close()
    second = SqliteRemoteLogMetadataManager(path)
    assert [known.state for known in second.list(PARTITION)] == [FINISHED, STARTED]
    assert second.remote_log_size(PARTITION, 0) == 100
    assert second.highest_offset_for_epoch(PARTITION, 0) == 9
    assert found_at(second, 15) is None
    move(second, segment("b", 10, 19), DELETING, GONE, leader_epoch=4)
    assert [known.state for known in second.list(PARTITION)] == [FINISHED]
    second.close()


# -- what is in memory


def loaded(manager: SqliteRemoteLogMetadataManager) -> list[int]:
    """The partitions whose segments are in memory."""
    known = manager._partitions.items()
    return sorted(name.partition for name, partition in known if len(partition))


def filled(path: Path, partitions: int, segments: int) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    manager.load(
        segment(
            f"{number} {n}",
            n * 10,
            n * 10 + 9,
            partition=partition_of("orders", number),
            state=FINISHED,
            bytes_per_epoch=((0, 100),),
            log_crc32c=2**32 - 1 - n,
        )
        for number in range(partitions)
        for n in range(segments)
    )
    manager.close()


def test_segments_are_read_when_they_are_asked_for(path: Path) -> None:
    filled(path, 5, 4)
    manager = SqliteRemoteLogMetadataManager(path)
    places = [partition_of("orders", number) for number in range(5)]
    assert manager.partitions() == tuple(sorted(places))
    for place in places:
        assert manager.remote_log_size(place, 0) == 400
        assert manager.highest_offset_for_epoch(place, 0) == 39
        assert manager.changes(place) == 0
        manager.claim_leadership(place, 1)
        manager.advance_log_start_offset(place, 5)
    assert loaded(manager) == []
    before = manager.changes(places[2])
    assert len(manager.list(places[2])) == 4
    manager.add(segment("new", 40, 49, partition=places[4]))
    assert loaded(manager) == [2, 4]
    assert manager.changes(places[2]) == before
    assert manager.lookup(places[0], 0, 15) is not None
    assert loaded(manager) == [0, 2, 4]
    manager.close()


def test_memory_is_bounded(path: Path) -> None:
    filled(path, 6, 4)
    manager = SqliteRemoteLogMetadataManager(path, max_loaded_segments=10)
    places = [partition_of("orders", number) for number in range(6)]
    for number, place in enumerate(places):
        manager.add(segment(f"new {number}", 40, 49, partition=place))
        move(manager, segment(f"new {number}", 40, 49, partition=place), FINISHED)
        assert len(loaded(manager)) <= 2
    assert loaded(manager) == [4, 5]
    assert len(manager.list(places[4])) == 5
    assert len(manager.list(places[0])) == 5
    assert loaded(manager) == [0, 4]
    assert [manager.remote_log_size(place, 0) for place in places] == [500] * 6
    iterator = manager.segments_by_timestamp(places[1], 0)
    assert [len(manager.list(place)) for place in places] == [5] * 6
    assert len(list(iterator)) == 5
    manager.close()


def test_after_a_failure_nothing_is_read_again(path: Path) -> None:
    """Nobody knows what the file holds then, but what was answered before is still true."""
    filled(path, 3, 4)
    manager = SqliteRemoteLogMetadataManager(path, max_loaded_segments=4)
    first, second, third = (partition_of("orders", number) for number in range(3))
    before = manager.list(first)
    manager._file.connection.execute(
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON main.segment"
        " BEGIN SELECT raise(ABORT, 'broken'); END"
    )
    with pytest.raises(RemoteMetadataError, match="broken"):
        manager.add(segment("new", 40, 49, partition=first))
    assert len(manager.list(second)) == len(manager.list(third)) == 4
    assert loaded(manager) == [0, 1, 2]
    assert manager.list(first) == before
    manager.close()


def test_a_segment_takes_less_than_400_bytes(path: Path) -> None:
    filled(path, 10, 1_000)
    assert path.stat().st_size / 10_000 < 130
    assert not Path(f"{path}-wal").exists()


def test_a_load_that_fails_changes_nothing(path: Path) -> None:
    filled(path, 2, 2)
    manager = SqliteRemoteLogMetadataManager(path)
    place = partition_of("orders", 0)
    before = manager.list(place)
    manager._file.connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON main.epoch BEGIN SELECT raise(ABORT, 'no'); END"
    )
    with pytest.raises(RemoteMetadataError, match="change not stored: no"):
        manager.load([segment("new", 20, 29, partition=place, state=FINISHED)])
    assert manager.list(place) == before
    assert manager.remote_log_size(place, 0) == 200
    manager.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        SqliteRemoteLogMetadataManager(tmp_path / "file" / "metadata.db")
    (tmp_path / "metadata.db").mkdir()
    with pytest.raises(RemoteMetadataError, match="cannot open the database"):
        SqliteRemoteLogMetadataManager(tmp_path / "metadata.db")


def test_nothing_more_is_written_after_a_failure(path: Path) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    first, second = segment("a", 0, 9), segment("b", 10, 19)
    manager.add(first)
    manager._file.connection.execute("DROP TABLE segment")
    with pytest.raises(RemoteMetadataError, match="change not stored: no such table"):
        move(manager, first, FINISHED)
    with pytest.raises(RemoteMetadataError, match="changes are refused after no such table"):
        manager.add(second)
    assert [known.state for known in manager.list(PARTITION)] == [STARTED]
    manager.close()


def test_a_full_disk_may_pass(path: Path) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    (pages,) = manager._file.connection.execute("PRAGMA page_count").fetchone()
    manager._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    stored = 0

    def fill() -> None:
        nonlocal stored
        while True:
            manager.add(segment(str(stored), stored, stored))
            stored += 1

    with pytest.raises(RemoteMetadataError, match="full"):
        fill()
    assert stored > 0
    assert len(manager.list(PARTITION)) == stored
    manager._file.connection.execute(f"PRAGMA max_page_count = {pages + 1_000}")
    manager.add(segment("after", 0, 9))
    manager.close()
    again = SqliteRemoteLogMetadataManager(path)
    assert len(again.list(PARTITION)) == stored + 1
    again.close()


def test_a_forked_child_may_not_write(path: Path) -> None:
    manager = SqliteRemoteLogMetadataManager(path)
    child = os.fork()
    if child == 0:
        try:
            manager.add(segment("a", 0, 9))
        except RemoteMetadataError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert manager.list(PARTITION) == ()
    manager.close()
