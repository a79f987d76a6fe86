"""Copies that an earlier run left half done in partitions that nobody here leads any more.

A leader's copy task settles those of its own partition. What belongs to a partition that is gone,
or that another broker leads by now, is settled here, so that no object is left without an owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tierlog.errors import TierlogError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentState
from tierlog.tiering.copy import SegmentCopier
from tierlog.types import TopicIdPartition

__all__ = ["StraySettler"]


class StraySettler:
    """Finishes or removes them; what fails is tried again the next time."""

    def __init__(self, metadata: RemoteLogMetadataManager, copier: SegmentCopier) -> None:
        self._metadata = metadata
        self._copier = copier
        self._settled: dict[TopicIdPartition, int] = {}

    def settle(self, busy: Collection[TopicIdPartition], warn: Callable[[str], None]) -> None:
        """All partitions but the ``busy`` ones, which somebody is at work on."""
        for partition in self._metadata.partitions():
            if partition in busy or self._metadata.partition_delete_state(partition) is not None:
                self._settled.pop(partition, None)
                continue
            known = self._settled.get(partition) == self._metadata.changes(partition)
            if not known and self._settle(partition, warn):
                self._settled[partition] = self._metadata.changes(partition)

    def _settle(self, partition: TopicIdPartition, warn: Callable[[str], None]) -> bool:
        done = True
        for segment in self._metadata.list(partition):
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                continue
            try:
                finished = self._copier.resume(segment)
            except TierlogError as error:
                warn(f"{segment.segment_id}: left as it is: {error}")
                done = False
            else:
                became = "finished" if finished else "removed"
                warn(f"{segment.segment_id}: interrupted copy {became}")
        return done
