"""A store of an archive: its topics, and the segments of one partition at a time.

A bucket is never listed as a whole. The top folders are the topics, the folders below them their
partitions, and the segments of a partition are listed when it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from tierlog.config import Config
from tierlog.errors import RemoteResourceNotFoundError, TierlogError
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.remote.plugins import make_metadata_manager, make_storage_manager
from tierlog.remote.segment.bucket import Problem, describe_segments
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, read_indexes_header, read_sections
from tierlog.remote.segment.layout import (
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    MAX_TOPIC_LABEL,
    partition_prefix,
    read_cluster_id,
)
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.remote.segment.topic_ids import adopted_topic_ids
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
from tierlog.remote.urls import open_store
from tierlog.types import TopicIdPartition, check_kafka_uuid, check_topic_name

__all__ = ["BucketTier", "ListedSegments", "ManagerTier", "StoredTopic", "Tier", "open_tier"]

_PARALLEL_LISTINGS = 16
_ID_LENGTH = 22
_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as a store has it. ``topic_id`` is the id under which it is stored; ``shown_id`` is
    the topic's own, which differs if it got one after it was archived."""

    topic: str
    topic_id: str
    shown_id: str
    partitions: frozenset[int]


class ListedSegments(NamedTuple):
    """The finished segments of a partition, and the findings about its other objects."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    problems: tuple[Problem, ...] = ()


class Tier(ABC):
    """One store of the archive. Blocking, any thread."""

    storage: RemoteStorageManager

    @property
    def url(self) -> str:
        """Location of the store, without credentials."""
        return self.storage.url

    def cluster_id(self) -> str | None:
        """Return the id of the cluster that was archived; None when the store does not say."""
        store = self.storage.store
        try:
            return None if store is None else read_cluster_id(store)
        except (RemoteResourceNotFoundError, ValueError):
            return None

    @abstractmethod
    def list_topics(self, recheck: Collection[str] | None) -> dict[str, StoredTopic]:
        """Return the topics by the id under which they are stored. The partitions of topics that
        were known before are listed again only for the ids in `recheck`, None for all."""

    @abstractmethod
    def list_segments(self, partition: TopicIdPartition) -> ListedSegments:
        """Return the segments of a partition now."""

    @abstractmethod
    def size_bytes(self, partition: TopicIdPartition) -> int:
        """Return the bytes of the partition's log in the store."""

    def forget(self, partition: TopicIdPartition) -> None:
        """Free what is known of a partition."""
        return


