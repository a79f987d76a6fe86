"""Transactions over an unclean change of leaders, on real brokers: what the deposed leader had
tiered says that they ended otherwise than they did.

Truth is what a consumer of the new leader got while all of its log was local. (Kafka 4.3 itself
believes the deposed leader's transaction indexes once it reads this log from the tier.)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import tierlog
from tests.fetch.two_tiers import TwoTiers
from tests.fetch.views import consumed, whole_view
from tests.fetch.waiting import WAIT_S, Gated, PromptPool, remade
from tests.kafka_tools.golden import DATA_DIR, truth_records
from tests.kafka_tools.support import wait_until
from tests.oracle import batches as oracle
from tierlog.clock import ManualClock
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.types import FetchPartition, FetchSource, FetchView, IsolationLevel
from tierlog.tiering.copy import SegmentCopier, prepare
from tierlog.types import TopicIdPartition

SET, TOPIC = "deposed", "orders"
DEPOSED, LEADER = DATA_DIR / SET / "disk2", DATA_DIR / SET / "disk3"
BOTH = pytest.mark.parametrize("isolation", list(IsolationLevel))


def log_of(folder: Path) -> PartitionLog:
    return replace(open_log_dir(folder).partition(TOPIC, 0), log_start_offset=0)


def expected(isolation: IsolationLevel) -> list[int]:
    committed = isolation is IsolationLevel.READ_COMMITTED
    rows = truth_records(SET, TOPIC, 0)
    return [row["offset"] for row in rows if row["read_committed"] or not committed]


@dataclass
class Tiered:
    """The new leader's log, and a store to which first one and then the other copied."""

    tiers: TwoTiers
    partition: TopicIdPartition
    whole: FetchView

    def fetch(
        self, offset: int, max_bytes: int, isolation: IsolationLevel
    ) -> tuple[list[int], int]:
        """What a consumer is shown of one answer, and where the next one begins."""
        asked = FetchPartition(partition=self.partition, fetch_offset=offset, max_bytes=max_bytes)
        (answer,) = self.tiers.fetch([asked], isolation_level=isolation)
        assert answer.error == 0, answer.text
        rows = consumed(answer.records, offset, answer.aborted_transactions)
        batches, _, _ = oracle.scan(bytes(answer.records))
        return [row[0] for row in rows], batches[-1].last_offset + 1


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Tiered]:
    tiers = TwoTiers(tmp_path)
    leader = log_of(LEADER)
    assert leader.topic_id is not None
    assert leader.leader_epochs is not None
    cut = leader.leader_epochs.entries[-1].start_offset
    partition = TopicIdPartition(topic_id=leader.topic_id, topic=TOPIC, partition=0)
    copier = SegmentCopier(tiers.storage, tiers.metadata, clock=ManualClock(), broker_id=1)
    for log, start in ((log_of(DEPOSED), 0), (leader, cut)):
        for segment in log.rolled_segments:
            # As a broker does: what the lineage has in the tier is not copied again.
            if segment.next_base_offset is None or segment.next_base_offset <= start:
                continue
            snapshot = ProducerStates(log).before(segment)
            with segment.open() as handle:
                ready = prepare(log, segment, handle, producer_snapshot=snapshot, allow_gaps=True)
                copier.copy(ready, handle)
    yield Tiered(tiers, partition, whole_view(LEADER, f"{TOPIC}-0"))
    tiers.close()


def test_the_logs_have_what_this_is_about() -> None:
    """Leaders whose logs part in the middle of a segment, and ends that differ."""
    deposed, leader = log_of(DEPOSED), log_of(LEADER)
    assert deposed.leader_epochs is not None
    assert leader.leader_epochs is not None
    cut = leader.leader_epochs.entries[-1].start_offset
    straddling = [
        one.base_offset
        for one in deposed.rolled_segments
        if one.base_offset < cut < (one.next_base_offset or 0)
    ]
    assert straddling
    assert straddling[0] not in [one.base_offset for one in leader.segments]
    assert deposed.segments[-1].base_offset > cut + 100
    assert [len(one.leader_epochs.entries) for one in (deposed, leader)] == [1, 2]  # type: ignore[union-attr]
    shown = set(expected(IsolationLevel.READ_COMMITTED))
    # That is what Kafka's first leader showed of the same offsets.
    alone = [int(one) for piece in tierlog.read(DEPOSED, TOPIC, 0, 0, cut) for one in piece.offset]
    committed = {
        int(one)
        for piece in tierlog.read(DEPOSED, TOPIC, 0, 0, cut, isolation_level="read_committed")
        for one in piece.offset
    }
    assert committed - shown, "committed by the first, aborted by the second"
    assert (shown & set(alone)) - committed, "and the other way round"


