"""The strategies make what they promise, and damage never surprises the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import batches, build, compression, rebuild, remote_index
from tests.oracle.model import Record
from tests.oracle.primitives import OracleError
from tests.oracle.strategies import (
    Segment,
    profile,
    st_damaged_remote_index,
    st_damaged_segment,
    st_records,
    st_remote_entries,
    st_segment,
)


@profile(60)
@given(st_segment())
def test_segments_are_valid(segment: Segment) -> None:
    data = segment.data
    found, reason, position = batches.scan(data)
    assert (reason, position) == ("end", len(data))
    assert [batch.data for batch in found] == list(segment.parts)
    for batch in found:
        records = batches.records(batch)
        assert batch.record_count == len(records)
        assert all(record.offset <= batch.last_offset for record in records)
    assert rebuild.rebuild(data).stop_reason == "end"


@profile(60)
@given(st_records(100), st.sampled_from((0, 1, 2, 3, 4)))
def test_records_survive_a_batch(records: list[Record], codec: int) -> None:
    [batch] = batches.scan(build.batch(records, codec=codec))[0]
    assert batches.records(batch) == records


@profile(60)
@given(st_records(100, with_headers=False), st.sampled_from((1, 2, 3)), st.sampled_from((0, 1)))
def test_records_survive_a_wrapper(records: list[Record], codec: int, magic: int) -> None:
    [batch] = batches.scan(build.legacy_wrapper(records, codec=codec, magic=magic))[0]
    found = batches.records(batch)
    assert [(r.offset, r.key, r.value) for r in found] == [
        (r.offset, r.key, r.value) for r in records
    ]
    if magic == 1:
        assert [r.timestamp_ms for r in found] == [r.timestamp_ms for r in records]


@profile(40)
@given(st.binary(max_size=300_000), st.sampled_from((1, 2, 3, 4)))
def test_payloads_survive_every_codec_and_cap(data: bytes, codec: int) -> None:
    packed = compression.compress(codec, data)
    assert compression.decompress(codec, packed, max_bytes=len(data)) == data
    if data:
        with pytest.raises(OracleError, match="too_large"):
            compression.decompress(codec, packed, max_bytes=len(data) - 1)


def refusal(action: Callable[[], object]) -> str | None:
    """The reason of the OracleError that an action raises; None when it goes through."""
    try:
        action()
    except OracleError as error:
        return error.reason
    return None


@profile(150)
@given(st_damaged_segment())
def test_damage_is_a_reason_or_a_typed_error(data: bytes) -> None:
    found, reason, position = batches.scan(data)
    assert position == sum(batch.size_bytes for batch in found)
    assert (reason == "end") == (position == len(data))
    for batch in found:
        refused = refusal(partial(batches.records, batch))
        assert refused in {None, "bad_record", "bad_compression"}
    refused = refusal(partial(rebuild.rebuild, data))
    if reason not in rebuild.TAIL_REASONS:
        assert refused == reason


@profile(80)
@given(st_remote_entries(), st.booleans())
def test_remote_entries_survive(entries: list[remote_index.Entry], trailer: bool) -> None:
    data = remote_index.encode(entries, trailer=trailer)
    assert remote_index.decode(data) == tuple(entries)


@profile(150)
@given(st_damaged_remote_index())
def test_damaged_remote_index_never_yields_more_than_its_good_start(data: bytes) -> None:
    outcome = remote_index.read(data)
    assert remote_index.encode(outcome.entries) == data[: outcome.stop_position]
