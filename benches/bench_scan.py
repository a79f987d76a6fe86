"""Scans the batches of a segment with and without checksums, in memory and in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tierlog import BatchTable, scan_segment

from .frame import Answer, Bench, Benchmark, Case, Goals, Run, Sides, run_side
from .peers.kafka import kafka_peer
from .peers.python import aiokafka_batches, bare_crc_pass, struct_loop

GB = 1e9
# A compressed batch is smaller, so a GB has more headers.
COMPRESSED = 0.7


def items(bench: Bench) -> Sequence[Case]:
    in_memory = {"aiokafka": 10.0, "struct + crc32c": 2.0, "Kafka MemoryRecords": 0.9}
    compressed = {name: round(goal * COMPRESSED, 2) for name, goal in in_memory.items()}
    large = {"aiokafka": None, "struct + crc32c": None, "Kafka MemoryRecords": 0.9}
    file = {"bare CRC pass": 0.85, "Kafka FileRecords": 3.0, "aiokafka": 10.0}
    return [
        scan_memory(bench, "none-100-16k", in_memory),
        scan_memory(bench, "lz4-100-16k", compressed),
        scan_memory(bench, "none-1024-1m", large),
        scan_file(bench, "none-100-16k", file),
        scan_file(bench, "none-1024-1m", file | {"Kafka FileRecords": 2.0}),
        two_threads(bench, "none-100-16k"),
        headers_memory(bench, "none-100-16k"),
        headers_file(bench, "none-100-16k", own_file=False, goals={"Kafka FileRecords": None}),
        headers_file(bench, "none-100-16k", own_file=True, goals={"Kafka FileRecords": 50.0}),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def seen(table: BatchTable) -> Answer:
    """Return the totals that every scan of a clean segment must find."""
    return {
        "batches": len(table),
        "bytes": table.stop_position,
        "last_offset": int(table.last_offset[-1]),
    }


def scan_memory(bench: Bench, shape: str, goals: Goals) -> Case:
    def peers(data: bytes, stack: ExitStack) -> Mapping[str, Run]:
        return {
            "aiokafka": lambda: aiokafka_batches(data, verify_crc=True),
            "struct + crc32c": lambda: struct_loop(data),
            "Kafka MemoryRecords": kafka_peer(
                stack, bench, "scan-memory", bench.corpora.path(shape)
            ),
        }

    return _memory_case(bench, "scan + CRC, memory", shape, goals, peers, verify_crc=True)


def headers_memory(bench: Bench, shape: str) -> Case:
    def peers(data: bytes, stack: ExitStack) -> Mapping[str, Run]:
        path = bench.corpora.path(shape)
        return {
            "aiokafka": lambda: aiokafka_batches(data, verify_crc=False),
            "Kafka MemoryRecords": kafka_peer(stack, bench, "headers-memory", path),
        }

    goals = {"aiokafka": 10.0, "Kafka MemoryRecords": 0.9}
    return _memory_case(bench, "header walk, memory", shape, goals, peers, verify_crc=False)


def _memory_case(
    bench: Bench,
    operation: str,
    shape: str,
    goals: Goals,
    peers: Callable[[bytes, ExitStack], Mapping[str, Run]],
    *,
    verify_crc: bool,
) -> Case:
    def prepare(stack: ExitStack) -> Sides:
        data = bench.corpora.data(shape)
        return Sides(
            amount=len(data) / GB,
            ours=lambda: scan_segment(data, verify_crc=verify_crc),
            answer=seen,
            peers=peers(data, stack),
        )

    return Case(operation=operation, shape=shape, unit="GB", peers=goals, prepare=prepare)


def scan_file(bench: Bench, shape: str, goals: Goals) -> Case:
    """Scan a file. aiokafka cannot read files, so it gets the whole content from ``read_bytes`` in
    every run."""

    def answer(table: BatchTable) -> Answer:
        path = bench.corpora.path(shape)
        return {**seen(table), "crc32c": scan_segment(path, hash_bytes=True).range_crc32c}

    def prepare(stack: ExitStack) -> Sides:
        path = bench.corpora.path(shape)
        return Sides(
            amount=path.stat().st_size / GB,
            ours=lambda: scan_segment(path),
            answer=answer,
            peers={
                "bare CRC pass": lambda: bare_crc_pass(path),
                "Kafka FileRecords": kafka_peer(stack, bench, "scan-file", path),
                "aiokafka": lambda: aiokafka_batches(path.read_bytes(), verify_crc=True),
            },
        )

    return Case(
        operation="scan + CRC, cached file", shape=shape, unit="GB", peers=goals, prepare=prepare
    )


def two_threads(bench: Bench, shape: str) -> Case:
    """Compare two scans in parallel with the same scans one after the other."""

    def prepare(stack: ExitStack) -> Sides:
        paths: list[Path] = [bench.corpora.path(shape)] * 2
        pool = stack.enter_context(ThreadPoolExecutor(2))
        return Sides(
            amount=sum(path.stat().st_size for path in paths) / GB,
            ours=lambda: list(pool.map(scan_segment, paths)),
            answer=lambda tables: {"batches": [len(table) for table in tables]},
            peers={
                "one thread": lambda: {
                    "batches": [len(table) for table in map(scan_segment, paths)]
                },
            },
        )

    return Case(
        operation="scan + CRC, cached file, two threads",
        shape=shape,
        unit="GB",
        peers={"one thread": 1.5},
        prepare=prepare,
        one_thread=False,
    )


def headers_file(bench: Bench, shape: str, goals: Goals, *, own_file: bool) -> Case:
    """Scan the headers of a file. A file is mapped only if no other process can truncate it. Other
    files need one system call per batch."""

    def prepare(stack: ExitStack) -> Sides:
        path = bench.corpora.path(shape)
        return Sides(
            amount=path.stat().st_size / GB,
            ours=lambda: scan_segment(path, verify_crc=False, own_file=own_file),
            answer=seen,
            peers={"Kafka FileRecords": kafka_peer(stack, bench, "headers-file", path)},
        )

    return Case(
        operation=f"header walk, cached file ({'own, mapped' if own_file else 'pread'})",
        shape=shape,
        unit="GB",
        peers=goals,
        prepare=prepare,
    )
