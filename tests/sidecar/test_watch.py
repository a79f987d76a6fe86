"""What a watch makes of directories and answers, look after look: who leads, what has changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.golden_copy import copy_log_dir
from tierlog.broker import BrokerAnswer, BrokerUnavailableError
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore, open_store
from tierlog.sidecar import Outcome, Sidecar
from tierlog.sidecar.host import SidecarLog
from tierlog.sidecar.last_answers import NOTES_KEY
from tierlog.sidecar.learn import StoreLearner
from tierlog.sidecar.topic_ids import ArchiveIds
from tierlog.sidecar.watch import Look, Watch, WatchSettings
from tierlog.tiering.local_log import LocalLog, TopicSettings
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, random_kafka_uuid

EPOCHS = TopicPartition("epochs", 0)
ANSWER = BrokerAnswer(
    leader_id=1, leader_epoch=9, last_stable_offset=480, compacted=False, replica_count=3
)


class Cluster:
    """A cluster that says what it was told to say; what is not in it fails."""

    def __init__(self) -> None:
        self.answers: dict[TopicPartition, BrokerAnswer] | Exception = {EPOCHS: ANSWER}
        self.asked = 0

    def ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        self.asked += 1
        if isinstance(self.answers, Exception):
            raise self.answers
        wanted = list(partitions)
        return {name: answer for name, answer in self.answers.items() if name in wanted}


class Roles:
    """What a manager was told, as (what, leader epoch), since it was asked last."""

    def __init__(self) -> None:
        self._told: list[tuple[str, int | None]] = []
        self.logs: list[LocalLog] = []

    def become_leader(self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog) -> None:
        self._told.append(("lead", leader_epoch))
        self.logs.append(log)

    def become_follower(
        self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog
    ) -> None:
        self._told.append(("follow", leader_epoch))
        self.logs.append(log)

    def stop_partition(self, partition: TopicIdPartition) -> None:
        self._told.append(("stop", None))

    def told(self) -> list[tuple[str, int | None]]:
        told, self._told = self._told, []
        return told


class House:
    """A broker's directory with one partition, its watch, and who is told."""

    def __init__(self, folder: Path, settings: WatchSettings | None = None) -> None:
        self.log_dir = copy_log_dir(folder, "clean/disk1", "epochs-0")
        self.partition_dir = self.log_dir / "epochs-0"
        (folder / "store").mkdir()
        self.store = open_store((folder / "store").as_uri())
        self.metadata = SqliteRemoteLogMetadataManager(folder / "state" / "metadata.sqlite")
        self.storage = ObjectStorageManager(self.store)
        self.state_dir = folder / "state"
        self.settings = settings or WatchSettings()
        self.cluster = Cluster()
        self.roles = Roles()
        self.watch = self.new_watch()

    def new_watch(self) -> Watch:
        """The watch of a process that was started anew."""
        return Watch(
            open_log_dir(self.log_dir),
            self.metadata,
            self.storage,
            StoreLearner(self.store, self.metadata),
            self.settings,
            notes=LocalStore(self.state_dir),
            archive_ids=ArchiveIds(self.store, "cluster"),
            broker=self.cluster,
        )

    def restart(self) -> None:
        self.watch, self.roles = self.new_watch(), Roles()

    def look(self) -> Look:
        return self.watch.look(self.roles)

    def answer(self, answer: BrokerAnswer) -> Look:
        self.cluster.answers = {EPOCHS: answer}
        return self.look()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.metadata.close()


def test_leadership_goes_by_the_brokers_word(house: House) -> None:
    house.look()
    assert house.roles.told() == [("lead", 9)]
    assert not house.look().changed
    assert house.roles.told() == []
    assert house.answer(replace(ANSWER, leader_epoch=10)).changed
    assert house.roles.told() == [("lead", 10)]
    seen = house.answer(replace(ANSWER, leader_id=2, leader_epoch=11)).partitions[0]
    assert house.roles.told() == [("follow", 11)]
    assert {one.reason for one in seen.decisions} == {"not_leader"}
    house.answer(replace(ANSWER, leader_epoch=12))
    assert house.roles.told() == [("lead", 12)]
    assert len(set(map(id, house.roles.logs))) == 1


