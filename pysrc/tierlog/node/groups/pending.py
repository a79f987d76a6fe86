"""Offsets in memory that become committed when the transaction of their producer is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tierlog.node.groups.offsets import CommittedOffset, TopicPartition

__all__ = ["PendingOffsets"]

_Offsets = dict[TopicPartition, CommittedOffset]


class PendingOffsets:
    """The waiting offsets, by producer and group."""

    def __init__(
        self, stored: Iterable[tuple[int, str, TopicPartition, CommittedOffset]] = ()
    ) -> None:
        self._waiting: dict[int, dict[str, _Offsets]] = {}
        for producer_id, group_id, at, one in stored:
            self.add(producer_id, group_id, {at: one})

    def add(
        self, producer_id: int, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Let offsets wait for the end of a producer's transaction."""
        self._waiting.setdefault(producer_id, {}).setdefault(group_id, {}).update(offsets)

    def of_producer(self, producer_id: int) -> Mapping[str, _Offsets]:
        """Return the waiting offsets of a producer, by group."""
        return self._waiting.get(producer_id, {})

    def remove(self, producer_id: int) -> None:
        """Remove the waiting offsets of a producer."""
        self._waiting.pop(producer_id, None)

    def remove_group(self, group_id: str) -> None:
        """Remove the waiting offsets of a group."""
        for groups in self._waiting.values():
            groups.pop(group_id, None)

    def producers(self) -> set[int]:
        """Return the producers with waiting offsets."""
        return set(self._waiting)

    def partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of a group with waiting offsets."""
        return {at for groups in self._waiting.values() for at in groups.get(group_id, ())}

    def replaced_by(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[int, _Offsets]:
        """Return those of `offsets` that must replace waiting offsets of the same partition, by
        producer. `offsets` are committed now, and the end of a transaction must not undo a later
        commit."""
        found = {}
        for producer_id, groups in self._waiting.items():
            replaced = {at: offsets[at] for at in groups.get(group_id, {}) if at in offsets}
            if replaced:
                found[producer_id] = replaced
        return found
