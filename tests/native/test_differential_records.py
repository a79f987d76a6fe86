"""The native decoder and the oracle open the same batches: same records, or the same refusal."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import batches, build, compression, rebuild
from tests.oracle.model import Record
from tests.oracle.primitives import OracleError
from tests.oracle.strategies import Segment, profile, st_damaged_segment, st_segment
from tierlog.columns import RecordColumns
from tierlog.errors import CorruptDataError
from tierlog.log.records import decode_records

SEEDS = st.integers(0, 2**32)
RECORD_REASONS = {"bad_record", "bad_compression", "too_large", "offset_order"}


@dataclass(frozen=True)
class Refusal:
    """Where the batch that is refused starts, and why."""

    position: int
    reason: str


@dataclass(frozen=True)
class Decoded:
    """Everything a decode yields, in plain values."""

    records: list[Record]
    batch_starts: list[int]
    batches: list[tuple[int, int, int]]
    stop_reason: str
    stop_position: int


def by_oracle(
    data: bytes, *, include_control: bool = False, max_decompressed_bytes: int = 64 << 20
) -> Decoded | Refusal:
    accepted, reason, position = batches.scan(data)
    found: list[Record] = []
    starts = [0]
    for batch in accepted:
        if include_control or not batch.is_control:
            try:
                found += batches.records(batch, max_decompressed_bytes=max_decompressed_bytes)
            except OracleError as error:
                return Refusal(batch.position, error.reason)
        starts.append(len(found))
    if reason not in rebuild.TAIL_REASONS:
        return Refusal(position, reason)
    rows = [(batch.position, batch.base_offset, batch.last_offset) for batch in accepted]
    return Decoded(found, starts, rows, reason, position)


def plain(columns: RecordColumns) -> Decoded:
    table = columns.batches
    rows = zip(
        columns.offset.tolist(),
        columns.timestamp_ms.tolist(),
        columns.keys.to_list(),
        columns.values.to_list(),
        columns.headers[:],
        strict=True,
    )
    return Decoded(
        [
            Record(offset=offset, timestamp_ms=time, key=key, value=value, headers=tuple(headers))
            for offset, time, key, value, headers in rows
        ],
        columns.batch_starts.tolist(),
        list(
            zip(
                table.position.tolist(),
                table.base_offset.tolist(),
                table.last_offset.tolist(),
                strict=True,
            )
        ),
        table.stop_reason.value,
        table.stop_position,
    )


def end_of_batch(data: bytes, position: int) -> int:
    """Past the batch at a position, going by its length field; where a missing byte would lie."""
    if len(data) < position + 12:
        return len(data)
    (length,) = struct.unpack_from(">i", data, position + 8)
    return position + 12 + max(int(length), 17)


def assert_same(
    data: bytes, *, include_control: bool = False, max_decompressed_bytes: int = 64 << 20
) -> None:
    expected = by_oracle(
        data, include_control=include_control, max_decompressed_bytes=max_decompressed_bytes
    )
    got = by_native(
        data, include_control=include_control, max_decompressed_bytes=max_decompressed_bytes
    )
    if isinstance(got, CorruptDataError):
        assert isinstance(expected, Refusal), got
        assert expected.position <= got.position <= end_of_batch(data, expected.position)
        assert_same_reason(expected, got, data)
    else:
        assert got == expected


def by_native(
    data: bytes, *, include_control: bool, max_decompressed_bytes: int
) -> Decoded | CorruptDataError:
    try:
        columns = decode_records(
            data, include_control=include_control, max_decompressed_bytes=max_decompressed_bytes
        )
    except CorruptDataError as error:
        return error
    return plain(columns)


def assert_same_reason(expected: Refusal, error: CorruptDataError, data: bytes) -> None:
    """The same word, except where a broken payload may be called several things."""
    assert error.expected
    assert error.found
    is_legacy = data[expected.position + 16 : expected.position + 17] in (b"\0", b"\1")
    if expected.reason in RECORD_REASONS - {"offset_order"} or is_legacy:
        assert error.reason in RECORD_REASONS | {"bad_header", "bad_crc", "bad_length"}
    else:
        assert error.reason == expected.reason


@profile(100)
@given(st_segment(), st.booleans())
def test_valid_segments(segment: Segment, include_control: bool) -> None:
    assert_same(segment.data, include_control=include_control)


@profile(500)
@given(st_damaged_segment(), st.booleans())
def test_damaged_segments(data: bytes, include_control: bool) -> None:
    assert_same(data, include_control=include_control)


@profile(60)
@given(st_segment(legacy=False), st.integers(0, 600))
def test_limits_on_opened_batches(segment: Segment, limit: int) -> None:
    assert_same(segment.data, max_decompressed_bytes=limit)


@profile(60)
@given(st_segment(), st.data())
def test_ranges(segment: Segment, draws: st.DataObject) -> None:
    first = draws.draw(st.integers(0, len(segment.parts)))
    last = draws.draw(st.integers(first, len(segment.parts)))
    start, end = segment.position(first), segment.position(last)
    got = plain(decode_records(segment.data, start, end))
    expected = by_oracle(segment.data[start:end])
    assert isinstance(expected, Decoded)
    assert (got.records, got.batch_starts) == (expected.records, expected.batch_starts)
    assert [row[0] - start for row in got.batches] == [row[0] for row in expected.batches]


def random_records(chance: random.Random, count: int) -> list[Record]:
    """Records of every shape side by side: short and long fields, nulls, headers, gaps."""
    sizes = (None, 0, 1, 11, 12, 13, 63, 64, 127, 128, 300, 3000)
    records: list[Record] = []
    offset = 10
    for _ in range(count):
        key, value, header = (
            None if size is None else chance.randbytes(size)
            for size in (chance.choice(sizes[:10]), chance.choice(sizes), chance.choice(sizes))
        )
        records.append(
            Record(
                offset=offset,
                timestamp_ms=1_700_000_000_000 + chance.choice((0, 5, -70, 9000, -(10**6), 2**40)),
                key=key,
                value=value,
                headers=((b"name", header), (b"", None)) if chance.random() < 0.1 else (),
            )
        )
        offset += chance.choice((1, 1, 1, 1, 1, 2, 200))
    return records


@profile(15)
@given(SEEDS, st.integers(1, 800), st.integers(0, 4))
def test_large_batches(seed: int, count: int, codec: int) -> None:
    records = random_records(random.Random(seed), count)
    whole = build.batch(records, codec=codec)
    next_offset = records[-1].offset + 1
    after = build.batch([Record(offset=next_offset, timestamp_ms=1, key=None, value=b"after")])
    assert_same(whole + after)


@profile(60)
@given(SEEDS, st.sampled_from((0, 1)), st.data(), st.binary(max_size=4))
def test_a_patch_inside_a_large_batch(
    seed: int, codec: int, draws: st.DataObject, patch: bytes
) -> None:
    records = random_records(random.Random(seed), 300)
    payload = bytearray(build.record_payload(records, 10, records[0].timestamp_ms))
    at = draws.draw(st.integers(0, len(payload) - 1))
    payload[at : at + len(patch)] = patch
    sealed = compression.compress(codec, bytes(payload))
    assert_same(build.batch(records, codec=codec, payload=sealed))


def test_batches_that_only_look_empty() -> None:
    assert_same(build.empty_batch(base_offset=0, last_offset=4))
    header = {"base_offset": 0, "last_offset_delta": 4, "base_timestamp_ms": 0}
    assert_same(build.seal(b"\x00", **header))
    for codec in (1, 2, 3, 4):
        assert_same(build.seal(compression.compress(codec, b""), attributes=codec, **header))
        assert_same(build.seal(compression.compress(codec, b"x"), attributes=codec, **header))
