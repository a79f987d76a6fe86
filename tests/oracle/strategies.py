"""Hypothesis strategies: valid batches, segments and remoteLogIndex entries, and damage to them.

``profile`` gives the settings every test of this kind uses: few and always the same examples by
default, many and random ones in a proof.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.proofs import THOROUGH

from . import batches, build, compression, remote_index
from .model import Record
from .primitives import I32_MAX, I64_MAX, I64_MIN, crc32

DATA_CODECS = (0, 1, 2, 3, 4)
LEGACY_CODECS = (1, 2, 3)
# Neighbours in a Java hash map, a broker's blocks of a thousand, and ids with high bits only.
PRODUCER_IDS = (0, 1, 2, 5, 16, 17, 32, 33, 1000, 2000, 3000, 4242, 65536, 131072, 1 << 32, I64_MAX)
HEADER_LAYOUT = {
    "base_offset": (0, "q"),
    "batch_length": (8, "i"),
    "leader_epoch": (12, "i"),
    "magic": (16, "b"),
    "crc": (17, "I"),
    "attributes": (21, "h"),
    "last_offset_delta": (23, "i"),
    "base_timestamp_ms": (27, "q"),
    "max_timestamp_ms": (35, "q"),
    "producer_id": (43, "q"),
    "producer_epoch": (51, "h"),
    "base_sequence": (53, "i"),
    "record_count": (57, "i"),
}
EDGES = {
    "b": (-128, -1, 0, 1, 2, 3, 127),
    "h": (-(2**15), -1, 0, 1, 4, 5, 7, 8, 0x10, 0x20, 0x30, 0x40, 0x100, 2**15 - 1),
    "i": (-(2**31), -1, 0, 1, 2, 13, 14, 48, 49, 50, I32_MAX - 1, I32_MAX),
    "I": (0, 1, 2**32 - 1),
    "q": (I64_MIN, -2, -1, 0, 1, I32_MAX, I32_MAX + 1, I64_MAX - 1, I64_MAX),
}


def profile(quick: int, thorough: int | None = None) -> settings:
    """Settings for one test: ``quick`` fixed examples, or ``thorough`` (10 times that) random."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    if THOROUGH:
        count = 10 * quick if thorough is None else thorough
        return settings(max_examples=count, deadline=None, suppress_health_check=slow)
    return settings(
        max_examples=quick,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=slow,
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """A valid segment and the batches it is made of."""

    parts: tuple[bytes, ...]

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)

    def position(self, index: int) -> int:
        """Where batch ``index`` starts."""
        return sum(len(part) for part in self.parts[:index])

    def replaced(self, index: int, part: bytes) -> bytes:
        """The segment's bytes with another batch in that place."""
        return b"".join((*self.parts[:index], part, *self.parts[index + 1 :]))


st_bytes = st.one_of(
    st.binary(max_size=24),
    st.integers(0, 400).map(lambda size: (b"tiered log " * 40)[:size]),
)
st_nullable_bytes = st.one_of(st.none(), st_bytes)
st_headers = st.lists(
    st.tuples(st.text(max_size=6).map(str.encode), st_nullable_bytes), max_size=3
).map(tuple)
st_timestamp = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_009_999),
    st.integers(0, 5000),
    st.sampled_from((-1, 0, 2**40, 2**62)),
)


@st.composite
def st_records(
    draw: st.DrawFn, base_offset: int, *, max_size: int = 5, with_headers: bool = True
) -> list[Record]:
    """1 to ``max_size`` records from ``base_offset`` on, sometimes with gaps between them."""
    records = []
    offset = base_offset
    for _ in range(draw(st.integers(1, max_size))):
        records.append(
            Record(
                offset=offset,
                timestamp_ms=draw(st_timestamp),
                key=draw(st_nullable_bytes),
                value=draw(st_nullable_bytes),
                headers=draw(st_headers) if with_headers else (),
            )
        )
        offset += draw(st.sampled_from((1, 1, 1, 1, 2, 1000)))
    return records


