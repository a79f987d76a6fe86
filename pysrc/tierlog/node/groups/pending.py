"""Offsets that are committed when the transaction of their producer is, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tierlog.node.groups.offsets import CommittedOffset, TopicPartition

__all__ = ["PendingOffsets"]

_Offsets = dict[TopicPartition, CommittedOffset]


class PendingOffsets:
    """The offsets that wait, by producer and group."""

    def __init__(
        self, stored: Iterable[tuple[int, str, TopicPartition, CommittedOffset]] = ()
    ) -> None:
        self._waiting: dict[int, dict[str, _Offsets]] = {}
        for producer_id, group_id, at, one in stored:
            self.add(producer_id, group_id, {at: one})

    def add(
        self, producer_id: int, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Have offsets wait for the end of a producer's transaction."""
        self._waiting.setdefault(producer_id, {}).setdefault(group_id, {}).update(offsets)

    def of_producer(self, producer_id: int) -> Mapping[str, _Offsets]:
        """Return the offsets of a producer, by group."""
        return self._waiting.get(producer_id, {})

    def remove(self, producer_id: int) -> None:
        """Forget the offsets of a producer."""
        self._waiting.pop(producer_id, None)

    def remove_group(self, group_id: str) -> None:
        """Forget the offsets of a group."""
        for groups in self._waiting.values():
            groups.pop(group_id, None)

    def producers(self) -> set[int]:
        """Return the producers that have offsets waiting."""
        return set(self._waiting)

    def partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of a group that have offsets waiting."""
        return {at for groups in self._waiting.values() for at in groups.get(group_id, ())}

    def replaced_by(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[int, _Offsets]:
        """Return what of `offsets`, which are committed now, takes the place of waiting ones, by
        producer: the end of a transaction undoes no later commit."""
        found = {}
        for producer_id, groups in self._waiting.items():
            replaced = {at: offsets[at] for at in groups.get(group_id, {}) if at in offsets}
            if replaced:
                found[producer_id] = replaced
        return found
