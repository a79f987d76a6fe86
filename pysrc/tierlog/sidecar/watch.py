"""Lists a broker's directories, asks the broker, and passes the partitions to the manager.

One look lists all directories and asks the broker once about all partitions. The remote log manager
copies the partitions that this broker leads, follows the partitions of other leaders, and stops
deleted partitions. Segments of deleted partitions are kept in the store.

If there is a broker to ask, this broker leads a partition only when the answer says so, and a topic
is not compacted only when the answer says so. A missing answer changes nothing
(`tierlog.sidecar.last_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from tierlog.broker import BrokerAnswer
from tierlog.errors import TierlogError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.eligibility import (
    Coverage,
    Decision,
    Ineligible,
    StableOffset,
    StableSource,
    copy_facts,
    decide_segments,
)
from tierlog.log.listing_memory import ListingMemory
from tierlog.log.log_dir import Listing, LogDir, PartitionLog
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.bucket import Problem, ProblemReason
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.sidecar.host import SidecarLog
from tierlog.sidecar.last_answers import LastAnswers
from tierlog.sidecar.learn import StoreLearner
from tierlog.sidecar.topic_ids import ArchiveIds, lacks_topic_ids
from tierlog.tiering.local_log import LocalLog, TopicSettings
from tierlog.types import TopicIdPartition

__all__ = ["Cluster", "Leadership", "Look", "Seen", "Watch", "WatchSettings"]

# Reasons why a whole partition is not given to the manager.
_NOT_TIERED = frozenset(
    {
        Ineligible.CLUSTER_METADATA,
        Ineligible.INTERNAL_TOPIC,
        Ineligible.COMPACTED,
        Ineligible.COMPACTION_UNKNOWN,
        Ineligible.TOPIC_ID_UNKNOWN,
        Ineligible.LEADER_EPOCHS_UNKNOWN,
    }
)
_NO_OFFSET = StableOffset(value=None, source=StableSource.UNKNOWN)


class Cluster(Protocol):
    """The calls of the watch to a broker: `tierlog.broker.BrokerClient`."""

    def ask(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, BrokerAnswer]:
        """See `BrokerClient`."""
        ...


class Leadership(Protocol):
    """The calls of the watch to a remote log manager."""

    def become_leader(self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog) -> None:
        """See `RemoteLogManager`."""
        ...

    def become_follower(
        self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog
    ) -> None:
        """See `RemoteLogManager`."""
        ...

    def stop_partition(self, partition: TopicIdPartition) -> None:
        """See `RemoteLogManager`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """The selection of partitions and their settings. Empty ``topics`` means all."""

    topics: Collection[str] = ()
    include_compacted: bool = False
    include_internal: bool = False
    topic: TopicSettings = field(default_factory=TopicSettings)


class Role(NamedTuple):
    """The role of a partition."""

    leads: bool
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The state of a partition in one look.

    ``answer`` is the broker's answer, completed from earlier answers; None when no broker is asked.
    ``host`` is the `LocalLog` while this broker leads or follows the partition. ``decisions`` have
    the reason of each segment that is not copied, as far as it is known without the tier.
    """

    log: PartitionLog
    answer: BrokerAnswer | None
    partition: TopicIdPartition | None
    role: Role | None = None
    host: SidecarLog | None = None
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one look.

    ``broker_error``: why the broker did not answer. ``without_leader``: the number of partitions
    for which its answer names no leader; None if it did not answer. ``changed``: this look differs
    from the last one. ``learned``: other leaders have copied or removed segments of followed
    partitions.
    """

    listing: Listing
    partitions: tuple[Seen, ...]
    warnings: tuple[str, ...] = ()
    broker_error: str | None = None
    without_leader: int | None = None
    changed: bool = True
    learned: bool = False


