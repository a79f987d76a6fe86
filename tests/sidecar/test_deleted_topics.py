"""Archives of deleted topics: they go when that is known for long enough, and never on a guess."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.golden_copy import copy_log_dir
from tierlog.broker import BrokerUnavailableError
from tierlog.cli import main
from tierlog.clock import ManualClock
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.layout import partition_prefix, topic_prefix
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore
from tierlog.sidecar import Sidecar
from tierlog.sidecar.deleted_topics import NOTES_KEY, DeletedTopics, deleted_since
from tierlog.sidecar.dry_run import DryRunStore
from tierlog.tiering.manager import RemoteLogManager
from tierlog.types import random_kafka_uuid

WEEK_MS = 7 * 86_400_000
TWO_PARTITIONS = "orders.eu-west_1"
TOPICS = ("epochs", "codec-none", TWO_PARTITIONS)
PARTITIONS = ("epochs-0", "codec-none-0", "orders.eu-west_1-0", "orders.eu-west_1-1")


class Cluster:
    """A cluster with these topics, by name; a name that is not there has no clear answer."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named: dict[str, str | None] = dict(named)
        self.away = False

    def topic_ids(self, names: Collection[str]) -> Mapping[str, str | None]:
        if self.away:
            raise BrokerUnavailableError("nobody answers")
        return {name: self.named[name] for name in names if name in self.named}


