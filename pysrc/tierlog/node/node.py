"""What handlers may ask: the parts of a node, and the view of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.fetch.fetcher import Fetcher
from tierlog.node.cluster_view import ClusterView, LogDirView
from tierlog.node.groups.service import GroupService
from tierlog.reader.types import FetchView
from tierlog.types import TopicIdPartition

__all__ = ["ClusterSource", "Node"]


class ClusterSource(Protocol):
    """Keeps the view of the cluster up to date."""

    def cluster_view(self) -> ClusterView:
        """Return the latest view."""
        ...

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        """Return a partition that `prepare` made ready; None when it is not here."""
        ...

    def touch_topics(self, stored_ids: Iterable[str]) -> None:
        """Note that clients ask for the topics that are stored under these ids."""
        ...

    async def list_log_dirs(
        self, wanted: Collection[tuple[str, int]] | None
    ) -> Sequence[LogDirView]:
        """Return the directories and stores with the wanted partitions, None for all. TierlogError
        or OSError when one cannot be listed."""
        ...

    async def prepare(
        self, partitions: Iterable[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Exception]:
        """Make partitions ready for the fetcher; return the errors of those that are not."""
        ...


@dataclass(kw_only=True)
class Node:
    """One node. ``versions``: the lowest and highest version of each API, by its key."""

    cluster: ClusterSource
    fetcher: Fetcher
    groups: GroupService
    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=SystemClock)
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def view(self) -> ClusterView:
        """The cluster now."""
        return self.cluster.cluster_view()
