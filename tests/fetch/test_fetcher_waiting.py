"""What a fetch does with limits, quotas, slow stores and clients that go: the others stay exact."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.two_tiers import TwoTiers
from tests.fetch.waiting import WAIT_S, Gated, PromptPool, at, both, gate_of, remade, size
from tests.kafka_tools.support import wait_until
from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import CorruptDataError, MetadataNotReadyError, RemoteStorageError
from tierlog.fetch.offsets import OffsetReader
from tierlog.fetch.pool import ReaderPool
from tierlog.fetch.quotas import FetchQuotas
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.types import (
    FetchError,
    FetchRequest,
    FetchSource,
    PartitionData,
)
from tierlog.types import TopicIdPartition


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    gate = Gated(made.remote)
    made.gate = gate  # type: ignore[attr-defined]
    made.fetcher = remade(made)
    yield made
    gate.open.set()
    made.close()


def test_one_answer_for_each_partition_in_the_order_asked(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    unknown = replace(cold, partition=99)
    end = tiers.views[hot].log_end_offset
    asked = [at(hot), at(unknown), at(cold), at(hot, end), at(hot, end + 1), at(cold, -5)]
    answers = tiers.fetch(asked)
    assert [answer.partition for answer in answers] == [one.partition for one in asked]
    assert [(answer.source, answer.error) for answer in answers] == [
        (FetchSource.LOCAL, FetchError.NONE),
        (FetchSource.ERROR, FetchError.UNKNOWN_TOPIC_OR_PARTITION),
        (FetchSource.REMOTE, FetchError.NONE),
        (FetchSource.LOCAL, FetchError.NONE),
        (FetchSource.ERROR, FetchError.OFFSET_OUT_OF_RANGE),
        (FetchSource.ERROR, FetchError.OFFSET_OUT_OF_RANGE),
    ]
    assert [size(answer) > 0 for answer in answers] == [True, False, True, False, False, False]
    assert answers[2].high_watermark == tiers.views[cold].high_watermark
    assert f"offset {end + 1}" in answers[4].text


def test_followers_are_sent_to_the_tier(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    moved, local = tiers.fetch([at(cold), at(hot)], replica_id=3)
    assert moved.error is FetchError.OFFSET_MOVED_TO_TIERED_STORAGE
    assert size(local) > 0
    assert gate_of(tiers).reads == 0


def test_who_does_not_lead_answers_consumers_alone(tiers: TwoTiers) -> None:
    """Kafka's rule: rack-aware consumers read from any replica."""
    cold, hot = both(tiers)
    for one in (cold, hot):
        tiers.views[one] = replace(tiers.views[one], leads=False)
    assert all(size(answer) > 0 for answer in (tiers.fetch([at(cold)]) + tiers.fetch([at(hot)])))
    for answer in tiers.fetch([at(cold), at(hot)], replica_id=2):
        assert (answer.error, size(answer)) == (FetchError.NOT_LEADER_OR_FOLLOWER, 0)
    assert tiers.fetcher.list_offset_sync(hot, -1).error is FetchError.NOT_LEADER_OR_FOLLOWER


def test_a_request_for_nothing_is_answered_at_once(tiers: TwoTiers) -> None:
    request = FetchRequest(partitions=(), max_wait_ms=2**40)

    async def ask() -> tuple[PartitionData, ...]:
        return (await asyncio.wait_for(tiers.fetcher.fetch(request), WAIT_S)).partitions

    assert asyncio.run(ask()) == ()


def test_an_old_leader_epoch_is_told(tiers: TwoTiers) -> None:
    cold, _ = both(tiers)
    tiers.views[cold] = replace(tiers.views[cold], leader_epoch=7)
    for epoch, error in ((6, FetchError.FENCED_LEADER_EPOCH), (8, FetchError.UNKNOWN_LEADER_EPOCH)):
        (answer,) = tiers.fetch([at(cold, current_leader_epoch=epoch)])
        assert answer.error is error


@pytest.mark.parametrize("max_bytes", [-(2**31), -1, 0, 1, 2**62])
def test_the_first_batch_comes_whatever_the_limits_say_and_only_once(
    tiers: TwoTiers, max_bytes: int
) -> None:
    cold, hot = both(tiers)
    for order in ([cold, hot], [hot, cold]):
        answers = tiers.fetch([at(one, max_bytes=max_bytes) for one in order], max_bytes=max_bytes)
        assert size(answers[0]) > 0
        # A remote read counts with all that it may bring: the local one after it gets nothing.
        room = max_bytes > 1 and order[0] is hot
        assert (size(answers[1]) > 0) == room
        assert {answer.error for answer in answers} == {FetchError.NONE}


