"""The indexes of a segment, rebuilt from its batches as a broker's own recovery does."""

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
    """An empty file that tierlog has open for writing."""

    @property
    def name(self) -> str:
        """How errors call it."""
        ...

    def fileno(self) -> int:
        """Its descriptor."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltIndexes:
    """The index files of a segment as bytes, and other facts from its batches.

    ``batch_checksums`` holds the checksum fields of the first batch and of those that the offset
    index points at (docs/FORMATS.md, *Objects in a store*).
    ``transaction_index`` is empty without aborted transactions; a broker has no file then.
    ``producer_snapshot`` is the state at ``end_offset``, the offset after the last batch; give it
    to the rebuild of the next segment. ``leader_epochs`` holds (epoch, start offset) wherever the
    epoch rises, ``bytes_per_epoch`` (epoch, bytes of its batches), -1 for batches without one.
    ``last_stable_offset`` is the first offset of the oldest open transaction, else the end offset.
    ``max_timestamp_ms`` is -1 without any; ``max_timestamp_offset`` is the last offset of the first
    batch that has it. ``table`` holds the batches and the reason why the scan stopped. With more
    than ``max_table_rows`` batches it has no rows, and ``table_complete`` is False.
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
        """What the core has made."""
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

    ``source``, ``hash_bytes`` and ``own_file`` are those of `scan_segment`; every checksum is
    checked. ``max_table_rows`` bounds the memory of the table, 78 bytes a batch. ``base_offset`` is
    the segment's, by default its first batch's. ``producer_snapshot`` holds the producer state at
    that offset, by default none. With ``now_ms``, producers without an open transaction that were
    silent for ``producer_id_expiration_ms`` are left out.

    A torn tail or a tail of zeros is no error; `RebuiltIndexes.table` names it. Damage anywhere
    else raises ``CorruptDataError``; with ``accept_damage`` the result covers the batches before
    it, as if a broker had truncated the log there. So do batches no broker would have appended, and
    a bad snapshot. ``copy_to`` is an empty file that receives every byte read of an open file; with
    ``hash_bytes`` these are all bytes up to the end. An OSError of that file has its ``name``.
    Releases the interpreter lock."""
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
