"""Identities: what they accept, how they look, and that they order and hash by value."""

from __future__ import annotations

import uuid
from itertools import chain, repeat

import pytest

from tierlog.types import (
    RemoteLogSegmentId,
    StopReason,
    TopicIdPartition,
    check_topic_name,
    kafka_uuid,
    kafka_uuid_bytes,
    random_kafka_uuid,
)

TOPIC_ID = "-AAAAAAAAAAAAAAAAAAAAQ"


def test_uuid_text_is_what_kafka_prints() -> None:
    # Bytes chosen for both characters in which URL-safe base64 differs from the common one.
    value = uuid.UUID("fbefbeff-ffff-4fff-bfff-fffffffffffb")
    assert kafka_uuid(value) == "----____T_-_________-w"
    assert kafka_uuid(value.bytes) == kafka_uuid(bytearray(value.bytes)) == kafka_uuid(value)
    assert kafka_uuid_bytes("----____T_-_________-w") == value.bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "A" * 21,
        "A" * 23,
        "A" * 22 + "==",
        "A" * 21 + "B",
        "A" * 21 + "+",
        "A" * 21 + "\n",
        "٣" * 22,
        " " * 22,
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kafka uuid"):
        kafka_uuid_bytes(text)


def test_uuids_have_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        kafka_uuid(b"fifteen bytes..")


def test_random_ids_never_start_with_a_dash() -> None:
    source = chain([b"\xf8" + bytes(15)], repeat(b"\x10" + bytes(15)))
    text = random_kafka_uuid(lambda size: next(source)[:size])
    assert text == kafka_uuid(uuid.UUID(bytes=b"\x10" + bytes(15), version=4))
    assert random_kafka_uuid() != random_kafka_uuid()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249, "-", "_"])
def test_topic_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a/b", "a b", "a\n", "ä", "a:b", "../x", "٣", "a\0"]
)
def test_no_topic_names(name: str) -> None:
    with pytest.raises(ValueError, match="topic name"):
        TopicIdPartition(topic_id=TOPIC_ID, topic=name, partition=0)


@pytest.mark.parametrize(
    ("topic_id", "partition"), [("A" * 22, 0), ("bad", 0), (TOPIC_ID, -1), (TOPIC_ID, 2**31)]
)
def test_no_partitions(topic_id: str, partition: int) -> None:
    with pytest.raises(ValueError, match=r"orders|uuid"):
        TopicIdPartition(topic_id=topic_id, topic="orders", partition=partition)


def test_identities_are_values() -> None:
    one = TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=7)
    same = TopicIdPartition(topic_id=TOPIC_ID, topic="orders", partition=7)
    assert one == same
    assert len({one, same}) == 1
    assert str(one) == f"{TOPIC_ID}:orders-7"
    segment_id = RemoteLogSegmentId(topic_id_partition=one, id=TOPIC_ID)
    assert str(segment_id) == f"{TOPIC_ID}:orders-7:{TOPIC_ID}"
    with pytest.raises(ValueError, match="uuid"):
        RemoteLogSegmentId(topic_id_partition=one, id="x")


def test_stop_reasons_are_their_text() -> None:
    assert {reason.value for reason in StopReason} == {
        "end",
        "torn_tail",
        "zero_tail",
        "bad_crc",
        "bad_length",
        "unknown_magic",
        "bad_header",
        "offset_order",
        "memory_budget",
    }
    assert StopReason("end") is StopReason.END
    assert f"{StopReason.BAD_CRC}" == "bad_crc"
