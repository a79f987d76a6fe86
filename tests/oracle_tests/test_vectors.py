"""The oracle against bytes that Kafka's own serializers wrote: first be right, then judge."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.oracle import (
    batches,
    build,
    compression,
    indexes,
    producer_state,
    rebuild,
    remote_index,
)
from tests.oracle.model import ABORT, Batch, EndTransactionMarker, Record
from tests.oracle.primitives import OracleError, crc32, crc32c, xxh32
from tests.vectors import REMOTE_INDEX_ENTRY_RDI_CRC32C, VECTORS, vector

V2_RECORDS = [
    Record(
        offset=100, timestamp_ms=1000, key=b"k1", value=b"v1", headers=((b"h", b"\t"), (b"n", None))
    ),
    Record(offset=101, timestamp_ms=1005, key=None, value=b"v2"),
    Record(offset=102, timestamp_ms=1003, key=b"k3", value=None),
]
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def legacy_records(magic: int) -> list[Record]:
    timestamps = (1000, 1005) if magic else (-1, -1)
    return [
        Record(offset=100, timestamp_ms=timestamps[0], key=b"k1", value=b"v1"),
        Record(offset=101, timestamp_ms=timestamps[1], key=None, value=b"v2"),
    ]


def scan_all(data: bytes) -> list[Batch]:
    found, reason, position = batches.scan(data)
    assert (reason, position) == ("end", len(data))
    return found


def test_checksums_have_their_published_check_values() -> None:
    assert crc32(b"123456789") == 0xCBF43926
    assert crc32c(b"123456789") == 0xE3069283
    assert xxh32(b"") == 0x02CC5D05
    assert xxh32(b"Nobody inspects the spammish repetition") == 0xE2293B2F
    assert xxh32(bytes([0x60, 0x40])) >> 8 & 0xFF == 0x82


@pytest.mark.parametrize("codec", CODECS)
def test_v2_batch(codec: str) -> None:
    [batch] = scan_all(vector(f"v2_{codec}"))
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (100, 102, 7)
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (1000, 1005)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert (batch.codec, batch.record_count, batch.last_sequence) == (CODECS[codec], 3, -1)
    assert batches.records(batch) == V2_RECORDS


@pytest.mark.parametrize("codec", ["none", "snappy", "lz4", "zstd"])
def test_v2_batch_encodes_to_the_same_bytes(codec: str) -> None:
    # gzip alone depends on the JVM's deflate and its header's OS byte.
    built = build.batch(V2_RECORDS, leader_epoch=7, codec=CODECS[codec])
    assert built == vector(f"v2_{codec}")


def test_v2_transactional_batch() -> None:
    data = vector("v2_transactional")
    [batch] = scan_all(data)
    assert batch.is_transactional
    assert not batch.is_control
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4242, 3, 17)
    assert batch.last_sequence == 19
    assert batches.records(batch) == V2_RECORDS
    assert data == build.batch(
        V2_RECORDS,
        leader_epoch=7,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=17,
        transactional=True,
    )


def test_v2_abort_marker() -> None:
    data = vector("v2_abort_marker")
    [batch] = scan_all(data)
    assert (batch.attributes, batch.base_sequence, batch.last_sequence) == (0x30, -1, -1)
    [record] = batches.records(batch)
    assert (record.offset, record.timestamp_ms) == (103, 1010)
    expected = EndTransactionMarker(type=ABORT, coordinator_epoch=5)
    assert batches.end_transaction_marker(record) == expected
    assert data == build.end_transaction_marker(
        offset=103,
        timestamp_ms=1010,
        producer_id=4242,
        producer_epoch=3,
        coordinator_epoch=5,
        commit=False,
        leader_epoch=7,
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_legacy_messages(magic: int) -> None:
    data = vector(f"v{magic}_none")
    found = scan_all(data)
    assert [batch.record_count for batch in found] == [1, 1]
    assert [batch.base_offset for batch in found] == [100, 101]
    records = [record for batch in found for record in batches.records(batch)]
    assert records == legacy_records(magic)
    assert data == build.legacy_messages(legacy_records(magic), magic=magic)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy"])
@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_wrappers(magic: int, codec: str) -> None:
    [batch] = scan_all(vector(f"v{magic}_{codec}"))
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (100, 101, 2)
    assert batch.base_timestamp_ms == (1000 if magic else -1)
    assert batch.max_timestamp_ms == (1005 if magic else -1)
    assert batches.records(batch) == legacy_records(magic)


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
@pytest.mark.parametrize("magic", [0, 1])
def test_built_legacy_wrappers_read_back(magic: int, codec: str) -> None:
    data = build.legacy_wrapper(legacy_records(magic), magic=magic, codec=CODECS[codec])
    [batch] = scan_all(data)
    assert batches.records(batch) == legacy_records(magic)


def test_lz4_header_checksum_quirk_of_magic_0() -> None:
    quirk = compression.lz4_frame(b"", hash_magic=True)
    assert quirk[6] == 0x1A
    assert compression.decompress(3, quirk, magic=0) == b""
    with pytest.raises(OracleError, match="HC"):
        compression.decompress(3, quirk, magic=1)


def test_offset_index() -> None:
    data = vector("offset_index")
    entries = indexes.decode_offset_index(data, 100)
    assert entries == [(103, 0), (150, 4200), (300, 9000)]
    assert indexes.encode_offset_index(entries, 100) == data
    assert indexes.decode_offset_index(data + bytes(80), 100) == entries
    lookups = {99: (100, 0), 103: (103, 0), 149: (103, 0), 150: (150, 4200), 999: (300, 9000)}
    for target, expected in lookups.items():
        assert indexes.lookup_offset(entries, target, 100) == expected
    assert indexes.lookup_upper_bound(entries, (150, 4200), 100) == (300, 9000)
    assert indexes.lookup_upper_bound(entries, (150, 4200), 10000) is None


def test_time_index() -> None:
    data = vector("time_index")
    entries: list[tuple[int, int]] = []
    for timestamp_ms, offset in ((1005, 103), (1005, 150), (2000, 300)):
        indexes.append_time(entries, timestamp_ms, offset, 100)
    assert entries == [(1005, 103), (2000, 300)]
    assert indexes.encode_time_index(entries, 100) == data
    assert indexes.decode_time_index(data + bytes(120), 100) == entries
    lookups = {1004: (-1, 100), 1005: (1005, 103), 3000: (2000, 300)}
    for target, expected in lookups.items():
        assert indexes.lookup_time(entries, target, 100) == expected


def test_transaction_index() -> None:
    data = vector("transaction_index")
    entries = indexes.decode_transaction_index(data)
    assert entries == [(4242, 100, 103, 104), (4243, 101, 120, 121)]
    assert indexes.encode_transaction_index(entries) == data
    assert indexes.collect_aborted(entries, 100, 104) == (entries[:1], True)
    assert indexes.collect_aborted(entries, 100, 200) == (entries, False)


def test_producer_snapshot() -> None:
    data = vector("producer_snapshot")
    entries = producer_state.decode_snapshot(data)
    assert entries == [
        producer_state.SnapshotEntry(
            producer_id=4242,
            producer_epoch=3,
            last_sequence=19,
            last_offset=102,
            offset_delta=2,
            timestamp_ms=1005,
            coordinator_epoch=5,
        ),
        producer_state.SnapshotEntry(
            producer_id=4243, producer_epoch=0, timestamp_ms=1011, current_txn_first_offset=101
        ),
    ]
    assert producer_state.encode_snapshot(entries) == data
    assert producer_state.ProducerStateManager(entries).snapshot() == data


def test_rebuild_of_an_aborted_transaction() -> None:
    data = vector("v2_transactional") + vector("v2_abort_marker")
    rebuilt = rebuild.rebuild(data)
    assert indexes.decode_transaction_index(rebuilt.transaction_index) == [(4242, 100, 103, 104)]
    [entry] = producer_state.decode_snapshot(rebuilt.producer_snapshot)
    assert entry == producer_state.SnapshotEntry(
        producer_id=4242,
        producer_epoch=3,
        last_sequence=19,
        last_offset=102,
        offset_delta=2,
        timestamp_ms=1010,
        coordinator_epoch=5,
    )
    assert rebuilt.offset_index == b""
    assert indexes.decode_time_index(rebuilt.time_index, 100) == [(1010, 103)]
    assert rebuilt.leader_epochs == ((7, 100),)
    assert rebuilt.bytes_per_epoch == ((7, len(data)),)
    assert rebuilt.last_stable_offset == 104


def test_an_index_entry_needs_more_than_the_interval() -> None:
    data = three_batches()
    size = len(data) // 3
    for interval_bytes, expected in (
        (size - 1, [(1, size), (2, 2 * size)]),
        (size, [(2, 2 * size)]),
        (2 * size, []),
    ):
        rebuilt = rebuild.rebuild(data, index_interval_bytes=interval_bytes)
        assert indexes.decode_offset_index(rebuilt.offset_index, 0) == expected


def test_remote_log_index_entries() -> None:
    first, second = vector("remote_index_entry_rdi"), vector("remote_index_entry_empty_rdi")
    data = first + second
    entries = remote_index.decode(data)
    assert entries == (
        remote_index.Entry(
            first_offset=100,
            last_offset=149,
            first_timestamp_ms=1000,
            last_timestamp_ms=2000,
            data_length=4096,
            rdi=b"k:0",
        ),
        remote_index.Entry(
            first_offset=150,
            last_offset=300,
            first_timestamp_ms=2001,
            last_timestamp_ms=2500,
            data_length=512,
            rdi=b"",
            position=49,
        ),
    )
    assert remote_index.encode(entries) == data
    assert crc32c(first[8:]) == REMOTE_INDEX_ENTRY_RDI_CRC32C
    assert remote_index.rdi_position(entries[0].rdi) == ("k", 0)


def test_remote_log_index_family() -> None:
    data = vector("remote_index_entry_rdi") + vector("remote_index_entry_empty_rdi")
    entries = remote_index.decode(data)
    with_trailer = remote_index.encode(entries, trailer=True)
    assert with_trailer == data + (49).to_bytes(8, "big")
    assert remote_index.decode(with_trailer) == entries
    assert remote_index.read(with_trailer).stop_reason == "trailer"
    wrong = remote_index.read(data + (48).to_bytes(8, "big"))
    assert (wrong.entries, wrong.stop_reason, wrong.stop_position) == (entries, "torn_tail", 95)
    offsets = remote_index.decode_offset_index(remote_index.offset_index(entries, 100), 100)
    assert offsets == [(149, 0), (300, 49)]
    times = remote_index.decode_time_index(remote_index.time_index(entries, 100), 100)
    assert times == [(2000, 149), (2500, 300)]
    for target, expected in ((0, 0), (149, 0), (150, 1), (300, 1)):
        assert remote_index.find_offset(data, offsets, target) == entries[expected]
        assert remote_index.lookup_offset(entries, target) == entries[expected]
    assert remote_index.find_offset(data, offsets, 301) is None
    assert remote_index.lookup_timestamp(entries, 2001) == entries[1]
    assert remote_index.lookup_timestamp(entries, 2501) is None


@pytest.mark.parametrize(
    ("at", "code", "value", "mend", "reason"),
    [
        (0, "h", 1, False, "unknown_magic"),
        (0, "h", -1, False, "unknown_magic"),
        (2, "h", 48, False, "bad_length"),
        (2, "h", 50, False, "bad_length"),
        (2, "h", -1, False, "bad_length"),
        (44, "h", -1, True, "bad_length"),
        (44, "h", 4, True, "bad_length"),
        (4, "I", 0, False, "bad_crc"),
        (8, "q", 150, True, "bad_record"),
        (8, "q", -1, True, "bad_record"),
        (40, "i", 0, True, "bad_record"),
        (40, "i", -1, True, "bad_record"),
        (32, "q", 0, True, "end"),
    ],
)
def test_remote_log_index_refusals(at: int, code: str, value: int, mend: bool, reason: str) -> None:
    whole = bytearray(vector("remote_index_entry_rdi"))
    struct.pack_into(">" + code, whole, at, value)
    if mend:
        struct.pack_into(">I", whole, 4, crc32(bytes(whole[8:])))
    assert remote_index.read(bytes(whole)).stop_reason == reason


def test_remote_log_index_recovers_from_a_torn_append_only() -> None:
    first, second = vector("remote_index_entry_rdi"), vector("remote_index_entry_empty_rdi")
    bad_crc = second[:10] + b"\1" + second[11:]
    trailer = len(first).to_bytes(8, "big")
    for tail in (second[:20], bytes(60), bad_crc, bad_crc + trailer):
        outcome = remote_index.recover(first + tail)
        assert (len(outcome.entries), outcome.stop_position) == (1, len(first))
    for bad in (first[:-1] + b"1" + second, first + bad_crc + first, first + b"\0\1" + second[2:]):
        with pytest.raises(OracleError):
            remote_index.recover(bad)


def test_remote_log_index_order_and_limits() -> None:
    entry = remote_index.decode(vector("remote_index_entry_rdi"))[0]
    twice = vector("remote_index_entry_rdi") * 2
    outcome = remote_index.read(twice)
    assert (len(outcome.entries), outcome.stop_reason) == (1, "offset_order")
    largest = replace(entry, rdi=bytes(remote_index.MAX_RDI_BYTES))
    assert len(remote_index.encode_entry(largest)) == 2**15 - 1
    for bad in (
        replace(entry, rdi=bytes(remote_index.MAX_RDI_BYTES + 1)),
        replace(entry, last_offset=2**63),
        replace(entry, data_length=2**31),
        replace(entry, first_timestamp_ms=-(2**63) - 1),
    ):
        with pytest.raises(OracleError):
            remote_index.encode_entry(bad)


def three_batches() -> bytes:
    return b"".join(
        build.batch([Record(offset=offset, timestamp_ms=offset, key=b"k", value=b"value")])
        for offset in (0, 1, 2)
    )


def test_every_bit_flip_of_a_segment_is_noticed_or_outside_the_checksum() -> None:
    data = three_batches()
    size = len(data) // 3
    unprotected = {*range(8), *range(12, 16)}  # base offset and leader epoch
    for bit in range(8 * len(data)):
        at = bit // 8
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit % 8
        found, reason, position = batches.scan(bytes(damaged))
        if at % size not in unprotected:
            assert reason != "end"
            assert position == at // size * size
            assert len(found) == at // size


def test_every_truncation_of_a_segment_ends_at_a_batch() -> None:
    data = three_batches()
    size = len(data) // 3
    for length in range(len(data)):
        found, reason, position = batches.scan(data[:length])
        assert len(found) == length // size
        assert position == length // size * size
        tail = data[position:length]
        assert reason == ("end" if not tail else "torn_tail" if any(tail) else "zero_tail")


def test_every_bit_flip_of_a_remote_log_index_is_noticed() -> None:
    first, second = vector("remote_index_entry_rdi"), vector("remote_index_entry_empty_rdi")
    data = first + second
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        outcome = remote_index.read(bytes(damaged))
        assert outcome.stop_position == (0 if bit // 8 < len(first) else len(first))
        with pytest.raises(OracleError):
            remote_index.decode(bytes(damaged))


def test_every_truncation_of_a_remote_log_index_is_incomplete() -> None:
    data = vector("remote_index_entry_rdi") + vector("remote_index_entry_empty_rdi")
    for length in {*range(len(data))} - {0, 49}:
        with pytest.raises(OracleError, match="truncated"):
            remote_index.decode(data[:length])


def test_leader_epoch_text() -> None:
    text = "0\n2\n0 0\n3 1500\n"
    assert indexes.decode_leader_epochs(text) == [(0, 0), (3, 1500)]
    assert indexes.encode_leader_epochs([(0, 0), (3, 1500)]) == text
    assert indexes.decode_leader_epochs("") == []
    for bad in ("1\n0\n", "0\n-1\n", "0\n1\n", "0\n1\n0 0\n1 1\n", "0\n2\n1 0\n1 5\n", "0\n1\nx\n"):
        with pytest.raises(OracleError):
            indexes.decode_leader_epochs(bad)


def test_java_hash_map_order() -> None:
    assert producer_state.hash_map_order([17, 1, 0, 16]) == [0, 16, 17, 1]
    assert producer_state.hash_map_order([5 << 32, 4]) == [4, 5 << 32]
    # Twelve fit in sixteen buckets, the thirteenth doubles them.
    twelve = [16 * n for n in range(12)]
    assert producer_state.hash_map_order(twelve[:3]) == [0, 16, 32]
    assert producer_state.hash_map_order([*range(11), 16]) == [0, 16, *range(1, 11)]
    assert producer_state.hash_map_order([*range(12), 16]) == [*range(12), 16]


def test_every_vector_is_hex() -> None:
    for name, text in VECTORS.items():
        assert vector(name).hex() == text
