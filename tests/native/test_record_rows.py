"""A part of decoded columns answers like the same part of the whole."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kafka_tools.golden import golden_segments
from tests.vectors import vector
from tierlog import _core
from tierlog.log.records import decode_records

WHOLE = decode_records(golden_segments("codec-lz4")[0].path)
ROWS = st.integers(0, len(WHOLE))


@settings(deadline=None)
@given(ROWS, ROWS)
def test_rows_of_every_column(one: int, other: int) -> None:
    first, last = sorted((one, other))
    part = WHOLE.rows(first, last)
    assert len(part) == last - first
    assert part.offset.tolist() == WHOLE.offset.tolist()[first:last]
    assert part.timestamp_ms.tolist() == WHOLE.timestamp_ms.tolist()[first:last]
    for name in ("keys", "values"):
        column, whole = getattr(part, name), getattr(WHOLE, name)
        assert column.to_list() == whole.to_list()[first:last] == list(column)
        assert column.lengths.tolist() == whole.lengths.tolist()[first:last]
        assert column.is_null.tolist() == whole.is_null.tolist()[first:last]
        assert column.null_count == sum(value is None for value in column)
        assert column.to_arrow().to_pylist() == column.to_list()
        copied = column.to_binary()
        copied.validate(full=True)
        assert copied.to_pylist() == column.to_list()
        assert copied.null_count == column.null_count
        if len(column):
            assert column[0] == whole[first]
            assert column[-1] == whole[last - 1]
    assert part.headers[:] == WHOLE.headers[first:last]
    assert part.to_arrow().num_rows == len(part)
    headers = part.to_arrow().column("headers").to_pylist()
    assert [[(one["key"], one["value"]) for one in row] for row in headers] == part.headers[:]
    counts = [max(0, min(end, last) - max(start, first)) for start, end in row_ranges()]
    starts = part.batch_starts.tolist()
    assert [end - start for start, end in itertools.pairwise(starts)] == counts


def row_ranges() -> list[tuple[int, int]]:
    starts = WHOLE.batch_starts.tolist()
    return list(itertools.pairwise(starts))


@settings(deadline=None)
@given(ROWS, ROWS)
def test_rows_have_the_fields_of_their_batch(one: int, other: int) -> None:
    first, last = sorted((one, other))
    part = WHOLE.rows(first, last)
    found = part.row_columns()
    batches = part.batches
    spread = [
        row
        for row, (start, end) in enumerate(itertools.pairwise(part.batch_starts.tolist()))
        for _ in range(start, end)
    ]
    for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence"):
        column = np.asarray(getattr(found, name))
        assert column.dtype == getattr(batches, name).dtype
        assert column.tolist() == getattr(batches, name)[spread].tolist()
    assert np.asarray(found.timestamp_us).tolist() == (part.timestamp_ms * 1000).tolist()
    assert np.asarray(found.timestamp_type).tolist() == [0] * len(part)


def test_times_by_the_broker_and_of_old_messages() -> None:
    appended = decode_records(golden_segments("times-appended")[0].path)
    for records, kind in (
        (appended, 1),
        (decode_records(vector("v0_none")), -1),
        (decode_records(vector("v1_none")), 0),
    ):
        assert len(records)
        assert set(np.asarray(records.row_columns().timestamp_type).tolist()) == {kind}


def test_times_beyond_microseconds_are_the_nearest() -> None:
    far_ms = np.full(len(WHOLE), 2**63 - 1)
    native = WHOLE.batches.native
    latest = np.asarray(_core.row_columns(native, WHOLE.batch_starts, far_ms)[0])
    earliest = np.asarray(_core.row_columns(native, WHOLE.batch_starts, -far_ms)[0])
    assert set(latest.tolist()) == {9223372036854775000}
    assert set(earliest.tolist()) == {-9223372036854775000}


def test_every_row_has_a_batch() -> None:
    starts, times = WHOLE.batch_starts, WHOLE.timestamp_ms
    for bad in (starts[:-1], starts + 1, starts[::-1].copy(), starts[:0], np.append(starts, 0)):
        with pytest.raises(ValueError, match="expected starts of"):
            _core.row_columns(WHOLE.batches.native, bad, times)
    with pytest.raises(ValueError, match="expected starts of"):
        _core.row_columns(WHOLE.batches.native, starts, times[1:])
    with pytest.raises(TypeError, match="timestamp_ms"):
        _core.row_columns(WHOLE.batches.native, starts, times.astype(np.int32))


def test_rows_of_rows() -> None:
    part = WHOLE.rows(10, 90).rows(5, 20)
    assert part.values.to_list() == WHOLE.values.to_list()[15:30]
    assert part.headers[:] == WHOLE.headers[15:30]


def test_a_copy_does_not_keep_the_source() -> None:
    for name in ("codec-none", "codec-zstd"):
        records = decode_records(golden_segments(name)[0].path)
        for column in (records.keys, records.values):
            copied = column.to_binary()
            size_bytes = int(column.lengths.sum())
            assert copied.buffers()[2].size == size_bytes
            assert copied.cast(pa.binary_view()).to_pylist() == column.to_list()
