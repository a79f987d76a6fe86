"""The requests to a group coordinator and its answers, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from tierlog.node.error_codes import ErrorCode

__all__ = [
    "AnswerJoin",
    "AnswerSync",
    "GroupDescription",
    "GroupState",
    "JoinAnswer",
    "JoinRequest",
    "JoinedMember",
    "LeavingMember",
    "ListedGroup",
    "MemberDescription",
    "Protocol",
    "SavedGroup",
    "SyncAnswer",
    "SyncRequest",
]


class GroupState(StrEnum):
    """The states of a group, with Kafka's names. DEAD is the answer for a group that does not
    exist."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(NamedTuple):
    """The name of an assignor that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. If ``requires_member_id``, the client joins again with the id from the
    first answer. If ``can_skip_assignment``, the client understands
    `JoinAnswer.skip_assignment`."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Sequence[Protocol]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_member_id: bool = True
    can_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    """A member as the leader of its group sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to JoinGroup. ``members`` has all members if the answer is for the leader;
    otherwise it is empty."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request. If it comes from the leader, ``assignments`` has the bytes for each
    member id."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


AnswerJoin: TypeAlias = Callable[[JoinAnswer], None]
AnswerSync: TypeAlias = Callable[[SyncAnswer], None]


class LeavingMember(NamedTuple):
    """A member that leaves. An administrator names a static member only by its instance id."""

    member_id: str
    instance_id: str | None = None


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The description of a group. ``protocol_name`` and the members' metadata are known only in the
    state STABLE."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[MemberDescription] = ()


class SavedGroup(NamedTuple):
    """The values of a group that are kept across restarts. ``protocol_type`` is None for a group
    that only commits offsets. ``empty_since_ms`` is None while the group has members."""

    group_id: str
    protocol_type: str | None
    generation: int
    empty_since_ms: int | None
