"""The epilogue: store, metadata, local logs, index files and ledger beside each other.

Answers what is wrong, in words; nothing when all is well. Reads the raw bytes of both tiers, which
the ledger knows by their hashes, and what the real readers make of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tests.oracle import batches as oracle
from tests.reliability.host import OwnedLog
from tests.reliability.ledger import PartitionTruth, PlannedBatch, Row, Truth, row_digest
from tests.reliability.walk import walk
from tests.reliability.world import World
from tierlog.columns import RecordColumns
from tierlog.errors import OutOfRangeError, TierlogError
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import LogReader
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.layout import CLUSTER_KEY, indexes_key, log_key, partition_prefix

__all__ = ["differences", "violations"]

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def differences(world: World) -> list[str]:
    """Everything that is not as the ledger allows; `world` is at rest."""
    truth = Truth.read(world.ledger_path)
    problems = [f"failed: {one}" for one in world.failures.told]
    problems += [*_dangling(world), *_orphans(world), *_damaged(world), *_leftovers(world)]
    for name, log in world.host.logs.items():
        known = truth.partitions[name]
        gone = log.deletion_begun and known.deletion_asked
        found = _not_gone(world, log) if gone else _log_differences(world, log, known, truth)
        problems += [f"{name}: {one}" for one in found]
    return problems


def violations(world: World) -> list[str]:
    """What must not be so at any moment, also right after a crash and before anything was mended:
    a finished segment without whole objects, a log start out of bounds, an offset at or above it
    that neither tier has."""
    truth = Truth.read(world.ledger_path)
    problems = [*_damaged(world)]
    for name, log in world.host.logs.items():
        known = truth.partitions[name]
        # Asked for is not begun: until the host has it on disk, the log is whole.
        if not (log.deletion_begun and known.deletion_asked):
            found = [*_wrong_log_start(log, known, truth.now_ms), *_lost(world, log, known)]
            problems += [f"{name}: {one}" for one in found]
    return problems


# -- the bucket against the metadata


def _segments(world: World) -> list[RemoteLogSegmentMetadata]:
    return [
        segment
        for partition in world.metadata.partitions()
        for segment in world.metadata.list(partition)
    ]


def _dangling(world: World) -> Iterator[str]:
    for segment in _segments(world):
        if segment.state is not _FINISHED:
            yield f"dangling {segment.state.name}: {segment.segment_id}"


def _orphans(world: World) -> Iterator[str]:
    stored = {info.key for info in world.store.list()} - {CLUSTER_KEY}
    known = {key(segment) for segment in _segments(world) for key in (log_key, indexes_key)}
    for key in sorted(stored - known):
        yield f"orphan object {key}"
    for key in sorted(known - stored):
        yield f"lost object {key}"


def _damaged(world: World) -> Iterator[str]:
    for segment in _segments(world):
        if segment.state is _FINISHED and segment.topic_id_partition not in world.doomed():
            for problem in world.storage.verify(segment, deep=True):
                yield f"damaged object: {problem}"


def _leftovers(world: World) -> Iterator[str]:
    for folder in (world.store_dir, world.index_dir, world.host.root):
        for path in sorted(folder.rglob("*")):
            if path.name.endswith((".tmp", ".part", ".new", "-delete")):
                yield f"left over: {path.relative_to(world.root)}"


def _not_gone(world: World, log: OwnedLog) -> Iterator[str]:
    """What is left of a topic that was deleted."""
    if log.alive:
        yield "its local log is still there"
    if world.metadata.list(log.partition):
        yield "its metadata is still there"
    if world.metadata.partition_delete_state(log.partition) is not None:
        yield "its deletion never ended"
    for info in world.store.list(partition_prefix(log.partition)):
        yield f"its object is still there: {info.key}"
    for path in world.index_files(log.partition):
        yield f"its index file is still there: {path}"


# -- one log against the ledger


def _log_differences(
    world: World, log: OwnedLog, known: PartitionTruth, truth: Truth
) -> Iterator[str]:
    yield from _wrong_log_start(log, known, truth.now_ms)
    yield from _lost(world, log, known)
    yield from _read_back(world, log, known)
    yield from _fetch_back(world, log, known)
    yield from _not_tidy(world, log)
    served = _Tier(known, _remote_batches(world, log)).sha256
    yield from world.index_differences(log.partition, served, log.log_start_offset)


def _wrong_log_start(log: OwnedLog, known: PartitionTruth, now_ms: int) -> Iterator[str]:
    start, furthest = log.log_start_offset, known.furthest_log_start(now_ms)
    if start < known.log_start_offset:
        yield f"log start went back from {known.log_start_offset} to {start}"
    if start > furthest:
        yield f"log start {start} is beyond {furthest}, which is all that retention allows"


def _lost(world: World, log: OwnedLog, known: PartitionTruth) -> Iterator[str]:
    """Durable batches that neither tier has, and bytes that nobody wrote."""
    remote = _Tier(known, _remote_batches(world, log))
    local = _Tier(known, _local_batches(log))
    yield from (f"remote: {one}" for one in remote.wrong)
    yield from (f"local: {one}" for one in local.wrong)
    for batch in known.required(log.log_start_offset):
        if batch.sha256 not in (remote.get(batch), local.get(batch)):
            yield f"lost: offsets {batch.first_offset} to {batch.last_offset}"


class _Tier:
    """The batches of one tier by their base offsets; `wrong` are those nobody planned."""

    def __init__(self, known: PartitionTruth, found: Iterator[tuple[int, str] | str]) -> None:
        self.sha256: dict[int, str] = {}
        self.wrong: list[str] = []
        for one in found:
            if isinstance(one, str):
                self.wrong.append(one)
            elif known.allows(*one):
                self.sha256[one[0]] = one[1]
            else:
                self.wrong.append(f"wrong bytes at offset {one[0]}")

    def get(self, batch: PlannedBatch) -> str | None:
        return self.sha256.get(batch.first_offset)


def _remote_batches(world: World, log: OwnedLog) -> Iterator[tuple[int, str] | str]:
    """(base offset, sha256) of every batch that the tier serves to this log's history."""
    for segment in world.metadata.list(log.partition):
        if segment.state is not _FINISHED:
            continue
        try:
            data = bytes(world.storage.fetch_log_segment(segment, 0))
        except TierlogError as error:
            yield str(error)
            continue
        found, reason, _ = oracle.scan(data)
        if reason != "end":
            yield f"{segment.segment_id}: {reason}"
        served = ranges_in_lineage(segment, log.epochs)
        for batch in found:
            inside = any(first <= batch.last_offset <= last for first, last in served)
            # A log that was just cut serves nothing beyond its end, wherever that may lie.
            end_offset = min(segment.served_end_offset, log.log_end_offset - 1)
            if inside and batch.last_offset <= end_offset:
                yield batch.base_offset, hashlib.sha256(batch.data).hexdigest()


