"""The native index rebuild and the oracle replay the same segment: the same files to the byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka_tools.golden import GoldenSegment, golden_segments
from tests.oracle import build, compression, indexes, producer_state, rebuild
from tests.oracle.model import Record
from tests.oracle.primitives import I64_MAX, OracleError
from tests.oracle.producer_state import SnapshotEntry
from tests.oracle.strategies import (
    PRODUCER_IDS,
    Segment,
    profile,
    st_bit_flip,
    st_damaged_segment,
    st_segment,
    st_truncation,
)
from tierlog.errors import CorruptDataError
from tierlog.log.index_files import (
    read_offset_index,
    read_producer_snapshot,
    read_time_index,
    read_transaction_index,
)
from tierlog.log.rebuild import RebuiltIndexes, rebuild_indexes

FIELDS = (
    "offset_index",
    "batch_checksums",
    "time_index",
    "transaction_index",
    "producer_snapshot",
    "leader_epochs",
    "bytes_per_epoch",
    "end_offset",
    "last_stable_offset",
    "max_timestamp_ms",
)
INTERVALS = st.sampled_from((0, 1, 62, 100, 300, 4096))


@st.composite
def st_snapshot(draw: st.DrawFn) -> bytes | None:
    """Producer state before a segment, transactions closed; None for no file."""
    if draw(st.booleans()):
        return None
    ids = draw(st.lists(st.sampled_from((*PRODUCER_IDS, 64, 128, 4096)), unique=True, max_size=14))
    return producer_state.encode_snapshot(
        SnapshotEntry(
            producer_id=producer_id,
            producer_epoch=draw(st.integers(-1, 2)),
            last_sequence=draw(st.sampled_from((-1, 0, 2**31 - 1))),
            last_offset=draw(st.sampled_from((-1, 0, 5))),
            offset_delta=draw(st.integers(0, 3)),
            timestamp_ms=draw(st.sampled_from((-1, 0, 1_700_000_000_000))),
            coordinator_epoch=draw(st.integers(-1, 3)),
        )
        for producer_id in ids
    )


def assert_same(native: RebuiltIndexes, expected: rebuild.Rebuilt) -> None:
    for field in FIELDS:
        assert getattr(native, field) == getattr(expected, field), field
    table = native.table
    assert (table.stop_reason.value, table.stop_position) == (
        expected.stop_reason,
        expected.stop_position,
    )
    assert table.position.tolist() == [batch.position for batch in expected.batches]


def compare(data: bytes, interval_bytes: int, snapshot: bytes | None) -> None:
    expected = by_oracle(data, interval_bytes, snapshot)
    if isinstance(expected, OracleError):
        with pytest.raises(CorruptDataError) as raised:
            rebuild_indexes(data, interval_bytes, producer_snapshot=snapshot)
        assert raised.value.reason == expected.reason
        assert expected.position is not None
        assert raised.value.position >= expected.position
    else:
        native = rebuild_indexes(data, interval_bytes, producer_snapshot=snapshot)
        assert_same(native, expected)


def by_oracle(
    data: bytes, interval_bytes: int, snapshot: bytes | None
) -> rebuild.Rebuilt | OracleError:
    try:
        return rebuild.rebuild(
            data, index_interval_bytes=interval_bytes, producer_snapshot=snapshot
        )
    except OracleError as error:
        return error


@profile(120)
@given(st_segment(max_batches=14), INTERVALS, st_snapshot())
def test_valid_segments(segment: Segment, interval_bytes: int, snapshot: bytes | None) -> None:
    compare(segment.data, interval_bytes, snapshot)


@profile(400)
@given(st_damaged_segment(max_batches=8), INTERVALS, st_snapshot())
def test_damaged_segments(data: bytes, interval_bytes: int, snapshot: bytes | None) -> None:
    compare(data, interval_bytes, snapshot)


@profile(60)
@given(st_segment(max_batches=14), st.data())
def test_state_goes_on_in_the_next_segment(segment: Segment, draws: st.DataObject) -> None:
    cut = segment.position(draws.draw(st.integers(0, len(segment.parts))))
    first = rebuild_indexes(segment.data[:cut])
    second = rebuild_indexes(segment.data[cut:], producer_snapshot=first.producer_snapshot)
    whole = rebuild.rebuild(segment.data)
    assert first.transaction_index + second.transaction_index == whole.transaction_index
    entries = producer_state.decode_snapshot(whole.producer_snapshot)
    found = producer_state.decode_snapshot(second.producer_snapshot)
    # A reload inserts in file order, which may turn the order inside a bucket of Kafka's map.
    assert sorted(found, key=producer_id) == sorted(entries, key=producer_id)


def producer_id(entry: SnapshotEntry) -> int:
    return entry.producer_id


@profile(40)
@given(st.lists(st.one_of(st.sampled_from(PRODUCER_IDS), st.integers(0, I64_MAX)), max_size=120))
def test_snapshot_order_of_many_producers(ids: list[int]) -> None:
    parts = [
        build.empty_batch(
            base_offset=offset, last_offset=offset, producer_id=number, producer_epoch=0
        )
        for offset, number in enumerate(ids)
    ]
    compare(b"".join(parts), 4096, None)


KEY, VALUE = struct.pack(">hh", 0, 0), struct.pack(">hi", 0, 5)
MARKER = build.record(0, 0, KEY, VALUE)


@pytest.mark.parametrize(
    ("records", "fields"),
    [
        (MARKER, {}),
        (build.record(0, 0, KEY, VALUE, [(b"name", b"value")]), {}),
        (build.record(0, 0, KEY, struct.pack(">hi", 9, 5)), {}),
        (build.record(0, 0, KEY, VALUE + b"more"), {}),
        (build.record(5, 0, KEY, VALUE), {}),
        (MARKER + b"x", {}),
        (MARKER + MARKER, {}),
        (build.record(0, 2**62, KEY, VALUE), {"base_timestamp_ms": 2**62}),
        (build.record(0, 2**62, KEY, VALUE), {"base_timestamp_ms": 2**62 + 2**61}),
        (MARKER, {"record_count": 2, "last_offset_delta": 1}),
        (compression.compress(1, MARKER), {"attributes": 0x31}),
        (compression.compress(4, MARKER), {"attributes": 0x34}),
        (b"", {"record_count": 0}),
        (b"", {}),
        (MARKER[:-1], {}),
        (build.record(0, 0, None, VALUE), {}),
        (build.record(0, 0, KEY, None), {}),
        (build.record(0, 0, KEY[:3], VALUE), {}),
        (build.record(0, 0, KEY, VALUE[:5]), {}),
        (build.record(0, 0, struct.pack(">hh", -1, 0), VALUE), {}),
        (build.record(0, 0, KEY, struct.pack(">hi", -1, 5)), {}),
        (build.record(0, 0, struct.pack(">hh", 0, 2), VALUE), {}),
        (b"garbage", {"attributes": 0x31}),
        (b"garbage", {"producer_id": -1}),
    ],
)
def test_markers(records: bytes, fields: dict[str, int]) -> None:
    header = {"base_offset": 0, "attributes": 0x30, "record_count": 1, "base_timestamp_ms": 7}
    producer = {"producer_id": 1, "producer_epoch": 0}
    data = build.seal(records, **(header | producer | fields))
    compare(data, 4096, None)
    opened = build.batch(
        [Record(offset=0, timestamp_ms=1, key=None, value=None)],
        producer_id=1,
        producer_epoch=0,
        transactional=True,
    )
    compare(
        opened + build.seal(records, **(header | producer | fields | {"base_offset": 1})), 0, None
    )


@pytest.mark.parametrize("segment", golden_segments(), ids=lambda segment: segment.name)
def test_real_segments(segment: GoldenSegment) -> None:
    path = segment.path.with_suffix(".snapshot")
    snapshot = path.read_bytes() if path.exists() else None
    expected = rebuild.rebuild(
        segment.path.read_bytes(),
        index_interval_bytes=segment.index_interval_bytes,
        base_offset=segment.base_offset,
        producer_snapshot=snapshot,
    )
    native = rebuild_indexes(
        segment.path,
        segment.index_interval_bytes,
        base_offset=segment.base_offset,
        producer_snapshot=snapshot,
    )
    assert_same(native, expected)


def refusal(action: object, *arguments: object) -> str | None:
    """The reason of a CorruptDataError, None if there is none."""
    assert callable(action)
    try:
        action(*arguments)
    except CorruptDataError as error:
        return error.reason
    return None


@profile(150)
@given(st.binary(max_size=60), st.integers(0, 10**6))
def test_offset_index_bytes(data: bytes, base_offset: int) -> None:
    data = data[: len(data) // 8 * 8] if len(data) % 3 else data
    if len(data) % indexes.OFFSET_ENTRY_BYTES:
        assert refusal(read_offset_index, data, base_offset) == "bad_length"
        return
    expected = indexes.decode_offset_index(data, base_offset)
    rest = data[indexes.OFFSET_ENTRY_BYTES * len(expected) :]
    if any(rest):
        assert refusal(read_offset_index, data, base_offset) == "offset_order"
        return
    index = read_offset_index(data, base_offset)
    assert list(zip(index.offset.tolist(), index.position.tolist(), strict=True)) == expected
    for target in {base_offset - 1, base_offset, *(offset for offset, _ in expected)}:
        found = indexes.lookup_offset(expected, target, base_offset)
        assert index.lookup(target) == found
        bound = indexes.lookup_upper_bound(expected, found, 7)
        assert index.lookup_upper_bound(found[1] + 7) == bound


@st.composite
def st_ascending(draw: st.DrawFn, code: str) -> bytes:
    """Index-like bytes whose two columns mostly ascend, with zeros behind them now and then."""
    out, key, value = b"", -1, -1
    for _ in range(draw(st.integers(0, 6))):
        key += draw(st.sampled_from((1, 1, 50, 0, -1)))
        value += draw(st.sampled_from((1, 1, 700, 0)))
        out += struct.pack(code, key, max(value, 0))
    return out + bytes(struct.calcsize(code) * draw(st.integers(0, 2)))


@profile(150)
@given(st_ascending(">qi"), st.integers(0, 10**6))
def test_time_index_bytes(data: bytes, base_offset: int) -> None:
    expected = indexes.decode_time_index(data, base_offset)
    if any(data[indexes.TIME_ENTRY_BYTES * len(expected) :]):
        assert refusal(read_time_index, data, base_offset) == "offset_order"
        return
    index = read_time_index(data, base_offset)
    assert list(zip(index.timestamp_ms.tolist(), index.offset.tolist(), strict=True)) == expected
    for target in {-2, -1, 0, *(time for time, _ in expected)}:
        assert index.lookup(target) == indexes.lookup_time(expected, target, base_offset)


@profile(150)
@given(st_ascending(">ii"), st.integers(0, 10**6))
def test_offset_index_slots(data: bytes, base_offset: int) -> None:
    test_offset_index_bytes.hypothesis.inner_test(data, base_offset)  # type: ignore[attr-defined]


@profile(80)
@given(st_segment(max_batches=14), st.integers(0, 2000), st.integers(0, 2000), st.data())
def test_transaction_index_bytes(
    segment: Segment, lower: int, upper: int, draws: st.DataObject
) -> None:
    data = rebuild.rebuild(segment.data).transaction_index
    expected = indexes.decode_transaction_index(data)
    index = read_transaction_index(data, 0)
    columns = (getattr(index, name).tolist() for name in indexes.AbortedTransaction._fields)
    assert list(zip(*columns, strict=True)) == expected
    found, complete = indexes.collect_aborted(expected, lower, upper)
    native, is_all = index.collect(lower, upper)
    assert ([tuple(entry) for entry in native], is_all) == ([tuple(e) for e in found], complete)
    if data:
        damaged = draws.draw(st.one_of(st_bit_flip(data), st_truncation(data)))
        accepted = refusal(read_transaction_index, damaged, 0) is None
        assert accepted == oracle_accepts_transactions(damaged)


def oracle_accepts_transactions(data: bytes) -> bool:
    try:
        found = indexes.decode_transaction_index(data)
    except OracleError:
        return False
    return all(entry.last_offset >= 0 for entry in found[:1])


@profile(150)
@given(st_snapshot(), st.data())
def test_snapshot_bytes(snapshot: bytes | None, draws: st.DataObject) -> None:
    data = snapshot or b""
    if data and draws.draw(st.booleans()):
        data = draws.draw(st.one_of(st_bit_flip(data), st_truncation(data)))
    expected = parsed_by_oracle(data)
    if isinstance(expected, OracleError):
        assert refusal(read_producer_snapshot, data) == expected.reason
        return
    found = read_producer_snapshot(data)
    for name in SnapshotEntry.__slots__:
        assert getattr(found, name).tolist() == [
            getattr(as_read(entry), name) for entry in expected
        ]


def as_read(entry: SnapshotEntry) -> SnapshotEntry:
    """Without a last offset there is no last batch, whatever the other fields say."""
    return producer_state.from_snapshot(entry).to_snapshot()


def parsed_by_oracle(snapshot: bytes) -> list[SnapshotEntry] | OracleError:
    try:
        return producer_state.decode_snapshot(snapshot)
    except OracleError as error:
        return error