@BOTH
@pytest.mark.parametrize("limit", [300, 1 << 20])
def test_a_consumer_wherever_the_border_is(
    tiered: Tiered, isolation: IsolationLevel, limit: int
) -> None:
    wanted = expected(isolation)
    for segment in tiered.whole.log.segments:
        tiered.tiers.views[tiered.partition] = tiered.whole
        tiered.tiers.drop_local(tiered.partition, segment.base_offset)
        offset, seen = 0, list[int]()
        while offset < tiered.whole.high_watermark:
            rows, offset = tiered.fetch(offset, limit, isolation)
            seen += rows
        assert seen == wanted, segment.base_offset


@BOTH
def test_from_every_offset(tiered: Tiered, isolation: IsolationLevel) -> None:
    wanted = expected(isolation)
    last = tiered.whole.log.segments[-1].base_offset
    tiered.tiers.views[tiered.partition] = tiered.whole
    tiered.tiers.drop_local(tiered.partition, last)
    for offset in range(tiered.whole.high_watermark):
        rows, end = tiered.fetch(offset, 4_000, isolation)
        assert rows == [one for one in wanted if offset <= one < end], offset


@BOTH
def test_the_short_way(tiered: Tiered, isolation: IsolationLevel, tmp_path: Path) -> None:
    """A store alone, as far as it goes, and beside a directory that has less and less."""
    wanted = expected(isolation)
    name = isolation.name.lower()
    url = tiered.tiers.storage.url
    active = tiered.whole.log.segments[-1].base_offset
    logs = tmp_path / "logs"
    shutil.copytree(LEADER, logs)
    for segment in tiered.whole.log.segments:
        for path in logs.rglob("*.log"):
            if int(path.stem) < segment.base_offset:
                path.unlink()
        pieces = tierlog.read(logs, TOPIC, 0, store=url, isolation_level=name)  # type: ignore[arg-type]
        assert [int(one) for piece in pieces for one in piece.offset] == wanted
    pieces = tierlog.read(url, TOPIC, 0, isolation_level=name)  # type: ignore[arg-type]
    seen = [int(one) for piece in pieces for one in piece.offset]
    assert seen == [one for one in wanted if one < active]


def test_what_comes_late_of_the_deposed_leader_is_not_taken_for_the_next_ones(
    tiered: Tiered,
) -> None:
    """By a host that names no leader epochs: the history of the log says whose offsets they are."""
    tiers, partition = tiered.tiers, tiered.partition
    tiers.pool.close()
    tiers.pool = PromptPool(1, 0)
    gate = Gated(tiers.remote)
    tiers.gate = gate  # type: ignore[attr-defined]
    tiers.fetcher = remade(tiers, max_remote_wait_ms=1)
    offset, end = 100, 200
    request = FetchPartition(partition=partition, fetch_offset=offset, max_bytes=2_000)

    def view(folder: Path) -> FetchView:
        shown = whole_view(folder, f"{TOPIC}-0")
        return replace(
            shown, local_log_start_offset=end, high_watermark=end, last_stable_offset=end
        )

    tiers.views[partition] = view(DEPOSED)
    gate.open.clear()
    (empty,) = tiers.fetch([request])
    assert (empty.source, empty.size_bytes) == (FetchSource.REMOTE, 0)
    gate.open.set()
    wait_until(lambda: not tiers.pool.running(), WAIT_S)
    tiers.fetcher.max_remote_wait_ms = WAIT_S * 1_000
    tiers.views[partition] = view(LEADER)
    (answer,) = tiers.fetch([request])
    batches, _, _ = oracle.scan(bytes(answer.records))
    assert {one.leader_epoch for one in batches} == {2}
    assert gate.reads == 2
