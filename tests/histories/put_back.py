"""Defects of readers that a history must notice: each replaces a part of the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tierlog.reader.local_reader import LocalReader

__all__ = ["BUGS", "put_back"]

_local_read = LocalReader.read


def _no_transactions(_: object) -> tuple[object, ...]:
    return ()


def _whole_segment(segment: Any, _: object) -> list[tuple[int, int]]:
    return [(segment.start_offset, segment.end_offset)]


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


# What each name replaces.
BUGS: dict[str, tuple[tuple[str, Callable[..., Any]], ...]] = {
    "records of aborted transactions are read": (
        ("tierlog.reader.aborted._collect", _no_transactions),
    ),
    "records of lost epochs are read": (
        ("tierlog.reader.places.ranges_in_lineage", _whole_segment),
        ("tierlog.reader.store_reader.ranges_in_lineage", _whole_segment),
    ),
    "the directory begins one offset too late": (
        ("tierlog.reader.local_reader.LocalReader.read", _from_the_next_offset),
    ),
    "the last records are left out": (
        ("tierlog.reader.local_reader.LocalReader.read", _without_the_last_offset),
    ),
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Read with the defect."""
    with ExitStack() as patches:
        for target, replacement in BUGS[name]:
            patches.enter_context(patch(target, replacement))
        yield
