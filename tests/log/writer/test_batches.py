"""Batches that a node makes itself are those of the oracle."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle import build
from tests.oracle.model import Record
from tierlog.log.writer.batches import (
    ProducerEpoch,
    encode_batch,
    encode_marker,
    transactional_producer,
)

AT_MS = 1_700_000_000_000


def test_records_are_those_of_the_oracle() -> None:
    rows = [(b"key", b"v" * 200), (b"", None), (b"k" * 70, b"")]
    records = [
        Record(offset=row, timestamp_ms=AT_MS, key=key, value=value)
        for row, (key, value) in enumerate(rows)
    ]
    # The log sets the leader epoch.
    assert encode_batch(rows, AT_MS) == build.batch(records, leader_epoch=-1)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_is_that_of_the_oracle(is_commit: bool) -> None:
    made = encode_marker(
        ProducerEpoch(7, 3), is_commit=is_commit, coordinator_epoch=5, timestamp_ms=AT_MS
    )
    expected = build.end_transaction_marker(
        commit=is_commit,
        offset=0,
        timestamp_ms=AT_MS,
        producer_id=7,
        producer_epoch=3,
        coordinator_epoch=5,
        leader_epoch=-1,
    )
    assert made == expected


def test_the_producer_of_a_transactional_batch_is_found() -> None:
    record = Record(offset=0, timestamp_ms=AT_MS, key=None, value=b"v")
    of_producer: Any = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 0}
    made = build.batch([record], transactional=True, **of_producer)
    assert transactional_producer(made) == ProducerEpoch(7, 3)
    assert transactional_producer(build.batch([record], **of_producer)) is None
    assert transactional_producer(made[:60]) is None
    assert transactional_producer(b"") is None
