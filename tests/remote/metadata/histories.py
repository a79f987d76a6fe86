"""Histories of segments in a metadata file."""

from __future__ import annotations

from collections.abc import Callable

from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.testing.events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    cut,
    delete_partition,
    move,
)
from tierlog.testing.segments import (
    DELETING,
    FINISHED,
    GONE,
    partition_of,
    segment,
)

HISTORY_PARTITIONS = [partition_of("orders", number) for number in range(3)]


Event = Callable[[InMemoryRemoteLogMetadataManager], None]


def event(call: Callable[..., None], *arguments: object, **named: object) -> Event:
    return lambda manager: call(manager, *arguments, **named)


def history() -> list[Event]:
    """The same single events every time: leaders that follow each other copy, cut and delete."""
    one = InMemoryRemoteLogMetadataManager
    events: list[Event] = []
    for number in range(400):
        epoch, place = number // 7, HISTORY_PARTITIONS[number % 3]
        metadata = segment(str(number), number * 10, number * 10 + 99, partition=place)
        events += [
            event(one.claim_leadership, place, epoch),
            event(one.add, metadata, leader_epoch=epoch),
            event(move, metadata, FINISHED),
            event(one.advance_log_start_offset, place, number),
        ]
        if number % 4 == 1:
            events.append(event(cut, metadata, number * 10 + 50))
        if number % 4 == 3:
            events += [event(move, metadata, DELETING), event(move, metadata, GONE)]
        if number % 20 == 19:
            steps = (MARKED, DELETION_STARTED, DELETION_FINISHED)
            events += [event(delete_partition, state, partition=place) for state in steps]
    return events
