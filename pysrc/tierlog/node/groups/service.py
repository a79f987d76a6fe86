"""Runs the coordinator in an event loop, with a clock and with its file in a separate thread.

The file is changed in the order of the requests. Changes that wait while the file is synced share
the next commit.
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

# Interval of the search for expired offsets: Kafka's offsets.retention.check.interval.ms.
EXPIRE_INTERVAL_MS = 600_000


class GroupService:
    """The groups of a node, with their offsets in the file `path`.

    `start` binds the service to the running event loop; `close` ends it. ``warn`` receives a
    sentence about each failure to read or write the file.

    Raises RemoteMetadataError when another process has the file open, and CorruptDataError when it
    is damaged.
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
        # Producers whose offsets are queued for the file.
        self._ending: set[int] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tierlog-groups")
        self._queue: list[tuple[Sequence[Change], asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None
        # The number of queued commits of each group.
        self._commits: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._expirer: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Bind the groups to the running event loop. Further calls do nothing."""
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
        """Return the answer to SyncGroup, after the leader has sent the assignments."""
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
        """Remove members, and return an error code for each."""
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
        """Store offsets, durable on return. If the answer is an error, no offset is stored."""
        error = self._coordinator.check_commit(group_id, member_id, instance_id, generation)
        self._set_timer()
        if error is not ErrorCode.NONE or not offsets:
            return error
        changes = [commit_offsets(group_id, offsets)]
        for producer_id, replaced in self._pending.replaced_by(group_id, offsets).items():
            if producer_id in self._ending:
                continue  # The offsets of this producer are written before these offsets.
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
        """Store offsets that become committed when the producer's transaction is committed. The
        offsets are durable on return. If the answer is an error, no offset is stored."""
        error = self._coordinator.check_commit(
            group_id, member_id, instance_id, generation, is_transactional=True
        )
        if error is not ErrorCode.NONE or not offsets:
            return error
        self._pending.add(producer_id, group_id, offsets)
        return await self._store_commit(group_id, [add_pending(producer_id, group_id, offsets)])

    async def end_transaction(self, producer_id: int, *, is_commit: bool) -> bool:
        """Commit or discard the waiting offsets of a producer. Return False when the file cannot be
        written."""
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
        """Return the partitions of a group whose offsets wait for a transaction."""
        return self._pending.partitions(group_id)

    def pending_producers(self) -> set[int]:
        """Return the producers with waiting offsets."""
        return self._pending.producers()

    async def offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset] | None:
        """Return the committed offsets of a group, for all its partitions if `partitions` is None.
        Return None when the file cannot be read."""
        try:
            return await self._read(self._store.offsets, group_id, partitions)
        except TierlogError as error:
            self._warn(f"committed offsets cannot be read: {error}")
            return None

    async def delete_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete committed offsets. Return an error for the whole request, and an error for each
        partition."""
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
        """End sessions and rebalances that have timed out. The timer of the event loop also calls
        this."""
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
        """Delete a group that has no members, with its offsets."""
        error = self._coordinator.delete(group_id)
        if error is ErrorCode.NONE:
            self._pending.remove_group(group_id)
        if error is ErrorCode.NONE and not await self._queue_changes(delete_group(group_id)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return error

    async def close(self) -> None:
        """Write all queued changes, then close the file. Waiting requests get no answer. Further
        calls do nothing."""
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
        """Make these changes after all earlier ones. The result is a future, which is False when
        the file could not be written."""
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
        """Set the timer to the time at which the coordinator next has an action to run."""
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
    """Open the groups of `state_dir`, which is created if missing. Raises the errors of
    `GroupService`."""
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    path = os.path.join(os.path.abspath(state_dir), GROUPS_FILE)
    return GroupService(path, config, clock, warn=warn)


def _resolve(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Return a function that sets the result of `future`, unless the request was cancelled."""

    def resolve(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return resolve
