"""What a store does to objects that it should keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.archive import Stored
from tests.simulation.truth import bits
from tierlog.remote.segment.layout import INDEXES_SUFFIX, LOG_SUFFIX

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["damage_store"]


def damage_store(world: World, counted: list[Stored]) -> Stored | None:
    """Damage one segment; return it, None when nothing was possible."""
    one = counted[world.draw(len(counted))]
    how = world.draw(5)
    if how == 0:
        _lose(world, one, LOG_SUFFIX)
    elif how == 1:
        _lose(world, one, INDEXES_SUFFIX)
    elif how == 2 and _has_neighbours(world, one):
        # A bucket cannot show that its first or last segment is missing.
        _lose(world, one, LOG_SUFFIX, INDEXES_SUFFIX)
    elif how == 3:
        _change_byte(world, one)
    elif how == 4:
        alike = [
            other
            for other in counted
            if (other.first, other.last, other.size_bytes) == (one.first, one.last, one.size_bytes)
            and other.topic_id + str(other.number) != one.topic_id + str(one.number)
        ]
        if alike:
            _swap(world, one, alike[world.draw(len(alike))])
    return one if one.stem + LOG_SUFFIX in world.archive.damaged else None


def _mark(world: World, one: Stored) -> None:
    truth = world.cluster.truths[one.topic_id, one.number]
    world.needs_repair = True
    world.archive.damaged.add(one.stem + LOG_SUFFIX)
    others = 0
    for other in world.archive.counted():
        is_here = (other.topic_id, other.number) == (one.topic_id, one.number)
        if is_here and other.stem + LOG_SUFFIX not in world.archive.damaged:
            others |= world.archive.offsets(other, truth)
    truth.lost |= bits(one.first, one.last) & ~others


def _lose(world: World, one: Stored, *suffixes: str) -> None:
    world.tell(f"(the store loses {one.stem} {suffixes})")
    for suffix in suffixes:
        del world.objects[one.stem + suffix]
    _mark(world, one)


def _has_neighbours(world: World, one: Stored) -> bool:
    present = world.cluster.truths[one.topic_id, one.number].present
    return bool(present & (1 << one.first) - 1) and present >> (one.last + 1) > 0


def _change_byte(world: World, one: Stored) -> None:
    key = one.stem + LOG_SUFFIX
    data = world.objects[key]
    place = world.draw(len(data))
    world.tell(f"(the store changes byte {place} of {key})")
    world.objects[key] = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
    _mark(world, one)


def _swap(world: World, one: Stored, other: Stored) -> None:
    first, second = one.stem + LOG_SUFFIX, other.stem + LOG_SUFFIX
    world.tell(f"(the store swaps {first} and {second})")
    objects = world.objects
    objects[first], objects[second] = objects[second], objects[first]
    _mark(world, one)
    _mark(world, other)
