"""A part of decoded columns answers like the same part of the whole."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kafka_tools.golden import golden_segments
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
