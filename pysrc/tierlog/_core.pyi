"""The native core. Users reach it through the modules that wrap it in numpy columns."""

import os
from typing import final

from _typeshed import HasFileno
from typing_extensions import Buffer

__all__ = [
    "Batches",
    "Column",
    "Records",
    "Views",
    "crc32",
    "crc32c",
    "decode_records",
    "scan_segment",
]

@final
class Column:
    """A read-only one-dimensional buffer; ``numpy.asarray`` wraps it without a copy."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Batches:
    """The columns of a scan and why it stopped."""

    def __len__(self) -> int: ...
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

def crc32(data: Buffer, seed: int = 0) -> int: ...
def crc32c(data: Buffer, seed: int = 0) -> int: ...
def scan_segment(
    source: str | os.PathLike[str] | HasFileno | Buffer,
    start: int,
    end: int | None,
    verify_crc: bool,
    hash_bytes: bool,
    own_file: bool,
) -> Batches: ...
def decode_records(
    source: str | os.PathLike[str] | HasFileno | Buffer,
    start: int,
    end: int | None,
    verify_crc: bool,
    include_control: bool,
    max_decompressed_bytes: int,
) -> Records: ...
