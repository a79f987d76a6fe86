"""What members, committers and administrators ask a broker, and a transcript of its answers.

The same conversation is held with a real broker and with this node. Member ids, addresses and the
ids of topics differ, so the transcript has names in their place.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from kafka.protocol import admin, consumer, metadata

from tests.node.groups.driving import subscription
from tests.node.running import RawClient

__all__ = ["TOPIC", "Transcript", "commit", "converse", "fetch", "join"]

TOPIC = "orders"
_NOT_COMPARED = ("host", "port", "node_id", "throttle_time_ms")
_NOT_READY = (14, 15, 16)  # loading, not available, not coordinator
_ORDERED_BY = ("member_id", "group_id", "name", "partition_index", "key")


class Transcript:
    """The answers so far. A client is a connection with a name."""

    def __init__(self, address: tuple[str, int], topic_id: uuid.UUID) -> None:
        self._address = address
        self.topic_id = topic_id
        self._clients: dict[str, RawClient] = {}
        self._sent: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self.lines: list[str] = []

    def close(self) -> None:
        for client in self._clients.values():
            client.socket.close()

    def send(self, client: str, message: Any, version: int) -> None:
        if client not in self._clients:
            self._clients[client] = RawClient(self._address)
        self._clients[client].request(message, version)
        self._sent[client] = (type(message), version)

    def read(self, client: str, *, is_recorded: bool = True) -> Any:
        made, version = self._sent.pop(client)
        frame = self._clients[client].read_frame()
        assert frame is not None, f"{client} {made.__name__} v{version}: disconnected"
        answered = getattr(
            {8: consumer, 9: consumer, 10: metadata, 15: admin, 16: admin, 42: admin}.get(
                made.API_KEY, consumer
            ),
            made.__name__.replace("Request", "Response"),
        )
        start = 5 if answered.flexible_version_q(version) else 4
        answer = answered.decode(frame[start:], version=version)
        if is_recorded:
            name = made.__name__.removesuffix("Request")
            self.lines.append(f"{client}: {name} v{version}: {self._plain(answer.to_dict())}")
        return answer

    def ask(self, client: str, message: Any, version: int, **more: Any) -> Any:
        self.send(client, message, version)
        return self.read(client, **more)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            for key in ("member_id", "leader"):
                if value.get(key):
                    self._names.setdefault(value[key], f"member {len(self._names) + 1}")
            return {key: self._plain(one) for key, one in value.items() if key not in _NOT_COMPARED}
        if isinstance(value, list):
            return sorted((self._plain(one) for one in value), key=_order)
        if str(value) == str(self.topic_id):
            return "the topic's id"
        return self._names.get(value, value) if isinstance(value, str) else value


def _order(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return str([value[key] for key in _ORDERED_BY if key in value])


def converse(address: tuple[str, int], topic_id: uuid.UUID) -> list[str]:
    """Return the transcript of the whole conversation. The broker has the topic `TOPIC` with three
    partitions, no initial rebalance delay, and at most three members in a group."""
    talk = Transcript(address, topic_id)
    try:
        _wait_until_ready(talk)
        for part in (
            _coordinators,
            _refused_joins,
            _every_version,
            _two_members,
            _full_group,
            _static_members,
            _commits,
            _administration,
        ):
            talk.lines.append(f"-- {part.__name__}")
            part(talk)
    finally:
        talk.close()
    return talk.lines


# -- requests


def find(*keys: str, key_type: int = 0) -> Any:
    return metadata.FindCoordinatorRequest(
        key=keys[0], key_type=key_type, coordinator_keys=list(keys)
    )


def join(group_id: str, member_id: str = "", **more: Any) -> Any:
    protocols = more.pop("protocols", [("range", subscription(TOPIC))])
    row = consumer.JoinGroupRequest.JoinGroupRequestProtocol
    values = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "group_instance_id": None,
        "reason": None,
    }
    return consumer.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        protocols=[row(name=name, metadata=data) for name, data in protocols],
        **(values | more),
    )


def sync(
    group_id: str, joined: Any, assignments: dict[str, bytes] | None = None, **more: Any
) -> Any:
    row = consumer.SyncGroupRequest.SyncGroupRequestAssignment
    values = {
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "group_instance_id": None,
    }
    given = [row(member_id=one, assignment=data) for one, data in (assignments or {}).items()]
    return consumer.SyncGroupRequest(group_id=group_id, assignments=given, **(values | more))


def heartbeat(group_id: str, joined: Any, **more: Any) -> Any:
    values = {
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
    }
    return consumer.HeartbeatRequest(group_id=group_id, **(values | more))


def leave(group_id: str, *members: tuple[str, str | None]) -> Any:
    row = consumer.LeaveGroupRequest.MemberIdentity
    return consumer.LeaveGroupRequest(
        group_id=group_id,
        member_id=members[0][0],
        members=[
            row(member_id=one, group_instance_id=instance, reason=None) for one, instance in members
        ],
    )


def commit(
    group_id: str,
    offsets: Sequence[tuple[Any, int, int, str | None]],
    *,
    topic_id: Any = None,
    **more: Any,
) -> Any:
    made = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
    row = made.OffsetCommitRequestPartition
    values = {
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
    }
    topics = [
        made(
            name=name,
            topic_id=topic_id,
            partitions=[
                row(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=3,
                    committed_metadata=text,
                )
                for _, index, offset, text in rows
            ],
        )
        for name, rows in groupby(offsets, key=itemgetter(0))
    ]
    return consumer.OffsetCommitRequest(group_id=group_id, topics=topics, **(values | more))


def fetch(
    group_id: str, topics: Sequence[tuple[str, Sequence[int]]] | None, topic_id: Any = None
) -> Any:
    message = consumer.OffsetFetchRequest
    several = message.OffsetFetchRequestGroup
    named = several.OffsetFetchRequestTopics
    return message(
        group_id=group_id,
        topics=None
        if topics is None
        else [
            message.OffsetFetchRequestTopic(name=name, partition_indexes=list(indexes))
            for name, indexes in topics
        ],
        groups=[
            several(
                group_id=group_id,
                member_id=None,
                member_epoch=-1,
                topics=None
                if topics is None
                else [
                    named(name=name, topic_id=topic_id, partition_indexes=list(indexes))
                    for name, indexes in topics
                ],
            )
        ],
        require_stable=True,
    )


def delete_offsets(group_id: str, *places: tuple[str, int]) -> Any:
    made = consumer.OffsetDeleteRequest.OffsetDeleteRequestTopic
    row = made.OffsetDeleteRequestPartition
    return consumer.OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            made(name=name, partitions=[row(partition_index=at) for _, at in rows])
            for name, rows in groupby(places, key=itemgetter(0))
        ],
    )


def describe(*groups: str, operations: bool = False) -> Any:
    return admin.DescribeGroupsRequest(
        groups=list(groups), include_authorized_operations=operations
    )


def list_groups(states: Sequence[str] = (), types: Sequence[str] = ()) -> Any:
    return admin.ListGroupsRequest(states_filter=list(states), types_filter=list(types))


def delete(*groups: str) -> Any:
    return admin.DeleteGroupsRequest(groups_names=list(groups))


# -- the conversation


def _wait_until_ready(talk: Transcript) -> None:
    """A broker makes its topic of offsets at the first request for a coordinator."""
    for _ in range(1_000):
        found = talk.ask("a", find("warm-up"), 3, is_recorded=False)
        if found.error_code == 0:
            found = talk.ask("a", heartbeat("warm-up", _Nobody), 4, is_recorded=False)
            if found.error_code not in _NOT_READY:
                return
    raise AssertionError("no coordinator")


class _Nobody:
    generation_id = 1
    member_id = "nobody"


def _coordinators(talk: Transcript) -> None:
    for version in range(7):
        talk.ask("a", find("g1", "g2"), version)


def _refused_joins(talk: Transcript) -> None:
    talk.ask("a", join(""), 9)
    talk.ask("a", join("refused", session_timeout_ms=5_999), 9)
    talk.ask("a", join("refused", session_timeout_ms=1_800_001), 5)
    talk.ask("a", join("refused", "nobody"), 9)
    talk.ask("a", join("refused", protocols=[]), 9)
    talk.ask("a", join("refused", protocol_type=""), 9)
    for message in (
        sync("", _Nobody),
        sync("refused", _Nobody),
        heartbeat("", _Nobody),
        heartbeat("refused", _Nobody),
        leave("", ("nobody", None)),
        leave("g-new", ("nobody", None), ("", "i")),
    ):
        talk.ask("a", message, 4)
    # A refused join leaves an empty group behind in Kafka, and none here.
    talk.ask("a", delete("refused"), 2, is_recorded=False)


def _enter(talk: Transcript, client: str, group_id: str, version: int = 9, **more: Any) -> Any:
    """Join as the only member of a group, and sync."""
    joined = talk.ask(client, join(group_id, **more), version)
    if joined.error_code == 79:
        joined = talk.ask(client, join(group_id, joined.member_id, **more), version)
    return joined


def _every_version(talk: Transcript) -> None:
    for version in range(10):
        group_id = f"v{version}"
        joined = _enter(talk, "a", group_id, version)
        talk.ask("a", heartbeat(group_id, joined), min(version, 4))
        given = {joined.member_id: b"assignment"}
        talk.ask("a", sync(group_id, joined, given), min(version, 5))
        talk.ask("a", heartbeat(group_id, joined), min(version, 4))
        talk.ask("a", describe(group_id), min(version, 6))
        talk.ask("a", list_groups(["stable"]), min(version, 5))
        if version >= 2:
            identity = {
                "generation_id_or_member_epoch": joined.generation_id,
                "member_id": joined.member_id,
            }
            talk.ask("a", commit(group_id, [(TOPIC, 1, 7, "note")], **identity), version)
            talk.ask("a", fetch(group_id, None), version)
        talk.ask("a", fetch(group_id, [(TOPIC, [0, 1])]), max(version, 1))
        talk.ask("a", leave(group_id, (joined.member_id, None)), min(version, 5))
        talk.ask("a", describe(group_id), min(version, 6))
        talk.ask("a", delete(group_id, "no-group"), min(version, 2))


def _two_members(talk: Transcript) -> None:
    first = _enter(talk, "a", "two")
    talk.ask("a", sync("two", first, {first.member_id: b"all"}), 5)
    second_id = talk.ask("b", join("two"), 9).member_id
    talk.ask("a", heartbeat("two", first), 4)
    talk.send("b", join("two", second_id), 9)
    talk.send("c", describe("two"), 6)
    while talk.read("c", is_recorded=False).groups[0].group_state != "PreparingRebalance":
        talk.send("c", describe("two"), 6)
    talk.ask("a", heartbeat("two", first), 4)
    talk.ask("a", sync("two", first), 5)
    talk.ask(
        "a",
        commit(
            "two", [(TOPIC, 0, 1, "")], generation_id_or_member_epoch=1, member_id=first.member_id
        ),
        9,
    )
    first = talk.ask("a", join("two", first.member_id), 9)
    second = talk.read("b")
    talk.ask(
        "c",
        commit(
            "two", [(TOPIC, 0, 2, "")], generation_id_or_member_epoch=2, member_id=second.member_id
        ),
        9,
    )
    talk.ask("c", sync("two", first, protocol_name="other"), 5)
    talk.ask("c", sync("two", first, protocol_type="other"), 5)
    talk.ask("c", sync("two", first, generation_id=1), 5)
    talk.send("b", sync("two", second), 5)
    talk.ask("c", describe("two"), 6)
    talk.ask("a", sync("two", first, {first.member_id: b"1", second.member_id: b"2"}), 5)
    talk.read("b")
    talk.ask("c", describe("two", operations=True), 5)
    talk.ask("b", sync("two", second), 5)
    talk.ask("b", join("two", second.member_id), 9)
    talk.ask("b", heartbeat("two", second), 4)
    talk.ask("b", heartbeat("two", second, generation_id=1), 4)
    talk.ask("b", heartbeat("two", second, generation_id=3), 4)
    talk.ask("b", heartbeat("two", second, group_instance_id="i"), 4)
    for more in (
        {"generation_id_or_member_epoch": 2, "member_id": second.member_id},
        {"generation_id_or_member_epoch": 1, "member_id": second.member_id},
        {"generation_id_or_member_epoch": 2, "member_id": "nobody"},
        {"generation_id_or_member_epoch": -1, "member_id": second.member_id},
        {},
    ):
        talk.ask("b", commit("two", [(TOPIC, 2, 5, "x")], **more), 9)
    talk.ask("c", join("two", protocols=[("sticky", b"")]), 9)
    talk.ask("c", join("two", protocol_type="connect"), 9)
    talk.ask("c", delete("two"), 2)
    talk.ask("c", delete_offsets("two", (TOPIC, 2), (TOPIC, 9), ("none", 0)), 0)
    talk.ask("a", leave("two", (first.member_id, None), ("nobody", None)), 5)
    talk.ask("b", heartbeat("two", second), 4)
    alone = talk.ask("b", join("two", second.member_id), 9)
    talk.ask("b", leave("two", (alone.member_id, None)), 2)
    talk.ask("c", describe("two"), 6)
    talk.ask("c", delete_offsets("two", (TOPIC, 2), (TOPIC, 1), (TOPIC, 9), ("none", 0)), 0)
    talk.ask("c", fetch("two", None), 9)


def _full_group(talk: Transcript) -> None:
    joined = [_enter(talk, "a", "full")]
    talk.ask("a", sync("full", joined[0], {joined[0].member_id: b"all"}), 5)
    ids = [talk.ask("b", join("full"), 9).member_id for _ in range(2)]
    for client, member_id in zip("bc", ids, strict=True):
        talk.send(client, join("full", member_id), 9)
    while len(talk.ask("d", describe("full"), 6, is_recorded=False).groups[0].members) < 3:
        pass
    talk.ask("d", join("full"), 9)
    talk.ask("a", join("full", joined[0].member_id), 9)
    for client in "bc":
        talk.read(client)
    talk.ask("d", join("full"), 9)
    talk.ask("d", describe("full"), 6)


def _static_members(talk: Transcript) -> None:
    who: dict[str, Any] = {"group_instance_id": "i1"}
    for version in (9, 8):
        group_id = f"static{version}"
        first = talk.ask("a", join(group_id, **who), version)
        talk.ask("a", sync(group_id, first, {first.member_id: b"all"}, **who), 5)
        again = talk.ask("b", join(group_id, **who), version)
        talk.ask("b", sync(group_id, again, **who), 5)
        talk.ask("a", heartbeat(group_id, first, **who), 4)
        talk.ask("a", join(group_id, first.member_id, **who), version)
        talk.ask("a", sync(group_id, first, **who), 5)
        talk.ask("a", heartbeat(group_id, first), 4)
        identity = {"generation_id_or_member_epoch": 1, "member_id": first.member_id}
        talk.ask("a", commit(group_id, [(TOPIC, 0, 1, "")], **identity, **who), 9)
        talk.ask("a", leave(group_id, (first.member_id, "i1"), ("", "i2")), 5)
        talk.ask("b", heartbeat(group_id, again, **who), 4)
        # Its subscription has changed, its protocol has not.
        other = talk.ask("c", join(group_id, protocols=[("range", b"other")], **who), version)
        talk.ask("c", describe(group_id), 6)
        talk.ask("c", leave(group_id, ("", "i1")), 5)
        talk.ask("c", heartbeat(group_id, other, **who), 4)
        talk.ask("c", describe(group_id), 6)


def _commits(talk: Transcript) -> None:
    for version in range(2, 10):
        unknown = {"generation_id_or_member_epoch": 5, "member_id": "m"}
        talk.ask("a", commit("no-group", [(TOPIC, 0, 1, "")], **unknown), version)
    offsets = [(TOPIC, 0, 10, None), (TOPIC, 1, 11, "x" * 4096)]
    talk.ask("a", commit("simple", offsets), 9)
    wrong = [(TOPIC, 0, 20, "y" * 4097), (TOPIC, 3, 1, ""), (TOPIC, 2, 22, ""), ("none", 0, 1, "")]
    talk.ask("a", commit("simple", wrong), 9)
    talk.ask("a", commit("simple", [("none", 0, 1, "")], generation_id_or_member_epoch=4), 9)
    talk.ask("a", commit("", [(TOPIC, 0, 1, "")]), 9)
    topic_id = talk.topic_id
    talk.ask("a", commit("ids", [("", 0, 30, "by id")], topic_id=topic_id), 10)
    talk.ask("a", commit("ids", [("", 0, 30, "")], topic_id=uuid.UUID(int=7)), 10)
    for version in range(1, 10):
        asked = [(TOPIC, [0, 1, 2, 3]), ("none", [0])]
        talk.ask("a", fetch("simple", asked), version)
    talk.ask("a", fetch("ids", [("", [0, 1])], topic_id), 10)
    talk.ask("a", fetch("ids", [("", [0, 1])], uuid.UUID(int=7)), 10)
    talk.ask("a", fetch("ids", None), 10)
    talk.ask("a", fetch("no-group", None), 9)
    talk.ask("a", fetch("no-group", [(TOPIC, [0])]), 7)
    talk.ask("a", describe("simple"), 6)


def _administration(talk: Transcript) -> None:
    talk.ask("a", describe("no-group"), 5)
    talk.ask("a", describe("no-group"), 6)
    talk.ask("a", delete_offsets("no-group", (TOPIC, 0)), 0)
    talk.ask("a", delete_offsets("", (TOPIC, 0)), 0)
    for states, types in (
        ([], []),
        (["Empty"], []),
        (["STABLE"], []),
        (["no state"], []),
        ([], ["classic"]),
        ([], ["Consumer"]),
    ):
        talk.ask("a", list_groups(states, types), 5)
    talk.ask("a", delete("simple", "ids", "full"), 2)
    talk.ask("a", list_groups(), 4)
