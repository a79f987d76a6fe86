"""Clients join, sync, leave and fall silent in any order; what they are told stays consistent."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tests.node.groups.driving import Desk, Seat
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.group import GROUP_BYTES

MAX_SIZE = 4
PROTOCOLS = {"x": b"1", "y": b"2", "z": b"3"}
NONE = ErrorCode.NONE


class Histories(RuleBasedStateMachine):
    """One group. What each client hears is compared with what the others hear."""

    seats = Bundle("seats")

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(max_size=MAX_SIZE, initial_rebalance_delay_ms=3_000)
        self.all: list[Seat] = []
        self.last_generation = 0

    @rule(
        target=seats,
        instance_id=st.sampled_from([None, None, "i1", "i2"]),
        names=st.lists(st.sampled_from("xyz"), min_size=1, unique=True),
        rebalance_timeout_ms=st.sampled_from([1_000, 20_000]),
        requires_member_id=st.booleans(),
    )
    def new_client(
        self,
        instance_id: str | None,
        names: list[str],
        rebalance_timeout_ms: int,
        requires_member_id: bool,
    ) -> Seat:
        seat = self.desk.seat(
            f"c{len(self.all)}",
            instance_id=instance_id,
            protocols=[(name, PROTOCOLS[name]) for name in names],
            rebalance_timeout_ms=rebalance_timeout_ms,
            more={"requires_member_id": requires_member_id},
        )
        self.all.append(seat)
        return seat

    @rule(seat=seats)
    def join(self, seat: Seat) -> None:
        seat.enter()

    @rule(seat=seats)
    def sync(self, seat: Seat) -> None:
        if seat.generation < 0:
            return
        members = seat.joins[-1].members
        assignments = {
            one.member_id: f"{one.member_id}@{seat.generation}".encode() for one in members
        }
        seat.sync(assignments)

    @rule(seat=seats)
    def heartbeat(self, seat: Seat) -> None:
        error = seat.heartbeat()
        if error is NONE:
            assert seat.generation == self.last_generation

    @rule(seat=seats)
    def commit(self, seat: Seat) -> None:
        if seat.generation >= 0 and seat.commit() is NONE:
            assert seat.generation == self.last_generation

    @rule(seat=seats)
    def leave(self, seat: Seat) -> None:
        seat.leave()

    @rule(duration_ms=st.sampled_from([100, 3_000, 9_000, 25_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.desk.pass_time(duration_ms)

    @invariant()
    def members_agree(self) -> None:
        described = self.desk.coordinator.describe("g")
        assert len({one.member_id for one in described.members}) == len(described.members)
        instances = [one.instance_id for one in described.members if one.instance_id]
        assert len(set(instances)) == len(instances)
        if described.state in ("Stable", "CompletingRebalance"):
            assert len(described.members) <= MAX_SIZE
        joined = [one for seat in self.all for one in seat.joins if one.error is NONE]
        generations = [one.generation for one in joined]
        if generations:
            assert max(generations) >= self.last_generation
            self.last_generation = max(generations)
        # Of the members without an instance, which nobody replaces, one leads; it knows all others.
        for generation in set(generations):
            answers = [one for one in joined if one.generation == generation]
            leads = [one for one in answers if one.members]
            known = {member.member_id for one in leads for member in one.members}
            assert {one.member_id for one in answers} <= known | {
                seat.member_id for seat in self.all if seat.instance_id
            }
            names = {one.protocol_name for one in answers}
            assert len(names) == 1
            for one in leads:
                assert one.leader_id == one.member_id
                assert all(
                    member.metadata == PROTOCOLS[one.protocol_name or ""] for member in one.members
                )

    @invariant()
    def assignments_are_those_of_the_generation(self) -> None:
        for seat in self.all:
            if seat.instance_id is not None:
                continue
            for generation, answer in zip(seat.sync_generations, seat.syncs, strict=True):
                if answer.error is NONE:
                    member_id, _, assigned = answer.assignment.decode().rpartition("@")
                    assert int(assigned) == generation
                    assert member_id in {one.member_id for one in seat.joins}

    def teardown(self) -> None:
        """Without any client, all requests get an answer and all memory comes back."""
        self.desk.pass_time(700_000, step_ms=5_000)
        assert self.desk.state() in ("Empty", "Dead")
        assert self.desk.coordinator.next_due_ms() is None
        groups = self.desk.coordinator.list_groups()
        assert self.desk.coordinator.used_bytes == len(groups) * (GROUP_BYTES + 1)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
