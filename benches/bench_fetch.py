"""Reads the tier. The bench compares reads with plain reads of the same bytes, adds a delay to the
store, and measures the time to the first byte."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import obstore
from obstore.store import from_url

from tests.remote.s3_server import S3_SERVERS, running_s3_server
from tierlog import _core
from tierlog.clock import Clock, SystemClock
from tierlog.config import Config, RemoteLogConfig
from tierlog.fetch.decision import decide_fetch
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.offsets import SpecialTimestamp
from tierlog.fetch.setup import open_fetcher
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.log_dir import PartitionLog
from tierlog.reader.memory import FetchMemory
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.store_reader import StoreReader
from tierlog.reader.types import FetchPartition, FetchRequest, FetchView
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.layout import LOG_SUFFIX, log_key
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.types import TopicIdPartition

from .copying import Copying
from .frame import Answer, Bench, Benchmark, Case, Limit, Run, Sides, run_side

GB = 1e9
DECISIONS = 10_000
MEMORY_BYTES = 256 << 20
READ_BYTES = 8 << 20
SMALL_BYTES = 4 << 10
SMALL_READS = 500
LATENCY_MS = 20
LONG_LOG_SEGMENTS = 3
FIRST_BYTES = 400
FIRST_READ_BYTES = 1 << 20
MANY = 200
BUDGET_BYTES = 64 << 20


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [
        decisions(),
        sequential(bench, "none-100-16k-1g"),
        sequential_s3(bench, "none-100-16k-64m"),
        delayed(bench, "none-100-16k-1g", 1),
        delayed(bench, "none-100-16k-1g", LONG_LOG_SEGMENTS),
        small(bench, "none-100-4k-64m"),
        small(bench, "none-100-16k-64m"),
        small_from_disk(bench, "none-100-4k-64m"),
        first_byte(bench, "none-100-16k-64m"),
        first_byte_cold_index(bench, "none-100-16k-64m"),
        first_piece(bench, "none-100-16k-64m"),
        many_partitions(bench, "none-100-16k-64m"),
        beside_a_stalled_store(bench, "none-100-16k-64m"),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


class SlowStore:
    """A store that waits before each read, like a store behind a network."""

    is_local = False

    def __init__(self, store: ObjectStore, before_read: Callable[[str], object]) -> None:
        self._store = store
        self._before_read = before_read

    # This store opens no local files, so all reads use `get_range`.
    def open_file(self, _key: str) -> None:
        return None

    def draft(self, _key: str, _size_bytes: int) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Any:
        self._before_read(key)
        return self._store.get_range(key, start_position, size_bytes)


def slow(store: ObjectStore, before_read: Callable[[str], object]) -> ObjectStore:
    made: Any = SlowStore(store, before_read)
    found: ObjectStore = made
    return found


def far(store: ObjectStore, clock: Clock | None = None) -> ObjectStore:
    """Return a store whose reads take `LATENCY_MS` longer."""
    passing = (clock or SystemClock()).sleep
    return slow(store, lambda _key: passing(LATENCY_MS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """Segments in the tier (usually one), and a reader with a warm index cache."""

    reader: RemoteBatchReader
    store: ObjectStore
    storage: RemoteStorageManager
    manager: RemoteLogMetadataManager
    cache: RemoteIndexCache
    segments: Sequence[RemoteLogSegmentMetadata]
    lineage: LeaderEpochs
    path: Path

    @property
    def segment(self) -> RemoteLogSegmentMetadata:
        """The first segment."""
        return self.segments[0]

    @property
    def end_offset(self) -> int:
        """The last offset."""
        return self.segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return sum(segment.segment_size_bytes for segment in self.segments)

    def read(self, offset: int, max_bytes: int) -> Any:
        return self.reader.read_batches(
            self.segment.topic_id_partition,
            self.lineage,
            offset,
            max_bytes,
            self.end_offset + 1,
            minimum_one=True,
        )

    def read_all(self) -> Answer:
        """Read from the first offset to the last, as a consumer does."""
        offset, size_bytes = 0, 0
        while offset <= self.end_offset:
            read = self.read(offset, READ_BYTES)
            size_bytes += memoryview(read.records).nbytes
            offset = read.next_offset
        return {"bytes": size_bytes, "next_offset": offset}

    @contextmanager
    def through(self, store_of: Callable[[ObjectStore], ObjectStore]) -> Iterator[Tiered]:
        """Yield the same tier with another store and reader."""
        store = store_of(self.store)
        storage = ObjectStorageManager(store)
        memory = FetchMemory(MEMORY_BYTES)
        with closing(
            RemoteBatchReader(storage, self.manager, memory=memory, index_cache=self.cache)
        ) as reader:
            yield replace(self, reader=reader, store=store, storage=storage)


@contextmanager
def tiered(
    bench: Bench,
    shape: str,
    store_of: Callable[[Path], ObjectStore],
    segments: int = 1,
) -> Iterator[Tiered]:
    segment = bench.corpora.path(shape).absolute()
    with TemporaryDirectory(dir=segment.parent) as name, ExitStack() as stack:
        folder = Path(name)
        copying = Copying.of(segment, folder, segments=segments)
        store = store_of(folder)
        copied = copying.copy_all_to(store)
        manager = InMemoryRemoteLogMetadataManager()
        manager.load(copied)
        storage = ObjectStorageManager(store)
        cache = stack.enter_context(RemoteIndexCache(storage, folder / "indexes"))
        for metadata in copied:
            cache.get(metadata)
        memory = FetchMemory(MEMORY_BYTES)
        reader = RemoteBatchReader(storage, manager, memory=memory, index_cache=cache)
        stack.callback(reader.close)
        lineage = copying.log.leader_epochs
        assert lineage is not None
        yield Tiered(
            reader=reader,
            store=store,
            storage=storage,
            manager=manager,
            cache=cache,
            segments=copied,
            lineage=lineage,
            path=copying.store / log_key(copied[0]),
        )


def on_disk(folder: Path) -> ObjectStore:
    return open_store((folder / "store").as_uri())


def decisions() -> Limit:
    def measure() -> float:
        def once() -> float:
            began = time.perf_counter()
            for offset in range(DECISIONS):
                decide_fetch(offset, 10, 5_000, 9_000, True, False, False, 1)
            return (time.perf_counter() - began) * 1e3

        return min(once() for _ in range(9))

    return Limit(
        operation="fetch decisions",
        shape=f"{DECISIONS} of them, half remote",
        unit="ms",
        at_most=10,
        measure=measure,
    )


def sequential(bench: Bench, shape: str) -> Case:
    """Read all batches with checks. The peer reads and checks the same bytes with the same scanner,
    without looking up positions."""

    def prepare(stack: ExitStack) -> Sides:
        tier = stack.enter_context(tiered(bench, shape, on_disk))
        path = bench.corpora.path(shape)

        def bare() -> Answer:
            with path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                last, position = -1, 0
                while position < size_bytes:
                    data = os.pread(file.fileno(), READ_BYTES, position)
                    native = _core.scan_segment(data, 0, None, True, False, False)
                    last = int(memoryview(dict(native.columns())["last_offset"])[len(native) - 1])
                    position += native.stop_position
            return {"bytes": size_bytes, "next_offset": last + 1}

        return sides(tier, {"pread + CRC": bare})

    return sequential_case("file:// store", shape, "pread + CRC", prepare)


def sequential_s3(bench: Bench, shape: str) -> Case:
    def prepare(stack: ExitStack) -> Sides:
        server = stack.enter_context(running_s3_server(S3_SERVERS[-1]))
        url = f"s3://{server.new_bucket()}"
        store, bare = open_store(url, **server.options()), from_url(url, **server.options())
        tier = stack.enter_context(tiered(bench, shape, lambda _: store))
        size_bytes = tier.segment.segment_size_bytes
        key = log_key(tier.segment)

        def alone() -> Answer:
            read = 0
            for start in range(0, size_bytes, READ_BYTES):
                end = min(start + READ_BYTES, size_bytes)
                read += memoryview(obstore.get_range(bare, key, start=start, end=end)).nbytes
            return {"bytes": read}

        return sides(tier, {"obstore": alone})

    return sequential_case("S3 on loopback", shape, "obstore", prepare)


def delayed(bench: Bench, shape: str, segments: int) -> Case:
    """Add 20 ms to every read of the store. The peer is the same reader without the delay. In a
    short log, the first two reads take much of the time, since read-ahead has not begun."""

    def prepare(stack: ExitStack) -> Sides:
        quick = stack.enter_context(tiered(bench, shape, on_disk, segments))
        slow = stack.enter_context(quick.through(far))
        return sides(slow, {"without the delay": quick.read_all})

    store = f"{LATENCY_MS} ms to the store, a log of {segments} GiB"
    return sequential_case(store, shape, "without the delay", prepare)


def sides(tier: Tiered, peers: Mapping[str, Run]) -> Sides:
    return Sides(amount=tier.size_bytes / GB, ours=tier.read_all, peers=peers)


def sequential_case(
    store: str, shape: str, peer: str, prepare: Callable[[ExitStack], Sides]
) -> Case:
    return Case(
        operation=f"sequential cold read, {store}",
        shape=shape,
        unit="GB",
        peers={peer: 0.8},
        prepare=prepare,
        one_thread=False,
    )


def small(bench: Bench, shape: str) -> Case:
    """Read one batch at each of many random offsets. The peer reads the same batches with `pread`
    from an open file."""
    return small_case(bench, shape, "random reads of one batch, file:// store", lambda _path: None)


def small_from_disk(bench: Bench, shape: str) -> Case:
    """Read single batches at random offsets when the object is not in the page cache."""
    return small_case(bench, shape, "the same from the disk", drop_from_page_cache)


def small_case(
    bench: Bench, shape: str, operation: str, before_each: Callable[[Path], None]
) -> Case:
    def prepare(stack: ExitStack) -> Sides:
        tier = stack.enter_context(tiered(bench, shape, on_disk))
        chance = random.Random(7)
        end = tier.segment.end_offset
        offsets = [chance.randrange(end) for _ in range(SMALL_READS)]
        found = [tier.read(offset, SMALL_BYTES) for offset in offsets]
        ranges = [(one.end_position - one.start_position, one.start_position) for one in found]
        file = stack.enter_context(tier.path.open("rb")).fileno()

        partition, lineage, after = tier.segment.topic_id_partition, tier.lineage, end + 1

        def ours() -> Answer:
            read = tier.reader.read_batches
            return {
                "bytes": sum(
                    found.end_position - found.start_position
                    for offset in offsets
                    for found in [
                        read(partition, lineage, offset, SMALL_BYTES, after, minimum_one=True)
                    ]
                )
            }

        def bare() -> Answer:
            pread = os.pread
            return {"bytes": sum(len(pread(file, size, position)) for size, position in ranges)}

        return Sides(
            amount=SMALL_READS,
            ours=ours,
            peers={"pread": bare},
            reset=lambda: before_each(tier.path),
        )

    return Case(
        operation=operation,
        shape=shape,
        unit="read",
        peers={"pread": 1 / 5},
        prepare=prepare,
        one_thread=before_each is not drop_from_page_cache,
    )


def drop_from_page_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in the calling thread: the time, the CPU time and the number of waits of the
    thread."""

    wall_s: float
    cpu_s: float
    waits: int

    @classmethod
    def now(cls) -> Moment:
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return cls(time.perf_counter(), time.thread_time(), waits)

    def since(self, before: Moment) -> Moment:
        return Moment(
            self.wall_s - before.wall_s, self.cpu_s - before.cpu_s, self.waits - before.waits
        )