class Archive:
    """A store with the archives of three topics, all of them alive at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        log_dir = copy_log_dir(folder, "clean/disk1", *PARTITIONS)
        self.store = LocalStore(folder / "store")
        (folder / "store").mkdir()
        state = folder / "state"
        with Sidecar([str(log_dir)], self.store.url, state_dir=str(state)) as sidecar:
            assert sidecar.run_once().ok
        self.clock = ManualClock()
        self.metadata = SqliteRemoteLogMetadataManager(state / "metadata.sqlite")
        self.ids = {one.topic: one.topic_id for one in self.metadata.partitions()}
        self.cluster = Cluster(self.ids)
        self.manager = RemoteLogManager(
            ObjectStorageManager(self.store), self.metadata, broker_id=1, clock=self.clock
        )
        self.warnings: list[str] = []
        self.start()

    def start(self, *, dry_run: bool = False) -> None:
        """As after a start of the process."""
        notes = LocalStore(self.folder / "state")
        self.deleted = DeletedTopics(
            self.cluster,
            self.metadata,
            DryRunStore(self.store) if dry_run else self.store,
            notes=DryRunStore(notes) if dry_run else notes,
            retention_ms=WEEK_MS,
            clock=self.clock,
            delete=partial(self.manager.stop_partition, delete_remote=True),
        )

    def look(self, after_ms: int = 0, here: Collection[str] = (), *topics: str) -> list[str]:
        """The topics that still have objects, after that look."""
        self.clock.advance(after_ms)
        self.deleted.settle(here, topics, self.warnings.append)
        self.manager.run_until_idle()
        return [topic for topic in TOPICS if self.objects(topic)]

    def objects(self, topic: str) -> list[str]:
        return [one.key for one in self.store.list(topic_prefix(topic, self.ids[topic]))]

    def forget(self, topic: str, number: int) -> list[str]:
        """As if only others had copied that partition; its `.log` objects."""
        (partition,) = [
            one
            for one in self.metadata.partitions()
            if (one.topic, one.partition) == (topic, number)
        ]
        keys = [info.key for info in self.store.list(partition_prefix(partition))]
        kept = {key: self.store.get_range(key, 0, 1 << 20) for key in keys}
        self.manager.stop_partition(partition, delete_remote=True)
        self.manager.run_until_idle()
        assert partition not in self.metadata.partitions()
        for key, data in kept.items():
            self.store.put_bytes(key, data)
        return sorted(key for key in keys if key.endswith(".log"))

    def close(self) -> None:
        self.manager.close()
        self.metadata.close()


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    made = Archive(tmp_path)
    assert sorted(made.ids) == sorted(TOPICS)
    yield made
    made.close()


@pytest.mark.parametrize("again", [None, random_kafka_uuid()], ids=["gone", "made again"])
def test_an_archive_goes_a_while_after_its_topic(archive: Archive, again: str | None) -> None:
    assert archive.look(WEEK_MS) == list(TOPICS)
    assert archive.warnings == []
    archive.cluster.named["epochs"] = again
    for after_ms in (1, WEEK_MS - 1):
        assert archive.look(after_ms) == list(TOPICS)
        archive.start()
    assert archive.look(1) == ["codec-none", TWO_PARTITIONS]
    assert archive.ids["epochs"] not in {one.topic_id for one in archive.metadata.partitions()}
    assert f"topic epochs ({archive.ids['epochs']}) is deleted" in archive.warnings[0]
    assert len(set(archive.warnings)) == 1
    archive.look(1)
    notes = (archive.folder / "state" / NOTES_KEY).read_text()
    assert archive.ids["epochs"] not in notes, "what has no archive needs no note"


def test_all_partitions_go_also_those_that_only_others_have_led(archive: Archive) -> None:
    archive.forget(TWO_PARTITIONS, 1)
    archive.cluster.named[TWO_PARTITIONS] = None
    archive.look()
    assert archive.look(WEEK_MS) == ["epochs", "codec-none"]


def test_halves_and_what_is_broken_go_too_and_what_is_not_ours_stays(archive: Archive) -> None:
    folder = topic_prefix(TWO_PARTITIONS, archive.ids[TWO_PARTITIONS])
    broken = archive.forget(TWO_PARTITIONS, 1)[0]
    archive.store.put_bytes(broken.removesuffix("log") + "indexes", b"x", overwrite=True)
    archive.store.put_bytes(f"{folder}1/{0:020}-{random_kafka_uuid()}.log", b"half")
    archive.store.put_bytes(f"{folder}1/{0:020}-{7:010}-2.takeover", b"")
    archive.store.put_bytes(folder + "0/README", b"not ours")
    archive.cluster.named[TWO_PARTITIONS] = None
    archive.look()
    assert archive.look(WEEK_MS) == list(TOPICS)
    assert archive.objects(TWO_PARTITIONS) == [folder + "0/README"]
    for reason in ("foreign_object", "log_without_indexes", "corrupt_indexes"):
        assert sum(reason in text for text in archive.warnings) == 1


def test_what_is_unknown_is_not_deleted(archive: Archive) -> None:
    archive.cluster.named["epochs"] = None
    archive.look()
    del archive.cluster.named["epochs"]
    assert archive.look(2 * WEEK_MS) == list(TOPICS), "no clear answer"
    archive.cluster.named["epochs"] = None
    archive.cluster.away = True
    assert archive.look() == list(TOPICS), "no answer"
    assert "nobody answers" in archive.warnings[-1]
    archive.cluster.away = False
    assert archive.look(0, {archive.ids["epochs"]}) == list(TOPICS), "the broker still has it"
    assert archive.look(0, (), "codec-none") == list(TOPICS), "not one of ours"
    archive.clock.jump_wall(3_600_000)
    assert archive.look() == list(TOPICS), "nobody knows what time it is"
    archive.clock.jump_wall(-3_600_000)
    archive.cluster.named = dict.fromkeys(TOPICS)
    assert archive.look() == list(TOPICS), "a cluster that knows none of them"
    archive.cluster.named = dict.fromkeys(TOPICS, random_kafka_uuid())
    assert archive.look() == list(TOPICS), "a cluster that was made anew"
    archive.cluster.named |= {"epochs": None, "codec-none": archive.ids["codec-none"]}
    assert archive.look() == ["codec-none", TWO_PARTITIONS]


def test_a_topic_that_is_seen_again_begins_anew(archive: Archive) -> None:
    archive.cluster.named["epochs"] = None
    archive.look()
    archive.cluster.named["epochs"] = archive.ids["epochs"]
    archive.look(WEEK_MS)
    archive.cluster.named["epochs"] = None
    assert archive.look(WEEK_MS) == list(TOPICS)
    assert archive.look(WEEK_MS) == list(TOPICS[1:])


def test_a_store_that_fails_is_tried_again(archive: Archive) -> None:
    archive.cluster.named["epochs"] = None
    archive.look()
    away = archive.folder / "away"
    (archive.folder / "store").rename(away)
    (archive.folder / "store").write_bytes(b"")
    archive.clock.advance(WEEK_MS)
    archive.deleted.settle((), (), archive.warnings.append)
    assert "tried again at the next look" in archive.warnings[-1]
    (archive.folder / "store").unlink()
    away.rename(archive.folder / "store")
    assert archive.look() == list(TOPICS[1:])


def test_a_dry_run_knows_the_time_and_notes_nothing(archive: Archive) -> None:
    archive.cluster.named["epochs"] = None
    archive.look()
    path = archive.folder / "state" / NOTES_KEY
    before = path.read_bytes()
    archive.cluster.named["codec-none"] = None
    archive.start(dry_run=True)
    assert archive.look(WEEK_MS) == ["codec-none", TWO_PARTITIONS]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"format_version": 2, "deleted_since_ms": {}}',
        b'{"format_version": 1, "deleted_since_ms": []}',
        b'{"format_version": 1, "deleted_since_ms": {"x": 0}}',
        b'{"format_version": 1, "deleted_since_ms": {"%s": -1}}',
        b'{"format_version": 1, "deleted_since_ms": {"%s": true}}',
        b'{"format_version": 1, "deleted_since_ms": {"%s": 1e3}}',
        b'{"format_version": 1, "deleted_since_ms": {"%s": 999999999999999999999}}',
    ],
)
def test_damaged_notes_begin_anew(archive: Archive, text: bytes) -> None:
    text = text.replace(b"%s", archive.ids["epochs"].encode())
    (archive.folder / "state" / NOTES_KEY).write_bytes(text)
    archive.cluster.named["epochs"] = None
    assert archive.look() == list(TOPICS)
    assert "retention starts again now" in archive.warnings[0]
    assert archive.look(WEEK_MS - 1) == list(TOPICS)
    assert archive.look(1) == list(TOPICS[1:])


def test_a_note_from_the_future_counts_from_now(archive: Archive) -> None:
    archive.cluster.named["epochs"] = None
    archive.look()
    archive.clock = ManualClock(archive.clock.now_ms() - WEEK_MS)
    archive.start()
    assert archive.look() == list(TOPICS)
    assert archive.look(WEEK_MS) == list(TOPICS[1:])


def test_without_a_broker_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    monkeypatch.setenv("TIERLOG_DELETED_TOPIC_RETENTION_MS", "1")
    command = ["tier", str(log_dir), "--to", (tmp_path / "store").as_uri(), "--once"]
    assert main([*command, "--state-dir", str(tmp_path / "state")]) == 2
    assert "tierlog.deleted.topic.retention.ms needs tierlog.bootstrap.servers" in (
        capsys.readouterr().err
    )
    monkeypatch.setenv("TIERLOG_DELETED_TOPIC_RETENTION_MS", "-1")
    assert main([*command, "--state-dir", str(tmp_path / "state")]) == 0


IDS = st.sampled_from("abcdef")
NAMES = st.sampled_from("xyz")


@given(
    archived=st.dictionaries(IDS, NAMES),
    named=st.dictionaries(NAMES, st.none() | IDS),
    here=st.sets(IDS),
    noted=st.dictionaries(IDS, st.integers(0, 20)),
    now_ms=st.integers(0, 20),
)
def test_only_the_clusters_word_makes_a_topic_deleted(
    archived: dict[str, str],
    named: dict[str, str | None],
    here: set[str],
    noted: dict[str, int],
    now_ms: int,
) -> None:
    since, deleted = deleted_since(archived, named, here, noted, now_ms)
    alive = {one for one in archived if named.get(archived[one]) == one}
    assert deleted <= since.keys() <= archived.keys() - alive
    for one in deleted:
        assert alive
        assert one not in here
        assert archived[one] in named
    for one, since_ms in since.items():
        assert since_ms == min(noted.get(one, now_ms), now_ms)
        assert one in deleted or one in noted
    if alive:
        unsure = {one for one in archived if archived[one] not in named} | here | alive
        assert deleted == archived.keys() - unsure