class Watch:
    """Watches the partitions of one broker. For one thread.

    ``all_known``: the metadata has all segments of the store. ``relearn``: add segments that the
    metadata lacks even if there is no sign of another leader. Every look adds the segments of
    partitions that other brokers lead. With a ``memory``, unchanged directories are not listed at
    every look. ``notes`` is the state directory as a store; the last answers of the ``broker`` are
    noted there. ``archive_ids`` decides the topic ids of the archives.
    """

    def __init__(
        self,
        logs: LogDir,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        learner: StoreLearner,
        settings: WatchSettings,
        *,
        notes: ObjectStore,
        archive_ids: ArchiveIds,
        broker: Cluster | None = None,
        all_known: bool = False,
        relearn: bool = False,
        memory: ListingMemory | None = None,
    ) -> None:
        self._logs = logs
        self._archive_ids = archive_ids
        self._metadata = metadata
        self._storage = storage
        self._learner = learner
        self._settings = settings
        self._broker = broker
        self._last_answers = LastAnswers(notes, logs.node_id)
        self._all_known = all_known
        self._relearn = relearn
        self._memory = memory
        self._topics = frozenset(settings.topics)
        self._seen: dict[TopicPartition, Seen] = {}
        self._roles: dict[TopicIdPartition, Role] = {}
        self._hosts: dict[TopicIdPartition, SidecarLog] = {}
        # The leader epoch in which the segments of a partition were last added from the store.
        self._learned: dict[TopicIdPartition, int] = {}

    @property
    def hosts(self) -> Sequence[SidecarLog]:
        """Return the partitions that are led or followed now."""
        return tuple(self._hosts.values())

    def configure(self, settings: WatchSettings) -> None:
        """Set the settings, from the next look on."""
        self._settings = settings
        self._topics = frozenset(settings.topics)
        self._seen = {}
        for host in self._hosts.values():
            host.configure(settings.topic)

    def look(self, manager: Leadership) -> Look:
        """List the directories, ask the broker, and update `manager`.

        Raises ConfigError when the broker belongs to another cluster. While the store does not
        answer, partitions for which it must be read are left out.
        """
        warnings: list[str] = []
        listing = self._logs.listing(self._memory)
        wanted = [
            log for log in listing.partitions if not self._topics or log.topic in self._topics
        ]
        warnings += _unreadable_directories(self._logs, listing)
        answers, broker_error = self._ask(wanted)
        without_leader = _count_without_leader(answers)
        wanted, answers = self._archive_ids.assign(
            wanted,
            answers,
            may_derive=lacks_topic_ids(self._logs, listing.partitions),
            warnings=warnings,
        )
        if answers is not None:
            warnings += _what_answers_say(wanted, answers, self._settings.topic)
        seen = self._see_all(wanted, answers, warnings)
        unlearned = self._learn(seen.values(), warnings)
        learned = self._follow_leaders(seen.values(), warnings)
        self._let_go(seen.values(), manager)
        for one in seen.values():
            if one.partition not in unlearned:
                self._hand_over(one, manager, warnings)
            elif one.partition in self._hosts:
                # The tasks of the earlier role must wait, because it is unknown which segments
                # other brokers have copied since then.
                self._hosts[one.partition].gone()
        changed = seen.keys() != self._seen.keys() or any(
            self._seen[name] is not one for name, one in seen.items()
        )
        self._seen = seen
        return Look(
            listing=listing,
            partitions=tuple(seen.values()),
            warnings=tuple(warnings),
            broker_error=broker_error,
            without_leader=without_leader,
            changed=changed,
            learned=learned,
        )

    # -- asking

    def _ask(
        self, logs: Sequence[PartitionLog]
    ) -> tuple[Mapping[TopicPartition, BrokerAnswer] | None, str | None]:
        """Return the broker's answers, or why there are none."""
        if self._broker is None:
            return None, None
        try:
            return self._broker.ask(log.topic_partition for log in logs), None
        except TierlogError as error:
            if not error.retriable:
                raise
            return None, f"{error}; what it said last holds, and nothing else is taken up"

    def _see_all(
        self,
        logs: Sequence[PartitionLog],
        answers: Mapping[TopicPartition, BrokerAnswer] | None,
        warnings: list[str],
    ) -> dict[TopicPartition, Seen]:
        """Return each partition with its answer, which is stored durably before its use."""
        if self._broker is None:
            return {log.topic_partition: self._see(log, None) for log in logs}
        self._last_answers.load(warnings.append)
        completed = [
            (
                log,
                self._complete(log, None if answers is None else answers.get(log.topic_partition)),
            )
            for log in logs
        ]
        self._last_answers.save(warnings.append)
        return {log.topic_partition: self._see(log, answer) for log, answer in completed}

    def _complete(self, log: PartitionLog, answer: BrokerAnswer | None) -> BrokerAnswer | None:
        partition = _partition(log)
        if partition is None:
            return answer
        return self._last_answers.complete(partition, answer, _written_epoch(log))

    def _see(self, log: PartitionLog, answer: BrokerAnswer | None) -> Seen:
        before = self._seen.get(log.topic_partition)
        if before is not None and before.log == log and before.answer == answer:
            return before
        partition = _partition(log)
        leader_id = None if answer is None else answer.leader_id
        led_by = leader_id if leader_id != self._logs.node_id else None
        reason, decisions = self._why_not(log, answer, None)
        refused = decisions if reason in _NOT_TIERED or partition is None else None
        if refused is None and not _same_topic(log, answer):
            refused = _another_topic(log)
        elif refused is None and self._broker is not None and leader_id is None:
            refused = _leader_unknown(log)
        if refused is not None or partition is None:
            return Seen(log=log, answer=answer, partition=partition, decisions=refused or ())
        if led_by is not None:
            decisions = self._why_not(log, answer, led_by)[1]
        elif self._settings.topic.copy_disabled:
            text = "all copies are paused (remote.log.copy.disable)"
            decisions = _decide_all(log, Ineligible.COPY_DISABLED, text)
        role = Role(led_by is None, self._leader_epoch(partition, log, answer))
        host = self._hosts.get(partition) or SidecarLog(
            partition, self._metadata, self._storage, self._settings.topic
        )
        return Seen(
            log=log,
            answer=answer,
            partition=partition,
            role=role,
            host=host,
            decisions=decisions,
        )

    def _why_not(
        self, log: PartitionLog, answer: BrokerAnswer | None, led_by: int | None
    ) -> tuple[Ineligible | None, tuple[Decision, ...]]:
        """Return the reason why the first segment is not copied, and all decisions."""
        facts = copy_facts(
            log if log.archived_as is not None else replace(log, topic_id=None),
            _NO_OFFSET,
            copied=Coverage(),
            compacted=None if answer is None else answer.compacted,
            led_by=led_by,
            include_internal=self._settings.include_internal,
            include_compacted=self._settings.include_compacted,
        )
        if self._broker is not None:
            # In the directory, a topic looks compacted only after the cleaner has run.
            facts = replace(facts, compacted=None if answer is None else answer.compacted)
        decisions = decide_segments(log.segments, facts)
        reason = decisions[0].reason if decisions else None
        if self._broker is not None and reason is Ineligible.COMPACTION_UNKNOWN:
            decisions = _policy_unknown(log)
        return reason, decisions

    def _leader_epoch(
        self, partition: TopicIdPartition, log: PartitionLog, answer: BrokerAnswer | None
    ) -> int:
        """Return the broker's leader epoch, or the last epoch in the log. The result never
        decreases, because the metadata would then treat this leader as deposed."""
        told = None if answer is None else answer.leader_epoch
        return max(
            -1 if told is None else told,
            _written_epoch(log),
            self._metadata.leader_epoch(partition),
        )

    # -- telling

    def _learn(self, seen: Iterable[Seen], warnings: list[str]) -> frozenset[TopicIdPartition]:
        """Add the segments that other brokers have copied of newly led partitions, and remove those
        that they have deleted. Return the partitions for which the store did not answer."""
        found = {one.partition: one for one in seen if one.partition and one.role}
        anew = [
            (partition, one.role.leader_epoch)
            for partition, one in found.items()
            if one.role and one.role.leads and self._led_by_others(partition, one)
        ]

        def warn(problem: Problem) -> None:
            if problem.reason is not ProblemReason.DEPOSED_COPY:
                warnings.append(str(problem))

        partitions = [partition for partition, _ in anew]
        if partitions and not self._all_known:
            try:
                self._learner.take_over(partitions, warn)
            except TierlogError as error:
                warnings.append(f"cannot tell what other brokers have copied: {error}")
                return frozenset(partitions)
            for host in filter(None, map(self._hosts.get, partitions)):
                host.relearn()
        self._all_known = False
        self._learned |= dict(anew)
        return frozenset()

    def learn_partition(self, partition: TopicIdPartition, warn: Callable[[str], object]) -> bool:
        """Add the segments that other brokers have copied since the last look. Return whether every
        listed segment was read. Any thread may call this. Raises as `StoreLearner.learn`."""
        is_whole = True

        def tell(problem: Problem) -> None:
            nonlocal is_whole
            is_whole = is_whole and not problem.hides_segment
            if problem.reason is not ProblemReason.DEPOSED_COPY:
                warn(str(problem))

        self._learner.learn([partition], tell)
        host = self._hosts.get(partition)
        if host is not None:
            host.relearn()
        return is_whole and self._learner.learns

    def _follow_leaders(self, seen: Iterable[Seen], warnings: list[str]) -> bool:
        """Add and remove the segments that the leaders of followed partitions have copied and
        deleted since the last look. Return whether anything changed."""
        learned = False
        for one in seen:
            if one.partition is None or one.role is None or one.role.leads:
                continue
            try:
                changed = self._learner.follow(one.partition)
            except TierlogError as error:
                warnings.append(f"cannot tell what other brokers have copied: {error}")
                return learned
            learned = learned or changed
            if changed and one.host is not None:
                one.host.relearn()
        return learned

    def _led_by_others(self, partition: TopicIdPartition, one: Seen) -> bool:
        """Return whether another broker may have led the partition after segments were last added
        from the store."""
        if one.role is None or self._learned.get(partition) == one.role.leader_epoch:
            return False
        if self._relearn and partition not in self._learned:
            return True
        known = self._metadata.leader_epoch(partition)
        replicas = 1 if one.answer is None else one.answer.replica_count
        return known < 0 or (one.role.leader_epoch > known and replicas != 1)

    def _let_go(self, seen: Iterable[Seen], manager: Leadership) -> None:
        """Stop the partitions that this broker no longer leads or follows."""
        kept = {one.partition for one in seen if one.role is not None}
        for partition in [one for one in self._roles if one not in kept]:
            self._stop(partition, manager)

    def _stop(self, partition: TopicIdPartition, manager: Leadership) -> None:
        if self._roles.pop(partition, None) is not None:
            self._hosts.pop(partition).gone()
            manager.stop_partition(partition)

    def _hand_over(self, one: Seen, manager: Leadership, warnings: list[str]) -> None:
        """Give the partition to the manager, or update its log."""
        if one.partition is None or one.role is None or one.host is None:
            return
        try:
            one.host.look(one.log, one.answer)
        except TierlogError as error:
            warnings.append(f"{one.log.name}: {error}")
            self._stop(one.partition, manager)
            return
        if self._roles.get(one.partition) == one.role:
            return
        take = manager.become_leader if one.role.leads else manager.become_follower
        take(one.partition, one.role.leader_epoch, one.host)
        self._hosts[one.partition] = one.host
        self._roles[one.partition] = one.role


