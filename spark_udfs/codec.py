"""Turns segments and remoteLogIndexes into rows, with functions on Arrow data and without Spark.

`scan_segments` and `decode_remote_log_indexes` take batches with the columns ``path`` (string) and
``content`` (binary) of Spark's ``binaryFile`` source, through ``DataFrame.mapInArrow``. The other
functions take one column; `spark_udfs.udfs` registers them.

Damage becomes a row and does not fail the job, since Spark would repeat a failed scan, which would
fail again. The function returns the sound rows before the damage. The column ``quarantine`` has the
reason and the position of the damage; it is null if there is no damage. A null value gives a null
result.

A segment is a binary value or the path of a file that the worker can open. A worker reads a file a
few MiB at a time, but Spark loads the whole content of a binary value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

import tierlog
from tierlog.log.files import SegmentHandle
from tierlog.log.records import decode_pieces

__all__ = [
    "DECODED",
    "DECODE_TYPE",
    "ENCODED",
    "ENCODE_TYPE",
    "ENTRY_SCHEMA",
    "RECORDS",
    "RECORDS_TYPE",
    "SCANNED",
    "SCAN_SCHEMA",
    "SCAN_TYPE",
    "VERIFIED",
    "VERIFY_TYPE",
    "decode_column",
    "decode_remote_log_indexes",
    "encode_column",
    "records_column",
    "scan_column",
    "scan_segments",
    "verify_column",
]

_INT16, _INT32, _INT64 = pa.int16(), pa.int32(), pa.int64()
_TEXT, _BYTES = pa.string(), pa.binary()
_QUARANTINE = pa.struct({"reason": _TEXT, "position": _INT64, "expected": _TEXT, "found": _TEXT})
_BATCH = pa.struct(
    {
        "position": _INT64,
        "base_offset": _INT64,
        "last_offset": _INT64,
        "size_bytes": _INT32,
        "base_timestamp_ms": _INT64,
        "max_timestamp_ms": _INT64,
        "leader_epoch": _INT32,
        "producer_id": _INT64,
        "producer_epoch": _INT16,
        "base_sequence": _INT32,
        "attributes": _INT16,
        "record_count": _INT32,
    }
)
_ENTRY = pa.struct(
    {
        "position": _INT64,
        "first_offset": _INT64,
        "last_offset": _INT64,
        "first_timestamp_ms": _INT64,
        "last_timestamp_ms": _INT64,
        "data_length": _INT32,
        "rdi": _BYTES,
    }
)
_HEADER = pa.struct({"key": _TEXT, "value": _BYTES})
_RECORD = pa.struct(
    {
        "offset": _INT64,
        "timestamp_ms": _INT64,
        "key": _BYTES,
        "value": _BYTES,
        "headers": pa.list_(_HEADER),
    }
)
_VERIFIED = {
    "ok": pa.bool_(),
    "base_offset": _INT64,
    "last_offset": _INT64,
    "batches": _INT64,
    "records": _INT64,
    "size_bytes": _INT64,
    "crc32c": _INT64,
}

# One struct per segment, with a list of its batches.
SCANNED = pa.struct({"batches": pa.list_(_BATCH), "quarantine": _QUARANTINE})
# Records in the order of the log, without control records. timestamp_ms is -1 if a record has none.
RECORDS = pa.struct({"records": pa.list_(_RECORD), "quarantine": _QUARANTINE})
# Totals of the sound part of a segment. crc32c is the checksum of the whole segment; null unless
# the whole segment is sound.
VERIFIED = pa.struct({**_VERIFIED, "quarantine": _QUARANTINE})
DECODED = pa.struct({"entries": pa.list_(_ENTRY), "quarantine": _QUARANTINE})
# The input is an array of structs with the fields of an entry; ``position`` may be missing.
ENCODED = pa.struct({"data": _BYTES, "quarantine": _QUARANTINE})

_SQL_TYPES = {
    pa.bool_(): "boolean",
    _INT16: "short",
    _INT32: "int",
    _INT64: "long",
    _TEXT: "string",
    _BYTES: "binary",
}


def _sql_type(kind: pa.DataType) -> str:
    """Return a type as text of Spark's SQL."""
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    return f"struct<{_sql_columns(kind)}>" if pa.types.is_struct(kind) else _SQL_TYPES[kind]


