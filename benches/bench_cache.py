"""Measures cache hits with expire-after-access, puts that evict, and look-ups in cached indexes.

Keys are text of 22 characters, like segment ids. A probe equals a stored key but is another object,
like the key of a request. The probes are in memory in the order of their use. The order is
pseudo-random, and the same for every side. All entries weigh 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierlog import IndexCache, encode_remote_log_index
from tierlog._hot import CachedIndex

from .frame import Answer, Bench, Benchmark, Case, Goals, Limit, Run, Sides, Timed, run_side
from .hot import hot_loops
from .peers import caches as peers

MILLION = 1e6
SMALL, LARGE = 1_000, 100_000
INDEXES, INDEX_ROWS = 64, 4_096
RUN_BYTES = 256 << 10
MIXED_OPERATIONS = 10_000_000

PYTHON: Goals = {
    "dict": None,
    "cachebox TTL": round(1 / 0.85, 2),
    "cachebox LRU": None,
    "cachetools TTL": 15.0,
}
# With this many entries, memory access takes most of the time, so there is no goal against
# cachetools.
PYTHON_LARGE: Goals = {**PYTHON, "cachetools TTL": None}
NATIVE: Goals = {"Caffeine": 2.0, "moka": 1.0, "quick_cache": 1.0}
PUT: Goals = {
    "cachebox TTL": round(1 / 0.6, 2),
    "cachebox LRU": None,
    "cachetools TTL": None,
    "Caffeine": None,
    "moka": None,
    "quick_cache": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of entries, the number of probes and the number of rounds over the probes."""

    entries: int
    probes: int
    repeats: int

    @property
    def operations(self) -> int:
        return self.probes * self.repeats

    def peer(
        self, stack: ExitStack, bench: Bench, name: str, operation: str, threads: int = 1
    ) -> Callable[[], Timed]:
        """Return a run of a peer in another process, with the numbers of this plan."""
        numbers = {"entries": self.entries, "probes": self.probes, "repeats": self.repeats}
        if name == "Caffeine":
            return peers.caffeine(stack, bench, operation, **numbers, threads=threads)
        return peers.native(stack, bench, name, operation, **numbers, threads=threads)


