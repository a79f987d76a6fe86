"""The coordinator at work in an event loop: its clock, and its file in a thread of its own.

Changes of the file are made in the order of the requests. Those that wait while the file is synced
share the next commit.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from tierlog.clock import Clock
from tierlog.config.groups import GroupConfig
from tierlog.errors import TierlogError
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.coordinator import GroupCoordinator
from tierlog.node.groups.offsets import (
    GROUPS_FILE,
    Change,
    CommittedOffset,
    OffsetStore,
    TopicPartition,
    add_pending,
    commit_offsets,
    delete_group,
    delete_offsets,
    end_pending,
    expire_offsets,
    save_group,
)
from tierlog.node.groups.pending import PendingOffsets
from tierlog.node.groups.types import (
    GroupDescription,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    ListedGroup,
    SavedGroup,
    SyncAnswer,
    SyncRequest,
)
from tierlog.types import random_kafka_uuid

__all__ = ["GroupService", "open_groups"]

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# How often expired offsets are looked for: Kafka's offsets.retention.check.interval.ms.
EXPIRE_INTERVAL_MS = 600_000


class GroupService:
    """The groups of a node, with their offsets in the file `path`.

    `start` binds it to the running event loop, `close` ends it. ``warn`` gets a sentence about each
    failure to read or write the file.

    RemoteMetadataError when another process has the file open, CorruptDataError when it is damaged.
    """

    def __init__(
        self,
        path: str,
        config: GroupConfig,
        clock: Clock,
        *,
        warn: Callable[[str], object],
        new_id: Callable[[], str] = random_kafka_uuid,
    ) -> None:
        self._config = config
        self._clock = clock
        self._warn = warn
        self._store = OffsetStore(path)
        self._coordinator = GroupCoordinator(
            config,
            clock,
            new_id=new_id,
            save=self._save,
            saved=self._load(self._store.groups),
        )
        self._pending = PendingOffsets(self._load(self._store.pending))
        # Producers whose offsets are on their way to the file.
        self._ending: set[int] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tierlog-groups")
        self._queue: list[tuple[Sequence[Change], asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None
        # How many commits of each group are on their way to the file.
        self._commits: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._expirer: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Bind the groups to the running event loop; may be repeated."""
        if self._expirer is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._expirer = self._loop.create_task(self._expire_regularly())

    # -- members

    async def join(self, request: JoinRequest) -> JoinAnswer:
        """Return the answer to JoinGroup, when the next generation starts."""
        found: asyncio.Future[JoinAnswer] = self._loop.create_future()
        self._coordinator.join(request, _resolve(found))
        self._set_timer()
        return await found

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        """Return the answer to SyncGroup, once the leader has sent the assignments."""
        found: asyncio.Future[SyncAnswer] = self._loop.create_future()
        self._coordinator.sync(request, _resolve(found))
        self._set_timer()
        return await found

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        error = self._coordinator.heartbeat(group_id, member_id, instance_id, generation)
        self._set_timer()
        return error

    def leave(self, group_id: str, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Remove members; the answer has an error for each."""
        errors = self._coordinator.leave(group_id, members)
        self._set_timer()
        return errors

    # -- offsets

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> ErrorCode:
        """Store offsets, durable on return; none of them when the answer is an error."""
        error = self._coordinator.check_commit(group_id, member_id, instance_id, generation)
        self._set_timer()
        if error is not ErrorCode.NONE or not offsets:
            return error
        changes = [commit_offsets(group_id, offsets)]
        for producer_id, replaced in self._pending.replaced_by(group_id, offsets).items():
            if producer_id in self._ending:
                continue  # Its offsets are written before these.
            self._pending.add(producer_id, group_id, replaced)
            changes.append(add_pending(producer_id, group_id, replaced))
        return await self._store_commit(group_id, changes)

    async def _store_commit(self, group_id: str, changes: Sequence[Change]) -> ErrorCode:
        self._commits[group_id] += 1
        try:
            is_stored = await self._queue_changes(*changes)
        finally:
            self._commits -= Counter((group_id,))
        return ErrorCode.NONE if is_stored else ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def commit_in_transaction(
        self,
        producer_id: int,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> ErrorCode:
        """Store offsets that count when the producer's transaction is committed, durable on return;
        none of them when the answer is an error."""
        error = self._coordinator.check_commit(
            group_id, member_id, instance_id, generation, is_transactional=True
        )
        if error is not ErrorCode.NONE or not offsets:
            return error
        self._pending.add(producer_id, group_id, offsets)
        return await self._store_commit(group_id, [add_pending(producer_id, group_id, offsets)])

    async def end_transaction(self, producer_id: int, *, is_commit: bool) -> bool:
        """Commit or forget the offsets of a producer; False when they could not be stored."""
        waiting = self._pending.of_producer(producer_id)
        if not waiting:
            return True
        committed = waiting if is_commit else {}
        self._ending.add(producer_id)
        try:
            is_stored = await self._queue_changes(end_pending(producer_id, committed))
        finally:
            self._ending.remove(producer_id)
        if is_stored:
            self._pending.remove(producer_id)
        return is_stored

    def pending_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions of a group with offsets that wait for a transaction."""
        return self._pending.partitions(group_id)

    def pending_producers(self) -> set[int]:
        """Return the producers that have offsets waiting."""
        return self._pending.producers()

    async def offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset] | None:
        """Return the committed offsets of a group, of all its partitions when they are None; None
        when the file cannot be read."""
        try:
            return await self._read(self._store.offsets, group_id, partitions)
        except TierlogError as error:
            self._warn(f"committed offsets cannot be read: {error}")
            return None

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete committed offsets; the answer has an error for all, and one for each partition."""
        error = self._coordinator.check_offset_delete(group_id)
        if error is not ErrorCode.NONE:
            return error, {}
        subscribed = {
            topic: self._coordinator.is_subscribed(group_id, topic)
            for topic in {at.topic for at in partitions}
        }
        unused = [at for at in partitions if not subscribed[at.topic]]
        if unused and not await self._queue_changes(delete_offsets(group_id, unused)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, {}
        subscribed_error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE, {
            at: subscribed_error if subscribed[at.topic] else ErrorCode.NONE for at in partitions
        }

    async def expire_offsets(self) -> None:
        """Delete offsets older than the retention, and groups that have neither members nor
        offsets."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        for group_id, has_members in self._coordinator.expiring_groups():
            topics: list[str] | None = None
            if has_members:
                topics = [
                    topic
                    for topic in await self._read(self._store.topics, group_id)
                    if not self._coordinator.is_subscribed(group_id, topic)
                ]
            if topics != []:
                now_ms = self._clock.now_ms()
                await self._queue_changes(expire_offsets(group_id, topics, now_ms, retention_ms))
            if not has_members and not await self._read(self._store.has_offsets, group_id):
                await self._remove_unused(group_id)

    async def _remove_unused(self, group_id: str) -> None:
        is_used = self._commits[group_id] or self._pending.partitions(group_id)
        if not is_used and self._coordinator.remove_empty(group_id):
            await self._queue_changes(delete_group(group_id))

    def run_due(self) -> None:
        """End what has timed out; the timer of the event loop does it by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._coordinator.run_due()
        self._set_timer()

    # -- administration

    def list_groups(self) -> list[ListedGroup]:
        return self._coordinator.list_groups()

    def describe(self, group_id: str) -> GroupDescription:
        return self._coordinator.describe(group_id)

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, with its offsets."""
        error = self._coordinator.delete(group_id)
        if error is ErrorCode.NONE:
            self._pending.remove_group(group_id)
        if error is ErrorCode.NONE and not await self._queue_changes(delete_group(group_id)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return error

    async def close(self) -> None:
        """Write what is queued, then close the file; may be repeated. Requests that wait stay
        without an answer."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._expirer is not None:
            self._expirer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            await self._writer
        await self._read(self._store.close)
        self._thread.shutdown()

    # -- internals

    def _load(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except TierlogError:
            self._store.close()
            raise

    def _save(self, group: SavedGroup) -> None:
        self._queue_changes(save_group(group))

    def _queue_changes(self, *changes: Change) -> asyncio.Future[bool]:
        """Make these changes after all earlier ones; the result is False when it failed."""
        is_stored: asyncio.Future[bool] = self._loop.create_future()
        self._queue.append((changes, is_stored))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_queue())
        return is_stored

    async def _write_queue(self) -> None:
        while self._queue:
            batch, self._queue = self._queue, []
            changes = [change for some, _ in batch for change in some]
            is_stored = True
            try:
                await self._loop.run_in_executor(self._thread, self._store.apply, changes)
            except TierlogError as error:
                is_stored = False
                self._warn(f"committed offsets and groups are not stored: {error}")
            for _, future in batch:
                if not future.done():
                    future.set_result(is_stored)
        self._writer = None

    async def _read(self, read: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, read, *arguments)

    def _set_timer(self) -> None:
        """Wake up when the coordinator has something to end."""
        due_ms = self._coordinator.next_due_ms()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(due_ms - self._clock.monotonic_ms(), 0)
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self.run_due)

    async def _expire_regularly(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_MS / 1000)
            try:
                await self.expire_offsets()
            except TierlogError as error:
                self._warn(f"committed offsets do not expire: {error}")


def open_groups(
    state_dir: str, config: GroupConfig, clock: Clock, warn: Callable[[str], object]
) -> GroupService:
    """Open the groups that are kept in `state_dir`; it is created if missing. Errors are those of
    `GroupService`."""
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    path = os.path.join(os.path.abspath(state_dir), GROUPS_FILE)
    return GroupService(path, config, clock, warn=warn)


def _resolve(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a function that gives `future` its result, unless its request was cancelled."""

    def resolve(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return resolve
