"""One group: its members, its state, and the choices a coordinator makes for it.

A group knows no time and no requests; `coordinator` moves it from state to state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.subscription import CONSUMER, read_topics
from tierlog.node.groups.types import (
    AnswerJoin,
    AnswerSync,
    GroupDescription,
    GroupState,
    JoinAnswer,
    JoinedMember,
    JoinRequest,
    MemberDescription,
    Protocol,
    SyncAnswer,
)

__all__ = ["GROUP_BYTES", "PENDING_BYTES", "Group", "Member", "member_bytes"]

# What an object of each kind takes beside the texts and bytes of clients.
GROUP_BYTES = 1_024
PENDING_BYTES = 256
_MEMBER_BYTES = 1_024
_PROTOCOL_BYTES = 192


@dataclass(slots=True)
class Member:
    """``is_new`` until its first generation: such a member has no id yet to send heartbeats with.
    ``answer_join`` and ``answer_sync`` are set while its request waits."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    is_new: bool = True
    answer_join: AnswerJoin | None = None
    answer_sync: AnswerSync | None = None

    @classmethod
    def from_request(cls, request: JoinRequest, member_id: str) -> Member:
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=tuple(request.protocols),
        )

    def metadata_for(self, protocol_name: str | None) -> bytes:
        return next((one.metadata for one in self.protocols if one.name == protocol_name), b"")

    def finish_sync(self, answer: SyncAnswer) -> bool:
        """Answer a waiting SyncGroup; False when none waits."""
        waiting, self.answer_sync = self.answer_sync, None
        if waiting is not None:
            waiting(answer)
        return waiting is not None


def member_bytes(request: JoinRequest, member_id: str) -> int:
    """Return about how much memory a member takes that joins with `request`."""
    texts = (member_id, request.instance_id or "", request.client_id, request.client_host)
    return (
        _MEMBER_BYTES
        + sum(map(len, texts))
        + sum(_PROTOCOL_BYTES + len(name) + len(data) for name, data in request.protocols)
    )


