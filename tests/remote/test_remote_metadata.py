"""The metadata managers: the shared suite, the model, and what only the durable one risks."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.oracle.strategies import profile
from tests.remote.builders import (
    DELETING,
    FINISHED,
    GONE,
    PARTITION,
    STARTED,
    partition_of,
    segment,
    uuid_of,
)
from tests.remote.metadata_conformance import MetadataConformance
from tests.remote.metadata_events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    cut,
    delete_partition,
    finish,
    found_at,
    move,
)
from tests.remote.metadata_fencing import EmbeddedConformance
from tests.remote.metadata_model import MetadataMachine
from tierlog.errors import (
    CorruptDataError,
    MetadataNotReadyError,
    RemoteMetadataError,
)
from tierlog.remote.metadata import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    is_legal_transition,
)
from tierlog.remote.metadata_memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata_sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.partition_metadata import PartitionMetadata


class TestInMemory(MetadataConformance, EmbeddedConformance):
    @pytest.fixture
    def manager(self) -> RemoteLogMetadataManager:
        return InMemoryRemoteLogMetadataManager()


class TestSqlite(MetadataConformance, EmbeddedConformance):
    @pytest.fixture
    def manager(self, tmp_path: Path) -> Any:
        manager = SqliteRemoteLogMetadataManager(tmp_path / "state" / "metadata.db")
        yield manager
        manager.close()


class InMemoryMachine(MetadataMachine):
    def open_manager(self) -> RemoteLogMetadataManager:
        return InMemoryRemoteLogMetadataManager()


class SqliteMachine(MetadataMachine):
    """Restarts now and then: what was answered before must be answered after."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()

    def open_manager(self) -> RemoteLogMetadataManager:
        return SqliteRemoteLogMetadataManager(Path(self.folder) / "metadata.db")

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.manager = self.open_manager()

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


def test_in_memory_agrees_with_the_model() -> None:
    run_state_machine_as_test(
        InMemoryMachine, settings=settings(profile(25), stateful_step_count=30)
    )


def test_sqlite_agrees_with_the_model() -> None:
    run_state_machine_as_test(SqliteMachine, settings=settings(profile(15), stateful_step_count=25))


class TestValues:
    @pytest.mark.parametrize(
        "fields",
        [
            {"start_offset": -1},
            {"start_offset": 10, "end_offset": 9},
            {"end_offset": 2**63 - 1},
            {"epochs": ()},
            {"epochs": ((-1, 0),)},
            {"epochs": ((2**31, 0),)},
            {"epochs": ((0, 1),)},
            {"epochs": ((0, 0), (0, 5))},
            {"epochs": ((0, 0), (1, 7), (2, 5))},
            {"size_bytes": -1},
            {"size_bytes": 2**31},
            {"log_crc32c": -1},
            {"log_crc32c": 2**32},
            {"event_timestamp_ms": 2**63},
            {"bytes_per_epoch": ((0, 99),)},
            {"bytes_per_epoch": ((1, 100),)},
            {"bytes_per_epoch": ((0, 50), (0, 50))},
            {"bytes_per_epoch": ((0, -1),), "size_bytes": -1},
            {"epochs": ((0, 0), (1, 5)), "bytes_per_epoch": ((0, 101), (1, -1))},
        ],
        ids=repr,
    )
    def test_contradictions_are_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=PARTITION.topic_id):
            segment("a", fields.pop("start_offset", 0), fields.pop("end_offset", 9), **fields)

    def test_epochs_are_sorted_whatever_their_order(self) -> None:
        metadata = segment("a", 0, 9, epochs=((3, 8), (1, 0), (2, 4)))
        assert metadata.leader_epochs == ((1, 0), (2, 4), (3, 8))
        assert metadata.epoch_ranges() == ((1, 0, 3), (2, 4, 7), (3, 8, 9))

    def test_the_epoch_table_is_clipped_to_the_segment(self) -> None:
        metadata = segment("a", 10, 19, epochs=((1, 0), (2, 5), (3, 15), (4, 30)))
        assert metadata.epoch_ranges() == ((2, 10, 14), (3, 15, 19))
        assert metadata.size_per_epoch() == ((3, 100),)

    def test_transitions(self) -> None:
        legal = {
            (source, target)
            for source in (None, *RemoteLogSegmentState)
            for target in RemoteLogSegmentState
            if is_legal_transition(source, target)
        }
        assert legal == {
            (None, STARTED),
            (STARTED, FINISHED),
            (STARTED, DELETING),
            (FINISHED, DELETING),
            (DELETING, GONE),
            *((state, state) for state in RemoteLogSegmentState),
        }

    def test_updates(self) -> None:
        metadata = segment("a", 0, 9)
        with pytest.raises(ValueError, match="never updated to"):
            metadata.update_to(STARTED, event_timestamp_ms=1)
        with pytest.raises(ValueError, match="given to"):
            metadata.updated(segment("b", 0, 9).update_to(FINISHED, event_timestamp_ms=1))
        with pytest.raises(RemoteMetadataError, match="no way from"):
            metadata.updated(metadata.update_to(GONE, event_timestamp_ms=1))