@st.composite
def st_payload_framing(draw: st.DrawFn, codec: int, plain: bytes) -> bytes | None:
    """Another framing of the same codec that clients also write; None for Kafka's own."""
    if codec == compression.SNAPPY and draw(st.booleans()):
        return compression.snappy_raw(plain)
    if codec == compression.LZ4 and draw(st.booleans()):
        return compression.lz4_frame(
            plain,
            block_code=draw(st.integers(4, 7)),
            block_checksums=draw(st.booleans()),
            content_size=draw(st.booleans()),
            content_checksum=draw(st.booleans()),
        )
    return None


@st.composite
def st_batch(
    draw: st.DrawFn,
    base_offset: int = 0,
    *,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """A v2 data batch: any codec, headers, gaps, LogAppendTime, delete horizon, compacted ends.

    ``producer`` is (id, epoch, base sequence).
    """
    records = draw(st_records(base_offset))
    codec = draw(st.sampled_from(DATA_CODECS))
    horizon_ms = draw(st.sampled_from((None, None, None, None, 1500)))
    base_timestamp_ms = records[0].timestamp_ms if horizon_ms is None else horizon_ms
    kept = draw(st.sampled_from((slice(None), slice(None), slice(1, None), slice(0, -1))))
    first, last = records[0].offset, records[-1].offset
    records = records[kept] or records
    if horizon_ms is None:
        base_timestamp_ms = records[0].timestamp_ms
    plain = build.record_payload(records, first, base_timestamp_ms)
    producer_id, producer_epoch, base_sequence = producer
    return build.batch(
        records,
        base_offset=first,
        last_offset=last,
        leader_epoch=leader_epoch,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        log_append_time_ms=draw(st.sampled_from((None, None, None, 1_700_000_005_000))),
        delete_horizon_ms=horizon_ms,
        payload=draw(st_payload_framing(codec, plain)),
    )


@st.composite
def st_legacy(draw: st.DrawFn, base_offset: int, magic: int) -> bytes:
    """A plain message or a wrapper of magic 0 or 1."""
    records = draw(st_records(base_offset, with_headers=False))
    if draw(st.booleans()):
        return build.legacy_messages(records[:1], magic=magic)
    codec = draw(st.sampled_from(LEGACY_CODECS))
    append_time_ms = draw(st.sampled_from((None, 1_700_000_005_000))) if magic else None
    return build.legacy_wrapper(
        records, magic=magic, codec=codec, log_append_time_ms=append_time_ms
    )


@dataclass(slots=True)
class _Log:
    """What the segment under construction has promised so far."""

    offset: int
    epoch: int = 0
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)  # id -> (epoch, sequence)
    open_transactions: set[int] = field(default_factory=set)


@st.composite
def st_segment(draw: st.DrawFn, *, max_batches: int = 8, legacy: bool = True) -> Segment:
    """A valid segment: every kind of batch, several producers and epochs, open transactions."""
    log = _Log(offset=draw(st.sampled_from((0, 0, 7, 10**12))))
    parts: list[bytes] = []
    if legacy:
        for _ in range(draw(st.integers(0, 2))):
            parts.append(draw(st_legacy(log.offset, draw(st.sampled_from((0, 1))))))
            log.offset = _next_offset(parts[-1])
    for _ in range(draw(st.integers(0, max_batches))):
        log.epoch += draw(st.sampled_from((0, 0, 0, 1, 3)))
        parts.append(draw(_st_step(log)))
        log.offset = _next_offset(parts[-1]) + draw(st.sampled_from((0, 0, 0, 5)))
    return Segment(tuple(parts))


def _next_offset(whole: bytes) -> int:
    base_offset, magic = struct.unpack_from(">q8xb", whole)
    return int(base_offset) + 1 + (struct.unpack_from(">i", whole, 23)[0] if magic == 2 else 0)


