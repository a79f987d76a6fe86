"""Formats records as kcat does: with a format string, or as one JSON object per line.

A format string has the same tokens as in kcat:

    %s %S %R   value, its size (-1 for null), its size as four bytes
    %k %K      key, its size (-1 for null)
    %h         headers as name=value,name=NULL
    %t %p %o   topic, partition, offset
    %T         timestamp in milliseconds
    %%         a percent sign
    \\n \\r \\t \\\\ \\xXX

A null value or key prints as nothing. In JSON, a null value differs from an empty value. The JSON
keys and their order are those of kcat. JSON text cannot hold bytes that are not UTF-8. Such bytes
become an object ``{"base64": "..."}`` instead of a string. A format is a template of bytes and
token names. The native core fills in the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from json.encoder import encode_basestring

from tierlog import _core

__all__ = ["JSON_LINES", "RecordFormat", "parse_format"]

_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{1,2}|[^x])|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t"}
_TOKENS = {
    "s": "value",
    "S": "value_size",
    "R": "value_size_binary",
    "k": "key",
    "K": "key_size",
    "h": "headers",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp_ms",
}


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The output of each record: literal bytes and names of tokens."""

    parts: tuple[bytes | str, ...]

    def of_partition(self, topic: str, partition: int) -> _core.TextTemplate:
        """Return the template for the records of one partition."""
        same: dict[bytes | str, bytes | str] = {
            "topic": topic.encode(),
            "json_topic": encode_basestring(topic).encode(),
            "partition": b"%d" % partition,
        }
        return _core.TextTemplate(_joined(same.get(part, part) for part in self.parts))


def _joined(parts: Iterable[bytes | str]) -> list[bytes | str]:
    """Join adjacent bytes into one part."""
    joined: list[bytes | str] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, bytes) and isinstance(last, bytes):
            joined[-1] = last + part
        else:
            joined.append(part)
    return joined


JSON_LINES = RecordFormat(
    (
        *(b'{"topic":', "json_topic", b',"partition":', "partition", b',"offset":', "offset"),
        *(b',"tstype":"', "timestamp_type", b'","ts":', "timestamp_ms", "json_headers"),
        *(b',"key":', "json_key", b',"payload":', "json_value", b"}\n"),
    )
)


def parse_format(text: str) -> RecordFormat:
    """Return the format of a format string. Raises ValueError, which names the token, for an
    unknown token."""
    parts = tuple(_part(match) for match in _TOKEN.finditer(text))
    if not parts:
        raise ValueError("the format is empty; as in kcat, '%s\\n' prints values")
    return RecordFormat(parts)


def _part(match: re.Match[str]) -> bytes | str:
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
        return _ESCAPES.get(escape, escape.encode("utf-8", "surrogateescape"))
    if stray == "%":
        raise ValueError("the format ends with a lone %; write %% for a percent sign")
    if stray == "\\":
        raise ValueError("expected one or two hex digits after \\x, or something after \\")
    return bytes(literal.encode("utf-8", "surrogateescape"))