def _local_batches(log: OwnedLog) -> Iterator[tuple[int, str] | str]:
    for path in sorted(log.folder.glob("*.log")):
        found, reason, _ = oracle.scan(path.read_bytes())
        if reason != "end":
            yield f"{path.name}: {reason}"
        for batch in found:
            yield batch.base_offset, hashlib.sha256(batch.data).hexdigest()


def _read_back(world: World, log: OwnedLog, known: PartitionTruth) -> Iterator[str]:
    """Through the readers that users have: the rows of every required batch, none of them wrong."""
    readers: dict[str, LogReader] = {
        "store": StoreReader(world.storage, world.metadata),
        "local": LocalReader(open_log_dir(world.host.logs_dir)),
    }
    wanted = {
        offset: digest
        for batch in known.planned.values()
        for offset, digest in enumerate(batch.rows, batch.first_offset)
    }
    seen: set[int] = set()
    for name, reader in readers.items():
        try:
            rows = _rows(reader, log)
        except OutOfRangeError:
            continue
        except TierlogError as error:
            yield f"{name} reader: {error}"
            continue
        wrong = sorted(offset for offset, digest in rows.items() if wanted.get(offset) != digest)
        if wrong and not known.superseded:
            yield f"{name} reader: wrong rows at offsets {wrong[:5]}"
        seen |= rows.keys() - set(wrong)
    for batch in known.required(log.log_start_offset):
        offsets = range(batch.first_offset, batch.first_offset + len(batch.rows))
        missing = [one for one in offsets if one >= log.log_start_offset and one not in seen]
        if missing:
            yield f"no reader has offsets {missing[:5]}"


def _fetch_back(world: World, log: OwnedLog, known: PartitionTruth) -> Iterator[str]:
    """As a consumer sees it: every required batch, in order, once, over the border of the tiers."""
    walked = _Tier(known, walk(world, log))
    yield from (f"fetched: {one}" for one in walked.wrong)
    if list(walked.sha256) != sorted(walked.sha256):
        yield "fetched: out of order"
    for batch in known.required(log.log_start_offset):
        if walked.get(batch) != batch.sha256:
            yield f"no fetch returns offsets {batch.first_offset} to {batch.last_offset}"


def _rows(reader: LogReader, log: OwnedLog) -> dict[int, str]:
    begin, _ = reader.bounds(log.topic, log.number)
    return {
        row[0]: row_digest(row)
        for piece in reader.read(log.topic, log.number, begin)
        for row in _rows_of(piece)
    }


def _rows_of(piece: RecordColumns) -> Iterator[Row]:
    offsets, timestamps = piece.offset.tolist(), piece.timestamp_ms.tolist()
    yield from zip(offsets, timestamps, piece.keys, piece.values, strict=True)


def _not_tidy(world: World, log: OwnedLog) -> Iterator[str]:
    """Faults that lose nothing and never heal: expired data, segments that are never copied."""
    finished = [one for one in world.metadata.list(log.partition) if one.state is _FINISHED]
    for segment in finished:
        if segment.end_offset < log.log_start_offset:
            yield f"expired and still there: {segment.segment_id}"
    reach = max((segment.served_end_offset for segment in finished), default=-1)
    stable = min(log.producers.last_stable_offset, log.high_watermark)
    rolled = [base for base in log.bases[1:] if base <= stable]
    if rolled and rolled[-1] - 1 > max(reach, log.log_start_offset - 1):
        yield f"never copied: offsets {max(reach + 1, log.log_start_offset)} to {rolled[-1] - 1}"
    if log.local_start_offset > max(reach + 1, log.log_start_offset):
        yield f"local log starts at {log.local_start_offset}, the tier ends at {reach}"
