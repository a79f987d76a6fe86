"""Checks the index files of a segment against its batches.

The number of index entries that a broker writes depends on the broker's version. So the checks do
not compare an index with a rebuilt index. The checks require that the entries ascend and agree with
the log. All functions are pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tierlog.errors import CorruptDataError
from tierlog.log.index_files import read_producer_snapshot

__all__ = [
    "TAIL_FAULTS",
    "Batches",
    "check_aborts",
    "check_batch_checksums",
    "check_offset_index",
    "check_snapshot",
    "check_time_index",
    "check_txn_index",
    "indexed_positions",
]

MAX_FAULTS = 5
"""The maximum number of findings for one file."""

TAIL_FAULTS = frozenset({"past_the_log", "zero_tail"})
"""Reasons of findings for entries past the end of the log and for unused slots."""

_OFFSET_ENTRY = np.dtype([("offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
_TXN_ENTRY = np.dtype(
    [("version", ">i2"), ("producer", ">i8"), ("first", ">i8"), ("last", ">i8"), ("stable", ">i8")]
)

Rows = npt.NDArray[np.bool_]
Int64Column = npt.NDArray[np.int64]


class Batches(Protocol):
    """The columns of a scan that the checks use; one row per batch, in ascending order."""

    @property
    def base_offset(self) -> Int64Column: ...
    @property
    def last_offset(self) -> Int64Column: ...
    @property
    def position(self) -> Int64Column: ...
    @property
    def max_timestamp_ms(self) -> Int64Column: ...
    @property
    def producer_id(self) -> Int64Column: ...
    @property
    def is_control(self) -> Rows: ...
    @property
    def is_transactional(self) -> Rows: ...
    @property
    def stop_position(self) -> int: ...
    def __len__(self) -> int: ...


class ChecksummedBatches(Batches, Protocol):
    """Batches with the checksum field of each batch."""

    @property
    def batch_checksum(self) -> Int64Column: ...


def indexed_positions(data: bytes) -> npt.NDArray[np.int64]:
    """Return the batch positions in a ``.index`` without checks."""
    entries, _ = _entries(data, _OFFSET_ENTRY)
    return np.sort(entries["position"].astype(np.int64))


def check_offset_index(data: bytes, table: Batches, base_offset: int) -> list[CorruptDataError]:
    """Check a ``.index``: entries ascend. Each entry has the position of a batch, and the last
    offset of this batch or of a later batch.

    Brokers up to 1.1 write the first offset of the batch instead. The check accepts such first
    offsets, because a look-up finds the same batch.
    """
    entries, faults = _entries(data, _OFFSET_ENTRY)
    offsets = entries["offset"].astype(np.int64) + base_offset
    positions = entries["position"].astype(np.int64)
    ascend = _not_above_previous(offsets) | _not_above_previous(positions)
    beyond = ~ascend & (positions >= table.stop_position)
    rows = np.minimum(np.searchsorted(table.position, positions), max(len(table) - 1, 0))
    inside = ~ascend & ~beyond
    no_batch = inside & (len(table) == 0)
    if len(table):
        no_batch = inside & (table.position[rows] != positions)
        ends = np.isin(offsets, table.last_offset) & (offsets >= table.last_offset[rows])
        begins = offsets == table.base_offset[rows]
        wrong = inside & ~no_batch & ~ends & ~begins
    else:
        wrong = np.zeros(len(entries), dtype=np.bool_)

    def shown(row: int) -> str:
        return f"offset {offsets[row]}, position {positions[row]}"

    for bad, what, expected in (
        (ascend, "entry_order", "an offset and a position above those of the previous entry"),
        (beyond, "past_the_log", f"a position below {table.stop_position}"),
        (no_batch, "no_batch_there", "the position of a batch"),
        (wrong, "wrong_offset", "the first or last offset of the batch at this position"),
    ):
        faults += [
            _fault(row * _OFFSET_ENTRY.itemsize, what, expected, shown(row)) for row in _first(bad)
        ]
    return _sorted(faults)


def check_batch_checksums(
    data: bytes, offset_index: bytes, table: ChecksummedBatches
) -> list[CorruptDataError]:
    """Check the batch checksums of an `.indexes` object: the checksum of the first batch, then the
    checksum of each batch that the offset index names."""
    entries, _ = _entries(offset_index, _OFFSET_ENTRY)
    positions = np.concatenate(([0], entries["position"].astype(np.int64)))[: len(data) // 4]
    stored = np.frombuffer(data, ">u4", count=len(positions)).astype(np.int64)
    rows = np.minimum(np.searchsorted(table.position, positions), max(len(table) - 1, 0))
    is_there = (table.position[rows] == positions) if len(table) else np.zeros(len(rows), np.bool_)
    wrong = np.flatnonzero(is_there)[stored[is_there] != table.batch_checksum[rows[is_there]]]
    return [
        _fault(
            4 * row,
            "wrong_batch",
            f"checksum {table.batch_checksum[rows[row]]:#010x} of the batch at byte "
            f"{positions[row]}",
            f"{stored[row]:#010x}",
        )
        for row in wrong[:1].tolist()
    ]


def check_time_index(data: bytes, table: Batches, base_offset: int) -> list[CorruptDataError]:
    """Check a ``.timeindex``: entries ascend, and no batch up to the offset of an entry is newer
    than the entry."""
    entries, faults = _entries(data, _TIME_ENTRY)
    timestamps = entries["timestamp"].astype(np.int64)
    offsets = entries["offset"].astype(np.int64) + base_offset
    falling = _not_above_previous(timestamps)
    falling[1:] |= offsets[1:] < offsets[:-1]
    end = int(table.last_offset[-1]) if len(table) else base_offset - 1
    outside = ~falling & ((offsets < base_offset) | (offsets > end))
    newest = np.concatenate(
        ([np.iinfo(np.int64).min], np.maximum.accumulate(table.max_timestamp_ms))
    )
    before = newest[np.searchsorted(table.last_offset, offsets, side="right")]
    older = ~falling & ~outside & (before > timestamps)

    def shown(row: int) -> str:
        return f"timestamp {timestamps[row]}, offset {offsets[row]}"

    expected: dict[str, Callable[[int], str]] = {
        "entry_order": lambda _: (
            "a timestamp above that of the previous entry, an offset not below"
        ),
        "past_the_log": lambda _: f"an offset from {base_offset} to {end}",
        "wrong_timestamp": lambda row: f"{before[row]} or more, as in a batch up to that offset",
    }
    for what, bad in zip(expected, (falling, outside, older), strict=True):
        faults += [
            _fault(row * _TIME_ENTRY.itemsize, what, expected[what](row), shown(row))
            for row in _first(bad)
        ]
    return _sorted(faults)


def check_txn_index(data: bytes, table: Batches) -> list[CorruptDataError]:
    """Check a ``.txnindex``: entries ascend, and each has version 0 and ends at a marker of its
    producer."""
    entries, faults = _entries(data, _TXN_ENTRY, padded=False)
    producers, last = entries["producer"].astype(np.int64), entries["last"].astype(np.int64)
    markers = table.is_control & table.is_transactional
    offsets, owners = table.base_offset[markers], table.producer_id[markers]
    at = np.searchsorted(offsets, last)
    in_reach = np.minimum(at, max(len(offsets) - 1, 0))
    if len(offsets):
        is_marker = (offsets[in_reach] == last) & (owners[in_reach] == producers)
    else:
        is_marker = np.zeros(len(entries), dtype=np.bool_)
    version = entries["version"] != 0
    order = ~version & (_not_above_previous(last) | (entries["first"] > last))
    beyond = ~version & ~order & (last > (table.last_offset[-1] if len(table) else -1))
    wrong = ~version & ~order & ~beyond & ~is_marker

    def shown(row: int) -> str:
        return (
            f"version {entries['version'][row]}, producer {producers[row]}, "
            f"offsets {entries['first'][row]} to {last[row]}"
        )

    for bad, what, expected in (
        (version, "bad_version", "version 0"),
        (
            order,
            "entry_order",
            "a last offset above that of the previous entry and not below the first offset",
        ),
        (beyond, "past_the_log", "a last offset within the segment"),
        (wrong, "no_marker_there", "the offset of this producer's marker"),
    ):
        faults += [
            _fault(row * _TXN_ENTRY.itemsize, what, expected, shown(row)) for row in _first(bad)
        ]
    return _sorted(faults)


def check_aborts(data: bytes, rebuilt: bytes) -> list[CorruptDataError]:
    """Check that a ``.txnindex`` has every aborted transaction that the log itself shows.

    If an entry is missing, consumers of committed records receive aborted records. The index may
    have more entries than the log shows, since compaction removes markers.
    """
    entries, _ = _entries(data, _TXN_ENTRY, padded=False)
    wanted, _ = _entries(rebuilt, _TXN_ENTRY, padded=False)
    there = set(zip(entries["producer"].tolist(), entries["last"].tolist(), strict=True))
    return [
        _fault(len(data), "missing_abort", f"producer {producer}, last offset {last}", "no entry")
        for producer, last in zip(wanted["producer"].tolist(), wanted["last"].tolist(), strict=True)
        if (producer, last) not in there
    ][:MAX_FAULTS]


def check_snapshot(data: bytes) -> list[CorruptDataError]:
    """Check a ``.snapshot``: its version, its checksum, and its number of entries."""
    try:
        read_producer_snapshot(data)
    except CorruptDataError as error:
        return [error]
    return []


def _fault(position: int, what: str, expected: str, found: str) -> CorruptDataError:
    """Return a finding about one entry; `position` is the first byte of the entry in the index
    file."""
    return CorruptDataError(reason=what, position=position, expected=expected, found=found)


def _entries(
    data: bytes, entry: np.dtype[np.void], *, padded: bool = True
) -> tuple[npt.NDArray[np.void], list[CorruptDataError]]:
    """Return the entries before the unused slots at the end. The unused slots of an active index
    are all zero."""
    faults: list[CorruptDataError] = []
    whole = len(data) - len(data) % entry.itemsize
    if whole != len(data):
        expected = f"entries of {entry.itemsize} bytes each"
        found = f"{len(data) - whole} bytes after the last one"
        faults.append(_fault(whole, "bad_length", expected, found))
    entries = np.frombuffer(data, dtype=entry, count=whole // entry.itemsize)
    if not padded:
        return entries, faults
    used = -(-len(data[:whole].rstrip(b"\0")) // entry.itemsize)
    # One entry of zeros may be valid, if the first record has timestamp 0.
    unused = len(entries) - used
    if unused > 1 or (unused and used):
        found = f"{unused} unused slots"
        position = used * entry.itemsize
        faults.append(_fault(position, "zero_tail", "the end of the index", found))
    return entries[:used], faults


def _not_above_previous(column: npt.NDArray[np.int64]) -> Rows:
    bad = np.zeros(len(column), dtype=np.bool_)
    bad[1:] = column[1:] <= column[:-1]
    return bad


def _first(bad: Rows) -> Iterator[int]:
    return iter(np.flatnonzero(bad)[:MAX_FAULTS].tolist())


def _sorted(faults: list[CorruptDataError]) -> list[CorruptDataError]:
    return sorted(faults, key=lambda fault: fault.position)[:MAX_FAULTS]
