"""The indexes of a segment made anew, as a broker does it after a crash."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tierlog import RebuiltIndexes, rebuild_indexes

from .frame import Answer, Bench, Benchmark, Case, Sides, run_side
from .peers.kafka import kafka_peer
from .peers.python import bare_crc_pass

GB = 1e9
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12


def items(bench: Bench) -> Sequence[Case]:
    return [rebuild(bench, "none-100-16k"), rebuild(bench, "none-1024-1m")]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def rebuild(bench: Bench, shape: str) -> Case:
    """Kafka also writes its index files, without waiting for the disk; ours returns the bytes."""

    def prepare(stack: ExitStack) -> Sides:
        path = bench.corpora.path(shape)
        folder = Path(stack.enter_context(TemporaryDirectory(dir=path.parent)))
        segment = folder / f"{0:020}.log"
        os.link(path, segment)
        return Sides(
            amount=path.stat().st_size / GB,
            ours=lambda: rebuild_indexes(path),
            answer=lambda rebuilt: {**entries(rebuilt), **bare_crc_pass(path)},
            peers={
                "Kafka LogSegment.recover": kafka_peer(stack, bench, "recover", segment),
                "bare CRC pass": lambda: bare_crc_pass(path),
            },
        )

    return Case(
        operation="rebuild of all indexes, cached file",
        shape=shape,
        unit="GB",
        peers={"Kafka LogSegment.recover": None, "bare CRC pass": None},
        prepare=prepare,
    )


def entries(rebuilt: RebuiltIndexes) -> Answer:
    """What Kafka's recovery tells of what it wrote."""
    return {
        "bytes": rebuilt.table.stop_position,
        "offset_index_entries": len(rebuilt.offset_index) // OFFSET_ENTRY_BYTES,
        "time_index_entries": len(rebuilt.time_index) // TIME_ENTRY_BYTES,
    }
