"""Segments and remoteLogIndexes to rows: functions from Arrow batches to Arrow batches.

Both take a frame with the columns ``path`` (string) and ``content`` (binary), as Spark's own
``binaryFile`` source has them, and go over it with ``DataFrame.mapInArrow``. Damage is a row, not
a failed job: Spark would scan everything again for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

import tierlog

__all__ = ["ENTRY_SCHEMA", "SCAN_SCHEMA", "decode_remote_log_indexes", "scan_segments"]

# One row per batch; a last row with a null position where a segment does not end cleanly.
SCAN_SCHEMA = (
    "path string, position long, base_offset long, last_offset long, size_bytes int, "
    "base_timestamp_ms long, max_timestamp_ms long, leader_epoch int, producer_id long, "
    "producer_epoch short, base_sequence int, attributes short, record_count int, "
    "stop_reason string, stop_position long"
)
ENTRY_SCHEMA = (
    "path string, position long, first_offset long, last_offset long, first_timestamp_ms long, "
    "last_timestamp_ms long, data_length int, rdi binary, error string"
)
_BATCH_COLUMNS = [column.split()[0] for column in SCAN_SCHEMA.split(", ")][1:-2]
_ENTRY_COLUMNS = [column.split()[0] for column in ENTRY_SCHEMA.split(", ")][1:-2]


def scan_segments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The record batches of segments, checksums compared; rows as in ``SCAN_SCHEMA``."""
    for path, content in _files(batches):
        table = tierlog.scan_segment(content)
        ended = table.stop_reason is tierlog.StopReason.END
        columns = {name: pa.array(getattr(table, name)) for name in _BATCH_COLUMNS}
        rows = len(table)
        if not ended:
            columns = {
                name: pa.concat_arrays([column, pa.nulls(1, column.type)])
                for name, column in columns.items()
            }
        stops: list[str | None] = [None] * rows + ([] if ended else [table.stop_reason.value])
        places: list[int | None] = [None] * rows + ([] if ended else [table.stop_position])
        yield pa.RecordBatch.from_pydict(
            {
                "path": pa.array([path] * len(stops), pa.string()),
                **columns,
                "stop_reason": pa.array(stops, pa.string()),
                "stop_position": pa.array(places, pa.int64()),
            }
        )


def decode_remote_log_indexes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The verified entries of remoteLogIndexes; rows as in ``ENTRY_SCHEMA``.

    An index that is damaged anywhere gives one row with ``error`` and nothing else.
    """
    for path, content in _files(batches):
        try:
            entries = tierlog.decode_remote_log_index(content)
        except tierlog.CorruptDataError as error:
            yield _error_row(path, str(error))
            continue
        rows = len(entries)
        yield pa.RecordBatch.from_pydict(
            {
                "path": pa.array([path] * rows, pa.string()),
                **{name: pa.array(getattr(entries, name)) for name in _ENTRY_COLUMNS},
                "rdi": pa.array([entries.rdi[row] for row in range(rows)], pa.binary()),
                "error": pa.nulls(rows, pa.string()),
            }
        )


def _files(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Buffer]]:
    """Path and content of every row; the content stays where Arrow has it."""
    for batch in batches:
        content = batch.column("content")
        for path, value in zip(batch.column("path").to_pylist(), content, strict=True):
            yield path, value.as_buffer()


def _error_row(path: str, message: str) -> pa.RecordBatch:
    types = {
        "position": pa.int64(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "first_timestamp_ms": pa.int64(),
        "last_timestamp_ms": pa.int64(),
        "data_length": pa.int32(),
        "rdi": pa.binary(),
    }
    return pa.RecordBatch.from_pydict(
        {
            "path": pa.array([path], pa.string()),
            **{name: pa.nulls(1, kind) for name, kind in types.items()},
            "error": pa.array([message], pa.string()),
        }
    )
