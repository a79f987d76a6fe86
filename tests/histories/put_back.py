"""Defects of readers that a history must notice: each replaces a part of the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tierlog.reader.local_reader import LocalReader
from tierlog.reader.places import Place, SegmentPlaces
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.segment.layout import log_key
from tierlog.types import TopicIdPartition

__all__ = ["BUGS", "put_back"]

_local_read = LocalReader.read
_store_read = StoreReader.read
_decode = StoreReader._decode
_read_records = StoreReader._read_records


def _no_transactions(_: object) -> tuple[object, ...]:
    return ()


def _of_the_first_epoch(
    self: SegmentPlaces, partition: TopicIdPartition, _: object, offset: int
) -> Place | None:
    """Return the oldest segment that holds the offset, in the log's history or not."""
    segments = self._metadata.list(partition)
    for one in sorted(segments, key=lambda one: one.leader_epochs[-1][0]):
        if one.start_offset <= offset <= one.end_offset:
            return Place(one, one.start_offset, one.end_offset, log_key(one))
    return None


def _from_the_next_offset(
    self: LocalReader, topic: str, partition: int, start_offset: int, *args: Any, **named: Any
) -> Iterator[Any]:
    return _local_read(self, topic, partition, start_offset + 1, *args, **named)


def _without_the_last_offset(
    self: LocalReader, topic: str, partition: int, start_offset: int, *args: Any, **named: Any
) -> Iterator[Any]:
    last = None
    for records in _local_read(self, topic, partition, start_offset, *args, **named):
        if last is not None:
            yield last
        last = records


def _nothing(*_: object, **__: object) -> None:
    return None


def _without_the_last_of_a_segment(
    self: StoreReader, read: Any, *args: Any, **named: Any
) -> Iterator[Any]:
    for records in _decode(self, read, *args, **named):
        last = int(records.batches.base_offset[-1])
        if int(records.batches.last_offset[-1]) < read.segment.end_offset:
            last = read.segment.end_offset
        yield records.rows(0, int((records.offset < last).sum()))


def _up_to_one_before(
    self: StoreReader,
    topic: str,
    partition: int,
    start_offset: int,
    end_offset: int | None = None,
    **named: Any,
) -> Iterator[Any]:
    end = None if end_offset is None else end_offset - 1
    return _store_read(self, topic, partition, start_offset, end, **named)


def _without_the_last_segment(
    self: StoreReader,
    partition: Any,
    lineage: Any,
    indexes: Any,
    start_offset: int,
    end_offset: int | None,
    *args: Any,
    **named: Any,
) -> Iterator[Any]:
    last = self._newest(partition).start_offset
    end = last if end_offset is None else min(end_offset, last)
    return _read_records(self, partition, lineage, indexes, start_offset, end, *args, **named)


def _start_of_the_last_segment(self: StoreReader, partition: Any, _: object) -> int:
    return self._newest(partition).start_offset


# What each name replaces.
BUGS: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "records of aborted transactions are read": (
        ("tierlog.reader.aborted._collect", _no_transactions),
    ),
    "records of lost epochs are read": (
        ("tierlog.reader.places.SegmentPlaces._find_in_metadata", _of_the_first_epoch),
    ),
    "the directory begins one offset too late": (
        ("tierlog.reader.local_reader.LocalReader.read", _from_the_next_offset),
    ),
    "the last records are left out": (
        ("tierlog.reader.local_reader.LocalReader.read", _without_the_last_offset),
    ),
    "the last batch of a segment is left out": (
        ("tierlog.reader.store_reader.StoreReader._decode", _without_the_last_of_a_segment),
    ),
    "gaps are passed over": (
        ("tierlog.reader.places.SegmentPlaces.find_gap", _nothing),
        ("tierlog.reader.aborted.TransactionReader._check_gaps", _nothing),
    ),
    "the store ends one offset before the directory": (
        ("tierlog.reader.store_reader.StoreReader.read", _up_to_one_before),
    ),
    "the last segment of the store is left out": (
        ("tierlog.reader.store_reader.StoreReader._read_records", _without_the_last_segment),
    ),
    "committed reads end before the last segment": (
        (
            "tierlog.reader.store_reader.StoreReader._first_open_offset",
            _start_of_the_last_segment,
        ),
    ),
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Read with the defect."""
    with ExitStack() as patches:
        for target, replacement in BUGS[name]:
            patches.enter_context(patch(target, replacement))
        yield
