"""Records of the metadata topic against the bytes, the serde and the partitioner of Kafka."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.kafka_tools import run_tool
from tierlog.errors import CorruptDataError
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.records import (
    MetadataRecord,
    RemoteLogMetadata,
    decode_record,
    encode_record,
    make_note_event,
    metadata_partition,
)
from tierlog.testing.segments import uuid_of
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

SERDE = Path(__file__).with_name("MetadataSerde.java")
PARTITION = TopicIdPartition(topic_id="lZ6vvmajTWKDBUTV6SQAtQ", topic="topic1", partition=42)
SEGMENT_ID = RemoteLogSegmentId(topic_id_partition=PARTITION, id="adh9f8BMS4anaUnD8KWfWg")
SEGMENT = RemoteLogSegmentMetadata(
    segment_id=SEGMENT_ID,
    start_offset=100,
    end_offset=1000,
    max_timestamp_ms=1_000_000_000,
    broker_id=2,
    event_timestamp_ms=2_000_000_000,
    segment_size_bytes=100_500,
    leader_epochs=((0, 100), (1, 200), (2, 300)),
)
HEAD = "07746f70696331959eafbe66a34d62830544d5e92400b50000002a00"
ID = HEAD + "69d87d7fc04c4b86a76949c3f0a59f5a00"
BODY = (
    "010000"
    + ID
    + "000000000000006400000000000003e800000002000000003b9aca000000000077359400"
    + "040000000000000000000000640000000001"
    + "00000000000000c80000000002000000000000012c0000018894"
)
# What Kafka 4.3's own serde wrote.
VECTORS: list[tuple[RemoteLogMetadata, str]] = [
    (SEGMENT, BODY + "000000"),
    (replace(SEGMENT, txn_index_empty=True), BODY + "000001000101"),
    (
        RemoteLogSegmentMetadataUpdate(
            segment_id=SEGMENT_ID,
            broker_id=2,
            event_timestamp_ms=2_000_000_001,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            custom_metadata=b"\1\2\3",
        ),
        "010100" + ID + "0000000200000000773594010401020301" + "00",
    ),
    (
        RemoteLogSegmentMetadataUpdate(
            segment_id=SEGMENT_ID,
            broker_id=2,
            event_timestamp_ms=2_000_000_001,
            state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        ),
        "010100" + ID + "000000020000000077359401" + "000200",
    ),
    *(
        (
            RemotePartitionDeleteMetadata(
                partition=PARTITION,
                broker_id=3,
                event_timestamp_ms=2_000_000_002,
                state=state,
            ),
            "010200" + HEAD + "000000030000000077359402" + f"0{state.value}00",
        )
        for state in RemotePartitionDeleteState
    ),
]


def kafka_says(lines: list[str]) -> list[str]:
    """Kafka's answer to each line, from one JVM."""
    answers = run_tool(str(SERDE), input_text="".join(f"{line}\n" for line in lines))
    found = answers.splitlines()
    assert len(found) == len(lines)
    return found


@pytest.mark.parametrize(("event", "value"), VECTORS)
def test_bytes_are_kafkas(event: RemoteLogMetadata, value: str) -> None:
    assert encode_record(MetadataRecord(event)).hex() == value
    assert decode_record(bytes.fromhex(value)) == MetadataRecord(event)


@pytest.mark.parametrize(
    ("lineage", "size_bytes"),
    [((0, 1, 2), 100_500), ((1, 2), 100_500), ((2,), 100_500), ((2, 3), 100_500), ((3, 4), 0)],
)
def test_kafkas_segment_counts_whole_for_its_last_epoch(
    lineage: tuple[int, ...], size_bytes: int
) -> None:
    """Kafka's record does not say how many bytes each epoch has."""
    added, finished = (decode_record(bytes.fromhex(VECTORS[row][1])).event for row in (0, 2))
    assert isinstance(added, RemoteLogSegmentMetadata)
    assert isinstance(finished, RemoteLogSegmentMetadataUpdate)
    manager = InMemoryRemoteLogMetadataManager()
    manager.add(added)
    manager.update(finished)
    assert added.bytes_per_epoch is None
    assert sum(manager.remote_log_size(PARTITION, epoch) for epoch in lineage) == size_bytes


@pytest.mark.parametrize(("event", "value"), VECTORS)
def test_a_leader_epoch_is_one_tagged_field_more(event: RemoteLogMetadata, value: str) -> None:
    data = bytes.fromhex(value)
    tag_count = 1 if value.endswith("0001000101") else 0
    tags = 1 + 3 * tag_count
    expected = data[:-tags] + bytes([tag_count + 1]) + data[len(data) - tags + 1 :]
    # Tag 21002 as a varint, four bytes, epoch 258.
    expected += bytes.fromhex("8aa4010400000102")
    assert encode_record(MetadataRecord(event, 258)) == expected
    assert decode_record(expected) == MetadataRecord(event, 258)


