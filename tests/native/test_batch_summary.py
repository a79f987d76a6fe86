"""What a scan says its batches add up to, against its columns, one row after the other."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.strategies import profile, st_damaged_segment, st_segment
from tierlog.batches import BatchTable
from tierlog.log.segment import scan_segment

DATA = st.one_of(
    st_segment(max_batches=10).map(lambda segment: segment.data),
    st_damaged_segment(),
    st.just(b""),
)


def run_of(table: BatchTable) -> tuple[int, int, int, int] | None:
    rows = list(
        zip(
            table.base_offset.tolist(),
            table.last_offset.tolist(),
            table.leader_epoch.tolist(),
            table.magic.tolist(),
            strict=True,
        )
    )
    if not rows or any(magic != 2 or last < base for base, last, _, magic in rows):
        return None
    for (_, last, epoch, _), (base, _, later, _) in pairwise(rows):
        if base != last + 1 or later < epoch:
            return None
    return rows[0][0], rows[-1][1], rows[0][2], rows[-1][2]


@profile(300)
@given(DATA)
def test_the_summary_is_that_of_the_columns(data: bytes) -> None:
    table = scan_segment(data)
    found = table.summary
    attributes = table.attributes.tolist()
    times = [
        first_ms
        for first_ms, flags in zip(table.base_timestamp_ms.tolist(), attributes, strict=True)
        if first_ms >= 0 and not flags & 0x40
    ]
    ends = [
        position + size
        for position, size in zip(table.position.tolist(), table.size_bytes.tolist(), strict=True)
    ]
    assert found.records == sum(table.record_count.tolist())
    assert found.first_timestamp_ms == min(times, default=None)
    assert found.has_transactions == any(flags & 0x10 for flags in attributes)
    codecs = {flags & 7 for flags in attributes if not flags & 0x20}
    assert found.codecs == sum(1 << code for code in codecs)
    assert found.end_position == (ends[-1] if ends else 0)
    assert found.run == run_of(table)
