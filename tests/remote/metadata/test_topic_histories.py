"""Any history on one metadata topic, against a naive model: several writers, and restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.kafka_tools import KafkaBroker
from tests.oracle.strategies import profile
from tests.remote.metadata_model import (
    LEADERS,
    PARTITIONS,
    FencedError,
    MetadataMachine,
    NaiveMetadata,
)
from tests.remote.metadata_topics import (
    NUMBER,
    HeldManager,
    new_topic,
    opened,
    opened_as,
    same_for_everybody,
    written,
)
from tierlog.errors import FencedLeaderError, RemoteMetadataError
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.records import MetadataRecord
from tierlog.testing.events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    delete_partition,
)
from tierlog.testing.segments import DELETING, FINISHED, GONE, PARTITION, segment

pytestmark = pytest.mark.integration

SEGMENTS = [segment(f"segment {number}", number * 10, number * 10 + 14) for number in range(3)]


class NotingManager(HeldManager):
    """Knows the token of the last record that a thread wrote."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.last = threading.local()
        super().__init__(*arguments, **settings)
        produce_for_real = self._client.produce

        def produce_and_note(
            number: int, value: bytes, token: bytes, delivered: Callable[[object, object], None]
        ) -> None:
            self.last.token = token
            produce_for_real(number, value, token, delivered)

        self._client.produce = produce_and_note  # type: ignore[method-assign]


class Writer:
    """Does anything at all in a leader epoch of its own choice, and keeps what it was told."""

    def __init__(self, manager: NotingManager, random: Random) -> None:
        self.manager, self.random = manager, random
        self.told: dict[bytes, str] = {}

    def work(self) -> None:
        epoch = 0
        for _ in range(15):
            self.manager.last.token = b""
            try:
                epoch = max(epoch, self.manager.leader_epoch(PARTITION))
                epoch += self.random.random() < 0.3
                self._one_event(self.random.choice([epoch, epoch, epoch, None]))
            except FencedLeaderError:
                outcome = "fenced"
            except RemoteMetadataError:
                outcome = "refused"
            else:
                outcome = "done"
            if self.manager.last.token:
                self.told[self.manager.last.token] = outcome

    def _one_event(self, epoch: int | None) -> None:
        metadata = self.random.choice(SEGMENTS)
        kind = self.random.random()
        if kind < 0.3:
            self.manager.add(metadata, leader_epoch=epoch)
        elif kind < 0.8:
            state = self.random.choice([FINISHED, FINISHED, DELETING, GONE])
            offset = self.random.choice([None, None, metadata.start_offset + 7])
            event = metadata.update_to(state, event_timestamp_ms=1, truncation_offset=offset)
            self.manager.update(event, leader_epoch=epoch)
        elif kind < 0.9:
            self.manager.claim_leadership(PARTITION, epoch or 0)
        else:
            step = self.random.choice(list(RemotePartitionDeleteState))
            delete_partition(self.manager, step, leader_epoch=epoch)


class TopicModel(NaiveMetadata):
    """The model, with deletions for good."""

    gone = False

    def told(self, record: MetadataRecord) -> str:
        event, epoch = record.event, record.leader_epoch
        if isinstance(event, RemotePartitionDeleteMetadata):
            return self._told(lambda: self._delete_step(event, epoch))
        if self.gone:
            return self._told(lambda: self._is_no_news(event, epoch))
        if isinstance(event, RemoteLogSegmentMetadata):
            return self._told(lambda: self.add(event, epoch))
        return self._told(lambda: self.update(event, epoch))

    def _told(self, event: Callable[[], bool]) -> str:
        try:
            return "done" if event() else "refused"
        except FencedError:
            return "fenced"

    def _delete_step(self, event: RemotePartitionDeleteMetadata, epoch: int | None) -> bool:
        legal = self.gone or self.delete(event.partition, event.state, epoch)
        self.gone |= legal and event.state is DELETION_FINISHED
        return legal

    def _is_no_news(
        self, event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate, epoch: int | None
    ) -> bool:
        self._check_leader(PARTITION, epoch)
        return event.state is GONE and epoch in (None, self.leaders.get(PARTITION))


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_two_writers_is_one_history(broker: KafkaBroker, seed: int) -> None:
    """Four threads write through each of two managers. Both, a fresh replay and a naive model agree
    on the end and on every single answer."""
    random, topic = Random(seed), new_topic(broker)
    with (
        opened_as(NotingManager, broker, topic) as one,
        opened_as(NotingManager, broker, topic) as two,
    ):
        writers = [Writer(manager, Random(random.random())) for manager in (one, two) * 4]
        threads = [threading.Thread(target=writer.work) for writer in writers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            # Now one of them hears nothing, now the other, now both.
            held = random.choice([[one], [two], [one, two]])
            for manager in held:
                manager.hold()
            threads[0].join(random.random() / 20)
            for manager in held:
                manager.release()
            threads[1].join(random.random() / 50)
        model = TopicModel()
        expected = {token: model.told(record) for token, record in written(broker, topic, NUMBER)}
        assert {
            token: told for writer in writers for token, told in writer.told.items()
        } == expected
        same_for_everybody(broker, topic, one, two)
        assert set(one.list(PARTITION)) == set(model.known(PARTITION))
        assert one.leader_epoch(PARTITION) == model.leaders.get(PARTITION, -1)
        assert one.partition_delete_state(PARTITION) is model.deletions.get(PARTITION)
        for epoch in range(3):
            assert one.remote_log_size(PARTITION, epoch) == model.size(PARTITION, epoch)
        outcomes = list(expected.values())
        assert one.fenced_count == two.fenced_count == outcomes.count("fenced")
        assert one.dropped_count == two.dropped_count == outcomes.count("refused")


def test_the_model_agrees_over_restarts(broker: KafkaBroker) -> None:
    class TopicMachine(MetadataMachine):
        def __init__(self) -> None:
            super().__init__()
            self.topic = new_topic(broker)

        def open_manager(self) -> RemoteLogMetadataManager:
            return opened(broker, self.topic)

        # Deletions of the model are not for good: here they end before their end.
        @rule(state=st.sampled_from([MARKED, DELETION_STARTED]), leader=LEADERS)
        def delete(self, state: RemotePartitionDeleteState, leader: int | None) -> None:
            partition = PARTITIONS[1]
            self._both(
                partition,
                lambda: self.model.delete(partition, state, leader),
                lambda: delete_partition(
                    self.manager, state, partition=partition, leader_epoch=leader
                ),
            )

        @rule()
        def restart(self) -> None:
            self.manager.close()
            self.manager = self.open_manager()

    run_state_machine_as_test(TopicMachine, settings=settings(profile(6), stateful_step_count=25))
