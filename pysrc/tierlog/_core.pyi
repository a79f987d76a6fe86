"""The native core. The modules of `tierlog` wrap its columns in numpy arrays."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt
from _typeshed import HasFileno
from typing_extensions import Buffer, CapsuleType

__all__ = [
    "_C_API",
    "BatchSummary",
    "Batches",
    "Column",
    "KeyOffsets",
    "LogCleaner",
    "ReadFile",
    "Rebuilt",
    "Records",
    "RemoteLogIndex",
    "SegmentIndex",
    "SegmentIndexer",
    "TableRows",
    "TextTemplate",
    "Views",
    "assign_offsets",
    "batch_start",
    "check_new_batches",
    "check_records",
    "collect_aborted",
    "crc32c",
    "decode_records",
    "decode_remote_log_index",
    "encode_batch_runs",
    "encode_offset_index",
    "encode_remote_log_index",
    "encode_time_index",
    "find_batch",
    "first_bad_row",
    "join_pooled",
    "lookup_offset_index",
    "lookup_time_index",
    "lookup_upper_bound",
    "parse_offset_index",
    "parse_producer_snapshot",
    "parse_time_index",
    "parse_transaction_index",
    "read_pooled",
    "read_remote_entry",
    "read_rows",
    "rebuild_indexes",
    "release_pooled_memory",
    "row_checksum",
    "row_columns",
    "scan_segment",
    "sync_files",
]

_Longs: TypeAlias = Buffer | npt.NDArray[np.int64]
_Ints: TypeAlias = Buffer | npt.NDArray[np.int32]

# Magic, attributes, bytes, records, offsets, producer id, producer epoch, first sequence, whether
# the offset deltas are 0, 1, 2 ..., smallest and largest timestamp, records without a key.
_NewBatch: TypeAlias = tuple[
    int, int, int, int, int, int, int, int, bool, int | None, int | None, int
]

class _CopyTarget(HasFileno, Protocol):
    @property
    def name(self) -> str: ...

_C_API: CapsuleType

@final
class Column:
    """A read-only one-dimensional buffer; ``numpy.asarray`` wraps it without a copy."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class BatchSummary:
    """Totals over all batches of a scan."""

    @property
    def records(self) -> int: ...
    @property
    def first_timestamp_ms(self) -> int | None: ...
    @property
    def has_transactions(self) -> bool: ...
    @property
    def codecs(self) -> int: ...
    @property
    def end_position(self) -> int: ...
    @property
    def run(self) -> tuple[int, int, int, int] | None: ...

@final
class Batches:
    """The columns of a scan and the reason why it stopped."""

    def __len__(self) -> int: ...
    def summary(self) -> BatchSummary: ...
    def columns(self) -> list[tuple[str, Column]]: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def stop_position(self) -> int: ...
    @property
    def stop_expected(self) -> str: ...
    @property
    def stop_found(self) -> str: ...
    @property
    def range_crc32c(self) -> int | None: ...

@final
class Views:
    """A column of byte strings in Arrow's binary view layout."""

    def __len__(self) -> int: ...
    @property
    def views(self) -> Column: ...
    @property
    def validity(self) -> Column | None: ...
    @property
    def null_count(self) -> int: ...
    def to_list(self, buffers: list[Buffer], start: int, end: int) -> list[bytes | None]: ...
    def to_binary(self, buffers: list[Buffer], start: int, end: int) -> tuple[Column, Column]: ...
    def item(self, buffers: list[Buffer], row: int) -> bytes | None: ...

@final
class Records:
    """The columns of a decode."""

    @property
    def offset(self) -> Column: ...
    @property
    def timestamp_ms(self) -> Column: ...
    @property
    def keys(self) -> Views: ...
    @property
    def values(self) -> Views: ...
    @property
    def header_list_offsets(self) -> Column | None: ...
    @property
    def header_keys(self) -> Views: ...
    @property
    def header_values(self) -> Views: ...
    @property
    def batches(self) -> Batches: ...
    @property
    def batch_starts(self) -> Column: ...
    @property
    def data_buffers(self) -> list[Buffer]: ...

@final
class ReadFile:
    """An open file that several reads share. It is closed when the last read releases it."""

    def __new__(cls, descriptor: int) -> Self: ...
    def fileno(self) -> int: ...

@final
class SegmentIndex:
    """The checked offset index of a segment, its batch checksums, and the segment's bounds."""

    def __new__(
        cls,
        entries: Buffer,
        checksums: Buffer,
        start_offset: int,
        end_offset: int,
        size_bytes: int,
    ) -> Self: ...
    def find_mismatch(
        self, data: Buffer, data_position: int, positions: Buffer
    ) -> tuple[int, int, int] | None: ...
    def span(self, offset: int, reach_bytes: int) -> tuple[int, int, int, int]: ...
    def read(
        self,
        file: ReadFile,
        reach_bytes: int,
        offset: int,
        last_offset: int,
        max_bytes: int,
        minimum_one: bool,
    ) -> tuple[bytes | None, int, int, int, int]: ...
    def answer(
        self,
        data: Buffer,
        position: int,
        first_last_offset: int,
        offset: int,
        last_offset: int,
        max_bytes: int,
        minimum_one: bool,
    ) -> tuple[int, int, int, int] | None: ...

