"""Rows as tables and as documents."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tools.output import (
    Format,
    RowStream,
    Table,
    human_size,
    iso_time,
    parse_size,
    render,
    wide_field,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    partition: int
    size_bytes: int
    max_timestamp_ms: int | None
    epochs: tuple[int, ...]
    latency_ms: float = 1.25
    compacted: bool | None = None
    path: str = wide_field()


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    size_bytes: int


ROWS = (
    Row(
        name="orders",
        partition=0,
        size_bytes=1536,
        max_timestamp_ms=1_709_208_000_123,
        epochs=(0, 4),
        path="/a\x1b[31mb\udcff",
    ),
    Row(
        name="é",
        partition=10,
        size_bytes=7,
        max_timestamp_ms=None,
        epochs=(),
        compacted=True,
        path="",
    ),
)
TABLES = (
    Table(name="rows", row_type=Row, rows=ROWS),
    Table(name="more", row_type=Total, rows=(Total(size_bytes=3),), title="More:", optional=True),
)
TOTAL = Table(name="total", row_type=Total, rows=(Total(size_bytes=1 << 40),), single=True)


def shown(as_format: Format, *tables: Table) -> str:
    return "\n".join(render(tables, as_format))


def test_text_is_aligned_and_human() -> None:
    assert shown(Format.TEXT, *TABLES).splitlines() == [
        "NAME    PARTITION     SIZE  MAX-TIMESTAMP             EPOCHS  LATENCY-MS  COMPACTED",
        "orders          0  1.5 KiB  2024-02-29T12:00:00.123Z  0,4           1.25  -",
        "é              10      7 B  -                         -             1.25  yes",
    ]


def test_wide_shows_every_column_and_the_optional_tables() -> None:
    lines = shown(Format.WIDE, *TABLES).splitlines()
    assert lines[0].endswith("COMPACTED  PATH")
    assert lines[1].endswith(r"/a\x1b[31mb\xff")
    assert lines[3:] == ["", "More:", "SIZE", " 3 B"]


def test_an_empty_table_shows_its_heads() -> None:
    assert shown(Format.TEXT, Table(name="t", row_type=Total, rows=())) == "SIZE"


def test_heads_are_decorated_and_nothing_else() -> None:
    lines = list(render(TABLES, Format.TEXT, lambda head: f"<{head}>"))
    assert [line.startswith("<") for line in lines] == [True, False, False]


def test_json_is_one_exact_document() -> None:
    document = json.loads(shown(Format.JSON, *TABLES, TOTAL))
    assert document == {
        "rows": [
            {
                "name": "orders",
                "partition": 0,
                "size_bytes": 1536,
                "max_timestamp_ms": 1_709_208_000_123,
                "epochs": [0, 4],
                "latency_ms": 1.25,
                "compacted": None,
                "path": "/a\x1b[31mb\udcff",
            },
            {
                "name": "é",
                "partition": 10,
                "size_bytes": 7,
                "max_timestamp_ms": None,
                "epochs": [],
                "latency_ms": 1.25,
                "compacted": True,
                "path": "",
            },
        ],
        "more": [{"size_bytes": 3}],
        "total": {"size_bytes": 1 << 40},
    }


@pytest.mark.parametrize("rows", [(), (ROWS[1],), ROWS])
def test_yaml_says_the_same_as_json(rows: tuple[Row, ...]) -> None:
    yaml = importlib.import_module("yaml")
    tables = (Table(name="rows", row_type=Row, rows=rows), TOTAL)
    assert yaml.safe_load(shown(Format.YAML, *tables)) == json.loads(shown(Format.JSON, *tables))


def test_no_tables_make_an_empty_document() -> None:
    assert json.loads(shown(Format.JSON)) == {}


@given(st.text())
def test_any_text_survives_a_document_and_is_harmless_in_a_table(text: str) -> None:
    row = Row(name=text, partition=0, size_bytes=0, max_timestamp_ms=None, epochs=(), path=text)
    table = Table(name="rows", row_type=Row, rows=(row,))
    document = shown(Format.JSON, table)
    document.encode("utf-8")
    assert json.loads(document)["rows"][0]["name"] == text
    assert all(line.isprintable() for line in render([table], Format.WIDE))


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1_048_524, "1023.9 KiB"),
        (1_048_575, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 62, "4.0 EiB"),
    ],
)
def test_human_sizes(size_bytes: int, text: str) -> None:
    assert human_size(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("10485760", 10 << 20),
        (" 512 B ", 512),
        ("1b", 1),
        ("3K", 3 << 10),
        ("10MiB", 10 << 20),
        ("10 mib", 10 << 20),
        ("1g", 1 << 30),
        ("2TiB", 2 << 40),
        ("1P", 1 << 50),
        ("7EiB", 7 << 60),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1.5M", "10MB", "10 M iB", "1e6", "0x10", "\u0663", "1" * 20, "1\nM"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes as in 10485760"):
        parse_size(text)


def test_times_beyond_any_calendar_stay_numbers() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert iso_time(253_402_300_800_000) == "253402300800000"
    assert iso_time(-1) == "-1"


def test_rows_that_come_one_by_one() -> None:
    stream = RowStream(Row, Format.TEXT)
    first = list(stream.lines(ROWS[1]))
    assert len(first) == 2
    assert first[0].split()[:2] == ["NAME", "PARTITION"]
    assert "PATH" not in first[0]
    long_name = replace(ROWS[1], name="a-much-longer-name")
    (wider,) = stream.lines(long_name)
    (after,) = stream.lines(ROWS[1])
    assert wider.index("7 B") == after.index("7 B") > first[1].index("7 B")
    (heads, _) = RowStream(Row, Format.WIDE).lines(ROWS[0])
    assert heads.endswith("PATH")
    (line,) = RowStream(Row, Format.JSON).lines(ROWS[0])
    assert json.loads(line) == json.loads(shown(Format.JSON, TABLES[0]))["rows"][0]
    as_yaml = [line for row in ROWS for line in RowStream(Row, Format.YAML).lines(row)]
    assert as_yaml == shown(Format.YAML, TABLES[0]).splitlines()[1:]
