"""What producers, consumers and administrators ask a broker about transactions, and a transcript of
its answers.

The same conversation is held with a real broker and with this node. Producer ids differ, so the
transcript has names in their place. A client asks again while the broker still ends the last
transaction; this node answers when it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer

from tests.node.running import RawClient
from tests.oracle import build
from tests.oracle.model import Record

__all__ = ["TOPIC", "Talk", "converse"]

TOPIC = "orders"
_NOT_COMPARED = frozenset(
    {
        *("host", "port", "node_id", "throttle_time_ms", "log_append_time_ms"),
        *("transaction_start_time_ms", "last_timestamp", "coordinator_epoch"),
        *("error_message", "record_errors", "preferred_read_replica", "records"),
        *("current_leader", "node_endpoints", "last_fetched_epoch", "diverging_epoch"),
    }
)
_NOT_READY = (14, 15, 16)  # loading, not available, not coordinator
_CONCURRENT = 51
_MODULES = (producer, consumer, admin, metadata)


class Talk:
    """The answers so far, and the latest producer of each transactional id."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._client = RawClient(address)
        self._names: dict[int, str] = {}
        self.topic_id: Any = None
        # Records and markers of about the same time lie in the same segment.
        self.now_ms = time.time_ns() // 1_000_000
        self.lines: list[str] = []

    def close(self) -> None:
        self._client.socket.close()

    def ask(self, message: Any, version: int, *, is_recorded: bool = True) -> Any:
        """Return the answer, once the broker does not end a transaction any more."""
        while True:
            self._client.request(message, version)
            frame = self._client.read_frame()
            name = type(message).__name__
            assert frame is not None, f"{name} v{version}: disconnected"
            answered = _response_class(name)
            start = 5 if answered.flexible_version_q(version) else 4
            answer = answered.decode(frame[start:], version=version)
            plain = answer.to_dict()
            if not _says(plain, (_CONCURRENT, *_NOT_READY)):
                break
        if is_recorded:
            self.lines.append(f"{name.removesuffix('Request')} v{version}: {self._plain(plain)}")
        return answer

    def say(self, text: str) -> None:
        self.lines.append(f"-- {text}")

    def _plain(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            kept = {name: one for name, one in value.items() if name not in _NOT_COMPARED}
            return {name: self._plain(one, name) for name, one in kept.items()}
        if isinstance(value, list):
            return sorted((self._plain(one) for one in value), key=str)
        if key == "producer_id" and isinstance(value, int) and value > 0:
            return self._names.setdefault(value, f"producer {len(self._names) + 1}")
        return "an id" if key == "topic_id" and value else value


def _response_class(request_name: str) -> Any:
    name = request_name.replace("Request", "Response")
    return next(getattr(one, name) for one in _MODULES if hasattr(one, name))


def _says(value: Any, codes: Sequence[int]) -> bool:
    if isinstance(value, dict):
        return any(
            (key.endswith("error_code") and one in codes) or _says(one, codes)
            for key, one in value.items()
        )
    return isinstance(value, list) and any(_says(one, codes) for one in value)


# -- requests


def init(name: str | None, found: Any = None, timeout_ms: int = 60_000) -> Any:
    return producer.InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=-1 if found is None else found.producer_id,
        producer_epoch=-1 if found is None else found.producer_epoch,
    )


def add(name: str, found: Any, *partitions: tuple[str, int]) -> Any:
    row = producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
    topics = sorted({topic for topic, _ in partitions})
    return producer.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=found.producer_id,
        v3_and_below_producer_epoch=found.producer_epoch,
        v3_and_below_topics=[
            row(name=topic, partitions=[index for one, index in partitions if one == topic])
            for topic in topics
        ],
    )


def add_offsets(name: str, found: Any, group_id: str) -> Any:
    return producer.AddOffsetsToTxnRequest(
        transactional_id=name,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        group_id=group_id,
    )


def end(name: str, found: Any, committed: bool) -> Any:
    return producer.EndTxnRequest(
        transactional_id=name,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        committed=committed,
    )


