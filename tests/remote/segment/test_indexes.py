"""The `.indexes` object: its bytes, every flipped bit and cut, and headers made to mislead."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.strategies import profile
from tests.remote.segment.sections import DESCRIPTION, SECTIONS
from tierlog.errors import CorruptDataError
from tierlog.remote.segment.description import SegmentDescription, decode_segment, encode_segment
from tierlog.remote.segment.indexes import (
    FIRST_READ_BYTES,
    MAX_INDEXES_BYTES,
    MAX_METADATA_BYTES,
    IndexesHeader,
    IndexKind,
    encode_indexes,
    read_indexes_header,
    read_sections,
)
from tierlog.remote.urls import open_store
from tierlog.testing.segments import PARTITION, uuid_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

GOLDEN = encode_indexes(DESCRIPTION, SECTIONS)


def parse(data: bytes, size: int | None = None) -> IndexesHeader:
    return IndexesHeader.parse(data, path="x.indexes", object_size_bytes=size)


def header_of(rows: list[tuple[int, int, int, int, int]], **fields: Any) -> bytes:
    """A header with a right checksum around whatever it says."""
    data = struct.pack(
        ">8shh",
        fields.get("magic", b"TIERIDX\n"),
        fields.get("version", 1),
        fields.get("count", len(rows)),
    )
    data += b"".join(struct.pack(">hhIqq", *row) for row in rows)
    return data + struct.pack(">I", google_crc32c.value(data))


def test_the_bytes_are_as_documented() -> None:
    magic, version, count = struct.unpack_from(">8shh", GOLDEN)
    assert (magic, version, count) == (b"TIERIDX\n", 2, 8)
    contents = [encode_segment(DESCRIPTION), *SECTIONS.values()]
    position = 12 + 24 * 8 + 4
    for index, data in enumerate(contents):
        row = struct.unpack_from(">hhIqq", GOLDEN, 12 + 24 * index)
        assert row == (index + 1, 0, google_crc32c.value(data), position, len(data))
        assert GOLDEN[position : position + len(data)] == data
        position += len(data)
    assert position == len(GOLDEN)
    (checksum,) = struct.unpack_from(">I", GOLDEN, 12 + 24 * 8)
    assert checksum == google_crc32c.value(GOLDEN[: 12 + 24 * 8])


def test_the_description_is_sorted_json() -> None:
    text = encode_segment(DESCRIPTION)
    fields = json.loads(text)
    assert list(fields) == sorted(fields)
    assert fields["topic_id"] == PARTITION.topic_id
    assert fields["leader_epochs"] == [[0, 0], [4, 50]]
    assert (fields["log_size_bytes"], fields["log_crc32c"]) == (1_000, 0xDEADBEEF)
    assert decode_segment(text, path="x", position=0) == DESCRIPTION


def test_sections_come_back() -> None:
    header = parse(GOLDEN, len(GOLDEN))
    assert header.object_size_bytes == len(GOLDEN)
    for kind, data in SECTIONS.items():
        assert header.read_section(kind, GOLDEN) == data
        start = header.section(kind).position
        assert header.read_section(kind, GOLDEN[start:], start) == data
    assert header.description(header.read_section(IndexKind.METADATA, GOLDEN)) == DESCRIPTION
    with pytest.raises(ValueError, match="starts before byte 500"):
        header.read_section(IndexKind.METADATA, GOLDEN[500:], 500)


def read_everything(data: bytes, size: int | None) -> None:
    header = parse(data[:FIRST_READ_BYTES], size)
    for kind in IndexKind:
        header.read_section(kind, data)
    header.description(header.read_section(IndexKind.METADATA, data))


def test_every_flipped_bit_is_found_and_located() -> None:
    for position in range(len(GOLDEN)):
        for bit in range(8):
            data = bytearray(GOLDEN)
            data[position] ^= 1 << bit
            with pytest.raises(CorruptDataError) as caught:
                read_everything(bytes(data), len(data))
            assert caught.value.path == "x.indexes"
            assert 0 <= caught.value.position <= len(GOLDEN)


def test_every_cut_and_every_addition_is_found() -> None:
    for size in range(len(GOLDEN)):
        for stated in (size, None):
            with pytest.raises(CorruptDataError):
                read_everything(GOLDEN[:size], stated)
    with pytest.raises(CorruptDataError, match="end of object"):
        read_everything(GOLDEN + b"x", len(GOLDEN) + 1)


START = 12 + 24 + 4  # of the sections of a header with one row


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header_of([(1, 0, 0, START, 5)], magic=b"TIERIDX\r"), "unknown_magic"),
        (header_of([(1, 0, 0, START, 5)], version=3), "unknown_version"),
        (header_of([(1, 0, 0, START, 5)], version=0), "unknown_version"),
        (header_of([(1, 0, 0, START, 5)], version=-1), "unknown_version"),
        (header_of([], count=0), "bad_header"),
        (header_of([], count=-1), "bad_header"),
        (header_of([(1, 0, 0, START, 5)], count=32_767), "bad_header"),
        (header_of([(1, 0, 0, START, 5)], count=64), "bad_length"),
        (header_of([(1, 1, 0, START, 5)]), "bad_header"),
        (header_of([(2, 0, 0, START, 5)]), "bad_header"),
        (header_of([(1, 0, 0, START + 24, 5), (1, 0, 0, START + 29, 5)]), "bad_header"),
        (header_of([(1, 0, 0, START, -1)]), "bad_length"),
        (header_of([(1, 0, 0, START, 2**63 - 1)]), "bad_length"),
        (header_of([(1, 0, 0, START, 6)]), "bad_length"),
        (header_of([(1, 0, 0, START - 1, 5)]), "bad_header"),
        (header_of([(1, 0, 0, START + 1, 4)]), "bad_header"),
        (header_of([(1, 0, 0, -(2**63), 5)]), "bad_header"),
        (header_of([(1, 0, 0, START, 4)]), "bad_length"),
        (header_of([(1, 0, 0, START + 24, 5), (2, 0, 0, START + 26, 5)]), "bad_header"),
    ],
)
def test_headers_that_lie(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse(data + b"12345", len(data) + 5)
    assert caught.value.reason == reason


def test_a_huge_section_is_refused_without_knowing_the_object() -> None:
    start = START + 24
    data = header_of([(1, 0, 0, start, 5), (2, 0, 0, start + 5, MAX_INDEXES_BYTES)])
    with pytest.raises(CorruptDataError, match="to end by byte"):
        parse(data, None)
    with pytest.raises(CorruptDataError, match="to end by byte"):
        parse(data, 2 * MAX_INDEXES_BYTES)


def test_a_metadata_section_is_bounded_before_it_is_read() -> None:
    table_end = 12 + 24 * 2 + 4
    for size, reason in ((MAX_METADATA_BYTES, None), (MAX_METADATA_BYTES + 1, "bad_length")):
        data = header_of([(1, 0, 0, table_end, size), (2, 0, 0, table_end + size, 0)])
        if reason is None:
            assert parse(data, None).sections[0].size_bytes == size
        else:
            with pytest.raises(CorruptDataError, match="a metadata section of at most"):
                parse(data, None)


def test_unknown_kinds_are_passed_over_and_known_ones_may_be_missing() -> None:
    text = encode_segment(DESCRIPTION)
    start = START + 24
    rows = [
        (1, 0, google_crc32c.value(text), start, len(text)),
        (99, 0, google_crc32c.value(b"new"), start + len(text), 3),
    ]
    data = header_of(rows) + text + b"new"
    header = parse(data, len(data))
    assert header.description(header.read_section(IndexKind.METADATA, data)) == DESCRIPTION
    with pytest.raises(CorruptDataError, match="a section OFFSET") as caught:
        header.read_section(IndexKind.OFFSET, data)
    assert caught.value.reason == "missing_section"


@given(data=st.binary(max_size=400))
@profile(200)
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    for candidate in (data, b"TIERIDX\n" + data, GOLDEN[:12] + data):
        with pytest.raises(CorruptDataError):
            read_everything(candidate, len(candidate))


def test_sections_must_be_complete() -> None:
    for wrong in ({}, {**SECTIONS, IndexKind.METADATA: b"x"}):
        with pytest.raises(ValueError, match="missing or unexpected"):
            encode_indexes(DESCRIPTION, wrong)


class TestReading:
    """One request for small objects, two for large ones, whatever is asked."""

    def requests(self, sections: dict[IndexKind, bytes], kinds: list[IndexKind]) -> list[int]:
        store = open_store(f"memory:///indexes/{uuid_of(repr(kinds) + str(len(sections)))}")
        data = encode_indexes(DESCRIPTION, sections)
        store.put_bytes("x.indexes", data, overwrite=True)
        sizes: list[int] = []
        real = store.get_range

        def counting(key: str, start_position: int, size_bytes: int) -> Buffer:
            sizes.append(size_bytes)
            return real(key, start_position, size_bytes)

        store.get_range = counting  # type: ignore[method-assign]
        header, first = read_indexes_header(store, "x.indexes", len(data))
        found = read_sections(store, "x.indexes", header, first, kinds)
        expected = {**sections, IndexKind.METADATA: encode_segment(DESCRIPTION)}
        assert {kind: bytes(view) for kind, view in found.items()} == {
            kind: expected[kind] for kind in kinds
        }
        return sizes

    def test_small(self) -> None:
        assert self.requests(SECTIONS, list(IndexKind)) == [FIRST_READ_BYTES]

    def test_large(self) -> None:
        large = {**SECTIONS, IndexKind.OFFSET: bytes(20_000), IndexKind.REMOTE_LOG: bytes(9_999)}
        assert self.requests(large, [IndexKind.METADATA]) == [FIRST_READ_BYTES]
        assert self.requests(large, [IndexKind.TRANSACTION]) == [FIRST_READ_BYTES]
        assert self.requests(large, [IndexKind.REMOTE_LOG]) == [FIRST_READ_BYTES, 9_999]
        assert len(self.requests(large, list(IndexKind))) == 2


class TestDescriptionFromOutside:
    @pytest.mark.parametrize(
        "change",
        [
            {"format_version": 2},
            {"format_version": True},
            {"format_version": None},
            {"topic": "../up"},
            {"topic": 7},
            {"topic_id": "short"},
            {"topic_id": "A" * 22},
            {"partition": -1},
            {"partition": 0.0},
            {"partition": "0"},
            {"partition": False},
            {"segment_id": None},
            {"start_offset": 100},
            {"end_offset": 2**63},
            {"end_offset": 10**400},
            {"leader_epochs": []},
            {"leader_epochs": [[0]]},
            {"leader_epochs": [0, 0]},
            {"leader_epochs": {"0": 0}},
            {"leader_epochs": [[0, 0], [0, 1]]},
            {"bytes_per_epoch": [[0, 1]]},
            {"log_size_bytes": -1},
            {"log_crc32c": 2**32},
            {"log_crc32c": "x"},
            {"txn_index_empty": 1},
            {"cluster_id": None},
            {"record_count": None},
        ],
        ids=repr,
    )
    def test_wrong_values(self, change: dict[str, Any]) -> None:
        fields = {**json.loads(encode_segment(DESCRIPTION)), **change}
        with pytest.raises(CorruptDataError) as caught:
            decode_segment(json.dumps(fields).encode(), path="x.indexes", position=184)
        assert (caught.value.reason, caught.value.position) == ("bad_metadata", 184)

    def test_missing_and_additional_values(self) -> None:
        fields = json.loads(encode_segment(DESCRIPTION))
        for name in fields:
            rest = {key: value for key, value in fields.items() if key != name}
            with pytest.raises(CorruptDataError, match=f"{name} is missing"):
                decode_segment(json.dumps(rest).encode(), path="x", position=0)
        fields["added_later"] = {"by": "somebody"}
        assert decode_segment(json.dumps(fields).encode(), path="x", position=0) == DESCRIPTION

    def test_a_key_that_stands_there_twice(self) -> None:
        text = encode_segment(DESCRIPTION).replace(b"{", b'{"partition":0,', 1)
        with pytest.raises(CorruptDataError, match="twice"):
            decode_segment(text, path="x", position=0)

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"null",
            b"[]",
            b"\xff",
            b"{" * 5_000,
            b"[" * 100_000,
            b'{"partition": NaN}',
            b'{"partition": ' + b"9" * 5_000 + b"}",
        ],
        ids=lambda text: ascii(text)[:30],
    )
    def test_no_description(self, text: bytes) -> None:
        with pytest.raises(CorruptDataError, match="describes a segment"):
            decode_segment(text, path="x", position=0)

    def test_unknown_values_stay_unknown(self) -> None:
        metadata = replace(DESCRIPTION.metadata, bytes_per_epoch=None, log_crc32c=None)
        text = encode_segment(SegmentDescription(metadata=metadata))
        found = decode_segment(text, path="x", position=0)
        assert found.metadata == metadata
        assert (found.record_count, found.batch_count, found.cluster_id) == (-1, -1, "")