def _partition(log: PartitionLog) -> TopicIdPartition | None:
    if log.archived_as is None:
        return None
    return TopicIdPartition(topic_id=log.archived_as, topic=log.topic, partition=log.partition)


def _same_topic(log: PartitionLog, answer: BrokerAnswer | None) -> bool:
    """Return whether the topic of this name in the cluster is still this topic, as far as known."""
    return answer is None or answer.topic_id is None or answer.topic_id == log.archived_as


def _written_epoch(log: PartitionLog) -> int:
    """Return the last leader epoch in the log."""
    entries = log.lineage.entries if log.lineage else ()
    return entries[-1].epoch if entries else 0


def _another_topic(log: PartitionLog) -> tuple[Decision, ...]:
    text = f"the cluster has another topic named {log.topic} by now"
    return _decide_all(log, Ineligible.TOPIC_ID_UNKNOWN, text)


def _leader_unknown(log: PartitionLog) -> tuple[Decision, ...]:
    text = "the broker has not said which broker leads this partition in its present leader epoch"
    return _decide_all(log, Ineligible.LEADER_UNKNOWN, text)


def _policy_unknown(log: PartitionLog) -> tuple[Decision, ...]:
    text = (
        "the broker has never said whether this topic is compacted (brokers before 0.11 cannot: if "
        "it is not, name it with --topic and give --include-compacted)"
    )
    return _decide_all(log, Ineligible.COMPACTION_UNKNOWN, text)