class TestNotLoaded:
    def test_unknown_is_never_empty(self) -> None:
        manager = InMemoryRemoteLogMetadataManager(ready=False)
        metadata = segment("a", 0, 9, state=FINISHED)
        manager.load([metadata])
        calls: list[Callable[[], object]] = [
            lambda: manager.add(segment("b", 0, 9)),
            lambda: move(manager, metadata, DELETING),
            lambda: manager.get(metadata.segment_id),
            lambda: manager.lookup(PARTITION, 0, 0),
            lambda: manager.next_segment_with_txn_index(PARTITION, 0, 0),
            lambda: manager.segments_by_timestamp(PARTITION, 0),
            lambda: manager.list(PARTITION),
            lambda: manager.list(PARTITION, 0),
            lambda: manager.highest_offset_for_epoch(PARTITION, 0),
            lambda: manager.remote_log_size(PARTITION, 0),
            lambda: manager.partitions(),
            lambda: manager.claim_leadership(PARTITION, 1),
            lambda: manager.leader_epoch(PARTITION),
            lambda: delete_partition(manager, MARKED),
            lambda: manager.partition_delete_state(PARTITION),
            lambda: manager.changes(PARTITION),
            lambda: manager.log_start_offset(PARTITION),
            lambda: manager.advance_log_start_offset(PARTITION, 1),
        ]
        assert not manager.is_ready(PARTITION)
        for call in calls:
            with pytest.raises(MetadataNotReadyError) as caught:
                call()
            assert caught.value.retriable
        manager.mark_ready()
        assert manager.list(PARTITION) == (metadata,)
        assert found_at(manager, 5) == uuid_of("a")


class TestPartitionMetadata:
    def test_epochs_without_segments_are_dropped(self) -> None:
        partition = PartitionMetadata(PARTITION)
        for epoch in range(500):
            metadata = segment(str(epoch), epoch, epoch, epochs=((epoch, epoch),))
            partition.add(metadata)
            for state in (FINISHED, DELETING, GONE):
                partition.update(metadata.update_to(state, event_timestamp_ms=1))
        assert len(partition) == len(partition._epochs) == len(partition._sizes) == 0
        assert partition.highest_offset_for_epoch(499) == 499

    def test_a_failed_event_changes_nothing(self) -> None:
        class Failing(InMemoryRemoteLogMetadataManager):
            broken = False

            def _persist(self, partition: object, change: object) -> None:
                if self.broken:
                    raise RemoteMetadataError("disk on fire")

        manager = Failing()
        metadata = segment("a", 0, 9)
        manager.add(metadata)
        manager.broken = True
        with pytest.raises(RemoteMetadataError, match="on fire"):
            move(manager, metadata, FINISHED)
        with pytest.raises(RemoteMetadataError, match="on fire"):
            manager.add(segment("b", 0, 9))
        assert manager.list(PARTITION) == (metadata,)
        assert found_at(manager, 5) is None


