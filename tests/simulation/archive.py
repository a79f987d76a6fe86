"""What the store holds, compared with the truth: the checks that know nothing of the product's
state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.cluster import Cluster
from tests.simulation.store import Objects, SimulatedStore
from tests.simulation.truth import Truth, bits
from tierlog.remote.segment.bucket import Problem, describe_indexes
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.layout import (
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    Takeover,
    is_marker,
    is_segment_key,
    parse_key,
    parse_takeover,
)

__all__ = ["Archive", "BreachError", "Stored"]


class BreachError(AssertionError):
    """Something that must always hold does not."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A segment with both objects."""

    stem: str
    topic_id: str
    number: int
    first: int
    last: int
    size_bytes: int
    broker_id: int
    claim_epoch: int | None


class Archive:
    """The store of a cluster. ``damaged`` has the keys of objects that the simulation damaged."""

    def __init__(self, objects: Objects, cluster: Cluster) -> None:
        self.objects = objects
        self.damaged: set[str] = set()
        self._cluster = cluster
        self._store = SimulatedStore(objects)
        self._described: dict[str, tuple[bytes, bytes, Stored | None]] = {}
        self._sound: dict[str, bytes] = {}
        self._first_offsets: dict[str, int] = {}
        # Whether a segment was first seen behind the claim of a later leader, by stem.
        self._late: dict[str, bool] = {}

    def whole(self) -> tuple[list[Stored], dict[str, list[Takeover]]]:
        """The segments with both objects, also those that do not count; takeovers by folder."""
        found, takeovers = [], defaultdict(list)
        for key, data in self.objects.items():
            if key.endswith(INDEXES_SUFFIX):
                stem = key.removesuffix(INDEXES_SUFFIX)
                log = self.objects.get(stem + LOG_SUFFIX)
                if log is not None and (one := self._describe(stem, data, log)) is not None:
                    found.append(one)
            elif (taken := parse_takeover(key)) is not None:
                takeovers[taken[0]].append(taken[1])
        return found, takeovers

    def counted(self) -> list[Stored]:
        """The segments that a reader of the store uses."""
        found, takeovers = self.whole()
        if not takeovers:
            return found
        return [one for one in found if not _left_out(one, takeovers)]

    def _describe(self, stem: str, indexes: bytes, log: bytes) -> Stored | None:
        known = self._described.get(stem)
        if known is not None and known[0] is indexes and known[1] is log:
            return known[2]
        infos = self._store.head(stem + LOG_SUFFIX), self._store.head(stem + INDEXES_SUFFIX)
        told = describe_indexes(self._store, *infos)
        stored = None if isinstance(told, Problem) else _stored(stem, told.description)
        self._described[stem] = indexes, log, stored
        return stored

    # -- what must hold at any time

    def check(self) -> None:
        """Every batch that counts is a committed one of its own topic, and what was stored is
        stored until retention or the topic's deletion takes it."""
        now: defaultdict[tuple[str, int], int] = defaultdict(int)
        promised: defaultdict[tuple[str, int], int] = defaultdict(int)
        for one in self.counted():
            truth = self._cluster.truths.get((one.topic_id, one.number))
            if truth is None:
                raise BreachError(f"{one.stem}: a segment of an unknown topic")
            if self._is_sound(one, truth):
                now[one.topic_id, one.number] |= self.offsets(one, truth)
                if not self._is_late(one):
                    promised[one.topic_id, one.number] |= self.offsets(one, truth)
        for key, truth in self._cluster.truths.items():
            present = now[key]
            truth.lost &= ~present
            gone = truth.stored & ~present & ~truth.lost & ~bits(0, truth.gone_below - 1)
            if gone and not truth.may_be_deleted:
                offset = (gone & -gone).bit_length() - 1
                raise BreachError(
                    f"{truth.topic}-{truth.number} ({truth.topic_id}): offset {offset} was stored "
                    f"and is not any more; retention keeps all from {truth.gone_below} on"
                )
            truth.stored |= promised[key]
            truth.present = present

    def offsets(self, one: Stored, truth: Truth) -> int:
        """The offsets that a reader gets from the segment, as bits. Those that the brokers had
        deleted when it was copied are in its object, and no part of the log any more."""
        first = self._first_offsets.setdefault(one.stem, max(one.first, truth.deleted_below))
        return bits(first, one.last)

    def _is_late(self, one: Stored) -> bool:
        """Whether a deposed leader's last object came after a later leader had claimed the
        partition: that leader removes the segment, and copies its records itself."""
        if one.stem not in self._late:
            folder = f"claims/{one.topic_id}-{one.number}/"
            claims = [key.removeprefix(folder) for key in self.objects if key.startswith(folder)]
            epochs = [int(name.partition("-")[0]) for name in claims]
            self._late[one.stem] = one.claim_epoch is not None and any(
                epoch > one.claim_epoch for epoch in epochs
            )
        return self._late[one.stem]

    def _is_sound(self, one: Stored, truth: Truth) -> bool:
        key = one.stem + LOG_SUFFIX
        data = self.objects[key]
        if self._sound.get(key) is data:
            return True
        expected = b"".join(batch.data for batch in truth.between(one.first, one.last))
        if data == expected:
            self._sound[key] = data
            return True
        if key in self.damaged:
            return False
        raise BreachError(
            f"{key}: its batches are not the committed ones of offsets {one.first} to {one.last}"
        )

    # -- what must hold when all faults have ended

    def check_tidy(self, *, strict: bool) -> None:
        """Nothing is left over, and no offset is stored twice with the same borders."""
        copies: defaultdict[tuple[str, int, int, int], list[Stored]] = defaultdict(list)
        counted = self.counted()
        for one in counted:
            copies[one.topic_id, one.number, one.first, one.last].append(one)
        for key, some in copies.items():
            if len(some) > 1 and not self._is_known_duplicate(some):
                raise BreachError(f"stored more than once: {key}: {[one.stem for one in some]}")
        if strict:
            stems = {one.stem for one in self.whole()[0]}
            for orphan in self._orphans(stems):
                raise BreachError(f"left over: {orphan}")

    def _orphans(self, stems: set[str]) -> Iterator[str]:
        for key in self.objects:
            if is_segment_key(key):
                if key.rpartition(".")[0] not in stems:
                    yield key
            elif not is_marker(key):
                yield key

    def _is_known_duplicate(self, copies: list[Stored]) -> bool:
        """Whether brokers copied the same hole below a takeover's offset (decision 0012)."""
        if len({one.broker_id for one in copies}) < len(copies):
            return False
        folder = copies[0].stem.rpartition("/")[0] + "/"
        taken = [taken for key in self.objects if (taken := parse_takeover(key)) is not None]
        return any(place == folder and one.end_offset > copies[0].last for place, one in taken)


def _left_out(one: Stored, takeovers: dict[str, list[Takeover]]) -> bool:
    folder = one.stem.rpartition("/")[0] + "/"
    return one.claim_epoch is not None and any(
        one.claim_epoch < taken.leader_epoch
        and one.broker_id != taken.broker_id
        and one.last >= taken.end_offset
        for taken in takeovers.get(folder, ())
    )


def _stored(stem: str, told: SegmentDescription) -> Stored:
    metadata, key = told.metadata, parse_key(stem + LOG_SUFFIX)
    return Stored(
        stem,
        key.topic_id,
        key.partition,
        metadata.start_offset,
        metadata.end_offset,
        metadata.segment_size_bytes,
        metadata.broker_id,
        told.claim_epoch,
    )
