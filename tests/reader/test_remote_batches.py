"""Remote reads bring exactly the batches of the log, in as few requests as it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fetch.tier import TestStore as Store
from tests.fetch.tier import (
    Tier,
    Truth,
    check,
    expected,
    made_batch,
    wait_for_threads,
)
from tests.kafka_tools.golden import DATA_DIR, manifest
from tests.oracle import batches as oracle
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.errors import ClosedError, OutOfRangeError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.log_dir import open_log_dir
from tierlog.log.records import decode_records
from tierlog.reader.log_reader import rows_between
from tierlog.reader.memory import FetchMemory
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentState
from tierlog.remote.segment.bucket import bucket_metadata
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore
from tierlog.sidecar import Sidecar
from tierlog.types import TopicIdPartition

CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
NO_LIMIT = 2**60
LIMITS = (0, 1, 700, 4096, 20_000, 1 << 20)


class Golden:
    """The golden logs in a store."""

    def __init__(self, folder: Path, state: Path) -> None:
        with Sidecar(
            CLEAN,
            folder.as_uri(),
            state_dir=str(state),
            config=tier_config(include_compacted_topics=True),
            clock=ManualClock(),
        ) as sidecar:
            assert sidecar.run_once().ok
        self.store = Store(folder)
        self.metadata: RemoteLogMetadataManager = bucket_metadata(self.store)
        self.storage = ObjectStorageManager(self.store)
        self.memory = FetchMemory(64 << 20)

    def partition(self, topic: str, partition: int) -> TopicIdPartition | None:
        for one in self.metadata.partitions():
            if (one.topic, one.partition) == (topic, partition):
                return one
        return None

    def truth(self, partition: TopicIdPartition) -> list[Truth]:
        """What the copied segments hold, by the oracle and from the broker's own files."""
        log = open_log_dir(*CLEAN).partition(partition.topic, partition.partition)
        copied = {one.start_offset for one in self.metadata.list(partition)}
        return [
            Truth(one.base_offset, one.last_offset, data[one.position :][: one.size_bytes], number)
            for number, segment in enumerate(log.segments)
            if segment.base_offset in copied
            for data in [Path(segment.log_path).read_bytes()]
            for one in oracle.scan(data)[0]
        ]

    def lineage(self, partition: TopicIdPartition) -> LeaderEpochs:
        log = open_log_dir(*CLEAN).partition(partition.topic, partition.partition)
        assert log.leader_epochs is not None
        return log.leader_epochs


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def cache(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteIndexCache]:
    with RemoteIndexCache(golden.storage, tmp_path_factory.mktemp("cache")) as cache:
        yield cache


PARTITIONS = [
    (row["topic"], row["partition"])
    for row in manifest()["data_sets"]["clean"]["partitions"]
    if not row["topic"].startswith("__")
]


# A store that is read in place, and one that is read ahead whenever that may help; the first one
# also by the files themselves.
QUICK, SLOW = ReadAheadSettings(slow_ms=2**40), ReadAheadSettings(slow_ms=0)
STORES = [(QUICK, Store), (SLOW, Store), (QUICK, LocalStore)]


