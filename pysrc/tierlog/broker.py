"""Ask a running broker about partitions: leaders, last stable offsets, policies, topic ids.

The disk of a running broker contains neither its present high watermark nor its last stable offset.
So a sidecar asks the broker: ListOffsets with read-committed isolation returns the last stable
offset and the leader epoch. Needs the extra ``kafka``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tierlog.errors import ConfigError, TierlogError
from tierlog.log.checkpoint import TopicPartition
from tierlog.types import ZERO_UUID, kafka_uuid

__all__ = ["BrokerAnswer", "BrokerClient", "BrokerUnavailableError"]

# Pause between two attempts to reach a broker.
_MAX_RECONNECT_MS = 1_000
_INT64 = 1 << 64


class BrokerUnavailableError(TierlogError):
    """The broker does not answer."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnswer:
    """The present state of one partition in its cluster. An unknown value is None.

    ``last_stable_offset`` is the first offset that a read-committed consumer does not get.
    ``topic_id`` is the id of the present topic with this name. An earlier topic with the same name
    may have been deleted. ``replica_count`` is the number of replicas. ``retention_ms`` and
    ``retention_bytes`` say how long the brokers keep their own log; -1 is unlimited.
    """

    leader_id: int | None
    last_stable_offset: int | None
    compacted: bool | None
    leader_epoch: int | None = None
    topic_id: str | None = None
    replica_count: int | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopicPolicy:
    """The tiering settings of a topic."""

    compacted: bool | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None