def _decide_all(log: PartitionLog, reason: Ineligible, text: str) -> tuple[Decision, ...]:
    return tuple(Decision(segment=one, reason=reason, text=text) for one in log.segments)


def _unreadable_directories(logs: LogDir, listing: Listing) -> list[str]:
    return [f"{one}; the others are tiered" for one in listing.skipped if one.path in logs.paths]


def _count_without_leader(
    answers: Mapping[TopicPartition, BrokerAnswer] | None,
) -> int | None:
    return None if answers is None else sum(one.leader_id is None for one in answers.values())


def _what_answers_say(
    logs: Sequence[PartitionLog],
    answers: Mapping[TopicPartition, BrokerAnswer],
    settings: TopicSettings,
) -> list[str]:
    """Return warnings about partitions that the cluster does not list, and about partitions whose
    segments the broker may delete before they are copied."""
    warnings = []
    for log in logs:
        answer = answers.get(log.topic_partition)
        if answer is None:
            if not log.is_cluster_metadata:
                warnings.append(
                    f"{log.name}: the broker does not list it (deleted, or not ours to describe); "
                    "what it said last holds"
                )
        elif _goes_before_copied(answer, settings):
            warnings.append(
                f"{log.name}: the copy lag is not below what the broker keeps "
                f"(retention.ms {answer.retention_ms}, retention.bytes {answer.retention_bytes}): "
                "segments may be deleted before they are copied"
            )
    return warnings


def _goes_before_copied(answer: BrokerAnswer, settings: TopicSettings) -> bool:
    """Return whether the broker may delete a segment while its copy is held back."""
    lag_ms, lag_bytes = settings.copy_lag_ms, settings.copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return False
    kept_ms = answer.retention_ms if answer.retention_ms is not None else -1
    kept_bytes = answer.retention_bytes if answer.retention_bytes is not None else -1
    # A copy starts after the first lag, a deletion after the first limit.
    in_time = kept_ms < 0 or 0 < lag_ms < kept_ms
    in_bytes = kept_bytes < 0 or 0 < lag_bytes < kept_bytes
    return not (in_time and in_bytes)
