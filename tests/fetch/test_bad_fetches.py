"""Fetches on a bad day: the documented answer for that partition, the others exact, and in the end
no byte of quota or memory held."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.two_tiers import TwoTiers
from tests.fetch.views import consumed
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import RemoteResourceNotFoundError, RemoteStorageError
from tierlog.fetch.quotas import FetchQuotas
from tierlog.reader.memory import FetchMemory
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import FetchError, FetchPartition, FetchSource, PartitionData
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.layout import INDEXES_SUFFIX, LOG_SUFFIX
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.types import TopicIdPartition

MEMORY_BYTES = 32 << 20
Tamper = Callable[[str, bytes, int], bytes]


class BadStore:
    """The store, with hands in what one partition's objects bring."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.prefix = "nobody's"
        self.suffix = LOG_SUFFIX
        self.tamper: Tamper | None = None
        self.gate: threading.Event | None = None
        self.calls = 0

    # Reads go through `get_range`, which nothing may pass by.
    def open_file(self, _key: str) -> None:
        return None

    def draft(self, _key: str, _size_bytes: int) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Any:
        self.calls += 1
        bad = key.startswith(self.prefix) and key.endswith(self.suffix)
        if bad and self.gate is not None:
            assert self.gate.wait(60)
        data = self._store.get_range(key, start_position, size_bytes)
        if bad and self.tamper is not None:
            return self.tamper(key, bytes(data), start_position)
        return data


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    quotas = FetchQuotas(
        QuotaConfig(fetch_max_bytes_per_second=1 << 40, fetch_quota_mode=QuotaMode.RESERVE)
    )
    made = TwoTiers(tmp_path, quotas=quotas)
    made.bad = BadStore(made.storage._store)  # type: ignore[attr-defined]
    made.storage = ObjectStorageManager(made.bad)  # type: ignore[attr-defined]
    made.remote.close()
    made.cache.close()
    made.cache = RemoteIndexCache(made.storage, tmp_path / "cache")
    made.memory = FetchMemory(MEMORY_BYTES)  # type: ignore[attr-defined]
    made.remote = RemoteBatchReader(
        made.storage,
        made.metadata,
        index_cache=made.cache,
        memory=made.memory,  # type: ignore[attr-defined]
    )
    made.fetcher = made.make(max_remote_wait_ms=30_000)
    yield made
    assert made.quotas.broker.snapshot().reserved_bytes == 0
    made.close()
    made.remote = made.fetcher = None  # type: ignore[assignment]
    gc.collect()
    assert made.memory.used_bytes == 0  # type: ignore[attr-defined]


def bad_of(tiers: TwoTiers) -> BadStore:
    found: BadStore = tiers.bad  # type: ignore[attr-defined]
    return found


def three(tiers: TwoTiers) -> tuple[TopicIdPartition, TopicIdPartition, TopicIdPartition]:
    """One whose objects are bad, one that is remote and well, one that is local."""
    ill, well, local = (
        tiers.add("clean", f"{name}-0") for name in ("codec-none", "idempotent", "epochs")
    )
    for one in (ill, well):
        tiers.drop_local(one, tiers.views[one].log.segments[-1].base_offset)
    bad_of(tiers).prefix = "codec-none-"
    return ill, well, local


def fetch(tiers: TwoTiers, *partitions: TopicIdPartition, offset: int = 0) -> list[PartitionData]:
    asked = [FetchPartition(partition=one, fetch_offset=offset) for one in partitions]
    return list(tiers.fetch(asked))


def missing(_key: str, _data: bytes, _at: int) -> bytes:
    raise RemoteResourceNotFoundError("no such object")


def refused(_key: str, _data: bytes, _at: int) -> bytes:
    raise RemoteStorageError("503 slow down")


