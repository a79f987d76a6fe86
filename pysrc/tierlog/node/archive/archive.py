"""The cluster that an archive server shows: read-only, and kept up to date while it runs.

Topics are listed at the start and at every interval; the partitions of those that clients asked for
are listed again, too. A partition is loaded when it is first asked for. Later it is looked at again
beside the answers, at most once per interval, so that no client waits for the store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.errors import ConfigError, MetadataNotReadyError, TierlogError
from tierlog.log.listing_memory import ListingMemory
from tierlog.log.log_dir import LogDir, open_log_dir
from tierlog.node.archive.metadata import ArchiveMetadata
from tierlog.node.archive.partition import ArchivedPartition
from tierlog.node.archive.routing import RoutedStorage
from tierlog.node.archive.tiers import StoredTopic, Tier, open_tier
from tierlog.node.archive.topics import JoinedTopic, join_topics
from tierlog.node.cluster_view import ClusterView, LogDirView
from tierlog.reader.sources import Source, SourceKind
from tierlog.reader.types import FetchView
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import TopicIdPartition

__all__ = ["Archive", "open_archive"]

NODE_ID = 1
_UNKNOWN_CLUSTER = "tierlog-archive"
_THREADS = 16
# How long a request waits for partitions that are used for the first time.
_LOAD_WAIT_S = 10.0
# A directory is looked at more often: that takes no request.
_LOCAL_INTERVAL_MS = 500
# What no client asks for is forgotten, so that memory follows what is read.
_UNUSED_MS = 900_000


@dataclass(slots=True)
class _Known:
    """A partition that was asked for."""

    archived: ArchivedPartition
    used_ms: int
    loading: asyncio.Task[None] | None = None
    checked_ms: int = 0
    tier_checked_ms: int = 0
    failed: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Listed:
    """The topics at one moment."""

    topics: tuple[JoinedTopic, ...] = ()
    by_partition: dict[TopicIdPartition, JoinedTopic] = field(default_factory=dict)
    tier_of: dict[str, int] = field(default_factory=dict)


class Archive:
    """Makes the view of the cluster, and is the `FetchHost` of a `Fetcher`.

    `view` may be called by any thread, everything else by the event loop. ``on_change`` is called
    with a partition whose log has changed. ``report`` receives lines about damage and stores that
    fail.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        logs: LogDir | None,
        *,
        config: Config,
        clock: Clock | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        self._tiers = tuple(tiers)
        self._logs = logs
        self._clock = clock or SystemClock()
        self._report = report
        self._interval_ms = config.node.refresh_interval_ms
        self._memory = ListingMemory(self._clock)
        self.metadata = ArchiveMetadata()
        self.on_change: Callable[[TopicIdPartition], object] = lambda _: None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tierlog-archive")
        self._known: dict[TopicIdPartition, _Known] = {}
        self._asked_topics: set[str] = set()
        self._listed = _Listed()
        self._epochs: dict[TopicIdPartition, int] = {}
        self._view: ClusterView | None = None
        self._said: str | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self.cluster_id = self._find_cluster_id()

    @property
    def storage(self) -> RemoteStorageManager:
        """The storage of all stores."""
        if len(self._tiers) == 1:
            return self._tiers[0].storage
        return RoutedStorage(
            self._storage_of, is_local=all(tier.storage.is_local for tier in self._tiers)
        )

    def _storage_of(self, topic_id: str) -> RemoteStorageManager | None:
        number = self._listed.tier_of.get(topic_id)
        return None if number is None else self._tiers[number].storage

    def _find_cluster_id(self) -> str:
        found = [None if self._logs is None else self._logs.cluster_id]
        found += [tier.cluster_id() for tier in self._tiers]
        return next((one for one in found if one), _UNKNOWN_CLUSTER)

    # -- topics

    def list_topics(self) -> None:
        """List the topics again. Blocking; TierlogError or OSError when a store or
        directory cannot be listed."""
        recheck = None if self._view is None else self._asked_topics
        self._asked_topics = set()
        stored = [tier.list_topics(recheck) for tier in self._tiers]
        logs = () if self._logs is None else self._logs.listing(self._memory).partitions
        topics = join_topics(stored, logs, self.cluster_id, self._newest_ms)
        self._listed = _Listed(
            tuple(topics),
            {partition: topic for topic in topics for partition in topic.partitions},
            {one.stored_id: one.tier for one in topics if one.tier is not None},
        )
        self._view = None

    def _newest_ms(self, tier: int, topic: StoredTopic) -> int:
        partition = TopicIdPartition(
            topic=topic.topic, topic_id=topic.topic_id, partition=min(topic.partitions)
        )
        segments = self._tiers[tier].list_segments(partition).segments
        return max((one.event_timestamp_ms for one in segments), default=0)

    def cluster_view(self) -> ClusterView:
        """Return what clients see now."""
        if self._view is None:
            topics = (one.view(lambda at: self._epochs.get(at, -1)) for one in self._listed.topics)
            self._view = ClusterView.of(self.cluster_id, NODE_ID, topics)
        return self._view

    def touch_topics(self, stored_ids: Iterable[str]) -> None:
        """Have the partitions of these topics listed again at the next interval."""
        self._asked_topics.update(stored_ids)

    # -- partitions

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        """See `FetchHost`. MetadataNotReadyError for a partition that is not loaded."""
        known = self._known.get(partition)
        if known is None:
            return None
        view = known.archived.view()
        if view is None:
            raise MetadataNotReadyError(f"{partition}: not loaded yet; try again")
        return view

    async def prepare(
        self, partitions: Iterable[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Exception]:
        """Have partitions loaded, and looked at again if that was long ago. Return the errors of
        those that cannot be loaded now; an unknown partition is none."""
        failed: dict[TopicIdPartition, Exception] = {}
        waiting = [one for one in map(self._prepare_one, partitions) if one is not None]
        if not waiting:
            return failed
        loading = {one.loading for one in waiting if one.loading is not None}
        if loading:
            await asyncio.wait(loading, timeout=_LOAD_WAIT_S)
        for known in waiting:
            partition = known.archived.partition
            if known.archived.latest is None:
                failed[partition] = known.failed or MetadataNotReadyError(
                    f"{partition}: the listing of its segments takes long; try again"
                )
        return failed

    def _prepare_one(self, partition: TopicIdPartition) -> _Known | None:
        """Begin what `prepare` has to do; return the partition if it is not loaded."""
        known = self._find(partition)
        if known is None:
            return None
        now_ms = known.used_ms = self._clock.monotonic_ms()
        is_loaded = known.archived.latest is not None
        retries = known.failed is None or now_ms - known.checked_ms >= _LOCAL_INTERVAL_MS
        if known.loading is None and (self._is_old(known, now_ms) if is_loaded else retries):
            known.loading = asyncio.create_task(self._load(known))
        return None if is_loaded else known

    def _find(self, partition: TopicIdPartition) -> _Known | None:
        known = self._known.get(partition)
        topic = self._listed.by_partition.get(partition)
        if topic is None:
            return None
        if known is None:
            archived = ArchivedPartition(
                partition,
                topic.topic_id,
                None if topic.tier is None else self._tiers[topic.tier],
                self._logs if topic.name == topic.stored_name else None,
                self.metadata,
                self._report,
            )
            known = self._known[partition] = _Known(archived, self._clock.monotonic_ms())
        return known

    def _is_old(self, known: _Known, now_ms: int) -> bool:
        interval_ms = self._interval_ms
        if known.archived.is_local:
            interval_ms = min(interval_ms, _LOCAL_INTERVAL_MS)
        return now_ms - known.checked_ms >= interval_ms

    async def _load(self, known: _Known) -> None:
        began_ms = self._clock.monotonic_ms()
        first = known.archived.latest is None
        with_tier = first or began_ms - known.tier_checked_ms >= self._interval_ms
        loop = asyncio.get_running_loop()
        try:
            changed = await loop.run_in_executor(
                self._pool, lambda: known.archived.load(with_tier=with_tier)
            )
            known.failed = None
            if changed:
                self._note_change(known.archived)
        except (TierlogError, OSError) as error:
            known.failed = error
            self._say(f"{known.archived.partition.topic}: {error}")
        finally:
            known.loading = None
            known.checked_ms = self._clock.monotonic_ms()
            if with_tier:
                known.tier_checked_ms = known.checked_ms

    def _note_change(self, archived: ArchivedPartition) -> None:
        view, partition = archived.latest, archived.partition
        assert view is not None
        if self._epochs.get(partition, -1) != view.leader_epoch:
            self._epochs[partition] = view.leader_epoch
            self._view = None
        self.on_change(partition)

    # -- sizes

    async def list_log_dirs(
        self, wanted: Collection[tuple[str, int]] | None
    ) -> Sequence[LogDirView]:
        """See `ClusterSource`. A store takes one listing for each partition."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._measure, wanted)

    def _measure(self, wanted: Collection[tuple[str, int]] | None) -> Sequence[LogDirView]:
        dirs: dict[str, list[tuple[str, int, int]]] = {}
        if self._logs is not None:
            dirs = {path: [] for path in self._logs.paths}
            for log in self._logs.partitions():
                if wanted is None or (log.topic, log.partition) in wanted:
                    size_bytes = sum(one.size_bytes for one in log.segments)
                    row = (log.topic, log.partition, size_bytes)
                    dirs[os.path.dirname(log.directory)].append(row)
        for number, tier in enumerate(self._tiers):
            dirs[f"remote://{tier.url.partition('://')[2]}"] = [
                (topic.name, one.partition, tier.size_bytes(one))
                for topic in self._listed.topics
                if topic.tier == number
                for one in topic.partitions
                if wanted is None or (topic.name, one.partition) in wanted
            ]
        return [LogDirView(path, tuple(rows)) for path, rows in dirs.items()]

    # -- running

    def start(self) -> None:
        """Look for new topics at every interval from now on."""
        self._refreshing = asyncio.create_task(self._refresh(), name="tierlog-topics")

    async def close(self) -> None:
        """End what is under way; may be repeated."""
        tasks = [one.loading for one in self._known.values() if one.loading is not None]
        tasks += [] if self._refreshing is None else [self._refreshing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.metadata.close()

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await loop.run_in_executor(self._pool, self.list_topics)
                self._said = None
            except (TierlogError, OSError) as error:
                self._say(f"the topics of {self._interval_ms} ms ago stay: {error}")
            self._forget_unused()

    def _forget_unused(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for partition, known in list(self._known.items()):
            gone = partition not in self._listed.by_partition
            if known.loading is None and (gone or now_ms - known.used_ms >= _UNUSED_MS):
                del self._known[partition]
                self.metadata.forget(partition)
                for tier in self._tiers:
                    tier.forget(partition)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._report(text)


def open_archive(
    sources: Sequence[Source],
    *,
    config: Config,
    clock: Clock | None = None,
    report: Callable[[str], object] = print,
) -> Archive:
    """Open stores and log directories and list their topics. Blocking.

    All directories belong to one broker. Errors are those of `open_store`, `open_log_dir` and
    `Archive.list_topics`.
    """
    if not sources:
        raise ConfigError("expected a store or a log directory, found none")
    paths = [one.location for one in sources if one.kind is SourceKind.LOG_DIR]
    tiers = [open_tier(one.location, config) for one in sources if one.is_store]
    logs = open_log_dir(paths[0], *paths[1:]) if paths else None
    archive = Archive(tiers, logs, config=config, clock=clock, report=report)
    archive.list_topics()
    return archive
