"""Offsets by time, around every marker of the golden transactional logs, as a broker finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dump_text import DumpedRecord, parse_log_dump
from tests.kafka_tools.golden import golden_segments, truth_text
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main
from tierlog.reader.open import open_reader

TOPICS = ("transactions", "transactions-java")


def dumped(topic: str) -> list[DumpedRecord]:
    """All records and markers of partition 0, as Kafka's tool prints them."""
    return [
        record
        for segment in golden_segments(topic=topic, data_set="clean")
        if segment.partition == 0
        for batch in parse_log_dump(truth_text(segment.path))
        for record in batch.records
    ]


def first_late(records: list[DumpedRecord], timestamp_ms: int) -> int | None:
    """What FileRecords.searchForTimestamp finds: markers count."""
    late = (record.offset for record in records if record.timestamp_ms >= timestamp_ms)
    return next(late, None)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_transaction_marker_is_found_by_its_time(topic: str, tmp_path: Path) -> None:
    (disk,) = {one.log_dir for one in golden_segments(topic=topic) if one.partition == 0}
    log_dir = copy_log_dir(tmp_path, f"clean/{disk}", f"{topic}-0")
    url = (tmp_path / "store").as_uri()
    assert main(["tier", str(log_dir), "--to", url, "--once"]) == 0
    alone = open_reader(url)
    _, stored_end = alone.bounds(topic, 0)
    everything = dumped(topic)
    stored = [record for record in everything if record.offset < stored_end]
    times = {record.timestamp_ms for record in everything if record.is_marker}
    markers = {record.offset for record in everything if record.is_marker}
    found = set()
    local, both = open_reader(str(log_dir)), open_reader(str(log_dir), store=url)
    for timestamp_ms in sorted({time + step for time in times for step in (0, 1)}):
        expected = first_late(everything, timestamp_ms)
        found.add(expected)
        assert local.offset_for_timestamp(topic, 0, timestamp_ms) == expected
        assert both.offset_for_timestamp(topic, 0, timestamp_ms) == expected
        assert alone.offset_for_timestamp(topic, 0, timestamp_ms) == first_late(
            stored, timestamp_ms
        )
    assert found & markers, "the log has a time that only a marker has"
