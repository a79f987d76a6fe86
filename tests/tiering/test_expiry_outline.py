"""A pass of expiration that has nothing to delete looks at no segment but the first one, and takes
the archive's size from `remote_log_size` (KIP-852)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiering.hosts import GoldenLog
from tests.tiering.node import Node, rolled
from tests.tiering.world import World, overlaps, st_world
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.metrics.server import start_metrics_server
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.partition import PartitionMetadata
from tierlog.tiering.partition_work import Happened
from tierlog.tiering.retention import decide_retention
from tierlog.tiering.retention_outline import (
    OutlineFacts,
    expires_nothing,
    facts_of_front,
    take_front,
)
from tierlog.tiering.truncation import truncations
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, kafka_uuid

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
MINUTES_MS = 700_000


class CountedMetadata(InMemoryRemoteLogMetadataManager):
    """Counts how often all segments were listed, and how many segments were handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = self.segments = 0
        self.ready = True

    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        found = super().list(partition, epoch)
        self.lists += 1
        self.segments += len(found)
        return found

    def segments_from(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        found = super().segments_from(partition, offset)
        self.segments += len(found)
        return found

    def segments_by_offset(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        for segment in super().segments_by_offset(partition):
            self.segments += 1
            yield segment

    def overlapping_segments(
        self, partition: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        found = super().overlapping_segments(partition)
        self.segments += len(found)
        return found

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self.ready and super().is_ready(partition)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.metadata = CountedMetadata()
    made.restart()
    return made


def counted(node: Node) -> CountedMetadata:
    assert isinstance(node.metadata, CountedMetadata)
    return node.metadata


def expire(node: Node) -> tuple[int, int]:
    """One full pass of the expiration task: how many lists, and how many segments, it asked for."""
    metadata = counted(node)
    node.clock.advance(MINUTES_MS)
    metadata.lists = metadata.segments = 0
    assert node.manager.expiration_pool.run_due()
    return metadata.lists, metadata.segments


def pretend_archived(log: GoldenLog, metadata: CountedMetadata, count: int) -> int:
    """So many finished segments before the log's own, a minute apart; the bytes of all of them."""
    base, size_bytes = 0, 1_000
    for number in range(count):
        written_ms = 1_700_000_000_000 + 60_000 * number
        segment = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(
                topic_id_partition=log.partition, id=kafka_uuid(b"%016d" % number)
            ),
            start_offset=base + number,
            end_offset=base + number,
            max_timestamp_ms=written_ms,
            broker_id=1,
            event_timestamp_ms=written_ms,
            segment_size_bytes=size_bytes,
            leader_epochs=((0, base),),
            bytes_per_epoch=((0, size_bytes),),
        )
        metadata.add(segment)
        metadata.update(segment.update_to(FINISHED, event_timestamp_ms=written_ms))
    return count * size_bytes


@pytest.mark.parametrize("count", [10, 139])
def test_a_pass_with_nothing_to_delete_asks_for_as_many_segments_however_many_there_are(
    node: Node, tmp_path: Path, count: int
) -> None:
    log = GoldenLog(tmp_path, "epochs-0", retention_ms=10**12)
    total_bytes = pretend_archived(log, counted(node), count)
    # What is local lies above the archive.
    log.delete_local_segments(rolled(log)[1])
    log.configure(retention_bytes=total_bytes + sum(one.size_bytes for one in log.log.segments))
    node.lead(log, 9)
    assert expire(node) == (0, 0)
    assert node.told.of(Happened.DELETED) == []
    shown = node.manager.metrics.snapshot().total_sums.remote_log
    assert shown is not None
    assert shown[:2] == (total_bytes, count)


@pytest.mark.parametrize("rule", ["retention_bytes", "retention_ms", "log_start_offset"])
@pytest.mark.parametrize("count", [20, 139])
@pytest.mark.parametrize("going", [1, 5])
def test_as_many_segments_are_asked_for_as_must_go_and_one_more(
    node: Node, tmp_path: Path, rule: str, count: int, going: int
) -> None:
    log = GoldenLog(tmp_path, "epochs-0", retention_ms=10**15)
    total_bytes = pretend_archived(log, counted(node), count)
    log.delete_local_segments(rolled(log)[1])
    node.lead(log, 9)
    assert expire(node) == (0, 0)
    now_ms = node.clock.now_ms() + MINUTES_MS
    match rule:
        case "retention_bytes":
            local_bytes = sum(one.size_bytes for one in log.log.segments)
            log.configure(retention_bytes=total_bytes + local_bytes - going * 1_000)
        case "retention_ms":
            log.configure(retention_ms=now_ms - 1_700_000_000_000 - 60_000 * going + 30_000)
        case _:
            log.log_start_offset = going
            log.changed()
    assert expire(node) == (0, going + 1)
    assert node.told.of(Happened.DELETED) == list(range(going))


def test_size_retention_goes_by_the_sum_until_something_must_go(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "codec-none-0", local_retention_bytes=0)
    sizes, bases = [segment.size_bytes for segment in log.log.segments], rolled(log)
    node.lead(log)
    node.manager.run_until_idle()
    # Without its first segment the log would be one byte too small.
    log.configure(retention_bytes=sum(sizes[1:]) + 1)
    assert expire(node)[0] == 0
    assert node.told.of(Happened.DELETED) == []
    log.configure(retention_bytes=sum(sizes[1:]))
    # The one that goes, and the first that stays.
    assert expire(node) == (0, 2)
    assert node.told.of(Happened.DELETED) == bases[:1]
    log.configure(retention_bytes=sum(sizes[2:]) + 1)
    assert expire(node)[0] == 0
    assert node.told.of(Happened.DELETED) == bases[:1]


def test_a_segment_outside_of_the_lineage_is_no_part_of_the_size(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    node.manager.run_until_idle()
    segments = node.metadata.list(log.partition)
    size_bytes = sum(one.segment_size_bytes for one in segments)
    # A deposed leader of an epoch that the log does not know has copied a MB.
    epochs = [epoch for epoch, _ in log.log.leader_epochs.entries]  # type: ignore[union-attr]
    foreign = next(epoch for epoch in range(epochs[-1]) if epoch not in epochs)
    stray = replace(
        segments[0],
        segment_id=replace(segments[0].segment_id, id=kafka_uuid(b"s" * 16)),
        segment_size_bytes=1_000_000,
        leader_epochs=((foreign, 0),),
        bytes_per_epoch=((foreign, 1_000_000),),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )
    node.metadata.add(stray)
    node.metadata.update(stray.update_to(FINISHED, event_timestamp_ms=0))
    expire(node)
    shown = node.manager.metrics.snapshot().total_sums.remote_log
    assert shown is not None
    assert shown[:2] == (size_bytes, len(segments) + 1)


def test_the_size_is_absent_while_the_metadata_has_no_answer(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    node.manager.run_until_idle()
    expire(node)
    total = sum(one.segment_size_bytes for one in node.metadata.list(log.partition))
    with start_metrics_server(node.manager.metrics, "127.0.0.1") as server:
        assert scraped(server.port) == {f"{name} {total:.1f}" for name in SIZES}
        counted(node).ready = False
        expire(node)
        assert scraped(server.port) == set()
        sums = node.manager.metrics.snapshot().total_sums
        assert sums.remote_log is None
        assert sums.delete_lag is None
        counted(node).ready = True
        expire(node)
        assert scraped(server.port) == {f"{name} {total:.1f}" for name in SIZES}


SIZES = (
    "kafka_server_brokertopicmetrics_remotelogsizebytes",
    'tierlog_topic_remotelogsizebytes{topic="epochs"}',
)


def scraped(port: int) -> set[str]:
    """The sizes that the metrics endpoint shows."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line for line in lines if "remotelogsizebytes" in line and not line.startswith("#")}


def cut(world: World) -> World:
    """As the task does before it decides."""
    cuts = {
        one.segment_id: at for one, at in truncations(world.facts.segments, world.facts.lineage)
    }
    segments = [
        replace(one, truncation_offset=cuts.get(one.segment_id)) for one in world.facts.segments
    ]
    by_offset = sorted(segments, key=lambda o: (o.start_offset, o.end_offset, o.segment_id.id))
    return replace(world, facts=replace(world.facts, segments=tuple(by_offset)))


def known_of(world: World) -> PartitionMetadata:
    known = PartitionMetadata(
        TopicIdPartition(topic_id=kafka_uuid(b"t" * 16), topic="t", partition=0)
    )
    for one in world.facts.segments:
        known.put(one)
    return known


def outline_facts(world: World) -> OutlineFacts:
    facts, known = world.facts, known_of(world)
    outline, lineage = known.outline(), facts.lineage
    earliest = lineage.entries[0].epoch
    return OutlineFacts(
        outline=outline,
        lineage=lineage,
        leader_epoch=facts.leader_epoch,
        log_start_offset=facts.log_start_offset,
        high_watermark=facts.high_watermark,
        remote_bytes=sum(known.remote_log_size(epoch) for epoch, _ in lineage.entries),
        highest_remote_offset=facts.highest_remote_offset,
        local_segments=facts.local_segments,
        highest_offsets={
            epoch: known.highest_offset_for_epoch(epoch) or 0 for epoch in outline.epochs
        },
        unreferenced=[one for one in facts.segments if one.leader_epochs[-1][0] < earliest],
        now_ms=facts.now_ms,
        retention_ms=facts.retention_ms,
        retention_bytes=facts.retention_bytes,
        being_copied=facts.being_copied,
        clock_trusted=facts.clock_trusted,
    )


@settings(max_examples=2_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(st_world())
def test_where_the_outline_says_nothing_expires_the_segments_say_so_too(world: World) -> None:
    if not expires_nothing(outline_facts(world)):
        return
    plan = decide_retention(world.facts)
    assert truncations(world.facts.segments, world.facts.lineage) == []
    if not overlaps(world.facts):
        assert plan.deletions == ()
        assert plan.log_start_offset == world.facts.log_start_offset


@settings(max_examples=2_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(st_world().map(cut), st.integers(0, 20))
def test_the_front_decides_as_all_segments_do(world: World, leader_epoch: int) -> None:
    world = replace(world, facts=replace(world.facts, leader_epoch=leader_epoch))
    facts, known = outline_facts(world), known_of(world)
    front = take_front(facts, every_finished(known))
    few = facts_of_front(facts, front, known.overlapping_segments())
    assert decide_retention(few) == decide_retention(world.facts)


def every_finished(known: PartitionMetadata) -> Iterator[RemoteLogSegmentMetadata]:
    segment = known.finished_after(None)
    while segment is not None:
        yield segment
        segment = known.finished_after(segment)


def test_an_empty_lineage_is_unknown_not_empty() -> None:
    facts = OutlineFacts(
        outline=PartitionMetadata(
            TopicIdPartition(topic_id=kafka_uuid(b"t" * 16), topic="t", partition=0)
        ).outline(),
        lineage=LeaderEpochs(()),
        leader_epoch=0,
        log_start_offset=0,
        high_watermark=0,
        remote_bytes=0,
        highest_remote_offset=-1,
        local_segments=(),
        highest_offsets={},
        unreferenced=(),
        now_ms=0,
        retention_ms=None,
        retention_bytes=None,
    )
    assert not expires_nothing(facts)
    assert expires_nothing(replace(facts, lineage=LeaderEpochs((EpochEntry(0, 0),))))
