"""The interface that handlers use: the parts of a node, and the view of its cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.fetch.fetcher import Fetcher
from tierlog.log.index_files import ProducerSnapshot
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.partition import Appended
from tierlog.node.cluster_view import ClusterView, LogDirView
from tierlog.node.groups.service import GroupService
from tierlog.node.settings import NodeSettings, SettingChange
from tierlog.node.transactions.service import TransactionService
from tierlog.node.transactions.types import Partition
from tierlog.reader.types import FetchView
from tierlog.types import TopicIdPartition

__all__ = ["ClusterSource", "CreatedTopic", "LocalTopics", "Node"]


class ClusterSource(Protocol):
    """Keeps the view of the cluster up to date."""

    def cluster_view(self) -> ClusterView:
        """Return the latest view."""
        ...

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        """Return a partition that `prepare` has made ready; None when the node does not have it."""
        ...

    def touch_topics(self, stored_ids: Iterable[str]) -> None:
        """Record that clients ask for the topics that are stored under these ids."""
        ...

    async def list_log_dirs(
        self, wanted: Collection[tuple[str, int]] | None
    ) -> Sequence[LogDirView]:
        """Return the directories and stores with the wanted partitions; all partitions if `wanted`
        is None. Raises TierlogError or OSError when a directory or store cannot be listed."""
        ...

    async def prepare(
        self, partitions: Iterable[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Exception]:
        """Make partitions ready for the fetcher. Return an error for each partition that is not
        ready."""
        ...


class LocalTopics(Protocol):
    """The topics that this node itself stores. All calls except `cluster_view` block.

    A call raises KeyError when the topic or partition does not exist or, if it is to be created,
    when it exists already.
    """

    @property
    def settings(self) -> NodeSettings:
        """The settings in force."""
        ...

    def cluster_view(self) -> ClusterView:
        """Return the latest view."""
        ...

    def alter_topic(
        self, name: str, changes: Sequence[SettingChange], *, validate_only: bool
    ) -> None:
        """Change settings of a topic. Raises ConfigError when the topic cannot have them, and
        ValueError when the request itself is wrong."""
        ...

    def alter_node(
        self, node: str, changes: Sequence[SettingChange], *, validate_only: bool
    ) -> None:
        """Change dynamic settings of this node, or of all nodes if `node` is empty. Errors are as
        in `alter_topic`."""
        ...

    def check_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> object:
        """Raise the errors of `create_topic`, but create nothing."""
        ...

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> CreatedTopic:
        """Create a topic. Raises ConfigError for its settings and ValueError for its name."""
        ...

    def add_partitions(self, name: str, partitions: int) -> None:
        """Add partitions to a topic until it has `partitions`. Raises ValueError when the topic
        already has that many."""
        ...

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        ...

    def append(
        self,
        partition: TopicIdPartition,
        records: bytes,
        transaction_of: ProducerEpoch | None = None,
    ) -> Appended:
        """Append batches. Raises AppendRefusedError when they may not be appended.
        ``transaction_of`` is the producer that may append transactional batches."""
        ...

    def append_at_once(
        self,
        partition: TopicIdPartition,
        records: bytes,
        transaction_of: ProducerEpoch | None = None,
    ) -> Appended:
        """Append like `append`, but without waiting. Raises BlockingIOError when the append may
        have to wait; the caller then uses `append` in a thread."""
        ...

    def write_marker(
        self, partition: Partition, producer: ProducerEpoch, *, is_commit: bool, epoch: int
    ) -> None:
        """End the transaction of a producer in a partition. Raises AppendRefusedError when that is
        not possible."""
        ...

    def describe_producers(self, partition: TopicIdPartition) -> ProducerSnapshot:
        """Return the producers of a partition. Raises AppendRefusedError when the partition has
        stopped."""
        ...

    def delete_records(self, partition: TopicIdPartition, offset: int) -> int:
        """Delete the records below `offset` (-1 means all), and return the log start offset."""
        ...

    def next_producer_id(self) -> int:
        """Return a new producer id."""
        ...


class CreatedTopic(Protocol):
    """A topic that was created."""

    @property
    def topic_id(self) -> str:
        """The id of the topic."""
        ...


@dataclass(kw_only=True)
class Node:
    """One node. ``versions`` has the lowest and the highest version of each API, by its key.
    ``local`` and ``transactions`` are None for an archive, which is read-only. ``config`` has the
    settings in force."""

    cluster: ClusterSource
    fetcher: Fetcher
    groups: GroupService
    local: LocalTopics | None = None
    transactions: TransactionService | None = None
    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=SystemClock)
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def view(self) -> ClusterView:
        """The latest view of the cluster."""
        return self.cluster.cluster_view()
