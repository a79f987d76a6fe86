"""The named moments at which a process can be made to die.

Everything of the harness that stands between the manager and the world calls `reach(name)` at its
moments. In an ordinary process that only counts; in a child that was given a `Kill` the process
ends there by SIGKILL, without a handler, a flush or a farewell. The counters lie in memory shared
with the parent, so that they outlive the child.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["POINTS", "Counters", "Kill", "arm", "reach", "watched"]

_SLOT_BYTES = 8


def _both(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.{moment}" for name in names for moment in ("before", "after"))


POINTS: tuple[str, ...] = (
    # What the local log does.
    "host.append.before",
    "host.append.half_written",
    "host.append.written",
    "host.append.synced",
    "host.roll.before_snapshot",
    "host.roll.before_file",
    "host.roll.after",
    *_both("host.advance_log_start", "host.write_epochs"),
    *_both("host.raise_local_start", "host.unlink_segment"),
    *_both("host.begin_deletion", "host.delete_topic"),
    "host.delete_topic.renamed",
    *_both("host.truncate"),
    "host.truncate.segment_gone",
    # Calls of the object store.
    *_both("store.put_log", "store.put_indexes", "store.delete_log", "store.delete_indexes"),
    "store.put_log.first_chunk",
    "store.put_log.middle_chunk",
    "store.put_log.last_chunk",
    "store.draft.after",
    *_both("store.put_draft", "store.head", "store.get_range"),
    # Inside the file store.
    "file.create.after",
    "file.write.after",
    *_both("file.sync_object", "file.sync_folder", "file.publish", "file.link"),
    *_both("file.unlink_object"),
    "file.remove_temporary.before",
    # Events of the metadata.
    *_both("metadata.copy_started", "metadata.copy_finished"),
    *_both("metadata.delete_started", "metadata.delete_finished"),
    *_both("metadata.claim", "metadata.truncate"),
    *_both("metadata.partition_marked", "metadata.partition_started"),
    *_both("metadata.partition_finished"),
    # Inside SQLite.
    "sqlite.begin",
    "sqlite.insert",
    "sqlite.delete",
    "sqlite.commit",
    # The local remote indexes.
    "index.create.after",
    "index.write.after",
    *_both("index.sync_file", "index.sync_folder", "index.rename", "index.unlink"),
)


@dataclass(frozen=True, slots=True)
class Kill:
    """Die when `point` is reached for the `occurrence`-th time, counted from 1."""

    point: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.point}:{self.occurrence}"

    @classmethod
    def parse(cls, text: str) -> Kill:
        point, _, occurrence = text.rpartition(":")
        return cls(point, int(occurrence))


class Counters:
    """How often each point was reached, in memory that forked processes share."""

    def __init__(self) -> None:
        self._slots = {name: number * _SLOT_BYTES for number, name in enumerate(POINTS)}
        self._memory = mmap.mmap(-1, _SLOT_BYTES * len(POINTS))

    def clear(self) -> None:
        self._memory[:] = bytes(len(self._memory))

    def add(self, name: str) -> int:
        """One more; how often it is now. KeyError for a point that is not in `POINTS`."""
        at = self._slots[name]
        count = int.from_bytes(self._memory[at : at + _SLOT_BYTES], "little") + 1
        self._memory[at : at + _SLOT_BYTES] = count.to_bytes(_SLOT_BYTES, "little")
        return count

    def counts(self) -> dict[str, int]:
        """Every point that was reached."""
        found = {
            name: int.from_bytes(self._memory[at : at + _SLOT_BYTES], "little")
            for name, at in self._slots.items()
        }
        return {name: count for name, count in found.items() if count}


class _Armed:
    def __init__(self) -> None:
        self.counters: Counters | None = None
        self.kills: frozenset[Kill] = frozenset()
        self.callback: Callable[[str], None] | None = None


_armed = _Armed()


def arm(counters: Counters | None, kills: Iterable[Kill] = ()) -> None:
    """From now on this process counts into `counters` and dies at any of `kills`."""
    _armed.counters = counters
    _armed.kills = frozenset(kills)


@contextmanager
def watched(callback: Callable[[str], None]) -> Iterator[None]:
    """Calls `callback` with every point that a thread of this process reaches."""
    _armed.callback = callback
    try:
        yield
    finally:
        _armed.callback = None


def reach(name: str) -> None:
    """The process is at the named point."""
    if _armed.callback is not None:
        _armed.callback(name)
    if _armed.counters is None:
        return
    count = _armed.counters.add(name)
    if Kill(name, count) in _armed.kills:
        os.kill(os.getpid(), signal.SIGKILL)
