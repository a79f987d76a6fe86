"""The index cache: what it serves, when it asks the store, and when entries go."""

from __future__ import annotations

import gc
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import indexes as oracle
from tests.remote.index_cache.segments import (
    FIRST_TIMESTAMP_MS,
    MAPPED_ENTRIES,
    PATIENCE,
    Indexed,
    OpenCache,
    Removals,
    WatchedStore,
    file_of,
    files_in,
    indexed,
    run_all,
    stored,
)
from tierlog.clock import ManualClock
from tierlog.config import RemoteIndexConfig
from tierlog.errors import (
    ClosedError,
    CorruptDataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.index_cache.evictions import MAX_REMEMBERED, Evictions
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes
from tierlog.remote.segment.layout import indexes_key
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.testing.segments import partition_of
from tierlog.types import RemoteLogSegmentId

TTL_MS = 900_000


@pytest.fixture
def cache(open_cache: OpenCache) -> RemoteIndexCache:
    return open_cache()


def segments(watched: WatchedStore, count: int, **arguments: Any) -> list[Indexed]:
    """That many segments whose indexes have one size."""
    return [stored(watched, f"s{n}", 1_000 + n, **arguments) for n in range(count)]


# -- what it serves


@pytest.mark.parametrize("entries", [1, 20, MAPPED_ENTRIES])
def test_every_index_of_a_segment_in_one_request(
    entries: int, watched: WatchedStore, cache: RemoteIndexCache, folder: Path
) -> None:
    one = stored(watched, "a", 500, entries=entries)
    entry = cache.get(one.metadata)
    assert watched.reads == [indexes_key(one.metadata)]
    assert entry.size_bytes == cache.size_bytes == len(one.data)
    assert file_of(folder, one.metadata).read_bytes() == one.data
    offsets = {offset + step for offset, _ in one.offsets for step in (-1, 0, 1)} | {0, 2**62}
    for target in sorted(offsets)[:200]:
        assert entry.lookup_offset(target) == oracle.lookup_offset(one.offsets, target, 500)
    for position in (0, 4_096, 4_097, 2**31 - 1):
        expected = oracle.lookup_upper_bound(one.offsets, (0, 0), position)
        assert entry.lookup_upper_bound(position) == expected
    for row in (-1, 0, 1, entries - 1, entries):
        for step in (-1, 0, 1):
            target_ms = FIRST_TIMESTAMP_MS + 100 * row + step
            expected_time = oracle.lookup_time(one.times, target_ms, 500)
            assert entry.lookup_timestamp(target_ms) == expected_time
    (aborted,), complete = entry.aborted_transactions(500, 505)
    assert (tuple(aborted), complete) == (tuple(one.aborted[0]), True)
    assert entry.aborted_transactions(600, 605)[0] == ()
    assert entry.remote_log_index.last_offset.tolist() == [one.metadata.end_offset]
    assert entry.remote_log_index is entry.remote_log_index
    assert entry.leader_epochs.epoch_for(500) == 0
    assert watched.reads == [indexes_key(one.metadata)]


def test_sections_are_read_only_views(watched: WatchedStore, cache: RemoteIndexCache) -> None:
    one = stored(watched, "a", entries=MAPPED_ENTRIES)
    entry = cache.get(one.metadata)
    direct = ObjectStorageManager(watched).fetch_indexes(one.metadata)
    for kind in IndexKind:
        assert entry.section(kind) == direct[kind]
        assert entry.section(kind).readonly
    with pytest.raises(TypeError):
        entry.section(IndexKind.OFFSET)[0] = 1


def test_positions_as_kafka_s_remote_index_cache(
    watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    """Offset to position; timestamp to position through the offset index."""
    one = stored(watched, "a", 100)
    assert cache.lookup_offset(one.metadata, 100) == 0
    assert cache.lookup_offset(one.metadata, 135) == dict(one.offsets)[129]
    third_ms, third_offset = one.times[3]
    assert cache.lookup_timestamp(one.metadata, third_ms + 5, 0) == dict(one.offsets)[third_offset]
    assert cache.lookup_timestamp(one.metadata, third_ms + 5, 250) == dict(one.offsets)[249]
    assert cache.lookup_timestamp(one.metadata, 0, 0) == 0
    assert watched.reads_of(one.metadata) == 1


def test_a_warm_segment_is_not_asked_for_again(
    watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    first, second = segments(watched, 2)
    for _ in range(3):
        for one in (first, second):
            assert cache.get(one.metadata).metadata.start_offset == one.metadata.start_offset
    assert len(watched.reads) == 2
    assert len(cache) == 2
    assert first.metadata.segment_id in cache


def test_indexes_of_another_segment_are_refused(
    watched: WatchedStore, cache: RemoteIndexCache, folder: Path
) -> None:
    """Also when they lie in the cache, and also when only the offsets differ."""
    one = stored(watched, "a", 100)
    other = replace(one.metadata, end_offset=one.metadata.end_offset + 1)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="wrong_segment"):
            cache.get(other)
        assert files_in(folder) == []
    cache.get(one.metadata)
    with pytest.raises(CorruptDataError, match=f"to {other.end_offset} in"):
        cache.get(other)
    assert cache.get(one.metadata).metadata.end_offset == one.metadata.end_offset


@pytest.mark.parametrize("position", [3, 9, 30, 200, -1])
def test_a_damaged_object_is_an_error_and_not_kept(
    position: int, watched: WatchedStore, cache: RemoteIndexCache, folder: Path
) -> None:
    one = stored(watched, "a")
    damaged = bytearray(one.data)
    damaged[position] ^= 0x20
    path = watched.indexes_path(one.metadata)
    path.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"file://.*\.indexes"):
            cache.get(one.metadata)
    assert watched.reads_of(one.metadata) == 2
    assert (len(cache), cache.size_bytes, files_in(folder)) == (0, 0, [])
    path.write_bytes(one.data)
    assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]


