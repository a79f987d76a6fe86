"""What the state directory does not know and the store does.

A state directory that was lost is made again from the store. And a partition that another broker
led meanwhile has segments that this one has never heard of: copied again they would lie there
twice, and retention would never find them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tierlog.remote.bucket import Problem, list_segments
from tierlog.remote.layout import ObjectKey, partition_prefix, topic_prefix
from tierlog.remote.metadata import RemoteLogMetadataManager
from tierlog.remote.metadata_sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.object_store import ObjectStore
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["StoreLearner"]

# From so many partitions on one listing of everything is cheaper than one of each.
_MANY = 64


class StoreLearner:
    """Brings a store's segments into the metadata; those known already are not asked for.

    Only a state directory of this sidecar's own has anything to learn, and only from a store that
    can be listed (None: it cannot). A metadata manager that brokers share knows by itself.
    """

    def __init__(self, store: ObjectStore | None, metadata: RemoteLogMetadataManager) -> None:
        self._store = store
        self._state = metadata if isinstance(metadata, SqliteRemoteLogMetadataManager) else None

    def learn_if_lost(self, warn: Callable[[Problem], None]) -> bool:
        """An empty state directory beside a full store was lost, not new: read the store.

        Whether everything in the store is known now.
        """
        if self._state is None or self._store is None or self._state.partitions():
            return False
        self._state.load(list_segments(self._store, on_problem=warn))
        return True

    def learn(
        self, partitions: Iterable[TopicIdPartition], warn: Callable[[Problem], None]
    ) -> None:
        """Segments of these partitions that others have copied.

        RemoteStorageError when the store does not answer; then none of them count as learned.
        """
        wanted = {(one.topic_id, one.partition): one for one in partitions}
        many = len(wanted) >= _MANY
        prefixes = [""] if many else [partition_prefix(one) for one in wanted.values()]
        self._load(prefixes, lambda key: wanted.get((key.topic_id, key.partition)), warn)

    def learn_topic(self, topic: str, topic_id: str, warn: Callable[[Problem], None]) -> None:
        """Segments of all partitions of a topic. RemoteStorageError as above."""

        def partition_of(key: ObjectKey) -> TopicIdPartition:
            return TopicIdPartition(topic_id=topic_id, topic=topic, partition=key.partition)

        self._load([topic_prefix(topic, topic_id)], partition_of, warn)

    def _load(
        self,
        prefixes: Iterable[str],
        partition_of: Callable[[ObjectKey], TopicIdPartition | None],
        warn: Callable[[Problem], None],
    ) -> None:
        state, store = self._state, self._store
        if state is None or store is None:
            return

        def unknown(key: ObjectKey) -> bool:
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
