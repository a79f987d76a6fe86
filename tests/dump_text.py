"""Reads what Kafka's DumpLogSegments prints about a ``.log``: the truth of many tests."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["DumpedBatch", "DumpedRecord", "parse_log_dump"]

_FIELD = re.compile(r"(\w+): (.*?)(?= \w+: |$)")


@dataclass(frozen=True, slots=True)
class DumpedRecord:
    """One ``| offset: ...`` line; sizes are -1 for null, text as the tool prints it."""

    offset: int
    timestamp_ms: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: str
    is_marker: bool
    line: str


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """One ``baseOffset: ...`` line and its records."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    position: int
    max_timestamp_ms: int
    is_log_append_time: bool
    delete_horizon_ms: int | None
    size_bytes: int
    magic: int
    codec: str
    records: list[DumpedRecord] = field(default_factory=list)


def parse_log_dump(text: str) -> list[DumpedBatch]:
    """The batches of one dumped ``.log``, in order; lines about neither are passed over."""
    batches: list[DumpedBatch] = []
    for line in text.splitlines():
        if line.startswith("baseOffset: "):
            batches.append(_batch(line))
        elif line.startswith("| offset: "):
            batches[-1].records.append(_record(line))
    return batches


def _batch(line: str) -> DumpedBatch:
    fields = dict(_FIELD.findall(line))
    append_time = "LogAppendTime" in fields
    horizon = re.search(r"OptionalLong\[(\d+)\]", line)
    return DumpedBatch(
        base_offset=int(fields["baseOffset"]),
        last_offset=int(fields["lastOffset"]),
        count=int(fields["count"]),
        base_sequence=int(fields["baseSequence"]),
        producer_id=int(fields["producerId"]),
        producer_epoch=int(fields["producerEpoch"]),
        leader_epoch=int(fields["partitionLeaderEpoch"]),
        is_transactional=fields["isTransactional"] == "true",
        is_control=fields["isControl"] == "true",
        position=int(fields["position"]),
        max_timestamp_ms=int(fields["LogAppendTime" if append_time else "CreateTime"]),
        is_log_append_time=append_time,
        delete_horizon_ms=int(horizon[1]) if horizon else None,
        size_bytes=int(fields["size"]),
        magic=int(fields["magic"]),
        codec=fields["compresscodec"],
    )


def _record(line: str) -> DumpedRecord:
    # The record's own text comes last and may hold anything: only the head is fields.
    head = re.match(
        r"\| offset: (-?\d+) (?:CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) "
        r"valueSize: (-?\d+) sequence: (-?\d+) headerKeys: \[",
        line,
    )
    assert head is not None, line
    numbers = [int(part) for part in head.groups()]
    return DumpedRecord(
        offset=numbers[0],
        timestamp_ms=numbers[1],
        key_size=numbers[2],
        value_size=numbers[3],
        sequence=numbers[4],
        header_keys=line[head.end() :],
        is_marker="endTxnMarker: " in line[head.end() :],
        line=line,
    )
