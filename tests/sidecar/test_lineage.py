"""The leader epochs of a log whose beginning only the archive has."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.reader.lineage import extended
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.sidecar.lineage import ambiguous, from_remote_segments
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, random_kafka_uuid

PARTITION = TopicIdPartition(topic_id=random_kafka_uuid(), topic="t", partition=0)


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochEntry(*entry) for entry in entries))


def segment(
    start: int, end: int, *entries: tuple[int, int], truncation_offset: int | None = None
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(topic_id_partition=PARTITION, id=random_kafka_uuid()),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=1,
        leader_epochs=entries,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        truncation_offset=truncation_offset,
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[LeaderEpochs, list[RemoteLogSegmentMetadata], int]:
    """A log's whole history, the segments of its archived part, and where the broker's begins."""
    count = draw(st.integers(1, 6))
    numbers = sorted(draw(st.sets(st.integers(0, 20), min_size=count, max_size=count)))
    starts = sorted(draw(st.sets(st.integers(1, 60), min_size=count - 1, max_size=count - 1)))
    whole = epochs(*zip(numbers, [0, *starts], strict=True))
    bounds = [0, *sorted(draw(st.sets(st.integers(1, 79), max_size=6))), 80]
    segments = [
        segment(first, after - 1, *whole.clipped(first, after).entries)
        for first, after in pairwise(bounds)
    ]
    return whole, segments, draw(st.integers(0, 80))


@given(histories())
def test_the_archive_gives_back_what_the_broker_has_cut(
    drawn: tuple[LeaderEpochs, list[RemoteLogSegmentMetadata], int],
) -> None:
    whole, segments, local_start = drawn
    local = whole.clipped(local_start, 1000)
    assert not ambiguous(segments)
    assert from_remote_segments(local, segments) == whole
    assert extended(local, whole) == whole
    assert from_remote_segments(whole, segments) == whole


def test_a_deposed_leaders_segments_are_not_part_of_it() -> None:
    segments = [
        segment(0, 99, (0, 0), (2, 70)),
        segment(100, 150, (3, 100)),
        segment(100, 200, (4, 100), (5, 110)),
    ]
    assert ambiguous(segments)
    found = from_remote_segments(epochs((5, 120)), segments)
    assert found == epochs((0, 0), (2, 70), (4, 100), (5, 110))
    # Cut where the next leader began, as its expiration task records it.
    segments = [
        segment(50, 99, (3, 50)),
        segment(80, 150, (5, 80), truncation_offset=80),
        segment(100, 200, (6, 100)),
    ]
    assert not ambiguous(segments)
    assert from_remote_segments(epochs((6, 120)), segments) == epochs((3, 50), (6, 100))


def test_what_was_never_archived_belongs_to_the_epoch_before() -> None:
    found = from_remote_segments(epochs((5, 120), (6, 130)), [segment(0, 49, (0, 0))])
    assert found == epochs((0, 0), (5, 120), (6, 130))


def test_the_brokers_word_counts_from_where_it_begins() -> None:
    known = epochs((0, 0), (5, 100), (6, 130))
    assert extended(epochs((7, 120)), known) == epochs((0, 0), (5, 100), (7, 120))
    assert extended(epochs((3, 120)), known) == epochs((0, 0), (3, 120))
    assert extended(epochs((7, 0)), known) == epochs((7, 0))
    assert extended(epochs(), known) == epochs()