def flipped(_key: str, data: bytes, _at: int) -> bytes:
    at = min(200, len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def huge_claim(_key: str, data: bytes, at: int) -> bytes:
    return data[:8] + (1 << 30).to_bytes(4) + data[12:] if at == 0 else data


BAD: dict[str, Tamper] = {
    "missing": missing,
    "refused": refused,
    "short": lambda _key, data, _at: data[: len(data) // 2],
    "empty": lambda _key, _data, _at: b"",
    "flipped": flipped,
    "zeros": lambda _key, data, _at: b"\0" * len(data),
    "another place of the object": lambda _key, data, _at: data[7:] + data[:7],
    "a claim of 1 GiB": huge_claim,
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_log_object(tiers: TwoTiers, name: str) -> None:
    ill, well, local = three(tiers)
    bad_of(tiers).tamper = BAD[name]
    for _ in range(3):
        wrong, good, near = fetch(tiers, ill, well, local)
        assert wrong.error is FetchError.KAFKA_STORAGE_ERROR, wrong
        assert wrong.records == b""
        assert wrong.text
        assert good.error is FetchError.NONE
        assert good.size_bytes > 0
        assert (near.source, near.error) == (FetchSource.LOCAL, FetchError.NONE)
        assert near.size_bytes > 0
    bad_of(tiers).tamper = None
    (healed,) = fetch(tiers, ill)
    assert healed.error is FetchError.NONE
    assert healed.size_bytes > 0


@pytest.mark.parametrize("name", ["missing", "refused", "flipped", "zeros", "short", "empty"])
def test_bad_indexes(tiers: TwoTiers, name: str) -> None:
    """What can be read without them is read; what cannot be had is an error that may pass."""
    ill, well, _ = three(tiers)
    bad = bad_of(tiers)
    bad.suffix, bad.tamper = INDEXES_SUFFIX, BAD[name]
    answer, good = fetch(tiers, ill, well)
    assert good.error is FetchError.NONE
    assert good.size_bytes > 0
    if answer.error is FetchError.NONE:
        assert answer.size_bytes > 0
        assert bytes(answer.records) == bytes(healed(tiers, ill).records)
    else:
        assert answer.error is FetchError.KAFKA_STORAGE_ERROR
        assert answer.records == b""
        healed(tiers, ill)


def healed(tiers: TwoTiers, partition: TopicIdPartition) -> PartitionData:
    bad_of(tiers).tamper = None
    (answer,) = fetch(tiers, partition)
    assert answer.error is FetchError.NONE
    assert answer.size_bytes > 0
    return answer


def test_objects_that_changed_places(tiers: TwoTiers) -> None:
    """A sound object of another segment under the key is never taken for it."""
    ill, _, _ = three(tiers)
    bad = bad_of(tiers)
    logs = sorted(
        info.key
        for info in bad.list()
        if info.key.startswith("codec-none-") and info.key.endswith(LOG_SUFFIX)
    )
    other = {one: logs[(number + 1) % len(logs)] for number, one in enumerate(logs)}
    real = bad._store

    def swapped(key: str, data: bytes, at: int) -> bytes:
        try:
            return bytes(real.get_range(other[key], at, len(data)))
        except RemoteStorageError:
            return b""

    bad.tamper = swapped
    (answer,) = fetch(tiers, ill)
    assert answer.error is FetchError.KAFKA_STORAGE_ERROR
    assert answer.records == b""


def test_metadata_that_names_what_is_not_there(tiers: TwoTiers) -> None:
    ill, well, _ = three(tiers)
    segment = tiers.metadata.list(ill)[0]
    for key in [info.key for info in bad_of(tiers).list() if segment.segment_id.id in info.key]:
        bad_of(tiers).delete(key)
    answer, good = fetch(tiers, ill, well)
    # Not out of range: clients would go elsewhere and skip what may come back.
    assert answer.error is FetchError.KAFKA_STORAGE_ERROR
    assert good.error is FetchError.NONE


def test_a_segment_that_retention_deletes_is_out_of_range(tiers: TwoTiers) -> None:
    """The log start offset moves first; a view from before that is taken anew."""
    ill, _, _ = three(tiers)
    first = tiers.metadata.list(ill)[0]
    stale = tiers.views[ill]
    tiers.views[ill] = replace(stale, log_start_offset=first.end_offset + 1)
    for state in (
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    ):
        tiers.metadata.update(first.update_to(state, event_timestamp_ms=1))
        tiers.before = [stale]
        (answer,) = fetch(tiers, ill)
        if answer.error is FetchError.NONE:
            # While it is being deleted the log goes on with the next segment.
            assert consumed(answer.records, 0, None)[0][0] > first.end_offset
        else:
            assert answer.error is FetchError.OFFSET_OUT_OF_RANGE
    assert answer.error is FetchError.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_the_metadata_lost_is_an_error_and_not_out_of_range(
    tiers: TwoTiers, number: int
) -> None:
    """Out of range would make a client skip records that the log start offset says are there."""
    ill, well, _ = three(tiers)
    lost = tiers.metadata.list(ill)[number]
    forget(tiers, lost)
    answer, good = fetch(tiers, ill, well, offset=lost.start_offset)
    assert answer.error is FetchError.KAFKA_STORAGE_ERROR
    assert f"offsets {lost.start_offset} to {lost.end_offset} are in no segment" in answer.text
    assert good.error is FetchError.NONE


def test_the_last_segments_of_the_tier_are_missing(tiers: TwoTiers) -> None:
    """The directory begins later: what lies between is in neither tier."""
    ill, _, _ = three(tiers)
    *_, last = tiers.metadata.list(ill)
    forget(tiers, last)
    (answer,) = fetch(tiers, ill, offset=last.start_offset)
    assert answer.error is FetchError.KAFKA_STORAGE_ERROR
    assert f"offsets {last.start_offset} to" in answer.text


def forget(tiers: TwoTiers, segment: RemoteLogSegmentMetadata) -> None:
    """The metadata knows the segment no more."""
    for state in (
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    ):
        tiers.metadata.update(segment.update_to(state, event_timestamp_ms=1))


def test_a_store_that_stalls_for_ever_costs_its_readers_and_nobody_else(
    tiers: TwoTiers,
) -> None:
    ill, well, local = three(tiers)
    bad = bad_of(tiers)
    bad.gate = threading.Event()
    tiers.fetcher = tiers.make(max_remote_wait_ms=50)
    pending, near = fetch(tiers, ill, local)
    assert (pending.error, pending.size_bytes) == (FetchError.NONE, 0)
    assert near.size_bytes > 0
    tiers.fetcher = tiers.make(max_remote_wait_ms=30_000)
    (good,) = fetch(tiers, well)
    assert good.size_bytes > 0
    bad.gate.set()
    (late,) = fetch(tiers, ill)
    assert late.size_bytes > 0


def test_many_partitions_at_once_stay_within_the_memory(tiers: TwoTiers) -> None:
    """Twenty partitions of one log, each asking for more than there is memory for all."""
    ill, _, _ = three(tiers)
    bad_of(tiers).prefix = "nobody's"
    view = tiers.views[ill]
    copies = [replace(ill, partition=number) for number in range(1, 21)]
    for copy in copies:
        tiers.views[copy] = view
        tiers.metadata.load(
            replace(one, segment_id=replace(one.segment_id, topic_id_partition=copy))
            for one in tiers.metadata.list(ill)
        )
    asked = [
        FetchPartition(partition=one, fetch_offset=0, max_bytes=16 << 20) for one in (ill, *copies)
    ]
    answers = tiers.fetch(asked, max_bytes=1 << 30)
    assert answers[0].size_bytes > 0
    memory = tiers.memory  # type: ignore[attr-defined]
    assert memory.most_bytes <= MEMORY_BYTES


def test_a_cache_full_of_entries_that_readers_hold(tiers: TwoTiers) -> None:
    """They make way like any others, and stay what they are for who holds them: no read waits for
    a reader that keeps its entries for ever."""
    ill, well, _ = three(tiers)
    plenty = [bytes(one.records) for one in fetch(tiers, ill, well)]
    segments = tiers.metadata.list(ill)
    tiers.cache.remove_partition(ill)
    tiers.cache.remove_partition(well)
    held = [tiers.cache.get(one) for one in segments]
    found = [
        entry.lookup_offset(one.start_offset) for one, entry in zip(segments, held, strict=True)
    ]
    tiers.cache.resize(tiers.cache.size_bytes // len(segments))
    for _ in range(3):
        assert [bytes(one.records) for one in fetch(tiers, ill, well)] == plenty
    assert tiers.cache.get(segments[0]) is not held[0]
    assert found == [
        entry.lookup_offset(one.start_offset) for one, entry in zip(segments, held, strict=True)
    ]
