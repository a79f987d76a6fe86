"""Replaces segments by a compacted one in steps that a crash cannot spoil, as Kafka does.

    1. the new segment's files are written and synced as ``.cleaned``
    2. they are renamed to ``.swap``: from here on the new segment counts
    3. the files of the old segments are deleted
    4. the new files lose their suffix

After a crash `finish_swaps` deletes what step 1 left, and repeats steps 3 and 4 after step 2 was
complete (Kafka's ``LogLoader``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from tierlog.log.names import parse_segment_file
from tierlog.log.segment import scan_segment
from tierlog.log.writer.files import sync_directory
from tierlog.log.writer.segment import segment_path

__all__ = ["CLEANED", "delete_drafts", "finish_swaps", "has_draft", "swap_in"]

CLEANED, _SWAP, _DELETED = ".cleaned", ".swap", ".deleted"
# The order of the renames: without a `.log.swap` the others only lose their suffix.
_KINDS = ("log", "index", "timeindex", "txnindex")


def swap_in(directory: str, base_offset: int, old_bases: Iterable[int]) -> None:
    """Put the synced ``.cleaned`` files of a segment in the place of the segments at `old_bases`,
    of which it may have the base of the first."""
    present = [one for one in _KINDS if os.path.lexists(_path(directory, base_offset, one))]
    for kind in present:
        path = segment_path(directory, base_offset, kind)
        os.rename(path + CLEANED, path + _SWAP)
    sync_directory(directory)
    for base in old_bases:
        for kind in (*_KINDS, "snapshot"):
            # The renames below replace files, and the state before the first segment still holds.
            is_kept = base == base_offset and kind in (*present, "snapshot")
            path = segment_path(directory, base, kind)
            if not is_kept and os.path.lexists(path):
                os.unlink(path)
    # An old segment that came back after the names below are durable would repeat offsets.
    sync_directory(directory)
    for kind in present:
        path = segment_path(directory, base_offset, kind)
        os.rename(path + _SWAP, path)
    sync_directory(directory)


def has_draft(directory: str, base_offset: int) -> bool:
    """Return whether the ``.cleaned`` files of a segment are there: opening the log again deletes
    them."""
    return all(os.path.lexists(_path(directory, base_offset, kind)) for kind in _KINDS[:3])


def delete_drafts(directory: str) -> None:
    """Delete the ``.cleaned`` files."""
    for name in _segment_files(directory):
        if name.endswith(CLEANED):
            os.unlink(os.path.join(directory, name))


def finish_swaps(directory: str) -> None:
    """Delete what a crash left half done, and complete the swaps that count."""
    names = list(_segment_files(directory))
    cleaned = [_base_of(name) for name in names if name.endswith(CLEANED)]
    first_cleaned = min(cleaned, default=None)
    swaps = []
    for name in names:
        is_swap = name.endswith(_SWAP)
        if is_swap and (first_cleaned is None or _base_of(name) < first_cleaned):
            swaps.append(name)
        elif is_swap or name.endswith(_DELETED):
            os.unlink(os.path.join(directory, name))
    # A `.swap` beside `.cleaned` files is half of a new segment, and is gone before they are.
    delete_drafts(directory)
    if swaps:
        _complete(directory, swaps)


def _complete(directory: str, swaps: list[str]) -> None:
    logs = [name for name in swaps if name.endswith(f".log{_SWAP}")]
    bases = {_base_of(name) for name in logs}
    end = max((_end_of(directory, name) for name in logs), default=0)
    for name in _segment_files(directory):
        base = _base_of(name)
        is_replaced = bases and min(bases) <= base < end and not name.endswith(_SWAP)
        if is_replaced and not (base in bases and name.endswith(".snapshot")):
            os.unlink(os.path.join(directory, name))
    sync_directory(directory)
    for name in swaps:
        path = os.path.join(directory, name)
        os.rename(path, path.removesuffix(_SWAP))
    sync_directory(directory)


def _end_of(directory: str, name: str) -> int:
    """Return the offset after the last batch of a segment; its base offset without one."""
    table = scan_segment(os.path.join(directory, name), verify_crc=False)
    return int(table.last_offset[-1]) + 1 if len(table) else _base_of(name)


def _segment_files(directory: str) -> Iterator[str]:
    return iter([name for name in sorted(os.listdir(directory)) if parse_segment_file(name)])


def _base_of(name: str) -> int:
    return int(name.partition(".")[0])


def _path(directory: str, base_offset: int, kind: str) -> str:
    return segment_path(directory, base_offset, kind) + CLEANED
