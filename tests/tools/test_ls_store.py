"""Listings of a store, against the golden manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kafka_tools.golden import golden_segments
from tierlog.cli import main
from tierlog.errors import OutOfRangeError
from tierlog.tools.ls import list_store


def test_segments_are_those_of_the_broker(golden_store: Path) -> None:
    listed = list_store(golden_store.as_uri(), segments=True)
    assert listed.segments
    golden = {
        (segment.topic, segment.partition, segment.base_offset): segment
        for segment in golden_segments(data_set="clean")
    }
    for row in listed.segments:
        segment = golden[row.topic, row.partition, row.base_offset]
        assert segment.rolled
        assert row.last_offset == segment.next_base_offset - 1
        assert row.size_bytes == segment.size_bytes
        assert (row.batches, row.records) == (segment.batch_count, segment.record_count)
        assert row.leader_epochs == segment.leader_epochs
        assert row.state == "COPY_SEGMENT_FINISHED"
        assert (golden_store / row.location).read_bytes() == segment.path.read_bytes()


def test_partitions(golden_store: Path) -> None:
    listed = list_store(golden_store.as_uri())
    rows = {(row.topic, row.partition): row for row in listed.partitions}
    epochs = [segment for segment in golden_segments(topic="epochs") if segment.rolled]
    row = rows["epochs", 0]
    assert (row.log_start_offset, row.log_end_offset) == (0, epochs[-1].next_base_offset)
    assert row.segments == len(epochs)
    assert row.size_bytes == sum(segment.size_bytes for segment in epochs)
    assert [name for name, _ in rows].count("orders.eu-west_1") == 4
    assert listed.skipped == ()


def test_one_topic_by_name_and_by_id(golden_store: Path) -> None:
    by_name = list_store(golden_store.as_uri(), topic="epochs", partition=0, segments=True)
    assert by_name.segments is not None
    topic_id = list_store(golden_store.as_uri(), topic="epochs").partitions[0].topic_id
    assert list_store(golden_store.as_uri(), topic=topic_id, segments=True) == by_name
    with pytest.raises(OutOfRangeError, match=r"no partition 3 of epochs, only 0"):
        list_store(golden_store.as_uri(), topic="epochs", partition=3)


def test_objects_that_are_no_segments_are_shown_with_reasons(
    store_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (next(store_copy.rglob("*.indexes"))).unlink()
    assert main(["ls", str(store_copy)]) == 0
    assert "1 name not read; --format wide says which and why" in capsys.readouterr().err
    assert main(["ls", str(store_copy), "--format", "json"]) == 0
    (skipped,) = json.loads(capsys.readouterr().out)["skipped"]
    assert skipped["reason"] == "log_without_indexes"


def test_missing_offsets_are_a_row(store_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, lost, after, *_ = sorted(store_copy.glob("epochs-*/0/*.log"))
    lost.unlink()
    lost.with_suffix(".indexes").unlink()
    first, end = (int(path.name[:20]) for path in (lost, after))
    listed = list_store(store_copy.as_uri())
    assert [
        (one.topic, one.partition, one.first_offset, one.last_offset) for one in listed.gaps
    ] == [("epochs", 0, first, end - 1)]
    for command in (["ls", str(store_copy)], ["ls", str(store_copy), "epochs:0"]):
        assert main(command) == 0
        shown = capsys.readouterr().out.splitlines()
        assert "Missing offsets:" in shown
        assert shown[-1].split() == ["epochs", "0", str(first), str(end - 1)]
    assert main(["ls", str(store_copy), "--format", "json"]) == 0
    (gap,) = json.loads(capsys.readouterr().out)["gaps"]
    assert (gap["first_offset"], gap["last_offset"]) == (first, end - 1)


def test_a_whole_store_lacks_no_offsets(golden_store: Path) -> None:
    """Neither behind compacted segments nor between those of several leaders."""
    assert list_store(golden_store.as_uri()).gaps == ()