def test_the_response_is_filled_in_order_and_no_further(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    first, second, third = tiers.fetch(
        [at(cold, max_bytes=9_000), at(hot, max_bytes=9_000), at(cold, 300, max_bytes=9_000)],
        max_bytes=10_000,
    )
    assert 0 < size(first) <= 9_000
    assert size(second) + size(third) <= 1_000, "the remote read counts with all it may bring"
    assert third.error is FetchError.NONE


def test_a_used_up_quota_gives_no_records_and_no_error_and_resumes(
    tiers: TwoTiers,
) -> None:
    clock = ManualClock(monotonic_ms=1_000_000)
    tiers.quotas = FetchQuotas(QuotaConfig(fetch_max_bytes_per_second=1_000), clock)
    tiers.fetcher = remade(tiers)
    cold, hot = both(tiers)
    (first,) = tiers.fetch([at(cold)])
    assert size(first) > 11_000
    throttled, local = tiers.fetch([at(cold), at(hot)])
    assert (throttled.source, throttled.error) == (FetchSource.THROTTLED, FetchError.NONE)
    assert size(throttled) == 0
    assert size(local) > 0
    assert gate_of(tiers).reads == 1
    clock.advance(60_000)
    (again,) = tiers.fetch([at(cold)])
    assert bytes(again.records) == bytes(first.records)


def test_a_stalled_store_keeps_nobody_but_its_own_and_what_comes_late_is_used(
    tiers: TwoTiers,
) -> None:
    metrics = RemoteLogMetrics()
    tiers.pool = PromptPool(1, 0)
    tiers.fetcher = remade(tiers, max_remote_wait_ms=1, metrics=metrics)
    cold, hot = both(tiers)
    gate = gate_of(tiers)
    gate.open.clear()
    pending, local = tiers.fetch([at(cold), at(hot)])
    assert (pending.source, pending.error, size(pending)) == (
        FetchSource.REMOTE,
        FetchError.NONE,
        0,
    )
    assert size(local) > 0
    gate.open.set()
    wait_until(lambda: not tiers.pool.running(), WAIT_S)
    assert tiers.pool.late_bytes > 0
    (late,) = tiers.fetch([at(cold)])
    assert size(late) > 0
    assert gate.reads == 1, "not read again"
    assert metrics.snapshot().counts.fetches_expired == 1
    assert tiers.pool.late_bytes == 0


def read_on(tiers: TwoTiers, partition: TopicIdPartition, offset: int) -> tuple[int, bytes]:
    (answer,) = tiers.fetch([at(partition, offset, max_bytes=2_000)])
    wait_until(lambda: not (tiers.pool.queued() or tiers.pool.running()), WAIT_S)
    return answer.next_offset, bytes(answer.records)


def test_the_next_read_of_a_sequential_client_is_done_before_it_asks(tiers: TwoTiers) -> None:
    cold, _ = both(tiers)
    gate = gate_of(tiers)
    second, _ = read_on(tiers, cold, 0)
    assert (gate.reads, tiers.pool.late_bytes) == (1, 0), "the first read may be any"
    third, _ = read_on(tiers, cold, second)
    assert gate.reads == 3, "a second read in a row begins the third"
    assert tiers.pool.late_bytes > 0
    fourth, records = read_on(tiers, cold, third)
    assert fourth > third
    (again,) = tiers.fetch([at(cold, third, max_bytes=2_000)])
    assert bytes(again.records) == records


def test_nothing_is_read_next_for_a_client_with_a_quota(tiers: TwoTiers) -> None:
    tiers.quotas = FetchQuotas(QuotaConfig(fetch_max_bytes_per_second=1 << 30))
    tiers.fetcher = remade(tiers)
    cold, _ = both(tiers)
    second, _ = read_on(tiers, cold, 0)
    read_on(tiers, cold, second)
    assert gate_of(tiers).reads == 2


def test_a_full_pool_is_that_partitions_error(tiers: TwoTiers) -> None:
    tiers.pool = PromptPool(1, 0)
    tiers.fetcher = remade(tiers, max_remote_wait_ms=1)
    cold, hot = both(tiers)
    other = tiers.add("clean", "idempotent-0")
    tiers.drop_local(other, tiers.views[other].log.segments[-1].base_offset)
    gate_of(tiers).open.clear()
    first, full, local = tiers.fetch([at(cold), at(other), at(hot)])
    assert first.error is FetchError.NONE
    assert full.error is FetchError.UNKNOWN_SERVER_ERROR
    assert "remote.log.reader.max.pending.tasks" in full.text
    assert size(local) > 0
    gate_of(tiers).open.set()


@pytest.mark.parametrize(
    "error",
    [
        RemoteStorageError("no answer"),
        MetadataNotReadyError("not loaded"),
        OSError(5, "input/output error"),
        CorruptDataError(reason="bad_crc", position=7, expected="1", found="2", path="x.log"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_wrong_with_one_partition_is_its_answer_alone(
    tiers: TwoTiers, error: Exception
) -> None:
    cold, hot = both(tiers)
    other = tiers.add("clean", "idempotent-0")
    tiers.drop_local(other, tiers.views[other].log.segments[-1].base_offset)
    gate_of(tiers).fails[cold] = error
    bad, good, local = tiers.fetch([at(cold), at(other), at(hot)])
    assert bad.error is FetchError.KAFKA_STORAGE_ERROR
    assert str(error) in bad.text
    assert size(bad) == 0
    assert size(good) > 0
    assert size(local) > 0
    assert tiers.quotas.broker.snapshot().total_bytes == size(good)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("odd"),
        MemoryError(),
        KeyboardInterrupt(),
        SystemExit(3),
        asyncio.CancelledError(),
    ],
    ids=repr,
)
def test_a_store_may_raise_whatever_it_likes(tiers: TwoTiers, error: BaseException) -> None:
    """In a thread of the pool an interrupt is nobody's who asks."""
    cold, hot = both(tiers)
    gate_of(tiers).fails[cold] = error
    request = FetchRequest(partitions=(at(cold), at(hot)), max_wait_ms=0)
    for bad, local in (
        tiers.fetcher.fetch_sync(request).partitions,
        asyncio.run(tiers.fetcher.fetch(request)).partitions,
    ):
        assert (bad.error, bad.text) == (FetchError.UNKNOWN_SERVER_ERROR, repr(error))
        assert bad.high_watermark == tiers.views[cold].high_watermark
        assert size(local) > 0


@pytest.mark.parametrize("error", [OSError(5, "input/output error"), LookupError("odd")])
def test_a_host_that_fails_for_one_partition(tiers: TwoTiers, error: Exception) -> None:
    cold, hot = both(tiers)
    view = tiers.view

    def fails(partition: TopicIdPartition) -> Any:
        if partition == hot:
            raise error
        return view(partition)

    tiers.view = fails  # type: ignore[method-assign]
    bad, good = tiers.fetch([at(hot), at(cold)])
    assert bad.source is FetchSource.ERROR
    assert (bad.error is FetchError.KAFKA_STORAGE_ERROR) is isinstance(error, OSError)
    assert "odd" in bad.text or "input/output" in bad.text
    assert size(good) > 0
    found = tiers.fetcher.list_offset_sync(hot, 0)
    assert (found.error, found.text) == (bad.error, bad.text)


def test_a_local_file_that_cannot_be_read(tiers: TwoTiers, tmp_path: Path) -> None:
    cold, hot = both(tiers)
    view = tiers.views[hot]
    folders = tuple(replace(one, log_path=str(tmp_path)) for one in view.log.segments)
    tiers.views[hot] = replace(view, log=replace(view.log, segments=folders))
    bad, good = tiers.fetch([at(hot), at(cold)])
    assert (bad.error, bad.high_watermark) == (
        FetchError.KAFKA_STORAGE_ERROR,
        view.high_watermark,
    )
    assert str(tmp_path) in bad.text
    assert size(good) > 0


def test_an_interrupt_takes_back_what_was_begun(tiers: TwoTiers) -> None:
    tiers.pool = ReaderPool(1, 100)
    tiers.fetcher = remade(tiers)
    cold, hot = both(tiers)
    held = threading.Event()
    tiers.pool.submit("busy", held.wait)
    wait_until(lambda: len(tiers.pool.running()) == 1, WAIT_S)
    view = tiers.view

    def interrupted(partition: TopicIdPartition) -> Any:
        if partition == hot:
            raise KeyboardInterrupt
        return view(partition)

    tiers.view = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        tiers.fetch([at(cold), at(hot)])
    assert tiers.pool.queued() == 0
    held.set()


def test_what_failed_late_is_not_kept_for_the_next(tiers: TwoTiers) -> None:
    tiers.pool = PromptPool(1, 0)
    tiers.fetcher = remade(tiers, max_remote_wait_ms=1)
    cold, _ = both(tiers)
    gate = gate_of(tiers)
    gate.open.clear()
    gate.fails[cold] = RemoteStorageError("no answer")
    tiers.fetch([at(cold)])
    gate.open.set()
    wait_until(lambda: not tiers.pool.running(), WAIT_S)
    gate.fails.clear()
    tiers.fetcher.max_remote_wait_ms = WAIT_S * 1_000
    (good,) = tiers.fetch([at(cold)])
    assert (good.error, size(good) > 0) == (FetchError.NONE, True)


def test_no_request_is_made_where_nothing_may_come(tiers: TwoTiers) -> None:
    """The first batch is somebody's already, and a limit leaves no byte."""
    cold, hot = both(tiers)
    for limit in (0, -1, -(2**63)):
        gate_of(tiers).reads = 0
        first, second = tiers.fetch([at(hot), at(cold, max_bytes=limit)])
        assert size(first) > 0
        assert (second.source, second.error) == (FetchSource.NO_BUDGET, FetchError.NONE)
        assert gate_of(tiers).reads == 0


# -- after the end


def test_a_fetch_of_what_was_closed(tiers: TwoTiers) -> None:
    tiers.quotas = FetchQuotas(
        QuotaConfig(fetch_max_bytes_per_second=1 << 30, fetch_quota_mode=QuotaMode.RESERVE)
    )
    tiers.fetcher = remade(tiers)
    cold, hot = both(tiers)
    assert tiers.pool.close()
    closed, local = tiers.fetch([at(cold), at(hot)])
    assert (closed.error, size(local) > 0) == (FetchError.KAFKA_STORAGE_ERROR, True)
    assert "closed" in closed.text
    assert closed.high_watermark == tiers.views[cold].high_watermark
    assert tiers.fetcher.list_offset_sync(cold, 0).error is FetchError.KAFKA_STORAGE_ERROR
    assert tiers.quotas.broker.snapshot().reserved_bytes == 0


def test_what_waits_for_a_thread_when_it_is_closed(tiers: TwoTiers) -> None:
    tiers.quotas = FetchQuotas(
        QuotaConfig(fetch_max_bytes_per_second=1 << 30, fetch_quota_mode=QuotaMode.RESERVE)
    )
    tiers.pool = ReaderPool(1, 100)
    tiers.fetcher = remade(tiers)
    cold, _ = both(tiers)
    held = threading.Event()
    tiers.pool.submit("busy", held.wait)
    wait_until(lambda: len(tiers.pool.running()) == 1, WAIT_S)
    request = FetchRequest(partitions=(at(cold),), max_wait_ms=0)
    with ThreadPoolExecutor(3) as threads:
        answers = [
            threads.submit(tiers.fetcher.fetch_sync, request),
            threads.submit(lambda: asyncio.run(tiers.fetcher.fetch(request))),
        ]
        found = threads.submit(tiers.fetcher.list_offset_sync, cold, 0)
        wait_until(lambda: tiers.pool.queued() == 2, WAIT_S)
        wait_until(lambda: _wanted(tiers.pool) == 4, WAIT_S)
        assert not tiers.pool.close(0), "one is under way"
        for answer in answers:
            (data,) = answer.result(WAIT_S).partitions
            assert (data.error, size(data)) == (FetchError.KAFKA_STORAGE_ERROR, 0)
            assert "closed" in data.text
        assert found.result(WAIT_S).error is FetchError.KAFKA_STORAGE_ERROR
    held.set()
    wait_until(lambda: not tiers.pool.running(), WAIT_S)
    assert tiers.quotas.broker.snapshot().reserved_bytes == 0


def _wanted(pool: ReaderPool) -> int:
    with pool._lock:
        return sum(len(read.futures) for read in pool._reads.values())


def test_reads_that_fail_give_their_reservation_back(tiers: TwoTiers) -> None:
    tiers.quotas = FetchQuotas(
        QuotaConfig(fetch_max_bytes_per_second=1 << 30, fetch_quota_mode=QuotaMode.RESERVE)
    )
    tiers.fetcher = remade(tiers)
    cold, _ = both(tiers)
    gate_of(tiers).fails[cold] = RemoteStorageError("no answer")
    for _ in range(10):
        tiers.fetch([at(cold)])
    snapshot = tiers.quotas.broker.snapshot()
    assert (snapshot.reserved_bytes, snapshot.total_bytes) == (0, 0)


# -- waiting for more


def test_an_empty_fetch_waits_until_there_is_more(tiers: TwoTiers) -> None:
    _, hot = both(tiers)
    whole = tiers.views[hot]
    cut = whole.log.segments[-1].base_offset
    tiers.views[hot] = replace(whole, high_watermark=cut, last_stable_offset=cut)
    request = FetchRequest(partitions=(at(hot, cut),), max_wait_ms=WAIT_S * 1_000)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(tiers.fetcher.fetch_sync, request)
        tiers.fetcher.notify(hot)
        assert not answer.done()
        tiers.views[hot] = whole
        tiers.fetcher.notify(hot)
        (data,) = answer.result(WAIT_S).partitions
    assert size(data) > 0
    assert data.high_watermark == whole.high_watermark
    assert tiers.fetcher._waiting == {}


def test_one_who_waits_for_several_is_told_of_each_of_them(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    ends = [at(one, tiers.views[one].log_end_offset) for one in (cold, hot)]
    request = FetchRequest(partitions=tuple(ends), max_wait_ms=WAIT_S * 1_000)
    looks: asyncio.Queue[TopicIdPartition] = asyncio.Queue()
    view = tiers.view

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def noted(partition: TopicIdPartition) -> Any:
            loop.call_soon_threadsafe(looks.put_nowait, partition)
            return view(partition)

        tiers.view = noted  # type: ignore[method-assign]
        waits = asyncio.ensure_future(tiers.fetcher.fetch(request))
        assert [await looks.get(), await looks.get()] == [cold, hot]
        # Before it can wake up.
        tiers.fetcher.notify(hot)
        tiers.fetcher.notify(cold)
        tiers.fetcher.notify(hot)
        assert [await looks.get(), await looks.get()] == [cold, hot]
        waits.cancel()

    asyncio.run(main())
    assert tiers.fetcher._waiting == {}


def test_the_longest_wait_there_is(tiers: TwoTiers) -> None:
    """Longer than a system can wait; it ends when there is more."""
    _, hot = both(tiers)
    whole = tiers.views[hot]
    cut = whole.log.segments[-1].base_offset
    request = FetchRequest(partitions=(at(hot, cut),), max_wait_ms=2**63 - 1)
    for fetch in (tiers.fetcher.fetch_sync, lambda one: asyncio.run(tiers.fetcher.fetch(one))):
        tiers.views[hot] = replace(whole, high_watermark=cut, last_stable_offset=cut)
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(fetch, request)
            wait_until(lambda: hot in tiers.fetcher._waiting, WAIT_S)
            tiers.views[hot] = whole
            tiers.fetcher.notify(hot)
            (data,) = answer.result(WAIT_S).partitions
        assert size(data) > 0


def test_a_remote_error_is_not_waited_with(tiers: TwoTiers) -> None:
    cold, _ = both(tiers)
    gate_of(tiers).fails[cold] = RemoteStorageError("no answer")
    request = FetchRequest(partitions=(at(cold, max_bytes=0),), max_wait_ms=2**40)

    async def ask() -> PartitionData:
        return (await asyncio.wait_for(tiers.fetcher.fetch(request), WAIT_S)).partitions[0]

    assert asyncio.run(ask()).error is FetchError.KAFKA_STORAGE_ERROR


def test_nothing_is_waited_for_when_there_is_an_error_or_enough(tiers: TwoTiers) -> None:
    _, hot = both(tiers)
    end = tiers.views[hot].log_end_offset
    for asked in ([at(hot, end), at(hot, end + 1)], [at(hot)]):
        request = FetchRequest(partitions=tuple(asked), max_wait_ms=WAIT_S * 1_000)
        answers = tiers.fetcher.fetch_sync(request).partitions
        assert len(answers) == len(asked)
    request = FetchRequest(partitions=(at(hot, end),), max_wait_ms=1)
    (empty,) = tiers.fetcher.fetch_sync(request).partitions
    assert (empty.error, size(empty)) == (FetchError.NONE, 0)


# -- in an event loop


def test_in_an_event_loop_it_answers_the_same(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    request = FetchRequest(partitions=(at(cold), at(hot), at(cold, 300)), max_wait_ms=0)
    expected = tiers.fetcher.fetch_sync(request)
    answers = asyncio.run(tiers.fetcher.fetch(request))
    assert [bytes(one.records) for one in answers.partitions] == [
        bytes(one.records) for one in expected.partitions
    ]


def test_a_client_that_goes_leaves_nothing_behind(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    gate = gate_of(tiers)
    gate.open.clear()
    end = tiers.views[hot].log_end_offset
    waits = FetchRequest(partitions=(at(hot, end),), max_wait_ms=WAIT_S * 1_000)
    reads = FetchRequest(partitions=(at(cold),), max_wait_ms=WAIT_S * 1_000)
    tiers.fetcher.max_remote_wait_ms = WAIT_S * 1_000

    async def main() -> None:
        tasks = [asyncio.ensure_future(tiers.fetcher.fetch(one)) for one in (waits, reads)]
        await asyncio.to_thread(gate.waiting.acquire, True, WAIT_S)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)

    asyncio.run(main())
    assert tiers.fetcher._waiting == {}
    gate.open.set()
    wait_until(lambda: not tiers.pool.running(), WAIT_S)
    (late,) = tiers.fetch([at(cold)])
    assert size(late) > 0
    assert gate.reads == 1


def test_a_search_that_nobody_waits_for_any_more_is_left_out(tiers: TwoTiers) -> None:
    tiers.pool = ReaderPool(1, 100)
    tiers.fetcher = remade(tiers)
    cold, _ = both(tiers)
    held = threading.Event()
    tiers.pool.submit("busy", held.wait)

    async def main() -> None:
        task = asyncio.ensure_future(tiers.fetcher.list_offset(cold, 0))
        await asyncio.to_thread(wait_until, lambda: _wanted(tiers.pool) == 2, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert _wanted(tiers.pool) == 1
    held.set()


def test_a_client_that_goes_during_the_look_gives_up_what_it_began(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    gate, looking, gone = gate_of(tiers), threading.Event(), threading.Event()
    gate.open.clear()
    view = tiers.view

    def dawdle(partition: TopicIdPartition) -> Any:
        if partition == hot:
            looking.set()
            assert gone.wait(WAIT_S)
        return view(partition)

    tiers.view = dawdle  # type: ignore[method-assign]
    request = FetchRequest(partitions=(at(cold), at(hot)), max_wait_ms=0)

    async def main() -> None:
        task = asyncio.ensure_future(tiers.fetcher.fetch(request))
        assert await asyncio.to_thread(looking.wait, WAIT_S)
        # Its read has begun: what it brings is for whoever asks next.
        assert await asyncio.to_thread(gate.waiting.acquire, True, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gone.set()

    asyncio.run(main())
    gate.open.set()
    wait_until(lambda: not tiers.pool.running(), WAIT_S)
    assert tiers.pool.late_bytes > 0
    assert tiers.fetcher._waiting == {}


def test_clients_that_ask_a_store_that_hangs_again_and_again_leave_nothing(
    tiers: TwoTiers,
) -> None:
    tiers.pool = PromptPool(1, 0)
    tiers.fetcher = remade(tiers, max_remote_wait_ms=1)
    cold, _ = both(tiers)
    gate_of(tiers).open.clear()
    request = FetchRequest(partitions=(at(cold),), max_wait_ms=0)

    async def ask() -> int:
        for _ in range(100):
            await tiers.fetcher.fetch(request)
        return futures()

    def futures() -> int:
        gc.collect()
        return sum(isinstance(one, (Future, asyncio.Future)) for one in gc.get_objects())

    before = futures()
    assert asyncio.run(ask()) - before < 50
    assert gate_of(tiers).reads == 1
    assert _wanted(tiers.pool) == 0


def test_many_clients_at_once_each_get_their_own(tiers: TwoTiers) -> None:
    cold, hot = both(tiers)
    end = tiers.views[cold].log.segments[-1].base_offset
    expected = {offset: tiers.fetch([at(cold, offset)])[0] for offset in range(0, end, 97)}

    async def one(offset: int) -> bool:
        request = FetchRequest(partitions=(at(cold, offset), at(hot)), max_wait_ms=0)
        answer, local = (await tiers.fetcher.fetch(request)).partitions
        return bytes(answer.records) == bytes(expected[offset].records) and size(local) > 0

    async def main() -> list[bool]:
        return await asyncio.gather(*(one(offset) for offset in list(expected) * 5))

    tiers.fetcher.max_remote_wait_ms = WAIT_S * 1_000
    assert all(asyncio.run(main()))


# -- offsets through the fetcher


def test_offsets_are_searched_by_the_pool_and_bounded_in_time(tiers: TwoTiers) -> None:
    gate = gate_of(tiers)
    reader = OffsetReader(gate, tiers.metadata)  # type: ignore[arg-type]
    tiers.fetcher = remade(tiers, offsets=reader)
    cold, hot = both(tiers)
    assert tiers.fetcher.list_offset_sync(hot, -2).offset == 0
    found = tiers.fetcher.list_offset_sync(cold, 0)
    assert (found.offset, found.error) == (0, FetchError.NONE)
    assert asyncio.run(tiers.fetcher.list_offset(cold, 0)) == found
    unknown = tiers.fetcher.list_offset_sync(replace(cold, partition=7), -1)
    assert unknown.error is FetchError.UNKNOWN_TOPIC_OR_PARTITION
    gate.open.clear()
    late = tiers.fetcher.list_offset_sync(cold, 1, timeout_ms=1)
    assert late.error is FetchError.REQUEST_TIMED_OUT
    gate.open.set()
    gate.fails[cold] = RemoteStorageError("no answer")
    failed = tiers.fetcher.list_offset_sync(cold, 2)
    assert (failed.error, failed.text) == (FetchError.KAFKA_STORAGE_ERROR, "no answer")
    tiers.pool.close()
    tiers.pool = PromptPool(1, 0)
    tiers.fetcher = remade(tiers, offsets=reader)
    gate.open.clear()
    tiers.fetcher.list_offset_sync(cold, 3, timeout_ms=1)
    full = tiers.fetcher.list_offset_sync(cold, 4)
    assert full.error is FetchError.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("joined", [False, True])
def test_the_newest_record_is_not_what_it_was_when_somebody_else_asked(
    tiers: TwoTiers, joined: bool
) -> None:
    """Neither by a search that ended too late nor by one that is under way."""
    tiers.pool = PromptPool(2, 0)
    tiers.fetcher = remade(tiers)
    _, hot = both(tiers)
    whole, view = tiers.views[hot], tiers.view
    cut = whole.log.segments[-1].base_offset
    tiers.views[hot] = replace(whole, high_watermark=cut, last_stable_offset=cut)
    looked, go_on = threading.Event(), threading.Event()

    def dawdle(partition: TopicIdPartition) -> Any:
        found = view(partition)
        if not looked.is_set():
            looked.set()
            assert go_on.wait(WAIT_S)
        return found

    tiers.view = dawdle  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        patience_ms = 1_000 * WAIT_S if joined else 1
        first = threads.submit(tiers.fetcher.list_offset_sync, hot, -3, timeout_ms=patience_ms)
        assert looked.wait(WAIT_S)
        tiers.views[hot] = whole
        if not joined:
            first.result(WAIT_S)
            go_on.set()
            wait_until(lambda: not tiers.pool.running(), WAIT_S)
        assert tiers.fetcher.list_offset_sync(hot, -3).offset == whole.high_watermark - 1
        go_on.set()
        first.result(WAIT_S)


def test_a_store_that_hangs_keeps_no_names_back(tiers: TwoTiers) -> None:
    """A consumer may still ask where the log ends, as one that Kafka answers."""
    tiers.pool = PromptPool(1, 0)
    tiers.fetcher = remade(tiers, max_remote_wait_ms=1)
    cold, hot = both(tiers)
    gate_of(tiers).open.clear()
    tiers.fetch([at(cold)])
    assert tiers.pool.running()
    for partition in (cold, hot):
        view = tiers.views[partition]
        for timestamp, offset in (
            (-1, view.high_watermark),
            (-2, view.log_start_offset),
            (-4, view.local_log_start_offset),
        ):
            found = tiers.fetcher.list_offset_sync(partition, timestamp)
            assert (found.error, found.offset) == (FetchError.NONE, offset)
            assert asyncio.run(tiers.fetcher.list_offset(partition, timestamp)) == found
    assert tiers.fetcher.list_offset_sync(hot, -7).error is FetchError.UNSUPPORTED_VERSION
    assert tiers.fetcher.list_offset_sync(hot, 0).error is FetchError.UNKNOWN_SERVER_ERROR
