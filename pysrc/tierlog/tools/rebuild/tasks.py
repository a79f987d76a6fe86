"""Packs the chains of a rebuild into tasks.

Adjacent chains are packed as soon as they are known, and stay packed until a worker takes them. A
task combines such packed parts, chosen only by their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tierlog.tools.packed import pack, unpack
from tierlog.tools.rebuild.log_dir import LogChain
from tierlog.tools.rebuild.store import StoredChain

__all__ = ["Chain", "PackedChains", "RebuildTask", "even_bytes", "pack_chains", "pack_tasks"]

DEFAULT_TASK_BYTES = 256 << 20
_SMALLEST_TASK_BYTES = 4 << 20
_TASKS_PER_JOB = 4
# A part is this many times smaller than a worker's even share, so that tasks of several parts have
# similar sizes.
_PARTS_PER_JOB = 64
_LARGEST_PART_BYTES = 64 << 20
# Opening, writing and reporting a segment costs about as much as scanning this many bytes.
_SEGMENT_COST_BYTES = 1 << 20
_MAX_SEGMENTS = 4096
# A task may exceed its size limit by the limit divided by `_SLACK`. Otherwise a task of 1 GiB would
# take only three segments of 256 MiB, since a segment counts as a little more than its bytes.
_SLACK = 16

Chain = LogChain | StoredChain


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChains:
    """Adjacent chains that share a task. ``name`` is the name of the first chain."""

    name: str
    chains: int
    segments: int
    size_bytes: int
    packed: bytes

    @classmethod
    def of(cls, *chains: Chain) -> PackedChains:
        """Pack these chains; there must be at least one chain."""
        return cls(
            name=chains[0].name,
            chains=len(chains),
            segments=sum(chain.segments for chain in chains),
            size_bytes=sum(chain.size_bytes for chain in chains),
            packed=pack(chains),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTask:
    """Work for one worker."""

    parts: tuple[PackedChains, ...]

    @classmethod
    def of(cls, *chains: Chain) -> RebuildTask:
        """Return a task of these chains; there must be at least one chain."""
        return cls(parts=(PackedChains.of(*chains),))

    def chains(self) -> Iterator[Chain]:
        """Yield the chains, in order."""
        for part in self.parts:
            yield from unpack(part.packed)

    @property
    def size_bytes(self) -> int:
        """The total bytes of the segments."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def cost_bytes(self) -> int:
        """The cost of the task: its bytes, and a fixed number of bytes for each segment."""
        return sum(map(_cost_bytes, self.parts))

    @property
    def name(self) -> str:
        """The name of the first chain."""
        return self.parts[0].name


def pack_chains(
    chains: Iterable[Chain],
    slots: int,
    *,
    max_bytes: int = DEFAULT_TASK_BYTES,
    min_bytes: int = 0,
) -> Iterator[PackedChains]:
    """Pack adjacent chains together. Parts become larger when there are more chains, but every part
    is small compared with a slot's share of the work. ``max_bytes`` and ``min_bytes`` are as in
    `pack_tasks`."""
    least = max(min_bytes, _SMALLEST_TASK_BYTES)
    group: list[Chain] = []
    held = seen = segments = 0
    for chain in chains:
        cost = _cost_bytes(chain)
        even = min(seen // (slots * _PARTS_PER_JOB), _LARGEST_PART_BYTES)
        limit = min(max(even, least), max_bytes)
        if group and (held + cost > limit or segments + chain.segments > _MAX_SEGMENTS):
            yield PackedChains.of(*group)
            group, held, segments = [], 0, 0
        group.append(chain)
        held += cost
        seen += cost
        segments += chain.segments
    if group:
        yield PackedChains.of(*group)


def pack_tasks(
    parts: Iterable[PackedChains],
    slots: int,
    *,
    max_bytes: int = DEFAULT_TASK_BYTES,
    min_bytes: int = 0,
) -> tuple[RebuildTask, ...]:
    """Return tasks, those with the largest parts first. Small parts share a task; a large part is a
    task of its own.

    A task takes at most half of a slot's share of the remaining work. Large tasks have a lower
    total cost. Small tasks at the end let all slots end at about the same time. A task has at least
    ``min_bytes``. A task of several parts has little more than ``max_bytes``.
    """
    ordered = sorted(parts, key=_cost_bytes, reverse=True)
    least = max(min_bytes, _SMALLEST_TASK_BYTES)
    most = max_bytes + max_bytes // _SLACK
    left = sum(map(_cost_bytes, ordered))
    tasks: list[RebuildTask] = []
    group: list[PackedChains] = []
    held = segments = 0
    for part in ordered:
        cost = _cost_bytes(part)
        limit = min(max(left // (2 * slots), least), most)
        if group and (held + cost > limit or segments + part.segments > _MAX_SEGMENTS):
            tasks.append(RebuildTask(parts=tuple(group)))
            left -= held
            group, held, segments = [], 0, 0
        group.append(part)
        held += cost
        segments += part.segments
    if group:
        tasks.append(RebuildTask(parts=tuple(group)))
    return tuple(tasks)


def _cost_bytes(work: Chain | PackedChains) -> int:
    return work.size_bytes + work.segments * _SEGMENT_COST_BYTES


def even_bytes(total_bytes: int, slots: int, max_bytes: int = DEFAULT_TASK_BYTES) -> int:
    """Return the size of a task. Each worker gets several tasks, so that all workers end at about
    the same time."""
    even = total_bytes // (slots * _TASKS_PER_JOB)
    return min(max(even, _SMALLEST_TASK_BYTES), max_bytes)
