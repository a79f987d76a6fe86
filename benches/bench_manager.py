"""Measures the remote log manager with as many partitions as KIP-405's test cluster, and how
closely paced copies follow the quota.

The store is in memory, so only the time of the manager itself remains. The paced copies go to a
``file://`` store for a minute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from tierlog.clock import ManualClock, SystemClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import ClosedError
from tierlog.log.listing_memory import ListingMemory
from tierlog.log.log_dir import open_log_dir
from tierlog.quota import QuotaManager
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore, open_store
from tierlog.sidecar.learn import StoreLearner
from tierlog.sidecar.topic_ids import ArchiveIds
from tierlog.sidecar.watch import Watch, WatchSettings
from tierlog.tiering.manager import RemoteLogManager

from .copying import Copying
from .corpus import LEADER_EPOCH
from .frame import Bench, Limit
from .node import StillLog, TimedStore, look_again, on_disk, still_logs, tier_all_but_the_last

PARTITIONS = 6_300
SEGMENTS = 10
QUICK_PARTITIONS = 12
# Interval of full checks of an idle partition. A check between two full checks only finds that
# nothing changed.
FULL_LOOK_S = 600
INTERVAL_S = 30
# The cost of a look is proportional to the number of partitions, so the bench makes only this many
# on disk.
LISTED_PARTITIONS = 630
LOOKS = 9
# Idle tasks run together. So a task may run this many seconds later than it would alone.
ROUNDED_UP_S = 2

PACED_BYTES_PER_SECOND = 24 << 20
PACED_S = 60
UPLOADS = 3
PACED_SHAPE = "none-100-16k-64m"
# The bytes that a cloud store sends in one part.
PART_BYTES = 8 << 20


def items(bench: Bench) -> Sequence[Limit]:
    return [overhead(bench), steady(bench), watch(bench), accuracy(bench), excess(bench)]


# -- thousands of partitions


@contextmanager
def node(bench: Bench) -> Iterator[tuple[RemoteLogManager, TimedStore, list[StillLog]]]:
    """Yield a manager that leads all partitions. Each partition has one segment to copy."""
    directory = bench.corpora.directory
    directory.mkdir(parents=True, exist_ok=True)
    partitions = QUICK_PARTITIONS if bench.corpora.quick else PARTITIONS
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=directory)))
        logs = still_logs(folder, partitions, SEGMENTS)
        metadata = InMemoryRemoteLogMetadataManager()
        tier_all_but_the_last(logs, metadata)
        store = TimedStore(open_store(f"memory:///{folder.name}"))
        manager = RemoteLogManager(ObjectStorageManager(store), metadata, broker_id=1)
        stack.callback(manager.close)
        for log in logs:
            manager.become_leader(log.partition, LEADER_EPOCH, log)
        yield manager, store, logs


def shape_of(bench: Bench) -> str:
    partitions = QUICK_PARTITIONS if bench.corpora.quick else PARTITIONS
    return f"{partitions:,} partitions x {SEGMENTS} segments"


def overhead(bench: Bench) -> Limit:
    """Return the CPU time of one pass in one thread. In the pass, every partition is checked, its
    last segment is copied, and retention is applied. Calls of the store do not count. Scans of the
    tiny segments count."""

    def measure() -> float:
        with node(bench) as (manager, store, logs):
            began = time.thread_time()
            manager.run_until_idle()
            seconds = time.thread_time() - began - store.seconds
            require_tiered(logs)
        return seconds / len(logs) * 1000

    return Limit(
        operation="manager, a copied segment beyond the store's own time",
        shape=shape_of(bench),
        unit="ms",
        at_most=1.0,
        measure=measure,
    )


def steady(bench: Bench) -> Limit:
    """Return the CPU use of the whole process when all pools run and no segment is eligible. This
    use includes one check of every partition, and the share of the full checks that run every ten
    minutes."""

    def measure() -> float:
        window_s = 0.2 if bench.corpora.quick else INTERVAL_S + ROUNDED_UP_S
        with node(bench) as (manager, _, logs):
            manager.run_until_idle()
            require_tiered(logs)
            look_again(logs)
            full_look_s = cpu_seconds(manager.run_until_idle)
            manager.start()
            manager.hurry()
            if not manager.wait_until_idle():
                raise TimeoutError("the manager does not come to rest")
            runs = manager.copy_pool.runs
            idle_s = cpu_seconds(partial(SystemClock().sleep, round(window_s * 1000)))
            if manager.copy_pool.runs < runs + len(logs) and not bench.corpora.quick:
                raise AssertionError("not every partition was looked at within the interval")
        return 100 * (idle_s / INTERVAL_S + full_look_s / FULL_LOOK_S)

    return Limit(
        operation="manager, nothing eligible",
        shape=shape_of(bench),
        unit="% of a core",
        at_most=5.0,
        measure=measure,
    )


def watch(bench: Bench) -> Limit:
    """Return the CPU time of a sidecar's look at unchanged directories, as a share of the interval,
    for a cluster with `PARTITIONS` partitions."""
    on_the_disk = QUICK_PARTITIONS if bench.corpora.quick else LISTED_PARTITIONS

    def measure() -> float:
        bench.corpora.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=bench.corpora.directory)))
            logs = open_log_dir(on_disk(folder, on_the_disk, SEGMENTS))
            store = open_store(f"memory:///{folder.name}")
            metadata = SqliteRemoteLogMetadataManager(folder / "metadata.sqlite")
            stack.callback(metadata.close)
            storage = ObjectStorageManager(store)
            manager = RemoteLogManager(storage, metadata, broker_id=1)
            stack.callback(manager.close)
            # With a clock that is a minute ahead, the directories do not count as just written.
            clock = ManualClock(now_ms=SystemClock().now_ms() + 60_000)
            eyes = Watch(
                logs,
                metadata,
                storage,
                StoreLearner(store, metadata),
                WatchSettings(),
                notes=LocalStore(folder),
                archive_ids=ArchiveIds(store, "bench"),
                all_known=True,
                memory=ListingMemory(clock),
            )
            eyes.look(manager)
            look_s = [cpu_seconds(lambda: eyes.look(manager)) for _ in range(LOOKS)]
        return 100 * statistics.median(look_s) / on_the_disk * PARTITIONS / INTERVAL_S

    return Limit(
        operation="sidecar, a look at quiet directories",
        shape=f"for {PARTITIONS:,} partitions x {SEGMENTS} segments",
        unit="% of a core",
        at_most=2.0,
        measure=measure,
    )


def require_tiered(logs: Sequence[StillLog]) -> None:
    """Raise AssertionError unless every partition is completely tiered."""
    for log in logs:
        last_offset = log.shown.log.segments[-1].base_offset - 1
        if log.highest_remote_offset != last_offset:
            raise AssertionError(f"{log.partition}: tiered up to {log.highest_remote_offset}")


def cpu_seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


# -- paced copies


def accuracy(bench: Bench) -> Limit:
    """Return how far the rate of several uploads in a minute was from the quota, in either
    direction."""

    def measure() -> float:
        seconds, sent = paced(bench)
        total = sum(size for when, size in sent if when < seconds)
        return abs(100 * (total / (seconds * PACED_BYTES_PER_SECOND) - 1))

    return paced_limit("off the quota", "%", 2.0, measure)


def excess(bench: Bench) -> Limit:
    """Return the largest excess over the quota in any window of time."""

    def measure() -> float:
        _, sent = paced(bench)
        times = [when for when, _ in sent]
        until = [0, *accumulate(size for _, size in sent)]
        # The excess is the largest value, over all i and j, of the bytes of chunks i to j less the
        # quota for the time from i to j.
        paid = [until[i] - PACED_BYTES_PER_SECOND * times[i] for i in range(len(sent))]
        left = [until[i + 1] - PACED_BYTES_PER_SECOND * times[i] for i in range(len(sent))]
        least = list(accumulate(paid, min))
        return max(after - before for after, before in zip(left, least, strict=True)) / PART_BYTES

    return paced_limit("above the quota in any window", "parts", 1.0, measure)


def paced_limit(what: str, unit: str, at_most: float, measure: Callable[[], float]) -> Limit:
    return Limit(
        operation=f"paced copies, {what}",
        shape=f"{UPLOADS} at once, {PACED_BYTES_PER_SECOND >> 20} MiB/s, {PACED_S} s",
        unit=unit,
        at_most=at_most,
        measure=measure,
    )


@cache
def paced(bench: Bench) -> tuple[float, list[tuple[float, int]]]:
    """Return the duration, and the time and size of each sent chunk. Times begin at the first
    chunk."""
    seconds = 0.5 if bench.corpora.quick else PACED_S
    config = QuotaConfig(
        copy_max_bytes_per_second=PACED_BYTES_PER_SECOND, copy_quota_mode=QuotaMode.PACE
    )
    quota = QuotaManager.for_copies(config)
    segment = bench.corpora.path(PACED_SHAPE).absolute()
    sent: list[tuple[float, int]] = []

    def upload(copying: Copying) -> None:
        while True:
            with quota.transfer(segment.stat().st_size) as transfer:

                def gate(size_bytes: int) -> None:
                    transfer.before_piece(size_bytes)
                    sent.append((time.perf_counter(), size_bytes))
                    if sent[-1][0] > sent[0][0] + seconds:
                        raise ClosedError("the time is up")

                try:
                    copying.copy_paced(gate)
                except ClosedError:
                    return
            copying.forget()

    with ExitStack() as stack:
        folders = [
            Path(stack.enter_context(TemporaryDirectory(dir=segment.parent)))
            for _ in range(UPLOADS)
        ]
        copies = [Copying.of(segment, folder) for folder in folders]
        with ThreadPoolExecutor(UPLOADS) as pool:
            list(pool.map(upload, copies))
    began = min(when for when, _ in sent)
    return seconds, sorted((when - began, size) for when, size in sent)
