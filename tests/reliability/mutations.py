"""Known bugs, put back: worlds whose parts do things in the wrong order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.reliability.episode import MakeWorld
from tests.reliability.host import OwnedLog
from tests.reliability.seams import SeamedMetadata
from tests.reliability.world import World
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.storage import ObjectStorageManager

__all__ = ["MUTATIONS"]

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class _FinishedTooEarly(ObjectStorageManager):
    """COPY_SEGMENT_FINISHED before the objects are there."""

    world: World

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, *arguments: Any, **options: Any
    ) -> bytes | None:
        now_ms = self.world.clock.now_ms()
        self.world.metadata.update(metadata.update_to(_FINISHED, event_timestamp_ms=now_ms))
        return super().copy_log_segment_data(metadata, *arguments, **options)


class _Hooked(SeamedMetadata):
    """Calls ``before`` with every update that is about to be made."""

    before: Callable[[RemoteLogSegmentMetadataUpdate], None]

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        self.before(update)
        super().update(update, leader_epoch=leader_epoch)


def _finished_too_early(root: Path) -> World:
    def storage(store: Any) -> ObjectStorageManager:
        made.append(_FinishedTooEarly(store))
        return made[0]

    made: list[_FinishedTooEarly] = []
    world = World(root, make_storage=storage)
    made[0].world = world
    return world


def _hooked(before: Callable[[World, RemoteLogSegmentMetadataUpdate], None]) -> MakeWorld:
    def make(root: Path) -> World:
        def metadata(path: Path) -> SeamedMetadata:
            made.append(_Hooked(path))
            return made[0]

        made: list[_Hooked] = []
        world = World(root, make_metadata=metadata)
        made[0].before = lambda update: before(world, update)
        return world

    return make


def _objects_before_delete_started(world: World, update: RemoteLogSegmentMetadataUpdate) -> None:
    known = world.metadata.get(update.segment_id)
    if update.state is _DELETING and known is not None and known.state is _FINISHED:
        world.storage.delete_log_segment_data(known)


def _local_before_copy_finished(world: World, update: RemoteLogSegmentMetadataUpdate) -> None:
    """The local copy goes as soon as the objects are there, and an interrupted copy is removed."""
    known = world.metadata.get(update.segment_id)
    if update.state is _FINISHED and known is not None:
        partition = update.segment_id.topic_id_partition
        log = world.host.logs[f"{partition.topic}-{partition.partition}"]
        if log.local_start_offset <= known.end_offset < log.high_watermark:
            log.delete_local_segments(known.end_offset + 1)


def _log_start_after_deletion(root: Path) -> World:
    """The new log start offset is published when the objects are gone."""
    late: dict[str, int] = {}

    def before(world: World, update: RemoteLogSegmentMetadataUpdate) -> None:
        if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            for name in list(late):
                OwnedLog.advance_log_start_offset(world.host.logs[name], late.pop(name))

    world = _hooked(before)(root)
    for name, log in world.host.logs.items():
        setattr(log, "advance_log_start_offset", partial(late.__setitem__, name))  # noqa: B010
    return world


MUTATIONS: dict[str, MakeWorld] = {
    "COPY_FINISHED before the objects are durable": _finished_too_early,
    "objects deleted before DELETE_STARTED": _hooked(_objects_before_delete_started),
    "local delete before COPY_FINISHED": _hooked(_local_before_copy_finished),
    "log start offset after the deletion": _log_start_after_deletion,
}
