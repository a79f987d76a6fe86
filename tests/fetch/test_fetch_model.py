"""Whole requests by a model: every border a fetch can lie at, every limit, any mix of partitions.

The model knows the batches of Kafka's own segments, read by the oracle, and the rules of
kafka-behaviour 5.1 and 5.3 in plain words; nothing of how they are found.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.fetch.two_tiers import TwoTiers
from tests.oracle import batches as oracle
from tests.proofs import usually
from tierlog.log.log_dir import PartitionLog
from tierlog.reader.types import (
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchView,
    IsolationLevel,
)
from tierlog.types import TopicIdPartition

NAMES = ("codec-none-0", "transactions-0", "compacted-0", "deleted-records-0", "epochs-0")
LIMITS = (-1, 0, 1, 100, 700, 5_000, 1 << 20, 2**62)
FOLLOWER = 3


@dataclass(frozen=True)
class Kept:
    """A batch, and the segment that has it."""

    segment: int
    last_offset: int
    data: bytes


def batches_of(log: PartitionLog) -> list[Kept]:
    found = []
    for segment in log.segments:
        data = Path(segment.log_path).read_bytes()
        position = 0
        for batch in oracle.scan(data)[0]:
            end = position + batch.size_bytes
            found.append(Kept(segment.base_offset, batch.last_offset, data[position:end]))
            position = end
    return found


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    for name in NAMES:
        made.add("clean", name)
    yield made
    made.close()


def any_view(whole: FetchView, kept: Sequence[Kept], chance: random.Random) -> FetchView:
    """A border at any segment; above it, since nothing else is tiered, any high watermark and last
    stable offset."""
    bases = [one.base_offset for one in whole.log.segments]
    border = max(chance.choice(bases), whole.log_start_offset)
    ends = [one.last_offset + 1 for one in kept if one.last_offset >= border]
    high_watermark = chance.choice((whole.log_end_offset, border, *ends))
    stable = chance.choice([one for one in (border, *ends) if one <= high_watermark])
    local = tuple(
        one
        for one in whole.log.segments
        if one.next_base_offset is None or one.next_base_offset > border
    )
    return replace(
        whole,
        log=replace(whole.log, segments=local),
        local_log_start_offset=border,
        high_watermark=high_watermark,
        last_stable_offset=stable,
    )


def any_offset(view: FetchView, chance: random.Random) -> int:
    """One of the borders, one beside it, or anywhere."""
    if chance.random() < 0.3:
        return chance.randint(-1, view.log_end_offset + 1)
    border = chance.choice(
        (
            view.log_start_offset,
            view.local_log_start_offset,
            view.last_stable_offset,
            view.high_watermark,
            view.log_end_offset,
        )
    )
    return border + chance.choice((-1, 0, 0, 1))


@dataclass
class Response:
    """What a request has brought so far, by the rules."""

    request: FetchRequest
    left_bytes: int
    minimum_one: bool = True

    def answer(
        self, asked: FetchPartition, view: FetchView, kept: Sequence[Kept]
    ) -> tuple[FetchError, bytes]:
        offset = asked.fetch_offset
        follower = self.request.replica_id == FOLLOWER
        if not view.log_start_offset <= offset <= view.log_end_offset:
            return FetchError.OFFSET_OUT_OF_RANGE, b""
        remote = offset < view.local_log_start_offset
        if remote and follower:
            return FetchError.OFFSET_MOVED_TO_TIERED_STORAGE, b""
        limit = max(0, min(asked.max_bytes, self.left_bytes))
        if remote and not self.minimum_one and limit == 0:
            return FetchError.NONE, b""
        records = self._records(offset, limit, self._upper_offset(view), kept)
        self.left_bytes -= limit if remote else len(records)
        self.minimum_one = self.minimum_one and not remote and not records
        return FetchError.NONE, records

    def _upper_offset(self, view: FetchView) -> int:
        if self.request.replica_id == FOLLOWER:
            return view.log_end_offset
        if self.request.isolation_level is IsolationLevel.READ_COMMITTED:
            return view.last_stable_offset
        return view.high_watermark

    def _records(self, offset: int, limit: int, upper_offset: int, kept: Sequence[Kept]) -> bytes:
        """Whole batches of one segment; the first one whatever its size, once per response."""
        found: list[Kept] = []
        size_bytes = 0
        for one in kept:
            if one.last_offset < offset:
                continue
            size_bytes += len(one.data)
            first = self.minimum_one and not found
            if (
                one.last_offset >= upper_offset
                or (found and one.segment != found[0].segment)
                or (size_bytes > limit and not first)
            ):
                break
            found.append(one)
        return b"".join(one.data for one in found)


def test_whole_requests(tiers: TwoTiers) -> None:
    chance = random.Random(7)
    wholes = dict(tiers.views)
    kept = {partition: batches_of(view.log) for partition, view in wholes.items()}
    sources: set[str] = set()
    for number in range(usually(120, thorough=5_000)):
        for partition, whole in wholes.items():
            tiers.views[partition] = any_view(whole, kept[partition], chance)
        request = FetchRequest(
            partitions=tuple(
                _any_ask(tiers, chance.choice(list(wholes)), chance)
                for _ in range(chance.randint(1, 6))
            ),
            max_bytes=chance.choice((-5, 0, 1, 700, 3_000, 20_000, 50 << 20)),
            max_wait_ms=0,
            isolation_level=chance.choice(list(IsolationLevel)),
            replica_id=FOLLOWER if chance.random() < 0.2 else -1,
        )
        expected = Response(request, request.max_bytes)
        answers = tiers.fetcher.fetch_sync(request).partitions
        for asked, answer in zip(request.partitions, answers, strict=True):
            view = tiers.views[asked.partition]
            found = answer.error, bytes(answer.records)
            case = number, asked, request.max_bytes, answer.source, answer.text
            assert found == expected.answer(asked, view, kept[asked.partition]), case
            assert answer.high_watermark == view.high_watermark
            sources.add(answer.source.value)
    assert sources == {"local", "remote", "no_budget", "error"}


def _any_ask(tiers: TwoTiers, partition: TopicIdPartition, chance: random.Random) -> FetchPartition:
    """The same partition may come twice."""
    return FetchPartition(
        partition=partition,
        fetch_offset=any_offset(tiers.views[partition], chance),
        max_bytes=chance.choice(LIMITS),
    )
