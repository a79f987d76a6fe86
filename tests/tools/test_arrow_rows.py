"""The columns that users find in Parquet files and data frames follow from the rows' fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

from tierlog.tools.arrow_rows import row_schema, row_table
from tierlog.tools.audit.rows import AuditedSegment
from tierlog.tools.rebuild.table import FINDINGS


class Colour(StrEnum):
    RED = "red"


class Part(NamedTuple):
    epoch: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Row:
    topic: str
    partition: int | None
    size_bytes: int
    is_whole: bool
    colour: Colour
    names: tuple[str, ...] = ()
    parts: tuple[Part, ...] | None = None


def test_columns_have_the_types_of_the_fields() -> None:
    part = pa.struct({"epoch": pa.int32(), "size_bytes": pa.int64()})
    expected = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "size_bytes": pa.int64(),
        "is_whole": pa.bool_(),
        "colour": pa.string(),
        "names": pa.list_(pa.string()),
        "parts": pa.list_(part),
    }
    assert row_schema(Row) == pa.schema(expected)
    other = row_schema(Row, size_bytes=pa.int32())
    assert other == pa.schema({**expected, "size_bytes": pa.int32()})


def test_rows_become_a_table_in_their_order() -> None:
    rows = [
        Row(topic="a", partition=1, size_bytes=2, is_whole=True, colour=Colour.RED, names=("x",)),
        Row(
            topic="b",
            partition=None,
            size_bytes=0,
            is_whole=False,
            colour=Colour.RED,
            parts=(Part(3, 4),),
        ),
    ]
    found = row_table(rows, row_schema(Row)).to_pylist()
    assert [one["topic"] for one in found] == ["a", "b"]
    assert found[0]["colour"] == "red"
    assert found[0]["names"] == ["x"]
    assert (found[0]["parts"], found[1]["partition"]) == (None, None)
    assert found[1]["parts"] == [{"epoch": 3, "size_bytes": 4}]


def test_columns_of_the_reports_stay_as_they_are() -> None:
    assert ", ".join(f"{one.name} {one.type}" for one in FINDINGS) == (
        "severity string, path string, position int64, what string, expected string, found string, "
        "action string, topic string, partition int32, first_offset int64, last_offset int64"
    )
    epochs = "list<item: struct<epoch: int32, start_offset: int64>>"
    assert ", ".join(f"{one.name} {one.type}" for one in row_schema(AuditedSegment)) == (
        "topic string, partition int32, base_offset int64, end_offset int64, size_bytes int64, "
        f"max_timestamp_ms int64, leader_epochs {epochs}, state string, stored bool, "
        "batches int64, records int64, path string, topic_id string, segment_id string, "
        "broker_id int32, event_timestamp_ms int64, "
        "bytes_per_epoch list<item: struct<epoch: int32, size_bytes: int64>>, log_crc32c int64, "
        f"txn_index_empty bool, truncation_offset int64, log_start_offset int64, lineage {epochs}, "
        "open_transactions list<item: struct<producer_id: int64, first_offset: int64>>, "
        "ended_producers list<item: int64>, gap_start_offset int64"
    )
