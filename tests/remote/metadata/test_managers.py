"""The metadata managers: the shared suite, the model, and what only the durable one risks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.oracle.strategies import profile
from tests.remote.metadata_model import MetadataMachine
from tierlog.errors import (
    MetadataNotReadyError,
    RemoteMetadataError,
)
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    is_legal_transition,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.partition import PartitionMetadata
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.testing.events import (
    MARKED,
    delete_partition,
    found_at,
    move,
)
from tierlog.testing.fencing import EmbeddedConformance
from tierlog.testing.metadata import MetadataConformance
from tierlog.testing.segments import (
    DELETING,
    FINISHED,
    GONE,
    PARTITION,
    STARTED,
    segment,
    uuid_of,
)


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
        # So few that partitions leave the memory and come back all the time.
        return SqliteRemoteLogMetadataManager(
            Path(self.folder) / "metadata.db", max_loaded_segments=2
        )

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
        with pytest.raises(ValueError, match="an update to COPY_SEGMENT_STARTED"):
            metadata.update_to(STARTED, event_timestamp_ms=1)
        with pytest.raises(ValueError, match="got an update of"):
            metadata.updated(segment("b", 0, 9).update_to(FINISHED, event_timestamp_ms=1))
        with pytest.raises(RemoteMetadataError, match="cannot go from"):
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


class TestEvents:
    def test_update_events_are_plain_values(self) -> None:
        event = RemoteLogSegmentMetadataUpdate(
            segment_id=segment("a", 0, 9).segment_id,
            event_timestamp_ms=1,
            broker_id=2,
            state=FINISHED,
        )
        assert event == segment("a", 0, 9, broker_id=2).update_to(FINISHED, event_timestamp_ms=1)
