"""Reads a few bytes of an object, which is the first step of every fetch from the tier."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog import _core
from tierlog.remote.urls import open_store

from .corpus import SEED
from .frame import Answer, Bench, Benchmark, Case, Sides, run_side

if TYPE_CHECKING:
    from typing_extensions import Buffer

SHAPE = "none-100-16k"
READS = 2_000
SIZE_BYTES = 4 << 10


def items(bench: Bench) -> Sequence[Case]:
    return [ranged_read(bench)]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def ranged_read(bench: Bench) -> Case:
    """Read at seeded positions of one object. The faster peer already has its file open."""

    def prepare(stack: ExitStack) -> Sides:
        path = bench.corpora.path(SHAPE).absolute()
        store = open_store(path.parent.as_uri())
        rng = random.Random(SEED)
        last = path.stat().st_size - SIZE_BYTES
        positions = [rng.randrange(last + 1) for _ in range(READS)]
        descriptor = os.open(path, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        names, sizes = repeat(path.name), repeat(SIZE_BYTES)
        return Sides(
            amount=READS / 1e6,
            ours=_reads(lambda: map(store.get_range, names, positions, sizes)),
            peers={
                "pread": _reads(lambda: map(os.pread, repeat(descriptor), sizes, positions)),
                "open + pread + close": _reads(
                    lambda: map(_open_and_read, repeat(path), positions)
                ),
            },
        )

    return Case(
        operation="ranged read, file:// store",
        shape="4 KiB",
        unit="M reads",
        peers={"pread": 0.5, "open + pread + close": None},
        prepare=prepare,
    )


def _reads(pieces: Callable[[], Iterator[Buffer]]) -> Callable[[], Callable[[], Answer]]:
    """Return a run that reads every range and drops it. The data is checked after the
    measurement."""

    def run() -> Callable[[], Answer]:
        deque(pieces(), maxlen=0)
        return lambda: {"crc32c": [_core.crc32c(piece) for piece in pieces()]}

    return run


def _open_and_read(path: Path, start_position: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, SIZE_BYTES, start_position)
    finally:
        os.close(descriptor)