def batch_start(data: Buffer) -> tuple[int | None, int | None, int | None, int | None]: ...
def crc32c(data: Buffer, seed: int = 0) -> int: ...
def scan_segment(
    source: str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any],
    start: int,
    end: int | None,
    verify_crc: bool,
    hash_bytes: bool,
    own_file: bool,
) -> Batches: ...
def decode_records(
    source: str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any],
    start: int,
    end: int | None,
    verify_crc: bool,
    include_control: bool,
    max_decompressed_bytes: int,
    budget_bytes: int | None,
) -> Records: ...
def check_records(
    source: str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any],
    start: int,
    end: int | None,
    verify_crc: bool,
    max_decompressed_bytes: int,
) -> Batches: ...

@final
class TextTemplate:
    """A compiled template for records. A part is bytes, printed unchanged, or a token name."""

    def __new__(cls, parts: list[bytes | str]) -> Self: ...
    def format(
        self,
        first: int,
        limit_bytes: int,
        *,
        offset: _Longs,
        timestamp_ms: _Longs,
        keys: Views,
        values: Views,
        strings: int,
        header_ends: _Ints | None,
        header_keys: Views,
        header_values: Views,
        buffers: list[Any],
        batches: Batches,
        batch_starts: _Longs,
    ) -> tuple[Column, int]: ...

def row_checksum(row: tuple[object, ...]) -> int: ...
def first_bad_row(rows: list[tuple[Any, ...]]) -> int | None: ...
def row_columns(
    batches: Batches, starts: Buffer | npt.NDArray[Any], timestamp_ms: Buffer | npt.NDArray[Any]
) -> tuple[Column, Column, Column, Column, Column, Column]: ...

@final
class RemoteLogIndex:
    """A verified remoteLogIndex as columns."""

    def __len__(self) -> int: ...
    def columns(self) -> list[tuple[str, Column]]: ...
    def lookup_offset(self, target_offset: int) -> int: ...
    def lookup_timestamp(self, target_ms: int) -> int: ...
    @property
    def valid_length(self) -> int: ...
    @property
    def has_trailer(self) -> bool: ...
    @property
    def torn(self) -> tuple[str, str, str] | None: ...

@final
class Rebuilt:
    """Every index of a segment as bytes, and further results of the rebuild."""

    @property
    def offset_index(self) -> bytes: ...
    @property
    def batch_checksums(self) -> bytes: ...
    @property
    def time_index(self) -> bytes: ...
    @property
    def transaction_index(self) -> bytes: ...
    @property
    def producer_snapshot(self) -> bytes: ...
    @property
    def leader_epochs(self) -> list[tuple[int, int]]: ...
    @property
    def bytes_per_epoch(self) -> list[tuple[int, int]]: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def first_open_transaction_offset(self) -> int | None: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def batches_complete(self) -> bool: ...
    @property
    def batches(self) -> Batches: ...

@final
class SegmentIndexer:
    """Builds the indexes and the producer state of a segment while batches are appended to it."""

    def __new__(
        cls, base_offset: int, index_interval_bytes: int, producer_snapshot: Buffer | None
    ) -> Self: ...
    def push(
        self,
        source: str | os.PathLike[str] | HasFileno | Buffer,
        position: int,
        verify_crc: bool,
    ) -> Batches: ...
    def take_entries(self) -> list[bytes]: ...
    def roll(self, now_ms: int, expiration_ms: int) -> tuple[bytes, bytes]: ...
    def producer_snapshot(self) -> bytes: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def first_open_transaction_offset(self) -> int | None: ...
    @property
    def max_timestamp_ms(self) -> int: ...

# Producer id, first offset, last offset, last stable offset.
_Aborted: TypeAlias = tuple[int, int, int, int]

@final
class KeyOffsets:
    """The last offset of each key of a log's dirty section, in bounded memory."""

    def __new__(
        cls,
        budget_bytes: int,
        expected_keys: int,
        max_decompressed_bytes: int,
        aborted: Sequence[_Aborted],
    ) -> Self: ...
    def add_segment(
        self, path: str | os.PathLike[str], first_offset: int, next_base_offset: int
    ) -> bool: ...
    def __len__(self) -> int: ...
    @property
    def latest_offset(self) -> int: ...

@final
class LogCleaner:
    """Copies the segments of one round of compaction, in order."""

    def __new__(
        cls,
        now_ms: int,
        delete_retention_ms: int,
        end_offset: int,
        max_decompressed_bytes: int,
        aborted: Sequence[_Aborted],
        last_records: dict[int, tuple[int | None, int]],
    ) -> Self: ...
    def copy(
        self, path: str | os.PathLike[str], position: int, step_bytes: int, keys: KeyOffsets
    ) -> tuple[bytes, int]: ...
    def take_transaction_index(self) -> bytes: ...

