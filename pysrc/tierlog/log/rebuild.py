"""Rebuilds the indexes of a segment from its batches, as a broker's own recovery does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tierlog import _core
from tierlog.arguments import (
    BUFFER,
    FLAG,
    INTEGER,
    SEGMENT_SOURCE,
    having,
    optional,
    takes,
)
from tierlog.batches import BatchTable
from tierlog.types import StopReason

if TYPE_CHECKING:
    from _typeshed import HasFileno
    from typing_extensions import Buffer

__all__ = [
    "DEFAULT_INDEX_INTERVAL_BYTES",
    "DEFAULT_PRODUCER_ID_EXPIRATION_MS",
    "CopyTarget",
    "RebuiltIndexes",
    "rebuild_indexes",
]

DEFAULT_INDEX_INTERVAL_BYTES = 4096
DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000
_WHOLE = frozenset({StopReason.END, StopReason.TORN_TAIL, StopReason.ZERO_TAIL})


class CopyTarget(Protocol):
    """An empty file that tierlog has opened for writing."""

    @property
    def name(self) -> str:
        """The name of the file in errors."""
        ...

    def fileno(self) -> int:
        """The descriptor of the file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltIndexes:
    """The index files of a segment as bytes, and other facts from its batches.

    ``batch_checksums`` has the checksum fields of the first batch and of the batches that the
    offset index names (docs/FORMATS.md, *Objects in a store*). ``transaction_index`` is empty if
    there are no aborted transactions; a broker then has no file. ``producer_snapshot`` is the state
    at ``end_offset``, the offset after the last batch; pass it to the rebuild of the next segment.
    ``leader_epochs`` has (epoch, start offset) for each rise of the epoch. ``bytes_per_epoch`` has
    (epoch, bytes of its batches), with epoch -1 for batches without an epoch.
    ``last_stable_offset`` is the first offset of the oldest open transaction; without one, it is
    the end offset. ``max_timestamp_ms`` is -1 if there are no timestamps. ``max_timestamp_offset``
    is the last offset of the first batch with this timestamp. ``table`` has the batches and the
    reason why the scan stopped. If there are more than ``max_table_rows`` batches, the table has no
    rows, and ``table_complete`` is False.
    """

    offset_index: bytes
    batch_checksums: bytes
    time_index: bytes
    transaction_index: bytes
    producer_snapshot: bytes
    leader_epochs: tuple[tuple[int, int], ...]
    bytes_per_epoch: tuple[tuple[int, int], ...]
    end_offset: int
    last_stable_offset: int
    first_open_transaction_offset: int | None
    max_timestamp_ms: int
    max_timestamp_offset: int
    table: BatchTable
    table_complete: bool = True

    @classmethod
    def of(cls, native: _core.Rebuilt) -> RebuiltIndexes:
        """Return the result of the native core as this class."""
        return cls(
            offset_index=native.offset_index,
            batch_checksums=native.batch_checksums,
            time_index=native.time_index,
            transaction_index=native.transaction_index,
            producer_snapshot=native.producer_snapshot,
            leader_epochs=tuple(native.leader_epochs),
            bytes_per_epoch=tuple(native.bytes_per_epoch),
            end_offset=native.end_offset,
            last_stable_offset=native.last_stable_offset,
            first_open_transaction_offset=native.first_open_transaction_offset,
            max_timestamp_ms=native.max_timestamp_ms,
            max_timestamp_offset=native.max_timestamp_offset,
            table=BatchTable(native.batches),
            table_complete=native.batches_complete,
        )


@takes(
    source=SEGMENT_SOURCE,
    index_interval_bytes=INTEGER,
    base_offset=optional(INTEGER),
    producer_snapshot=optional(BUFFER),
    now_ms=optional(INTEGER),
    producer_id_expiration_ms=INTEGER,
    accept_damage=FLAG,
    hash_bytes=FLAG,
    own_file=FLAG,
    max_table_rows=optional(INTEGER),
    copy_to=optional(having("an open file with a name", "fileno", "name")),
)
def rebuild_indexes(
    source: str | os.PathLike[str] | HasFileno | Buffer,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    *,
    base_offset: int | None = None,
    producer_snapshot: Buffer | None = None,
    now_ms: int | None = None,
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    accept_damage: bool = False,
    hash_bytes: bool = False,
    own_file: bool = False,
    max_table_rows: int | None = None,
    copy_to: CopyTarget | None = None,
) -> RebuiltIndexes:
    """Rebuilds every index of a whole segment (Kafka's ``LogSegment.recover``).

    ``source``, ``hash_bytes`` and ``own_file`` are as in `scan_segment`. Every checksum is checked.
    ``max_table_rows`` limits the memory of the table, which takes 78 bytes per batch.
    ``base_offset`` is the base offset of the segment; by default, that of its first batch.
    ``producer_snapshot`` is the producer state at the base offset; by default, there are no
    producers. With ``now_ms``, the result leaves out producers that have no open transaction and
    were silent for ``producer_id_expiration_ms``.

    A torn tail or a tail of zeros is no error; `RebuiltIndexes.table` reports it. Other damage
    raises ``CorruptDataError``. With ``accept_damage``, the result instead covers the batches
    before the damage, as if a broker had truncated the log there. A bad snapshot, or a batch that
    no broker would have appended, always raises ``CorruptDataError``. ``copy_to`` is an empty file
    that receives every byte read of an open file; with ``hash_bytes``, these are all bytes up to
    the end. An OSError of ``copy_to`` has its ``name``. Releases the interpreter lock."""
    native = _core.rebuild_indexes(
        source,
        index_interval_bytes,
        base_offset,
        producer_snapshot,
        now_ms,
        producer_id_expiration_ms,
        hash_bytes,
        own_file,
        max_table_rows,
        copy_to,
    )
    rebuilt = RebuiltIndexes.of(native)
    table = rebuilt.table
    if table.stop_reason not in _WHOLE and not accept_damage:
        raise table.stop_error(_path_of(source))
    return rebuilt


def _path_of(source: object) -> str | None:
    return os.fsdecode(source) if isinstance(source, str | os.PathLike) else None
