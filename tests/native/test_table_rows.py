"""Rows made straight from a file against the records that a decode of the same bytes gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.kafka_tools.golden import GoldenSegment, golden_segments
from tests.oracle import build
from tests.oracle.model import Record
from tierlog.columns import TableRows
from tierlog.log.records import decode_records, read_rows

EVERY = (0, 2**63 - 1)
PLAIN = [one for one in golden_segments() if not one.codecs or one.codecs == ("none",)]
PACKED = [one for one in golden_segments() if one.codecs and "none" not in one.codecs]


def read(path: Path, position: int = 0, **more: Any) -> TableRows:
    wanted = {"size_bytes": 2 << 20, "max_rows": 1 << 16, "offsets": EVERY, "batch_offsets": EVERY}
    with path.open("rb") as file:
        return read_rows(file, position, **{**wanted, **more})


def columns(rows: TableRows) -> dict[str, list[Any]]:
    assert rows.keys is not None
    assert rows.values is not None
    binary = {"keys": rows.keys.to_binary(), "values": rows.values.to_binary()}
    for array in binary.values():
        array.validate(full=True)
        assert array.type == pa.binary()
    numbers = {"offset": rows.offset, **rows.columns._asdict()}
    return {
        **{name: column.to_pylist() for name, column in binary.items()},
        **{name: np.asarray(column).tolist() for name, column in numbers.items()},
    }


def truth(path: Path) -> dict[str, list[Any]]:
    records = decode_records(path)
    numbers = {"offset": records.offset, **records.row_columns()._asdict()}
    return {
        "keys": records.keys.to_list(),
        "values": records.values.to_list(),
        **{name: np.asarray(column).tolist() for name, column in numbers.items()},
    }


def markers(path: Path) -> int:
    return len(decode_records(path, include_control=True)) - len(decode_records(path))


def test_there_are_logs_of_both_kinds() -> None:
    assert len(PLAIN) > 20
    assert len(PACKED) > 3


@pytest.mark.parametrize("segment", PLAIN, ids=lambda one: one.name)
def test_kafkas_plain_segments(segment: GoldenSegment) -> None:
    rows = read(segment.path)
    assert columns(rows) == truth(segment.path)
    assert rows.is_last
    assert rows.stop_position == decode_records(segment.path).batches.stop_position
    # The tool counts markers of transactions and of leaders, too.
    assert segment.record_count - len(rows) == markers(segment.path)


@pytest.mark.parametrize("segment", PACKED, ids=lambda one: one.name)
def test_compressed_batches_are_left_to_others(segment: GoldenSegment) -> None:
    batches = decode_records(segment.path).batches
    first = int(np.flatnonzero(batches.attributes & 0x07)[0])
    rows = read(segment.path)
    assert rows.is_last
    assert rows.stop_position == batches.position[first]
    assert len(rows) == len(decode_records(segment.path, 0, rows.stop_position))


def test_from_a_place_on_in_windows() -> None:
    """The tables of small windows are the table of a large one."""
    segment = max(PLAIN, key=lambda one: one.batch_count)
    largest = int(decode_records(segment.path).batches.size_bytes.max())
    found: dict[str, list[Any]] = {name: [] for name in truth(segment.path)}
    position, offset, tables, is_last = 0, 0, 0, False
    while not is_last:
        rows = read(
            segment.path, position, size_bytes=2 * largest, batch_offsets=(offset, EVERY[1])
        )
        for name, column in columns(rows).items():
            found[name] += column
        position, offset, is_last = rows.stop_position, rows.next_offset, rows.is_last
        tables += 1
    assert found == truth(segment.path)
    assert tables > 3


def test_large_values_outlive_the_file(tmp_path: Path) -> None:
    """Their memory is handed on from one table to the next, but not while it is looked at."""
    path = tmp_path / "large.log"
    values = [bytes([number]) * (700 << 10) for number in range(6)]
    path.write_bytes(
        b"".join(
            build.batch(
                [Record(offset=number, timestamp_ms=0, key=None, value=value)], base_offset=number
            )
            for number, value in enumerate(values)
        )
    )
    arrays, position, offset = [], 0, 0
    while offset < len(values):
        rows = read(path, position, size_bytes=1500 << 10, batch_offsets=(offset, EVERY[1]))
        assert rows.values is not None
        position, offset = rows.stop_position, rows.next_offset
        arrays.append(rows.values.to_binary())
    path.unlink()
    assert [value for array in arrays for value in array.to_pylist()] == values
    assert len(arrays) == 3


def test_what_is_no_open_file() -> None:
    for source in (str(PLAIN[0].path), PLAIN[0].path, b""):
        with pytest.raises(TypeError, match="expected an open file"):
            read_rows(
                source,  # type: ignore[arg-type]
                0,
                size_bytes=1,
                max_rows=1,
                offsets=EVERY,
                batch_offsets=EVERY,
            )