def _sql_columns(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{one.name} {_sql_type(one.type)}" for one in fields)


# The types above, as text of SQL.
SCAN_TYPE, RECORDS_TYPE, VERIFY_TYPE, DECODE_TYPE, ENCODE_TYPE = map(
    _sql_type, (SCANNED, RECORDS, VERIFIED, DECODED, ENCODED)
)
# One row per batch, and a last row with a null position for a segment that does not end cleanly.
SCAN_SCHEMA = f"path string, {_sql_columns(_BATCH)}, stop_reason string, stop_position long"
ENTRY_SCHEMA = f"path string, {_sql_columns(_ENTRY)}, error string"
# A row of Spark has at most 2 GiB. This limit keeps the memory of a worker far below 2 GiB.
_MAX_RECORDS_BYTES = 512 << 20
_Lists = tuple[list[Any], "_Quarantine | None"]


def scan_segments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the record batches of segments, with rows as in ``SCAN_SCHEMA``. Every checksum is
    checked.

    For a file that cannot be read, the column ``stop_reason`` has the value ``unreadable``.
    """
    for batch in batches:
        paths = batch.column("path")
        segments = batch.column("content") if "content" in batch.schema.names else paths
        for path, segment in zip(paths.to_pylist(), segments, strict=True):
            parts, problem = _guarded(_scan, segment, [])
            yield _scan_rows(path, parts, problem)


def _scan_rows(path: str, parts: list[pa.Array], stop: _Quarantine | None) -> pa.RecordBatch:
    """Return the batches of a segment, and one more row if the segment does not end cleanly."""
    reasons = [] if stop is None else [stop.reason]
    places = [] if stop is None else [stop.position]
    rows = pa.concat_arrays([*parts, pa.nulls(len(reasons), _BATCH)])
    before = len(rows) - len(reasons)
    return pa.RecordBatch.from_pydict(
        {
            "path": pa.repeat(path, len(rows)),
            **_columns(rows),
            "stop_reason": pa.concat_arrays(
                [pa.nulls(before, pa.string()), pa.array(reasons, pa.string())]
            ),
            "stop_position": pa.concat_arrays(
                [pa.nulls(before, pa.int64()), pa.array(places, pa.int64())]
            ),
        }
    )


def decode_remote_log_indexes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the verified entries of remoteLogIndexes, with rows as in ``ENTRY_SCHEMA``.

    A damaged index gives one row, in which only ``path`` and ``error`` are set.
    """
    for batch in batches:
        paths = batch.column("path").to_pylist()
        for path, content in zip(paths, batch.column("content"), strict=True):
            error = None
            try:
                (entries,), _ = _entries(content)
            except tierlog.CorruptDataError as found:
                entries, error = pa.nulls(1, _ENTRY), str(found)
            rows = len(entries)
            yield pa.RecordBatch.from_pydict(
                {
                    "path": pa.array([path] * rows, _TEXT),
                    **_columns(entries),
                    "error": pa.array([error] * rows, _TEXT),
                }
            )


def _columns(rows: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields of structs as columns."""
    return dict(zip([field.name for field in rows.type], rows.flatten(), strict=True))


# -- one column in, one out


class _Quarantine(NamedTuple):
    """The reason why a part of a segment is missing. The class has the same fields as the struct
    ``quarantine``."""

    reason: str
    position: int
    expected: str
    found: str


def scan_column(segments: pa.Array) -> pa.Array:
    """Return the record batches of each segment as ``SCAN_TYPE``. Every checksum is checked."""
    return _list_column(segments, "batches", _BATCH, _scan)


def records_column(segments: pa.Array) -> pa.Array:
    """Return the records of each segment as ``RECORDS_TYPE``, at most 512 MiB per segment."""
    return _list_column(segments, "records", _RECORD, _records)


def decode_column(indexes: pa.Array) -> pa.Array:
    """Return the entries of each remoteLogIndex as ``DECODE_TYPE``. A damaged index has no
    entries."""
    return _list_column(indexes, "entries", _ENTRY, _entries)


def verify_column(segments: pa.Array) -> pa.Array:
    """Return the totals of the sound part of each segment, and whether the whole segment is sound,
    as ``VERIFY_TYPE``."""
    rows, problems = [], []
    for value in segments:
        row, problem = _guarded(_verify, value, {})
        rows.append({"ok": problem is None, **row})
        problems.append(problem)
    fields = {
        name: pa.array([row.get(name) for row in rows], kind) for name, kind in _VERIFIED.items()
    }
    return _with_quarantine(segments, fields, problems)


def encode_column(entries: pa.Array) -> pa.Array:
    """Return, for each array of entries, a remoteLogIndex that has no trailer, as
    ``ENCODE_TYPE``."""
    encoded, problems = [], []
    for value in entries:
        data, problem = _guarded(_encode, value, None)
        encoded.append(data)
        problems.append(problem)
    return _with_quarantine(entries, {"data": pa.array(encoded, pa.binary())}, problems)


def _list_column(
    column: pa.Array, name: str, item: pa.DataType, work: Callable[[Any], _Lists]
) -> pa.Array:
    """Return, for every value of the column, a struct of a list and its quarantine."""
    pieces: list[Any] = []
    lengths, problems = [0], []
    for value in column:
        parts, problem = _guarded(work, value, [])
        pieces += parts
        lengths.append(sum(map(len, parts)))
        problems.append(problem)
    items = pa.concat_arrays(pieces) if pieces else pa.array([], item)
    starts = pa.array(np.cumsum(lengths), pa.int32())
    return _with_quarantine(column, {name: pa.ListArray.from_arrays(starts, items)}, problems)


def _with_quarantine(
    column: pa.Array, fields: dict[str, pa.Array], problems: list[_Quarantine | None]
) -> pa.Array:
    told = pa.array([one and one._asdict() for one in problems], _QUARANTINE)
    return pa.StructArray.from_arrays(
        [*fields.values(), told], names=[*fields, "quarantine"], mask=column.is_null()
    )


def _guarded(
    work: Callable[[Any], Any], value: Any, nothing: Any
) -> tuple[Any, _Quarantine | None]:
    """Return the result of `work` for a value, or `nothing` and the reason when its bytes are
    damaged."""
    if not value.is_valid:
        return nothing, None
    try:
        result: tuple[Any, _Quarantine | None] = work(value)
        return result
    except tierlog.CorruptDataError as error:
        return nothing, _of_error(error)
    except OSError as error:
        found = error.strerror or str(error)
        return nothing, _Quarantine("unreadable", 0, "a file that the worker can read", found)
    except (ValueError, OverflowError) as error:
        return nothing, _Quarantine("bad_value", 0, "a value of this kind", str(error))


def _of_error(error: tierlog.CorruptDataError) -> _Quarantine:
    return _Quarantine(error.reason, error.position, error.expected, error.found)


@contextmanager
def _opened(value: Any) -> Iterator[Any]:
    """Open a binary value in Arrow's memory without a copy, or open the file at a path."""
    if not pa.types.is_string(value.type) and not pa.types.is_large_string(value.type):
        yield value.as_buffer()
        return
    text = value.as_py()
    parts = urlsplit(text)
    if parts.scheme and parts.scheme != "file":
        raise ValueError(f"expected a path or file: URL, found {text[:200]!r}")
    with SegmentHandle(unquote(parts.path) if parts.scheme else text) as handle:
        yield handle


def _scan(value: Any) -> _Lists:
    with _opened(value) as source:
        table = tierlog.scan_segment(source)
    return [_batches(table)], _stop(table)


def _batches(table: tierlog.BatchTable) -> pa.Array:
    names = [field.name for field in _BATCH]
    columns = [pa.array(getattr(table, name), _BATCH.field(name).type) for name in names]
    return pa.StructArray.from_arrays(columns, fields=list(_BATCH))


def _stop(table: tierlog.BatchTable) -> _Quarantine | None:
    return None if table.stop_reason is tierlog.StopReason.END else _of_error(table.stop_error())


def _verify(value: Any) -> tuple[dict[str, Any], _Quarantine | None]:
    with _opened(value) as source:
        table = tierlog.scan_segment(source, hash_bytes=True)
    rows = len(table)
    problem = _stop(table)
    return {
        "base_offset": int(table.base_offset[0]) if rows else None,
        "last_offset": int(table.last_offset[-1]) if rows else None,
        "batches": rows,
        "records": int(table.record_count.sum(dtype=np.int64)),
        "size_bytes": table.stop_position,
        "crc32c": table.range_crc32c if problem is None else None,
    }, problem


def _records(value: Any) -> _Lists:
    with _opened(value) as source:
        return _records_of(source)


def _records_of(source: Any) -> _Lists:
    table = tierlog.scan_segment(source)
    pieces: list[Any] = []
    held_bytes = 0
    try:
        for records in decode_pieces(source, 0, table.stop_position, verify_crc=False):
            piece = _record_array(records)
            held_bytes += piece.nbytes
            if held_bytes > _MAX_RECORDS_BYTES:
                expected = f"at most {_MAX_RECORDS_BYTES} bytes of records in one value"
                position = int(records.batches.position[0])
                return pieces, _Quarantine("too_large", position, expected, "more")
            pieces.append(piece)
            del records, piece
    except tierlog.CorruptDataError as error:
        return pieces, _of_error(error)
    return pieces, _stop(table)


def _record_array(records: tierlog.RecordColumns) -> pa.Array:
    headers = records.headers
    header = pa.StructArray.from_arrays(
        [_text(headers.keys.to_binary()), headers.values.to_binary()], fields=list(_HEADER)
    )
    return pa.StructArray.from_arrays(
        [
            pa.array(records.offset),
            pa.array(records.timestamp_ms),
            records.keys.to_binary(),
            records.values.to_binary(),
            pa.ListArray.from_arrays(pa.array(headers.list_offsets), header),
        ],
        fields=list(_RECORD),
    )


def _text(keys: pa.Array) -> pa.Array:
    """Return header keys as text. Bytes that are not UTF-8 are replaced, as Kafka's own client
    does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _entries(value: Any) -> _Lists:
    entries = tierlog.decode_remote_log_index(value.as_buffer())
    *numbers, rdi = _ENTRY
    columns = [pa.array(getattr(entries, one.name)) for one in numbers]
    rdis = pa.array(list(entries.rdi), rdi.type)
    return [pa.StructArray.from_arrays([*columns, rdis], fields=list(_ENTRY))], None


def _encode(value: Any) -> tuple[bytes, None]:
    entries = value.values
    columns = []
    for name in [field.name for field in _ENTRY if field.name != "position"]:
        column = entries.field(name)
        if column.null_count or entries.null_count:
            raise ValueError(f"an entry has no {name}")
        columns.append(column.to_pylist() if name == "rdi" else column.to_numpy())
    return tierlog.encode_remote_log_index(*columns), None