@pytest.mark.parametrize("size_bytes", [1, 11, 100, -1])
def test_a_truncated_object_is_an_error_and_not_kept(
    size_bytes: int, watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    one = stored(watched, "a")
    watched.indexes_path(one.metadata).write_bytes(one.data[:size_bytes])
    with pytest.raises(CorruptDataError, match="bad_length"):
        cache.get(one.metadata)
    assert len(cache) == 0


def test_sound_checksums_around_nonsense_name_the_object(
    watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    one = stored(watched, "a")
    wrong: dict[IndexKind, bytes] = {
        kind: b"\xff" * 24 for kind in IndexKind if kind is not IndexKind.METADATA
    }
    data = encode_indexes(SegmentDescription(metadata=one.metadata), wrong)
    watched.indexes_path(one.metadata).write_bytes(data)
    entry = cache.get(one.metadata)
    for use in (
        lambda: entry.lookup_offset(5),
        lambda: entry.lookup_timestamp(5),
        lambda: entry.aborted_transactions(0, 9),
        lambda: entry.remote_log_index,
        lambda: entry.leader_epochs,
    ):
        with pytest.raises(CorruptDataError, match=r"file://.*\.indexes"):
            use()


# -- time


def test_cache_ttl_eviction(
    watched: WatchedStore,
    cache: RemoteIndexCache,
    clock: ManualClock,
    folder: Path,
    removed: Removals,
) -> None:
    one = stored(watched, "a")
    cache.get(one.metadata)
    clock.advance(TTL_MS - 1)
    assert cache.sweep() == 0
    assert len(cache) == 1
    clock.advance(1)
    assert cache.sweep() == 1
    assert (len(cache), cache.size_bytes, files_in(folder)) == (0, 0, [])
    assert removed == [(one.metadata.segment_id.id, "expired")]


def test_access_resets_the_timer(
    watched: WatchedStore, cache: RemoteIndexCache, clock: ManualClock
) -> None:
    used, idle = segments(watched, 2)
    cache.get(used.metadata)
    cache.get(idle.metadata)
    for _ in range(10):
        clock.advance(TTL_MS * 2 // 3)
        cache.get(used.metadata)
        cache.sweep()
    assert watched.reads_of(used.metadata) == 1
    assert used.metadata.segment_id in cache
    assert idle.metadata.segment_id not in cache


def test_an_expired_entry_is_never_served(
    watched: WatchedStore, cache: RemoteIndexCache, clock: ManualClock, folder: Path
) -> None:
    """Nobody swept: the next use asks the store, and the old file goes."""
    one = stored(watched, "a")
    first = file_of(folder, cache.get(one.metadata).metadata)
    clock.advance(TTL_MS)
    cache.get(one.metadata)
    assert watched.reads_of(one.metadata) == 2
    cache.sweep()
    assert file_of(folder, one.metadata) != first
    assert len(files_in(folder)) == 1


@pytest.mark.parametrize("ttl_ms", [-1, 0])
def test_without_a_ttl_nothing_expires(
    ttl_ms: int,
    watched: WatchedStore,
    open_cache: OpenCache,
    clock: ManualClock,
) -> None:
    cache = open_cache(ttl_ms=ttl_ms)
    one = stored(watched, "a")
    cache.get(one.metadata)
    clock.advance(10 * 365 * 86_400_000)
    assert cache.sweep() == 0
    cache.get(one.metadata)
    assert watched.reads_of(one.metadata) == 1


def test_a_huge_ttl_is_as_good_as_none(
    watched: WatchedStore, open_cache: OpenCache, clock: ManualClock
) -> None:
    cache = open_cache(ttl_ms=2**63 - 1)
    one = stored(watched, "a")
    cache.get(one.metadata)
    clock.advance(2**50)
    assert cache.sweep() == 0
    assert one.metadata.segment_id in cache


def test_a_new_ttl_holds_for_entries_that_are_there(
    watched: WatchedStore, open_cache: OpenCache, clock: ManualClock
) -> None:
    cache = open_cache(ttl_ms=-1)
    one = stored(watched, "a")
    cache.get(one.metadata)
    clock.advance(5_000)
    cache.set_ttl(5_001)
    assert cache.sweep() == 0
    cache.set_ttl(5_000)
    cache.sweep()
    assert len(cache) == 0
    cache.get(one.metadata)
    cache.set_ttl(-1)
    clock.advance(10_000_000)
    assert cache.sweep() == 0


def test_the_wall_clock_does_not_matter(
    watched: WatchedStore, cache: RemoteIndexCache, clock: ManualClock
) -> None:
    one = stored(watched, "a")
    cache.get(one.metadata)
    for years in (10, -20):
        clock.jump_wall(years * 365 * 86_400_000)
        assert cache.sweep() == 0
    assert one.metadata.segment_id in cache


def test_the_sweeper_needs_no_reader(
    watched: WatchedStore, open_cache: OpenCache, clock: ManualClock
) -> None:
    gone = threading.Event()
    with open_cache(on_removal=lambda _segment, _cause: gone.set()).start(interval_ms=1) as cache:
        cache.get(stored(watched, "a").metadata)
        clock.advance(TTL_MS)
        assert gone.wait(PATIENCE)
    assert cache._sweeper is not None
    assert not cache._sweeper.is_alive()


def test_close_wakes_the_sweeper(open_cache: OpenCache) -> None:
    cache = open_cache().start(interval_ms=86_400_000)
    assert cache.start() is cache
    run_all(cache.close)
    assert cache._sweeper is not None
    assert not cache._sweeper.is_alive()
    with pytest.raises(ClosedError):
        cache.start()


def test_the_sweeper_does_not_keep_the_cache_alive(
    watched: WatchedStore, folder: Path, clock: ManualClock
) -> None:
    one = stored(watched, "a")
    cache = RemoteIndexCache(ObjectStorageManager(watched), folder, clock=clock)
    cache.get(one.metadata)
    thread = cache.start(interval_ms=86_400_000)._sweeper
    del cache
    gc.collect()
    assert thread is not None
    thread.join(PATIENCE)
    assert not thread.is_alive()
    # Dropped is closed: the file stays for the next cache.
    assert len(files_in(folder)) == 1


# -- stale entries


def test_stale_entries_go_after_leadership_loss(
    watched: WatchedStore, cache: RemoteIndexCache, clock: ManualClock, folder: Path
) -> None:
    """The new leader deletes segments and tells nobody; what is read here stays at hand."""
    lost = [stored(watched, f"l{n}", n * 1_000) for n in range(3)]
    led = stored(watched, "m", partition=partition_of("orders", 1))
    for one in (*lost, led):
        cache.get(one.metadata)
    for one in lost:
        watched.delete(indexes_key(one.metadata))
    for _ in range(4):
        clock.advance(TTL_MS // 4)
        cache.get(led.metadata)
    assert cache.sweep() == len(lost)
    assert [led.metadata.segment_id in cache, len(cache)] == [True, 1]
    assert [file_of(folder, led.metadata).name] == files_in(folder)
    for one in lost:
        with pytest.raises(RemoteResourceNotFoundError):
            cache.get(one.metadata)


def test_stale_entries_go_on_a_follower_that_is_read_from(
    watched: WatchedStore,
    open_cache: OpenCache,
    clock: ManualClock,
    folder: Path,
    tmp_path: Path,
) -> None:
    """Leader and follower cache one segment; only the leader learns of the deletion."""
    leader = RemoteIndexCache(ObjectStorageManager(watched), tmp_path / "leader", clock=clock)
    follower = open_cache()
    one = stored(watched, "a")
    leader.get(one.metadata)
    follower.get(one.metadata)
    ObjectStorageManager(watched).delete_log_segment_data(one.metadata)
    assert leader.remove(one.metadata.segment_id)
    assert files_in(tmp_path / "leader") == []
    clock.advance(TTL_MS)
    assert follower.sweep() == 1
    assert files_in(folder) == []
    leader.close()


# -- size


def test_cache_entry_expiry_by_size(
    watched: WatchedStore, open_cache: OpenCache, folder: Path, removed: Removals
) -> None:
    many = segments(watched, 10)
    size_bytes = many[0].size_bytes
    assert {one.size_bytes for one in many} == {size_bytes}
    cache = open_cache(total_size_bytes=3 * size_bytes + 5)
    for one in many:
        cache.get(one.metadata)
        assert cache.size_bytes <= 3 * size_bytes
        assert sum((folder / name).stat().st_size for name in files_in(folder)) == cache.size_bytes
    kept = [one for one in many if one.metadata.segment_id in cache]
    assert kept == many[-3:]
    assert removed == [(one.metadata.segment_id.id, "size") for one in many[:-3]]


def test_the_least_recently_used_goes_first(
    watched: WatchedStore, open_cache: OpenCache, removed: Removals
) -> None:
    first, second, third = segments(watched, 3)
    cache = open_cache(total_size_bytes=2 * first.size_bytes)
    cache.get(first.metadata)
    cache.get(second.metadata)
    cache.get(first.metadata)
    cache.get(third.metadata)
    assert [segment_id for segment_id, _ in removed] == [second.metadata.segment_id.id]


def test_size_and_ttl_work_together(
    watched: WatchedStore,
    open_cache: OpenCache,
    clock: ManualClock,
    removed: Removals,
) -> None:
    """The bound takes effect at once, the time to live for what is left."""
    first, second, third = segments(watched, 3)
    cache = open_cache(total_size_bytes=2 * first.size_bytes)
    cache.get(first.metadata)
    clock.advance(TTL_MS - 10)
    cache.get(second.metadata)
    cache.get(third.metadata)
    assert removed == [(first.metadata.segment_id.id, "size")]
    clock.advance(TTL_MS - 10)
    cache.get(third.metadata)
    clock.advance(10)
    assert cache.sweep() == 1
    assert removed[1:] == [(second.metadata.segment_id.id, "expired")]
    assert third.metadata.segment_id in cache


def test_refetch_after_eviction(watched: WatchedStore, open_cache: OpenCache, folder: Path) -> None:
    first, second = segments(watched, 2)
    cache = open_cache(total_size_bytes=first.size_bytes)
    paths = set()
    for _ in range(5):
        for one in (first, second):
            assert cache.get(one.metadata).lookup_offset(10**6) == one.offsets[-1]
            paths.add(file_of(folder, one.metadata))
    assert watched.reads_of(first.metadata) == watched.reads_of(second.metadata) == 5
    assert len(paths) == 10
    assert len(files_in(folder)) == 1


def test_cac11_an_entry_larger_than_the_cache(
    watched: WatchedStore, open_cache: OpenCache, folder: Path, removed: Removals
) -> None:
    """It is handed out and neither kept nor written; what is there stays."""
    small, large = stored(watched, "a", 1), stored(watched, "b", 2, entries=500)
    cache = open_cache(total_size_bytes=small.size_bytes + 10)
    cache.get(small.metadata)
    for reads in (1, 2):
        assert cache.get(large.metadata).lookup_offset(15) == large.offsets[0]
        assert watched.reads_of(large.metadata) == reads
    assert [file_of(folder, small.metadata).name] == files_in(folder)
    assert removed == []


def test_cac11_resize_while_full(
    watched: WatchedStore, open_cache: OpenCache, folder: Path, removed: Removals
) -> None:
    many = segments(watched, 5)
    size_bytes = many[0].size_bytes
    cache = open_cache(total_size_bytes=5 * size_bytes)
    for one in many:
        cache.get(one.metadata)
    cache.resize(2 * size_bytes)
    assert cache.size_bytes == 2 * size_bytes
    assert len(files_in(folder)) == 2
    assert [cause for _, cause in removed] == ["size"] * 3
    cache.resize(1)
    assert (len(cache), files_in(folder)) == (0, [])
    cache.resize(5 * size_bytes)
    for one in many:
        cache.get(one.metadata)
    assert len(cache) == 5


def test_impossible_settings_are_refused(open_cache: OpenCache) -> None:
    for arguments in ({"total_size_bytes": 0}, {"total_size_bytes": -1}, {"ttl_ms": -2}):
        with pytest.raises(ValueError, match="must be"):
            open_cache(**arguments)
    cache = open_cache()
    with pytest.raises(ValueError, match="total_size_bytes"):
        cache.resize(0)
    with pytest.raises(ValueError, match="ttl_ms"):
        cache.set_ttl(-2)
    with pytest.raises(ValueError, match="interval_ms"):
        cache.start(interval_ms=0)


def test_the_settings_that_nobody_gives_are_kafka_s(cache: RemoteIndexCache) -> None:
    settings = RemoteIndexConfig()
    assert cache._cache.max_bytes == settings.file_cache_total_size_bytes == 1 << 30
    assert cache._cache.ttl_ms == settings.file_cache_ttl_ms == TTL_MS


# -- removal


def test_removal_by_segment(
    watched: WatchedStore, cache: RemoteIndexCache, folder: Path, removed: Removals
) -> None:
    first, second = segments(watched, 2)
    cache.get(first.metadata)
    cache.get(second.metadata)
    assert cache.remove(first.metadata.segment_id)
    assert not cache.remove(first.metadata.segment_id)
    assert removed == [(first.metadata.segment_id.id, "explicit")]
    assert [file_of(folder, second.metadata).name] == files_in(folder)


def test_removal_by_partition(watched: WatchedStore, cache: RemoteIndexCache, folder: Path) -> None:
    """Neither another partition nor another topic of that name goes."""
    kept = [
        stored(watched, "k1", partition=partition_of("orders", 1)),
        stored(watched, "k2", partition=partition_of("payments", 0)),
    ]
    gone = segments(watched, 3)
    for one in (*kept, *gone):
        cache.get(one.metadata)
    assert cache.remove_partition(gone[0].metadata.topic_id_partition) == 3
    assert cache.remove_partition(gone[0].metadata.topic_id_partition) == 0
    assert len(cache) == len(files_in(folder)) == 2
    assert all(one.metadata.segment_id in cache for one in kept)


def test_cac5_two_partitions_may_have_a_segment_of_one_id(
    watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    """The whole identity is compared, not the part of it that the file's name tells."""
    one = stored(watched, "same", partition=partition_of("orders", 0))
    other = stored(watched, "same", partition=partition_of("orders", 1))
    assert one.metadata.segment_id.id == other.metadata.segment_id.id
    for wanted in (one, other, one, other):
        found = cache.get(wanted.metadata).metadata
        assert found.topic_id_partition == wanted.metadata.topic_id_partition
    assert len(watched.reads) == 2


@pytest.mark.parametrize("by_partition", [False, True])
def test_cac8_a_removal_during_a_load_wins(
    by_partition: bool, watched: WatchedStore, cache: RemoteIndexCache, folder: Path
) -> None:
    """Who waits gets the answer; it is not kept, and its file goes with its last reader."""
    one = stored(watched, "a")

    def remove(_key: str) -> None:
        if by_partition:
            cache.remove_partition(one.metadata.topic_id_partition)
        else:
            cache.remove(one.metadata.segment_id)

    watched.before_read = remove
    entry = cache.get(one.metadata)
    assert entry.lookup_offset(9) == one.offsets[0]
    assert len(cache) == 0
    assert all(name.endswith(".deleted") for name in files_in(folder))
    del entry
    assert files_in(folder) == []
    watched.before_read = lambda _key: None
    cache.get(one.metadata)
    assert watched.reads_of(one.metadata) == 2
    assert len(cache) == 1


def test_a_listener_that_raises_stops_nothing(
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: reported.append(found.exc_value))

    def listen(_segment: RemoteLogSegmentId, _cause: str) -> None:
        raise ValueError("from the listener")

    cache = open_cache(on_removal=listen)
    one = stored(watched, "a")
    cache.get(one.metadata)
    assert cache.remove(one.metadata.segment_id)
    assert [str(error) for error in reported] == ["from the listener"]
    reported.clear()
    gc.collect()
    assert files_in(folder) == []


# -- loads


def test_cac4_a_failed_load_is_not_kept(watched: WatchedStore, cache: RemoteIndexCache) -> None:
    one = stored(watched, "a")

    def fail(_key: str) -> None:
        raise RemoteStorageError("the store is away")

    watched.before_read = fail
    for _ in range(2):
        with pytest.raises(RemoteStorageError, match="is away"):
            cache.get(one.metadata)
    watched.before_read = lambda _key: None
    assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
    assert watched.reads_of(one.metadata) == 3


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_cac14_an_interrupted_load_locks_nothing(
    interruption: type[BaseException], watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    one = stored(watched, "a")

    def interrupt(_key: str) -> None:
        raise interruption

    watched.before_read = interrupt
    with pytest.raises(interruption):
        cache.get(one.metadata)
    watched.before_read = lambda _key: None
    assert run_all(lambda: cache.get(one.metadata).size_bytes) == [one.size_bytes]


def test_cac13_a_hundred_readers_ask_once(watched: WatchedStore, cache: RemoteIndexCache) -> None:
    """All arrive during the first one's request; another segment is served meanwhile."""
    one, other = segments(watched, 2)
    readers = 100
    ready = threading.Barrier(readers + 1)
    answered = threading.Event()

    def hold(key: str) -> None:
        if key == indexes_key(one.metadata):
            assert answered.wait(PATIENCE)

    def reader() -> object:
        ready.wait(PATIENCE)
        return cache.get(one.metadata)

    def meanwhile() -> object:
        ready.wait(PATIENCE)
        found = cache.get(other.metadata)
        answered.set()
        return found

    watched.before_read = hold
    *found, its_entry = run_all(*[reader] * readers, meanwhile)
    assert its_entry is cache.get(other.metadata)
    assert {id(entry) for entry in found} == {id(cache.get(one.metadata))}
    assert watched.reads_of(one.metadata) == watched.reads_of(other.metadata) == 1


def test_cac13_a_failure_reaches_all_who_wait(
    watched: WatchedStore, cache: RemoteIndexCache
) -> None:
    one = stored(watched, "a")
    asked, answered = threading.Event(), threading.Event()

    def fail(_key: str) -> None:
        asked.set()
        assert answered.wait(PATIENCE)
        raise RemoteStorageError("the store is away")

    def waiter() -> object:
        assert asked.wait(PATIENCE)
        try:
            return cache.get(one.metadata, timeout_ms=1)
        finally:
            answered.set()

    watched.before_read = fail
    first, second = run_all(lambda: cache.get(one.metadata), waiter)
    assert isinstance(first, RemoteStorageError)
    assert isinstance(second, TimeoutError)
    watched.before_read = lambda _key: None
    assert cache.get(one.metadata).size_bytes == one.size_bytes


def test_cac7_close_during_a_load(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    """Whoever waits is told; a file that was nearly there does no harm to the next cache."""
    one = stored(watched, "a")
    cache = open_cache()
    asked, closed = threading.Event(), threading.Event()

    def hold(_key: str) -> None:
        asked.set()
        assert closed.wait(PATIENCE)

    def close() -> None:
        assert asked.wait(PATIENCE)
        cache.close()
        closed.set()

    watched.before_read = hold
    found, _ = run_all(lambda: cache.get(one.metadata), close)
    assert isinstance(found, ClosedError)
    assert files_in(folder) == []
    watched.before_read = lambda _key: None
    assert open_cache().get(one.metadata).size_bytes == one.size_bytes


def test_use_after_close(watched: WatchedStore, cache: RemoteIndexCache, removed: Removals) -> None:
    """What readers hold stays good, and the listener hears nothing: no file goes."""
    one = stored(watched, "a")
    entry = cache.get(one.metadata)
    cache.close()
    cache.close()
    assert removed == []
    for use in (
        lambda: cache.get(one.metadata),
        lambda: cache.lookup_offset(one.metadata, 5),
        lambda: cache.remove(one.metadata.segment_id),
        lambda: cache.remove_partition(one.metadata.topic_id_partition),
        lambda: cache.sweep(),
        lambda: cache.resize(5),
        lambda: cache.set_ttl(5),
    ):
        with pytest.raises(ClosedError):
            use()
    assert entry.lookup_offset(9) == one.offsets[0]


def test_stats(watched: WatchedStore, open_cache: OpenCache) -> None:
    first, second = segments(watched, 2)
    cache = open_cache(total_size_bytes=first.size_bytes, record_stats=True)
    for one in (first, first, second):
        cache.get(one.metadata)
    with pytest.raises(RemoteResourceNotFoundError):
        cache.get(indexed("never stored").metadata)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.loads, stats.failed_loads) == (1, 3, 2, 1)
    assert stats.removals == {"size": 1, "expired": 0, "explicit": 0, "replaced": 0}
    assert (stats.entries, stats.size_bytes) == (1, second.size_bytes)
    assert (stats.adopted, stats.damaged, stats.disk_errors) == (0, 0, 0)
    assert stats.recorded


def test_what_is_fetched_again_is_counted_by_why_it_had_left(
    watched: WatchedStore, open_cache: OpenCache, clock: ManualClock
) -> None:
    first, second = segments(watched, 2)
    size_bytes = first.size_bytes
    cache = open_cache(total_size_bytes=size_bytes, ttl_ms=TTL_MS)

    def refetched(*asked: Indexed) -> dict[str, int]:
        for one in asked:
            cache.get(one.metadata)
        return cache.stats().refetched_bytes

    assert refetched(first, first, second) == {"size": 0, "expired": 0}, "each came once"
    assert refetched(first) == {"size": size_bytes, "expired": 0}
    clock.advance(TTL_MS + 1)
    cache.sweep()
    assert refetched(first) == {"size": size_bytes, "expired": size_bytes}
    cache.remove(first.metadata.segment_id)
    assert refetched(first) == {"size": size_bytes, "expired": size_bytes}, "given up on purpose"
    assert refetched(second) == {"size": 2 * size_bytes, "expired": size_bytes}
    asked = sum(watched.reads_of(one.metadata) for one in (first, second))
    assert cache.stats().fetched_bytes == asked * size_bytes
    assert not cache.stats().recorded


def test_what_is_too_large_to_keep_is_fetched_again_each_time(
    watched: WatchedStore, open_cache: OpenCache
) -> None:
    (one,) = segments(watched, 1)
    cache = open_cache(total_size_bytes=one.size_bytes - 1)
    for _ in range(3):
        cache.get(one.metadata)
    stats = cache.stats()
    assert (stats.fetched_bytes, stats.refetched_bytes["size"]) == (
        3 * one.size_bytes,
        2 * one.size_bytes,
    )


def test_the_memory_of_what_has_left_is_bounded() -> None:
    evictions = Evictions()
    for number in range(MAX_REMEMBERED + 1):
        evictions.record_eviction(number, "size")
    evictions.record_eviction(1, "expired")
    evictions.record_eviction("another", "size")
    for key in (0, 2, 1, 1):
        evictions.record_fetch(key, 10)
    assert evictions.counts() == (40, {"size": 0, "expired": 10}), "0 and 2 are forgotten"
