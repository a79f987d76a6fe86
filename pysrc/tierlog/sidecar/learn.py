"""Adds segments to the metadata that are in the store and not in the state directory.

A lost state directory is rebuilt from the store. Segments that another broker has copied are added,
too, because otherwise they would be copied twice and retention would never find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tierlog.errors import RemoteResourceNotFoundError
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.bucket import Problem, list_segments
from tierlog.remote.segment.layout import (
    CLUSTER_KEY,
    ObjectKey,
    indexes_key,
    partition_prefix,
    topic_prefix,
)
from tierlog.remote.store.object_store import ObjectStore
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["StoreLearner"]

# From this number of partitions on, one listing of the store is cheaper than one per partition.
_MANY = 64
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class StoreLearner:
    """Adds the segments of a store to the metadata. Known segments are not read again.

    This needs a state directory of this sidecar and a store that can be listed; ``store`` is None
    for one that cannot. If brokers share the metadata manager, there is nothing to add.
    """

    def __init__(self, store: ObjectStore | None, metadata: RemoteLogMetadataManager) -> None:
        self._store = store
        self._state = metadata if isinstance(metadata, SqliteRemoteLogMetadataManager) else None

    @property
    def learns(self) -> bool:
        """Whether the store can be listed and the metadata is in a state directory."""
        return self._state is not None and self._store is not None

    def learn_if_lost(self, warn: Callable[[Problem], None]) -> bool:
        """Read the whole store if the state directory is empty, because then it was lost.

        Return whether all segments in the store are known now.
        """
        if self._state is None or self._store is None or self._state.partitions():
            return False
        self._state.load(list_segments(self._store, on_problem=warn))
        return True

    def learn(
        self, partitions: Iterable[TopicIdPartition], warn: Callable[[Problem], None]
    ) -> None:
        """Add the segments of these partitions that other brokers have copied.

        Raises RemoteStorageError when the store does not answer. Then no partition counts as read.
        """
        self._learn(partitions, warn)

    def take_over(
        self, partitions: Sequence[TopicIdPartition], warn: Callable[[Problem], None]
    ) -> None:
        """Add the segments that the last leader of these partitions has copied, and remove those
        that its retention has deleted. Retention deletes the oldest ones: a segment that is missing
        behind others stays known, and is reported as lost. RemoteStorageError as for `learn`."""
        listed = self._learn(partitions, warn)
        if self._state is None or self._store is None:
            return
        for partition in partitions:
            known = [one for one in self._state.list(partition) if one.state is _FINISHED]
            stored = [one.start_offset for one in known if indexes_key(one) in listed]
            first = min(stored, default=None)
            for one in known:
                is_oldest = first is None or one.end_offset < first
                if is_oldest and indexes_key(one) not in listed and _is_gone(self._store, one):
                    _forget(self._state, one)

    def _learn(
        self, partitions: Iterable[TopicIdPartition], warn: Callable[[Problem], None]
    ) -> set[str]:
        """Add unknown segments; return the keys of the listed `.indexes` objects."""
        wanted = {(one.topic_id, one.partition): one for one in partitions}
        many = len(wanted) >= _MANY
        prefixes = [""] if many else [partition_prefix(one) for one in wanted.values()]
        return self._load(prefixes, lambda key: wanted.get((key.topic_id, key.partition)), warn)

    def follow(self, partition: TopicIdPartition) -> bool:
        """Add the segments that the leader of the partition has copied, and remove the segments
        that it has deleted. Return whether anything changed.

        Raises RemoteStorageError when the store does not answer. Then no segment is removed.
        """
        state, store = self._state, self._store
        if state is None or store is None:
            return False
        known = [one for one in state.list(partition) if one.state is _FINISHED]
        listed: set[str] = set()

        def unknown(key: ObjectKey) -> bool:
            listed.add(str(key))
            segment_id = RemoteLogSegmentId(topic_id_partition=partition, id=key.segment_id)
            return state.get(segment_id) is None

        # A single object belongs to an active copy or deletion.
        prefix = partition_prefix(partition)
        found = tuple(list_segments(store, prefix, wanted=unknown, on_problem=lambda _: None))
        if found:
            state.load(found)
        removed = [one for one in known if indexes_key(one) not in listed and _is_gone(store, one)]
        for segment in removed:
            _forget(state, segment)
        return bool(found or removed)

    def learn_topic(self, topic: str, topic_id: str, warn: Callable[[Problem], None]) -> None:
        """Add the segments of all partitions of a topic. Raises RemoteStorageError when the store
        does not answer."""

        def partition_of(key: ObjectKey) -> TopicIdPartition:
            return TopicIdPartition(topic_id=topic_id, topic=topic, partition=key.partition)

        self._load([topic_prefix(topic, topic_id)], partition_of, warn)

    def _load(
        self,
        prefixes: Iterable[str],
        partition_of: Callable[[ObjectKey], TopicIdPartition | None],
        warn: Callable[[Problem], None],
    ) -> set[str]:
        state, store = self._state, self._store
        listed: set[str] = set()
        if state is None or store is None:
            return listed

        def unknown(key: ObjectKey) -> bool:
            listed.add(str(key))
            partition = partition_of(key)
            if partition is None:
                return False
            segment_id = RemoteLogSegmentId(topic_id_partition=partition, id=key.segment_id)
            return state.get(segment_id) is None

        found = [
            segment
            for prefix in prefixes
            for segment in list_segments(store, prefix, wanted=unknown, on_problem=warn)
        ]
        if found:
            state.load(found)
        return listed


def _is_gone(store: ObjectStore, segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether the segment is gone from a store that still has its cluster marker. A listing
    may lag, and a volume may not be mounted."""
    store.head(CLUSTER_KEY)
    try:
        store.head(indexes_key(segment))
    except RemoteResourceNotFoundError:
        return True
    return False


def _forget(metadata: RemoteLogMetadataManager, segment: RemoteLogSegmentMetadata) -> None:
    for state in (
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    ):
        metadata.update(segment.update_to(state, event_timestamp_ms=segment.event_timestamp_ms))
