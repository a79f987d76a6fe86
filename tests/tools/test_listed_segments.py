"""What a listing leaves in memory: all that it says, in whatever order, in few bytes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest

from tierlog.log.log_dir import PartitionLog, SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.layout import (
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    claim_cluster,
    log_key,
    parse_key,
)
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
from tierlog.remote.urls import open_store
from tierlog.testing.segments import PARTITION, segment
from tierlog.tools.audit.plan import plan_audit
from tierlog.tools.listed_segments import MAX_LISTED, ListedSegments, SegmentPair, list_in_columns
from tierlog.tools.packed import unpack
from tierlog.tools.rebuild.log_dir import plan_log_chains
from tierlog.tools.rebuild.store import StoredSegment
from tierlog.tools.rebuild.store_plan import Looked, LookedSegments, plan_store
from tierlog.tools.rebuild.tasks import pack_chains, pack_tasks

PARTITIONS, EACH, OFFSETS = 4, 1_000, 100
MANY = PARTITIONS * EACH
LATER_MS = 1 << 50


def segments(partitions: int, each: int) -> Iterator[RemoteLogSegmentMetadata]:
    """By key."""
    for partition in range(partitions):
        for number in range(each):
            yield segment(
                f"{partition}-{number}",
                number * OFFSETS,
                (number + 1) * OFFSETS - 1,
                partition=replace(PARTITION, partition=partition),
            )


def listing(pairs: Iterable[SegmentPair]) -> list[ObjectInfo]:
    return [info for pair in pairs for info in (pair.indexes, pair.log) if info is not None]


def pairs_of(partitions: int, each: int) -> list[SegmentPair]:
    """By key; of every seventh segment the one object is missing, of others the other one."""
    pairs = []
    for number, metadata in enumerate(segments(partitions, each)):
        stem = log_key(metadata).removesuffix(LOG_SUFFIX)
        log, indexes = (
            ObjectInfo(key=stem + suffix, size_bytes=size, etag=None, last_modified_ms=size + 7)
            for suffix, size in ((LOG_SUFFIX, 1000 + number), (INDEXES_SUFFIX, -1))
        )
        pairs.append(
            SegmentPair(
                stem=stem,
                log=None if number % 7 == 1 else log,
                indexes=None if number % 7 == 5 else indexes,
            )
        )
    return pairs


def told(listed: Iterable[ListedSegments]) -> list[SegmentPair]:
    return [pair for one in listed for pair in one.pairs()]


def nothing_foreign(info: ObjectInfo) -> None:
    raise AssertionError(info.key)


@pytest.mark.parametrize(
    "order", ["by key", "suffixes apart", "shuffled", "folders in turns", "shuffled in folders"]
)
def test_whatever_the_order_of_a_listing(order: str) -> None:
    pairs = pairs_of(3, 2 * MAX_LISTED + 10)
    objects = listing(pairs)
    if order == "suffixes apart":
        objects.sort(key=lambda info: info.key.rpartition(".")[2])
    elif order == "shuffled":
        Random(7).shuffle(objects)
    elif order == "shuffled in folders":
        Random(7).shuffle(objects)
        objects.sort(key=lambda info: info.key.rpartition("/")[0])
    elif order == "folders in turns":
        objects.sort(key=lambda info: info.key.rpartition("/")[2])
    listed = list_in_columns(objects, nothing_foreign)
    assert told(listed) == pairs
    assert max(one.segments for one in listed) == MAX_LISTED
    assert len(listed) == 9
    for one in listed:
        here = [*one.pairs()]
        assert one.segments == len(here)
        assert one.size_bytes == sum(pair.log.size_bytes for pair in here if pair.log)
        assert one.alone == sum(None in (pair.log, pair.indexes) for pair in here) > 0
        assert here[0].stem == f"{one.folder}/{one.first}"


def test_neighbours_end_where_they_have_enough_bytes() -> None:
    pairs = pairs_of(1, 40)
    listed = list_in_columns(listing(pairs), nothing_foreign, max_bytes=3_100)
    assert told(listed) == pairs
    assert max(one.size_bytes for one in listed) <= 3_100
    assert {sum(pair.log is not None for pair in one.pairs()) for one in listed[:-1]} == {3, 2}
    exactly = listed[0].size_bytes
    for less, fits in ((0, True), (1, False)):
        first = list_in_columns(listing(pairs), nothing_foreign, max_bytes=exactly - less)[0]
        assert (first.size_bytes == exactly) is fits
    alone = list_in_columns(listing(pairs), nothing_foreign, max_bytes=1)
    assert [one.size_bytes for one in alone if one.size_bytes] == [
        pair.log.size_bytes for pair in pairs if pair.log
    ]


def test_foreign_objects_are_told_of() -> None:
    """Also one that stands between the two objects of a segment."""
    pairs = pairs_of(1, 30)
    keys = ["cluster.json", ".log", f"{pairs[0].stem}.inf", f"{pairs[3].stem}.log.old", "x/y.log"]
    foreign = [ObjectInfo(key=key, size_bytes=1, etag=None, last_modified_ms=0) for key in keys]
    seen: list[ObjectInfo] = []
    objects = sorted(listing(pairs) + foreign, key=lambda info: info.key)
    assert told(list_in_columns(objects, seen.append)) == pairs
    assert sorted(info.key for info in seen) == sorted(keys)


def test_which_segments_are_held_by_others() -> None:
    """The offsets of sound segments may overlap, as those of deposed leaders do."""
    random = Random(11)
    ranges = [(first, first + random.choice((3, 9, 60))) for first in random.sample(range(400), 40)]
    sound: list[Looked] = [
        SegmentDescription(metadata=segment(f"sound {first}", first, last))
        for first, last in ranges
    ]
    bases = range(500)
    broken = [
        StoredSegment(
            key=parse_key(log_key(segment(f"broken {base}", base, base))),
            size_bytes=1,
            stored_ms=0,
        )
        for base in bases
    ]
    store = open_store("memory:///held")
    claim_cluster(store, "held")
    store.put_bytes(log_key(segment("any", 0, 0)), b"")
    plan = plan_store(
        store,
        store.url,
        now_ms=LATER_MS,
        dry_run=False,
        index_interval_bytes=4096,
        look=lambda _: [LookedSegments.of([*sound, *broken])],
    )
    held = {base for base in bases if any(first <= base <= last for first, last in ranges)}
    assert {one.row.base_offset for one in plan.outcomes} == held
    assert 100 < len(held) < 400
    chains = [chain for part in plan.chains for chain in unpack(part.packed)]
    found = [one.key.base_offset for chain in chains for one in chain.chain]
    assert found == sorted(set(bases) - held)
    for chain in chains:
        first, last = chain.chain[0].key.base_offset, chain.chain[-1].key.base_offset
        assert not [start for start, _ in ranges if first < start < last]
        ends = {end + 1 for start, end in ranges if start < first} & {*found}
        assert {one.end_offset + 1 for one in chain.before} == {
            one.key.base_offset for one in chain.chain if one.key.base_offset in ends
        }
        later = [start for start, _ in ranges if start > last]
        assert (chain.after and chain.after.start_offset) == (min(later) if later else None)
        assert chain.begins == (first == min(found + [start for start, _ in ranges]))


# -- what a plan keeps


def kept_bytes(plan: Callable[[], object]) -> float:
    """Of Python's memory, for each of ``MANY`` segments."""
    gc.collect()
    tracemalloc.start()
    try:
        made = plan()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made
    return kept / MANY


