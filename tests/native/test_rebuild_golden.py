"""Rebuilt indexes of real Kafka logs against what Kafka's own recovery makes of the same logs, and
against the files its broker left beside them.

A broker's files may differ from any rebuild where something happened that the log does not tell:
it was restarted in the middle of a segment (which starts the index interval anew and puts the
largest timestamp so far into the time index), killed before the last time entry, or the cleaner
removed what had already left its mark in index and snapshot.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import dump_log_segments
from tests.kafka_tools.golden import GoldenSegment, golden_segments
from tierlog.log.index_files import (
    read_offset_index,
    read_producer_snapshot,
    read_time_index,
    read_transaction_index,
)
from tierlog.log.segment import RebuiltIndexes, rebuild_indexes

SEGMENTS = golden_segments()
RECOVERED = Path(__file__).with_name("recovered") / "recovered.json.gz"
COMPACTED = ("compacted", "compacted-transactions")


@pytest.fixture(scope="module")
def recovered() -> dict[str, dict[str, Any]]:
    """See `tests.native.recovered.make`."""
    with gzip.open(RECOVERED, "rt", encoding="utf-8") as text:
        found: dict[str, dict[str, Any]] = json.load(text)
    return found


def rebuilt_in_order() -> Iterator[tuple[GoldenSegment, RebuiltIndexes]]:
    """Every segment, each from the producer state at the end of the one before."""
    states: dict[tuple[str, str, int], bytes] = {}
    for segment in SEGMENTS:
        partition = (segment.data_set, segment.topic, segment.partition)
        first = segment.path.with_suffix(".snapshot")
        before = states.get(partition, first.read_bytes() if first.exists() else None)
        rebuilt = rebuild_indexes(
            segment.path,
            segment.index_interval_bytes,
            base_offset=segment.base_offset,
            producer_snapshot=before,
        )
        states[partition] = rebuilt.producer_snapshot
        yield segment, rebuilt


@pytest.fixture(scope="module")
def rebuilds() -> dict[str, tuple[GoldenSegment, RebuiltIndexes]]:
    return {segment.name: (segment, rebuilt) for segment, rebuilt in rebuilt_in_order()}


def test_every_segment_is_as_kafka_recovers_it(
    rebuilds: dict[str, tuple[GoldenSegment, RebuiltIndexes]],
    recovered: dict[str, dict[str, Any]],
) -> None:
    assert rebuilds.keys() == recovered.keys(), "run tests.native.recovered.make again"
    for name, (segment, rebuilt) in rebuilds.items():
        expected = recovered[name]
        assert segment.sha256 == expected["log_sha256"], "run tests.native.recovered.make again"
        files = {
            "index": rebuilt.offset_index,
            "timeindex": rebuilt.time_index,
            "txnindex": rebuilt.transaction_index,
            "snapshot": rebuilt.producer_snapshot,
        }
        for suffix, data in files.items():
            assert data == base64.b64decode(expected[suffix]), f"{name}.{suffix}"
        first_open = rebuilt.first_open_transaction_offset
        assert (-1 if first_open is None else first_open) == expected[
            "first_open_transaction_offset"
        ], name
        assert rebuilt.end_offset == expected["end_offset"], name
        assert rebuilt.max_timestamp_ms == expected["max_timestamp_ms"], name
        assert [list(pair) for pair in rebuilt.leader_epochs] == expected["leader_epochs"], name


def written_in_one_go(segment: GoldenSegment) -> bool:
    """Nothing happened to it that the log does not tell: a restart raises the leader epoch."""
    ended_well = segment.rolled or segment.data_set == "clean"
    return len(segment.leader_epochs) <= 1 and ended_well and segment.topic not in COMPACTED


def stored(segment: GoldenSegment, suffix: str) -> bytes:
    path = segment.path.with_suffix(f".{suffix}")
    return path.read_bytes() if path.exists() else b""


def test_offset_and_time_indexes_are_the_brokers_own(
    rebuilds: dict[str, tuple[GoldenSegment, RebuiltIndexes]],
) -> None:
    compared = 0
    for name, (segment, rebuilt) in rebuilds.items():
        if written_in_one_go(segment):
            assert rebuilt.offset_index == stored(segment, "index"), name
            assert rebuilt.time_index == stored(segment, "timeindex"), name
            compared += 1
    assert compared > len(rebuilds) // 2


def test_transaction_indexes_and_snapshots_are_the_brokers_own(
    rebuilds: dict[str, tuple[GoldenSegment, RebuiltIndexes]],
) -> None:
    aborts = snapshots = 0
    for name, (segment, rebuilt) in rebuilds.items():
        if segment.topic in COMPACTED:
            continue
        assert rebuilt.transaction_index == stored(segment, "txnindex"), name
        aborts += len(rebuilt.transaction_index) > 0
        path = segment.path.with_name(f"{rebuilt.end_offset:020d}.snapshot")
        if path.exists():
            assert rebuilt.producer_snapshot == path.read_bytes(), name
            snapshots += len(read_producer_snapshot(rebuilt.producer_snapshot)) > 1
    assert aborts > 3
    assert snapshots > 3


def test_what_the_cleaner_removed_is_all_that_differs(
    rebuilds: dict[str, tuple[GoldenSegment, RebuiltIndexes]],
) -> None:
    for name, (segment, rebuilt) in rebuilds.items():
        if segment.topic in COMPACTED:
            ours = read_transaction_index(rebuilt.transaction_index, segment.base_offset)
            theirs = read_transaction_index(stored(segment, "txnindex"), segment.base_offset)
            assert set(ours.last_offset.tolist()) <= set(theirs.last_offset.tolist()), name
            assert rebuilt.offset_index == stored(segment, "index"), name
            assert rebuilt.time_index == stored(segment, "timeindex"), name


@pytest.mark.parametrize("segment", SEGMENTS, ids=lambda segment: segment.name)
def test_the_brokers_index_files_read_as_dumped(segment: GoldenSegment) -> None:
    """Ours and the broker's point at the same batches, wherever they put their entries."""
    table = rebuild_indexes(segment.path, base_offset=segment.base_offset).table
    where = dict(zip(table.last_offset.tolist(), table.position.tolist(), strict=True))
    index = read_offset_index(stored(segment, "index"), segment.base_offset)
    for offset, position in zip(index.offset.tolist(), index.position.tolist(), strict=True):
        assert where[offset] == position
    times = read_time_index(stored(segment, "timeindex"), segment.base_offset)
    largest = dict(zip(table.last_offset.tolist(), table.max_timestamp_ms.tolist(), strict=True))
    for timestamp_ms, offset in zip(
        times.timestamp_ms.tolist(), times.offset.tolist(), strict=True
    ):
        assert largest[offset] == timestamp_ms


