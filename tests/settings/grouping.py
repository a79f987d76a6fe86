"""What settings change for consumer groups."""

from __future__ import annotations

import asyncio
import uuid

from tests.node.groups.conversation import Transcript, commit, fetch, join
from tests.node.running import PATIENCE_S, Running, running
from tests.settings.observing import Place
from tierlog.clock import ManualClock

__all__ = [
    "commits_of_groups",
    "first_answer",
    "first_rebalance_ms",
    "offset_after_two_hours",
    "second_member",
]

# A version of JoinGroup that makes a member at once.
AT_ONCE = 3


def _talk(server: Running) -> Transcript:
    return Transcript(server.address, uuid.UUID(int=0))


def _state(server: Running, group_id: str) -> str:
    found: str = server.call(lambda: server.node.groups.describe(group_id).state.value)
    return found


def first_answer(place: Place) -> int:
    """The error of a member's first request, with a session of ten seconds and 2 KiB to say."""
    with running(config=place.config) as server:
        talk = _talk(server)
        message = join("g", session_timeout_ms=10_000, protocols=[("range", bytes(2_000))])
        error: int = talk.ask("a", message, 9).error_code
        talk.close()
    return error


def first_rebalance_ms(place: Place) -> int:
    """How long the first rebalance of a group takes."""
    clock, passed_ms = ManualClock(), 0
    with running(config=place.config, clock=clock) as server:
        talk = _talk(server)
        talk.send("a", join("g"), AT_ONCE)
        while _state(server, "g") != "PreparingRebalance":
            pass
        while _state(server, "g") == "PreparingRebalance":
            clock.advance(500)
            passed_ms += 500
            server.call(server.node.groups.run_due)
        talk.close()
    return passed_ms


def second_member(place: Place) -> int:
    """The error of the second member of a group."""
    clock = ManualClock()
    with running(config=place.config, clock=clock) as server:
        talk = _talk(server)
        talk.send("a", join("g"), AT_ONCE)
        while _state(server, "g") != "PreparingRebalance":
            pass
        clock.advance(60_000)
        server.call(server.node.groups.run_due)
        assert talk.read("a").error_code == 0
        error: int = talk.ask("b", join("g"), 9).error_code
        talk.close()
    return error


def commits_of_groups(place: Place) -> list[int]:
    """The errors of a commit of each of three groups, with five characters of metadata."""
    with running(config=place.config) as server:
        talk = _talk(server)
        answers = [
            talk.ask("a", commit(group_id, [("orders", 0, 7, "12345")]), 9)
            for group_id in ("g1", "g2", "g3")
        ]
        talk.close()
    return [one.topics[0].partitions[0].error_code for one in answers]


def offset_after_two_hours(place: Place) -> int:
    """The committed offset of a group without members, two hours after its commit."""
    clock = ManualClock()
    with running(config=place.config, clock=clock) as server:
        talk = _talk(server)
        talk.ask("a", commit("g", [("orders", 0, 7, "")]), 9)
        clock.advance(7_200_000)
        expiring = server.node.groups.expire_offsets()
        asyncio.run_coroutine_threadsafe(expiring, server.loop).result(PATIENCE_S)
        answer = talk.ask("a", fetch("g", [("orders", [0])]), 9)
        talk.close()
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset
