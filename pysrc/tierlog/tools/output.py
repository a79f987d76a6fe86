"""Prints rows of plain dataclasses as text for people and documents for programs.

The name of a field ends with its unit and decides the format of the value:

* ``size_bytes``: a human size in text, the exact number in documents;
* ``max_timestamp_ms``: an ISO time in text, milliseconds in documents;
* every other value as it is. The value None is shown as ``-`` in text and as null in documents.

``wide_field()`` marks fields that only the format ``wide`` and the documents show. `RowStream` also
shows a wide field with ``streamed`` in its metadata. A command prints one document, which is an
object with one list per table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tierlog.log.files import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "Format",
    "RowStream",
    "Table",
    "human_size",
    "iso_time",
    "parse_size",
    "render",
    "wide_field",
]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SIZE = re.compile(r"([0-9]{1,19}) ?(?:([KMGTPE])(?:iB)?|B)?", re.IGNORECASE)
_WIDE = {"wide": True}
_GAP = "  "
_STREAM_WIDTH = 10
_MAX_DATE_MS = 253_402_300_799_999


class Format(StrEnum):
    """How rows are printed."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def wide_field() -> Any:
    """Return a field that ``text`` leaves out."""
    return field(metadata=_WIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one kind. Text shows ``title`` above the table.

    ``text`` leaves out every ``optional`` table, and ``wide`` leaves out an ``optional`` table that
    has no rows. A ``single`` table has one row and is an object, not a list, in documents.
    """

    name: str
    row_type: type[DataclassInstance]
    rows: Sequence[DataclassInstance]
    title: str = ""
    optional: bool = False
    single: bool = False


def human_size(size_bytes: int) -> str:
    """Return a size such as ``1.4 MiB``; exact below 1 KiB."""
    size, unit = float(size_bytes), 0
    while abs(size) >= 1023.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``10485760``, ``10240K`` or ``10MiB``. Numbers
    are whole, and units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected bytes as in 10485760, 10240K or 10MiB, found {text[:40]!r}")
    return int(match[1]) << 10 * "BKMGTPE".index((match[2] or "b").upper())


def iso_time(timestamp_ms: int) -> str:
    """Return a time such as ``2024-02-29T12:00:00.123Z``; the number itself if it is not from 1970
    to 9999."""
    if not 0 <= timestamp_ms <= _MAX_DATE_MS:
        return str(timestamp_ms)
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def render(
    tables: Iterable[Table], shown: Format, head: Callable[[str], str] = str
) -> Iterator[str]:
    """Yield the lines of all tables without line ends. ``head`` decorates a line of column
    heads."""
    if shown is Format.JSON:
        return _json_lines(tables)
    if shown is Format.YAML:
        return _yaml_lines(tables)
    return _text_lines(tables, shown is Format.WIDE, head)


class RowStream:
    """Prints an endless stream of rows of one kind.

    Text columns become wider when a row needs it. JSON has one object per line. YAML is one endless
    list.
    """

    def __init__(
        self,
        row_type: type[DataclassInstance],
        shown: Format,
        head: Callable[[str], str] = str,
    ) -> None:
        self._shown = shown
        self._head = head
        self._row_type = row_type
        wide = shown is Format.WIDE
        self._names = [
            one.name
            for one in fields(row_type)
            if wide or one.metadata.get("streamed") or not one.metadata.get("wide")
        ]
        self._widths: list[int] = []

    def lines(self, row: DataclassInstance) -> Iterator[str]:
        """Return the row's lines without line ends. In text, the column heads precede the first
        row."""
        if self._shown is Format.JSON:
            names = [one.name for one in fields(self._row_type)]
            return iter([_json({name: getattr(row, name) for name in names})])
        if self._shown is Format.YAML:
            whole = Table(name="rows", row_type=self._row_type, rows=[row])
            return iter(list(_yaml_lines([whole]))[1:])
        return self._aligned(row)

    def _aligned(self, row: DataclassInstance) -> Iterator[str]:
        right = [_is_number([row], name) for name in self._names]
        if not self._widths:
            heads = [_head(name) for name in self._names]
            self._widths = [max(len(head), _STREAM_WIDTH) for head in heads]
            yield self._head(_line(heads, self._widths, right))
        cells = [_text(name, getattr(row, name)) for name in self._names]
        self._widths = [max(w, len(c)) for w, c in zip(self._widths, cells, strict=True)]
        yield _line(cells, self._widths, right)


def _text_lines(tables: Iterable[Table], wide: bool, head: Callable[[str], str]) -> Iterator[str]:
    first = True
    for table in tables:
        if table.optional and not (wide and table.rows):
            continue
        if not first:
            yield ""
        first = False
        if table.title:
            yield table.title
        yield from _aligned(table, wide, head)


def _aligned(table: Table, wide: bool, head: Callable[[str], str]) -> Iterator[str]:
    names = [item.name for item in fields(table.row_type) if wide or not item.metadata.get("wide")]
    heads = [_head(name) for name in names]
    cells = [[_text(name, getattr(row, name)) for name in names] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [_is_number(table.rows, name) for name in names]
    yield head(_line(heads, widths, right))
    for row in cells:
        yield _line(row, widths, right)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return _GAP.join(padded).rstrip()


def _head(name: str) -> str:
    short = name.removesuffix("_bytes")
    short = short.removesuffix("_ms") if short.endswith("timestamp_ms") else short
    return short.upper().replace("_", "-")


def _is_number(rows: Sequence[DataclassInstance], name: str) -> bool:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    is_time = name.endswith("timestamp_ms")
    return bool(values) and not is_time and all(type(value) in (int, float) for value in values)


def _text(name: str, value: object) -> str:
    if value is None or value == "" or value == ():
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name.endswith("_bytes"):
            return human_size(value)
        return iso_time(value) if name.endswith("timestamp_ms") else str(value)
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, tuple):
        return ",".join(
            ":".join(map(str, item)) if isinstance(item, tuple) else _text("", item)
            for item in value
        )
    return printable(str(value))


def _json_lines(tables: Iterable[Table]) -> Iterator[str]:
    """Return the lines of a JSON object with one row per line, so that diff and grep work well."""
    before = "{"
    for table in tables:
        names = [item.name for item in fields(table.row_type)]
        rows = [_json({name: getattr(row, name) for name in names}) for row in table.rows]
        start = f"{before}{_json(table.name)}: "
        if table.single:
            yield start + rows[0]
        elif not rows:
            yield f"{start}[]"
        else:
            yield f"{start}["
            yield from (f"  {row}," for row in rows[:-1])
            yield f"  {rows[-1]}]"
        before = " ,"
    yield "}" if before != "{" else "{}"


def _yaml_lines(tables: Iterable[Table]) -> Iterator[str]:
    """Return block lists with JSON scalars, which are valid YAML."""
    for table in tables:
        names = [item.name for item in fields(table.row_type)]
        yield f"{table.name}:" + ("" if table.rows else " []")
        bullet = "  " if table.single else "- "
        for row in table.rows:
            for index, name in enumerate(names):
                yield f"{'  ' if index else bullet}{name}: {_json(getattr(row, name))}"


def _json(value: object) -> str:
    # Escape unprintable characters one by one. A lone surrogate, from a name that is not UTF-8,
    # could not be printed. YAML forbids some other unprintable characters.
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
