"""Proposes assignments: one that moves as few replicas as possible, and Kafka's own spread.

Both assignments keep the number of replicas of each partition. Neither assignment puts two replicas
of a partition into one rack while another rack has no replica of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition

__all__ = ["Racks", "spread_as_kafka", "spread_minimally"]

Racks = Mapping[int, str | None]
"""The rack of each broker that may hold replicas; None for a broker without a rack."""

_Replicas = tuple[int, ...]


def spread_minimally(
    current: Mapping[TopicPartition, _Replicas], racks: Racks
) -> dict[TopicPartition, _Replicas]:
    """Return an assignment to the brokers of `racks` that moves few replicas.

    A replica moves for one of three reasons: its broker is not in `racks`, its rack holds the
    partition twice while another rack does not hold it, or its broker has more replicas than
    others. In the end the numbers of replicas of two brokers differ by at most one, as far as racks
    permit. A new replica takes the position of the old replica in the list, so the preferred
    leadership moves with the replica.
    """
    _check(current, racks)
    spread = _Minimal(current, racks)
    spread.leave_brokers()
    spread.part_racks()
    spread.level()
    return {
        partition: _in_place(current[partition], replicas)
        for partition, replicas in spread.assigned.items()
    }


def _in_place(before: _Replicas, after: Sequence[int]) -> _Replicas:
    """Return the replicas of `after`, in an order in which replicas that are also in `before` keep
    their positions."""
    added = iter([one for one in after if one not in before])
    return tuple(one if one in after else next(added) for one in before)


class _Minimal:
    """An assignment under change, and the number of replicas of each broker."""

    def __init__(self, current: Mapping[TopicPartition, _Replicas], racks: Racks) -> None:
        self._racks = racks
        self._rack_of = {one: _rack(racks, one) for one in racks}
        self.assigned = {partition: list(current[partition]) for partition in sorted(current)}
        self._held = Counter(dict.fromkeys(racks, 0))
        self._held.update(one for some in current.values() for one in some if one in racks)
        self._preferred = Counter(some[0] for some in current.values())

    def leave_brokers(self) -> None:
        """Replace the replicas on brokers that are not in `racks`."""
        for replicas in self.assigned.values():
            for index, one in enumerate(replicas):
                if one not in self._racks:
                    self._replace(replicas, index, self._best(replicas, index))

    def part_racks(self) -> None:
        """Replace replicas of a partition that share a rack while another rack has no replica of
        the partition."""
        for replicas in self.assigned.values():
            for index in range(1, len(replicas)):
                if self._shares_rack(replicas, index):
                    other = self._best(replicas, index)
                    if self._is_better_rack(replicas, index, other):
                        self._replace(replicas, index, other)

    def level(self) -> None:
        """Move replicas from brokers with more replicas to brokers with fewer, until no move makes
        the numbers more equal."""
        mean = sum(self._held.values()) / len(self._racks)
        # The first round levels to the mean, so that no replica moves twice. Because of racks, a
        # larger difference may remain, which the second round reduces.
        for floor in (mean, 0.0):
            while self._unload_brokers(floor):
                pass

    def _unload_brokers(self, floor: float) -> bool:
        by_broker: dict[int, list[TopicPartition]] = {one: [] for one in self._racks}
        for partition, replicas in self.assigned.items():
            for one in replicas:
                by_broker[one].append(partition)
        fullest_first = sorted(self._racks, key=lambda one: (-self._held[one], one))
        moved = [self._unload(one, by_broker[one], floor) for one in fullest_first]
        return any(moved)

    def _unload(self, full: int, partitions: Sequence[TopicPartition], floor: float) -> bool:
        """Move some of a broker's `partitions` to brokers with at least two replicas fewer, while
        the broker has more than `floor` replicas. Return whether a replica moved."""
        has_moved = False
        for partition in partitions:
            emptiest_first = sorted(
                (one for one in self._racks if self._held[full] - self._held[one] >= 2),
                key=lambda one: (self._held[one], one),
            )
            if not emptiest_first or self._held[full] <= floor:
                break
            replicas = self.assigned[partition]
            for empty in emptiest_first:
                if self._may_move(replicas, full, empty):
                    self._replace(replicas, replicas.index(full), empty)
                    has_moved = True
                    break
        return has_moved

    def _may_move(self, replicas: Sequence[int], full: int, empty: int) -> bool:
        if empty in replicas:
            return False
        before, after = self._rack_of[full], self._rack_of[empty]
        if before == after:
            return True
        others = [self._rack_of[one] for one in replicas if one != full]
        return after not in others or before in others

    def _shares_rack(self, replicas: Sequence[int], index: int) -> bool:
        rack = self._rack_of[replicas[index]]
        return any(self._rack_of[one] == rack for one in replicas[:index])

    def _is_better_rack(self, replicas: Sequence[int], index: int, other: int) -> bool:
        taken = {self._rack_of[one] for n, one in enumerate(replicas) if n != index}
        return self._rack_of[other] not in taken

    def _best(self, replicas: Sequence[int], index: int) -> int:
        """Return the best broker for the replica at `index`. Brokers are compared in this order:
        whether the rack is new for the partition, the number of replicas and, for the first
        replica, the number of partitions of which the broker is the preferred leader."""
        kept = [one for n, one in enumerate(replicas) if n != index]
        taken = {self._rack_of[one] for one in kept if one in self._rack_of}
        leads = self._preferred if index == 0 else Counter[int]()
        return min(
            (one for one in self._racks if one not in kept),
            key=lambda one: (
                self._rack_of[one] in taken,
                self._held[one] - (one == replicas[index]),
                leads[one],
                one,
            ),
        )

    def _replace(self, replicas: list[int], index: int, other: int) -> None:
        before = replicas[index]
        if before in self._held:
            self._held[before] -= 1
        self._held[other] += 1
        if index == 0:
            self._preferred[before] -= 1
            self._preferred[other] += 1
        replicas[index] = other


def spread_as_kafka(
    current: Mapping[TopicPartition, _Replicas], racks: Racks, draw: Callable[[int], int]
) -> dict[TopicPartition, _Replicas]:
    """Return the spread of Kafka's tool up to 3.9 (``AdminUtils.assignReplicasToBrokers``).

    Leaders are assigned round robin from a random broker, and followers at a growing distance. If
    every broker has a rack, the racks are used in turn. Kafka's later tools shuffle the brokers
    (``StripedReplicaPlacer``), but their spreads have the same properties.

    ``draw(n)`` returns a random number below n. This number decides the first broker and the first
    distance of each topic. Because of this random choice, Kafka's tool moves most partitions.
    """
    _check(current, racks)
    arranged, rack_count = _arrange(racks)
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in sorted(current):
        by_topic.setdefault(partition.topic, []).append(partition)
    found = {}
    for partitions in by_topic.values():
        start, shift = draw(len(arranged)), draw(len(arranged))
        for number, partition in enumerate(partitions):
            if number and number % len(arranged) == 0:
                shift += 1
            first = (number + start) % len(arranged)
            count = len(current[partitions[0]])
            found[partition] = _spread_one(arranged, racks, rack_count, first, shift, count)
    return found


def _spread_one(
    arranged: Sequence[int], racks: Racks, rack_count: int, first: int, shift: int, count: int
) -> _Replicas:
    replicas = [arranged[first]]
    size = len(arranged)
    for step in range(rack_count * size * size):
        if len(replicas) == count:
            break
        distance = 1 + (shift * rack_count + step) % (size - 1)
        one = arranged[(first + distance) % size]
        used = {racks[other] for other in replicas}
        if one not in replicas and (
            rack_count == 1 or racks[one] not in used or len(used) == rack_count
        ):
            replicas.append(one)
    return tuple(replicas)


def _arrange(racks: Racks) -> tuple[list[int], int]:
    """Return the brokers, ordered so that racks alternate, and the number of racks. The number is 1
    when racks are not considered."""
    if any(rack is None for rack in racks.values()):
        return sorted(racks), 1
    by_rack: dict[str, list[int]] = {}
    for one in sorted(racks):
        by_rack.setdefault(str(racks[one]), []).append(one)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    longest = max(map(len, rows))
    arranged = [row[n] for n in range(longest) for row in rows if n < len(row)]
    return arranged, len(rows)


def _rack(racks: Racks, broker_id: int) -> str:
    """Return the broker's rack. A broker without a rack counts as a rack of its own."""
    return racks.get(broker_id) or f"\0{broker_id}"


def _check(current: Mapping[TopicPartition, _Replicas], racks: Racks) -> None:
    for partition, replicas in current.items():
        if len(replicas) > len(racks):
            raise ConfigError(
                f"{partition.topic}-{partition.partition} has {len(replicas)} replicas: expected "
                f"at least that many brokers, found {len(racks)}"
            )
