"""Groups in an event loop: offsets are durable, expire, and survive the death of the process."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.node.groups.driving import subscription
from tierlog.clock import ManualClock
from tierlog.config import GroupConfig
from tierlog.errors import CorruptDataError, RemoteMetadataError
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.offsets import CommittedOffset, OffsetStore, TopicPartition
from tierlog.node.groups.service import GroupService
from tierlog.node.groups.types import JoinRequest, LeavingMember, Protocol, SyncRequest

NONE = ErrorCode.NONE
FIRST = TopicPartition("orders", 0)
MINUTE_MS = 60_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "groups.sqlite")


def offset(value: int, commit_ms: int = 0, expire_ms: int | None = None) -> CommittedOffset:
    return CommittedOffset(value, 4, "note", commit_ms, expire_ms)


def run(
    path: str,
    body: Callable[[GroupService], Awaitable[None]],
    clock: ManualClock | None = None,
    warnings: list[str] | None = None,
) -> None:
    """Run `body` with the groups in `path`, with offsets that are kept for an hour."""

    async def made() -> None:
        warned: list[str] = []
        config = GroupConfig(offsets_retention_minutes=60, initial_rebalance_delay_ms=0)
        groups = GroupService(path, config, clock or ManualClock(), warn=warned.append)
        groups.start()
        try:
            await body(groups)
        finally:
            await groups.close()
            await groups.close()
        if warnings is None:
            assert warned == []
        else:
            warnings.extend(warned)

    asyncio.run(made())


async def enter(groups: GroupService, group_id: str = "g", topic: str = "orders") -> str:
    """Become the only member of a stable group; the member's id."""
    joined = await groups.join(
        JoinRequest(
            group_id=group_id,
            member_id="",
            instance_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            protocol_type="consumer",
            protocols=[Protocol("range", subscription(topic))],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            requires_member_id=False,
        )
    )
    assert joined.error is NONE
    synced = await groups.sync(
        SyncRequest(group_id=group_id, generation=joined.generation, member_id=joined.member_id)
    )
    assert synced.error is NONE
    return joined.member_id


def test_offsets_are_there_after_a_restart(path: str) -> None:
    async def before(groups: GroupService) -> None:
        member_id = await enter(groups)
        assert await groups.commit("g", member_id, None, 1, {FIRST: offset(7)}) is NONE
        many = {TopicPartition("orders", n): offset(n) for n in range(300)}
        assert await groups.commit("simple", "", None, -1, many) is NONE

    async def after(groups: GroupService) -> None:
        assert await groups.offsets("g", None) == {FIRST: offset(7)}
        other = TopicPartition("orders", 1)
        assert await groups.offsets("g", [other, FIRST]) == {FIRST: offset(7)}
        asked = [TopicPartition("orders", n) for n in range(150, 450)]
        assert await groups.offsets("simple", asked) == {at: offset(at[1]) for at in asked[:150]}
        assert {one[:2] for one in groups.list_groups()} == {("g", "consumer"), ("simple", "")}
        member_id = await enter(groups)
        assert await groups.commit("g", member_id, None, 2, {FIRST: offset(8)}) is NONE

    run(path, before)
    run(path, after)


def test_a_refused_commit_stores_nothing(path: str) -> None:
    async def body(groups: GroupService) -> None:
        await enter(groups)
        error = await groups.commit("g", "other", None, 1, {FIRST: offset(7)})
        assert error is ErrorCode.UNKNOWN_MEMBER_ID
        assert await groups.offsets("g", None) == {}

    run(path, body)


def test_a_full_disk_refuses_commits_until_there_is_room(path: str) -> None:
    warnings: list[str] = []

    async def body(groups: GroupService) -> None:
        assert await groups.commit("g", "", None, -1, {FIRST: offset(1)}) is NONE
        database = groups._store._file.connection
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        await groups._read(lambda: database.execute(f"PRAGMA max_page_count = {pages}"))
        many = {TopicPartition("orders", n): offset(n) for n in range(1_000)}
        error = await groups.commit("g", "", None, -1, many)
        assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await groups.offsets("g", None) == {FIRST: offset(1)}
        await groups._read(lambda: database.execute("PRAGMA max_page_count = 100000"))
        assert await groups.commit("g", "", None, -1, many) is NONE

    run(path, body, warnings=warnings)
    assert len(warnings) == 1
    assert "full" in warnings[0]