LED_ELSEWHERE = replace(ANSWER, leader_id=2, leader_epoch=11)
SILENT = BrokerUnavailableError("no broker answers")
MISSING: list[dict[TopicPartition, BrokerAnswer] | Exception] = [
    SILENT,
    {},
    {EPOCHS: replace(ANSWER, leader_id=None, leader_epoch=None)},
    {EPOCHS: replace(ANSWER, leader_id=None, leader_epoch=None, last_stable_offset=None)},
    {EPOCHS: BrokerAnswer(leader_id=None, last_stable_offset=None, compacted=None)},
]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("answer", "role"), [(LED_ELSEWHERE, ("follow", 11)), (ANSWER, ("lead", 9))]
)
def test_a_missing_answer_changes_no_role(
    house: House,
    answer: BrokerAnswer,
    role: tuple[str, int],
    restarted: bool,
    missing: dict[TopicPartition, BrokerAnswer] | Exception,
) -> None:
    house.answer(answer)
    assert house.roles.told() == [role]
    if restarted:
        house.restart()
    house.cluster.answers = missing
    for _ in range(2):
        house.look()
    assert house.roles.told() == ([role] if restarted else [])


@pytest.mark.parametrize("missing", MISSING)
def test_a_partition_whose_leader_was_never_named_is_not_tiered(
    house: House, missing: dict[TopicPartition, BrokerAnswer] | Exception
) -> None:
    house.cluster.answers = missing
    (seen,) = house.look().partitions
    assert house.roles.told() == []
    assert {one.reason for one in seen.decisions} <= {"leader_unknown", "compaction_unknown"}
    assert all("the broker has" in one.text for one in seen.decisions)
    house.answer(ANSWER)
    assert house.roles.told() == [("lead", 9)]


def test_an_old_answer_makes_no_leader_of_a_later_epoch(house: House) -> None:
    """The directory shows that another leader came after the last answer."""
    house.look()
    house.roles.told()
    epochs = house.partition_dir / "leader-epoch-checkpoint"
    lines = epochs.read_text().splitlines()
    count = int(lines[1])
    epochs.write_text("\n".join(["0", str(count + 1), *lines[2:], "12 480"]) + "\n")
    house.cluster.answers = SILENT
    (seen,) = house.look().partitions
    assert house.roles.told() == [("stop", None)]
    assert {one.reason for one in seen.decisions} == {"leader_unknown"}
    house.answer(replace(ANSWER, leader_epoch=12))
    assert house.roles.told() == [("lead", 12)]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_compacted_topic_stays_left_out_without_an_answer(
    house: House, restarted: bool, missing: dict[TopicPartition, BrokerAnswer] | Exception
) -> None:
    house.answer(replace(ANSWER, compacted=True))
    if restarted:
        house.restart()
    house.cluster.answers = missing
    if isinstance(missing, dict) and EPOCHS in missing:
        house.cluster.answers = {EPOCHS: replace(missing[EPOCHS], compacted=None)}
    (seen,) = house.look().partitions
    assert house.roles.told() == []
    assert {one.reason for one in seen.decisions} == {"compacted"}


def test_a_policy_that_was_never_said_keeps_a_topic_out(house: House) -> None:
    (seen,) = house.answer(replace(ANSWER, compacted=None)).partitions
    assert house.roles.told() == []
    assert {one.reason for one in seen.decisions} == {"compaction_unknown"}
    text = "the broker has never said whether this topic is compacted (brokers before 0.11 cannot"
    assert all(one.text.startswith(text) for one in seen.decisions)


def test_damaged_notes_of_earlier_answers_are_unknown(house: House) -> None:
    house.answer(ANSWER)
    (house.state_dir / NOTES_KEY).write_text('{"format_version": 1, "topics": {"x": 1}}')
    house.restart()
    house.cluster.answers = SILENT
    look = house.look()
    assert any(NOTES_KEY in warning for warning in look.warnings)
    assert house.roles.told() == []
    assert {one.reason for one in look.partitions[0].decisions} == {"compaction_unknown"}


def test_a_leader_epoch_never_falls_below_what_the_metadata_heard(house: House) -> None:
    house.look()
    (partition,) = [host.partition for host in house.watch.hosts]
    house.metadata.claim_leadership(partition, 9)
    house.cluster.answers = BrokerUnavailableError("gone")
    house.look()
    assert house.roles.told() == [("lead", 9)]


def test_a_view_is_the_same_object_until_something_changes(house: House) -> None:
    house.look()
    (host,) = house.watch.hosts
    view = host.view()
    assert view is not None
    assert view.log.leader_epochs is not None
    house.look()
    assert host.view() is view
    with (house.partition_dir / "00000000000000000410.log").open("ab") as active:
        active.write(b"more")
    house.look()
    grown = host.view()
    assert grown is not None
    assert grown is not view
    house.answer(replace(ANSWER, last_stable_offset=300))
    moved = host.view()
    assert moved is not None
    assert (moved.stable.value, grown.stable.value) == (300, 480)


def test_a_broker_that_goes_away_leaves_the_checkpoints(house: House) -> None:
    house.look()
    house.cluster.answers = BrokerUnavailableError("broker x does not answer")
    look = house.look()
    assert look.broker_error == (
        "broker x does not answer; its last answers are used, and no other partition is tiered"
    )
    assert look.warnings == ()
    (host,) = house.watch.hosts
    view = host.view()
    assert view is not None
    # What it said last holds on; a sidecar that starts now goes by the checkpoints alone.
    assert view.stable.value == 480
    anew = SidecarLog(host.partition, house.metadata, house.storage, TopicSettings())
    source = anew.look(look.partitions[0].log, None).stable.source
    assert source == "the high watermark checkpoint"
    house.cluster.answers = {EPOCHS: ANSWER}
    assert house.look().broker_error is None
    house.cluster.answers = ConfigError("another cluster")
    with pytest.raises(ConfigError):
        house.look()


def test_a_topic_that_was_made_again_is_another_one(house: House) -> None:
    house.look()
    seen = house.answer(replace(ANSWER, topic_id=random_kafka_uuid())).partitions[0]
    assert house.roles.told() == [("lead", 9), ("stop", None)]
    assert {one.text for one in seen.decisions} == {
        "the cluster now has another topic named epochs"
    }
    assert len(house.watch.hosts) == 0
    host = house.roles.logs[0]
    assert host.view() is None
    metadata = house.partition_dir / "partition.metadata"
    topic_id = random_kafka_uuid()
    metadata.write_text(f"version: 0\ntopic_id: {topic_id}\n")
    house.answer(replace(ANSWER, topic_id=topic_id))
    assert house.roles.told() == [("lead", 9)]
    assert [one.partition.topic_id for one in house.watch.hosts] == [topic_id]


def test_a_log_that_begins_anew_is_let_go_while_it_runs(house: House) -> None:
    """Unless what was copied before is there a second time, by the leader that came after."""
    house.look()
    (host,) = house.watch.hosts
    epochs = house.partition_dir / "leader-epoch-checkpoint"
    copied = [segment_of(host.partition, epoch, 0, 99) for epoch in (2, 7)]
    house.metadata.load(copied[:1])
    house.roles.told()
    epochs.write_text("0\n1\n7 0\n")
    (warning,) = house.look().warnings
    assert "begins anew at offset 0 in leader epoch 7" in warning
    assert house.roles.told() == [("stop", None)]
    assert host.view() is None
    house.metadata.load(copied[1:])
    assert house.look().warnings == ()
    assert house.roles.told() == [("lead", 9)]


