"""Odd batches beside the classes of Kafka's consumer: what it reads is read, what it refuses is an
error that names the batch."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kafka_tools import run_tool
from tests.oracle import build
from tests.oracle.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, lz4_frame
from tests.oracle.primitives import varint, xxh32
from tierlog.errors import CorruptDataError
from tierlog.log.records import decode_records

pytestmark = pytest.mark.integration

CONSUMER = Path(__file__).with_name("ConsumerRecords.java")
BASE_MS = 1_700_000_000_000
I64_MAX = 2**63 - 1
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
LOG_APPEND_TIME, DELETE_HORIZON = 0x08, 0x40


def _record(delta: int, value: bytes = b"v", *, timestamp_delta: int = 0) -> bytes:
    return build.record(delta, timestamp_delta, b"k", value, ((b"h", b"1"), (b"n", None)))


def _body(*parts: bytes, attributes: bytes = b"\0") -> bytes:
    """A record of these fields behind its attributes, its length in front."""
    body = attributes + b"".join(parts)
    return varint(len(body)) + body


_START = varint(0) + varint(0)
_KEY, _VALUE, _NO_HEADERS = varint(1) + b"k", varint(1) + b"v", varint(0)

# Records, and header fields that differ from those of a usual batch of as many records.
PAYLOADS: dict[str, tuple[list[bytes], dict[str, int]]] = {
    "usual": ([_record(0), _record(1), _record(2)], {}),
    "no records": ([], {"last_offset_delta": 2}),
    "order": ([_record(0), _record(2), _record(1)], {}),
    "twice": ([_record(0), _record(0), _record(2)], {}),
    "descending": ([_record(2), _record(1), _record(0)], {}),
    "below base": ([_record(-1), _record(0), _record(1)], {}),
    "far below base": ([_record(-(2**31)), _record(1)], {}),
    "null key -2": ([_body(_START, varint(-2), _VALUE, _NO_HEADERS)], {}),
    "null value -9": ([_body(_START, _KEY, varint(-9), _NO_HEADERS)], {}),
    "lowest null": ([_body(_START, varint(-(2**31)), varint(-(2**31)), _NO_HEADERS)], {}),
    "null header value -2": ([_body(_START, _KEY, _VALUE, varint(1), _KEY, varint(-2))], {}),
    "null header key": ([_body(_START, _KEY, _VALUE, varint(1), varint(-1), _VALUE)], {}),
    "headers below 0": ([_body(_START, _KEY, _VALUE, varint(-1))], {}),
    "headers beyond": ([_body(_START, _KEY, _VALUE, varint(1000))], {}),
    "header cut": ([_body(_START, _KEY, _VALUE, varint(1), varint(5), b"ab")], {}),
    "wrap up": ([_record(0, timestamp_delta=10)], {"base_timestamp_ms": I64_MAX}),
    "wrap down": ([_record(0, timestamp_delta=-10)], {"base_timestamp_ms": -(2**63)}),
    "largest delta": ([_record(0, timestamp_delta=I64_MAX)], {}),
    "no timestamp": ([_record(0)], {"base_timestamp_ms": -1, "max_timestamp_ms": -1}),
    "append time": ([_record(0, timestamp_delta=5)], {"attributes": LOG_APPEND_TIME}),
    "delete horizon": ([_record(0, timestamp_delta=5)], {"attributes": DELETE_HORIZON}),
    "record attributes": ([_body(_START, _KEY, _VALUE, _NO_HEADERS, attributes=b"\xff")], {}),
    "bytes in the record": ([_body(_START, _KEY, _VALUE, _NO_HEADERS, b"more")], {}),
    "bytes behind": ([_record(0), b"more"], {"record_count": 1, "last_offset_delta": 0}),
    "record behind": ([_record(0), _record(1)], {"record_count": 1, "last_offset_delta": 1}),
    "record missing": ([_record(0)], {"record_count": 2, "last_offset_delta": 1}),
    "record cut": ([_record(0)[:-1]], {}),
    "value beyond": ([_body(_START, _KEY, varint(100), b"v")], {}),
    "length below 0": ([varint(-5)], {}),
    "length 0": ([varint(0)], {}),
    "long varint": ([_body(b"\x80\x80\x80\x80\x00", varint(0), _KEY, _VALUE, _NO_HEADERS)], {}),
    "endless varint": ([_body(_START, b"\xff" * 6, _VALUE, _NO_HEADERS)], {}),
}

# What stands around usual records.
_USUAL = b"".join(PAYLOADS["usual"][0])


def _flip(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


def _wrong_content_size(frame: bytes) -> bytes:
    changed = _flip(frame, 6)
    header_checksum = xxh32(changed[4:14]) >> 8 & 0xFF
    return changed[:14] + bytes([header_checksum]) + changed[15:]


# What is done to the stream of each codec.
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "bytes behind": lambda data: data + b"bytes behind",
    "one byte behind": lambda data: data + b"\1",
    "three bytes behind": lambda data: data + b"\0\0\0",
    "zeros behind": lambda data: data + bytes(64),
    "cut": lambda data: data[:-3],
    "halved": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
}

STREAMS: dict[str, tuple[int, bytes]] = {
    "lz4 content checksum": (LZ4, lz4_frame(_USUAL, content_checksum=True)),
    "lz4 wrong content checksum": (
        LZ4,
        _flip(lz4_frame(_USUAL, content_checksum=True), -1),
    ),
    "lz4 no content checksum": (LZ4, lz4_frame(_USUAL, content_checksum=True)[:-4]),
    "lz4 no end mark": (LZ4, lz4_frame(_USUAL)[:-4]),
    "lz4 wrong block checksum": (
        LZ4,
        _flip(lz4_frame(_USUAL, block_checksums=True), -5),
    ),
    "lz4 wrong header checksum": (LZ4, _flip(lz4_frame(_USUAL), 6)),
    "lz4 wrong content size": (
        LZ4,
        _wrong_content_size(lz4_frame(_USUAL, content_size=True)),
    ),
    "lz4 two frames": (LZ4, lz4_frame(_USUAL) + lz4_frame(b"more")),
    "gzip two members": (
        GZIP,
        gzip.compress(_USUAL[:9], mtime=0) + gzip.compress(_USUAL[9:], mtime=0),
    ),
    "gzip wrong checksum": (GZIP, _flip(gzip.compress(_USUAL, mtime=0), -5)),
    "gzip wrong size": (GZIP, _flip(gzip.compress(_USUAL, mtime=0), -1)),
    "gzip no trailer": (GZIP, gzip.compress(_USUAL, mtime=0)[:-8]),
    "gzip half a member behind": (
        GZIP,
        gzip.compress(_USUAL, mtime=0) + gzip.compress(b"more", mtime=0)[:14],
    ),
    "zstd two frames": (ZSTD, compress(ZSTD, _USUAL[:9]) + compress(ZSTD, _USUAL[9:])),
    "zstd skippable frame": (
        ZSTD,
        struct.pack("<II", 0x184D2A50, 3) + b"abc" + compress(ZSTD, _USUAL),
    ),
    **{
        f"{name} {what}": (codec, change(compress(codec, _USUAL)))
        for name, codec in CODECS.items()
        if codec != NONE
        for what, change in CHANGES.items()
    },
}


def _seal(payload: bytes, count: int, fields: dict[str, int], codec: int) -> bytes:
    values = {
        "base_offset": 0,
        "leader_epoch": 0,
        "record_count": count,
        "last_offset_delta": max(count - 1, 0),
        "base_timestamp_ms": BASE_MS,
        "max_timestamp_ms": BASE_MS,
        **fields,
    }
    values["attributes"] = values.get("attributes", 0) | codec
    return build.seal(payload, **values)


def _cases() -> Iterator[tuple[str, bytes]]:
    for name, (records, fields) in PAYLOADS.items():
        for codec_name, codec in CODECS.items():
            payload = compress(codec, b"".join(records))
            yield f"{name}, {codec_name}", _seal(payload, len(records), fields, codec)
    for name, (codec, payload) in STREAMS.items():
        yield name, _seal(payload, 3, {}, codec)


CASES = dict(_cases())


@cache
def _kafka() -> dict[str, str]:
    """Kafka's answer to each case, from one JVM."""
    lines = "".join(f"{data.hex()}\n" for data in CASES.values())
    answers = run_tool(str(CONSUMER), input_text=lines).splitlines()
    assert len(answers) == len(CASES)
    return dict(zip(CASES, answers, strict=True))


def _ours(data: bytes) -> str:
    rows = []
    for record in decode_records(data).records():
        headers = [f"{key.hex()}={_hex(value)}" for key, value in record.headers]
        fields = record.offset, record.timestamp_ms, _hex(record.key), _hex(record.value)
        rows.append(",".join(map(str, (*fields, *headers))))
    return " ".join(rows)


def _hex(value: bytes | None) -> str:
    return "null" if value is None else value.hex()


@pytest.mark.parametrize("name", CASES)
def test_records_are_those_that_kafkas_consumer_reads(name: str) -> None:
    kafka = _kafka()[name]
    if "!" not in kafka:
        assert _ours(CASES[name]) == kafka
        return
    with pytest.raises(CorruptDataError) as caught:
        _ours(CASES[name])
    assert 0 <= (caught.value.position or 0) <= len(CASES[name]), kafka


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_offset_beyond_its_batch_is_refused_though_kafka_reads_it(codec: int) -> None:
    """The consumer then drops records of the batches behind, by where its fetches happen to end."""
    payload = compress(codec, _record(0) + _record(7))
    with pytest.raises(CorruptDataError, match="expected an offset delta up to 1"):
        _ours(_seal(payload, 2, {}, codec))