def commit(name: str, found: Any, group_id: str, offset: int, **more: Any) -> Any:
    topic = producer.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    row = topic.TxnOffsetCommitRequestPartition
    values = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    partition = {"committed_leader_epoch": -1, "committed_metadata": "note"}
    return producer.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group_id,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            topic(
                name=more.pop("topic", TOPIC),
                partitions=[row(partition_index=0, committed_offset=offset, **partition)],
            )
        ],
        **(values | more),
    )


def commit_plainly(group_id: str, offset: int) -> Any:
    topic = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
    row = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1,
        committed_metadata="plain",
    )  # fmt: skip
    return consumer.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic(name=TOPIC, partitions=[row])],
    )


def fetch_offsets(group_id: str, *, stable: bool) -> Any:
    topic = consumer.OffsetFetchRequest.OffsetFetchRequestTopic
    return consumer.OffsetFetchRequest(
        group_id=group_id,
        topics=[topic(name=TOPIC, partition_indexes=[0, 1])],
        require_stable=stable,
    )


def produce(
    talk: Talk, name: str | None, found: Any, sequence: int, *, index: int = 0, **more: Any
) -> Any:
    records = [
        Record(offset=row, timestamp_ms=talk.now_ms, key=None, value=b"%d" % (sequence + row))
        for row in range(2)
    ]
    data = build.batch(
        records,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        base_sequence=sequence,
        transactional=more.get("transactional", True),
    )
    topic = producer.ProduceRequest.TopicProduceData
    row = topic.PartitionProduceData(index=index, records=data)
    return producer.ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[topic(name=TOPIC, topic_id=talk.topic_id, partition_data=[row])],
    )


def fetch(talk: Talk, *, committed: bool) -> Any:
    topic = consumer.FetchRequest.FetchTopic
    row = topic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1,
        log_start_offset=-1, partition_max_bytes=1 << 20,
    )  # fmt: skip
    return consumer.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=TOPIC, topic_id=talk.topic_id, partitions=[row])],
        forgotten_topics_data=[],
        rack_id="",
    )


def list_offsets(*, committed: bool) -> Any:
    topic = consumer.ListOffsetsRequest.ListOffsetsTopic
    row = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    return consumer.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(committed),
        topics=[topic(name=TOPIC, partitions=[row])],
        timeout_ms=30_000,
    )


def describe(*names: str) -> Any:
    return admin.DescribeTransactionsRequest(transactional_ids=list(names))


def list_transactions(*states: str, duration_ms: int = -1) -> Any:
    return admin.ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=[], duration_filter=duration_ms
    )


def describe_producers() -> Any:
    topic = admin.DescribeProducersRequest.TopicRequest
    return admin.DescribeProducersRequest(topics=[topic(name=TOPIC, partition_indexes=[0, 9])])


# -- the conversation


def converse(address: tuple[str, int]) -> list[str]:
    """Return the transcript of the whole conversation. The broker has the topic `TOPIC` with three
    partitions, and no transactional ids yet."""
    talk = Talk(address)
    try:
        _wait_until_ready(talk)
        for part in (
            _refused_starts,
            _first_versions,
            _second_version,
            _fenced_producers,
            _offsets,
            _administration,
        ):
            talk.say(part.__name__)
            part(talk)
    finally:
        talk.close()
    return talk.lines


def _wait_until_ready(talk: Talk) -> None:
    find = metadata.FindCoordinatorRequest(key="x", key_type=1, coordinator_keys=["x"])
    talk.ask(find, 4, is_recorded=False)
    found = metadata.MetadataRequest(
        topics=[metadata.MetadataRequest.MetadataRequestTopic(topic_id=None, name=TOPIC)],
        allow_auto_topic_creation=False,
    )
    talk.topic_id = talk.ask(found, 12, is_recorded=False).topics[0].topic_id
    talk.ask(init("ready"), 4, is_recorded=False)
    group = metadata.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    talk.ask(group, 4, is_recorded=False)
    talk.ask(commit_plainly("g", 0), 8, is_recorded=False)


