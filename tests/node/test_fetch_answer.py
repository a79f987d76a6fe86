"""Encoded Fetch answers are what kafka-python decodes, in every version."""

from __future__ import annotations

import uuid

import pytest
from kafka.protocol.consumer import FetchResponse

from tierlog.log.index_files import AbortedTransaction
from tierlog.node.error_codes import ErrorCode
from tierlog.node.fetch_answer import FetchedPartition, FetchedTopic, encode_fetch

ABORTED = AbortedTransaction(producer_id=7, first_offset=10, last_offset=20, last_stable_offset=30)


@pytest.mark.parametrize("version", range(4, 19))
def test_an_answer_is_decoded_by_kafka_python(version: int) -> None:
    topic_id = uuid.uuid4()
    rows = [
        FetchedPartition(0, 0, 100, 90, 5, [ABORTED, ABORTED], memoryview(b"r" * 300)),
        FetchedPartition(1, ErrorCode.OFFSET_OUT_OF_RANGE),
        FetchedPartition(2, 0, 3, 3, 0, [], b"x"),
    ]
    topics = [FetchedTopic("orders", topic_id, rows), FetchedTopic("empty", topic_id, [])]
    body = encode_fetch(version, ErrorCode.NONE, topics)
    found = FetchResponse.decode(b"".join(map(bytes, body.parts)), version=version)
    assert len(found.responses) == 2
    topic = found.responses[0]
    assert (topic.topic_id if version >= 13 else topic.topic) in (topic_id, "orders")
    for expected, partition in zip(rows, topic.partitions, strict=True):
        assert partition.partition_index == expected.index
        assert partition.error_code == expected.error
        assert partition.high_watermark == expected.high_watermark
        assert partition.last_stable_offset == expected.last_stable_offset
        assert partition.log_start_offset == (expected.log_start_offset if version >= 5 else -1)
        assert bytes(partition.records or b"") == bytes(expected.records)
        aborted = [
            (one.producer_id, one.first_offset) for one in partition.aborted_transactions or ()
        ]
        assert aborted == [(one.producer_id, one.first_offset) for one in expected.aborted or ()]


def test_records_are_not_copied() -> None:
    records = memoryview(bytes(1000))
    topic = FetchedTopic("orders", None, [FetchedPartition(0, records=records)])
    assert any(part is records for part in encode_fetch(12, ErrorCode.NONE, [topic]).parts)
