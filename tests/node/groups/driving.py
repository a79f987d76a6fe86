"""A coordinator under a clock that tests move, and members that remember their answers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tierlog.clock import ManualClock
from tierlog.config.groups import GroupConfig
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.coordinator import GroupCoordinator
from tierlog.node.groups.types import (
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    Protocol,
    SavedGroup,
    SyncAnswer,
    SyncRequest,
)

__all__ = ["Desk", "Seat", "subscription"]

# Most tests are not about the delay of the first rebalance.
QUICK = {"initial_rebalance_delay_ms": 0}


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer of `topics`: ConsumerProtocolSubscription, version 0."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


@dataclass
class Seat:
    """One client: what it says of itself, and the answers it got."""

    desk: Desk
    name: str
    instance_id: str | None = None
    protocols: Sequence[tuple[str, bytes]] = (("range", b"r"),)
    protocol_type: str = "consumer"
    group_id: str = "g"
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    more: dict[str, Any] = field(default_factory=dict)
    member_id: str = ""
    joins: list[JoinAnswer] = field(default_factory=list)
    syncs: list[SyncAnswer] = field(default_factory=list)
    # The generation of each request in `syncs`.
    sync_generations: list[int] = field(default_factory=list)

    def join(self, member_id: str | None = None) -> JoinAnswer | None:
        """Send one JoinGroup; the answer, None while it waits."""
        before = len(self.joins)
        request = JoinRequest(
            group_id=self.group_id,
            member_id=self.member_id if member_id is None else member_id,
            instance_id=self.instance_id,
            client_id=self.name,
            client_host="/127.0.0.1",
            protocol_type=self.protocol_type,
            protocols=[Protocol(*one) for one in self.protocols],
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            **self.more,
        )
        self.desk.coordinator.join(request, self._joined)
        self.desk.coordinator.run_due()
        return self.joins[-1] if len(self.joins) > before else None

    def enter(self) -> JoinAnswer | None:
        """Join as clients do: again with the id that the first answer gives."""
        answer = self.join()
        if answer is not None and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = self.join()
        return answer

    def _joined(self, answer: JoinAnswer) -> None:
        self.joins.append(answer)
        if answer.error is ErrorCode.NONE:
            self.member_id = answer.member_id

    def sync(self, assignments: dict[str, bytes] | None = None) -> SyncAnswer | None:
        """Send one SyncGroup for the generation that the last join told."""
        before = len(self.syncs)
        request = SyncRequest(
            group_id=self.group_id,
            generation=self.generation,
            member_id=self.member_id,
            instance_id=self.instance_id,
            assignments=list((assignments or {}).items()),
        )

        def synced(answer: SyncAnswer) -> None:
            self.syncs.append(answer)
            self.sync_generations.append(request.generation)

        self.desk.coordinator.sync(request, synced)
        self.desk.coordinator.run_due()
        return self.syncs[-1] if len(self.syncs) > before else None

    @property
    def generation(self) -> int:
        return self.joins[-1].generation if self.joins else -1

    @property
    def is_leader(self) -> bool:
        return self.joins[-1].leader_id == self.member_id

    def heartbeat(self, generation: int | None = None) -> ErrorCode:
        generation = self.generation if generation is None else generation
        return self.desk.coordinator.heartbeat(
            self.group_id, self.member_id, self.instance_id, generation
        )

    def leave(self) -> ErrorCode:
        leaving = LeavingMember(self.member_id, self.instance_id)
        (error,) = self.desk.coordinator.leave(self.group_id, [leaving])
        return error

    def commit(self, generation: int | None = None) -> ErrorCode:
        generation = self.generation if generation is None else generation
        return self.desk.coordinator.check_commit(
            self.group_id, self.member_id, self.instance_id, generation
        )


class Desk:
    """A coordinator with counted member ids; `saved` has the groups it saved, by id."""

    def __init__(self, saved: Sequence[SavedGroup] = (), **settings: int) -> None:
        self.clock = ManualClock()
        self.saved: dict[str, SavedGroup] = {one.group_id: one for one in saved}
        numbers = count(1)
        self.coordinator = GroupCoordinator(
            GroupConfig(**(QUICK | settings)),
            self.clock,
            new_id=lambda: str(next(numbers)),
            save=self._save,
            saved=saved,
        )

    def _save(self, group: SavedGroup) -> None:
        self.saved[group.group_id] = group

    def seat(self, name: str, **more: Any) -> Seat:
        return Seat(self, name, **more)

    def pass_time(self, duration_ms: int, *, step_ms: int = 500) -> None:
        """Let time pass in steps, as the timer of an event loop does."""
        while duration_ms > 0:
            self.clock.advance(min(step_ms, duration_ms))
            duration_ms -= step_ms
            self.coordinator.run_due()

    def stable(self, *seats: Seat) -> None:
        """Bring a group of `seats` into the state Stable."""
        for seat in seats:
            seat.enter()
        for seat in seats:
            if seat.heartbeat() is not ErrorCode.NONE:
                seat.join()
        leader = next(one for one in seats if one.is_leader)
        assignments = {one.member_id: one.name.encode() for one in seats}
        for seat in seats:
            if seat is not leader:
                assert seat.sync() is None
        leader.sync(assignments)
        assert [one.syncs[-1].assignment for one in seats] == [one.name.encode() for one in seats]

    def state(self, group_id: str = "g") -> str:
        return self.coordinator.describe(group_id).state.value
