"""Claims say which broker leads a partition. Sidecars need claims if they share only a store.

    claims/<topicId>-<partition>/<leader epoch, 10 digits>-<broker id>      UTF-8 JSON, for people

A leader writes its claim before its first copy. Before and after it commits a segment, it lists the
claims of the partition. If another broker has a claim of a later epoch, the leader is deposed. The
order of writes decides, not a clock: a listing contains every claim that was written before the
listing began. So the store's listings must be consistent with earlier writes, as they are on S3,
GCS, Azure, HDFS and local file systems.

A leader that takes a partition over from another broker writes its claim, then lists the
partition's segments, and then records the offset below which these segments end
(`layout.Takeover`). Segments that a deposed leader commits at or behind that offset do not count,
so the new leader need not list the segments again.

A broker never deposes itself. A broker ignores its own claims under other epochs, because it may
have written these claims before its state directory was lost. Claims of two brokers under the same
epoch are not ordered, since Kafka gives each epoch to only one broker.
"""

from __future__ import annotations

import json
import re

from tierlog.clock import Clock
from tierlog.errors import CorruptDataError, FencedLeaderError, RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import is_left_out
from tierlog.remote.segment.indexes import IndexKind, read_indexes_header, read_sections
from tierlog.remote.segment.layout import (
    CLAIMS_PREFIX,
    Takeover,
    indexes_key,
    parse_takeover,
    partition_prefix,
    takeover_key,
)
from tierlog.remote.store.object_store import ObjectStore, storage_error
from tierlog.types import TopicIdPartition

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
        """Depose all earlier leaders; return whether another broker led before. The call may be
        repeated.

        Raises FencedLeaderError when a later leader has a claim, and RemoteStorageError when the
        store's listing lacks the claim just written."""
        claim = {
            "format_version": _VERSION,
            "topic": partition.topic,
            "leader_epoch": leader_epoch,
            "broker_id": self._broker_id,
            "claimed_ms": self._clock.now_ms(),
        }
        key = f"{claims_folder(partition)}{leader_epoch:010d}-{self._broker_id}"
        self._store.put_if_absent(key, json.dumps(claim, sort_keys=True).encode("utf-8"))
        epochs = self._epochs_of_others(partition, leader_epoch, must_list=key)
        return bool(epochs)

    def require(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """Raise FencedLeaderError when another broker has a claim of a later epoch."""
        self._epochs_of_others(partition, leader_epoch)

    def was_led_by_others(self, partition: TopicIdPartition) -> bool:
        """Return whether another broker has ever claimed the partition."""
        return bool(self._epochs_of_others(partition, 2**31))

    def take_over(self, partition: TopicIdPartition, leader_epoch: int, end_offset: int) -> None:
        """Record that the known segments of other brokers end below `end_offset`. If an earlier
        leader finishes a segment after this call, the segment does not count if it ends at or above
        `end_offset`. Only the first record of an epoch is written.

        Raises FencedLeaderError when a later leader has a claim."""
        for taken in self._takeovers(partition):
            if taken[1:] == (leader_epoch, self._broker_id):
                return
        key = takeover_key(partition, Takeover(end_offset, leader_epoch, self._broker_id))
        self._store.put_if_absent(key, b"")
        try:
            self.require(partition, leader_epoch)
        except FencedLeaderError:
            # The later leader may have counted a segment that this record leaves out.
            self._store.delete(key)
            raise

    def is_left_out(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Return whether a segment of this broker does not count, because it was finished after
        another broker took its partition over."""
        takeovers = self._takeovers(metadata.segment_id.topic_id_partition)
        if not any(taken.end_offset <= metadata.end_offset for taken in takeovers):
            return False
        key = indexes_key(metadata)
        try:
            header, first = read_indexes_header(self._store, key)
            sections = read_sections(self._store, key, header, first, [IndexKind.METADATA])
            return is_left_out(header.description(sections[IndexKind.METADATA]), takeovers)
        except (CorruptDataError, RemoteResourceNotFoundError):
            return False

    def _takeovers(self, partition: TopicIdPartition) -> list[Takeover]:
        listed = self._store.list(partition_prefix(partition))
        return [taken[1] for info in listed if (taken := parse_takeover(info.key)) is not None]

    def _epochs_of_others(
        self, partition: TopicIdPartition, leader_epoch: int, *, must_list: str | None = None
    ) -> list[int]:
        """Return the epochs of the claims of other brokers. Raises FencedLeaderError when one of
        these epochs is later than `leader_epoch`."""
        folder, epochs, is_listed = claims_folder(partition), [], must_list is None
        for info in self._store.list(folder):
            is_listed = is_listed or info.key == must_list
            match = _NAME.fullmatch(info.key.removeprefix(folder))
            if match is None or int(match["broker"]) == self._broker_id:
                continue
            if int(match["epoch"]) > leader_epoch:
                raise FencedLeaderError(
                    f"{partition}: leader epoch {leader_epoch} is over, broker {match['broker']} "
                    f"has claimed the partition under epoch {int(match['epoch'])} "
                    f"({self._store.url}/{info.key}); nothing was committed"
                )
            epochs.append(int(match["epoch"]))
        if not is_listed:
            raise storage_error(
                f"{self._store.url}: the listing lacks {must_list}, which was just written: the "
                "listing lags behind, but sidecars of several brokers need a listing without lag"
            )
        return epochs
