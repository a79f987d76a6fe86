"""Unfinished copies and deletions in partitions that this node no longer leads.

The tasks of a leader resume the unfinished segments of its own partition. This module resumes or
removes the unfinished segments of deleted partitions and of partitions with another leader, so that
no object is left without an owner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tierlog.errors import FencedLeaderError, TierlogError
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.segment.claims import StoreClaims
from tierlog.tiering.copy import SegmentCopier
from tierlog.types import TopicIdPartition

__all__ = ["StraySettler"]


class StraySettler:
    """Finishes or removes these segments; failures are tried again in the next pass.

    With ``claims``, a whole segment of a partition that another broker has led is left to that
    broker, because only that broker knows whether the segment counts.
    """

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        copier: SegmentCopier,
        claims: StoreClaims | None = None,
    ) -> None:
        self._metadata = metadata
        self._copier = copier
        self._claims = claims
        self._settled: dict[TopicIdPartition, int] = {}

    def settle(self, busy: Collection[TopicIdPartition], warn: Callable[[str], None]) -> None:
        """Settle the segments of all partitions except ``busy``, on which other tasks work."""
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
            if segment.broker_id != self._copier.broker_id and not self._is_own_deletion(segment):
                # Brokers share this metadata, and that broker may be copying the segment now.
                continue
            try:
                became = self._settle_one(segment)
            except TierlogError as error:
                warn(f"{segment.segment_id}: left as it is: {error}")
                done = False
            else:
                warn(f"{segment.segment_id}: interrupted copy {became}")
        return done

    def _is_own_deletion(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether this broker began to delete the segment while it was the leader.

        ``claims`` are used only when the metadata is this broker's own, so that no other broker
        can have recorded this deletion.
        """
        return (
            self._claims is not None
            and segment.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        )

    def _settle_one(self, segment: RemoteLogSegmentMetadata) -> str:
        partition, claims = segment.segment_id.topic_id_partition, self._claims

        def refuse_if_led_by_others() -> None:
            if claims is not None and claims.was_led_by_others(partition):
                raise FencedLeaderError(f"{partition}: another broker has claimed it")

        try:
            finished = self._copier.resume(segment, fence=refuse_if_led_by_others)
        except FencedLeaderError:
            self._copier.forget(segment)
            return "left to the partition's leader"
        return "finished" if finished else "removed"
