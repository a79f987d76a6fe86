"""The native remoteLogIndex codec and the oracle: same bytes, entries, look-ups and refusals."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.native.remote_indexes import (
    encode_remote_offset_index,
    encode_remote_time_index,
    read_remote_offset_index,
    read_remote_time_index,
)
from tests.oracle import batches, remote_index
from tests.oracle.primitives import I32_MAX, I64_MAX, I64_MIN, OracleError
from tests.oracle.remote_index import Entry
from tests.oracle.strategies import (
    Segment,
    profile,
    st_damaged_remote_index,
    st_remote_entries,
    st_segment,
)
from tierlog.errors import CorruptDataError
from tierlog.log.segment import scan_segment
from tierlog.remote.segment.log_index import (
    RemoteLogIndexEntries,
    decode_remote_log_index,
    encode_remote_log_index,
    group_batches,
    lookup_offset,
    lookup_timestamp,
)

EDGES = (I64_MIN - 1, I64_MIN, -1, 0, 1, 100, I32_MAX, I32_MAX + 1, I64_MAX, I64_MAX + 1)


# No offset comes after the largest one.
LARGEST_TWICE = [
    Entry(
        first_offset=0,
        last_offset=I64_MAX,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        data_length=1,
        rdi=b"",
    )
] * 2


def encoded(entries: list[Entry]) -> bytes:
    return encode_remote_log_index(
        [entry.first_offset for entry in entries],
        [entry.last_offset for entry in entries],
        [entry.first_timestamp_ms for entry in entries],
        [entry.last_timestamp_ms for entry in entries],
        [entry.data_length for entry in entries],
        [entry.rdi for entry in entries],
    )


def plain(entries: RemoteLogIndexEntries) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            first_offset=int(entries.first_offset[row]),
            last_offset=int(entries.last_offset[row]),
            first_timestamp_ms=int(entries.first_timestamp_ms[row]),
            last_timestamp_ms=int(entries.last_timestamp_ms[row]),
            data_length=int(entries.data_length[row]),
            rdi=entries.rdi[row],
            position=int(entries.position[row]),
        )
        for row in range(len(entries))
    )


@profile(150)
@given(st_remote_entries(), st.booleans())
def test_encode_and_decode(entries: list[Entry], trailer: bool) -> None:
    data = remote_index.encode(entries)
    assert encoded(entries) == data
    stored = remote_index.encode(entries, trailer=trailer)
    found = decode_remote_log_index(stored)
    assert plain(found) == tuple(entries)
    assert found.has_trailer == (trailer and bool(entries))
    assert found.valid_length == len(data)


@profile(150)
@given(
    st.lists(
        st.builds(
            Entry,
            first_offset=st.sampled_from(EDGES),
            last_offset=st.sampled_from(EDGES),
            first_timestamp_ms=st.sampled_from(EDGES),
            last_timestamp_ms=st.sampled_from(EDGES),
            data_length=st.sampled_from(EDGES),
            rdi=st.sampled_from((b"", b"k:0", bytes(remote_index.MAX_RDI_BYTES + 1))),
        ),
        min_size=1,
        max_size=3,
    )
)
@example(LARGEST_TWICE)
def test_values_that_do_not_fit_are_refused(entries: list[Entry]) -> None:
    try:
        expected = remote_index.encode(entries)
    except OracleError:
        with pytest.raises(ValueError, match=r"expected"):
            encoded(entries)
    else:
        assert encoded(entries) == expected


@profile(80)
@given(st_remote_entries(min_size=1, max_size=2), st.data())
def test_one_value_that_does_not_fit(entries: list[Entry], draws: st.DataObject) -> None:
    victim = draws.draw(st.integers(0, len(entries) - 1))
    name = draws.draw(st.sampled_from(sorted(Entry.__slots__)))
    if name in ("rdi", "position"):
        size = draws.draw(st.sampled_from((0, 1, remote_index.MAX_RDI_BYTES)))
        changes: dict[str, object] = {"rdi": bytes(size + draws.draw(st.integers(0, 1)))}
    else:
        changes = {name: draws.draw(st.sampled_from(EDGES))}
    fields = {field: getattr(entries[victim], field) for field in Entry.__slots__}
    entries[victim] = Entry(**(fields | changes))
    test_values_that_do_not_fit_are_refused.hypothesis.inner_test(entries)  # type: ignore[attr-defined]


@profile(500)
@given(st_damaged_remote_index())
def test_damaged_files(data: bytes) -> None:
    outcome = remote_index.read(data)
    if outcome.stop_reason in ("end", "trailer"):
        assert plain(decode_remote_log_index(data)) == outcome.entries
        return
    with pytest.raises(CorruptDataError) as raised:
        decode_remote_log_index(data)
    reason = "truncated" if outcome.stop_reason == "torn_tail" else outcome.stop_reason
    assert (raised.value.reason, raised.value.position) == (reason, outcome.stop_position)


@profile(500)
@given(st_damaged_remote_index())
def test_recovery_of_damaged_files(data: bytes) -> None:
    try:
        expected = remote_index.recover(data)
    except OracleError:
        with pytest.raises(CorruptDataError):
            decode_remote_log_index(data, recover=True)
        return
    found = decode_remote_log_index(data, recover=True)
    assert plain(found) == expected.entries
    assert found.valid_length == expected.stop_position
    assert (found.torn is None) == (expected.stop_reason in ("end", "trailer"))


@profile(100)
@given(st.binary(max_size=160))
def test_noise(data: bytes) -> None:
    test_damaged_files.hypothesis.inner_test(data)  # type: ignore[attr-defined]


@profile(100)
@given(st_remote_entries(), st.lists(st.integers(-1, 12_000), max_size=6), st.data())
def test_lookups(entries: list[Entry], targets: list[int], draws: st.DataObject) -> None:
    data = remote_index.encode(entries)
    decoded = decode_remote_log_index(data)
    ends = [entry.last_offset + step for entry in entries for step in (-1, 0, 1)]
    for target in targets + [offset for offset in ends if offset <= I64_MAX]:
        expected = remote_index.lookup_offset(entries, target)
        row = lookup_offset(decoded, target)
        assert row == lookup_offset(data, target)
        assert (None if row is None else entries[row]) == expected
    times = [entry.last_timestamp_ms for entry in entries]
    for target in targets + [time + draws.draw(st.integers(-1, 1)) for time in times]:
        row = lookup_timestamp(decoded, target)
        expected = remote_index.lookup_timestamp(entries, target)
        assert (None if row is None else entries[row]) == expected


@profile(80)
@given(st_remote_entries())
def test_offset_and_time_index(entries: list[Entry]) -> None:
    base_offset = entries[0].first_offset if entries else 0
    decoded = decode_remote_log_index(remote_index.encode(entries))
    offsets = remote_index.offset_index(entries, base_offset)
    times = remote_index.time_index(entries, base_offset)
    assert encode_remote_offset_index(decoded, base_offset) == offsets
    assert encode_remote_time_index(decoded, base_offset) == times
    for read, decode, data in (
        (read_remote_offset_index, remote_index.decode_offset_index, offsets),
        (read_remote_time_index, remote_index.decode_time_index, times),
    ):
        key, value = read(data, base_offset)
        assert list(zip(key.tolist(), value.tolist(), strict=True)) == decode(data, base_offset)


@profile(80)
@given(st_segment(max_batches=14), st.sampled_from((1, 100, 200, 500, 256 << 10)))
def test_runs_of_batches(segment: Segment, group_bytes: int) -> None:
    found, _reason, _position = batches.scan(segment.data)
    expected = remote_index.group(found, "topic-id/0/segment.log", group_bytes)
    table = scan_segment(segment.data)
    data = group_batches(table, "topic-id/0/segment.log", group_bytes=group_bytes)
    assert data == remote_index.encode(expected)
    remote_index.check_contiguous(expected)