def finish(talk: Talk, name: str, found: Any, committed: bool, version: int) -> Any:
    """End a transaction, and wait until the broker has written its markers."""
    ended = talk.ask(end(name, found, committed), version)
    while "Prepare" in str(talk.ask(describe(name), 0, is_recorded=False).to_dict()):
        pass
    return ended


class _Nobody:
    producer_id = 1_000_000
    producer_epoch = 0


def _refused_starts(talk: Talk) -> None:
    talk.ask(init(""), 4)
    talk.ask(init("refused", timeout_ms=0), 4)
    talk.ask(init("refused", timeout_ms=900_001), 4)
    for message, version in (
        (add("refused", _Nobody, (TOPIC, 0)), 3),
        (add("", _Nobody, (TOPIC, 0)), 3),
        (add_offsets("refused", _Nobody, "g"), 3),
        (end("refused", _Nobody, True), 4),
        (end("", _Nobody, True), 4),
        (commit("refused", _Nobody, "g", 1), 3),
        (commit("refused", _Nobody, "g", 1), 5),
        (describe("refused", ""), 0),
    ):
        talk.ask(message, version)
    for version in (9, 11, 12):
        talk.ask(produce(talk, "refused", _Nobody, 0), version)


def _first_versions(talk: Talk) -> None:
    """Each partition is added before its first record, and the epoch stays."""
    for version in range(4):
        name = f"v{version}"
        found = talk.ask(init(name), min(version + 1, 5))
        talk.ask(end(name, found, True), version)
        talk.ask(produce(talk, name, found, 0), 9)
        talk.ask(add(name, found, (TOPIC, 0), ("none", 0)), version)
        talk.ask(add(name, found, (TOPIC, 0), (TOPIC, 1)), version)
        talk.ask(produce(talk, name, found, 0), 9)
        talk.ask(produce(talk, name, found, 2), 9)
        talk.ask(produce(talk, name, found, 2), 9)
        talk.ask(produce(talk, name, found, 0, index=2), 9)
        talk.ask(produce(talk, name, found, 0, index=2), 11)
        talk.ask(describe(name), 0)
        talk.ask(describe_producers(), 0)
        talk.ask(fetch(talk, committed=True), 11)
        talk.ask(list_offsets(committed=True), 5)
        talk.ask(list_offsets(committed=False), 5)
        finish(talk, name, found, version % 2 == 0, version)
        talk.ask(describe(name), 0)
        talk.ask(end(name, found, version % 2 == 0), version)
        talk.ask(end(name, found, version % 2 == 1), version)
        talk.ask(produce(talk, name, found, 4), 9)
        talk.ask(add(name, found, (TOPIC, 0)), version)
        talk.ask(produce(talk, name, found, 4), 9)
        finish(talk, name, found, version % 2 == 1, version)
        talk.ask(fetch(talk, committed=True), 11)
        talk.ask(describe_producers(), 0)


def _second_version(talk: Talk) -> None:
    """Records add their partition, and every transaction has an epoch of its own."""
    name = "second"
    first = talk.ask(init(name), 5)
    talk.ask(end(name, first, True), 5)
    second = talk.ask(end(name, first, False), 5)
    talk.ask(end(name, first, False), 5)
    talk.ask(produce(talk, name, first, 0), 12)
    talk.ask(produce(talk, name, second, 0), 12)
    talk.ask(produce(talk, name, second, 0, index=1), 13)
    talk.ask(describe(name), 0)
    third = finish(talk, name, second, True, 5)
    talk.ask(describe(name), 0)
    talk.ask(end(name, second, True), 5)
    talk.ask(end(name, second, False), 5)
    talk.ask(end(name, third, True), 5)
    talk.ask(produce(talk, name, second, 2), 12)
    talk.ask(produce(talk, name, third, 2), 12)
    talk.ask(produce(talk, name, third, 0), 12)
    fourth = finish(talk, name, third, False, 5)
    talk.ask(describe_producers(), 0)
    talk.ask(fetch(talk, committed=True), 11)
    talk.ask(init(name, fourth), 5)
    talk.ask(init(name, fourth), 5)
    talk.ask(init(name, third), 5)