@pytest.mark.parametrize(("event", "value"), VECTORS[:4])
def test_a_truncation_offset_is_one_more(event: RemoteLogMetadata, value: str) -> None:
    assert not isinstance(event, RemotePartitionDeleteMetadata)
    cut = replace(event, truncation_offset=515)
    # Tag 21003 as a varint, eight bytes, offset 515.
    expected = "8aa4010400000102" + "8ba401080000000000000203"
    assert encode_record(MetadataRecord(cut, 258)).hex().endswith(expected)
    assert encode_record(MetadataRecord(cut)).hex().startswith(value[:-10])
    assert decode_record(encode_record(MetadataRecord(cut))) == MetadataRecord(cut)


def test_a_note_is_the_end_of_a_segment_that_never_was() -> None:
    head = "010100" + HEAD + "00" * 16 + "00" + "ff" * 12 + "0003"
    claim = MetadataRecord(make_note_event(PARTITION), leader_epoch=258)
    log_start = MetadataRecord(make_note_event(PARTITION), log_start_offset=515)
    values = [head + "018aa4010400000102", head + "018ca401080000000000000203"]
    assert [encode_record(record).hex() for record in (claim, log_start)] == values
    assert [decode_record(bytes.fromhex(value)) for value in values] == [claim, log_start]
    for text in kafka_says(values):
        assert text.startswith(head + "00 RemoteLogSegmentMetadataUpdate{")
        assert "id=AAAAAAAAAAAAAAAAAAAAAA" in text
        assert "state=DELETE_SEGMENT_FINISHED" in text


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_a_log_start_that_is_none(offset: int) -> None:
    with pytest.raises(ValueError, match="an offset is in"):
        encode_record(MetadataRecord(make_note_event(PARTITION), log_start_offset=offset))


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_a_leader_epoch_that_is_none(epoch: int) -> None:
    with pytest.raises(ValueError, match="leader epoch"):
        encode_record(MetadataRecord(SEGMENT, epoch))


@pytest.mark.parametrize(
    ("topic_id", "of_50", "of_5"),
    [
        ("lZ6vvmajTWKDBUTV6SQAtQ", (9, 49, 33), (4, 4, 3)),
        ("AAAAAAAAAAAAAAAAAAAAAQ", (35, 6, 0), (0, 1, 0)),
        ("adh9f8BMS4anaUnD8KWfWg", (19, 3, 16), (4, 3, 1)),
    ],
)
def test_partitions_are_kafkas(
    topic_id: str, of_50: tuple[int, ...], of_5: tuple[int, ...]
) -> None:
    for number, in_50, in_5 in zip((0, 1, 42), of_50, of_5, strict=True):
        partition = TopicIdPartition(topic_id=topic_id, topic="any", partition=number)
        assert metadata_partition(partition, 50) == in_50
        assert metadata_partition(partition, 5) == in_5
        assert metadata_partition(partition, 1) == 0


def test_a_topic_without_partitions_has_none_to_choose() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        metadata_partition(PARTITION, 0)


# -- any event

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
CUTS = st.none() | st.integers(0, 2**63 - 1)
CUSTOM = st.none() | st.binary(max_size=200)
UUIDS = st.integers(0, 2**64).map(lambda number: uuid_of(str(number)))
TOPICS = st.text("abcdefgXYZ0189._-", min_size=1, max_size=249).filter(lambda t: t.strip("."))


@st.composite
def st_partition(draw: st.DrawFn) -> TopicIdPartition:
    return TopicIdPartition(
        topic_id=draw(UUIDS), topic=draw(TOPICS), partition=draw(st.integers(0, 2**31 - 1))
    )


@st.composite
def st_segment(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start_offset = draw(st.integers(0, 2**62))
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=5)))
    starts = sorted(draw(st.sets(st.integers(0, 999), min_size=len(epochs), max_size=len(epochs))))
    sizes = [draw(st.integers(0, 2**28)) for _ in epochs]
    counted = draw(st.booleans())
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(topic_id_partition=draw(st_partition()), id=draw(UUIDS)),
        start_offset=start_offset,
        end_offset=start_offset + draw(st.integers(0, 2**40)),
        max_timestamp_ms=draw(INT64),
        broker_id=draw(INT32),
        event_timestamp_ms=draw(INT64),
        segment_size_bytes=sum(sizes),
        leader_epochs=tuple(
            (epoch, start_offset + start - starts[0])
            for epoch, start in zip(epochs, starts, strict=True)
        ),
        state=draw(st.sampled_from(RemoteLogSegmentState)),
        txn_index_empty=draw(st.booleans()),
        custom_metadata=draw(CUSTOM),
        bytes_per_epoch=tuple(zip(epochs, sizes, strict=True)) if counted else None,
        log_crc32c=draw(st.none() | st.integers(0, 2**32 - 1)),
        truncation_offset=draw(CUTS),
    )


@st.composite
def st_update(draw: st.DrawFn) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=RemoteLogSegmentId(topic_id_partition=draw(st_partition()), id=draw(UUIDS)),
        broker_id=draw(INT32),
        event_timestamp_ms=draw(INT64),
        state=draw(st.sampled_from(list(RemoteLogSegmentState)[1:])),
        custom_metadata=draw(CUSTOM),
        truncation_offset=draw(CUTS),
    )


