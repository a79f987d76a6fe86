"""The group coordinator: Kafka's classic group protocol without connections, threads or disks.

Requests come in as calls and answers go out through functions, at once or later. Time comes from a
clock: the caller runs `run_due` at `next_due_ms`. Kafka's GroupMetadataManager is the model: the
same requests in the same order get the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tierlog.clock import Clock
from tierlog.config.groups import GroupConfig
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.deadlines import Deadlines
from tierlog.node.groups.group import GROUP_BYTES, PENDING_BYTES, Group, Member, member_bytes
from tierlog.node.groups.subscription import CONSUMER
from tierlog.node.groups.types import (
    AnswerJoin,
    AnswerSync,
    GroupDescription,
    GroupState,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    ListedGroup,
    SavedGroup,
    SyncAnswer,
    SyncRequest,
)

__all__ = ["GroupCoordinator"]

# How long a new member may wait for its first generation. It has no id to send heartbeats with, and
# a client that gave up would otherwise stay in the group.
NEW_MEMBER_TIMEOUT_MS = 300_000

_EMPTY = GroupState.EMPTY
_PREPARING = GroupState.PREPARING_REBALANCE
_COMPLETING = GroupState.COMPLETING_REBALANCE
_STABLE = GroupState.STABLE


class GroupCoordinator:
    """All groups of a node. Not thread-safe.

    ``new_id`` makes the random part of member ids. ``save`` gets a group whenever what is kept
    of it across restarts has changed; ``saved`` are those of the last run.
    """

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        save: Callable[[SavedGroup], None],
        saved: Iterable[SavedGroup] = (),
    ) -> None:
        self._config = config
        self._clock = clock
        self._new_id = new_id
        self._save = save
        self._deadlines = Deadlines()
        self._groups: dict[str, Group] = {}
        self._used_bytes = 0
        for one in saved:
            self._add_group(one).is_saved = True

    @property
    def used_bytes(self) -> int:
        """About how much memory members and their assignments take."""
        return self._used_bytes

    def next_due_ms(self) -> int | None:
        """Return a monotonic time before which `run_due` has nothing to do; None for never."""
        return self._deadlines.next_ms()

    def run_due(self) -> None:
        """End what has timed out: sessions, rebalances, and the delay of the first one."""
        self._deadlines.run_due(self._clock.monotonic_ms())

    # -- members join

    def join(self, request: JoinRequest, answer: AnswerJoin) -> None:
        """Answer JoinGroup: at once with an error or the id of a new member, or when the next
        generation starts."""

        def refuse(error: ErrorCode, member_id: str = request.member_id) -> None:
            answer(JoinAnswer(error=error, member_id=member_id))

        config = self._config
        if not request.group_id:
            return refuse(ErrorCode.INVALID_GROUP_ID)
        if not (
            config.min_session_timeout_ms
            <= request.session_timeout_ms
            <= config.max_session_timeout_ms
        ):
            return refuse(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self._groups.get(request.group_id)
        if group is None and request.member_id:
            return refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        group = group or self._create(request.group_id)
        if group is None:
            return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._join(group, request, answer, refuse)
        return self._drop_unused(group)

    def _join(
        self,
        group: Group,
        request: JoinRequest,
        answer: AnswerJoin,
        refuse: Callable[[ErrorCode, str], None],
    ) -> None:
        member_id = request.member_id
        if not self._has_memory_for(request):
            refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        elif not self._has_room_for(group, member_id):
            self._remove(group, member_id)
            refuse(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        elif not group.supports(request.protocol_type, request.protocols):
            refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif not member_id:
            self._join_without_id(group, request, answer)
        elif member_id in group.pending_ids:
            self._add_member(group, request, member_id, answer)
        else:
            self._join_again(group, request, answer)

    def _join_without_id(self, group: Group, request: JoinRequest, answer: AnswerJoin) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            if request.instance_id in group.static_ids:
                self._replace_static(group, request, member_id, answer)
            else:
                self._add_member(group, request, member_id, answer)
        elif request.requires_member_id:
            group.add_pending(member_id)
            self._expect(group, member_id, request.session_timeout_ms)
            answer(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add_member(group, request, member_id, answer)

    def _add_member(
        self, group: Group, request: JoinRequest, member_id: str, answer: AnswerJoin
    ) -> None:
        if group.state is _PREPARING and group.previous_state is _EMPTY:
            group.has_newcomer = True
        group.add(Member.from_request(request, member_id), request, answer)
        self._expect(group, member_id, NEW_MEMBER_TIMEOUT_MS)
        self._rebalance(group)

    def _join_again(self, group: Group, request: JoinRequest, answer: AnswerJoin) -> None:
        member_id = request.member_id
        error = group.check_member(member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return answer(JoinAnswer(error=error, member_id=member_id))
        member = group.members[member_id]
        is_leader = group.leader_id == member_id
        is_changed = member.protocols != tuple(request.protocols)
        # The leader of a stable group joins again to have partitions assigned anew.
        if group.state is _PREPARING or is_changed or (group.state is _STABLE and is_leader):
            group.update(member, request, answer)
            return self._rebalance(group)
        return answer(group.joined(member_id, with_members=is_leader))

    def _replace_static(
        self, group: Group, request: JoinRequest, member_id: str, answer: AnswerJoin
    ) -> None:
        """Let a static member that was restarted take over its place, without a rebalance where
        the protocol stays the same."""
        assert request.instance_id is not None
        old_leader_id = group.leader_id or ""
        self._deadlines.cancel(_member_key(group, group.static_ids[request.instance_id]))
        member = group.replace_static(request.instance_id, member_id)
        self._expect(group, member_id, member.session_timeout_ms)
        group.update(member, request, answer)
        if group.state is _STABLE and group.choose_protocol() == group.protocol_name:
            is_leader = group.leader_id == member_id
            if request.can_skip_assignment:
                found = group.joined(member_id, with_members=is_leader)
                found = replace(found, skip_assignment=is_leader)
            else:
                # A client that took itself for the leader would assign partitions anew.
                found = group.joined(member_id, with_members=False)
                found = replace(found, leader_id=old_leader_id)
            group.finish_join(member, found)
        elif group.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(group)
        else:
            self._complete_if_joined(group)

    # -- a rebalance

    def _rebalance(self, group: Group) -> None:
        """Start a rebalance, or go on with the present one."""
        if group.state is _PREPARING:
            self._complete_if_joined(group)
        else:
            self._prepare_rebalance(group)

    def _prepare_rebalance(self, group: Group) -> None:
        if group.state is _COMPLETING:
            group.assign({})
            self._answer_syncs(
                group, lambda member: SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS)
            )
        group.unsynced_ids.clear()
        self._deadlines.cancel(("sync", group.group_id))
        is_first = group.state is _EMPTY
        group.move_to(_PREPARING, self._clock.now_ms())
        if is_first:
            delay_ms = self._config.initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._delay_first_rebalance(group, delay_ms, left_ms)
        elif group.has_everyone_joined:
            self._complete_join(group)
        else:
            self._expect_joins(group)

    def _delay_first_rebalance(self, group: Group, delay_ms: int, left_ms: int) -> None:
        """Wait `delay_ms`, and again while members come, at most `left_ms` more."""
        group.has_newcomer = False

        def end_delay() -> None:
            if group.has_newcomer and left_ms:
                longest_ms = self._config.initial_rebalance_delay_ms
                self._delay_first_rebalance(
                    group, min(longest_ms, left_ms), max(left_ms - delay_ms, 0)
                )
            else:
                self._complete_join(group)

        self._set_deadline(("join", group.group_id), delay_ms, end_delay)

    def _expect_joins(self, group: Group) -> None:
        self._set_deadline(
            ("join", group.group_id), group.rebalance_timeout_ms, lambda: self._complete_join(group)
        )

    def _complete_if_joined(self, group: Group) -> None:
        """Start the next generation once everyone has joined; a first rebalance waits for its delay
        in any case."""
        is_first = group.previous_state is _EMPTY
        if group.state is _PREPARING and not is_first and group.has_everyone_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Start the next generation with the members that have joined, and static ones."""
        self._deadlines.cancel(("join", group.group_id))
        for member in list(group.members.values()):
            if member.answer_join is None and member.instance_id is None:
                self._remove(group, member.member_id)
        if group.members and not group.elect_leader():
            # Only static members are left: their sessions decide.
            return self._expect_joins(group)
        group.start_generation(self._clock.now_ms())
        self._saved(group)
        for member_id, member in group.members.items():
            member.is_new = False
            group.unsynced_ids.add(member_id)
            self._expect(group, member_id, member.session_timeout_ms)
            group.finish_join(
                member, group.joined(member_id, with_members=member_id == group.leader_id)
            )
        if group.members:
            generation = group.generation
            self._set_deadline(
                ("sync", group.group_id),
                group.rebalance_timeout_ms,
                lambda: self._end_sync(group, generation),
            )
        return None

    def sync(self, request: SyncRequest, answer: AnswerSync) -> None:
        """Answer SyncGroup: with the member's assignment, once the leader has sent it."""
        error = self._check(
            request.group_id, request.member_id, request.instance_id, request.generation
        )
        group = self._groups.get(request.group_id)
        if error is not ErrorCode.NONE or group is None:
            return answer(SyncAnswer(error=error))
        if (request.protocol_type or group.protocol_type) != group.protocol_type or (
            request.protocol_name or group.protocol_name
        ) != group.protocol_name:
            return answer(SyncAnswer(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        if group.state is _PREPARING:
            return answer(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member = group.members[request.member_id]
        group.unsynced_ids.discard(request.member_id)
        if group.state is _STABLE:
            return answer(_synced(group, member))
        member.finish_sync(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.answer_sync = answer
        if request.member_id == group.leader_id:
            self._assign(group, request)
        return None

    def _assign(self, group: Group, request: SyncRequest) -> None:
        """Take the leader's assignments and answer all members that wait for theirs."""
        assignments = {name: data for name, data in request.assignments if name in group.members}
        if self._used_bytes + sum(map(len, assignments.values())) > self._config.memory_bytes:
            group.members[request.member_id].finish_sync(
                SyncAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            )
            return self._prepare_rebalance(group)
        group.assign(assignments)
        group.move_to(_STABLE, self._clock.now_ms())
        self._answer_syncs(group, lambda member: _synced(group, member))
        return None

    def _answer_syncs(self, group: Group, answer: Callable[[Member], SyncAnswer]) -> None:
        """Answer the members that wait for their assignment; their sessions start again."""
        for member in group.members.values():
            if member.finish_sync(answer(member)):
                self._expect(group, member.member_id, member.session_timeout_ms)

    def _end_sync(self, group: Group, generation: int) -> None:
        """Remove the members that have not sent SyncGroup in time."""
        if group.generation == generation and group.unsynced_ids:
            for member_id in list(group.unsynced_ids):
                self._remove(group, member_id)
            self._prepare_rebalance(group)

    # -- sessions

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Prolong the session of a member; REBALANCE_IN_PROGRESS asks it to join again."""
        error = self._check(group_id, member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        group = self._groups[group_id]
        self._expect(group, member_id, group.members[member_id].session_timeout_ms)
        is_preparing = group.state is _PREPARING
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members; the answer has an error for each."""
        group = self._groups.get(group_id)
        if group is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
            return [error] * len(members)
        errors = [self._leave(group, one) for one in members]
        if ErrorCode.NONE in errors:
            if group.state in (_STABLE, _COMPLETING):
                self._prepare_rebalance(group)
            else:
                self._complete_if_joined(group)
        self._drop_unused(group)
        return errors

    def _leave(self, group: Group, member: LeavingMember) -> ErrorCode:
        member_id, error = member.member_id, ErrorCode.NONE
        if not member_id:
            member_id = group.static_ids.get(member.instance_id or "", "")
            error = ErrorCode.NONE if member_id else ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in group.pending_ids:
            error = group.check_member(member_id, member.instance_id)
        if error is ErrorCode.NONE:
            self._remove(group, member_id)
        return error

    def _expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Remove a member unless it is heard of within `timeout_ms`."""
        self._set_deadline(
            _member_key(group, member_id), timeout_ms, lambda: self._end_session(group, member_id)
        )

    def _end_session(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        is_waiting = member is not None and (member.answer_join or member.answer_sync) is not None
        if member is not None and is_waiting and not member.is_new:
            return  # It is the coordinator's turn; its answer starts the session again.
        self._remove(group, member_id)
        if group.state in (_STABLE, _COMPLETING) and member is not None:
            self._prepare_rebalance(group)
        elif group.state is _PREPARING and group.has_everyone_joined:
            self._complete_join(group)
        self._drop_unused(group)

    # -- committed offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool = False,
    ) -> ErrorCode:
        """NONE when this member may commit; its session is prolonged. GROUP_ID_NOT_FOUND when the
        group does not exist. A commit without a generation makes a group that has no members.

        A producer may commit in a transaction without telling a member, and during a rebalance."""
        group = self._groups.get(group_id)
        if group is None:
            if generation >= 0:
                return ErrorCode.GROUP_ID_NOT_FOUND
            group = self._create(group_id)
            if group is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._saved(group)
        if generation < 0 and group.state is _EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if is_transactional:
            return ErrorCode.NONE
        if group.state is _COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._expect(group, member_id, group.members[member_id].session_timeout_ms)
        return ErrorCode.NONE

    def check_offset_delete(self, group_id: str) -> ErrorCode:
        """NONE when offsets of this group may be deleted, except those of `is_subscribed`."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_consumer = group.protocol_type == CONSUMER
        return ErrorCode.NONE if group.state is _EMPTY or is_consumer else ErrorCode.NON_EMPTY_GROUP

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.is_subscribed(topic)

    def expiring_groups(self) -> list[tuple[str, bool]]:
        """Return the groups of which offsets may expire, and whether only those of topics that it
        has no member for."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        empty_before_ms = self._clock.now_ms() - retention_ms
        return [
            (group.group_id, group.state is _STABLE)
            for group in self._groups.values()
            if (group.state is _STABLE and group.protocol_type == CONSUMER)
            or (group.state is _EMPTY and group.protocol_type is None)
            or (group.state is _EMPTY and group.changed_ms <= empty_before_ms)
        ]

    def remove_empty(self, group_id: str) -> bool:
        """Remove a group whose offsets have all expired; False when it is in use again."""
        group = self._groups.get(group_id)
        is_idle = group is not None and group.state is _EMPTY and not group.pending_ids
        if group is not None and is_idle:
            self._drop(group)
        return is_idle

    # -- administration

    def list_groups(self) -> list[ListedGroup]:
        return [
            ListedGroup(one.group_id, one.protocol_type or "", one.state)
            for one in self._groups.values()
        ]

    def describe(self, group_id: str) -> GroupDescription:
        group = self._groups.get(group_id)
        if group is None:
            return GroupDescription(group_id=group_id, state=GroupState.DEAD)
        return group.describe()

    def delete(self, group_id: str) -> ErrorCode:
        """Remove a group without members."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not _EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._drop(group)
        return ErrorCode.NONE

    # -- internals

    def _check(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """NONE for a request of a member of the present generation."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _has_room_for(self, group: Group, member_id: str) -> bool:
        """False when the group has its most members and this is not one of them."""
        if group.state is _EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is _PREPARING:
            # Members that have not joined again yet may be replaced.
            is_waiting = member is not None and member.answer_join is not None
            return is_waiting or group.waiting_joins < self._config.max_size
        return member is not None or len(group.members) < self._config.max_size

    def _has_memory_for(self, request: JoinRequest) -> bool:
        needed_bytes = member_bytes(request, request.member_id) + PENDING_BYTES
        return self._used_bytes + needed_bytes <= self._config.memory_bytes

    def _create(self, group_id: str) -> Group | None:
        """Add an empty group; None when there are too many."""
        needed_bytes = GROUP_BYTES + len(group_id)
        if (
            len(self._groups) >= self._config.max_groups
            or self._used_bytes + needed_bytes > self._config.memory_bytes
        ):
            return None
        return self._add_group(SavedGroup(group_id, None, 0, self._clock.now_ms()))

    def _add_group(self, saved: SavedGroup) -> Group:
        now_ms = self._clock.now_ms()
        group = self._groups[saved.group_id] = Group(
            group_id=saved.group_id,
            changed_ms=now_ms if saved.empty_since_ms is None else saved.empty_since_ms,
            charge=self._charge,
            protocol_type=saved.protocol_type,
            generation=saved.generation,
        )
        self._charge(GROUP_BYTES + len(group.group_id))
        return group

    def _drop_unused(self, group: Group) -> None:
        if group.is_unused:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        for member_id in (*group.members, *group.pending_ids):
            self._remove(group, member_id)
        self._deadlines.cancel(("join", group.group_id))
        self._deadlines.cancel(("sync", group.group_id))
        del self._groups[group.group_id]
        self._charge(-GROUP_BYTES - len(group.group_id))

    def _remove(self, group: Group, member_id: str) -> None:
        self._deadlines.cancel(_member_key(group, member_id))
        group.remove(member_id)

    def _saved(self, group: Group) -> None:
        empty_since_ms = None if group.members else group.changed_ms
        group.is_saved = True
        self._save(
            SavedGroup(group.group_id, group.protocol_type, group.generation, empty_since_ms)
        )

    def _charge(self, size_bytes: int) -> None:
        self._used_bytes += size_bytes

    def _set_deadline(
        self, key: tuple[str, ...], delay_ms: int, action: Callable[[], None]
    ) -> None:
        self._deadlines.set(key, self._clock.monotonic_ms() + max(delay_ms, 0), action)


def _member_key(group: Group, member_id: str) -> tuple[str, ...]:
    return "member", group.group_id, member_id


def _synced(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(
        error=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
