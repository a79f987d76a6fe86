"""The oracle against segments, indexes and snapshots that a real broker left on disk.

A broker starts counting `index.interval.bytes` anew when it restarts, so a segment it appended to
in two lives (two leader epochs here) has other entries than recovery would give it; a cleaner
keeps index and producer entries of records that are gone. Everything else must agree to the byte.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.kafka_tools.golden import GoldenSegment, golden_segments, truth_records
from tests.oracle import batches, indexes, rebuild
from tests.oracle.model import Batch, Record

SEGMENTS = golden_segments()
# The controller's own log is nothing a consumer reads.
PARTITIONS = sorted(
    {(s.data_set, s.topic, s.partition) for s in SEGMENTS if s.topic != "__cluster_metadata"}
)
ZERO_TAILED = {"crash-preallocated"}


def name(segment: GoldenSegment) -> str:
    return segment.name


def is_compacted(segment: GoldenSegment) -> bool:
    return segment.topic.startswith(("compacted", "__transaction_state"))


def stored(segment: GoldenSegment, suffix: str, offset: int | None = None) -> bytes | None:
    """A file beside a segment; None if the broker wrote none."""
    stem = f"{segment.base_offset if offset is None else offset:020d}"
    path = segment.path.with_name(stem + suffix)
    return path.read_bytes() if path.exists() else None


@cache
def rebuilt(segment: GoldenSegment) -> rebuild.Rebuilt:
    return rebuild.rebuild(
        segment.path.read_bytes(),
        index_interval_bytes=segment.index_interval_bytes,
        base_offset=segment.base_offset,
        producer_snapshot=stored(segment, ".snapshot"),
    )


@pytest.mark.parametrize("segment", SEGMENTS, ids=name)
def test_scan_agrees_with_the_manifest(segment: GoldenSegment) -> None:
    data = segment.path.read_bytes()
    found, reason, position = batches.scan(data)
    zero_tailed = segment.topic in ZERO_TAILED and not segment.rolled
    assert reason == ("zero_tail" if zero_tailed else "end")
    assert not any(data[position:])
    assert len(found) == segment.batch_count
    assert sum(batch.record_count for batch in found) == segment.record_count
    assert max((batch.last_offset for batch in found), default=-1) == segment.last_offset
    epochs = {batch.leader_epoch for batch in found if batch.leader_epoch >= 0}
    assert sorted(epochs) == list(segment.leader_epochs)


@pytest.mark.parametrize("segment", SEGMENTS, ids=name)
def test_every_stored_index_entry_is_one_that_replay_could_write(segment: GoldenSegment) -> None:
    log = rebuilt(segment).batches
    offset_index = stored(segment, ".index")
    time_index = stored(segment, ".timeindex")
    assert offset_index is not None
    assert time_index is not None
    by_position = {(batch.last_offset, batch.position) for batch in log}
    assert by_position >= set(indexes.decode_offset_index(offset_index, segment.base_offset))
    assert running_maxima(log) >= set(indexes.decode_time_index(time_index, segment.base_offset))


def running_maxima(log: tuple[Batch, ...]) -> set[tuple[int, int]]:
    """(largest timestamp so far, last offset of the first batch that has it) after each batch."""
    found: set[tuple[int, int]] = set()
    best = (-1, -1)
    for batch in log:
        if batch.max_timestamp_ms > best[0]:
            best = (batch.max_timestamp_ms, batch.last_offset)
        found.add(best)
    return found


@pytest.mark.parametrize(
    "segment", [s for s in SEGMENTS if len(s.leader_epochs) == 1 and s.rolled], ids=name
)
def test_rebuilt_offset_and_time_index_are_the_broker_s(segment: GoldenSegment) -> None:
    assert rebuilt(segment).offset_index == stored(segment, ".index")
    assert rebuilt(segment).time_index == stored(segment, ".timeindex")


@pytest.mark.parametrize("segment", [s for s in SEGMENTS if not is_compacted(s)], ids=name)
def test_rebuilt_transaction_index_is_the_broker_s(segment: GoldenSegment) -> None:
    assert rebuilt(segment).transaction_index == (stored(segment, ".txnindex") or b"")


def with_known_state() -> Iterator[GoldenSegment]:
    """Segments whose producer state at both ends is on disk (at offset 0 there is none)."""
    for segment in SEGMENTS:
        at_start = segment.base_offset == 0 or stored(segment, ".snapshot") is not None
        at_end = stored(segment, ".snapshot", segment.next_base_offset) is not None
        if at_start and at_end and not is_compacted(segment):
            yield segment


@pytest.mark.parametrize("segment", list(with_known_state()), ids=name)
def test_rebuilt_producer_snapshot_is_the_broker_s(segment: GoldenSegment) -> None:
    expected = stored(segment, ".snapshot", segment.next_base_offset)
    assert rebuilt(segment).producer_snapshot == expected


@pytest.mark.parametrize(("data_set", "topic", "partition"), PARTITIONS)
def test_records_are_what_a_consumer_read(data_set: str, topic: str, partition: int) -> None:
    expected = truth_records(data_set, topic, partition)
    found = [
        as_truth(record, batch)
        for segment in golden_segments(topic, data_set)
        if segment.partition == partition
        for batch in batches.scan(segment.path.read_bytes())[0]
        if not batch.is_control
        for record in batches.records(batch)
    ]
    start = expected[0]["offset"] if expected else 0
    kept = [row for row in found if row["offset"] >= start]
    for row in expected:
        del row["read_committed"]
    assert kept == expected


def as_truth(record: Record, batch: Batch) -> dict[str, Any]:
    """A record in the form of the truth files (tests/data/README.md)."""
    return {
        "offset": record.offset,
        "leader_epoch": batch.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": "LogAppendTime" if batch.is_log_append_time else "CreateTime",
        "key": as_text(record.key),
        "value": as_text(record.value),
        "headers": [[key.decode(), as_text(value)] for key, value in record.headers],
    }


def as_text(data: bytes | None) -> object:
    if data is None:
        return None
    if len(data) > 1024:
        return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return base64.b64encode(data).decode()