def test_what_is_acknowledged_survives_kill_9(path: str) -> None:
    """A process acknowledges commits of many clients until it is killed."""
    script = f"""
import asyncio
from tierlog.clock import SystemClock
from tierlog.config import GroupConfig
from tierlog.node.groups.offsets import CommittedOffset, TopicPartition
from tierlog.node.groups.service import GroupService

async def client(groups, name):
    for value in range(10**9):
        offset = CommittedOffset(value, -1, "", 0, None)
        await groups.commit(name, "", None, -1, {{TopicPartition("orders", 0): offset}})
        print(name, value, flush=True)

async def main():
    groups = GroupService({path!r}, GroupConfig(), SystemClock(), warn=print)
    groups.start()
    await asyncio.gather(*(client(groups, f"g{{n}}") for n in range(5)))

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(500)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
    acknowledged: dict[str, int] = {}
    for line in lines:
        if len(fields := line.split()) == 2 and line.endswith(("\n", fields[1])):
            acknowledged[fields[0]] = int(fields[1])
    assert len(acknowledged) == 5
    store = OffsetStore(path)
    try:
        for name, value in acknowledged.items():
            assert store.offsets(name)[FIRST].offset >= value
    finally:
        store.close()


def test_offsets_expire_after_the_last_member_left(path: str) -> None:
    clock = ManualClock()

    async def body(groups: GroupService) -> None:
        member_id = await enter(groups)
        gone = TopicPartition("gone", 0)
        offsets = {one: offset(1, clock.now_ms()) for one in (FIRST, gone)}
        assert await groups.commit("g", member_id, None, 1, offsets) is NONE
        for _ in range(61 * 6):
            clock.advance(MINUTE_MS // 6)
            assert groups.heartbeat("g", member_id, None, 1) is NONE
        # The member subscribes to one of the topics.
        await groups.expire_offsets()
        assert set(await groups.offsets("g", None) or ()) == {FIRST}
        groups.leave("g", [LeavingMember(member_id)])
        clock.advance(59 * MINUTE_MS)
        await groups.expire_offsets()
        assert set(await groups.offsets("g", None) or ()) == {FIRST}
        clock.advance(MINUTE_MS)
        await groups.expire_offsets()
        assert await groups.offsets("g", None) == {}
        assert groups.list_groups() == []

    run(path, body, clock)
    run(path, _is_empty)


async def _is_empty(groups: GroupService) -> None:
    assert groups.list_groups() == []


def test_offsets_of_a_group_without_members_expire_after_the_commit(path: str) -> None:
    clock = ManualClock()

    async def body(groups: GroupService) -> None:
        now_ms = clock.now_ms()
        second = TopicPartition("orders", 1)
        soon = {FIRST: offset(1, now_ms, now_ms + MINUTE_MS), second: offset(2, now_ms)}
        assert await groups.commit("simple", "", None, -1, soon) is NONE
        clock.advance(MINUTE_MS)
        await groups.expire_offsets()
        assert set(await groups.offsets("simple", None) or ()) == {second}
        clock.advance(59 * MINUTE_MS)
        await groups.expire_offsets()
        assert groups.list_groups() == []

    run(path, body, clock)


def test_a_commit_during_the_expiration_keeps_its_group(path: str) -> None:
    clock = ManualClock()

    async def body(groups: GroupService) -> None:
        await groups.commit("simple", "", None, -1, {FIRST: offset(1, clock.now_ms())})
        clock.advance(100 * MINUTE_MS)
        for _ in range(20):
            expiring = asyncio.create_task(groups.expire_offsets())
            for _ in range(3):
                await asyncio.sleep(0)
            kept = {FIRST: offset(2, clock.now_ms())}
            assert await groups.commit("simple", "", None, -1, kept) is NONE
            await expiring
            assert await groups.offsets("simple", None) == kept
            assert len(groups.list_groups()) == 1
            clock.advance(100 * MINUTE_MS)

    run(path, body, clock)


def test_a_deleted_group_is_gone_after_a_restart(path: str) -> None:
    async def body(groups: GroupService) -> None:
        await groups.commit("g", "", None, -1, {FIRST: offset(1)})
        assert await groups.delete("g") is NONE
        assert await groups.offsets("g", None) == {}

    run(path, body)
    run(path, _is_empty)


def test_a_file_has_one_process(path: str) -> None:
    async def body(groups: GroupService) -> None:
        with pytest.raises(RemoteMetadataError, match="in use by another process"):
            OffsetStore(path)

    run(path, body)


def test_a_damaged_offset_is_no_offset(path: str) -> None:
    async def before(groups: GroupService) -> None:
        await groups.commit("g", "", None, -1, {FIRST: offset(1)})

    async def after(groups: GroupService) -> None:
        assert await groups.offsets("g", None) is None

    warnings: list[str] = []
    run(path, before)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE committed_offset SET committed_offset = 2")
    database.close()
    run(path, after, warnings=warnings)
    assert "bad_row_checksum" in warnings[0]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE consumer_group SET generation = 2")
    database.close()
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="consumer_group"):
            run(path, after)
