"""Connects the watch of one broker's directories with the remote log manager of one store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Protocol

from tierlog.broker import BrokerClient
from tierlog.clock import Clock, SystemClock
from tierlog.config import Config, MetadataKind, QuotaConfig, RemoteIndexConfig
from tierlog.errors import ConfigError, RemoteMetadataError, TierlogError
from tierlog.log.eligibility import Decision, Ineligible, copy_facts, decide_segments
from tierlog.log.listing_memory import ListingMemory
from tierlog.log.log_dir import LogDir, PartitionLog
from tierlog.metrics import LookStats, RemoteLogMetrics
from tierlog.quota import QuotaManager, QuotaWaitCancelledError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.plugins import make_metadata_manager, make_storage_manager
from tierlog.remote.segment.claims import StoreClaims
from tierlog.remote.segment.layout import claim_cluster
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import LocalStore, open_store
from tierlog.sidecar.deleted_topics import DeletedTopics
from tierlog.sidecar.dry_run import DryRunStore, copy_metadata
from tierlog.sidecar.events import Events, row_of_decision
from tierlog.sidecar.learn import StoreLearner
from tierlog.sidecar.places import open_logs
from tierlog.sidecar.report import (
    Outcome,
    Progress,
    Status,
    TierListener,
    TierReport,
    TierRow,
)
from tierlog.sidecar.said import Said, SparingListener
from tierlog.sidecar.settings import CopyLimit, list_changes, topic_settings, unless_off
from tierlog.sidecar.strays import StraySettler
from tierlog.sidecar.topic_ids import ArchiveIds
from tierlog.sidecar.watch import Look, Seen, Watch, WatchSettings
from tierlog.tiering.copy import SegmentCopier
from tierlog.tiering.delete_task import PARTITION_DELETED
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import coverage
from tierlog.types import TopicIdPartition
from tierlog.zookeeper import ZooKeeperSettings

__all__ = ["Sidecar", "Stop"]

METADATA_FILE = "metadata.sqlite"
# A task without progress for this time is reported.
STUCK_MS = 300_000
# Timeout of the first read of the metadata topic.
_TOPIC_READ_S = 300.0
_NEEDS_BROKER = (
    "tierlog.deleted.topic.retention.ms needs tierlog.bootstrap.servers: only a broker knows which "
    "topics are deleted"
)


class Stop(Protocol):
    """The signal that ends `Sidecar.run`, for example a `threading.Event`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds, or less. Return True when the sidecar should stop."""
        ...


class Sidecar:
    """Tiers the log directories of one broker into one store.

        with Sidecar(["/var/lib/kafka"], "s3://bucket/prefix", state_dir="...") as sidecar:
            report = sidecar.run_once()         # one pass, or
            sidecar.run(stop, listener)         # on and on, until the event `stop` is set

    ``config`` decides what is copied, how fast, and how long the archive is kept (docs/CONFIG.md).
    With ``tier.bootstrap_servers`` the sidecar asks that cluster for leaders, policies and last
    stable offsets, and waits ``broker_timeout_s`` for an answer. It does not copy partitions of
    other leaders. While the broker does not answer, the sidecar uses the last answers and warns. It
    does not copy a partition whose leader or policy is unknown. Without ``tier.bootstrap_servers``
    it uses the checkpoints. With ``tier.zookeeper_connect`` it follows each change of the broker's
    copy limit in ZooKeeper.

    ``copy_quota`` replaces the quota of the settings. Closing it ends a wait and the pass with a
    ClosedError. A ``dry_run`` reads and checks everything, and changes neither the store nor the
    state directory, because it works on a copy of the latter. `run_once` then reports what it would
    do. ``repair`` compares every byte in the store once, repairs defects and removes superfluous
    objects.

    Raises ConfigError when the store belongs to another cluster, the directories belong to several
    brokers, or no broker was given to ask about deleted topics. Raises OSError when a directory
    cannot be read."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        store_url: str,
        *,
        state_dir: str,
        config: Config | None = None,
        copy_quota: QuotaManager | None = None,
        metrics: RemoteLogMetrics | None = None,
        clock: Clock | None = None,
        dry_run: bool = False,
        repair: bool = False,
        broker_timeout_s: float = 10.0,
    ) -> None:
        self._config = config or Config()
        tier = self._config.tier
        if tier.deleted_topic_retention_ms >= 0 and tier.bootstrap_servers is None:
            raise ConfigError(_NEEDS_BROKER)
        store = open_store(store_url)
        self._logs = open_logs(log_dirs, store, state_dir, self._config.remote_index.dir)
        self._clock = clock or SystemClock()
        self._store = _read_only_if(dry_run, store)
        self._settings = WatchSettings(
            topics=tier.topics,
            include_compacted=tier.include_compacted_topics,
            include_internal=tier.include_internal_topics,
            topic=topic_settings(self._config),
        )
        self._broker = self._broker_at(broker_timeout_s)
        self._cluster_id, self._said_first = _cluster_id(self._logs, tier.cluster_id, self._broker)
        claim_cluster(self._store, self._cluster_id)
        if copy_quota is None or dry_run:
            quota = QuotaConfig() if dry_run else self._config.quota
            copy_quota = QuotaManager.for_copies(quota, self._clock)
        self._copy_quota = copy_quota
        self._repair = repair
        self._events = Events(self._clock, dry_run=dry_run)
        self._undo = ExitStack()
        self._notes = _read_only_if(dry_run, LocalStore(state_dir, clock=self._clock))
        index_config = self._config.remote_index
        if dry_run:
            index_config = replace(index_config, dir=None)
        self._storage, self._metadata = self._open_managers(state_dir, dry_run)
        self._manager = RemoteLogManager(
            self._storage,
            self._metadata,
            broker_id=self._broker_id,
            clock=self._clock,
            options=self._manager_options(index_config, metrics),
        )
        self._watch: Watch | None = None
        self._strays = StraySettler(self._metadata, self._copier(), self._claims())
        self._deleted_topics = self._opened_deleted_topics(tier.deleted_topic_retention_ms)
        self._refused: dict[tuple[str, int, int], TierRow] = {}
        self._dry_run = dry_run
        self._copy_limit = CopyLimit(
            copy_quota,
            copy_quota.limit,
            on_change=self._events.change,
            on_warning=self._events.warn,
        )
        self._broker_timeout_s = broker_timeout_s
        self._zookeeper: ZooKeeperSettings | None = None
        self._zookeeper_error: str | None = None

    def _manager_options(
        self, index_config: RemoteIndexConfig, metrics: RemoteLogMetrics | None
    ) -> ManagerOptions:
        return ManagerOptions(
            config=self._config.remote_log,
            log_config=self._config.log,
            index_config=index_config,
            plugin_config=self._config.plugin,
            cluster_id=self._cluster_id,
            copy_quota=self._copy_quota,
            metrics=metrics,
            listener=self._events,
            include_internal=self._settings.include_internal,
            include_compacted=self._settings.include_compacted,
            check_interval_ms=unless_off(self._config.tier.store_check_interval_ms),
            repair=self._repair,
            claim_in_store=True,
            # Without metrics no probe is sent, because only a metric needs the answer.
            probe_store=metrics is not None,
            learn_partition=self._learn_partition,
        )

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def metadata(self) -> RemoteLogMetadataManager:
        """The metadata of the segments in the store."""
        return self._metadata

    @property
    def manager(self) -> RemoteLogManager:
        """The remote log manager; the sidecar starts and closes it."""
        return self._manager

    def close(self, timeout_ms: int = 30_000) -> tuple[str, ...]:
        """Stop all tasks and release the state directory. An active copy removes its objects.
        Return the tasks that did not end in time; the next run resumes their copies. The call may
        be repeated."""
        left = self._manager.close(timeout_ms)
        self._metadata.close()
        self._storage.close()
        self._undo.close()
        return tuple(
            f"{one.key}: still at work after {one.running_ms} ms; the next run settles it"
            for one in left
        )

    # -- one pass

    def run_once(self, on_progress: Callable[[Progress], None] | None = None) -> TierReport:
        """Run one pass over all partitions in this thread."""
        gathered = _Pass(on_progress or _ignore)
        self._events.begin(gathered, 0)
        look = self._look()
        for warning in filter(None, (self._said_first, *look.warnings, look.broker_error)):
            self._events.warn(warning)
        sizes = self._planned_sizes(look)
        self._events.begin(gathered, sum(sizes))
        oversize = self._copy_quota.oversize_warning(max(sizes, default=0))
        if oversize is not None:
            self._events.warn(oversize)
        self._manager.run_until_idle()
        self._raise_if_quota_closed()
        self._add_the_rest(look, gathered)
        return TierReport(
            rows=(*gathered.rows.values(), *gathered.deleted),
            skipped_files=(
                *look.listing.skipped,
                *(skipped for seen in look.partitions for skipped in seen.log.skipped),
            ),
            problems=(
                *look.listing.problems,
                *(problem for seen in look.partitions for problem in seen.log.problems),
            ),
            warnings=tuple(gathered.warnings),
            quota_wait_ms=self._events.quota_wait_ms,
            failures=tuple(f"{task}: {text}" for task, text in gathered.failed.items()),
        )

    def _planned_sizes(self, look: Look) -> list[int]:
        """Return the sizes of the segments that may be copied now."""
        return [
            decision.segment.size_bytes
            for seen in look.partitions
            for decision in self._plan(seen)
            if decision.eligible
        ]

    def _plan(self, seen: Seen) -> tuple[Decision, ...]:
        view = seen.host.view() if seen.host and seen.role and seen.role.leads else None
        if (
            view is None
            or seen.partition is None
            or view.topic.copy_disabled
            or view.log.leader_epochs is None
        ):
            return ()
        copied = coverage(self._metadata.list(seen.partition), view.log.leader_epochs)
        facts = copy_facts(
            view.log,
            view.stable,
            copied=copied,
            compacted=view.compacted,
            include_internal=self._settings.include_internal,
            include_compacted=self._settings.include_compacted,
        )
        return decide_segments(view.log.segments, facts)

    def _add_the_rest(self, look: Look, gathered: _Pass) -> None:
        """Add a row for every segment without an outcome."""
        for seen in look.partitions:
            failure = gathered.failure_of(seen)
            decisions = {one.segment.base_offset: one for one in seen.decisions}
            for decision in self._decisions(seen):
                decisions[decision.segment.base_offset] = decision
            for decision in decisions.values():
                row = row_of_decision(seen.log, decision, failure)
                key = (row.topic, row.partition, row.base_offset)
                refused = self._refused.get(key)
                if key in gathered.rows:
                    if gathered.rows[key].outcome is Outcome.REFUSED:
                        self._refused[key] = gathered.rows[key]
                elif refused is not None and decision.eligible:
                    self._events.add(refused)
                else:
                    self._events.add(row)

    def _decisions(self, seen: Seen) -> tuple[Decision, ...]:
        """Return the decisions of the manager's last run, if it leads the partition."""
        view = seen.host.view() if seen.host is not None else None
        if seen.partition is None or view is None or seen.role is None or not seen.role.leads:
            return ()
        return (
            *_expired_decisions(seen.log, view.log_start_offset),
            *(self._manager.decisions(seen.partition) or ()),
        )

    def _raise_if_quota_closed(self) -> None:
        try:
            self._copy_quota.wait(cancelled=lambda: True)
        except QuotaWaitCancelledError:
            return

    # -- on and on

    def run(
        self,
        stop: Stop,
        listener: TierListener,
        next_config: Callable[[], Config | None] | None = None,
    ) -> None:
        """Tier until `stop` is set, and report events to `listener`.

        ``next_config`` is called after each wait and returns settings for `reconfigure`. An error
        of the first look is raised, as in `run_once`. After that, a failing directory, broker or
        store causes a warning, and the next look tries again. Raises RemoteMetadataError when the
        state directory cannot be written. The caller then closes the sidecar, and the next start
        reads the state directory again.
        """
        self._events.begin(SparingListener(self._clock, listener), 0)
        said = Said(self._clock, self._events.announce)
        look = self._look()
        oversize = self._copy_quota.oversize_warning(self._config.log.segment_bytes)
        if oversize is not None:
            self._events.warn(oversize)
        self._manager.start()
        while True:
            self._tell(look, said)
            if stop.wait(self._config.remote_log.manager_task_interval_ms / 1000):
                return
            self._require_sound_state()
            config = None if next_config is None else next_config()
            if config is not None:
                self.reconfigure(config)
            try:
                look = self._look()
            except (TierlogError, OSError) as error:
                said.say(f"{error}; tried again at the next look")
                continue
            if look.changed:
                self._manager.copy_pool.hurry()
            if look.learned:
                self._manager.follower_pool.hurry()

    def _require_sound_state(self) -> None:
        """Raise RemoteMetadataError when the state directory accepts no more changes."""
        metadata = self._metadata
        if isinstance(metadata, SqliteRemoteLogMetadataManager) and metadata.failure is not None:
            raise RemoteMetadataError(
                f"{metadata.path}: a change could not be written ({metadata.failure}), so what the "
                "disk holds is unknown; the sidecar ends. Start it again: it reads the file back"
            )

    def _tell(self, look: Look, said: Said) -> None:
        for text in filter(None, (self._said_first, *look.warnings)):
            said.say(text)
        for problem in look.listing.problems:
            said.say(str(problem))
        for seen in look.partitions:
            for problem in seen.log.problems:
                said.say(str(problem))
        said.state("broker", look.broker_error, "the broker answers again")
        said.state("zookeeper", self._zookeeper_error, "ZooKeeper answers again")
        stuck = self._stuck()
        for text in stuck:
            said.say(text)
        lag = self._manager.metrics.snapshot().total_sums.copy_lag
        roles = [seen.role for seen in look.partitions if seen.role is not None]
        counts = self._events.counts
        self._events.listener.on_status(
            Status(
                led=sum(role.leads for role in roles),
                followed=sum(not role.leads for role in roles),
                copied_segments=counts[Outcome.COPIED],
                copied_bytes=self._events.copied_bytes,
                expired_segments=counts[Outcome.EXPIRED],
                refused_segments=counts[Outcome.REFUSED],
                lag_bytes=None if lag is None else int(lag[0]),
                lag_segments=None if lag is None else int(lag[1]),
                stuck=len(stuck),
                broker_answers=None if self._broker is None else look.broker_error is None,
            )
        )

    def _stuck(self) -> list[str]:
        """Return the tasks that are running but make no progress."""
        now_ms = self._clock.monotonic_ms()
        found = []
        for pool in (
            self._manager.copy_pool,
            self._manager.expiration_pool,
            self._manager.follower_pool,
        ):
            for one in pool.running():
                moved_ms = (
                    self._events.moved_ms(one.key)
                    if isinstance(one.key, TopicIdPartition)
                    else None
                )
                still_ms = one.running_ms if moved_ms is None else now_ms - moved_ms
                if min(one.running_ms, still_ms) >= STUCK_MS:
                    minutes = STUCK_MS // 60_000
                    found.append(f"{one.key}: {pool.name} task stuck for over {minutes} minutes")
        return found

    # -- settings that change

    def reconfigure(self, config: Config) -> None:
        """Apply the settings of `config` that can change at run time.

        Reports each changed setting to the listener, and which ones need a restart. Contradicting
        settings change nothing, and the listener receives the reason. Only the thread of the
        sidecar may call it, between two looks.
        """
        changes = list(list_changes(self._config, config))
        retention_ms = config.tier.deleted_topic_retention_ms
        try:
            if retention_ms >= 0 and self._broker is None:
                raise ConfigError(_NEEDS_BROKER)
            self._copy_quota.set_mode(config.quota.copy_quota_mode)
        except ConfigError as error:
            self._events.change(f"settings not changed: {error}")
            return
        for change in changes:
            self._events.change(str(change))
        if not changes:
            self._events.change("settings not changed: they are as before")
        self._config = config
        self._copy_limit.set_own(config.quota.copy_max_bytes_per_second)
        self._settings = replace(
            self._settings, topics=config.tier.topics, topic=topic_settings(config)
        )
        if self._watch is not None:
            self._watch.configure(self._settings)
        if retention_ms >= 0 and self._deleted_topics is not None:
            self._deleted_topics.set_retention(retention_ms)
        else:
            self._deleted_topics = self._opened_deleted_topics(retention_ms)
        self._manager.set_max_deleted_ratio(config.remote_log.retention_max_deleted_ratio)
        self._manager.set_interval(config.remote_log.manager_task_interval_ms)

    def _follow_broker(self) -> None:
        """Use the copy limit that is set in the running broker, instead of the settings' limit."""
        if self._broker is None or self._dry_run or self._config.tier.zookeeper_connect:
            return
        given = self._broker.dynamic_settings(self._broker_id)
        if given is not None:
            self._copy_limit.follow(given, self._broker_id)

    def _follow_zookeeper(self) -> None:
        """Follow the broker's copy limit in ZooKeeper from now on, at each change."""
        connect = self._config.tier.zookeeper_connect
        if connect is None or self._dry_run or self._zookeeper is not None:
            return
        self._zookeeper = ZooKeeperSettings(
            connect,
            self._broker_id,
            on_change=lambda given: self._copy_limit.follow(given, self._broker_id),
            on_state=self._note_zookeeper_state,
            timeout_s=self._broker_timeout_s,
        )
        self._undo.callback(self._zookeeper.close)

    def _note_zookeeper_state(self, error: str | None) -> None:
        self._zookeeper_error = error

    # -- both

    def _look(self) -> Look:
        try:
            return self._look_at_all()
        except (TierlogError, OSError):
            self._manager.metrics.look_failed()
            raise

    def _look_at_all(self) -> Look:
        if self._watch is None:
            self._watch = self._first_watch()
        self._follow_zookeeper()
        look = self._watch.look(self._manager)
        self._show(look)
        if look.broker_error is None:
            self._follow_broker()
        busy = {one.key for one in self._manager.copy_pool.running()}
        busy |= {partition for partition, leads in self._manager.partitions().items() if leads}
        self._strays.settle(
            {one for one in busy if isinstance(one, TopicIdPartition)}, self._events.warn
        )
        if self._deleted_topics is not None and look.broker_error is None:
            here = {one.topic_id for one in look.listing.partitions if one.topic_id is not None}
            self._deleted_topics.settle(here, self._settings.topics, self._events.warn)
        return look

    def _show(self, look: Look) -> None:
        self._manager.metrics.set_look(
            LookStats(
                broker_answers=None if self._broker is None else look.broker_error is None,
                partitions_without_leader=look.without_leader,
                unreadable_directories=sum(
                    one.path in self._logs.paths for one in look.listing.skipped
                ),
            )
        )

    def _learn_partition(self, partition: TopicIdPartition) -> bool:
        return self._watch is not None and self._watch.learn_partition(partition, self._events.warn)

    def _first_watch(self) -> Watch:
        learner = StoreLearner(self._storage.store, self._metadata)
        all_known = learner.learn_if_lost(lambda problem: self._events.warn(str(problem)))
        self._manager.resume_deletions()
        return Watch(
            self._logs,
            self._metadata,
            self._storage,
            learner,
            self._settings,
            notes=self._notes,
            archive_ids=ArchiveIds(
                self._store,
                self._cluster_id,
                include_internal=self._settings.include_internal,
            ),
            broker=self._broker,
            all_known=all_known,
            memory=ListingMemory(self._clock),
            relearn=self._repair,
        )

    def _open_managers(
        self, state_dir: str, dry_run: bool
    ) -> tuple[RemoteStorageManager, RemoteLogMetadataManager]:
        """Return the managers that the settings name, or else the managers for the store and
        `state_dir`."""
        about = {"cluster.id": self._cluster_id, "broker.id": str(self._broker_id)}
        storage = make_storage_manager(self._config, self._store, about)
        metadata = make_metadata_manager(self._config, self._store.url, about)
        if metadata is None and self._config.tier.metadata is MetadataKind.TOPIC:
            metadata = _topic_metadata(self._config.tier.bootstrap_servers)
        if dry_run and (metadata is not None or storage.store is None):
            raise ConfigError(
                "a dry run cannot keep the metadata topic and managers of other packages from "
                "writing; run it without tierlog.metadata=topic, "
                "remote.log.storage.manager.class.name and remote.log.metadata.manager.class.name"
            )
        return storage, metadata or self._opened_metadata(state_dir, dry_run)

    def _opened_metadata(self, state_dir: str, dry_run: bool) -> SqliteRemoteLogMetadataManager:
        """Return the metadata of the state directory; for a dry run a copy that `close` removes."""
        if dry_run:
            real_file = os.path.join(state_dir, METADATA_FILE)
            state_dir = self._undo.enter_context(TemporaryDirectory(prefix="tierlog-dry-run-"))
            copy_metadata(real_file, os.path.join(state_dir, METADATA_FILE))
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        return SqliteRemoteLogMetadataManager(os.path.join(state_dir, METADATA_FILE))

    def _broker_at(self, timeout_s: float) -> BrokerClient | None:
        tier = self._config.tier
        if tier.bootstrap_servers is None:
            return None
        known = self._logs.cluster_id or tier.cluster_id
        return BrokerClient(tier.bootstrap_servers, cluster_id=known, timeout_s=timeout_s)

    def _opened_deleted_topics(self, retention_ms: int) -> DeletedTopics | None:
        if retention_ms < 0 or self._broker is None:
            return None
        return DeletedTopics(
            self._broker,
            self._metadata,
            self._storage.store,
            notes=self._notes,
            retention_ms=retention_ms,
            clock=self._clock,
            delete=partial(self._manager.stop_partition, delete_remote=True),
        )

    @property
    def _broker_id(self) -> int:
        return -1 if self._logs.node_id is None else self._logs.node_id

    def _claims(self) -> StoreClaims | None:
        """Return the claims in the store. None when the brokers share metadata: then the shared
        metadata fences deposed leaders, so no claims are needed."""
        store = self._storage.store
        if store is None or not isinstance(self._metadata, SqliteRemoteLogMetadataManager):
            return None
        return StoreClaims(store, broker_id=self._broker_id, clock=self._clock)

    def _copier(self) -> SegmentCopier:
        return SegmentCopier(
            self._storage,
            self._metadata,
            clock=self._clock,
            broker_id=self._broker_id,
            cluster_id=self._cluster_id,
        )