class TestSqliteOnly:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "metadata.db"

    def test_everything_comes_back(self, path: Path) -> None:
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

    def test_the_highest_offset_outlives_its_segment(self, path: Path) -> None:
        first = SqliteRemoteLogMetadataManager(path)
        longer = segment("longer", 0, 99)
        finish(first, longer)
        move(first, longer, DELETING, GONE)
        finish(first, segment("shorter", 0, 49))
        first.close()
        second = SqliteRemoteLogMetadataManager(path)
        assert second.highest_offset_for_epoch(PARTITION, 0) == 99
        second.close()

    def test_leaders_cuts_deletions_and_log_starts_come_back(self, path: Path) -> None:
        first = SqliteRemoteLogMetadataManager(path)
        metadata = segment("a", 0, 99)
        finish(first, metadata, leader_epoch=6)
        cut(first, metadata, 40)
        other, gone = partition_of("orders", 1), partition_of("orders", 2)
        first.advance_log_start_offset(PARTITION, 17)
        first.claim_leadership(other, 3)
        delete_partition(first, MARKED, DELETION_STARTED, partition=other)
        finish(first, segment("b", 0, 9, partition=gone))
        steps = (MARKED, DELETION_STARTED, DELETION_FINISHED)
        delete_partition(first, *steps, partition=gone, leader_epoch=2)
        first.close()
        second = SqliteRemoteLogMetadataManager(path)
        assert [found_at(second, offset) for offset in (39, 40)] == [uuid_of("a"), None]
        assert second.highest_offset_for_epoch(PARTITION, 0) == 39
        leaders = [second.leader_epoch(name) for name in (PARTITION, other, gone)]
        assert leaders == [6, 3, 2]
        assert second.log_start_offset(PARTITION) == 17
        assert second.log_start_offset(other) is None
        assert second.partition_delete_state(other) is DELETION_STARTED
        assert second.partition_delete_state(gone) is None
        assert second.list(gone) == ()
        assert second.highest_offset_for_epoch(gone, 0) is None
        assert second.partitions() == (PARTITION, other)
        second.close()

    def test_commits_wait_for_the_disk(self, path: Path) -> None:
        manager = SqliteRemoteLogMetadataManager(path)
        assert manager._database.execute("PRAGMA synchronous").fetchone() == (2,)
        assert manager._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        manager.close()

    def test_load_is_durable(self, path: Path) -> None:
        first = SqliteRemoteLogMetadataManager(path)
        segments = [segment(str(n), n * 10, n * 10 + 9, state=FINISHED) for n in range(300)]
        first.load(segments)
        first.close()
        second = SqliteRemoteLogMetadataManager(path)
        assert list(second.list(PARTITION)) == segments
        assert second.highest_offset_for_epoch(PARTITION, 0) == 2_999
        second.close()

    def test_one_process_at_a_time(self, path: Path) -> None:
        manager = SqliteRemoteLogMetadataManager(path)
        with pytest.raises(RemoteMetadataError, match="in use by another process"):
            SqliteRemoteLogMetadataManager(path)
        script = (
            "import sys; from tierlog.errors import RemoteMetadataError\n"
            "from tierlog.remote.metadata_sqlite import SqliteRemoteLogMetadataManager\n"
            "try: SqliteRemoteLogMetadataManager(sys.argv[1])\n"
            "except RemoteMetadataError as error: print(error)\n"
        )
        command = [sys.executable, "-c", script, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert f"{path}: in use by another process" in done.stdout
        manager.close()
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == ""

    def test_a_killed_writer_loses_nothing_it_was_told_is_there(self, path: Path) -> None:
        script = (
            "import sys\n"
            "from tests.remote.builders import FINISHED, segment\n"
            "from tierlog.remote.metadata_sqlite import SqliteRemoteLogMetadataManager\n"
            "manager = SqliteRemoteLogMetadataManager(sys.argv[1])\n"
            "for number in range(100_000):\n"
            "    metadata = segment(str(number), number * 10, number * 10 + 9)\n"
            "    manager.add(metadata)\n"
            "    manager.update(metadata.update_to(FINISHED, event_timestamp_ms=number))\n"
            "    print(number, flush=True)\n"
        )
        root = Path(__file__).resolve().parents[2]
        acknowledged = -1
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True, cwd=root
        ) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                acknowledged = int(line)
                if acknowledged == 40:
                    os.kill(writer.pid, signal.SIGKILL)
        manager = SqliteRemoteLogMetadataManager(path)
        known = manager.list(PARTITION)
        assert acknowledged >= 40
        assert len(known) in (acknowledged + 1, acknowledged + 2)
        assert all(metadata.state is FINISHED for metadata in known[: acknowledged + 1])
        manager.close()

    def test_not_a_database(self, path: Path) -> None:
        path.write_bytes(b"something else entirely " * 100)
        with pytest.raises(CorruptDataError, match="expected an SQLite database") as caught:
            SqliteRemoteLogMetadataManager(path)
        assert caught.value.path == str(path)
        assert path.read_bytes() == b"something else entirely " * 100

    def test_a_database_of_somebody_else(self, path: Path) -> None:
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE mine (x)")
        other.close()
        with pytest.raises(CorruptDataError, match="application_id 0"):
            SqliteRemoteLogMetadataManager(path)

    def test_a_later_schema(self, path: Path) -> None:
        SqliteRemoteLogMetadataManager(path).close()
        other = sqlite3.connect(path)
        other.execute("PRAGMA user_version = 2")
        other.close()
        with pytest.raises(CorruptDataError, match="expected user_version 1, found user_version 2"):
            SqliteRemoteLogMetadataManager(path)

    @pytest.mark.parametrize(
        "damage",
        [
            "UPDATE segment SET description = 'text'",
            "UPDATE segment SET description = x'7b7d'",
            "UPDATE segment SET state = 9",
            "UPDATE segment SET state = 'x'",
            "UPDATE segment SET broker_id = 'x'",
            "UPDATE segment SET custom_metadata = 7",
            "UPDATE segment SET partition = 5",
            "UPDATE segment SET topic = 'other'",
            "UPDATE highest_offset SET topic = '../up'",
            "UPDATE highest_offset SET offset = 'x'",
            "ALTER TABLE segment ADD COLUMN more",
        ],
    )
    def test_damaged_rows_stop_the_opening(self, path: Path, damage: str) -> None:
        manager = SqliteRemoteLogMetadataManager(path)
        finish(manager, segment("a", 0, 9))
        manager.close()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute(damage)
        other.close()
        for _ in range(2):
            with pytest.raises(CorruptDataError, match=str(path)):
                SqliteRemoteLogMetadataManager(path)

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(OSError, match="file"):
            SqliteRemoteLogMetadataManager(tmp_path / "file" / "metadata.db")
        (tmp_path / "metadata.db").mkdir()
        with pytest.raises(RemoteMetadataError, match="cannot open the metadata"):
            SqliteRemoteLogMetadataManager(tmp_path / "metadata.db")

    def test_nothing_more_is_written_after_a_failure(self, path: Path) -> None:
        manager = SqliteRemoteLogMetadataManager(path)
        first, second = segment("a", 0, 9), segment("b", 10, 19)
        manager.add(first)
        manager._database.execute("DROP TABLE segment")
        with pytest.raises(RemoteMetadataError, match="change not stored: no such table"):
            move(manager, first, FINISHED)
        with pytest.raises(RemoteMetadataError, match="closed for changes after no such table"):
            manager.add(second)
        assert [known.state for known in manager.list(PARTITION)] == [STARTED]
        manager.close()

    def test_a_full_disk_may_pass(self, path: Path) -> None:
        manager = SqliteRemoteLogMetadataManager(path)
        (pages,) = manager._database.execute("PRAGMA page_count").fetchone()
        manager._database.execute(f"PRAGMA max_page_count = {pages}")
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
        manager._database.execute(f"PRAGMA max_page_count = {pages + 1_000}")
        manager.add(segment("after", 0, 9))
        manager.close()
        again = SqliteRemoteLogMetadataManager(path)
        assert len(again.list(PARTITION)) == stored + 1
        again.close()

    def test_a_forked_child_may_not_write(self, path: Path) -> None:
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

    def test_update_events_are_plain_values(self) -> None:
        event = RemoteLogSegmentMetadataUpdate(
            segment_id=segment("a", 0, 9).segment_id,
            event_timestamp_ms=1,
            broker_id=2,
            state=FINISHED,
        )
        assert event == segment("a", 0, 9, broker_id=2).update_to(FINISHED, event_timestamp_ms=1)
