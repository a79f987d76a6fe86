"""Other caches. The entries of the Python caches expire some time after a write. The entries of the
native caches expire some time after the last access. Entries of quick_cache never expire."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import cachebox
import cachetools

from benches.frame import Bench, PeerMissingError, Timed

from .child import child_peer
from .java import CAFFEINE, java_peer

ROOT = Path(__file__).parents[2]
TTL_S = 900
WARMUP_S = 1.0
# The weight of the heaviest entry in rounds.rs.
MIXED_HEAVIEST_BYTES = 1_000

PythonCache = MutableMapping[str, int]


def python_caches(entries: int) -> dict[str, PythonCache]:
    """Return empty caches for this many entries. No cache can be faster than the dict, which has no
    bound."""
    return {
        "dict": {},
        "cachebox TTL": cachebox.TTLCache(entries, TTL_S),
        "cachebox LRU": cachebox.LRUCache(entries),
        "cachetools TTL": cachetools.TTLCache(entries, TTL_S),
    }


def caffeine(
    stack: ExitStack,
    bench: Bench,
    operation: str,
    *,
    entries: int,
    probes: int,
    repeats: int,
    threads: int = 1,
) -> Callable[[], Timed]:
    """Return a run of Caffeine; see CaffeineCache.java."""
    numbers = map(str, (threads, entries, probes, repeats))
    return java_peer(stack, bench, CAFFEINE, operation, *numbers)


def native(
    stack: ExitStack,
    bench: Bench,
    name: str,
    operation: str,
    *,
    entries: int,
    probes: int,
    repeats: int,
    threads: int = 1,
) -> Callable[[], Timed]:
    """Return a run of moka or quick_cache; see rust/core/benches/rounds.rs."""
    quick = bench.pace.warmup_s == 0
    numbers = map(str, (threads, entries, probes, repeats))
    words = [str(0.0 if quick else WARMUP_S), name, operation, *numbers]
    return child_peer(stack, lambda: [rounds_program(quick), *words])


@cache
def rounds_program(quick: bool) -> str:
    """Build the bench, and return its path. The build is optimised like the library, unless
    `quick`."""
    build = ["test" if quick else "bench", "--no-run", "--locked", "--quiet"]
    command = ["cargo", *build, "-p", "tierlog-core", "--bench", "rounds"]
    command.append("--message-format=json")
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise PeerMissingError("cargo not found on PATH: install a Rust toolchain") from None
    if done.returncode != 0:
        raise PeerMissingError(f"cargo failed: {done.stderr.strip()[-300:]}")
    messages = map(json.loads, done.stdout.splitlines())
    (program,) = (
        message["executable"]
        for message in messages
        if message.get("executable") and message["target"]["name"] == "rounds"
    )
    return str(program)


def bytes_above(bench: Bench, operations: int) -> float:
    """Return the largest number of bytes that tierlog's cache held above its bound, as two threads
    saw it."""
    with ExitStack() as stack:
        run = native(stack, bench, "tierlog", "mixed", entries=1_000, probes=operations, repeats=1)
        seen: float = run().result["bytes_above"]
    return seen
