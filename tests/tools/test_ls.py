"""Listings of golden log directories, against the manifest that their broker and tools made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.dump_text import parse_log_dump
from tests.kafka_tools.golden import DATA_DIR, GoldenSegment, golden_segments, manifest, truth_text
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.errors import OutOfRangeError
from tierlog.tools.ls import list_log_dir

LOG_DIRS = [
    (name, disk) for name, held in manifest()["data_sets"].items() for disk in held["log_dirs"]
]


@pytest.mark.parametrize(("data_set", "disk"), LOG_DIRS)
def test_partitions_are_those_of_the_broker(data_set: str, disk: str) -> None:
    listed = list_log_dir(str(DATA_DIR / data_set / disk))
    partitions = [
        row for row in manifest()["data_sets"][data_set]["partitions"] if row["log_dir"] == disk
    ]
    assert listed.segments is None
    assert listed.problems == ()
    found = {(row.topic, row.partition): row for row in listed.partitions}
    found.pop(("__cluster_metadata", 0), None)
    assert sorted(found) == sorted((row["topic"], row["partition"]) for row in partitions)
    for row in partitions:
        partition = found[row["topic"], row["partition"]]
        assert partition.log_start_offset == row["log_start_offset"]
        assert partition.log_end_offset == row["high_watermark"]
        assert partition.topic_id is not None


@pytest.mark.parametrize(("data_set", "disk"), LOG_DIRS)
def test_segments_are_those_of_the_tools(data_set: str, disk: str) -> None:
    expected = [s for s in golden_segments(data_set=data_set) if s.log_dir == disk]
    listed = list_log_dir(str(DATA_DIR / data_set / disk), segments=True)
    assert listed.segments is not None
    rows = {(row.topic, row.partition, row.base_offset): row for row in listed.segments}
    for segment in expected:
        row = rows[segment.topic, segment.partition, segment.base_offset]
        assert (row.last_offset is None) == (segment.last_offset == -1)
        assert row.last_offset in (segment.last_offset, None)
        assert row.size_bytes == segment.size_bytes
        assert row.batches == segment.batch_count
        assert row.records == segment.record_count
        assert row.codecs == tuple(sorted(segment.codecs))
        assert row.leader_epochs == segment.leader_epochs
        assert row.state == ("rolled" if segment.rolled else "active")
        assert row.max_timestamp_ms == newest(segment)


def newest(segment: GoldenSegment) -> int | None:
    batches = parse_log_dump(truth_text(segment.path))
    return max((batch.max_timestamp_ms for batch in batches), default=None)


def test_one_partition_and_one_topic() -> None:
    one = list_log_dir(str(DATA_DIR / "clean/disk1"), topic="orders.eu-west_1", partition=1)
    assert [(row.topic, row.partition) for row in one.partitions] == [("orders.eu-west_1", 1)]
    both = list_log_dir(str(DATA_DIR / "clean/disk1"), topic="orders.eu-west_1")
    assert [row.partition for row in both.partitions] == [0, 1]


def test_what_is_not_there_is_said_with_what_is() -> None:
    with pytest.raises(OutOfRangeError, match=r"no partition 7 of orders\.eu-west_1, only 0, 1"):
        list_log_dir(str(DATA_DIR / "clean/disk1"), topic="orders.eu-west_1", partition=7)
    with pytest.raises(OutOfRangeError, match=r"no topic orders, only .*epochs"):
        list_log_dir(str(DATA_DIR / "clean/disk1"), topic="orders")


def test_skipped_files_have_reasons() -> None:
    listed = list_log_dir(str(DATA_DIR / "unclean/disk1"), topic="crash-deleted-records")
    reasons = {Path(row.path).name: row.reason for row in listed.skipped}
    deleted = "deleted by the broker, which removes it after a delay"
    assert reasons["00000000000000000000.log.deleted"] == deleted
    stages = list_log_dir(str(DATA_DIR / "unclean/disk2")).skipped
    assert any(row.reason.startswith("partition deleted") for row in stages)


def test_a_damaged_checkpoint_leaves_its_value_unknown(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    overwrite(log_dir / "log-start-offset-checkpoint", 0, b"9")
    listed = list_log_dir(str(log_dir))
    assert [row.log_start_offset for row in listed.partitions] == [None]
    assert [row.reason for row in listed.problems] == ["bad_version"]


def test_a_log_directory_without_partitions_lists_nothing(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    shutil.rmtree(log_dir / "epochs-0")
    assert list_log_dir(str(log_dir)).partitions == ()