@pytest.mark.parametrize(("read_ahead", "kind"), STORES, ids=["quick", "slow", "files"])
@pytest.mark.parametrize(("topic", "number"), PARTITIONS)
def test_every_offset_of_the_golden_logs(
    topic: str,
    number: int,
    golden: Golden,
    cache: RemoteIndexCache,
    read_ahead: ReadAheadSettings,
    kind: type[LocalStore],
) -> None:
    partition = golden.partition(topic, number)
    if partition is None:
        # Every segment of it is active or held back by an open transaction.
        return
    truth, lineage = golden.truth(partition), golden.lineage(partition)
    reader = RemoteBatchReader(
        ObjectStorageManager(kind(golden.store.root)),
        golden.metadata,
        memory=golden.memory,
        index_cache=cache,
        read_ahead=read_ahead,
    )
    start = min(entry.start_offset for entry in lineage)
    start = max(start, truth[0].base_offset)
    end = max(one.end_offset for one in golden.metadata.list(partition)) + 1
    step = max(1, (end - start) // 400)
    for offset in range(start, end, step):
        for limit in LIMITS:
            upper = NO_LIMIT if limit != 700 else min(end, offset + 50)
            for minimum_one in (True, False):
                read = reader.read_batches(
                    partition, lineage, offset, limit, upper, minimum_one=minimum_one
                )
                check(read, expected(truth, offset, limit, upper, minimum_one))
                del read
    with pytest.raises(OutOfRangeError):
        reader.read_batches(partition, lineage, end, 1, NO_LIMIT, minimum_one=True)
    reader.close()
    wait_for_threads()
    assert golden.memory.used_bytes == 0


@pytest.mark.parametrize(("topic", "number"), PARTITIONS)
def test_a_consumer_reads_what_the_other_reader_reads(
    topic: str, number: int, golden: Golden, cache: RemoteIndexCache
) -> None:
    partition = golden.partition(topic, number)
    if partition is None:
        return
    other = StoreReader(golden.storage, golden.metadata)
    start, end = other.bounds(topic, number)
    wanted = [one for piece in other.read(topic, number, start) for one in piece.offset.tolist()]
    reader = RemoteBatchReader(
        golden.storage, golden.metadata, memory=golden.memory, index_cache=cache
    )
    lineage = golden.lineage(partition)
    for limit in (1, 5_000, 1 << 20):
        offset, found = start, []
        while offset < end:
            read = reader.read_batches(partition, lineage, offset, limit, end, minimum_one=True)
            rows = rows_between(decode_records(bytes(read.records)), offset, end)
            found += rows.offset.tolist()
            assert read.next_offset > offset
            offset = read.next_offset
        assert found == wanted


# -- requests


def batches(count: int, *, size: int = 1000, start: int = 0, records: int = 1) -> list[bytes]:
    return [
        made_batch(start + number * records, size=size, records=records) for number in range(count)
    ]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Two segments of some 2 MB each, runs of 64 KiB."""
    tier = Tier(tmp_path, remote_index_interval_bytes=64 << 10)
    tier.add(batches(2000))
    tier.add(batches(2000, start=2000))
    return tier


def test_two_requests_when_nothing_is_known_and_one_from_then_on(
    tier: Tier, tmp_path: Path
) -> None:
    with RemoteIndexCache(tier.storage, tmp_path / "cache") as cache:
        for reader in (tier.reader(), tier.reader(index_cache=cache)):
            tier.store.reads.clear()
            read = tier.read(reader, 1234, 5000)
            assert (tier.store.count(), read.requests) == ((1, 1), 2)
            for offset in (0, 17, 1234, 1235, 1999):
                for limit in (0, 1000, 100_000):
                    read = tier.read(reader, offset, limit)
                    check(read, expected(tier.truth, offset, limit, NO_LIMIT, True))
                    assert (tier.store.count(), read.requests) == ((0, 1), 1), (offset, limit)


def test_no_more_is_asked_for_than_is_needed(tier: Tier) -> None:
    reader = tier.reader()
    tier.read(reader, 0, 1)
    tier.store.reads.clear()
    for offset in range(5, 2000, 97):
        tier.read(reader, offset, 30_000)
        ((_, _, asked),) = tier.store.reads
        tier.store.reads.clear()
        assert asked <= 30_000 + 3 * 4096


def index_files(tier: Tier, folder: Path) -> RemoteIndexFiles:
    files = RemoteIndexFiles(folder, tier.partition, rotate_bytes=1 << 20, rotate_ms=-1)
    for segment in tier.segments:
        files.append(segment, tier.storage.fetch_indexes(segment)[IndexKind.REMOTE_LOG])
    return files


def test_one_request_with_the_index_files_of_the_partition(tier: Tier, tmp_path: Path) -> None:
    files = index_files(tier, tmp_path / "index")
    reader = tier.reader(index_files=lambda _partition: files)
    tier.store.reads.clear()
    for offset in range(0, 4000, 77):
        for limit in (0, 3000, 200_000):
            read = tier.read(reader, offset, limit)
            check(read, expected(tier.truth, offset, limit, NO_LIMIT, True))
            del read
            if limit <= 3000:
                assert tier.store.count() == (0, 1)
            tier.store.reads.clear()


def test_index_files_that_do_not_say_lead_to_the_indexes(tier: Tier, tmp_path: Path) -> None:
    files = RemoteIndexFiles(tmp_path / "index", tier.partition, rotate_bytes=1 << 20, rotate_ms=-1)
    for given_files in (files, None):
        reader = tier.reader(index_files=lambda _partition, found=given_files: found)
        tier.store.reads.clear()
        check(tier.read(reader, 3000, 1), expected(tier.truth, 3000, 1, NO_LIMIT, True))
        assert tier.store.count() == (1, 1)
    files.close()
    reader = tier.reader(index_files=lambda _partition: files)
    check(tier.read(reader, 3000, 1), expected(tier.truth, 3000, 1, NO_LIMIT, True))


# -- large batches, gaps, ends


def test_a_first_batch_larger_than_the_range_takes_one_more_request(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    big = [made_batch(number, size=3 << 19, records=2) for number in (30, 32)]
    tier.add([*batches(30, size=5000), *big, *batches(50, start=34)])
    reader = tier.reader()
    tier.read(reader, 0, 1)
    tier.store.reads.clear()
    for offset, requests in ((32, 2), (30, 2), (33, 1), (31, 1)):
        read = tier.read(reader, offset, 1000)
        check(read, expected(tier.truth, offset, 1000, NO_LIMIT, True))
        assert read.requests == requests
        assert sum(size for _, _, size in tier.store.reads) < (3 << 20) + (200 << 10)
        tier.store.reads.clear()
        assert tier.read(reader, offset, 1000, minimum_one=False).next_offset == offset
        tier.store.reads.clear()
    check(tier.read(reader, 29, 5200), [tier.truth[29]])


def test_gaps_and_compacted_tails_are_crossed(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.add([made_batch(2), made_batch(7, last=9), made_batch(20)], base_offset=0, next_base=40)
    tier.add([made_batch(55)], base_offset=40, next_base=60)
    tier.add([made_batch(60)], next_base=70)
    reader = tier.reader()
    for offset in range(70):
        read = tier.read(reader, offset)
        wanted = expected(tier.truth, offset, 1 << 20, NO_LIMIT, True)
        check(read, wanted)
        if not wanted:
            assert read.next_offset == 70
    with pytest.raises(OutOfRangeError):
        tier.read(reader, 70)


def test_a_segment_that_is_missing_in_the_middle_is_a_gap(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    for start in (0, 10, 20):
        tier.add(batches(10, start=start))
    gone = tier.segments[1]
    tier.metadata.update(
        gone.update_to(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, event_timestamp_ms=1)
    )
    reader = tier.reader()
    assert tier.read(reader, 15).first_offset == 20
    assert tier.read(reader, 15, upper_offset=18).next_offset == 18
    with pytest.raises(OutOfRangeError, match="before the log start 4"):
        tier.read(reader, 3, log_start_offset=4)


@given(data=st.data())
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
def test_any_shape_of_log(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sizes, gaps and segment borders by chance; sparse and dense remote log indexes."""
    interval = data.draw(st.sampled_from([1, 5_000, 256 << 10]))
    tier = Tier(tmp_path_factory.mktemp("tier"), remote_index_interval_bytes=interval)
    offset = 0
    for _ in range(data.draw(st.integers(1, 3))):
        base = offset
        made = []
        for _ in range(data.draw(st.integers(1, 12))):
            offset += data.draw(st.sampled_from([0, 0, 0, 1, 5]))
            count = data.draw(st.integers(1, 3))
            size = data.draw(st.sampled_from([0, 10, 4_000, 70_000, 600_000]))
            made.append(made_batch(offset, size=size, records=count))
            offset += count
        offset += data.draw(st.sampled_from([0, 0, 2]))
        tier.add(made, base_offset=base, next_base=offset)
    tier.memory = FetchMemory(8 << 20)
    reader = tier.reader()
    for _ in range(20):
        at = data.draw(st.integers(0, offset - 1))
        limit = data.draw(st.sampled_from([0, 100, 5_000, 100_000, 2_000_000]))
        upper = data.draw(st.sampled_from([NO_LIMIT, NO_LIMIT, at + 1, at + 4]))
        minimum_one = data.draw(st.booleans())
        read = tier.read(reader, at, limit, upper, minimum_one=minimum_one)
        check(read, expected(tier.truth, at, limit, upper, minimum_one))
        del read
    reader.close()
    wait_for_threads()
    assert tier.memory.used_bytes == 0


def test_nothing_after_close(tier: Tier) -> None:
    reader = tier.reader()
    reader.close()
    reader.close()
    with pytest.raises(ClosedError):
        tier.read(reader, 0)


def test_bytes_that_come_after_close_are_dropped(tier: Tier) -> None:
    reader = tier.reader()
    tier.store.before_read = lambda _key: reader.close()
    with pytest.raises(ClosedError):
        tier.read(reader, 0)
    assert tier.memory.used_bytes == 0
