"""Topics of clusters that give them no ids: one archive, also after the cluster gave them ids."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest

import tierlog
from tests.old_logs import (
    TOPICS,
    Record,
    copy_old_log,
    dumped_records,
    set_cluster_id,
    set_topic_id,
)
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store
from tierlog.types import derived_topic_id, is_derived_topic_id, kafka_uuid_bytes

CLUSTER_ID = "IHl4YqgARFKu8FWePxAC6Q"
TOPIC_IDS = {"magic0": "pVRw-_3fQ7mA1bqkRvT0EQ", "magic1": "qVRw-_3fQ7mA1bqkRvT0EQ"}
DERIVED = {topic: derived_topic_id(CLUSTER_ID, topic) for topic in TOPICS}


class Broker:
    """A broker's directory, the store it is tiered to, and what the command says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.store = folder / "store"
        self.url = self.store.as_uri()
        self.said = ""

    def tier(self, *log_dirs: Path, options: Iterable[str] = (), state: str = "state") -> int:
        """One pass of the command; its exit code. What it says on stderr is in `said`."""
        command = ["tier", *map(str, log_dirs), "--to", self.url, "--once"]
        code = main([*command, "--state-dir", str(self.folder / state), *options])
        self.said = self.capsys.readouterr().err
        return code

    def segments(self, topic: str) -> list[RemoteLogSegmentMetadata]:
        return [
            one
            for one in list_segments(open_store(self.url))
            if one.topic_id_partition.topic == topic
        ]

    def ids(self, topic: str) -> set[str]:
        return {one.topic_id_partition.topic_id for one in self.segments(topic)}


@pytest.fixture
def broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Broker:
    return Broker(tmp_path, capsys)


def records(source: Path | str, topic: str, store: str | None = None) -> list[Record]:
    return [
        (record.offset, record.timestamp_ms, bytes(record.key or b""), bytes(record.value or b""))
        for columns in tierlog.read(source, topic, 0, store=store)
        for record in columns.records()
    ]


def upgraded(folder: Path, topic_ids: dict[str, str] | None = None) -> Path:
    """The directory after later brokers: with cluster id, and topic ids from 2.8 on."""
    log_dir = copy_old_log(folder, "2.4")
    set_cluster_id(log_dir, CLUSTER_ID)
    for topic, topic_id in (topic_ids or TOPIC_IDS).items():
        set_topic_id(log_dir, topic, topic_id)
    return log_dir


def test_derived_id_is_a_version_5_uuid_of_cluster_and_name() -> None:
    namespace = bytes.fromhex("8f2b6a0e5f0c5c1e9d573c1f4e8a7b60")
    digest = hashlib.sha1(namespace + b"c1/orders", usedforsecurity=False).digest()[:16]
    expected = uuid.UUID(bytes=digest, version=5)
    assert kafka_uuid_bytes(derived_topic_id("c1", "orders")) == expected.bytes
    assert is_derived_topic_id(derived_topic_id("c1", "orders"))
    assert not is_derived_topic_id(TOPIC_IDS["magic0"])
    assert derived_topic_id("c1", "orders") != derived_topic_id("c2", "orders")


