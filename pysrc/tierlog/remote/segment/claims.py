"""Claims tell sidecars that share only a store which broker leads a partition.

    claims/<topicId>-<partition>/<leader epoch, 10 digits>-<broker id>      UTF-8 JSON, for people

A leader writes its claim before its first copy. Before and after it commits a segment, it lists the
claims of the partition: a claim of a later epoch by another broker deposes it. The order of writes
decides, not a clock: a claim that was written before a list began is in that list. A deposed leader
does not remove a segment that the later leader may already have found. The store's listing must
therefore be consistent with earlier writes, as on S3, GCS, Azure, HDFS and local file systems.

A broker never deposes itself: it ignores its own claims under other epochs, which it may have
written before its state directory was lost. Claims of two brokers under the same epoch are not
ordered; Kafka gives an epoch to one broker only.
"""

from __future__ import annotations

import json
import re

from tierlog.clock import Clock
from tierlog.errors import FencedLeaderError, RemoteStorageError
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.layout import CLAIMS_PREFIX, partition_prefix
from tierlog.remote.store.object_store import ObjectStore
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["StoreClaims", "claims_folder"]

_NAME = re.compile(r"(?P<epoch>[0-9]{10})-(?P<broker>-1|[0-9]{1,10})", re.ASCII)
_VERSION = 1


def claims_folder(partition: TopicIdPartition) -> str:
    """Return the folder of all claims of `partition`, with its trailing slash."""
    return f"{CLAIMS_PREFIX}{partition.topic_id}-{partition.partition}/"


class StoreClaims:
    """The claims of one broker in one store. Thread-safe."""

    def __init__(self, store: ObjectStore, *, broker_id: int, clock: Clock) -> None:
        self._store = store
        self._broker_id = broker_id
        self._clock = clock

    def claim(self, partition: TopicIdPartition, leader_epoch: int) -> bool:
        """Depose all earlier leaders; return whether another broker led before. May be repeated.

        Raises FencedLeaderError when a later leader has a claim."""
        self.require(partition, leader_epoch)
        claim = {
            "format_version": _VERSION,
            "topic": partition.topic,
            "leader_epoch": leader_epoch,
            "broker_id": self._broker_id,
            "claimed_ms": self._clock.now_ms(),
        }
        key = f"{claims_folder(partition)}{leader_epoch:010d}-{self._broker_id}"
        self._store.put_if_absent(key, json.dumps(claim, sort_keys=True).encode("utf-8"))
        return self.require(partition, leader_epoch)

    def require(self, partition: TopicIdPartition, leader_epoch: int) -> bool:
        """Raise FencedLeaderError when another broker has a claim of a later epoch; return
        whether one has a claim of an earlier epoch."""
        folder, was_led_by_others = claims_folder(partition), False
        for info in self._store.list(folder):
            match = _NAME.fullmatch(info.key.removeprefix(folder))
            if match is None or int(match["broker"]) == self._broker_id:
                continue
            if int(match["epoch"]) > leader_epoch:
                raise FencedLeaderError(
                    f"{partition}: leader epoch {leader_epoch} is over, broker {match['broker']} "
                    f"has claimed the partition under epoch {int(match['epoch'])} "
                    f"({self._store.url}/{info.key}); nothing was committed"
                )
            was_led_by_others = True
        return was_led_by_others

    def require_or_keep(
        self, segment_id: RemoteLogSegmentId, leader_epoch: int, start_offset: int, end_offset: int
    ) -> None:
        """Check a segment whose objects are stored; after an error the caller deletes it.

        A later leader that has found the segment does not copy its records. So this raises
        FencedLeaderError only when other segments in the store hold the offsets of the segment.
        """
        partition = segment_id.topic_id_partition
        try:
            self.require(partition, leader_epoch)
        except FencedLeaderError:
            if self._others_hold_offsets(segment_id, start_offset, end_offset):
                raise

    def _others_hold_offsets(
        self, segment_id: RemoteLogSegmentId, start_offset: int, end_offset: int
    ) -> bool:
        """Return whether other segments hold all these offsets; False when the store fails."""
        prefix = partition_prefix(segment_id.topic_id_partition)
        try:
            others = sorted(
                (one.start_offset, one.end_offset)
                for one in list_segments(
                    self._store,
                    prefix,
                    wanted=lambda key: key.segment_id != segment_id.id,
                    on_problem=lambda _: None,
                )
            )
        except RemoteStorageError:
            return False
        next_offset = start_offset
        for first, last in others:
            if first <= next_offset:
                next_offset = max(next_offset, last + 1)
        return next_offset > end_offset
