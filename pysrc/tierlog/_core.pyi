"""The native core. Users reach it through the modules that wrap it in numpy columns."""

import os
from typing import final

from _typeshed import HasFileno
from typing_extensions import Buffer

__all__ = ["Batches", "Column", "crc32", "crc32c", "scan_segment"]

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
