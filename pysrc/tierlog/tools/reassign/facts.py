"""Reads the facts that a plan needs from a cluster: replicas, sizes, incoming bytes, settings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tierlog.admin import Broker, ClusterAdmin, PartitionState, Replica, Resource, ResourceKind
from tierlog.clock import Clock
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import ANY_LOG_DIR, Placement, partition_name
from tierlog.tools.reassign.estimate import ClusterFacts, PartitionFacts

__all__ = [
    "current_assignment",
    "leader_sizes",
    "measure_cluster",
    "require_brokers",
    "require_partitions",
]

_FETCH_RESPONSE = "replica.fetch.response.max.bytes"
_WINDOW_NUM, _WINDOW_SECONDS = (
    "replication.quota.window.num",
    "replication.quota.window.size.seconds",
)


def measure_cluster(admin: ClusterAdmin, clock: Clock, *, sample_ms: int) -> ClusterFacts:
    """Return the facts of all partitions. The rate of incoming bytes is measured over `sample_ms`,
    from the growth of the leaders' logs."""
    states = admin.partitions()
    ongoing = admin.reassignments()
    brokers = [one.broker_id for one in admin.brokers()]
    before, started_ms = leader_sizes(admin, states, brokers), clock.monotonic_ms()
    rates: dict[TopicPartition, float] = {}
    after = before
    if sample_ms > 0:
        clock.sleep(sample_ms)
        after = leader_sizes(admin, states, brokers)
        seconds = max(1, clock.monotonic_ms() - started_ms) / 1000
        # If retention made a log shorter, the change of its size does not show the incoming bytes.
        rates = {
            partition: max(0, size - before.get(partition, size)) / seconds
            for partition, size in after.items()
        }
    settings = admin.settings(
        [Resource(ResourceKind.BROKER, str(one)) for one in brokers], dynamic_only=False
    )
    responses = [int(one[_FETCH_RESPONSE]) for one in settings.values() if _FETCH_RESPONSE in one]
    windows = [
        int(one[_WINDOW_NUM]) * float(one[_WINDOW_SECONDS])
        for one in settings.values()
        if _WINDOW_NUM in one and _WINDOW_SECONDS in one
    ]
    return ClusterFacts(
        partitions={
            partition: PartitionFacts(
                replicas=ongoing[partition].origin if partition in ongoing else state.replicas,
                leader_id=state.leader_id,
                size_bytes=after.get(partition, 0),
                bytes_in_per_second=rates.get(partition, 0.0),
            )
            for partition, state in states.items()
        },
        broker_ids=tuple(brokers),
        fetch_response_max_bytes=max(responses, default=None),
        window_seconds=min(windows, default=None),
        unknown_sizes=frozenset(states.keys() - after.keys()),
    )


def leader_sizes(
    admin: ClusterAdmin, states: Mapping[TopicPartition, PartitionState], brokers: Collection[int]
) -> dict[TopicPartition, int]:
    """Return the size of each partition. This is the size of the leader's log or, if there is no
    leader, of the largest replica."""
    sizes: dict[TopicPartition, int] = {}
    for one in admin.replicas(states, brokers):
        if one.is_future or one.partition not in states:
            continue
        leader_id = states[one.partition].leader_id
        if leader_id is None:
            sizes[one.partition] = max(sizes.get(one.partition, 0), one.size_bytes)
        elif leader_id == one.broker_id:
            sizes[one.partition] = one.size_bytes
    return sizes


def current_assignment(
    states: Mapping[TopicPartition, PartitionState], replicas: Iterable[Replica]
) -> dict[TopicPartition, Placement]:
    """Return the replicas of each partition, with the log directories that brokers report."""
    where = {(one.partition, one.broker_id): one.log_dir for one in replicas if not one.is_future}
    return {
        partition: Placement(
            state.replicas,
            tuple(where.get((partition, one), ANY_LOG_DIR) for one in state.replicas),
        )
        for partition, state in sorted(states.items())
    }


def require_partitions(
    states: Mapping[TopicPartition, object], wanted: Iterable[TopicPartition]
) -> None:
    """Raise ConfigError for the first partition that the cluster does not have."""
    for partition in wanted:
        if partition not in states:
            topics = {one.topic for one in states}
            what = "no such topic" if partition.topic not in topics else "no such partition"
            raise ConfigError(f"{partition_name(partition)}: {what} in the cluster")


def require_brokers(live: Iterable[Broker], wanted: Iterable[int]) -> None:
    """Raise ConfigError for the first broker that is unknown or down."""
    known = [one.broker_id for one in live]
    for one in sorted(set(wanted)):
        if one not in known:
            shown = ", ".join(map(str, known))
            raise ConfigError(f"broker {one} is unknown or down; live brokers: {shown}")
