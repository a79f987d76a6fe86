"""What clients ask of a group coordinator, and its answers, as plain values."""

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
    """The states of a group, as Kafka names them. DEAD is answered for a group that is not here."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(NamedTuple):
    """An assignor that a member supports, and what the member says to it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """``requires_member_id``: the client joins again with the id that the first answer gives it.
    ``can_skip_assignment``: the client knows answers with `JoinAnswer.skip_assignment`."""

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
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """``members`` has all members for the leader and none for the others."""

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
    """``assignments`` has the bytes for each member id when it comes from the leader."""

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
    """A member that leaves; an administrator names static members by instance id alone."""

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
    """``protocol_name`` and the members' metadata are known in the state STABLE only."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[MemberDescription] = ()


class SavedGroup(NamedTuple):
    """What is kept of a group across restarts. ``protocol_type`` is None for a group that only
    commits offsets; ``empty_since_ms`` is None while it has members."""

    group_id: str
    protocol_type: str | None
    generation: int
    empty_since_ms: int | None
