"""Deletes the archives of topics that the cluster has deleted, after a time.

A topic counts as deleted only when the cluster answers that no topic has its name, or that the
topic of this name has another id. If there is no answer (no permission, no connection), the topic
is unknown and not deleted. A note in the state directory has the time when a deletion was first
seen, so that the time continues after restarts. If the topic appears again, its note is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Protocol

from tierlog.clock import Clock
from tierlog.errors import TierlogError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.claims import claims_folder
from tierlog.remote.segment.layout import parse_key, parse_takeover, topic_prefix
from tierlog.remote.store.object_store import ObjectStore
from tierlog.sidecar.learn import StoreLearner
from tierlog.sidecar.notes import Notes
from tierlog.tiering.clock_watch import ClockWatch
from tierlog.types import (
    RemoteLogSegmentId,
    TopicIdPartition,
    check_kafka_uuid,
    is_derived_topic_id,
)

__all__ = ["DeletedTopics", "TopicCluster", "deleted_since"]

NOTES_KEY = "deleted-topics.json"
_VERSION = 1
# The end of year 9999, the last year of a date.
_MAX_TIME_MS = 253_402_300_799_999


class TopicCluster(Protocol):
    """The calls to a broker: `tierlog.broker.BrokerClient`."""

    def topic_ids(self, names: Collection[str]) -> Mapping[str, str | None]:
        """See `BrokerClient`."""
        ...


def deleted_since(
    archived: Mapping[str, str],
    named: Mapping[str, str | None],
    here: Collection[str],
    noted: Mapping[str, int],
    now_ms: int,
) -> tuple[dict[str, int], frozenset[str]]:
    """Return since when each deleted topic is deleted, as far as known, and the topics that are
    deleted according to the cluster's present answer.

    ``archived`` has the names by topic id, and ``here`` the topic ids on the broker's own disks.
    ``named`` has the cluster's topic ids by name. None there means that no topic has the name, and
    a missing name means unknown. While the cluster knows none of the archived topics, it may be a
    new cluster, and no topic counts as deleted.
    """
    alive = {topic_id for topic_id, name in archived.items() if named.get(name) == topic_id}
    since = {
        topic_id: min(noted_ms, now_ms)
        for topic_id, noted_ms in noted.items()
        if topic_id in archived and topic_id not in alive
    }
    if not alive:
        return since, frozenset()
    deleted = {
        topic_id
        for topic_id, name in archived.items()
        if name in named and topic_id not in alive and topic_id not in here
    }
    return dict.fromkeys(deleted, now_ms) | since, frozenset(deleted)


class DeletedTopics:
    """Removes the archives of topics that have been deleted for ``retention_ms``. One thread.

    ``notes`` is the state directory as a store; ``delete`` removes a partition from the tier, as
    `RemoteLogManager.stop_partition` does.
    """

    def __init__(
        self,
        cluster: TopicCluster,
        metadata: RemoteLogMetadataManager,
        store: ObjectStore | None,
        *,
        notes: ObjectStore,
        retention_ms: int,
        clock: Clock,
        delete: Callable[[TopicIdPartition], object],
    ) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._store = store
        self._learner = StoreLearner(store, metadata)
        self._notes = Notes(notes, NOTES_KEY, _VERSION)
        self._retention_ms = retention_ms
        self._clock = clock
        self._clock_watch = ClockWatch(clock)
        self._delete = delete
        self._since: dict[str, int] | None = None
        self._told: set[str] = set()

    def set_retention(self, retention_ms: int) -> None:
        """Set how long archives are kept, from the next `settle` on."""
        self._retention_ms = retention_ms

    def settle(
        self, here: Collection[str], topics: Collection[str], warn: Callable[[str], None]
    ) -> None:
        """Find deleted topics, and delete archives that were kept for the retention time.

        ``here``: the topic ids on the broker's disks. Empty ``topics`` means all. While the
        cluster, the store or the wall clock is not reliable, this only warns.
        """
        # The cluster does not know derived ids, so it cannot report their deletion.
        archived = {
            one.topic_id: one.topic
            for one in self._metadata.partitions()
            if not is_derived_topic_id(one.topic_id)
        }
        if not archived or self._clock_watch.jumped_ms():
            return
        try:
            named = self._cluster.topic_ids(sorted(set(archived.values())))
            before = self._noted(warn)
            now_ms = self._clock.now_ms()
            since, deleted = deleted_since(archived, named, here, before, now_ms)
            if since != before:
                self._note(since)
            for topic_id in sorted(deleted):
                topic = archived[topic_id]
                if not topics or topic in topics:
                    self._tell(topic, topic_id, since[topic_id], warn)
                    if now_ms - since[topic_id] >= self._retention_ms:
                        self._begin(topic, topic_id, warn)
        except TierlogError as error:
            warn(f"archives of deleted topics: {error}; tried again at the next look")

    def _begin(self, topic: str, topic_id: str, warn: Callable[[str], None]) -> None:
        """Delete all partitions at once, also those that only other brokers have led."""
        if any(self._metadata.partition_delete_state(one) for one in self._partitions(topic_id)):
            return
        self._learner.learn_topic(topic, topic_id, lambda problem: warn(str(problem)))
        if self._store is None:
            return
        for info in tuple(self._store.list(topic_prefix(topic, topic_id))):
            if self._is_left_over(info.key, topic):
                self._store.delete(info.key)
        for partition in self._partitions(topic_id):
            for claim in tuple(self._store.list(claims_folder(partition))):
                self._store.delete(claim.key)
            self._delete(partition)

    def _is_left_over(self, key: str, topic: str) -> bool:
        """Return whether the object is a takeover, half of a segment, or part of a damaged segment.
        No sidecar copies segments of a deleted topic, so such objects belong to no active copy.
        Foreign objects are kept."""
        try:
            parsed = parse_key(key)
        except ValueError:
            return parse_takeover(key) is not None
        partition = TopicIdPartition(
            topic_id=parsed.topic_id, topic=topic, partition=parsed.partition
        )
        segment_id = RemoteLogSegmentId(topic_id_partition=partition, id=parsed.segment_id)
        return self._metadata.get(segment_id) is None

    def _partitions(self, topic_id: str) -> list[TopicIdPartition]:
        return [one for one in self._metadata.partitions() if one.topic_id == topic_id]

    def _tell(self, topic: str, topic_id: str, since_ms: int, warn: Callable[[str], None]) -> None:
        """Warn once, so that an operator can stop the deletion."""
        if topic_id not in self._told:
            self._told.add(topic_id)
            since = datetime.fromtimestamp(since_ms // 1000, UTC).isoformat()
            warn(
                f"topic {topic} ({topic_id}) is deleted, as noticed at {since}: its archive goes "
                f"{self._retention_ms} ms after that (tierlog.deleted.topic.retention.ms)"
            )

    # -- notes

    def _noted(self, warn: Callable[[str], None]) -> dict[str, int]:
        if self._since is None:
            try:
                fields = self._notes.read()
                self._since = {} if fields is None else _parse(fields.get("deleted_since_ms"))
            except ValueError as error:
                warn(
                    f"{self._notes.url}: expected since when topics are deleted, found {error}; "
                    "their time begins anew"
                )
                self._since = {}
        return self._since

    def _note(self, since: Mapping[str, int]) -> None:
        self._notes.write({"deleted_since_ms": dict(since)})
        self._since = dict(since)


def _parse(since: object) -> dict[str, int]:
    """Return the notes. Raises ValueError for notes that `DeletedTopics` cannot have written."""
    if not isinstance(since, dict):
        raise ValueError(repr(since)[:80])
    for topic_id, since_ms in since.items():
        check_kafka_uuid(topic_id)
        if type(since_ms) is not int or not 0 <= since_ms <= _MAX_TIME_MS:
            raise ValueError(f"{topic_id} since {repr(since_ms)[:80]}")
    return since