class _Pass(TierListener):
    """Collects the report of one pass; the last row of a segment counts."""

    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self._on_progress = on_progress
        self.rows: dict[tuple[str, int, int], TierRow] = {}
        # Rows of deleted topics: other topics may have their names and offsets now.
        self.deleted: list[TierRow] = []
        self.warnings: list[str] = []
        self.failed: dict[str, str] = {}

    def on_row(self, row: TierRow) -> None:
        if row.reason == PARTITION_DELETED:
            self.deleted.append(row)
        else:
            self.rows[(row.topic, row.partition, row.base_offset)] = row

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)

    def on_failure(self, task: str, text: str) -> None:
        self.failed[task] = text

    def failure_of(self, seen: Seen) -> str:
        """Return why the copy task of a partition stopped; empty when it did not."""
        name = seen.log.topic_partition
        told = (
            row.text
            for key, row in self.rows.items()
            if key[:2] == name and row.outcome is Outcome.FAILED
        )
        return self.failed.get(f"{seen.partition}, copy task") or next(told, "")

    def on_progress(self, progress: Progress) -> None:
        self._on_progress(progress)


def _topic_metadata(bootstrap: str | None) -> RemoteLogMetadataManager:
    """Return the metadata manager of the cluster's metadata topic, read to its end."""
    # Imported here: other sidecars do not need the client library.
    from tierlog.remote.metadata.topic import TopicBasedRemoteLogMetadataManager

    if bootstrap is None:
        raise ConfigError(
            "tierlog.metadata=topic needs tierlog.bootstrap.servers: the topic is the cluster's"
        )
    metadata = TopicBasedRemoteLogMetadataManager(bootstrap)
    try:
        metadata.wait_until_ready(timeout_s=_TOPIC_READ_S)
    except BaseException:
        metadata.close()
        raise
    return metadata