def assign_offsets(
    batches: Buffer,
    base_offset: int,
    leader_epoch: int,
    max_timestamps_ms: list[int],
    log_append_time: bool,
) -> bytes: ...
def check_new_batches(
    batches: Buffer, include_control: bool, max_decompressed_bytes: int, budget_bytes: int
) -> tuple[list[_NewBatch], str, int, str]: ...
def find_batch(
    source: str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any],
    start: int,
    offset: int,
    next_base_offset: int | None,
) -> int | None: ...
@overload
def encode_remote_log_index(
    first_offset: _Longs,
    last_offset: _Longs,
    first_timestamp_ms: _Longs,
    last_timestamp_ms: _Longs,
    data_length: _Longs,
    rdi: list[bytes] | tuple[bytes, ...],
    rdi_start: None = None,
    rdi_length: None = None,
) -> bytes: ...
@overload
def encode_remote_log_index(
    first_offset: _Longs,
    last_offset: _Longs,
    first_timestamp_ms: _Longs,
    last_timestamp_ms: _Longs,
    data_length: _Longs,
    rdi: Buffer,
    rdi_start: _Longs,
    rdi_length: _Longs,
) -> bytes: ...
def encode_batch_runs(
    position: _Longs,
    size_bytes: _Ints,
    base_offset: _Longs,
    last_offset: _Longs,
    base_timestamp_ms: _Longs,
    max_timestamp_ms: _Longs,
    key: str,
    group_bytes: int,
) -> bytes: ...
def decode_remote_log_index(data: Buffer, recover: bool = False) -> RemoteLogIndex: ...
def read_remote_entry(
    data: Buffer, position: int
) -> tuple[int, int, int, int, int, int, bytes]: ...
def parse_offset_index(
    data: Buffer, base_offset: int, tail: str = "zeros"
) -> tuple[Column, Column, int]: ...
def parse_time_index(
    data: Buffer, base_offset: int, tail: str = "zeros"
) -> tuple[Column, Column, int]: ...
def parse_transaction_index(data: Buffer, base_offset: int) -> list[tuple[str, Column]]: ...
def parse_producer_snapshot(data: Buffer) -> list[tuple[str, Column]]: ...
def collect_aborted(
    data: Buffer, base_offset: int, from_offset: int, upper_bound_offset: int
) -> tuple[list[tuple[int, int, int, int]], bool]: ...
def lookup_offset_index(data: Buffer, base_offset: int, target_offset: int) -> tuple[int, int]: ...
def lookup_upper_bound(
    data: Buffer, base_offset: int, end_position: int
) -> tuple[int, int] | None: ...
def lookup_time_index(data: Buffer, base_offset: int, target_ms: int) -> tuple[int, int]: ...
def encode_offset_index(offset: _Longs, position: _Longs, base_offset: int) -> bytes: ...
def encode_time_index(timestamp_ms: _Longs, offset: _Longs, base_offset: int) -> bytes: ...
def rebuild_indexes(
    source: str | os.PathLike[str] | HasFileno | Buffer | npt.NDArray[Any],
    index_interval_bytes: int,
    base_offset: int | None,
    producer_snapshot: Buffer | None,
    now_ms: int | None,
    producer_id_expiration_ms: int,
    hash_bytes: bool,
    own_file: bool,
    max_table_rows: int | None,
    copy_to: _CopyTarget | None = None,
) -> Rebuilt: ...

@final
class TableRows:
    """Table rows as columns."""

    @property
    def offset(self) -> Column: ...
    @property
    def columns(self) -> tuple[Column, Column, Column, Column, Column, Column]: ...
    @property
    def keys(self) -> tuple[Column, Column, Column | None] | None: ...
    @property
    def values(self) -> tuple[Column, Column, Column | None] | None: ...
    @property
    def stop_position(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def is_last(self) -> bool: ...

def read_rows(
    source: HasFileno,
    position: int,
    size_bytes: int,
    rows: int,
    offsets: tuple[int, int],
    batch_offsets: tuple[int, int],
    keys: bool,
    values: bool,
) -> TableRows: ...
def read_pooled(descriptor: int, position: int, size_bytes: int) -> Column:
    """Read up to `size_bytes` of an open file into a pooled buffer.

    The buffer returns to the pool when its last view is released."""

def join_pooled(pieces: Iterable[Buffer], size_bytes: int) -> Column:
    """Join all ranges into one pooled buffer. Raises ValueError for more than `size_bytes`."""

def sync_files(files: dict[str, int]) -> None:
    """Sync several open files at a time, each once. `files` maps names to descriptors.

    An OSError has the name of the first file that failed."""

def release_pooled_memory() -> int:
    """Free the pooled memory of columns and reads. Return its size in bytes."""
