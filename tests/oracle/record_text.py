"""Records as text, in plain Python: what `tierlog cat` prints by a format string, or as JSON.

Tokens of a format, which are kcat's:

    %s %S %R   value, its size (-1 for null), its size as four bytes
    %k %K      key, its size (-1 for null)
    %h         headers as name=value,name=NULL
    %t %p %o   topic, partition, offset
    %T         timestamp in milliseconds
    %%         a percent sign
    \\n \\r \\t \\\\ \\xXX

A null value or key prints as nothing. JSON keeps null apart from empty, and has kcat's keys in
kcat's order. Bytes that are not UTF-8 cannot stand in JSON text: they are an object
``{"base64": "..."}`` instead of a string, so nothing is lost and nothing is guessed.

It referees the native formatter and shares no code with it.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from json.encoder import encode_basestring

__all__ = ["Block", "Formatter", "Headers", "format_as_json", "format_by"]

Headers = Sequence[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some records of one partition, as columns of the same length.

    ``headers`` is None when no record has any. ``timestamp_types`` are kcat's words: create,
    logappend or unknown.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    timestamp_types: Iterable[str]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None


Formatter = Callable[[Block], Iterable[bytes]]

_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{1,2}|[^x])|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t"}
_NULL_SIZE = b"-1"
_NULL_SIZE_BINARY = struct.pack(">i", -1)


def format_by(text: str) -> Formatter:
    """The formatter for a format string; ValueError names a token that is none."""
    columns = [_column(match) for match in _TOKEN.finditer(text)]
    if not columns:
        raise ValueError("the format is empty; as in kcat, '%s\\n' prints values")

    def lines(block: Block) -> Iterator[bytes]:
        rows = len(block.offsets)
        parts = (
            repeat(column, rows) if isinstance(column, bytes) else column(block)
            for column in columns
        )
        return chain.from_iterable(zip(*parts, strict=True))

    return lines


def _column(match: re.Match[str]) -> bytes | Callable[[Block], Iterable[bytes]]:
    token, escape, literal, stray = match.groups()
    if token is not None:
        if token == "%":
            return b"%"
        if token not in _TOKENS:
            known = " ".join(f"%{name}" for name in _TOKENS)
            raise ValueError(f"no such token %{token}; there are {known} and %% for a percent sign")
        return _TOKENS[token]
    if escape is not None:
        if escape[0] == "x":
            return bytes([int(escape[1:], 16)])
        return _ESCAPES.get(escape, escape.encode())
    if stray == "%":
        raise ValueError("the format ends with a lone %; write %% for a percent sign")
    if stray == "\\":
        raise ValueError("expected one or two hex digits after \\x, or something after \\")
    return literal.encode("utf-8", "surrogateescape")


def _or_nothing(column: Sequence[bytes | None]) -> Iterable[bytes]:
    return [b"" if item is None else item for item in column]


def _sizes(column: Sequence[bytes | None]) -> Iterable[bytes]:
    return [_NULL_SIZE if item is None else b"%d" % len(item) for item in column]


def _binary_sizes(column: Sequence[bytes | None]) -> Iterable[bytes]:
    pack = struct.Struct(">i").pack
    return [_NULL_SIZE_BINARY if item is None else pack(len(item)) for item in column]


def _header_texts(block: Block) -> Iterable[bytes]:
    if block.headers is None:
        return repeat(b"", len(block.offsets))
    return [
        b",".join(name + b"=" + (b"NULL" if value is None else value) for name, value in headers)
        for headers in block.headers
    ]


_TOKENS: dict[str, Callable[[Block], Iterable[bytes]]] = {
    "s": lambda block: _or_nothing(block.values),
    "S": lambda block: _sizes(block.values),
    "R": lambda block: _binary_sizes(block.values),
    "k": lambda block: _or_nothing(block.keys),
    "K": lambda block: _sizes(block.keys),
    "h": _header_texts,
    "t": lambda block: repeat(block.topic.encode(), len(block.offsets)),
    "p": lambda block: repeat(b"%d" % block.partition, len(block.offsets)),
    "o": lambda block: map(b"%d".__mod__, block.offsets),
    "T": lambda block: map(b"%d".__mod__, block.timestamps_ms),
}


def format_as_json(block: Block) -> Iterator[bytes]:
    """One JSON object a line for each record of the block."""
    start = f'{{"topic":{encode_basestring(block.topic)},"partition":{block.partition},"offset":'
    headers: Iterable[str] = repeat("", len(block.offsets))
    if block.headers is not None:
        headers = map(_json_headers, block.headers)
    for offset, kind, timestamp_ms, header, key, value in zip(
        block.offsets,
        block.timestamp_types,
        block.timestamps_ms,
        headers,
        map(_json_bytes, block.keys),
        map(_json_bytes, block.values),
        strict=True,
    ):
        yield (
            f'{start}{offset},"tstype":"{kind}","ts":{timestamp_ms}{header},'
            f'"key":{key},"payload":{value}}}\n'
        ).encode()


def _json_headers(headers: Headers) -> str:
    """Names and values in turn, as kcat has them; the whole key is left out without headers."""
    if not headers:
        return ""
    items = chain.from_iterable(headers)
    return f',"headers":[{",".join(map(_json_bytes, items))}]'


def _json_bytes(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return encode_basestring(data.decode())
    except UnicodeDecodeError:
        return f'{{"base64":"{base64.b64encode(data).decode()}"}}'