class BucketTier(Tier):
    """A store that is its own metadata."""

    def __init__(self, storage: RemoteStorageManager, store: ObjectStore) -> None:
        self.storage = storage
        self._store = store
        self._topics: dict[str, StoredTopic] = {}
        self._described: dict[TopicIdPartition, dict[ObjectInfo, SegmentDescription]] = {}
        self._size_bytes: dict[TopicIdPartition, int] = {}

    def list_topics(self, recheck: Collection[str] | None) -> dict[str, StoredTopic]:
        """See `Tier`."""
        adopted = adopted_topic_ids(self._store)
        folders = {name: topic_id for name in self._store.folders() if (topic_id := _id_in(name))}

        def listed(item: tuple[str, str]) -> StoredTopic:
            folder, topic_id = item
            before = self._topics.get(topic_id)
            shown_id = adopted.get(topic_id, topic_id)
            if before is not None and recheck is not None and topic_id not in recheck:
                return before
            return StoredTopic(
                topic=self._topic_name(folder) if before is None else before.topic,
                topic_id=topic_id,
                shown_id=shown_id,
                partitions=frozenset(_partition_numbers(self._store.folders(folder))),
            )

        with ThreadPoolExecutor(_PARALLEL_LISTINGS, thread_name_prefix="tierlog-topics") as pool:
            found = list(pool.map(listed, folders.items()))
        self._topics = {one.topic_id: one for one in found if one.partitions}
        return self._topics

    def _topic_name(self, folder: str) -> str:
        """Return the whole name of the topic in that folder, which has only the first 232
        characters of it."""
        label = folder[: -_ID_LENGTH - 1]
        if len(label) == MAX_TOPIC_LABEL:
            for info in self._store.list(folder):
                if info.key.endswith(INDEXES_SUFFIX):
                    header, first = read_indexes_header(self._store, info.key, info.size_bytes)
                    kind = IndexKind.METADATA
                    sections = read_sections(self._store, info.key, header, first, [kind])
                    return header.description(sections[kind]).metadata.topic_id_partition.topic
        return label

    def list_segments(self, partition: TopicIdPartition) -> ListedSegments:
        """See `Tier`. Takes one small request for each new segment."""
        problems: list[Problem] = []
        described = describe_segments(
            self._store,
            partition_prefix(partition),
            on_problem=problems.append,
            known=self._described.setdefault(partition, {}),
        )
        segments = tuple(one.metadata for one in described)
        self._size_bytes[partition] = sum(one.segment_size_bytes for one in segments)
        return ListedSegments(segments, tuple(one for one in problems if one.hides_segment))

    def size_bytes(self, partition: TopicIdPartition) -> int:
        """See `Tier`."""
        known = self._size_bytes.get(partition)
        if known is not None:
            return known
        listed = self._store.list(partition_prefix(partition))
        return sum(one.size_bytes for one in listed if one.key.endswith(LOG_SUFFIX))

    def forget(self, partition: TopicIdPartition) -> None:
        """See `Tier`."""
        self._described.pop(partition, None)
        self._size_bytes.pop(partition, None)


class ManagerTier(Tier):
    """A store whose segments a metadata manager of another package knows."""

    def __init__(self, storage: RemoteStorageManager, manager: RemoteLogMetadataManager) -> None:
        self.storage = storage
        self._manager = manager

    def list_topics(self, recheck: Collection[str] | None) -> dict[str, StoredTopic]:
        """See `Tier`."""
        numbers: dict[tuple[str, str], set[int]] = {}
        for one in self._manager.partitions():
            numbers.setdefault((one.topic, one.topic_id), set()).add(one.partition)
        return {
            topic_id: StoredTopic(
                topic=topic, topic_id=topic_id, shown_id=topic_id, partitions=frozenset(partitions)
            )
            for (topic, topic_id), partitions in numbers.items()
        }

    def list_segments(self, partition: TopicIdPartition) -> ListedSegments:
        """See `Tier`."""
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        segments = self._manager.list(partition)
        return ListedSegments(tuple(one for one in segments if one.state is finished))

    def size_bytes(self, partition: TopicIdPartition) -> int:
        """See `Tier`."""
        return sum(one.segment_size_bytes for one in self.list_segments(partition).segments)


def open_tier(url: str, config: Config) -> Tier:
    """Open the store of a URL through the managers that the settings name."""
    store = open_store(url)
    storage = make_storage_manager(config, store)
    manager = make_metadata_manager(config, url)
    if manager is not None:
        return ManagerTier(storage, manager)
    if storage.store is None:
        raise TierlogError(
            f"{storage.url}: this storage manager cannot list its segments; name the metadata "
            "manager that knows them in remote.log.metadata.manager.class.name"
        )
    return BucketTier(storage, storage.store)


def _id_in(folder: str) -> str | None:
    """Return the topic id in the name of a topic's folder; None for any other folder."""
    label, dash, topic_id = (
        folder[: -_ID_LENGTH - 1],
        folder[-_ID_LENGTH - 1 : -_ID_LENGTH],
        folder[-_ID_LENGTH:],
    )
    try:
        check_topic_name(label)
        check_kafka_uuid(topic_id)
    except ValueError:
        return None
    return topic_id if dash == "-" and len(label) <= MAX_TOPIC_LABEL else None


def _partition_numbers(folders: Iterable[str]) -> Iterable[int]:
    for name in folders:
        if name.isascii() and name.isdigit() and str(int(name)) == name and int(name) <= _MAX_INT32:
            yield int(name)
