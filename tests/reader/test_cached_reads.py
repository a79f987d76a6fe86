"""Reads through the index cache: the same records, and indexes are asked for once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.remote.index_cache.segments import WatchedStore
from tierlog.clock import ManualClock
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.reader.log_reader import LogReader
from tierlog.reader.open import open_reader, read
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from tierlog.remote.segment.bucket import bucket_metadata
from tierlog.remote.segment.layout import parse_key
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.sidecar import Sidecar

CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
TTL_MS = 900_000


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every segment of the golden logs that may be copied."""
    folder = tmp_path_factory.mktemp("store")
    state = str(tmp_path_factory.mktemp("state"))
    with Sidecar(CLEAN, folder.as_uri(), state_dir=state, clock=ManualClock()) as sidecar:
        assert sidecar.run_once().ok
    return folder


@pytest.fixture
def store(golden_store: Path) -> WatchedStore:
    return WatchedStore(golden_store)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(store: WatchedStore, clock: ManualClock, tmp_path: Path) -> Iterator[RemoteIndexCache]:
    storage = ObjectStorageManager(store)
    with RemoteIndexCache(storage, tmp_path / "cache", clock=clock) as cache:
        yield cache


@pytest.fixture
def reader(store: WatchedStore, cache: RemoteIndexCache) -> StoreReader:
    metadata = bucket_metadata(store)
    store.reads.clear()
    return StoreReader(ObjectStorageManager(store), metadata, index_cache=cache)


def requests(store: WatchedStore) -> tuple[int, int]:
    """How often `.indexes` and `.log` objects were asked for since the last look."""
    suffixes = [parse_key(key).suffix for key in store.reads]
    store.reads.clear()
    return suffixes.count(".indexes"), suffixes.count(".log")


def offsets(reader: LogReader, topic: str, start: int = 0, end: int | None = None) -> list[int]:
    return [
        offset for piece in reader.read(topic, 0, start, end) for offset in piece.offset.tolist()
    ]


def one_segment_topic(reader: LogReader) -> str:
    return next(one.topic for one in reader.partitions() if one.segment_count == 1)


def test_a_cold_read_takes_two_requests_and_a_warm_one_takes_one(
    store: WatchedStore, reader: StoreReader
) -> None:
    topic = one_segment_topic(reader)
    plain = open_reader(store.url)
    expected = offsets(plain, topic)
    assert offsets(reader, topic) == expected
    assert requests(store) == (1, 1)
    for offset in expected[:5]:
        assert offsets(reader, topic, offset, offset + 1) == [offset]
        assert requests(store) == (0, 1)
    assert reader.bounds(topic, 0) == plain.bounds(topic, 0)
    assert requests(store) == (0, 0)


def test_the_same_records_with_and_without(store: WatchedStore, reader: StoreReader) -> None:
    plain = open_reader(store.url)
    for one in plain.partitions():
        if one.partition == 0:
            expected = offsets(plain, one.topic)
            for _ in ("cold", "warm"):
                assert offsets(reader, one.topic) == expected
    store.reads.clear()
    for one in plain.partitions():
        if one.partition == 0:
            offsets(reader, one.topic)
    assert requests(store)[0] == 0


def test_offsets_by_time_need_no_indexes_once_they_are_here(
    store: WatchedStore, reader: StoreReader
) -> None:
    plain = open_reader(store.url)
    expected = plain.offset_for_timestamp("times-shuffled", 0, 0)
    assert reader.offset_for_timestamp("times-shuffled", 0, 0) == expected
    assert requests(store)[0] > 0
    assert reader.offset_for_timestamp("times-shuffled", 0, 0) == expected
    assert requests(store) == (0, 1)


def test_after_the_time_to_live_the_store_is_asked_again(
    store: WatchedStore, reader: StoreReader, cache: RemoteIndexCache, clock: ManualClock
) -> None:
    topic = one_segment_topic(reader)
    expected = offsets(reader, topic)
    store.reads.clear()
    clock.advance(TTL_MS)
    assert cache.sweep() == 1
    assert offsets(reader, topic) == expected
    assert requests(store) == (1, 1)


def test_cac10_a_deleted_segment_is_not_served_from_the_cache(
    store: WatchedStore, cache: RemoteIndexCache
) -> None:
    metadata = bucket_metadata(store)
    reader = StoreReader(ObjectStorageManager(store), metadata, index_cache=cache)
    topic = one_segment_topic(reader)
    assert offsets(reader, topic)
    (partition,) = (one for one in metadata.partitions() if one.topic == topic)
    (segment,) = metadata.list(partition)
    assert segment.segment_id in cache
    metadata.update(
        RemoteLogSegmentMetadataUpdate(
            segment_id=segment.segment_id,
            state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            event_timestamp_ms=segment.event_timestamp_ms + 1,
            broker_id=1,
        )
    )
    with pytest.raises(OutOfRangeError):
        offsets(reader, topic)


@pytest.mark.parametrize("number", [0, -1], ids=["first", "newest"])
def test_damaged_indexes_are_not_cached_and_not_needed(
    golden_store: Path, tmp_path: Path, clock: ManualClock, number: int
) -> None:
    target = tmp_path / "damaged"
    shutil.copytree(golden_store, target)
    victim = sorted(target.glob("codec-none-*/0/*.indexes"))[number]
    store = WatchedStore(target)
    metadata = bucket_metadata(store)
    data = bytearray(victim.read_bytes())
    data[-10] ^= 0x01
    victim.write_bytes(data)
    storage = ObjectStorageManager(store)
    alarms: list[Exception] = []
    with RemoteIndexCache(storage, tmp_path / "cache", clock=clock) as cache:
        reader = StoreReader(storage, metadata, index_cache=cache, alarm=alarms.append)
        whole = open_reader(golden_store.as_uri())
        assert offsets(reader, "codec-none") == offsets(whole, "codec-none")
        (partition,) = (one for one in metadata.partitions() if one.topic == "codec-none")
        segments = metadata.list(partition)
        assert len(cache) == len(segments) - 1
    assert "BATCH_CHECKSUM" in str(alarms[0])
    assert isinstance(alarms[0], CorruptDataError)


def test_the_short_ways_take_a_cache(store: WatchedStore, cache: RemoteIndexCache) -> None:
    for requested in (1, 0):
        pieces = list(read(store.url, "codec-gzip", 0, 100, 110, index_cache=cache))
        assert [offset for piece in pieces for offset in piece.offset.tolist()] == [
            *range(100, 110)
        ]
        assert (len(store.reads) > 0) == bool(requested)
        store.reads.clear()
    opened = open_reader(store.url, index_cache=cache)
    assert offsets(opened, "codec-gzip", 100, 110) == [*range(100, 110)]
    assert store.reads == []