@st.composite
def _st_step(draw: st.DrawFn, log: _Log) -> bytes:
    """The next v2 batch of a log; keeps ``log`` in step."""
    kind = draw(st.sampled_from(("plain", "idempotent", "transactional", "marker", "empty")))
    epoch = draw(st.sampled_from((log.epoch, log.epoch, log.epoch, -1)))
    if kind == "plain":
        return draw(st_batch(log.offset, leader_epoch=epoch))
    producer_id = draw(st.sampled_from(PRODUCER_IDS))
    unseen = (0, draw(st.sampled_from((0, 0, I32_MAX - 1))))
    producer_epoch, sequence = log.producers.get(producer_id, unseen)
    if kind == "marker":
        # Transactions v2 raise the producer's epoch with each marker, v1 do not.
        producer_epoch += draw(st.sampled_from((0, 1)))
        log.producers[producer_id] = (producer_epoch, 0)
        log.open_transactions.discard(producer_id)
        return build.end_transaction_marker(
            offset=log.offset,
            timestamp_ms=draw(st_timestamp),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=draw(st.integers(0, 9)),
            commit=draw(st.booleans()),
            leader_epoch=epoch,
        )
    is_open = producer_id in log.open_transactions
    if kind == "empty":
        return build.empty_batch(
            base_offset=log.offset,
            last_offset=log.offset + draw(st.integers(0, 9)),
            max_timestamp_ms=draw(st_timestamp),
            leader_epoch=epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=is_open,
            control=draw(st.booleans()),
        )
    transactional = is_open or kind == "transactional"
    whole = draw(
        st_batch(
            log.offset,
            leader_epoch=epoch,
            producer=(producer_id, producer_epoch, sequence),
            transactional=transactional,
        )
    )
    if transactional:
        log.open_transactions.add(producer_id)
    count = _next_offset(whole) - log.offset
    log.producers[producer_id] = (producer_epoch, (sequence + count) % (I32_MAX + 1))
    return whole


@st.composite
def st_bit_flip(draw: st.DrawFn, data: bytes) -> bytes:
    """The same bytes with one bit turned over."""
    bit = draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@st.composite
def st_truncation(draw: st.DrawFn, data: bytes) -> bytes:
    """A prefix, sometimes with zeros up to the old length behind it."""
    kept = data[: draw(st.integers(0, len(data)))]
    return kept.ljust(len(data), b"\0") if draw(st.booleans()) else kept


@st.composite
def st_field_overwrite(draw: st.DrawFn, whole: bytes) -> bytes:
    """One batch with a header field at an edge value; its checksum is mended most times."""
    at, code = HEADER_LAYOUT[draw(st.sampled_from(sorted(HEADER_LAYOUT)))]
    size_bytes = struct.calcsize(">" + code)
    if at + size_bytes > len(whole):
        return whole
    packed = struct.pack(">" + code, draw(st.sampled_from(EDGES[code])))
    damaged = whole[:at] + packed + whole[at + size_bytes :]
    return build.repair_crc(damaged) if draw(st.integers(0, 3)) else damaged


@st.composite
def st_payload_overwrite(draw: st.DrawFn, whole: bytes) -> bytes:
    """One batch with a few bytes behind its header replaced and its checksum mended."""
    first = 61 if whole[16] == 2 else 17
    if len(whole) <= first:
        return whole
    at = draw(st.integers(first, len(whole) - 1))
    patch = draw(st.binary(min_size=1, max_size=3))
    damaged = (whole[:at] + patch + whole[at + len(patch) :])[: len(whole)]
    return build.repair_crc(damaged)


@st.composite
def st_shifted(draw: st.DrawFn, segment: Segment, index: int) -> bytes:
    """A batch whose base offset is that of the last record before it, or one more or less."""
    whole = segment.parts[index]
    before = batches.scan(b"".join(segment.parts[:index]))[0]
    last_offset = before[-1].last_offset if before else -1
    offset = last_offset + draw(st.sampled_from((-1, 0, 1)))
    return struct.pack(">q", offset) + whole[8:]


@st.composite
def st_odd_records(draw: st.DrawFn, whole: bytes) -> bytes:
    """A batch in that place whose records' offsets, timestamps or number may be impossible."""
    (base_offset,) = struct.unpack_from(">q", whole)
    deltas = draw(st.lists(st.sampled_from((-1, 0, 0, 1, 1, 2, 3, 5, I32_MAX)), max_size=4))
    base_timestamp_ms = draw(st.sampled_from((0, I64_MAX, I64_MIN)))
    payload = b"".join(
        build.record(delta, draw(st.sampled_from((-1, 0, 1))), b"key", None) for delta in deltas
    )
    codec = draw(st.sampled_from((0, 0, 2)))
    return build.seal(
        compression.compress(codec, payload),
        base_offset=base_offset,
        attributes=codec | draw(st.sampled_from((0, 8))),
        last_offset_delta=draw(st.sampled_from((0, 1, 2, 3, 5))),
        base_timestamp_ms=base_timestamp_ms,
        record_count=len(deltas) + draw(st.sampled_from((0, 0, 0, -1, 1))),
    )