@st.composite
def st_delete(draw: st.DrawFn) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        partition=draw(st_partition()),
        broker_id=draw(INT32),
        event_timestamp_ms=draw(INT64),
        state=draw(st.sampled_from(RemotePartitionDeleteState)),
    )


EVENTS = st_segment() | st_update() | st_delete()
LEADER_EPOCHS = st.none() | st.integers(0, 2**31 - 1)
RECORDS = st.builds(MetadataRecord, EVENTS, LEADER_EPOCHS, CUTS)


def known_to_kafka(event: RemoteLogMetadata) -> RemoteLogMetadata:
    """The event without what only tierlog tells."""
    if isinstance(event, RemoteLogSegmentMetadata):
        return replace(event, bytes_per_epoch=None, log_crc32c=None, truncation_offset=None)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return replace(event, truncation_offset=None)
    return event


@given(RECORDS)
def test_every_record_comes_back(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(RECORDS, st.data())
def test_a_record_that_is_cut_is_refused(record: MetadataRecord, data: st.DataObject) -> None:
    value = encode_record(record)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CorruptDataError) as caught:
        decode_record(value[:cut], path="topic-3@17")
    assert caught.value.position <= cut
    assert str(caught.value).startswith("topic-3@17: ")
    with pytest.raises(CorruptDataError, match="more bytes"):
        decode_record(value + b"\0")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_record_or_refused(value: bytes) -> None:
    try:
        record = decode_record(b"\1" + value)
    except CorruptDataError:
        return
    assert decode_record(encode_record(record)) == record


def drawn(count: int) -> list[MetadataRecord]:
    """The same records in every run."""
    found: list[MetadataRecord] = []

    @given(RECORDS)
    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def collect(record: MetadataRecord) -> None:
        found.append(record)

    collect()
    return found


def test_kafka_reads_what_we_write_and_writes_the_same() -> None:
    records = drawn(300)
    kinds = {(type(one.event), one.leader_epoch is None) for one in records}
    assert len(kinds) == 6
    answers = kafka_says([encode_record(record).hex() for record in records])
    for (event, *_), answer in zip(records, answers, strict=True):
        written, _, text = answer.partition(" ")
        assert written == encode_record(MetadataRecord(known_to_kafka(event))).hex()
        assert f"brokerId={event.broker_id}" in text
        assert decode_record(bytes.fromhex(written)) == MetadataRecord(known_to_kafka(event))


def test_what_we_accept_of_damaged_records_kafka_reads_as_we_do() -> None:
    random = Random(20)
    damaged: list[tuple[str, RemoteLogMetadata]] = []
    for record in drawn(150):
        for _ in range(20):
            value = bytearray(encode_record(record))
            value[random.randrange(len(value))] ^= 1 << random.randrange(8)
            try:
                damaged.append((value.hex(), decode_record(value).event))
            except CorruptDataError:
                continue
    assert len(damaged) > 500
    answers = kafka_says([text for text, _ in damaged])
    for (text, event), answer in zip(damaged, answers, strict=True):
        assert answer.split(" ")[0] == encode_record(MetadataRecord(known_to_kafka(event))).hex(), (
            text
        )


def test_our_partitions_are_those_of_kafkas_partitioner() -> None:
    random = Random(4)
    asked = [
        (uuid_of(str(random.random())), random.randrange(2**31), random.randrange(1, 2**31))
        for _ in range(200)
    ]
    answers = kafka_says([f"partition {' '.join(map(str, one))}" for one in asked])
    for (topic_id, number, count), answer in zip(asked, answers, strict=True):
        partition = TopicIdPartition(topic_id=topic_id, topic="any", partition=number)
        assert metadata_partition(partition, count) == int(answer)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "bad_length"),
        ("00", "unknown_version"),
        ("020000", "unknown_version"),
        ("010400", "unknown_record"),
        ("010300", "unknown_record"),
        ("010001", "unknown_version"),
        ("ffffffffff7f", "bad_length"),
        ("0100000100", "bad_length"),
        ("01000000", "bad_value"),
        ("010000ffffffff0f61", "bad_length"),
        ("010000028000", "bad_value"),
        # A leader epoch below 0, and one of 3 bytes.
        ("010200" + HEAD + "00" * 13 + "018aa40104ffffffff", "bad_value"),
        ("010200" + HEAD + "00" * 13 + "018aa40103000001", "bad_value"),
        # A truncation offset below 0.
        ("010100" + ID + "00" * 12 + "0001018ba40108" + "ff" * 8, "bad_value"),
        # Two megabytes of leader epochs are announced, none follow.
        ("010000" + ID + "00" * 36 + "ffff7f", "bad_length"),
    ],
)
def test_bad_records_are_refused_with_a_reason(value: str, reason: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode_record(bytes.fromhex(value))
    assert caught.value.reason == reason
