"""Takeovers: which segments count after another broker has taken a partition over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.remote.segment.sections import DESCRIPTION, SECTIONS
from tierlog.remote.segment.bucket import Problem, is_left_out, list_segments
from tierlog.remote.segment.description import decode_segment, encode_segment
from tierlog.remote.segment.indexes import encode_indexes
from tierlog.remote.segment.layout import (
    Takeover,
    indexes_key,
    is_marker,
    log_key,
    parse_takeover,
    partition_prefix,
    takeover_key,
)
from tierlog.remote.urls import open_store
from tierlog.tools.listed_segments import list_in_columns
from tierlog.tools.rebuild.segment import Outcome
from tierlog.tools.rebuild.store_plan import look_at_listed

SEGMENT = DESCRIPTION.metadata
PARTITION = SEGMENT.segment_id.topic_id_partition
BROKER, END = SEGMENT.broker_id, SEGMENT.end_offset


def test_key_of_a_takeover_is_a_marker() -> None:
    takeover = Takeover(410, 7, -1)
    key = takeover_key(PARTITION, takeover)
    assert key.endswith(f"/{410:020d}-0000000007--1.takeover")
    assert parse_takeover(key) == (partition_prefix(PARTITION), takeover)
    assert is_marker(key)
    for other in (f"x{key}/y", key + "s", key.replace("0000000007", "7"), "a.takeover"):
        assert parse_takeover(other) is None


def test_claim_epoch_survives_the_indexes_object() -> None:
    for claim_epoch in (None, 0, 7):
        data = encode_segment(replace(DESCRIPTION, claim_epoch=claim_epoch))
        assert (b"claim_epoch" in data) is (claim_epoch is not None)
        assert decode_segment(data, path="x", position=0).claim_epoch == claim_epoch


@pytest.mark.parametrize(
    ("claim_epoch", "takeover", "expected"),
    [
        (6, Takeover(0, 7, BROKER + 1), True),
        (6, Takeover(END, 7, BROKER + 1), True),
        (6, Takeover(END + 1, 7, BROKER + 1), False),
        (7, Takeover(0, 7, BROKER + 1), False),
        (8, Takeover(0, 7, BROKER + 1), False),
        (6, Takeover(0, 7, BROKER), False),
        (None, Takeover(0, 7, BROKER + 1), False),
    ],
)
def test_later_takeover_of_another_broker_leaves_out_what_ends_behind_it(
    claim_epoch: int | None, takeover: Takeover, expected: bool
) -> None:
    description = replace(DESCRIPTION, claim_epoch=claim_epoch)
    assert is_left_out(description, [takeover]) is expected
    store = open_store("memory:///takeovers")
    store.put_bytes(log_key(SEGMENT), bytes(SEGMENT.segment_size_bytes), overwrite=True)
    store.put_bytes(indexes_key(SEGMENT), encode_indexes(description, SECTIONS), overwrite=True)
    key = takeover_key(PARTITION, takeover)
    store.put_bytes(key, b"")
    problems: list[Problem] = []
    segments = list(list_segments(store, on_problem=problems.append))
    assert len(segments) == (not expected)
    assert [one.reason for one in problems] == ["deposed_copy"] * expected
    (listed,) = list_in_columns(store.list(), lambda info: pytest.fail(info.key))
    (looked,) = look_at_listed(store, [listed])
    outcomes = [one.row.outcome for one in looked.outcomes()]
    assert outcomes == [Outcome.LEFT_ALONE if expected else Outcome.SOUND]
    store.delete(key)