@pytest.mark.integration
def test_kafka_finds_rebuilt_indexes_sane(
    rebuilds: dict[str, tuple[GoldenSegment, RebuiltIndexes]], tmp_path: Path
) -> None:
    """DumpLogSegments --index-sanity-check, and its default check of every entry."""
    for data_set, topic in (("clean", "transactions"), ("clean", "times-shuffled")):
        directory = tmp_path / topic
        directory.mkdir()
        names = []
        for segment, rebuilt in rebuilds.values():
            if (segment.data_set, segment.topic, segment.partition) != (data_set, topic, 0):
                continue
            log = directory / segment.path.name
            log.write_bytes(segment.path.read_bytes())
            log.with_suffix(".index").write_bytes(rebuilt.offset_index)
            log.with_suffix(".timeindex").write_bytes(rebuilt.time_index)
            log.with_suffix(".txnindex").write_bytes(rebuilt.transaction_index)
            snapshot = f"{rebuilt.end_offset:020d}.snapshot"
            (directory / snapshot).write_bytes(rebuilt.producer_snapshot)
            names += [log.with_suffix(suffix).name for suffix in (".index", ".timeindex")]
            names += [log.with_suffix(".txnindex").name, snapshot]
        sane = dump_log_segments(
            [name for name in names if name.endswith("index") and "txn" not in name],
            "--index-sanity-check",
            cwd=directory,
        )
        assert sane.count("passed sanity check.") == len(names) // 2
        every_entry = dump_log_segments(names, cwd=directory)
        assert "Mismatches" not in every_entry
        assert "not found" not in every_entry
        assert "Found timestamp mismatch" not in every_entry