class BrokerClient:
    """A connection to a cluster that stays open between requests. Not thread-safe.

    ``bootstrap`` is ``host:port[,host:port]``. ``cluster_id`` is the id of the expected cluster.
    Raises ConfigError when the client library is not installed.
    """

    def __init__(
        self, bootstrap: str, *, cluster_id: str | None = None, timeout_s: float = 10.0
    ) -> None:
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            raise ConfigError(
                "asking a broker needs the extra 'kafka': pip install 'tierlog[kafka]'"
            ) from error
        self._bootstrap = bootstrap
        self._cluster_id = cluster_id
        self._timeout_s = timeout_s
        # Without log level 0 and this callback, the client writes its own messages about an
        # unreachable broker to stderr.
        self._client: Any = AdminClient(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "tierlog",
                "log_level": 0,
                "reconnect.backoff.max.ms": _MAX_RECONNECT_MS,
                "topic.metadata.refresh.interval.ms": -1,
            },
            error_cb=lambda _: None,
        )

    def ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        """Return the state of `partitions`. Partitions that the cluster does not have are left out.

        Raises BrokerUnavailableError when no broker answers in time, and ConfigError when the
        brokers belong to another cluster than the expected one.
        """
        from confluent_kafka import KafkaException

        try:
            return self._ask(partitions)
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error

    def cluster_id(self) -> str | None:
        """Return the id of the broker's cluster; None for brokers before 0.10.1, which have no
        cluster id. Raises BrokerUnavailableError when the broker does not answer in time."""
        from confluent_kafka import KafkaException

        try:
            found: str | None = self._client.list_topics(timeout=self._timeout_s).cluster_id
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        self._cluster_id = self._cluster_id or found
        return found

    def topic_ids(self, names: Collection[str]) -> dict[str, str | None]:
        """Return the topic ids of the topics `names`. None means that the topic does not exist.

        Names without a clear answer are left out. Raises BrokerUnavailableError when no broker
        answers in time, or when the broker does not name its cluster. Raises ConfigError when the
        brokers belong to another cluster than the expected one.
        """
        from confluent_kafka import KafkaException, TopicCollection

        if not names:
            return {}
        try:
            described = self._client.describe_cluster(request_timeout=self._timeout_s)
            self._check_cluster(described.result(2 * self._timeout_s).cluster_id, unknown=False)
            futures = self._client.describe_topics(
                TopicCollection(list(names)), request_timeout=self._timeout_s
            )
            answers = {name: self._topic_id(future) for name, future in futures.items()}
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        return {name: answer for name, answer in answers.items() if answer != ZERO_UUID}

    def _topic_id(self, future: Future[Any]) -> str | None:
        """Return the id in a topic's description. None means that the topic does not exist, and an
        id of all zeros that the answer is unclear."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            return _uuid_text(future.result(2 * self._timeout_s).topic_id)
        except KafkaException as error:
            # Without permission for a topic, the error has another code, whether the topic exists
            # or not.
            absent = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            return None if absent else ZERO_UUID

    def dynamic_settings(self, broker_id: int) -> dict[str, str] | None:
        """Return the dynamic settings of the broker: its own settings and the defaults of all
        brokers.

        Settings of its ``server.properties`` are not included. Return None when the broker does not
        answer, or does not permit the request (ACL operation DescribeConfigs on the cluster).
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ConfigSource

        dynamic = {
            ConfigSource.DYNAMIC_BROKER_CONFIG.value,
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value,
        }
        wanted = [ConfigResource(ConfigResource.Type.BROKER, str(broker_id))]
        try:
            futures = self._client.describe_configs(wanted, request_timeout=self._timeout_s)
            (answer,) = self._answers(futures).values() or ({},)
        except (KafkaException, TimeoutError):
            return None
        if not answer:
            return None
        return {
            name: entry.value
            for name, entry in answer.items()
            if entry.source in dynamic and entry.value is not None
        }

    def _unavailable(self, error: Exception) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"broker {self._bootstrap} does not answer: {error}")

    def _check_cluster(self, found: str | None, *, unknown: bool) -> None:
        """Raise ConfigError if the broker belongs to another cluster than the expected one. With
        ``unknown``, a broker that does not name its cluster is accepted."""
        if self._cluster_id is None or found == self._cluster_id:
            return
        if found is None and unknown:
            return
        if found is None:
            raise BrokerUnavailableError(f"broker {self._bootstrap} does not say its cluster")
        raise ConfigError(
            f"broker {self._bootstrap}: expected cluster {self._cluster_id}, as the log "
            f"directories say, found cluster {found}; give the broker that "
            "writes these directories"
        )

    def _ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        metadata = self._client.list_topics(timeout=self._timeout_s)
        self._check_cluster(metadata.cluster_id, unknown=True)
        led = {
            TopicPartition(topic.topic, number): partition
            for topic in metadata.topics.values()
            for number, partition in topic.partitions.items()
        }
        known = [partition for partition in partitions if partition in led]
        topics = sorted({partition.topic for partition in known})
        topic_ids = self._topic_ids(topics)
        stable = self._last_stable_offsets(known)
        policies = self._policies(topics)
        answers = {}
        for partition in known:
            leader_id = led[partition].leader
            offset, leader_epoch = stable.get(partition, (None, None))
            policy = policies.get(partition.topic, _TopicPolicy())
            answers[partition] = BrokerAnswer(
                leader_id=leader_id if leader_id >= 0 else None,
                leader_epoch=leader_epoch,
                last_stable_offset=offset,
                compacted=policy.compacted,
                topic_id=topic_ids.get(partition.topic),
                replica_count=len(led[partition].replicas),
                retention_ms=policy.retention_ms,
                retention_bytes=policy.retention_bytes,
            )
        return answers

    def _topic_ids(self, topics: list[str]) -> dict[str, str]:
        from confluent_kafka import TopicCollection

        if not topics:
            return {}
        futures = self._client.describe_topics(
            TopicCollection(topics), request_timeout=self._timeout_s
        )
        found = {
            name: _uuid_text(description.topic_id)
            for name, description in self._answers(futures).items()
        }
        # Brokers without topic ids send all zeros.
        return {name: topic_id for name, topic_id in found.items() if topic_id != ZERO_UUID}

    def _last_stable_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int | None]]:
        """Return the last stable offset and the leader epoch of each partition."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as Wanted
        from confluent_kafka.admin import OffsetSpec

        if not partitions:
            return {}
        futures = self._client.list_offsets(
            {
                Wanted(partition.topic, partition.partition): OffsetSpec.latest()
                for partition in partitions
            },
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._timeout_s,
        )
        return {
            TopicPartition(key.topic, key.partition): (answer.offset, answer.leader_epoch)
            for key, answer in self._answers(futures).items()
            if answer.offset >= 0
        }

    def _policies(self, topics: list[str]) -> dict[str, _TopicPolicy]:
        from confluent_kafka.admin import ConfigResource

        if not topics:
            return {}
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        futures = self._client.describe_configs(wanted, request_timeout=self._timeout_s)
        return {
            resource.name: _policy({name: entry.value for name, entry in settings.items()})
            for resource, settings in self._answers(futures).items()
        }

    def _answers(self, futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
        """Return the available results, because one partition without a leader must not hide the
        others."""
        from confluent_kafka import KafkaException

        answers = {}
        for key, future in futures.items():
            try:
                # The client has its own timeout. This longer timeout applies if the client's
                # timeout fails.
                answers[key] = future.result(2 * self._timeout_s)
            except KafkaException:
                continue
        return answers


def _policy(settings: Mapping[str, str | None]) -> _TopicPolicy:
    cleanup = settings.get("cleanup.policy")
    return _TopicPolicy(
        compacted=None if cleanup is None else "compact" in cleanup.split(","),
        retention_ms=_number(settings.get("retention.ms")),
        retention_bytes=_number(settings.get("retention.bytes")),
    )


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _uuid_text(uuid: Any) -> str:
    """Return Kafka's text of the client's Uuid, which consists of two signed halves."""
    halves = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
    return kafka_uuid(b"".join((half % _INT64).to_bytes(8, "big") for half in halves))