def items(bench: Bench) -> Sequence[Case | Limit]:
    small, large = gets_of(bench, SMALL), gets_of(bench, LARGE)
    return [
        python_get(small, PYTHON),
        python_get(large, PYTHON_LARGE),
        lookup_position(bench, 1),
        lookup_position(bench, INDEXES),
        python_put(bench),
        nogil_get(bench, small),
        nogil_get(bench, large),
        two_threads(bench, small),
        two_threads(bench, large),
        bound(bench),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def gets_of(bench: Bench, entries: int) -> Plan:
    """Return a plan. The processor cannot predict the order of its probes, and the probes take
    little of the processor's cache."""
    if bench.corpora.quick:
        return Plan(entries=entries // 10, probes=1_000, repeats=1)
    probes = max(4_000, 2 * entries)
    # With this many repeats, a round mostly finds its own data in the processor's caches, not data
    # of another side.
    return Plan(entries=entries, probes=probes, repeats=max(3, 200_000 // probes))


def key_of(number: int) -> str:
    return f"segment-{number:014}"


def at_random(plan: Plan) -> list[int]:
    """Return numbers of entries in a pseudo-random order: xorshift of 64 bits."""
    numbers, state = [], 88_172_645_463_325_252
    for _ in range(plan.probes):
        state ^= state << 13 & (1 << 64) - 1
        state ^= state >> 7
        state ^= state << 17 & (1 << 64) - 1
        numbers.append((state >> 11) % plan.entries)
    return numbers


def filled(entries: int) -> IndexCache:
    cache = IndexCache(max_bytes=entries)
    for number in range(entries):
        cache.put(key_of(number), number, 1)
    return cache


def looked_up(
    get: Callable[[str], Any], probes: Sequence[str], repeats: int
) -> Callable[[], Answer]:
    for _ in range(repeats):
        for key in probes:
            get(key)
    return lambda: {"sum": repeats * sum(map(get, probes))}


def python_get(plan: Plan, goals: Goals) -> Case:
    def prepare(_stack: ExitStack) -> Sides:
        probes = [key_of(number) for number in at_random(plan)]
        cache = filled(plan.entries)
        others = peers.python_caches(plan.entries)
        for other in others.values():
            other.update((key_of(number), number) for number in range(plan.entries))

        def run_of(get: Callable[[str], Any]) -> Callable[[], object]:
            return lambda: looked_up(get, probes, plan.repeats)

        return Sides(
            amount=plan.operations / MILLION,
            ours=run_of(cache.get),
            peers={name: run_of(other.get) for name, other in others.items()},
        )

    return Case(
        operation="cache get",
        shape=f"{plan.entries:,} entries",
        unit="M",
        peers=goals,
        prepare=prepare,
    )


def index_of(seed: int, rows: int) -> CachedIndex:
    """Return a remoteLogIndex of a segment of 1 GiB, with an entry for each 256 KiB."""
    last = np.arange(1, rows + 1, dtype=np.int64) * (2_500 + seed)
    times = 1_760_000_000_000 + np.arange(rows, dtype=np.int64)
    sizes = np.full(rows, RUN_BYTES, dtype=np.int64)
    first = np.concatenate(([0], last[:-1])) + 1
    data = encode_remote_log_index(first, last, times, times, sizes, [b"x:%09d" % seed] * rows)
    return CachedIndex(data)


def lookup_position(bench: Bench, count: int) -> Case:
    """Compare a call that does a hit and a binary search with a hit alone. A single index fits into
    the first level of the processor's cache; the columns of many indexes take 4 MiB."""
    plan = gets_of(bench, SMALL)
    rows = INDEX_ROWS // 100 if bench.corpora.quick else INDEX_ROWS

    def prepare(_stack: ExitStack) -> Sides:
        numbers = at_random(plan)
        probes = [key_of(number) for number in numbers]
        targets = [number * 7_654_321 % (2_500 * rows) for number in range(plan.probes)]
        indexes = [index_of(seed, rows) for seed in range(count)]
        cache = IndexCache(max_bytes=plan.entries)
        for number in range(plan.entries):
            cache.put(key_of(number), indexes[number % count], 1)

        def hit() -> Callable[[], Answer]:
            get = cache.get
            for _ in range(plan.repeats):
                for key, _target in zip(probes, targets, strict=True):
                    get(key)
            found = zip(map(get, probes), targets, strict=True)
            return lambda: {"sum": sum(index.lookup_position(target) for index, target in found)}

        def position() -> Callable[[], Answer]:
            find = cache.lookup_position
            for _ in range(plan.repeats):
                for key, target in zip(probes, targets, strict=True):
                    find(key, target)
            found = map(find, probes, targets)
            return lambda: {"sum": sum(place for place in found if place is not None)}

        return Sides(amount=plan.operations / MILLION, ours=position, peers={"hit alone": hit})

    return Case(
        operation="cached offset look-up",
        shape=f"{count} index{'es' if count > 1 else ''} of {INDEX_ROWS:,} rows",
        unit="M",
        peers={"hit alone": 0.5},
        prepare=prepare,
    )


def python_put(bench: Bench) -> Case:
    """Put twice as many keys as fit, one after the other. Every put evicts the oldest entry."""
    entries = 100 if bench.corpora.quick else SMALL
    plan = Plan(entries=entries, probes=2 * entries, repeats=1 if bench.corpora.quick else 50)

    def prepare(stack: ExitStack) -> Sides:
        probes = [key_of(plan.entries + number) for number in range(plan.probes)]
        cache = filled(plan.entries)

        def ours() -> Answer:
            put = cache.put
            for _ in range(plan.repeats):
                for key in probes:
                    put(key, 0, 1)
            return {"entries": len(cache)}

        def run_of(other: peers.PythonCache) -> Callable[[], Answer]:
            def run() -> Answer:
                for _ in range(plan.repeats):
                    for key in probes:
                        other[key] = 0
                return {"entries": len(other)}

            return run

        others: dict[str, Run] = {
            name: run_of(other)
            for name, other in peers.python_caches(plan.entries).items()
            if name in PUT
        }
        for name in ("Caffeine", "moka", "quick_cache"):
            others[name] = plan.peer(stack, bench, name, "put")
        return Sides(amount=plan.operations / MILLION, ours=ours, peers=others)

    return Case(
        operation="cache put + evict",
        shape=f"{SMALL:,} entries",
        unit="M",
        peers=PUT,
        prepare=prepare,
    )


def finder_of(bench: Bench, plan: Plan) -> Callable[[int], int]:
    """Return a function that looks up every probe `repeats` times, and returns the number of hits.
    Every value is an index of one row, so its search costs almost nothing."""
    cache, index = IndexCache(max_bytes=plan.entries), index_of(0, 1)
    for number in range(plan.entries):
        cache.put(key_of(number), index, 1)
    probes = [key_of(number) for number in at_random(plan)]
    finder: Callable[[int], int] = hot_loops(bench.corpora.directory).Finder(cache, probes)
    return finder


def nogil_get(bench: Bench, plan: Plan) -> Case:
    """Compare hits without the interpreter lock. tierlog reads a coarse clock for every hit. A peer
    reads its own clock, if it has one."""

    def prepare(stack: ExitStack) -> Sides:
        find = finder_of(bench, plan)
        return Sides(
            amount=plan.operations / MILLION,
            ours=lambda: {"hits": find(plan.repeats)},
            peers={name: plan.peer(stack, bench, name, "get") for name in NATIVE},
        )

    return Case(
        operation="cache get, nogil",
        shape=f"{plan.entries:,} entries",
        unit="M",
        peers=NATIVE,
        prepare=prepare,
        # The Rust peers report only elapsed time.
        one_thread=False,
    )


def two_threads(bench: Bench, plan: Plan) -> Case:
    """Compare hits by two threads over the same probes with as many hits by one thread."""

    def prepare(stack: ExitStack) -> Sides:
        find = finder_of(bench, plan)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        others = {
            f"{name}, two threads": plan.peer(stack, bench, name, "get", threads=2)
            for name in NATIVE
        }
        return Sides(
            amount=2 * plan.operations / MILLION,
            ours=lambda: {"hits": sum(pool.map(find, [plan.repeats] * 2))},
            peers={"one thread": lambda: {"hits": find(2 * plan.repeats)}, **others},
        )

    goals: Goals = {"one thread": 1.6, **{f"{name}, two threads": None for name in NATIVE}}
    return Case(
        operation="cache get, nogil, two threads",
        shape=f"{plan.entries:,} entries",
        unit="M",
        peers=goals,
        prepare=prepare,
        one_thread=False,
    )


def bound(bench: Bench) -> Limit:
    """Run two threads that get, put, load, remove and resize. Check the weight of the cache after
    every operation: it may exceed the bound by at most the heaviest entry."""
    operations = MIXED_OPERATIONS // 1_000 if bench.corpora.quick else MIXED_OPERATIONS
    return Limit(
        operation="cache, bytes above the bound",
        shape=f"{MIXED_OPERATIONS:,} mixed operations",
        unit="bytes",
        at_most=peers.MIXED_HEAVIEST_BYTES,
        measure=lambda: peers.bytes_above(bench, operations),
    )
