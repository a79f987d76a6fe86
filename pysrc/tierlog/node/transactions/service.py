"""The transaction coordinator at work in an event loop.

Each transaction has a lock: its requests are answered one after the other, and the end of a
transaction keeps it until its markers are written. A request that has begun is finished, also when
its client disconnects. An append to a partition of a transaction holds a permit, and the markers
wait until all permits are back: no record of a transaction comes after its marker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from tierlog.clock import Clock
from tierlog.config.transactions import TransactionConfig
from tierlog.errors import TierlogError
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.node.error_codes import ErrorCode
from tierlog.node.transactions import rules
from tierlog.node.transactions.state_log import StateLog
from tierlog.node.transactions.types import (
    OFFSETS_TOPIC,
    Partition,
    Transaction,
    TransactionRefusedError,
    TransactionState,
)

__all__ = ["OFFSETS_PARTITIONS", "TransactionHost", "TransactionService", "offsets_partition"]

T = TypeVar("T")

# As Kafka's offsets.topic.num.partitions: only names of groups in a transaction.
OFFSETS_PARTITIONS = 50
# What the node itself ends is ended by the latest rules.
_NODE_VERSION = rules.BUMPS_EPOCH


class TransactionHost(Protocol):
    """What the coordinator needs of its node. All calls block."""

    def next_producer_id(self) -> int:
        """Return a new producer id."""
        ...

    def open_state_log(self) -> StateLog:
        """Return the log of the states; its topic is created when it is missing."""
        ...

    def has_state_log(self) -> bool:
        """Whether the topic of the states exists."""
        ...

    def write_marker(
        self, partition: Partition, producer: ProducerEpoch, *, is_commit: bool, epoch: int
    ) -> None:
        """End the transaction of a producer in a partition. KeyError when the partition was
        deleted, AppendRefusedError when it cannot be written now."""
        ...


class OffsetsHost(Protocol):
    """The committed offsets of groups that wait for the end of a transaction."""

    async def end_transaction(self, producer_id: int, *, is_commit: bool) -> bool:
        """Commit or forget the offsets of a producer; False when they could not be stored."""
        ...

    def pending_producers(self) -> set[int]:
        """Return the producers that have offsets waiting."""
        ...


class _Entry:
    """A transaction in memory: its durable state, its lock, and the permits of its appends."""

    def __init__(self, found: Transaction) -> None:
        self.found = found
        self.lock = asyncio.Lock()
        self._permits = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def take_permit(self) -> None:
        self._permits += 1
        self._is_idle.clear()

    def return_permit(self) -> None:
        self._permits -= 1
        if not self._permits:
            self._is_idle.set()

    async def wait_for_appends(self) -> None:
        await self._is_idle.wait()


class TransactionService:
    """The transactional ids of a node. Only its event loop may call it.

    A refused request raises TransactionRefusedError. ``report`` receives lines about markers and
    states that cannot be written.
    """

    def __init__(
        self,
        host: TransactionHost,
        offsets: OffsetsHost,
        config: TransactionConfig,
        clock: Clock,
        report: Callable[[str], object],
    ) -> None:
        self._host = host
        self._offsets = offsets
        self._config = config
        self._clock = clock
        self._report = report
        self._entries: dict[str, _Entry] = {}
        self._log: StateLog | None = None
        self._opening = asyncio.Lock()
        # States are written one after the other, so that the last record is the latest state.
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._upkeep: asyncio.Task[None] | None = None

    # -- running

    async def start(self) -> None:
        """Load the states and finish the transactions that had ended before the node stopped."""
        if await asyncio.to_thread(self._host.has_state_log):
            await self._open_log()
        await self._end_unknown_offsets()
        for line in await self.finish_ends():
            self._report(line)
        self._upkeep = asyncio.create_task(self._keep_up(), name="tierlog-transactions")

    async def close(self) -> None:
        """Finish the requests that have begun; may be repeated."""
        if self._upkeep is not None:
            self._upkeep.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open_log(self) -> StateLog:
        async with self._opening:
            if self._log is None:
                log = await asyncio.to_thread(self._host.open_state_log)
                states = await asyncio.to_thread(log.load)
                self._entries = {name: _Entry(found) for name, found in states.items()}
                self._log = log
            return self._log

    async def _end_unknown_offsets(self) -> None:
        """Forget offsets of transactions that the states do not know: the machine crashed before
        the states were on the disk."""
        known = {
            one.found.producer_id
            for one in self._entries.values()
            if one.found.state is TransactionState.ONGOING or one.found.state.is_prepared
        }
        for producer_id in self._offsets.pending_producers() - known:
            await self._offsets.end_transaction(producer_id, is_commit=False)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which goes on when the caller is cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    # -- requests

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerEpoch | None
    ) -> ProducerEpoch:
        """Return the producer id and epoch of a producer that starts; an ongoing transaction of an
        earlier one is aborted."""
        if not transactional_id:
            raise TransactionRefusedError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            text = f"expected 1 to {self._config.max_timeout_ms} ms, found {timeout_ms}"
            raise TransactionRefusedError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, text)
        return await self._finish(self._init_producer(transactional_id, timeout_ms, expected))

    async def _init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerEpoch | None
    ) -> ProducerEpoch:
        await self._open_log()
        entry = self._entries.get(transactional_id)
        if entry is None:
            entry = await self._add_entry(transactional_id, timeout_ms)
        async with entry.lock:
            self._require_kept(entry)
            if entry.found.state is TransactionState.ONGOING:
                rules.check_expected(entry.found, expected)
                await self._end(entry, rules.fence(entry.found, _NODE_VERSION, self._now_ms()))
            await self._complete(entry)
            begun = await asyncio.to_thread(
                rules.begin_epoch,
                entry.found,
                timeout_ms,
                expected,
                self._host.next_producer_id,
                self._now_ms(),
            )
            await self._store(entry, begun)
            return begun.producer

    async def _add_entry(self, transactional_id: str, timeout_ms: int) -> _Entry:
        if len(self._entries) >= self._config.max_ids:
            text = f"{self._config.max_ids} transactional ids are in use"
            raise TransactionRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        producer_id = await asyncio.to_thread(self._host.next_producer_id)
        made = Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            previous_producer_id=producer_id,
            timeout_ms=timeout_ms,
            updated_ms=self._now_ms(),
        )
        return self._entries.setdefault(transactional_id, _Entry(made))

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: Iterable[Partition],
        version: int = 0,
    ) -> None:
        """Make partitions part of the producer's transaction, which begins with the first one."""
        entry = self._find(transactional_id)
        await self._finish(self._add_partitions(entry, producer, list(partitions), version))

    async def _add_partitions(
        self, entry: _Entry, producer: ProducerEpoch, partitions: list[Partition], version: int
    ) -> None:
        async with entry.lock:
            self._require_kept(entry)
            await self._extend(entry, producer, partitions, version)

    async def _extend(
        self, entry: _Entry, producer: ProducerEpoch, partitions: list[Partition], version: int
    ) -> None:
        now_ms = self._now_ms()
        await self._store(
            entry, rules.add_partitions(entry.found, producer, partitions, version, now_ms)
        )

    async def append(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partition: Partition,
        write: Callable[[], Coroutine[Any, Any, T]],
        *,
        adds_partition: bool,
    ) -> T:
        """Return the result of `write`, which appends to a partition of the producer's transaction.

        ``adds_partition``: make it part of the transaction first; else it has to be.
        """
        entry = self._find(transactional_id)
        return await self._finish(self._append(entry, producer, partition, write, adds_partition))

    async def _append(
        self,
        entry: _Entry,
        producer: ProducerEpoch,
        partition: Partition,
        write: Callable[[], Coroutine[Any, Any, T]],
        adds_partition: bool,
    ) -> T:
        async with entry.lock:
            self._require_kept(entry)
            if adds_partition:
                await self._extend(entry, producer, [partition], rules.BUMPS_EPOCH)
            else:
                rules.check_partition(entry.found, producer, partition)
            entry.take_permit()
        try:
            return await write()
        finally:
            entry.return_permit()

    async def end(
        self, transactional_id: str, producer: ProducerEpoch, *, is_commit: bool, version: int
    ) -> ProducerEpoch:
        """Commit or abort a transaction; return the producer's epoch from now on. The outcome is
        durable on return, and its markers are written unless a disk fails."""
        entry = self._find(transactional_id)
        return await self._finish(self._end_by_client(entry, producer, is_commit, version))

    async def _end_by_client(
        self, entry: _Entry, producer: ProducerEpoch, is_commit: bool, version: int
    ) -> ProducerEpoch:
        async with entry.lock:
            self._require_kept(entry)
            prepared = await asyncio.to_thread(
                rules.prepare_end,
                entry.found,
                producer,
                is_commit=is_commit,
                version=version,
                new_producer_id=self._host.next_producer_id,
                now_ms=self._now_ms(),
            )
            if prepared is not entry.found:
                await self._end(entry, prepared)
            if entry.found.next_producer_id >= 0:
                return ProducerEpoch(entry.found.next_producer_id, 0)
            return entry.found.producer

    # -- what the node does by itself

    async def abort_overdue(self) -> None:
        """Abort the transactions that ran into their timeout, and fence their producers."""
        for entry in list(self._entries.values()):
            if rules.is_overdue(entry.found, self._now_ms()):
                await self._finish(self._abort_overdue(entry))

    async def _abort_overdue(self, entry: _Entry) -> None:
        async with entry.lock:
            now_ms = self._now_ms()
            if rules.is_overdue(entry.found, now_ms):
                await self._end(entry, rules.fence(entry.found, _NODE_VERSION, now_ms))

    async def finish_ends(self) -> list[str]:
        """Write the markers that an earlier process or a failing disk left unwritten; return why
        others are still unwritten."""
        unfinished = []
        for entry in list(self._entries.values()):
            if entry.found.state.is_prepared and not entry.lock.locked():
                try:
                    await self._finish(self._finish_end(entry))
                except TransactionRefusedError as error:
                    unfinished.append(error.text)
        return unfinished

    async def _finish_end(self, entry: _Entry) -> None:
        async with entry.lock:
            await self._complete(entry)

    async def expire(self) -> None:
        """Forget the transactional ids without a transaction for the time of the settings."""
        await self._finish(self._expire())

    async def _expire(self) -> None:
        async with self._writing:
            limit_ms = self._now_ms() - self._config.id_expiration_ms
            expired = [
                name
                for name, entry in self._entries.items()
                if entry.found.updated_ms <= limit_ms
                and entry.found.state is not TransactionState.ONGOING
                and not (entry.found.state.is_prepared or entry.lock.locked())
            ]
            for name in expired:
                del self._entries[name]
            if self._log is not None:
                await asyncio.to_thread(self._log.remove, expired)

    async def _keep_up(self) -> None:
        expired_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(self._config.abort_timed_out_transaction_cleanup_interval_ms / 1000)
            try:
                await self.abort_overdue()
                await self.finish_ends()
                now_ms = self._clock.monotonic_ms()
                if (
                    now_ms - expired_ms
                    >= self._config.remove_expired_transaction_cleanup_interval_ms
                ):
                    expired_ms = now_ms
                    await self.expire()
            except TierlogError as error:
                self._report(f"transactions: {error}")

    # -- administration

    def describe(self, transactional_id: str) -> Transaction | None:
        """Return a transaction; None for an unknown id."""
        entry = self._entries.get(transactional_id)
        return None if entry is None or entry.found.producer_epoch < 0 else entry.found

    def list_transactions(self) -> list[Transaction]:
        """Return the latest transaction of each transactional id."""
        found = [entry.found for entry in self._entries.values()]
        return [one for one in found if one.producer_epoch >= 0]

    # -- internals; the caller has the lock of the entry

    def _find(self, transactional_id: str) -> _Entry:
        if not transactional_id:
            raise TransactionRefusedError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        entry = self._entries.get(transactional_id)
        if entry is None or entry.found.producer_epoch < 0:
            text = f"{transactional_id!r}: no producer has started with this transactional id"
            raise TransactionRefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, text)
        return entry

    def _require_kept(self, entry: _Entry) -> None:
        name = entry.found.transactional_id
        if self._entries.get(name) is not entry:
            text = f"{name!r}: this transactional id has just expired; try again"
            raise TransactionRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)

    async def _store(self, entry: _Entry, new: Transaction) -> None:
        """Make a state durable, then take it over."""
        log = self._log
        if new is entry.found or log is None:
            return
        async with self._writing:
            try:
                await asyncio.to_thread(log.append, new)
            except AppendRefusedError as error:
                text = f"the state of {new.transactional_id!r} cannot be stored: {error}"
                raise TransactionRefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text) from error
            entry.found = new
            if log.is_long:
                await self._shorten(log)

    async def _shorten(self, log: StateLog) -> None:
        found = [one.found for one in self._entries.values() if one.found.producer_epoch >= 0]
        try:
            await asyncio.to_thread(log.shorten, found)
        except TierlogError as error:
            self._report(f"the log of transactions stays long: {error}")

    async def _end(self, entry: _Entry, prepared: Transaction) -> None:
        await self._store(entry, prepared)
        try:
            await self._complete(entry)
        except TransactionRefusedError as error:
            # The outcome is durable; `finish_ends` tries again.
            self._report(str(error))

    async def _complete(self, entry: _Entry) -> None:
        """Write the markers of a transaction that has ended."""
        found = entry.found
        if not found.state.is_prepared:
            return
        await entry.wait_for_appends()
        is_commit = found.state is TransactionState.PREPARE_COMMIT
        for partition in sorted(found.partitions):
            await self._mark(found, partition, is_commit)
        await self._store(entry, rules.complete(found, self._now_ms()))

    async def _mark(self, found: Transaction, partition: Partition, is_commit: bool) -> None:
        if partition.topic == OFFSETS_TOPIC:
            if not await self._offsets.end_transaction(found.producer_id, is_commit=is_commit):
                raise _not_marked(found, partition, "the offsets of its groups are not stored")
            return
        epoch = 0 if self._log is None else self._log.leader_epoch
        try:
            await asyncio.to_thread(
                self._host.write_marker,
                partition,
                found.producer,
                is_commit=is_commit,
                epoch=epoch,
            )
        except KeyError:
            return  # The partition was deleted, and the transaction with it.
        except AppendRefusedError as error:
            # A later epoch of the producer has written here, so the transaction is over.
            if error.code is not Refusal.INVALID_PRODUCER_EPOCH:
                raise _not_marked(found, partition, str(error)) from error

    def _now_ms(self) -> int:
        return self._clock.now_ms()


def _not_marked(found: Transaction, partition: Partition, why: str) -> TransactionRefusedError:
    return TransactionRefusedError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the transaction of {found.transactional_id!r} cannot be ended in {partition.topic}-"
        f"{partition.number} yet: {why}",
    )


def offsets_partition(group_id: str) -> Partition:
    """Return the partition by which Kafka names a group in a transaction."""
    code = 0
    units = group_id.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    # Java's absolute value of a signed number; 0 for the one that has none.
    positive = code if code < 1 << 31 else ((1 << 32) - code) & 0x7FFFFFFF
    return Partition(OFFSETS_TOPIC, positive % OFFSETS_PARTITIONS)
