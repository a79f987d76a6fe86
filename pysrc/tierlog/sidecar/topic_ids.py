"""Decides under which topic id each partition is archived.

A topic that has an id is archived under this id. A topic of a cluster without topic ids (brokers up
to 2.7) is archived under an id derived from its name. When the topic gets an id of its own, the
archive keeps the derived id; see `tierlog.remote.segment.topic_ids`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tierlog.broker import BrokerAnswer
from tierlog.errors import TierlogError
from tierlog.log.checkpoint import PARTITION_METADATA, TopicPartition
from tierlog.log.eligibility import INTERNAL_TOPICS
from tierlog.log.log_dir import LogDir, PartitionLog
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.layout import partition_prefix
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.segment.topic_ids import StoredTopicIds
from tierlog.remote.store.object_store import ObjectStore
from tierlog.sidecar.archived_log import difference_from_archive
from tierlog.types import TopicIdPartition, derived_topic_id

__all__ = ["ArchiveIds", "lacks_topic_ids"]

Answers = Mapping[TopicPartition, BrokerAnswer]


class ArchiveIds:
    """Decides under which id each partition is archived. One thread."""

    def __init__(
        self, store: ObjectStore, cluster_id: str, *, include_internal: bool = False
    ) -> None:
        """Kafka's internal topics have archives only with ``include_internal``."""
        self._store = store
        self._left_out = frozenset() if include_internal else INTERNAL_TOPICS
        self._storage = ObjectStorageManager(store)
        self._cluster_id = cluster_id
        self._stored = StoredTopicIds(store)
        self._is_loaded = self._is_away = False
        # The archive ids by partition and the topic's own id (None: it has none).
        self._decided: dict[tuple[TopicPartition, str | None], str] = {}

    def assign(
        self,
        logs: Sequence[PartitionLog],
        answers: Answers | None,
        *,
        may_derive: bool,
        warnings: list[str],
    ) -> tuple[list[PartitionLog], Answers | None]:
        """Return `logs` with the ids of their archives, and `answers` with the same ids.

        ``may_derive``: see `lacks_topic_ids`. While the store does not answer, a partition whose
        archive is not known yet gets no id, so it is not tiered.
        """
        named = dict(answers or {})
        found: list[PartitionLog] = []
        self._is_loaded = self._is_away = False
        for log in logs:
            own_id = _own_id(log, answers)
            archive_id = own_id
            if log.topic not in self._left_out and (own_id is not None or may_derive):
                archive_id = self._archive_id(log, own_id, warnings)
            found.append(replace(log, archived_as=archive_id))
            answer = named.get(log.topic_partition)
            if answer is not None and answer.topic_id == own_id:
                named[log.topic_partition] = replace(answer, topic_id=archive_id)
        if may_derive:
            self._warn_of_derived(found, warnings)
        return found, None if answers is None else named

    def _archive_id(self, log: PartitionLog, own_id: str | None, warnings: list[str]) -> str | None:
        """Return the id of the archive; None while unknown. The id is decided only once."""
        key = log.topic_partition, own_id
        if key not in self._decided and not self._is_away:
            try:
                if not self._is_loaded:
                    self._stored.load()
                    self._is_loaded = True
                self._decided[key] = self._decide(log, own_id, warnings)
            except (TierlogError, OSError) as error:
                # One warning is enough for all partitions that wait for the store.
                self._is_away = True
                warnings.append(f"cannot tell under which topic ids logs are archived: {error}")
        return self._decided.get(key)

    def _warn_of_derived(self, logs: Sequence[PartitionLog], warnings: list[str]) -> None:
        names = sorted({log.topic for log in logs if log.archived_as in self._stored.derived})
        if names:
            shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
            count = "1 topic" if len(names) == 1 else f"{len(names)} topics"
            warnings.append(
                f"{count} without a topic id ({shown}): archived under ids derived from cluster "
                "id and topic name"
            )

    def _decide(self, log: PartitionLog, topic_id: str | None, warnings: list[str]) -> str:
        derived = derived_topic_id(self._cluster_id, log.topic)
        if topic_id is None:
            self._stored.mark_derived(log.topic, derived)
            return derived
        if derived not in self._stored.derived:
            return topic_id
        adopted = self._stored.adopted.get(derived)
        if adopted is None:
            return self._adopt(log, derived, topic_id, warnings)
        if adopted != topic_id or self._segments(log, topic_id):
            return topic_id
        return derived

    def _adopt(self, log: PartitionLog, derived: str, topic_id: str, warnings: list[str]) -> str:
        """Continue the archive under the derived id if one batch shows that it belongs to this
        log."""
        segments = self._segments(log, derived)
        if not segments:
            return topic_id
        difference = difference_from_archive(log, segments, self._storage)
        if difference:
            warnings.append(
                f"{log.name}: {difference}: the topic of that name under {derived} is another "
                f"one; this one is archived under {topic_id}"
            )
            return topic_id
        adopted = self._stored.adopt(log.topic, derived, topic_id)
        if adopted != topic_id:
            return topic_id
        warnings.append(f"{log.name}: topic id {topic_id} is new; its archive stays at {derived}")
        return derived

    def _segments(self, log: PartitionLog, topic_id: str) -> list[RemoteLogSegmentMetadata]:
        """Return the finished segments of the partition under an id."""
        partition = TopicIdPartition(topic_id=topic_id, topic=log.topic, partition=log.partition)
        return list(list_segments(self._store, partition_prefix(partition)))


def lacks_topic_ids(logs: LogDir, listed: Sequence[PartitionLog]) -> bool:
    """Return whether the broker of these directories has no topic ids. If a partition has an id, or
    the broker uses KRaft, a missing id means damage."""
    is_kraft = any(meta is not None and meta.version > 0 for meta in logs.meta)
    return not is_kraft and not any(
        log.topic_id is not None
        or any(os.path.basename(one.path or "") == PARTITION_METADATA for one in log.problems)
        for log in listed
    )


def _own_id(log: PartitionLog, answers: Answers | None) -> str | None:
    """Return the topic's own id, from the disk or else from the broker's answer."""
    answer = None if answers is None else answers.get(log.topic_partition)
    if log.topic_id is not None or answer is None:
        return log.topic_id
    return answer.topic_id
