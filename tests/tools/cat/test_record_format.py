"""Formats against what kcat 1.7.1 printed for the same three records (bytes that are not UTF-8
apart, which kcat writes into its JSON as they are), and against the oracle for any records."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import build, record_text
from tests.oracle.model import Record
from tests.oracle.strategies import profile
from tierlog.log.records import decode_records
from tierlog.tools.cat.record_format import JSON_LINES, RecordFormat, parse_format
from tierlog.tools.cat.selection import format_records

RECORDS = [
    Record(offset=0, timestamp_ms=1000, key=None, value=None),
    Record(
        offset=1,
        timestamp_ms=2000,
        key=b"",
        value=b"",
        headers=((b"a", b"1"), (b"a", None), (b"b", b""), (b"c", b"x,y=z"), (b"d", b"\xff")),
    ),
    Record(
        offset=2,
        timestamp_ms=3000,
        key=b"k\xff",
        value=b'v\xfe\x00"\n\x01\xc3\xa9/',
        headers=((b"only", None),),
    ),
]


def printed(shape: RecordFormat, data: bytes, first: int = 0, last: int | None = None) -> bytes:
    """What is printed of rows `first` to `last` of these batches."""
    records = decode_records(data)
    rows = records.rows(first, len(records) if last is None else last)
    return b"".join(bytes(text) for text in format_records(rows, "t", 0, shape))


def formatted(text: str) -> bytes:
    return printed(parse_format(text), build.batch(RECORDS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b'\n\nv\xfe\x00"\n\x01\xc3\xa9/\n'),
        (r"%k:%s\n", b':\n:\nk\xff:v\xfe\x00"\n\x01\xc3\xa9/\n'),
        (
            r"%s|%S|%R|%k|%K|%t|%p|%o|%T|%h\x41\x0a\n",
            (
                b"|-1|\xff\xff\xff\xff||-1|t|0|0|1000|A\n\n"
                b"|0|\x00\x00\x00\x00||0|t|0|1|2000|a=1,a=NULL,b=,c=x,y=z,d=\xffA\n\n"
                b'v\xfe\x00"\n\x01\xc3\xa9/|9|\x00\x00\x00\t|k\xff|2|t|0|2|3000|only=NULLA\n\n'
            ),
        ),
        (r"\x9|\e\a\n", b"\t|ea\n" * 3),
        (r"\r\t\\%%é", "\r\t\\%é".encode() * 3),
        ("plain", b"plain" * 3),
    ],
)
def test_as_kcat_prints(text: str, expected: bytes) -> None:
    assert formatted(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%z", "no such token %z; there are %s %S %R %k %K %h %t %p %o %T and %%"),
        ("%", "lone %"),
        ("", "the format is empty"),
        (r"\x", "hex digits"),
        ("\\", "something after"),
    ],
)
def test_refused_with_a_way_on(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_format(text)
    assert message in str(caught.value)


def test_json_as_kcat_prints() -> None:
    """kcat adds ``"broker"``, and has bytes that are not UTF-8 as they are."""
    lines = printed(JSON_LINES, build.batch(RECORDS)).splitlines(keepends=True)
    assert lines[0] == (
        b'{"topic":"t","partition":0,"offset":0,"tstype":"create","ts":1000,'
        b'"key":null,"payload":null}\n'
    )
    assert lines[1] == (
        b'{"topic":"t","partition":0,"offset":1,"tstype":"create","ts":2000,'
        b'"headers":["a","1","a",null,"b","","c","x,y=z","d",{"base64":"/w=="}],'
        b'"key":"","payload":""}\n'
    )
    assert json.loads(lines[2])["key"] == {"base64": "a/8="}


def test_without_headers_there_is_no_such_key() -> None:
    value = '\x00\x1f"\\\u2028é\U0001f600'
    record = Record(offset=7, timestamp_ms=-1, key=b"k", value=value.encode())
    line = printed(JSON_LINES, build.legacy_messages([record], magic=0))
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "t",
        "partition": 0,
        "offset": 7,
        "tstype": "unknown",
        "ts": -1,
        "key": "k",
        "payload": value,
    }
    assert printed(parse_format("%h."), build.batch([record])) == b"."


maybe_bytes = st.none() | st.binary(max_size=40) | st.text(max_size=40).map(str.encode)
headers = st.lists(st.tuples(st.text(max_size=8).map(str.encode), maybe_bytes), max_size=3)
rows = st.lists(st.tuples(maybe_bytes, maybe_bytes, headers), min_size=1, max_size=12)
batches = st.lists(st.tuples(rows, st.booleans()), min_size=1, max_size=3)


class Log:
    """Batches, and their records as the oracle takes them."""

    def __init__(
        self,
        drawn: list[tuple[list[tuple[bytes | None, bytes | None, record_text.Headers]], bool]],
    ) -> None:
        self.records: list[Record] = []
        self.kinds: list[str] = []
        self.data = b""
        for held, is_appended in drawn:
            start = len(self.records)
            for offset, (key, value, pairs) in enumerate(held, start):
                self.records.append(
                    Record(
                        offset=offset,
                        timestamp_ms=9_000 if is_appended else offset * 7,
                        key=key,
                        value=value,
                        headers=tuple(pairs),
                    )
                )
            self.kinds += ["logappend" if is_appended else "create"] * len(held)
            appended_ms = 9_000 if is_appended else None
            self.data += build.batch(self.records[start:], log_append_time_ms=appended_ms)

    def block(self, first: int, last: int) -> record_text.Block:
        records = self.records[first:last]
        return record_text.Block(
            topic="t",
            partition=0,
            offsets=[one.offset for one in records],
            timestamps_ms=[one.timestamp_ms for one in records],
            timestamp_types=self.kinds[first:last],
            keys=[one.key for one in records],
            values=[one.value for one in records],
            headers=[one.headers for one in records],
        )


@profile(200)
@given(batches, st.data())
def test_any_records_are_printed_as_the_oracle_prints_them(
    drawn: list[tuple[list[tuple[bytes | None, bytes | None, record_text.Headers]], bool]],
    data: st.DataObject,
) -> None:
    log = Log(drawn)
    first = data.draw(st.integers(0, len(log.records)), label="first row")
    last = data.draw(st.integers(first, len(log.records)), label="last row")
    text = r"%s|%S|%R|%k|%K|%h|%t|%p|%o|%T%%\x00"
    block = log.block(first, last)
    expected = b"".join(record_text.format_by(text)(block))
    assert printed(parse_format(text), log.data, first, last) == expected
    lines = b"".join(record_text.format_as_json(block))
    assert printed(JSON_LINES, log.data, first, last) == lines


def from_json(item: object) -> bytes | None:
    if item is None:
        return None
    if isinstance(item, dict):
        return base64.b64decode(item["base64"])
    assert isinstance(item, str)
    return item.encode()


@given(batches)
def test_json_loses_nothing(
    drawn: list[tuple[list[tuple[bytes | None, bytes | None, record_text.Headers]], bool]],
) -> None:
    log = Log(drawn)
    decoded = [json.loads(line) for line in printed(JSON_LINES, log.data).splitlines()]
    for document, record in zip(decoded, log.records, strict=True):
        assert from_json(document["key"]) == record.key
        assert from_json(document["payload"]) == record.value
        flat = [from_json(item) for item in document.get("headers", [])]
        assert tuple(zip(flat[::2], flat[1::2], strict=True)) == record.headers