def test_topics_without_ids_are_archived_under_derived_ones(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_old_log(tmp_path, "0.10")
    assert broker.tier(log_dir, options=["--cluster-id", CLUSTER_ID]) == 0
    assert "8 segments copied" in broker.said
    assert "2 topics without a topic id (magic0, magic1)" in broker.said
    lines = [line for line in broker.said.splitlines() if "no cluster.id" in line]
    assert len(lines) == 1
    assert f"cluster {CLUSTER_ID} from --cluster-id" in lines[0]
    for topic in TOPICS:
        assert broker.ids(topic) == {DERIVED[topic]}
        end = max(one.end_offset for one in broker.segments(topic))
        truth = dumped_records("0.10", topic)
        assert records(broker.url, topic) == [one for one in truth if one[0] <= end]
        assert records(log_dir, topic, broker.url) == truth
    heads = [path.read_bytes() for path in broker.store.rglob("*.indexes")]
    assert all(b'"topic_id_derived":true' in head for head in heads)
    assert main(["verify", broker.url, "--deep"]) == 0
    assert "no problems" in capsys.readouterr().out
    assert main(["ls", broker.url, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["partitions"]
    assert [(row["topic_id"], row["topic_id_derived"]) for row in rows] == [
        (DERIVED[topic], True) for topic in TOPICS
    ]
    again = broker.tier(log_dir, options=["--cluster-id", CLUSTER_ID], state="anew")
    assert again == 0
    assert "0 segments copied" in broker.said


def test_without_any_cluster_id_the_flag_is_named(broker: Broker, tmp_path: Path) -> None:
    assert broker.tier(copy_old_log(tmp_path, "0.10")) == 2
    assert "--cluster-id" in broker.said
    assert not broker.store.exists() or not any(broker.store.iterdir())


def test_another_cluster_id_than_the_directories_is_refused(broker: Broker, tmp_path: Path) -> None:
    assert broker.tier(upgraded(tmp_path), options=["--cluster-id", "another"]) == 2
    assert "expected cluster.id another in meta.properties" in broker.said
    assert CLUSTER_ID in broker.said


def test_a_directory_without_cluster_id_has_that_of_the_others(
    broker: Broker, tmp_path: Path
) -> None:
    first = copy_old_log(tmp_path, "2.4")
    set_cluster_id(first, CLUSTER_ID)
    second = copy_old_log(tmp_path, "0.10")
    shutil.rmtree(second / "magic1-0")
    shutil.rmtree(first / "magic0-0")
    assert broker.tier(first, second) == 0
    line = f"{second}: no cluster.id in meta.properties; cluster {CLUSTER_ID} as the other"
    assert line in broker.said
    assert broker.ids("magic0") == {DERIVED["magic0"]}


def test_an_archive_goes_on_when_the_cluster_gives_its_topic_an_id(
    broker: Broker, tmp_path: Path
) -> None:
    old = copy_old_log(tmp_path, "0.10")
    assert broker.tier(old, options=["--cluster-id", CLUSTER_ID]) == 0
    log_dir = upgraded(tmp_path)
    assert broker.tier(log_dir) == 0
    for topic in TOPICS:
        assert f"{topic}-0: topic id {TOPIC_IDS[topic]} is new" in broker.said
        assert broker.ids(topic) == {DERIVED[topic]}
        rolled = open_log_dir(log_dir).partition(topic, 0).rolled_segments
        assert [one.start_offset for one in broker.segments(topic)] == [
            one.base_offset for one in rolled
        ]
        # One log for readers, by name and by the new id, also where only the store has it.
        truth = dumped_records("2.4", topic)
        assert records(broker.url, topic) == truth[: len(records(broker.url, topic))]
        for path in (log_dir / f"{topic}-0").glob("00000000000000000000.*"):
            path.unlink()
        assert records(log_dir, topic, broker.url) == truth
        assert records(log_dir, TOPIC_IDS[topic], broker.url) == truth
    assert broker.tier(log_dir, state="anew") == 0
    assert "0 segments copied" in broker.said
    assert main(["verify", broker.url, "--deep"]) == 0


def test_a_topic_that_was_made_again_does_not_go_on_in_the_old_archive(
    broker: Broker, tmp_path: Path
) -> None:
    log_dir = upgraded(tmp_path)
    for topic in TOPICS:
        (log_dir / f"{topic}-0" / "partition.metadata").unlink()
    assert broker.tier(log_dir) == 0
    before = broker.segments("magic0")
    # Another topic of that name, with other records at the same offsets.
    shutil.rmtree(log_dir / "magic0-0")
    shutil.copytree(log_dir / "magic1-0", log_dir / "magic0-0")
    for state in ("state", "anew"):
        broker.tier(log_dir, state=state)
        assert "magic0-0: the batch at offset" in broker.said
        assert "another one than in the archive; not tiered" in broker.said
        assert broker.segments("magic0") == before
    # With an id of its own it gets an archive of its own.
    for topic, topic_id in TOPIC_IDS.items():
        set_topic_id(log_dir, topic, topic_id)
    broker.tier(log_dir)
    assert f"magic0-0: topic id {TOPIC_IDS['magic0']} is new" not in broker.said
    assert broker.ids("magic0") == {DERIVED["magic0"], TOPIC_IDS["magic0"]}
    assert broker.ids("magic1") == {DERIVED["magic1"]}
    assert records(log_dir, "magic0", broker.url) == dumped_records("2.4", "magic1")


def test_a_log_that_ends_below_its_archive_is_not_tiered(broker: Broker, tmp_path: Path) -> None:
    log_dir = copy_old_log(tmp_path, "2.4")
    set_cluster_id(log_dir, CLUSTER_ID)
    assert broker.tier(log_dir) == 0
    shutil.rmtree(log_dir / "magic0-0")
    shutil.copytree(copy_old_log(tmp_path, "0.10") / "magic0-0", log_dir / "magic0-0")
    broker.tier(log_dir)
    assert "magic0-0: it ends below offset" in broker.said


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_lost_topic_id_of_a_cluster_with_ids_is_not_replaced(
    damage: str, broker: Broker, tmp_path: Path
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    path = log_dir / "epochs-0" / "partition.metadata"
    path.unlink()
    if damage == "damaged":
        path.write_text("version: 0\ntopic_id: ?")
    broker.tier(log_dir)
    assert "0 segments copied; 4 not copied: 4 topic_id_unknown" in broker.said
