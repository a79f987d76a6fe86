"""Logs of brokers before message format 2: copied, and read back as from the directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tierlog
from tests.old_logs import (
    TOPICS,
    VERSIONS,
    Record,
    copy_old_log,
    dumped_records,
    set_cluster_id,
    set_topic_id,
)
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main
from tierlog.log.log_dir import open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.remote.segment import indexes
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store

CLUSTER_ID = "IHl4YqgARFKu8FWePxAC6Q"
TOPIC_IDS = {"magic0": "pVRw-_3fQ7mA1bqkRvT0EQ", "magic1": "qVRw-_3fQ7mA1bqkRvT0EQ"}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


def old_log_with_ids(folder: Path, version: str) -> Path:
    """As a cluster has it that was upgraded since to a version with topic ids."""
    log_dir = copy_old_log(folder, version)
    set_cluster_id(log_dir, CLUSTER_ID)
    for topic, topic_id in TOPIC_IDS.items():
        set_topic_id(log_dir, topic, topic_id)
    return log_dir


def read_records(source: str, topic: str, store: str | None = None) -> list[Record]:
    return [
        (record.offset, record.timestamp_ms, bytes(record.key or b""), bytes(record.value or b""))
        for columns in tierlog.read(source, topic, 0, store=store)
        for record in columns.records()
    ]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_directory_reads_as_the_broker_dumps_it(version: str, topic: str, tmp_path: Path) -> None:
    log_dir = copy_old_log(tmp_path, version)
    assert read_records(str(log_dir), topic) == dumped_records(version, topic)


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_without_leader_epochs_are_copied_and_read_back(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = old_log_with_ids(tmp_path, version)
    url = (tmp_path / "store").as_uri()
    assert main(["tier", str(log_dir), "--to", url, "--once", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["segments"]
    rolled = sum(len(log.rolled_segments) for log in open_log_dir(log_dir).partitions())
    assert [row["outcome"] for row in rows].count("copied") == rolled

    for topic in TOPICS:
        ends = [
            one.end_offset
            for one in list_segments(open_store(url))
            if one.topic_id_partition.topic == topic
        ]
        truth = [one for one in dumped_records(version, topic) if one[0] <= max(ends)]
        assert read_records(url, topic) == truth
        assert read_records(str(log_dir), topic, store=url) == dumped_records(version, topic)
        for log in (log_dir / f"{topic}-0").glob("*.log"):
            stored = list((tmp_path / "store").glob(f"{topic}-*/0/{log.stem}-*.log"))
            assert all(one.read_bytes() == log.read_bytes() for one in stored)
    assert main(["verify", url, "--deep"]) == 0

    again = ["tier", str(log_dir), "--to", url, "--once", "--state-dir", str(tmp_path / "anew")]
    assert main(again) == 0
    assert "0 segments copied" in capsys.readouterr().err


def test_the_first_known_epoch_follows_the_one_of_older_messages(tmp_path: Path) -> None:
    log_dir = old_log_with_ids(tmp_path, "2.4")
    # The checkpoint of a cluster whose controller counted on to 7 before the upgrade.
    (log_dir / "magic0-0" / "leader-epoch-checkpoint").write_text("0\n1\n7 180\n")
    url = (tmp_path / "store").as_uri()
    assert main(["tier", str(log_dir), "--to", url, "--once", "--topic", "magic0"]) == 0
    epochs = [one.leader_epochs for one in list_segments(open_store(url))]
    assert epochs[:2] == [((0, 0),), ((0, 24),)]
    assert epochs[-1] == ((7, 180),)
    assert read_records(str(log_dir), "magic0", store=url) == dumped_records("2.4", "magic0")


@pytest.mark.parametrize("checkpoint", [None, "0\n0\n", "0\n1\n0 x\n"])
def test_a_log_whose_epochs_got_lost_waits_with_the_reason(
    checkpoint: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    path = log_dir / "epochs-0" / "leader-epoch-checkpoint"
    path.unlink()
    if checkpoint is not None:
        path.write_text(checkpoint)
    url = (tmp_path / "store").as_uri()
    main(["tier", str(log_dir), "--to", url, "--once", "--format", "json"])
    rows = json.loads(capsys.readouterr().out)["segments"]
    assert {row["reason"] for row in rows} == {"leader_epochs_unknown"}


def lose_the_front(log_dir: Path, name: str) -> None:
    """As the cleaner does: the first two segments become one, of which only the second's batches
    are left. Recovery then lets the leader epochs begin at the first batch."""
    directory = log_dir / name
    first, second = sorted(directory.glob("*.log"))[:2]
    for path in directory.glob(f"{first.stem}.*"):
        path.unlink()
    for path in directory.glob(f"{second.stem}.*"):
        path.rename(directory / f"{first.stem}{path.suffix}")
    begin = int(scan_segment(str(first)).base_offset[0])
    assert begin > 0
    checkpoint = directory / "leader-epoch-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("\n0 0\n", f"\n0 {begin}\n"))


def test_a_segment_that_lost_its_front_to_compaction_is_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "compacted-0", "compacted-transactions-0")
    (directory,) = [path for path in log_dir.iterdir() if path.is_dir()]
    lose_the_front(log_dir, directory.name)
    topic = directory.name.removesuffix("-0")
    url = (tmp_path / "store").as_uri()
    command = ["tier", str(log_dir), "--to", url, "--once", "--include-compacted"]
    assert main([*command, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["segments"]
    assert {row["outcome"] for row in rows if row["reason"] != "active"} == {"copied"}
    local = read_records(str(log_dir), topic)
    assert read_records(url, topic) == local[: len(read_records(url, topic))]
    assert read_records(str(log_dir), topic, store=url) == local
    assert main(["verify", url, "--deep"]) == 0
    main([*command, "--state-dir", str(tmp_path / "anew")])
    assert "0 segments copied" in capsys.readouterr().err


def test_segments_behind_a_failed_copy_wait_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    log = open_log_dir(log_dir).partition("epochs", 0)
    store = tmp_path / "store"
    store.mkdir()
    (store / f"epochs-{log.topic_id}").write_text("in the way")
    command = ["tier", str(log_dir), "--to", store.as_uri(), "--once", "--format", "json"]
    assert main(command) == 1
    rows = json.loads(capsys.readouterr().out)["segments"]
    waiting = [row["text"] for row in rows if row["reason"] == "pending"]
    assert waiting
    assert all(text.startswith("the copy task stopped before it: ") for text in waiting)


def test_lost_indexes_of_messages_without_epochs_are_rebuilt(tmp_path: Path) -> None:
    log_dir = old_log_with_ids(tmp_path, "0.10")
    url = (tmp_path / "store").as_uri()
    assert main(["tier", str(log_dir), "--to", url, "--once"]) == 0
    before = {topic: read_records(url, topic) for topic in TOPICS}
    for path in (tmp_path / "store").rglob("*.indexes"):
        path.unlink()
    for path in (tmp_path / "store").rglob("*.log"):
        # What is young may still be on its way.
        os.utime(path, (0, 0))
    assert main(["index", "rebuild", url]) == 0
    assert {topic: read_records(url, topic) for topic in TOPICS} == before
    assert main(["verify", url, "--deep"]) == 0


def index_bytes(path: Path) -> int:
    """The size of all index sections in an `.indexes` object."""
    header = indexes.IndexesHeader.parse(path.read_bytes(), path=path.name)
    return sum(one.size_bytes for one in header.sections if one.kind != indexes.IndexKind.METADATA)


def test_a_segment_with_too_large_indexes_is_refused_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    command = ["tier", str(log_dir), "--once", "--format", "json", "--to"]
    assert main([*command, (tmp_path / "first").as_uri()]) == 0
    capsys.readouterr()
    sizes = {index_bytes(path): path for path in (tmp_path / "first").rglob("*.indexes")}
    assert len(sizes) > 1
    largest = int(sizes[max(sizes)].name[:20])
    monkeypatch.setattr(indexes, "_MAX_OTHER_BYTES", max(sizes) - 1)
    assert main([*command, (tmp_path / "second").as_uri()]) == 1
    rows = json.loads(capsys.readouterr().out)["segments"]
    refused = [row for row in rows if row["outcome"] == "refused"]
    assert [row["base_offset"] for row in refused] == [largest]
    assert refused[0]["reason"] == "indexes_too_large"
    assert "the indexes take" in refused[0]["text"]
    assert [row["outcome"] for row in rows].count("copied") == 2