def segment_of(
    partition: TopicIdPartition, epoch: int, start: int, end: int
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(topic_id_partition=partition, id=random_kafka_uuid()),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=1,
        leader_epochs=((epoch, start),),
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    )


def test_what_the_cluster_does_not_list_goes_on_with_a_warning(house: House) -> None:
    house.look()
    house.cluster.answers = {}
    (warning,) = house.look().warnings
    assert warning.startswith("epochs-0: the broker does not list this partition")
    assert house.roles.told() == [("lead", 9)]


def test_a_partition_or_a_directory_that_is_gone_is_let_go(house: House, tmp_path: Path) -> None:
    house.look()
    house.roles.told()
    house.partition_dir.rename(house.log_dir / "aside")
    house.look()
    assert house.roles.told() == [("stop", None)]
    (house.log_dir / "aside").rename(house.partition_dir)
    house.look()
    assert house.roles.told() == [("lead", 9)]
    house.log_dir.rename(tmp_path / "away")
    (warning,) = house.look().warnings
    assert str(house.log_dir) in warning
    assert house.roles.told() == [("stop", None)]
    (tmp_path / "away").rename(house.log_dir)
    house.look()
    assert house.roles.told() == [("lead", 9)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(replace(ANSWER, compacted=True), "compacted"), (replace(ANSWER, compacted=None), None)],
)
def test_what_turns_compacted_is_let_go(
    house: House, answer: BrokerAnswer, reason: str | None
) -> None:
    house.look()
    house.roles.told()
    seen = house.answer(answer).partitions[0]
    if reason is None:
        # What was said before holds.
        assert house.roles.told() == []
        return
    assert house.roles.told() == [("stop", None)]
    assert {one.reason for one in seen.decisions} == {reason}


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "lag_ms", "lag_bytes", "warned"),
    [
        (-1, -1, 0, -1, False),
        (1000, -1, 0, -1, False),
        (1000, -1, 999, -1, False),
        (1000, -1, 1000, -1, True),
        (-1, 1000, 999, -1, True),
        (-1, 1000, 999, 999, False),
        (1000, 1000, -1, 999, True),
    ],
)
def test_a_copy_lag_that_the_broker_does_not_wait_for(
    tmp_path: Path,
    retention_ms: int,
    retention_bytes: int,
    lag_ms: int,
    lag_bytes: int,
    warned: bool,
) -> None:
    topic = TopicSettings(copy_lag_ms=lag_ms, copy_lag_bytes=lag_bytes)
    house = House(tmp_path, WatchSettings(topic=topic))
    answer = replace(ANSWER, retention_ms=retention_ms, retention_bytes=retention_bytes)
    warnings = house.answer(answer).warnings
    assert any("may be deleted before they are copied" in one for one in warnings) == warned
    house.metadata.close()


def test_what_another_broker_list_active_copies_is_not_copied_again(tmp_path: Path) -> None:
    """Two sidecars, one store: the partition moves to the second broker and back."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    store = (tmp_path / "store").as_uri()
    dirs = {name: copy_log_dir(tmp_path / name, "clean/disk1", "epochs-0") for name in "ab"}
    last = dirs["a"] / "epochs-0" / "00000000000000000410.log"
    for path in last.parent.glob("00000000000000000285.*"):
        path.unlink()
    for path in last.parent.glob("00000000000000000410.*"):
        path.unlink()

    def tier(name: str) -> int:
        state = str(tmp_path / name / "state")
        with Sidecar([str(dirs[name])], store, state_dir=state, clock=ManualClock()) as sidecar:
            return len(sidecar.run_once().of(Outcome.COPIED))

    # The second one has a state of its own already, from another partition.
    other = copy_log_dir(tmp_path / "other", "clean/disk1", "codec-none-0")
    shutil.move(other / "codec-none-0", dirs["b"])
    epochs = dirs["b"] / "epochs-0"
    epochs.rename(dirs["b"] / "aside")
    assert tier("b") > 0
    assert tier("a") == 1
    (dirs["b"] / "aside").rename(epochs)
    assert tier("b") == 2
