"""Parse Java's ``.properties`` text, as ``java.util.Properties.load`` does."""

from __future__ import annotations

import re

from tierlog.errors import ConfigError

__all__ = ["parse_properties"]

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK = " \t\f"
_UNICODE_ESCAPE = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a Java ``.properties`` text (``java.util.Properties.load``).

    If a key occurs several times, its last value counts, as in Java. Raises ConfigError, which
    names the line, for a bad escape. The caller decodes a file as ISO-8859-1, as Kafka does.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = 0
        while end < len(line) and line[end] not in "=:" + _BLANK:
            end += 2 if line[end] == "\\" else 1
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        values[_unescaped(line[:end], number)] = _unescaped(rest, number)
    return values


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers. Continuation lines are joined; comments and blank lines
    are left out."""
    lines: list[tuple[int, str]] = []
    start, joined, continued = 1, "", False
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        part = natural.lstrip(_BLANK)
        if not continued:
            start, joined = number, ""
        if not joined and part[:1] in ("#", "!"):
            continued = False
            continue
        backslashes = len(part) - len(part.rstrip("\\"))
        continued = backslashes % 2 == 1
        joined += part[:-1] if continued else part
        if joined and not continued:
            lines.append((start, joined))
    if joined and continued:
        lines.append((start, joined))
    return lines


def _unescaped(text: str, line: int) -> str:
    """Return a key or value after resolving its backslash escapes."""
    parts: list[str] = []
    position = 0
    while (slash := text.find("\\", position)) >= 0:
        parts.append(text[position:slash])
        escaped = text[slash + 1 : slash + 2]
        position = slash + 2
        if escaped == "u":
            digits = text[position : position + 4]
            if not _UNICODE_ESCAPE.fullmatch(digits):
                found = f"expected four hex digits after \\u, found {digits!r}"
                raise ConfigError(f"line {line}: {found}")
            parts.append(chr(int(digits, 16)))
            position += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    parts.append(text[position:])
    # Java escapes characters beyond U+FFFF as two surrogates.
    joined = "".join(parts)
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