@dataclass(slots=True)
class Group:
    """``changed_ms`` is the wall clock at the last change of `state`.

    ``charge`` hears by how many bytes the memory of the group changes.
    """

    group_id: str
    changed_ms: int
    charge: Callable[[int], None]
    protocol_type: str | None = None
    generation: int = 0
    protocol_name: str | None = None
    leader_id: str | None = None
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.DEAD
    # It is kept across restarts.
    is_saved: bool = False
    # In the order of their first join.
    members: dict[str, Member] = field(default_factory=dict)
    # Member id of each static member, by its instance id.
    static_ids: dict[str, str] = field(default_factory=dict)
    # Ids that were given out and have not joined yet.
    pending_ids: set[str] = field(default_factory=set)
    # Members that have not sent SyncGroup in this generation.
    unsynced_ids: set[str] = field(default_factory=set)
    # A member joined the first rebalance since its delay was set.
    has_newcomer: bool = False
    _supporters: Counter[str] = field(default_factory=Counter)
    _waiting_joins: int = 0
    _bytes: dict[str, int] = field(default_factory=dict)

    @property
    def is_unused(self) -> bool:
        """True when nothing but its name would be lost with the group."""
        return not (self.members or self.pending_ids or self.is_saved)

    @property
    def waiting_joins(self) -> int:
        """How many members wait for the answer to JoinGroup."""
        return self._waiting_joins

    @property
    def has_everyone_joined(self) -> bool:
        return self._waiting_joins == len(self.members) and not self.pending_ids

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members."""
        return max((one.rebalance_timeout_ms for one in self.members.values()), default=0)

    def move_to(self, state: GroupState, now_ms: int) -> None:
        self.previous_state, self.state, self.changed_ms = self.state, state, now_ms

    # -- members

    def add_pending(self, member_id: str) -> None:
        self.pending_ids.add(member_id)
        self._set_bytes(member_id, PENDING_BYTES + len(member_id))

    def add(self, member: Member, request: JoinRequest, answer: AnswerJoin) -> None:
        """Add a member that waits for the next generation."""
        if not self.members:
            self.protocol_type = request.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        self.pending_ids.discard(member.member_id)
        self.members[member.member_id] = member
        self._supporters.update({one.name for one in member.protocols})
        self._set_bytes(member.member_id, member_bytes(request, member.member_id))
        self.await_join(member, answer)

    def update(self, member: Member, request: JoinRequest, answer: AnswerJoin) -> None:
        """Take over what a member says as it joins again, and let it wait."""
        self._drop_protocols(member)
        member.protocols = tuple(request.protocols)
        self._supporters.update({one.name for one in member.protocols})
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._set_bytes(
            member.member_id, member_bytes(request, member.member_id) + len(member.assignment)
        )
        self.await_join(member, answer)

    def await_join(self, member: Member, answer: AnswerJoin) -> None:
        """Let `member` wait for the next generation; an earlier JoinGroup of it ends."""
        self.finish_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.answer_join = answer
        self._waiting_joins += 1

    def finish_join(self, member: Member, answer: JoinAnswer | ErrorCode) -> None:
        """Answer a waiting JoinGroup, if there is one."""
        waiting, member.answer_join = member.answer_join, None
        if waiting is not None:
            self._waiting_joins -= 1
            if isinstance(answer, ErrorCode):
                answer = JoinAnswer(error=answer, member_id=member.member_id)
            waiting(answer)

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """Give the static member of that instance a new id; requests with its old id end."""
        old_id = self.static_ids[instance_id]
        member = self.members.pop(old_id)
        self.finish_join(member, ErrorCode.FENCED_INSTANCE_ID)
        member.finish_sync(SyncAnswer(error=ErrorCode.FENCED_INSTANCE_ID))
        member.member_id, member.is_new = new_id, False
        self.members[new_id] = member
        self.static_ids[instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        self._bytes[new_id] = self._bytes.pop(old_id)
        return member

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id; a request of it that waits ends."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._drop_protocols(member)
            if member.instance_id is not None:
                del self.static_ids[member.instance_id]
            self.finish_join(member, JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=""))
            member.finish_sync(SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_ids.discard(member_id)
        self.unsynced_ids.discard(member_id)
        self._set_bytes(member_id, 0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE for a member; FENCED_INSTANCE_ID when another one has taken over its instance."""
        if instance_id is not None:
            owner = self.static_ids.get(instance_id)
            if owner is not None and owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # -- choices

    def supports(self, protocol_type: str, protocols: Sequence[Protocol]) -> bool:
        """True when a member with these protocols could join."""
        if self.state is GroupState.EMPTY:
            return protocol_type != "" and len(protocols) > 0
        return protocol_type == self.protocol_type and any(
            self._supporters[one.name] == len(self.members) for one in protocols
        )

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer of those that all of them support."""
        common = {name for name, n in self._supporters.items() if n == len(self.members)}
        votes = Counter(
            next(one.name for one in member.protocols if one.name in common)
            for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, or else make the first member that has rejoined the
        leader. Return False when no member has rejoined."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.answer_join is None:
            joined = (one for one in self.members.values() if one.answer_join is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader_id = leader.member_id
        return True

    def start_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.unsynced_ids.clear()
        self.protocol_name = self.choose_protocol() if self.members else None
        self.move_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    def assign(self, assignments: dict[str, bytes]) -> None:
        """Set the assignment of each member, empty for those that are not named."""
        for member_id, member in self.members.items():
            assignment = assignments.get(member_id, b"")
            grown = len(assignment) - len(member.assignment)
            self._set_bytes(member_id, self._bytes[member_id] + grown)
            member.assignment = assignment

    def is_subscribed(self, topic: str) -> bool:
        """True when a member subscribes to `topic`, or may do so: unreadable is not empty."""
        if self.protocol_type != CONSUMER:
            return False
        if not self.members:
            return False
        if self.protocol_name is None:
            return True
        try:
            return any(
                topic == each
                for member in self.members.values()
                for each in read_topics(member.metadata_for(self.protocol_name))
            )
        except ValueError:
            return True

    # -- what clients see

    def joined(self, member_id: str, *, with_members: bool) -> JoinAnswer:
        """Return the answer to a member of the present generation."""
        members = self.members.values() if with_members else ()
        return JoinAnswer(
            error=ErrorCode.NONE,
            member_id=member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=self.leader_id or "",
            members=[
                JoinedMember(one.member_id, one.instance_id, one.metadata_for(self.protocol_name))
                for one in members
            ],
        )

    def describe(self) -> GroupDescription:
        is_stable = self.state is GroupState.STABLE
        return GroupDescription(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type or "",
            protocol_name=(self.protocol_name or "") if is_stable else "",
            members=[
                MemberDescription(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.metadata_for(self.protocol_name) if is_stable else b"",
                    one.assignment,
                )
                for one in self.members.values()
            ],
        )

    def _drop_protocols(self, member: Member) -> None:
        for name in {one.name for one in member.protocols}:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    def _set_bytes(self, member_id: str, size_bytes: int) -> None:
        self.charge(size_bytes - self._bytes.get(member_id, 0))
        if size_bytes:
            self._bytes[member_id] = size_bytes
        else:
            self._bytes.pop(member_id, None)
