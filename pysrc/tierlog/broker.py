"""What a running broker says about partitions: their leaders, last stable offsets and policies.

Neither the high watermark nor the last stable offset of a running broker is on its disk, so a
sidecar asks: ListOffsets with read-committed isolation answers the last stable offset. Needs the
extra ``kafka``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tierlog.errors import ConfigError, TierlogError
from tierlog.log.checkpoint import TopicPartition

__all__ = ["BrokerAnswer", "BrokerUnavailableError", "ask_broker"]


class BrokerUnavailableError(TierlogError):
    """The broker named by the caller does not answer."""

    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAnswer:
    """One partition as its cluster sees it now; None is "not known".

    ``last_stable_offset`` is the first offset that a read-committed consumer does not get.
    """

    leader_id: int | None
    last_stable_offset: int | None
    compacted: bool | None


def ask_broker(
    bootstrap: str, partitions: Iterable[TopicPartition], *, timeout_s: float = 10.0
) -> dict[TopicPartition, BrokerAnswer]:
    """Asks about `partitions`; those that the cluster does not know are left out.

    ``bootstrap`` is ``host:port[,host:port]``. Raises BrokerUnavailableError when nobody answers
    within ``timeout_s`` seconds and ConfigError when the client library is not installed.
    """
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise ConfigError(
            "asking a broker needs the extra 'kafka': pip install 'tierlog[kafka]'"
        ) from error
    # The client's own complaints about an unreachable broker go to stderr unless taken here.
    client = AdminClient(
        {"bootstrap.servers": bootstrap, "client.id": "tierlog", "log_level": 0},
        error_cb=lambda _: None,
    )
    try:
        metadata = client.list_topics(timeout=timeout_s)
        leaders = {
            TopicPartition(topic.topic, number): partition.leader
            for topic in metadata.topics.values()
            for number, partition in topic.partitions.items()
        }
        known = [partition for partition in partitions if partition in leaders]
        stable = _last_stable_offsets(client, known, timeout_s)
        compacted = _compacted(client, {partition.topic for partition in known}, timeout_s)
    except KafkaException as error:
        raise BrokerUnavailableError(f"broker {bootstrap} does not answer: {error}") from error
    return {
        partition: BrokerAnswer(
            leader_id=leaders[partition] if leaders[partition] >= 0 else None,
            last_stable_offset=stable.get(partition),
            compacted=compacted.get(partition.topic),
        )
        for partition in known
    }


def _last_stable_offsets(
    client: Any, partitions: list[TopicPartition], timeout_s: float
) -> dict[TopicPartition, int]:
    from confluent_kafka import IsolationLevel
    from confluent_kafka import TopicPartition as Wanted
    from confluent_kafka.admin import OffsetSpec

    if not partitions:
        return {}
    wanted = {
        Wanted(partition.topic, partition.partition): OffsetSpec.latest()
        for partition in partitions
    }
    futures = client.list_offsets(
        wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s
    )
    return {
        TopicPartition(key.topic, key.partition): answer.offset
        for key, answer in _answers(futures).items()
        if answer.offset >= 0
    }


def _compacted(client: Any, topics: set[str], timeout_s: float) -> dict[str, bool]:
    from confluent_kafka.admin import ConfigResource

    if not topics:
        return {}
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in sorted(topics)]
    futures = client.describe_configs(wanted, request_timeout=timeout_s)
    return {
        resource.name: "compact" in settings["cleanup.policy"].value.split(",")
        for resource, settings in _answers(futures).items()
        if "cleanup.policy" in settings
    }


def _answers(futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
    """The results there are: one partition without a leader must not hide the others."""
    from confluent_kafka import KafkaException

    answers = {}
    for key, future in futures.items():
        try:
            answers[key] = future.result()
        except KafkaException:
            continue
    return answers
