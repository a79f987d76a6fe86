"""Formats against what kcat 1.7.1 printed for the same three records (bytes that are not UTF-8
apart, which kcat writes into its JSON as they are)."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tools.record_format import Block, format_as_json, format_by

BLOCK = Block(
    topic="t",
    partition=0,
    offsets=[0, 1, 2],
    timestamps_ms=[1000, 2000, 3000],
    timestamp_types=["create"] * 3,
    keys=[None, b"", b"k\xff"],
    values=[None, b"", b'v\xfe\x00"\n\x01\xc3\xa9/'],
    headers=[
        [],
        [(b"a", b"1"), (b"a", None), (b"b", b""), (b"c", b"x,y=z"), (b"d", b"\xff")],
        [(b"only", None)],
    ],
)


def formatted(text: str, block: Block = BLOCK) -> bytes:
    return b"".join(format_by(text)(block))


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
        format_by(text)
    assert message in str(caught.value)


def test_json_as_kcat_prints() -> None:
    """kcat adds ``"broker"``, and has bytes that are not UTF-8 as they are."""
    lines = list(format_as_json(BLOCK))
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
    block = Block(
        topic="t",
        partition=0,
        offsets=[7],
        timestamps_ms=[-1],
        timestamp_types=["unknown"],
        keys=[b"k"],
        values=['\x00\x1f"\\\u2028é\U0001f600'.encode()],
        headers=None,
    )
    (line,) = format_as_json(block)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "t",
        "partition": 0,
        "offset": 7,
        "tstype": "unknown",
        "ts": -1,
        "key": "k",
        "payload": '\x00\x1f"\\\u2028é\U0001f600',
    }
    assert formatted("%h.", block) == b"."


def from_json(item: object) -> bytes | None:
    if item is None:
        return None
    if isinstance(item, dict):
        return base64.b64decode(item["base64"])
    assert isinstance(item, str)
    return item.encode()


maybe_bytes = st.none() | st.binary(max_size=20)


@given(
    st.lists(
        st.tuples(
            maybe_bytes,
            maybe_bytes,
            st.lists(st.tuples(st.binary(max_size=8), maybe_bytes), max_size=3),
        ),
        max_size=5,
    )
)
def test_json_loses_nothing(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
) -> None:
    block = Block(
        topic="t",
        partition=3,
        offsets=range(len(rows)),
        timestamps_ms=[0] * len(rows),
        timestamp_types=["create"] * len(rows),
        keys=[key for key, _, _ in rows],
        values=[value for _, value, _ in rows],
        headers=[headers for _, _, headers in rows],
    )
    decoded = [json.loads(line) for line in format_as_json(block)]
    for document, (key, value, headers) in zip(decoded, rows, strict=True):
        assert from_json(document["key"]) == key
        assert from_json(document["payload"]) == value
        flat = [from_json(item) for item in document.get("headers", [])]
        assert list(zip(flat[::2], flat[1::2], strict=True)) == headers
