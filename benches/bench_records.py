"""Decodes the records of a segment into columns, for every codec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

import numpy as np

from tierlog import RecordColumns, decode_records, scan_segment

from .frame import Answer, Bench, Benchmark, Case, Goals, Sides, run_side
from .peers.kafka import kafka_peer
from .peers.python import aiokafka_decode, aiokafka_records

KAFKA = "Kafka streamingIterator"
PIECE_BYTES = 4 << 20
# Goals against Kafka's iterator for records of 100 bytes. Most of the work is decompression.
COMPRESSED = {"lz4": 1.4, "zstd": 1.3, "snappy": 1.5, "gzip": 1.05}


def items(bench: Bench) -> Sequence[Case]:
    return [
        records(bench, "none-100-16k", {"aiokafka": 10.0, KAFKA: 3.0}),
        records(bench, "none-100-16k", {"aiokafka": None, KAFKA: 1.5}, verify_crc=True),
        records(bench, "none-1024-16k", {"aiokafka": 5.0, KAFKA: 1.5}),
        *(
            records(bench, f"{codec}-100-16k", {"aiokafka": None, KAFKA: goal})
            for codec, goal in COMPRESSED.items()
        ),
        records_by_piece(bench, "none-100-16k"),
        records_by_piece(bench, "lz4-100-16k"),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def records(bench: Bench, shape: str, goals: Goals, *, verify_crc: bool = False) -> Case:
    """Decode records to columns. Neither peer checks checksums. aiokafka makes an object for each
    record, but no field is read during the measurement. Kafka's iterator reads the offset, the
    timestamp and both sizes."""

    def prepare(stack: ExitStack) -> Sides:
        data = bench.corpora.data(shape)
        count = int(decode_records(data).batches.record_count.sum())

        def aiokafka() -> object:
            aiokafka_decode(data)
            return lambda: aiokafka_records(data)

        return Sides(
            amount=count / 1e6,
            ours=lambda: decode_records(data, verify_crc=verify_crc),
            answer=seen,
            peers={
                "aiokafka": aiokafka,
                KAFKA: kafka_peer(stack, bench, "records-memory", bench.corpora.path(shape)),
            },
        )

    return Case(
        operation=f"records to columns{' + CRC' if verify_crc else ''}",
        shape=shape,
        unit="M records",
        peers=goals,
        prepare=prepare,
    )


def records_by_piece(bench: Bench, shape: str) -> Case:
    """Decode a segment like a reader: a few MiB at a time, and drop the columns after use."""

    def prepare(stack: ExitStack) -> Sides:
        data = bench.corpora.data(shape)
        table = scan_segment(data, verify_crc=False)
        firsts = np.flatnonzero(np.diff(table.position // PIECE_BYTES, prepend=-1))
        ranges = [*pairwise([*table.position[firsts].tolist(), len(data)])]
        return Sides(
            amount=int(table.record_count.sum()) / 1e6,
            ours=lambda: sum(len(decode_records(data, *piece)) for piece in ranges),
            answer=lambda count: {"records": count},
            peers={"whole segment": lambda: {"records": len(decode_records(data))}},
        )

    return Case(
        operation="records to columns + CRC, 4 MiB pieces",
        shape=shape,
        unit="M records",
        peers={"whole segment": None},
        prepare=prepare,
    )


def seen(columns: RecordColumns) -> Answer:
    """Return the totals that every decoder must find."""
    payload_bytes = columns.keys.lengths.sum(dtype="int64") + columns.values.lengths.sum(
        dtype="int64"
    )
    return {
        "records": len(columns),
        "payload_bytes": int(payload_bytes),
        "offset_sum": int(columns.offset.sum()),
        "last_timestamp_ms": int(columns.timestamp_ms[-1]),
    }