def _read_only_if(dry_run: bool, store: ObjectStore) -> ObjectStore:
    return DryRunStore(store) if dry_run else store


def _cluster_id(logs: LogDir, given: str | None, broker: BrokerClient | None) -> tuple[str, str]:
    """Return the cluster id of the directories, and a note about its source, because brokers up to
    2.3 do not write it into meta.properties."""
    known = logs.cluster_id
    if known is not None and given is not None and known != given:
        raise ConfigError(
            f"{', '.join(logs.paths)}: expected cluster.id {given} in meta.properties, as "
            f"tierlog.cluster.id (--cluster-id) says, found {known}"
        )
    silent = [
        path
        for path, meta in zip(logs.paths, logs.meta, strict=True)
        if meta is None or meta.cluster_id is None
    ]
    if not silent and known is not None:
        return known, ""
    source = "from --cluster-id" if given is not None else "as the other directories say"
    cluster_id = known or given
    if cluster_id is None and broker is not None:
        source, cluster_id = "as the broker says", broker.cluster_id()
    if cluster_id is None:
        raise ConfigError(
            f"{', '.join(logs.paths)}: no cluster.id in meta.properties, and without it two "
            "clusters could share a store; give it with --cluster-id (a broker from 0.10.1 on "
            "logs it when it starts; for an older one choose one name for each cluster)"
        )
    return cluster_id, (
        f"{', '.join(silent)}: no cluster.id in meta.properties; cluster {cluster_id} {source}"
    )


def _expired_decisions(log: PartitionLog, archive_start: int | None) -> list[Decision]:
    """Return rows for segments that the broker still has although retention deleted their
    records."""
    start_offset = archive_start or 0
    text = f"expired: all offsets lie below the archive's log start offset {start_offset}"
    return [
        Decision(segment, Ineligible.BELOW_LOG_START, text)
        for segment in log.segments
        if segment.next_base_offset is not None
        and (log.log_start_offset or 0) < segment.next_base_offset <= start_offset
    ]


def _ignore(_: object) -> None:
    pass