class Timed:
    """A store whose reads take `LATENCY_MS` longer. The store records the begin, the end and the
    thread of each request."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = far(store)
        self.requests: list[tuple[Moment, Moment, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Any:
        began = Moment.now()
        data = self._store.get_range(key, start_position, size_bytes)
        self.requests.append((began, Moment.now(), threading.get_ident()))
        return data

    def beyond_ms(self, began: Moment, ended: Moment, round_trips: int) -> float:
        """Return how much longer a read on this thread took than its first round trips.

        Concurrent requests count as one round trip. The time of further round trips is part of the
        result. If the thread waited only for its requests, the result is the CPU time of the
        thread, since the time that it waits for a processor says nothing about tierlog. Otherwise
        the result is elapsed time.
        """
        took = ended.since(began)
        mine = [
            end.since(begin)
            for begin, end, thread in self.requests
            if thread == threading.get_ident()
        ]
        waits = took.waits - sum(one.waits for one in mine)
        if not waits and len(mine) == len(self.requests) <= round_trips:
            return (took.cpu_s - sum(one.cpu_s for one in mine)) * 1e3
        trips = self._trips()[:round_trips]
        return (took.wall_s - sum(end - begin for begin, end in trips)) * 1e3

    def _trips(self) -> list[tuple[float, float]]:
        """Return the periods in which requests were active."""
        trips: list[tuple[float, float]] = []
        for begin, end in sorted((begin.wall_s, end.wall_s) for begin, end, _ in self.requests):
            if trips and begin <= trips[-1][1]:
                begin, end = trips[-1][0], max(trips.pop()[1], end)
            trips.append((begin, end))
        return trips


def first_byte(bench: Bench, shape: str) -> Limit:
    """Limit the time of a cold read with a warm index to one round trip to the store."""

    def read(tier: Tiered, offset: int) -> object:
        return tier.read(offset, FIRST_READ_BYTES)

    return first_byte_limit(bench, shape, "of a cold read, warm index", 1, read)


def first_byte_cold_index(bench: Bench, shape: str) -> Limit:
    """Limit the time of a read without a cached index to two round trips."""

    def read(tier: Tiered, offset: int) -> object:
        return tier.read(offset, FIRST_READ_BYTES)

    def forget(tier: Tiered) -> None:
        tier.cache.remove(tier.segment.segment_id)

    return first_byte_limit(bench, shape, "of a cold read, cold index", 2, read, forget)


def first_piece(bench: Bench, shape: str) -> Limit:
    """Limit the time of `tierlog.read` for a store when only the metadata of its segments is
    known."""

    def read(tier: Tiered, offset: int) -> object:
        name = tier.segment.topic_id_partition
        pieces = StoreReader(tier.storage, tier.manager).read(name.topic, name.partition, offset)
        return next(pieces), pieces

    return first_byte_limit(bench, shape, "of tierlog.read, no index cache", 2, read)


def first_byte_limit(
    bench: Bench,
    shape: str,
    what: str,
    round_trips: int,
    read: Callable[[Tiered, int], object],
    before_each: Callable[[Tiered], object] = lambda _tier: None,
) -> Limit:
    """Return the 99th percentile of the time until an answer arrives, less the time of its round
    trips to the store. The time to free the answer is not included."""

    def measure() -> float:
        stores: list[Timed] = []

        def timed(folder: Path) -> ObjectStore:
            stores.append(Timed(on_disk(folder)))
            made: Any = stores[-1]
            found: ObjectStore = made
            return found

        with tiered(bench, shape, timed) as tier:
            (store,) = stores
            chance, beyond = random.Random(11), []
            for _ in range(20 if bench.corpora.quick else FIRST_BYTES):
                offset = chance.randrange(tier.segment.end_offset)
                before_each(tier)
                store.requests.clear()
                began = Moment.now()
                answer = read(tier, offset)
                ended = Moment.now()
                beyond.append(store.beyond_ms(began, ended, round_trips))
                del answer
            return quantiles(beyond, n=100)[-1]

    trips = f"{round_trips} round trip{'s' if round_trips > 1 else ''}"
    return Limit(
        operation=f"first byte {what}: beyond {trips}, p99",
        shape="at random offsets",
        unit="ms",
        at_most=1,
        measure=measure,
    )


# -- many partitions in one fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Partitions of one log. Partitions with an even number exist only in the tier. Partitions with
    an odd number are on the local disk."""

    log: PartitionLog
    end: int

    def view(self, partition: TopicIdPartition) -> FetchView:
        return FetchView(
            log=self.log,
            log_start_offset=0,
            local_log_start_offset=0 if partition.partition % 2 else self.end,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_end_offset=self.end,
        )


