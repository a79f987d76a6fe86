"""Small value types that all layers share: ids of partitions and segments, stop reasons.

Ids are in Kafka's text form of a Uuid: 22 characters of URL-safe base64 without padding
(``org.apache.kafka.common.Uuid.toString``). The text may start with ``-``.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "MAX_TOPIC_NAME_LENGTH",
    "ZERO_UUID",
    "RemoteLogSegmentId",
    "StopReason",
    "TopicIdPartition",
    "check_kafka_uuid",
    "check_topic_name",
    "derived_topic_id",
    "is_derived_topic_id",
    "kafka_uuid",
    "kafka_uuid_bytes",
    "random_kafka_uuid",
    "shown_url",
]

MAX_TOPIC_NAME_LENGTH = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
# The last character stands for two bits, so only four characters are valid. If other characters
# were valid, an id would have several texts.
_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]", re.ASCII)
ZERO_UUID = "A" * 22
_URL_HEAD = re.compile(r"[A-Za-z][A-Za-z0-9+. -]*:/*")
_MAX_INT32 = 2**31 - 1
# The namespace of derived topic ids (UUID version 5). It must never change.
_TOPIC_NAMESPACE = uuid.UUID("8f2b6a0e-5f0c-5c1e-9d57-3c1f4e8a7b60")


class StopReason(StrEnum):
    """Why a scan or decode of record batches stopped. All reasons except ``END`` and
    ``MEMORY_BUDGET`` (the memory budget of a decode was reached) are findings."""

    END = "end"
    TORN_TAIL = "torn_tail"
    ZERO_TAIL = "zero_tail"
    BAD_CRC = "bad_crc"
    BAD_LENGTH = "bad_length"
    UNKNOWN_MAGIC = "unknown_magic"
    BAD_HEADER = "bad_header"
    OFFSET_ORDER = "offset_order"
    MEMORY_BUDGET = "memory_budget"


def kafka_uuid(value: uuid.UUID | bytes | bytearray | memoryview) -> str:
    """Return Kafka's 22-character text of a UUID or of its 16 bytes. Raises ValueError unless
    `value` has 16 bytes."""
    raw = value.bytes if isinstance(value, uuid.UUID) else bytes(value)
    if len(raw) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(raw)}")
    return base64.urlsafe_b64encode(raw)[:22].decode("ascii")


def check_kafka_uuid(text: str) -> str:
    """Return `text` if it is the canonical text of an id, else raise ValueError."""
    if _UUID_TEXT.fullmatch(text) is None:
        raise ValueError(f"not a Kafka uuid (22 characters of URL-safe base64): {text[:40]!r}")
    return text


def kafka_uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id. Raises ValueError when `text` is not the canonical text of an
    id."""
    return base64.urlsafe_b64decode(check_kafka_uuid(text) + "==")


def random_kafka_uuid(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """Return a new version-4 id. Like an id of Kafka's ``Uuid.randomUuid``, it does not start with
    ``-``."""
    while True:
        text = kafka_uuid(uuid.UUID(bytes=random_bytes(16), version=4))
        if not text.startswith("-"):
            return text


def derived_topic_id(cluster_id: str, topic: str) -> str:
    """Return the id under which a topic without a topic id is archived.

    Topics of brokers up to 2.7 have no ids. The derived id is a version-5 UUID of the cluster id
    and the topic name, so it is the same on all brokers. Raises ValueError for a name that Kafka
    does not allow.
    """
    # A topic name has no slash, so no two pairs have the same text.
    return kafka_uuid(uuid.uuid5(_TOPIC_NAMESPACE, f"{cluster_id}/{check_topic_name(topic)}"))


def is_derived_topic_id(topic_id: str) -> bool:
    """Return whether `derived_topic_id` made the id. Kafka's own ids are random UUIDs of version
    4."""
    return uuid.UUID(bytes=kafka_uuid_bytes(topic_id)).version == 5


def check_topic_name(topic: str) -> str:
    """Return `topic` if Kafka allows it as a topic name, else raise ValueError."""
    if _TOPIC_NAME.fullmatch(topic) is None or topic in (".", ".."):
        raise ValueError(
            f"not a Kafka topic name (1-{MAX_TOPIC_NAME_LENGTH} of [a-zA-Z0-9._-]): {topic[:60]!r}"
        )
    return topic


def shown_url(text: str) -> str:
    """Return a URL for messages, in which ``***`` replaces possible credentials: the part before an
    ``@`` and any query. The URL may be malformed.
    """
    found = _URL_HEAD.match(text)
    if found is not None:
        first = text[found.end() :].partition("/")[0]
        # A password may hold slashes.
        if "@" in first or (":" in first and "@" in text):
            text = f"{found[0]}***@{text.rpartition('@')[2]}"
    for mark in "?#":
        before, at, _ = text.partition(mark)
        text = f"{before}{mark}***" if at and found is not None else text
    return text


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicIdPartition:
    """One partition of the topic with an id (``org.apache.kafka.common.TopicIdPartition``).

    A topic that is deleted and created again has the same name but another id. Raises ValueError
    for a name, id or number that is not valid in Kafka.
    """

    topic_id: str
    topic: str
    partition: int

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        check_kafka_uuid(self.topic_id)
        if self.topic_id == ZERO_UUID:
            raise ValueError(f"topic {self.topic} has the all-zero id, which stands for no topic")
        if not 0 <= self.partition <= _MAX_INT32:
            raise ValueError(f"partition of {self.topic} is not in 0..2^31-1: {self.partition}")

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RemoteLogSegmentId:
    """The id of one attempt to upload a segment (Kafka's ``RemoteLogSegmentId``). Ids are never
    reused."""

    topic_id_partition: TopicIdPartition
    id: str

    def __post_init__(self) -> None:
        check_kafka_uuid(self.id)

    def __str__(self) -> str:
        return f"{self.topic_id_partition}:{self.id}"