@st.composite
def st_damaged_segment(draw: st.DrawFn, *, max_batches: int = 5) -> bytes:
    """A segment with one thing wrong, or (rarely) bytes that never were one."""
    segment = draw(st_segment(max_batches=max_batches))
    kinds = ("flip", "cut", "field", "payload", "append", "swap", "shift", "records", "noise")
    kind = draw(st.sampled_from(kinds))
    if not segment.parts or kind == "noise":
        return draw(st.binary(max_size=120))
    if kind == "flip":
        return draw(st_bit_flip(segment.data))
    if kind == "cut":
        return draw(st_truncation(segment.data))
    if kind == "append":
        return segment.data + draw(st.one_of(st.binary(max_size=40), st.just(bytes(64))))
    index = draw(st.integers(0, len(segment.parts) - 1))
    if kind == "swap":
        other = draw(st.integers(0, len(segment.parts) - 1))
        return segment.replaced(index, segment.parts[other])
    if kind == "shift":
        return segment.replaced(index, draw(st_shifted(segment, index)))
    damages = {
        "field": st_field_overwrite,
        "payload": st_payload_overwrite,
        "records": st_odd_records,
    }
    return segment.replaced(index, draw(damages[kind](segment.parts[index])))


@st.composite
def st_remote_entries(
    draw: st.DrawFn, *, min_size: int = 0, max_size: int = 8
) -> list[remote_index.Entry]:
    """Valid entries of one remoteLogIndex, positions filled in."""
    entries: list[remote_index.Entry] = []
    offset, position = draw(st.sampled_from((0, 100, I64_MAX - 10**6))), 0
    for _ in range(draw(st.integers(min_size, max_size))):
        last_offset = offset + draw(st.sampled_from((0, 1, 49, 10_000)))
        entry = remote_index.Entry(
            first_offset=offset,
            last_offset=last_offset,
            first_timestamp_ms=draw(st_timestamp),
            last_timestamp_ms=draw(st_timestamp),
            data_length=draw(st.sampled_from((1, 4096, I32_MAX))),
            rdi=draw(st.one_of(st.binary(max_size=40), st.just(b"topic/0/seg.log:0"))),
            position=position,
        )
        entries.append(entry)
        position += entry.size_bytes
        offset = last_offset + draw(st.sampled_from((1, 1, 1, 7)))
    return entries


@st.composite
def st_damaged_remote_index(draw: st.DrawFn) -> bytes:
    """A remoteLogIndex with one thing wrong; half the time the checksum agrees with the damage."""
    entries = draw(st_remote_entries(min_size=1, max_size=4))
    data = remote_index.encode(entries, trailer=draw(st.booleans()))
    kind = draw(st.sampled_from(("flip", "cut", "field", "append", "order")))
    if kind == "flip":
        return draw(st_bit_flip(data))
    if kind == "cut":
        return draw(st_truncation(data))
    if kind == "append":
        return data + draw(st.binary(min_size=1, max_size=60))
    if kind == "order":
        shuffled = draw(st.lists(st.sampled_from(entries), min_size=1, max_size=5))
        return b"".join(remote_index.encode_entry(entry) for entry in shuffled)
    victim = draw(st.sampled_from(entries))
    at, code = draw(
        st.sampled_from(
            ((0, "h"), (2, "h"), (8, "q"), (16, "q"), (24, "q"), (32, "q"), (40, "i"), (44, "h"))
        )
    )
    whole = bytearray(data[victim.position : victim.position + victim.size_bytes])
    struct.pack_into(">" + code, whole, at, draw(st.sampled_from(EDGES[code])))
    if draw(st.booleans()):
        struct.pack_into(">I", whole, 4, crc32(bytes(whole[8:])))
    end = victim.position + victim.size_bytes
    return data[: victim.position] + bytes(whole) + data[end:]
