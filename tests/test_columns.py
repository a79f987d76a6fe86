"""Records as Arrow columns: what pyarrow can do with views, and with plain binary columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kafka_tools.golden import golden_segments
from tierlog.columns import RecordColumns
from tierlog.log.records import decode_records

WHOLE = decode_records(golden_segments("codec-lz4")[0].path)
ROWS = st.integers(0, len(WHOLE))
OLD_PYARROW = "18.1.0"


def header_type() -> pa.DataType:
    key = pa.field("key", pa.binary(), nullable=False)
    return pa.list_(pa.struct([key, pa.field("value", pa.binary())]))


@settings(deadline=None)
@given(ROWS, ROWS)
def test_plain_columns_hold_what_views_hold(one: int, other: int) -> None:
    first, last = sorted((one, other))
    part = WHOLE.rows(first, last)
    plain = part.to_arrow(views=False)
    plain.validate(full=True)
    assert plain.schema.types[2:] == [pa.binary(), pa.binary(), header_type()]
    assert plain.to_pylist() == part.to_arrow().to_pylist()


def read_back(table: pa.Table, folder: Path) -> pa.Table:
    pq.write_table(table, folder / "records.parquet")
    return pq.read_table(folder / "records.parquet")


def test_plain_columns_go_through_parquet_take_filter_and_sort(tmp_path: Path) -> None:
    plain = pa.Table.from_batches([WHOLE.to_arrow(views=False)])
    rows = plain.to_pylist()
    assert any(row["headers"] for row in rows)
    assert read_back(plain, tmp_path).equals(plain)
    assert plain.take([2, 0]).to_pylist() == [rows[2], rows[0]]
    middle = rows[len(rows) // 2]["offset"]
    found = plain.filter(pc.greater(plain["offset"], middle)).to_pylist()
    assert found == [row for row in rows if row["offset"] > middle]
    values = plain.sort_by("value")["value"].to_pylist()
    assert values == sorted(
        (row["value"] for row in rows), key=lambda value: (value is None, value)
    )


Work = Callable[[pa.Table, Path], pa.Table]


@pytest.mark.parametrize(
    "work",
    [
        lambda table, _: table.take([0]),
        lambda table, _: table.filter(pc.greater(table["offset"], 0)),
        lambda table, _: table.sort_by("value"),
        read_back,
    ],
    ids=["take", "filter", "sort", "headers to Parquet"],
)
def test_what_the_documentation_says_that_views_cannot_do(work: Work, tmp_path: Path) -> None:
    """Once pyarrow can do one of these with views, the docstring of `to_arrow` has to say so."""
    views = pa.Table.from_batches([WHOLE.to_arrow()])
    with pytest.raises(pa.ArrowException, match=r"(?i)binary_?view"):
        work(views, tmp_path)


def test_views_without_headers_go_through_parquet(tmp_path: Path) -> None:
    views = pa.Table.from_batches([WHOLE.to_arrow()]).drop_columns(["headers"])
    assert read_back(views, tmp_path).to_pylist() == views.to_pylist()


def test_views_need_a_pyarrow_that_can_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "__version__", OLD_PYARROW)
    records: RecordColumns = WHOLE.rows(0, 1)
    with pytest.raises(ImportError, match=r"pyarrow 19 or later, found 18\.1\.0.*views=False"):
        records.to_arrow()
    assert records.to_arrow(views=False).num_rows == 1
