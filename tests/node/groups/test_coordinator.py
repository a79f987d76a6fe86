"""The classic group protocol, one rule of Kafka's coordinator after the other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.groups.driving import Desk, Seat, subscription
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.types import LeavingMember, SavedGroup

NONE = ErrorCode.NONE
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def pair(desk: Desk) -> tuple[Seat, Seat]:
    """The leader and a follower of a stable group in its second generation."""
    first, second = desk.seat("a"), desk.seat("b")
    desk.stable(first, second)
    return (first, second) if first.is_leader else (second, first)


def test_a_new_member_joins_again_with_its_id(desk: Desk) -> None:
    seat = desk.seat("a")
    answer = seat.join()
    assert answer is not None
    assert (answer.error, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "a-1")
    joined = seat.join("a-1")
    assert joined is not None
    assert (joined.error, joined.generation, joined.leader_id) == (NONE, 1, "a-1")
    assert [one.member_id for one in joined.members] == ["a-1"]
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")


def test_an_old_client_joins_at_once(desk: Desk) -> None:
    seat = desk.seat("a", more={"requires_member_id": False})
    answer = seat.join()
    assert answer is not None
    assert (answer.error, answer.member_id, answer.generation) == (NONE, "a-1", 1)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "made-up"}, UNKNOWN),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_refused_join_leaves_nothing_behind(
    desk: Desk, more: dict[str, Any], error: ErrorCode
) -> None:
    answer = desk.seat("a", **more).join()
    assert answer is not None
    assert answer.error is error
    assert desk.coordinator.list_groups() == []
    assert desk.coordinator.used_bytes == 0


@pytest.mark.parametrize("more", [{"protocols": [("sticky", b"")]}, {"protocol_type": "connect"}])
def test_members_have_a_protocol_in_common(
    desk: Desk, pair: tuple[Seat, Seat], more: dict[str, Any]
) -> None:
    answer = desk.seat("c", **more).join()
    assert answer is not None
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.state() == "Stable"


def test_most_votes_among_common_protocols_win(desk: Desk) -> None:
    seats = [
        desk.seat("a", protocols=[("x", b"ax"), ("y", b"ay"), ("z", b"az")]),
        desk.seat("b", protocols=[("z", b"bz"), ("y", b"by")]),
        desk.seat("c", protocols=[("y", b"cy"), ("z", b"cz")]),
    ]
    desk.stable(*seats)
    leader = next(one for one in seats if one.is_leader)
    assert leader.joins[-1].protocol_name == "y"
    assert {one.metadata for one in leader.joins[-1].members} == {b"ay", b"by", b"cy"}
    followers = [one for one in seats if one is not leader]
    assert [one.joins[-1].members for one in followers] == [[], []]


def test_first_rebalance_waits_while_members_come() -> None:
    desk = Desk(initial_rebalance_delay_ms=3_000)
    first, second, third = (desk.seat(name, rebalance_timeout_ms=7_000) for name in "abc")
    assert first.enter() is None
    desk.pass_time(2_500)
    assert second.enter() is None
    desk.pass_time(3_000)
    assert first.joins[-1].error is ErrorCode.MEMBER_ID_REQUIRED
    # The delay of the second member is prolonged by a third, but not beyond 7 seconds in all.
    assert third.enter() is None
    desk.pass_time(1_499)
    assert len(first.joins) == 1
    desk.pass_time(1)
    assert [one.generation for one in (first, second, third)] == [1, 1, 1]


def test_a_member_that_does_not_join_again_is_removed(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    third = desk.seat("c")
    assert third.enter() is None
    assert leader.heartbeat() is REBALANCING
    assert leader.join() is None
    for _ in range(11):
        desk.pass_time(5_000)
        assert follower.heartbeat() is REBALANCING
    assert desk.state() == "PreparingRebalance"
    desk.pass_time(5_000)
    assert (leader.generation, third.generation) == (3, 3)
    assert {one.member_id for one in leader.joins[-1].members} == {
        leader.member_id,
        third.member_id,
    }
    assert follower.heartbeat() is UNKNOWN


def test_a_silent_member_loses_its_session(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    desk.pass_time(9_999)
    assert leader.heartbeat() is NONE
    desk.pass_time(1)
    assert follower.heartbeat() is UNKNOWN
    assert leader.heartbeat() is REBALANCING
    joined = leader.join()
    assert joined is not None
    assert (joined.generation, len(joined.members)) == (3, 1)


def test_a_member_that_waits_keeps_its_session(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    assert leader.join() is None
    for _ in range(4):
        desk.pass_time(5_000)
        assert follower.heartbeat() is REBALANCING
    follower.join()
    assert (leader.generation, follower.generation) == (3, 3)
    # Only the follower asks for its assignment, so its session cannot end before that of the
    # leader does.
    assert follower.sync() is None
    desk.pass_time(9_500)
    assert desk.state() == "CompletingRebalance"
    desk.pass_time(500)
    assert follower.syncs[-1].error is REBALANCING
    assert desk.state() == "PreparingRebalance"


def test_an_id_that_never_joins_holds_a_rebalance_for_its_session(desk: Desk) -> None:
    first, ghost = desk.seat("a"), desk.seat("b")
    desk.stable(first)
    ghost.join()
    assert desk.state() == "Stable"
    assert first.join() is None
    desk.pass_time(9_999)
    assert first.joins[-1].generation == 1
    desk.pass_time(1)
    assert first.joins[-1].generation == 2


def test_members_that_do_not_sync_are_removed(desk: Desk) -> None:
    first, second = desk.seat("a"), desk.seat("b", rebalance_timeout_ms=30_000)
    first.rebalance_timeout_ms = 30_000
    first.enter()
    second.enter()
    first.join()
    assert (first.generation, second.generation) == (2, 2)
    for _ in range(5):
        desk.pass_time(5_000)
        assert first.heartbeat() is second.heartbeat() is NONE
    assert second.sync() is None
    desk.pass_time(5_000)
    assert second.syncs[-1].error is REBALANCING
    assert first.heartbeat() is UNKNOWN


def test_follower_gets_its_assignment_again(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    joined = follower.join()
    assert joined is not None
    assert (joined.generation, joined.members) == (2, [])
    synced = follower.sync()
    assert synced is not None
    assert synced.assignment == follower.name.encode()
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert leader.heartbeat() is NONE


def test_new_subscription_of_a_follower_starts_a_rebalance(
    desk: Desk, pair: tuple[Seat, Seat]
) -> None:
    leader, follower = pair
    follower.protocols = (("range", b"other"),)
    assert follower.join() is None
    assert leader.heartbeat() is REBALANCING
    leader.join()
    assert b"other" in [one.metadata for one in leader.joins[-1].members]


def test_leader_that_joins_again_starts_a_rebalance(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    assert leader.join() is None
    assert follower.heartbeat() is REBALANCING
    assert follower.sync() is not None
    assert follower.syncs[-1].error is REBALANCING


@pytest.mark.parametrize("generation", [1, 3])
def test_other_generations_are_fenced(desk: Desk, pair: tuple[Seat, Seat], generation: int) -> None:
    leader, _ = pair
    assert leader.heartbeat(generation) is ErrorCode.ILLEGAL_GENERATION
    assert leader.commit(generation) is ErrorCode.ILLEGAL_GENERATION


def test_leaving_members_start_a_rebalance(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    assert leader.leave() is NONE
    assert leader.leave() is UNKNOWN
    assert follower.heartbeat() is REBALANCING
    joined = follower.join()
    assert joined is not None
    assert joined.leader_id == follower.member_id
    assert follower.leave() is NONE
    assert desk.state() == "Empty"
    assert desk.saved["g"] == SavedGroup("g", "consumer", 4, desk.clock.now_ms())


def test_a_full_group_takes_no_more_members() -> None:
    desk = Desk(max_size=2)
    first, second = desk.seat("a"), desk.seat("b")
    desk.stable(first, second)
    answer = desk.seat("c").join()
    assert answer is not None
    assert (answer.error, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert first.heartbeat() is second.heartbeat() is NONE


def test_the_last_of_a_full_group_to_join_again_loses_its_place() -> None:
    desk = Desk(max_size=2)
    first, second = desk.seat("a"), desk.seat("b")
    desk.stable(first, second)
    third = desk.seat("c")
    first.join()
    assert third.enter() is None
    refused = second.join()
    assert refused is not None
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    desk.pass_time(60_000)
    assert len(desk.coordinator.describe("g").members) == 2


def test_a_stable_group_stays_stable(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    for _ in range(20):
        desk.pass_time(5_000)
        assert [one.heartbeat() for one in pair] == [NONE, NONE]


# -- static members


@pytest.fixture
def statics(desk: Desk) -> tuple[Seat, Seat]:
    """The leader and a follower of a stable group of static members."""
    first, second = desk.seat("a", instance_id="i1"), desk.seat("b", instance_id="i2")
    desk.stable(first, second)
    return (first, second) if first.is_leader else (second, first)


def test_a_restarted_static_follower_needs_no_rebalance(
    desk: Desk, statics: tuple[Seat, Seat]
) -> None:
    leader, follower = statics
    again = desk.seat("b2", instance_id=follower.instance_id)
    joined = again.join()
    assert joined is not None
    assert (joined.error, joined.generation, joined.skip_assignment) == (NONE, 2, False)
    assert joined.member_id not in ("", follower.member_id)
    synced = again.sync()
    assert synced is not None
    assert synced.assignment == follower.name.encode()
    assert leader.heartbeat() is again.heartbeat() is NONE
    assert follower.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.commit() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.leave() is ErrorCode.FENCED_INSTANCE_ID
    fenced = follower.sync()
    assert fenced is not None
    assert fenced.error is ErrorCode.FENCED_INSTANCE_ID


def test_a_restarted_static_leader_skips_the_assignment(
    desk: Desk, statics: tuple[Seat, Seat]
) -> None:
    leader, follower = statics
    again = desk.seat("a2", instance_id=leader.instance_id)
    joined = again.join()
    assert joined is not None
    assert (joined.skip_assignment, joined.leader_id) == (True, again.member_id)
    assert {one.instance_id for one in joined.members} == {"i1", "i2"}
    assert follower.heartbeat() is NONE


def test_an_old_static_leader_does_not_take_itself_for_the_leader(
    desk: Desk, statics: tuple[Seat, Seat]
) -> None:
    leader, _ = statics
    again = desk.seat("a2", instance_id=leader.instance_id, more={"can_skip_assignment": False})
    joined = again.join()
    assert joined is not None
    assert (joined.leader_id, joined.skip_assignment) == (leader.member_id, False)
    assert joined.members == []


def test_a_static_member_with_another_protocol_starts_a_rebalance(desk: Desk) -> None:
    seat = desk.seat("a", instance_id="i1", protocols=[("x", b""), ("y", b"")])
    desk.stable(seat)
    again = desk.seat("b", instance_id="i1", protocols=[("y", b""), ("x", b"")])
    joined = again.join()
    assert joined is not None
    assert (joined.generation, joined.protocol_name) == (2, "y")


def test_a_waiting_request_of_a_replaced_static_member_is_fenced(
    desk: Desk, statics: tuple[Seat, Seat]
) -> None:
    leader, follower = statics
    assert leader.join() is None
    again = desk.seat("a2", instance_id=leader.instance_id)
    again.join()
    assert leader.joins[-1].error is ErrorCode.FENCED_INSTANCE_ID
    follower.join()
    assert again.generation == follower.generation == 3


def test_static_members_stay_without_joining_again(desk: Desk) -> None:
    static = desk.seat("a", instance_id="i1", session_timeout_ms=1_000_000)
    desk.stable(static)
    second = desk.seat("b")
    assert second.enter() is None
    desk.pass_time(60_000)
    # The leader has not joined again, so the new member leads, and assigns partitions to both.
    assert (second.generation, second.is_leader) == (2, True)
    assert {one.instance_id for one in second.joins[-1].members} == {None, "i1"}


def test_a_rebalance_that_only_static_members_missed_waits_for_one(desk: Desk) -> None:
    static = desk.seat("a", instance_id="i1", session_timeout_ms=1_000_000)
    desk.stable(static)
    second = desk.seat("b")
    second.enter()
    second.leave()
    desk.pass_time(60_000)
    assert desk.state() == "PreparingRebalance"
    joined = static.join()
    assert joined is not None
    assert (joined.generation, len(joined.members)) == (2, 1)


def test_an_administrator_removes_a_static_member_by_its_instance(
    desk: Desk, statics: tuple[Seat, Seat]
) -> None:
    leader, follower = statics
    named = [LeavingMember("", follower.instance_id), LeavingMember("", "i3"), LeavingMember("x")]
    assert desk.coordinator.leave("g", named) == [NONE, UNKNOWN, UNKNOWN]
    assert leader.heartbeat() is REBALANCING


# -- offsets


def test_commits_of_a_group(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, _ = pair
    check = desk.coordinator.check_commit
    assert leader.commit() is NONE
    assert check("g", "", None, -1) is UNKNOWN
    assert check("g", "someone", None, 2) is UNKNOWN
    assert check("g", leader.member_id, None, -1) is ErrorCode.ILLEGAL_GENERATION
    assert check("g", leader.member_id, "i1", 2) is UNKNOWN
    leader.join()
    assert leader.commit() is NONE


def test_commits_wait_for_the_assignment(desk: Desk) -> None:
    seat = desk.seat("a")
    seat.enter()
    assert seat.commit() is REBALANCING
    seat.sync()
    assert seat.commit() is NONE


def test_a_commit_prolongs_the_session(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    leader, follower = pair
    for _ in range(3):
        desk.pass_time(9_000)
        assert leader.commit() is follower.heartbeat() is NONE


def test_a_commit_without_a_group(desk: Desk) -> None:
    check = desk.coordinator.check_commit
    assert check("simple", "", None, 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert check("simple", "", None, -1) is NONE
    assert desk.saved["simple"] == SavedGroup("simple", None, 0, desk.clock.now_ms())
    (listed,) = desk.coordinator.list_groups()
    assert listed == ("simple", "", "Empty")
    # Its offsets stay when somebody fails to join it.
    assert desk.seat("a", group_id="simple", protocols=()).join() is not None
    assert desk.coordinator.delete("simple") is NONE


def test_offsets_of_subscribed_topics_are_kept(desk: Desk) -> None:
    seat = desk.seat("a", protocols=[("range", subscription("orders", "bills"))])
    desk.stable(seat)
    subscribed = desk.coordinator.is_subscribed
    assert subscribed("g", "orders")
    assert subscribed("g", "bills")
    assert not subscribed("g", "other")
    assert desk.coordinator.check_offset_delete("g") is NONE
    seat.leave()
    assert not subscribed("g", "orders")


@pytest.mark.parametrize(
    "metadata", [b"", b"\0", subscription("orders")[:-6], b"\0\0\xff\xff\xff\xff"]
)
def test_an_unreadable_subscription_is_not_empty(desk: Desk, metadata: bytes) -> None:
    desk.stable(desk.seat("a", protocols=[("range", metadata)]))
    is_readable = metadata.endswith(b"\xff")  # A negative count is no topic, as Kafka reads it.
    assert desk.coordinator.is_subscribed("g", "other") is not is_readable


def test_offsets_of_other_groups_are_deleted_without_members_only(desk: Desk) -> None:
    seat = desk.seat("a", protocol_type="connect")
    desk.stable(seat)
    check = desk.coordinator.check_offset_delete
    assert check("g") is ErrorCode.NON_EMPTY_GROUP
    seat.leave()
    assert check("g") is NONE
    assert check("other") is ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_of_which_offsets_expire() -> None:
    desk = Desk(offsets_retention_minutes=60)
    desk.stable(desk.seat("a", group_id="stable"))
    desk.seat("a", group_id="joining").enter()
    desk.stable(desk.seat("a", group_id="connect", protocol_type="connect"))
    left = desk.seat("a", group_id="empty", session_timeout_ms=10_000)
    desk.stable(left)
    left.leave()
    desk.coordinator.check_commit("simple", "", None, -1)
    assert desk.coordinator.expiring_groups() == [("stable", True), ("simple", False)]
    desk.clock.advance(3_600_000)
    assert ("empty", False) in desk.coordinator.expiring_groups()


def test_deleting_groups(desk: Desk, pair: tuple[Seat, Seat]) -> None:
    assert desk.coordinator.delete("g") is ErrorCode.NON_EMPTY_GROUP
    assert desk.coordinator.delete("other") is ErrorCode.GROUP_ID_NOT_FOUND
    for seat in pair:
        seat.leave()
    assert desk.state() == "PreparingRebalance" or desk.state() == "Empty"
    assert desk.coordinator.delete("g") is NONE
    assert desk.state() == "Dead"
    assert desk.coordinator.used_bytes == 0


def test_a_restart_keeps_generation_and_time() -> None:
    desk = Desk(
        saved=[SavedGroup("g", "consumer", 7, 1_000), SavedGroup("busy", "consumer", 3, None)]
    )
    assert desk.state() == "Empty"
    # A group with members counts as empty from the restart on.
    assert desk.coordinator.expiring_groups() == [("g", False)]
    joined = desk.seat("a").enter()
    assert joined is not None
    assert joined.generation == 8


# -- limits


def test_a_member_beyond_the_memory_is_refused() -> None:
    desk = Desk(memory_bytes=1 << 20)
    big = desk.seat("a", protocols=[("range", bytes(1 << 20))])
    answer = big.enter()
    assert answer is not None
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.coordinator.used_bytes == 0
    small = desk.seat("b", protocols=[("range", bytes(1000))])
    desk.stable(small)
    synced = small.sync()
    assert synced is not None
    # The leader is free to join again, with a smaller assignment.
    small.join()
    refused = small.sync({small.member_id: bytes(1 << 20)})
    assert refused is not None
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    small.join()
    small.sync({small.member_id: b"less"})
    assert small.syncs[-1].assignment == b"less"


def test_groups_beyond_the_limit_are_refused() -> None:
    desk = Desk(max_groups=3)
    for name in "xyz":
        desk.coordinator.check_commit(name, "", None, -1)
    full = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert desk.coordinator.check_commit("more", "", None, -1) is full
    answer = desk.seat("a", group_id="more").join()
    assert answer is not None
    assert answer.error is full
    desk.stable(desk.seat("a", group_id="x"))


def test_memory_of_ids_that_never_join_comes_back(desk: Desk) -> None:
    for number in range(100):
        desk.seat("a" * number).join()
    assert desk.coordinator.used_bytes > 100 * 100
    desk.pass_time(10_000)
    assert desk.coordinator.used_bytes == 0
    assert desk.coordinator.list_groups() == []
    assert desk.coordinator.next_due_ms() is None