@contextmanager
def fetching(
    bench: Bench, shape: str, store_of: Callable[[ObjectStore], ObjectStore], **settings: int
) -> Iterator[tuple[Fetcher, list[TopicIdPartition]]]:
    """Yield a fetcher and its partitions, which all have the same segment."""
    segment = bench.corpora.path(shape).absolute()
    with TemporaryDirectory(dir=segment.parent) as name, ExitStack() as stack:
        folder = Path(name)
        copying = Copying.of(segment, folder)
        store = on_disk(folder)
        metadata = copying.copy_to(store)
        manager = InMemoryRemoteLogMetadataManager()
        manager.load([metadata])
        storage = ObjectStorageManager(store_of(store))
        cache = stack.enter_context(RemoteIndexCache(storage, folder / "indexes"))
        host = Host(log=copying.log, end=metadata.end_offset + 1)
        config = Config(remote_log=RemoteLogConfig(**settings))
        fetcher = stack.enter_context(
            open_fetcher(host, storage, manager, config=config, index_cache=cache)
        )
        first = metadata.topic_id_partition
        assert first.partition == 0
        yield fetcher, [replace(first, partition=number) for number in range(2)]


def many_partitions(bench: Bench, shape: str) -> Limit:
    """Return the memory that a fetch of 200 remote reads holds, in percent of its budget. The reads
    begin at 200 offsets of one partition, so they share no data."""

    def measure() -> float:
        with fetching(bench, shape, lambda store: store, fetch_memory_bytes=BUDGET_BYTES) as (
            fetcher,
            (cold, _),
        ):
            end = fetcher.list_offset_sync(cold, SpecialTimestamp.LATEST).offset
            asked = tuple(
                FetchPartition(partition=cold, fetch_offset=end * number // MANY, max_bytes=1 << 20)
                for number in range(MANY)
            )
            request = FetchRequest(partitions=asked, max_bytes=MANY << 20, max_wait_ms=0)
            # After this fetch, threads and indexes exist and do not count.
            fetcher.fetch_sync(replace(request, partitions=asked[:10]))
            before = resident_bytes()
            most = 0
            for _ in range(5):
                answer = fetcher.fetch_sync(request)
                most = max(most, resident_bytes() - before)
                del answer
            return 100 * most / BUDGET_BYTES

    return Limit(
        operation="memory of a fetch over many partitions",
        shape=f"{MANY} remote reads of 1 MiB, a budget of {BUDGET_BYTES >> 20} MiB",
        unit="% of the budget",
        at_most=110,
        measure=measure,
    )


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def beside_a_stalled_store(bench: Bench, shape: str) -> Limit:
    """Return the 99th percentile of the time of a local fetch while all reader threads hang,
    divided by the same percentile while none hangs."""

    def measure() -> float:
        go_on = threading.Event()

        def stall(key: str) -> None:
            if key.endswith(LOG_SUFFIX):
                go_on.wait()

        def stalling(store: ObjectStore) -> ObjectStore:
            return slow(store, stall)

        with fetching(bench, shape, stalling, fetch_max_wait_ms=1) as (fetcher, (cold, hot)):
            local = FetchRequest(
                partitions=(FetchPartition(partition=hot, fetch_offset=0),), max_wait_ms=0
            )

            def p99_ms() -> float:
                took = []
                for _ in range(50 if bench.corpora.quick else 1_000):
                    began = time.perf_counter()
                    fetcher.fetch_sync(local)
                    took.append(time.perf_counter() - began)
                return quantiles(took, n=100)[-1]

            quiet = min(p99_ms() for _ in range(3))
            for number in range(50):
                fetcher.fetch_sync(
                    FetchRequest(
                        partitions=(FetchPartition(partition=cold, fetch_offset=number * 100),)
                    )
                )
            beside = min(p99_ms() for _ in range(3))
            go_on.set()
            return beside / quiet

    return Limit(
        operation="local fetches beside a store that hangs, p99",
        shape="1 MiB each, all reader threads busy",
        unit="x",
        at_most=1.2,
        measure=measure,
    )
