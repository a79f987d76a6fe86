"""Administers a running cluster: brokers, replicas, reassignments, log directories, settings.

Works with every Kafka from 2.4 on, with ZooKeeper or KRaft. Needs the extra ``kafka``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tierlog.clock import Clock, SystemClock
from tierlog.errors import TierlogError
from tierlog.log.checkpoint import TopicPartition

__all__ = [
    "AdminError",
    "Broker",
    "ClusterAdmin",
    "OngoingReassignment",
    "PartitionState",
    "Replica",
    "Resource",
    "ResourceKind",
    "SettingsChange",
]

# Numbers of the protocol: error codes, sources of settings, operations on them.
_UNKNOWN_TOPIC, _STORAGE_ERROR, _NO_REASSIGNMENT = 3, 56, 85
_DYNAMIC_TOPIC, _DYNAMIC_BROKER, _DYNAMIC_DEFAULT_BROKER = 1, 2, 3
_SET, _DELETE = 0, 1
_RETRY_MS = 200


class AdminError(TierlogError):
    """The cluster does not answer, or refuses a request."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Broker:
    """A live broker of the cluster."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Replicas of a partition in their order, those in sync, and the leader, if there is one."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica in a log directory.

    ``is_future``: it is being copied from another directory of the same broker and replaces that
    one when it has caught up.
    """

    partition: TopicPartition
    broker_id: int
    log_dir: str
    size_bytes: int
    is_future: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingReassignment:
    """A partition that is moving. ``replicas`` has the new and the old ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the move."""
        return tuple(one for one in self.replicas if one not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the move, in the order that the cluster reports."""
        return tuple(one for one in self.replicas if one not in self.adding)


class ResourceKind(StrEnum):
    """What has dynamic settings. The values are those of Kafka's ``--entity-type``."""

    TOPIC = "topics"
    BROKER = "brokers"


_KINDS = {ResourceKind.TOPIC: 2, ResourceKind.BROKER: 4}


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """A topic, a broker, or with an empty name the default of all brokers."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        if self.kind is ResourceKind.BROKER and not self.name:
            return "the default of all brokers"
        return f"{self.kind.value.removesuffix('s')} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """Settings of a resource to set and to remove."""

    resource: Resource
    set: Mapping[str, str]
    remove: tuple[str, ...] = ()


class ClusterAdmin:
    """An admin client of one cluster. Not for several threads.

    ``bootstrap`` is ``host:port[,host:port]``. Every method raises AdminError when no broker
    answers within the timeout or the cluster refuses; a request whose connection breaks, as when a
    broker dies, is sent again to another broker. All requests may be repeated.
    """

    def __init__(
        self, bootstrap: str, *, timeout_s: float = 10.0, clock: Clock | None = None
    ) -> None:
        # Imported on demand: most commands do without.
        import kafka.errors as kafka_errors
        from kafka.admin import KafkaAdminClient

        # Errors reach the caller; without a handler, warnings would also go to stderr.
        logging.getLogger("kafka").addHandler(logging.NullHandler())
        self._errors = kafka_errors
        self._bootstrap = bootstrap
        self._clock = clock or SystemClock()
        self._timeout_ms = timeout_ms = int(timeout_s * 1000)
        self._client: Any = None
        self._client = self._call(
            lambda: KafkaAdminClient(
                bootstrap_servers=bootstrap.split(","),
                client_id="tierlog",
                request_timeout_ms=timeout_ms,
                bootstrap_timeout_ms=timeout_ms,
            )
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> ClusterAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def brokers(self) -> tuple[Broker, ...]:
        """Return the live brokers by id."""
        answer = self._call(self._client.describe_cluster)
        return tuple(
            sorted(
                Broker(
                    broker_id=one["broker_id"],
                    host=one["host"],
                    port=one["port"],
                    rack=one.get("rack") or None,
                )
                for one in answer["brokers"]
                if not one.get("is_fenced")
            )
        )

    def partitions(
        self, topics: Collection[str] | None = None
    ) -> dict[TopicPartition, PartitionState]:
        """Return the partitions of `topics`, of all topics for None; absent topics have none."""
        if topics is not None and not topics:
            return {}
        wanted = None if topics is None else sorted(topics)
        answer = self._call(lambda: self._client.describe_topics(wanted))
        found = {}
        for topic in answer:
            if topic["error_code"] == _UNKNOWN_TOPIC:
                continue
            self._refuse(topic["error_code"], f"topic {topic['name']}")
            for one in topic["partitions"]:
                leader_id = one["leader_id"]
                found[TopicPartition(topic["name"], one["partition_index"])] = PartitionState(
                    replicas=tuple(one["replica_nodes"]),
                    in_sync=tuple(one["isr_nodes"]),
                    leader_id=leader_id if leader_id >= 0 else None,
                )
        return found

    def replicas(
        self, partitions: Iterable[TopicPartition], broker_ids: Iterable[int]
    ) -> list[Replica]:
        """Return the replicas of `partitions` in the log directories of these live brokers."""
        by_topic = _by_topic(partitions)
        if not by_topic:
            return []
        return [
            Replica(
                partition=TopicPartition(topic["name"], one["partition_index"]),
                broker_id=broker_id,
                log_dir=log_dir["log_dir"],
                size_bytes=one["partition_size"],
                is_future=one["is_future_key"],
            )
            for broker_id, log_dirs in self._log_dirs(by_topic, broker_ids)
            for log_dir in log_dirs
            for topic in log_dir["topics"]
            for one in topic["partitions"]
        ]

    def log_dirs(self, broker_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """Return the paths of the log directories of these live brokers."""
        return {
            broker_id: tuple(one["log_dir"] for one in log_dirs)
            for broker_id, log_dirs in self._log_dirs({}, broker_ids)
        }

    def _log_dirs(
        self, by_topic: dict[str, list[int]], broker_ids: Iterable[int]
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the log directories of each broker that are not offline."""
        wanted = sorted(set(broker_ids))
        for answer in self._call(lambda: self._client.describe_log_dirs(by_topic, brokers=wanted)):
            broker_id, log_dirs = answer["broker"], answer["log_dirs"]
            if not log_dirs:
                # The client drops the error of the whole answer.
                raise AdminError(
                    f"cluster {self._bootstrap}: broker {broker_id} does not show its log "
                    "directories: the ACL operation Describe on the cluster is needed"
                )
            online = [one for one in log_dirs if one["error_code"] != _STORAGE_ERROR]
            for one in online:
                self._refuse(one["error_code"], f"log directories of broker {broker_id}")
            yield broker_id, online

    def reassignments(self) -> dict[TopicPartition, OngoingReassignment]:
        """Return all partitions that are moving between brokers."""
        answer = self._call(self._client.list_partition_reassignments)
        return {
            TopicPartition(partition.topic, partition.partition): OngoingReassignment(
                replicas=tuple(one["replicas"]),
                adding=tuple(one["adding_replicas"]),
                removing=tuple(one["removing_replicas"]),
            )
            for partition, one in answer.items()
        }

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, str]:
        """Start moving partitions to these replicas; None cancels a move. Return the refusals."""
        if not targets:
            return {}
        from kafka.structs import TopicPartition as Wanted

        wanted = {
            Wanted(partition.topic, partition.partition): None if one is None else list(one)
            for partition, one in targets.items()
        }
        answer = self._call(lambda: self._client.alter_partition_reassignments(wanted))
        return {
            TopicPartition(partition.topic, partition.partition): _text(error)
            for partition, error in answer.items()
            if error is not None and error.errno != _NO_REASSIGNMENT
        }

    def move_log_dirs(
        self, targets: Mapping[tuple[TopicPartition, int], str]
    ) -> dict[tuple[TopicPartition, int], str]:
        """Start moving replicas, given by partition and broker, to these log directories of their
        brokers. Return the refusals."""
        wanted = {
            (partition.topic, partition.partition, broker_id): path
            for (partition, broker_id), path in targets.items()
        }
        answer = self._call(lambda: self._client.alter_replica_log_dirs(wanted))
        return {
            (TopicPartition(one.topic, one.partition), one.broker_id): _text(error)
            for one, error in answer.items()
            if error.errno
        }

    def settings(
        self, resources: Iterable[Resource], *, dynamic_only: bool = True
    ) -> dict[Resource, dict[str, str]]:
        """Return the settings of `resources`: those that were set on the resource itself, or all in
        force. Secrets, which brokers do not tell, are left out."""
        return {
            resource: {
                entry.name: entry.value
                for entry in entries
                if entry.value is not None
                and (not dynamic_only or entry.config_source == _own_source(resource))
            }
            for resource, entries in self._described(resources)
        }

    def setting_names(self, resource: Resource) -> set[str]:
        """Return the names of all settings that the resource has, with or without a value."""
        return {entry.name for _, entries in self._described([resource]) for entry in entries}

    def _described(self, resources: Iterable[Resource]) -> Iterator[tuple[Resource, list[Any]]]:
        from kafka.protocol.admin import DescribeConfigsRequest

        for node_id, some in _by_node(resources).items():
            request = DescribeConfigsRequest(
                resources=[(_KINDS[one.kind], one.name, None) for one in some], min_version=1
            )
            for resource, answer in zip(some, self._send(request, node_id).results, strict=True):
                self._refuse(answer.error_code, str(resource), answer.error_message)
                yield resource, answer.configs

    def change_settings(self, changes: Iterable[SettingsChange]) -> None:
        """Set and remove dynamic settings; AdminError names the first resource that is refused."""
        from kafka.protocol.admin import IncrementalAlterConfigsRequest

        by_resource = {one.resource: one for one in changes if one.set or one.remove}
        for node_id, some in _by_node(by_resource).items():
            request = IncrementalAlterConfigsRequest(
                resources=[
                    (_KINDS[one.kind], one.name, _operations(by_resource[one])) for one in some
                ],
                validate_only=False,
            )
            for answer in self._send(request, node_id).responses:
                name = answer.resource_name
                self._refuse(answer.error_code, f"settings of {name!r}", answer.error_message)

    def _send(self, request: Any, node_id: int | None) -> Any:
        """Send a request to a broker, or to any for None: the client's own calls know neither the
        default of all brokers nor errors of a description."""
        manager = self._client._manager
        return self._call(lambda: manager.run(manager.send, request, node_id))

    def _call(self, request: Callable[[], Any]) -> Any:
        give_up_ms = self._clock.monotonic_ms() + self._timeout_ms
        while True:
            try:
                return request()
            except (self._errors.KafkaError, OSError, RuntimeError) as error:
                is_over = self._clock.monotonic_ms() >= give_up_ms
                if is_over or not self._may_pass(error):
                    raise AdminError(f"cluster {self._bootstrap}: {_text(error)}") from error
                if self._client is not None:
                    # The client would ask a controller that has died for ever.
                    self._client._controller_id = None
                self._clock.sleep(_RETRY_MS)

    def _may_pass(self, error: Exception) -> bool:
        """Return whether another attempt may reach a broker, or the next controller."""
        if isinstance(error, self._errors.UnknownBrokerIdError):
            return self._client is not None and error.args == (self._client._controller_id,)
        passing = (self._errors.KafkaConnectionError, self._errors.NodeNotReadyError)
        return isinstance(error, passing)

    def _refuse(self, code: int, what: str, message: str | None = None) -> None:
        if code:
            text = _text(self._errors.for_code(code))
            more = f": {message}" if message else ""
            raise AdminError(f"cluster {self._bootstrap}: {what}: {text}{more}")


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return found


def _by_node(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """Group resources by the broker that knows their settings; None: any broker."""
    found: dict[int | None, list[Resource]] = {}
    for one in dict.fromkeys(resources):
        own_node = one.kind is ResourceKind.BROKER and one.name
        found.setdefault(int(one.name) if own_node else None, []).append(one)
    return found


def _own_source(resource: Resource) -> int:
    """Return the source of settings that were set on the resource itself."""
    if resource.kind is ResourceKind.TOPIC:
        return _DYNAMIC_TOPIC
    return _DYNAMIC_BROKER if resource.name else _DYNAMIC_DEFAULT_BROKER


def _operations(change: SettingsChange) -> list[tuple[str, int, str | None]]:
    return [
        *((name, _SET, value) for name, value in change.set.items()),
        *((name, _DELETE, None) for name in change.remove),
    ]


def _text(error: Any) -> str:
    """Return the name and the text of an error of the client. That of a broker's answer is told by
    its kind; the client adds the whole answer."""
    kind = error if isinstance(error, type) else type(error)
    name = getattr(kind, "message", "") or kind.__name__
    text = getattr(kind, "description", "") or str(error)
    return f"{name}: {text}" if text and text != name else name
