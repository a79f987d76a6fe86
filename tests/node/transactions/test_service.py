"""The coordinator over a real log directory, with disks that fail and a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.oracle import build
from tests.oracle.model import Record
from tierlog.clock import ManualClock
from tierlog.config import Config, TransactionConfig
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.offsets import CommittedOffset, TopicPartition
from tierlog.node.groups.service import GroupService, open_groups
from tierlog.node.local.cluster import LocalCluster
from tierlog.node.transactions.service import TransactionService, offsets_partition
from tierlog.node.transactions.state_log import StateLog
from tierlog.node.transactions.types import Partition, TransactionRefusedError, TransactionState
from tierlog.types import TopicIdPartition

ORDERS = Partition("orders", 0)


class Host(LocalCluster):
    """A node whose markers fail while `is_broken`, and whose log of states is soon long."""

    is_broken = False
    long_bytes = 4 << 20

    def write_marker(
        self, partition: Partition, producer: ProducerEpoch, *, is_commit: bool, epoch: int
    ) -> None:
        if self.is_broken:
            raise AppendRefusedError(Refusal.KAFKA_STORAGE_ERROR, "the disk is full")
        super().write_marker(partition, producer, is_commit=is_commit, epoch=epoch)

    def open_state_log(self) -> StateLog:
        super().open_state_log()
        return StateLog(self.logs.writer("__transaction_state", 0), 0, self._clock, self.long_bytes)

    def stable_offset(self) -> int:
        return self.logs.writer("orders", 0).last_stable_offset


class Rig:
    """A started coordinator, and what it works on."""

    def __init__(self, host: Host, groups: GroupService, service: TransactionService) -> None:
        self.host = host
        self.groups = groups
        self.service = service
        self.said: list[str] = []

    async def write(self, name: str, producer: ProducerEpoch, sequence: int = 0) -> None:
        """Append a record in a transaction."""
        topic = self.host.cluster_view().by_name["orders"]
        at = TopicIdPartition(topic_id=topic.topic_id, topic="orders", partition=0)
        record = Record(offset=0, timestamp_ms=1_700_000_000_000, key=None, value=b"v")
        data = build.batch(
            [record],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )

        async def append() -> None:
            await asyncio.to_thread(self.host.append, at, data, producer)

        await self.service.append(name, producer, ORDERS, append, adds_partition=True)


@asynccontextmanager
async def running(
    folder: Path, clock: ManualClock, config: TransactionConfig | None = None, **host_is: object
) -> AsyncIterator[Rig]:
    said: list[str] = []
    settings = Config()
    host = Host(
        str(folder),
        config=settings,
        clock=clock,
        metrics=RemoteLogMetrics(clock),
        report=said.append,
    )
    for name, value in host_is.items():
        setattr(host, name, value)
    if "orders" not in host.cluster_view().by_name:
        host.create_topic("orders", 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    groups = open_groups(str(folder / "state"), settings.group, clock, said.append)
    service = TransactionService(host, groups, config or TransactionConfig(), clock, said.append)
    rig = Rig(host, groups, service)
    rig.said = said
    groups.start()
    try:
        await service.start()
        yield rig
    finally:
        await service.close()
        await groups.close()
        host.close()


async def start(rig: Rig, name: str) -> ProducerEpoch:
    return await rig.service.init_producer(name, 60_000, None)


def test_a_decided_transaction_is_finished_after_a_failing_disk_and_a_restart(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    at = TopicPartition("orders", 0)

    async def decide() -> None:
        async with running(tmp_path, clock) as rig:
            producer = await start(rig, "worker")
            await rig.write("worker", producer)
            offsets = {at: CommittedOffset(7, -1, "", clock.now_ms())}

            async def commit() -> ErrorCode:
                return await rig.groups.commit_in_transaction(
                    producer.producer_id, "workers", "", None, -1, offsets
                )

            group = offsets_partition("workers")
            await rig.service.append("worker", producer, group, commit, adds_partition=True)
            rig.host.is_broken = True
            ended = await rig.service.end("worker", producer, is_commit=True, version=2)
            assert ended == (producer.producer_id, producer.epoch + 1)
            assert rig.host.stable_offset() == 0
            assert "the disk is full" in rig.said[-1]
            for refused in (
                start(rig, "worker"),
                rig.service.add_partitions("worker", ended, [ORDERS]),
            ):
                with pytest.raises(TransactionRefusedError) as caught:
                    await refused
                assert caught.value.code is ErrorCode.CONCURRENT_TRANSACTIONS

    async def go_on() -> None:
        async with running(tmp_path, clock) as rig:
            found = rig.service.describe("worker")
            assert found is not None
            assert found.state is TransactionState.COMPLETE_COMMIT
            assert rig.host.stable_offset() == 2
            stored = await rig.groups.offsets("workers", None)
            assert stored is not None
            assert stored[at].offset == 7
            assert rig.groups.pending_partitions("workers") == set()

    asyncio.run(decide())
    asyncio.run(go_on())


def test_an_overdue_transaction_is_aborted_and_its_producer_fenced(tmp_path: Path) -> None:
    clock = ManualClock()

    async def wait() -> None:
        async with running(tmp_path, clock) as rig:
            producer = await start(rig, "slow")
            await rig.write("slow", producer)
            clock.advance(60_000)
            await rig.service.abort_overdue()
            assert rig.host.stable_offset() == 0
            clock.advance(1)
            await rig.service.abort_overdue()
            assert rig.host.stable_offset() == 2
            with pytest.raises(TransactionRefusedError) as caught:
                await rig.service.end("slow", producer, is_commit=True, version=0)
            assert caught.value.code is ErrorCode.PRODUCER_FENCED

    asyncio.run(wait())


def test_an_id_without_transactions_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    config = TransactionConfig(id_expiration_ms=100_000)

    async def wait() -> None:
        async with running(tmp_path, clock, config) as rig:
            await start(rig, "idle")
            open_one = await start(rig, "open")
            await rig.write("open", open_one)
            clock.advance(99_999)
            await rig.service.expire()
            assert len(rig.service.list_transactions()) == 2
            clock.advance(1)
            await rig.service.expire()
            assert [one.transactional_id for one in rig.service.list_transactions()] == ["open"]
        async with running(tmp_path, clock, config) as rig:
            assert [one.transactional_id for one in rig.service.list_transactions()] == ["open"]
            assert (await start(rig, "idle")).epoch == 0

    asyncio.run(wait())


def test_the_log_of_states_stays_short(tmp_path: Path) -> None:
    """It has every state after thousands of transactions, also after a restart."""
    clock = ManualClock()
    folder = tmp_path / "logs" / "__transaction_state-0"

    async def work() -> None:
        async with running(tmp_path, clock, long_bytes=20_000) as rig:
            await start(rig, "other")
            producer = await start(rig, "worker")
            for _ in range(200):
                await rig.service.add_partitions("worker", producer, [ORDERS], 2)
                producer = await rig.service.end("worker", producer, is_commit=True, version=2)
            before = {one.transactional_id: one for one in rig.service.list_transactions()}
            assert producer.epoch == 200
            assert sum(one.stat().st_size for one in folder.glob("*.log")) <= 21_000
            assert not (folder / f"{0:020d}.log").exists()
        async with running(tmp_path, clock) as rig:
            found = {one.transactional_id: one for one in rig.service.list_transactions()}
            assert found.keys() == before.keys()
            assert [one.producer for one in found.values()] == [
                before[name].producer for name in found
            ]

    asyncio.run(work())


def test_a_producer_gets_a_new_id_when_its_epochs_are_used_up(tmp_path: Path) -> None:
    clock = ManualClock()

    async def work() -> None:
        async with running(tmp_path, clock) as rig:
            first = await start(rig, "worker")
            entry = rig.service.describe("worker")
            assert entry is not None
            last = 2**15 - 2
            object.__setattr__(entry, "producer_epoch", last)
            producer = ProducerEpoch(first.producer_id, last)
            await rig.write("worker", producer)
            ended = await rig.service.end("worker", producer, is_commit=True, version=2)
            assert ended.epoch == 0
            assert ended.producer_id != first.producer_id
            again = await rig.service.end("worker", producer, is_commit=True, version=2)
            assert again == ended
            await rig.write("worker", ended)
            await rig.service.end("worker", ended, is_commit=False, version=2)
            assert rig.host.stable_offset() == 4

    asyncio.run(work())


def test_no_more_ids_than_the_settings_allow(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, ManualClock(), TransactionConfig(max_ids=1)) as rig:
            await start(rig, "first")
            assert (await start(rig, "first")).epoch == 1
            with pytest.raises(TransactionRefusedError) as caught:
                await start(rig, "second")
            assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(work())