@pytest.fixture(scope="module")
def store() -> ObjectStore:
    """Of empty objects, in the memory of native code."""
    store = open_store("memory:///listed-segments")
    claim_cluster(store, "listed")
    for metadata in segments(PARTITIONS, EACH):
        stem = log_key(metadata).removesuffix(LOG_SUFFIX)
        for suffix in (LOG_SUFFIX, INDEXES_SUFFIX):
            store.put_bytes(stem + suffix, b"")
    return store


def test_an_audit_keeps_few_bytes_for_a_segment(store: ObjectStore) -> None:
    assert kept_bytes(lambda: plan_audit(store, now_ms=LATER_MS)) < 100


@pytest.mark.parametrize(("broken", "at_most"), [(False, 160), (True, 260)])
def test_a_rebuild_of_a_store_keeps_few_bytes_for_a_segment(
    store: ObjectStore, broken: bool, at_most: int
) -> None:
    """With what was seen of every one, sound or to be rebuilt."""

    def look(listed: Sequence[ListedSegments]) -> Iterator[LookedSegments]:
        for one in listed:
            yield LookedSegments.of([seen(pair) for pair in one.pairs()])

    def seen(pair: SegmentPair) -> Looked:
        assert pair.log
        key = parse_key(pair.log.key)
        if broken:
            return StoredSegment(key=key, size_bytes=0, stored_ms=pair.log.last_modified_ms)
        number = key.base_offset // OFFSETS
        metadata = segment(
            f"{key.partition}-{number}",
            key.base_offset,
            key.base_offset + OFFSETS - 1,
            partition=replace(PARTITION, partition=key.partition),
            log_crc32c=hash(pair.stem) % (1 << 32),
        )
        return SegmentDescription(metadata=metadata)

    def plan() -> object:
        made = plan_store(
            store,
            store.url,
            now_ms=LATER_MS,
            dry_run=False,
            index_interval_bytes=4096,
            look=look,
        )
        assert sum(chain.segments for chain in made.chains) == (MANY if broken else 0)
        return pack_tasks(made.chains, 2), made.looked

    assert kept_bytes(plan) < at_most


@pytest.mark.parametrize("each", [1, 20])
def test_a_rebuild_of_log_directories_keeps_few_bytes_for_a_segment(each: int) -> None:
    """Also where every one is a partition of its own."""

    def log(partition: int) -> PartitionLog:
        folder = f"/var/lib/kafka/data/orders-{partition}"
        return PartitionLog(
            topic="orders",
            partition=partition,
            topic_id=None,
            directory=folder,
            segments=tuple(
                SegmentFiles(
                    base_offset=number * OFFSETS,
                    next_base_offset=(number + 1) * OFFSETS,
                    log_path=f"{folder}/{number * OFFSETS:020}.log",
                    size_bytes=1 << 16,
                    offset_index_path=f"{folder}/{number * OFFSETS:020}.index",
                    time_index_path=f"{folder}/{number * OFFSETS:020}.timeindex",
                )
                for number in range(each)
            ),
            leader_epochs=None,
            log_start_offset=0,
            high_watermark=0,
        )

    def plan() -> object:
        chains = plan_log_chains(
            map(log, range(MANY // each)),
            "/mnt/indexes",
            index_interval_bytes=4096,
            chain_bytes=lambda _: 1 << 28,
        )
        tasks = pack_tasks(pack_chains(chains, 2), 2)
        assert sum(task.size_bytes for task in tasks) == MANY << 16
        return tasks

    assert kept_bytes(plan) < 110