def _fenced_producers(talk: Talk) -> None:
    for version, produced, name in ((1, 9, "old"), (3, 11, "middle"), (5, 12, "new")):
        first = talk.ask(init(name), min(version, 5))
        if version < 5:
            talk.ask(add(name, first, (TOPIC, 0)), min(version, 3))
        talk.ask(produce(talk, name, first, 0), produced)
        second = talk.ask(init(name), min(version, 5))
        talk.ask(describe(name), 0)
        talk.ask(produce(talk, name, first, 2), produced)
        talk.ask(add(name, first, (TOPIC, 0)), min(version, 3))
        talk.ask(add_offsets(name, first, "g"), min(version, 3))
        talk.ask(commit(name, first, "g", 1), version)
        talk.ask(end(name, first, True), version)
        talk.ask(end(name, first, False), version)
        if version >= 3:
            talk.ask(init(name, first), version)
            talk.ask(init(name, _Nobody), version)
        if version < 5:
            talk.ask(add(name, second, (TOPIC, 0)), min(version, 3))
        talk.ask(produce(talk, name, second, 0), produced)
        talk.ask(produce(talk, None, second, 2), produced)
        talk.ask(produce(talk, name, second, 2, transactional=False), produced)
        finish(talk, name, second, True, version)
        talk.ask(fetch(talk, committed=True), 11)


def _offsets(talk: Talk) -> None:
    for version in range(6):
        name, group_id = f"o{version}", f"g{version}"
        found = talk.ask(init(name), 4)
        talk.ask(commit_plainly(group_id, 1), 8, is_recorded=False)
        talk.ask(commit(name, found, group_id, 5), version)
        talk.ask(add_offsets(name, found, group_id), min(version, 4))
        talk.ask(commit(name, found, group_id, 5), version)
        talk.ask(commit(name, found, group_id, 5, topic="none"), version)
        talk.ask(commit(name, found, "", 5), version)
        if version >= 3:
            talk.ask(commit(name, found, group_id, 6, generation_id=3, member_id="m"), version)
            talk.ask(commit(name, found, "unknown", 6, generation_id=3), version)
        for stable in (False, True):
            talk.ask(fetch_offsets(group_id, stable=stable), 7)
        talk.ask(describe(name), 0)
        ended = finish(talk, name, found, version % 2 == 0, version)
        _wait_for_offsets(talk, group_id)
        talk.ask(fetch_offsets(group_id, stable=True), 7)
        if version < 5:
            ended = found
        talk.ask(add_offsets(name, ended, group_id), min(version, 4))
        talk.ask(commit(name, ended, group_id, 9), version)
        talk.ask(commit_plainly(group_id, 8), 8)
        talk.ask(fetch_offsets(group_id, stable=True), 7)
        talk.ask(end(name, ended, True), min(version, 5))
        _wait_for_offsets(talk, group_id)
        talk.ask(fetch_offsets(group_id, stable=True), 7)


def _wait_for_offsets(talk: Talk, group_id: str) -> None:
    """A broker answers before the offsets of a transaction are committed."""
    while True:
        found = talk.ask(fetch_offsets(group_id, stable=True), 7, is_recorded=False)
        if all(one.error_code == 0 for one in found.topics[0].partitions):
            return


def _administration(talk: Talk) -> None:
    talk.ask(list_transactions(), 0)
    talk.ask(list_transactions("Empty", "Nonsense"), 0)
    found = talk.ask(init("listed"), 4)
    talk.ask(add("listed", found, (TOPIC, 0)), 3)
    talk.ask(list_transactions("Ongoing"), 1)
    talk.ask(list_transactions("Ongoing", duration_ms=3_600_000), 1)
    talk.ask(describe("listed", "none"), 0)
    talk.ask(end("listed", found, False), 3)
    talk.ask(list_transactions("Ongoing"), 1)
