"""Layout of a store: object keys, the cluster marker and RDIs.

    <topic>-<topicId>/<partition>/<base offset, 20 digits>-<segmentId>.log       Kafka's bytes
    <topic>-<topicId>/<partition>/<base offset, 20 digits>-<segmentId>.indexes   see `indexes`
    cluster.json                                                                 the cluster marker
    claims/<topicId>-<partition>/<leader epoch, 10 digits>-<broker id>           see `claims`
    topic-ids/<topic>-<derived id>.derived, .adopted                             see `topic_ids`
    <topic>-<topicId>/<partition>/<end offset>-<leader epoch>-<broker id>.takeover   see `Takeover`

All keys are relative to the store's URL. Ids are 22-character Kafka uuids, which may start with
``-``; digits are ASCII. The id identifies the topic; the topic name is a label for people. A key
has only the first 232 characters of a longer topic name, because a file name has at most 255 bytes.

`cluster.json` is UTF-8 JSON, ``{"cluster_id": text, "format_version": 1}``. `cluster.json` is
created with if-none-match, so two clusters never share a prefix.

An RDI is the UTF-8 text ``<object key>:<byte position>`` in a remoteLogIndex entry. It is untrusted
input. An RDI never names a bucket or endpoint, and its key must be below the folder of its own
partition.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from tierlog.errors import ConfigError, CorruptDataError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.store.object_store import ObjectStore
from tierlog.types import (
    RemoteLogSegmentId,
    TopicIdPartition,
    check_kafka_uuid,
    check_topic_name,
)

__all__ = [
    "CLAIMS_PREFIX",
    "CLUSTER_KEY",
    "INDEXES_SUFFIX",
    "LOG_SUFFIX",
    "MAX_RDI_BYTES",
    "MAX_TOPIC_LABEL",
    "TOPIC_IDS_PREFIX",
    "ObjectKey",
    "Takeover",
    "claim_cluster",
    "encode_rdi",
    "indexes_key",
    "is_foreign_data_id",
    "is_marker",
    "is_segment_key",
    "log_key",
    "log_key_of",
    "parse_key",
    "parse_rdi",
    "parse_takeover",
    "partition_prefix",
    "read_cluster_id",
    "split_data_id",
    "takeover_key",
    "topic_prefix",
]

LOG_SUFFIX = ".log"
INDEXES_SUFFIX = ".indexes"
CLUSTER_KEY = "cluster.json"
CLAIMS_PREFIX = "claims/"
TOPIC_IDS_PREFIX = "topic-ids/"
MAX_RDI_BYTES = 1024
MAX_TOPIC_LABEL = 232
_MARKER_VERSION = 1
_MAX_MARKER_BYTES = 64 << 10
_MAX_INT64 = 2**63 - 1

_KEY = re.compile(
    r"(?P<label>[a-zA-Z0-9._-]{1,249})-(?P<topic_id>[A-Za-z0-9_-]{22})"
    r"/(?P<partition>0|[1-9][0-9]{0,9})"
    r"/(?P<offset>[0-9]{20})-(?P<segment_id>[A-Za-z0-9_-]{22})(?P<suffix>\.log|\.indexes)",
    re.ASCII,
)
_TOPIC_ID_MARKER = re.compile(
    r"topic-ids/[a-zA-Z0-9._-]{1,232}-[A-Za-z0-9_-]{22}\.(derived|adopted)", re.ASCII
)
_CLAIM = re.compile(
    re.escape(CLAIMS_PREFIX) + r"[A-Za-z0-9_-]{22}-(0|[1-9][0-9]{0,9})/[0-9]{10}-(-1|[0-9]{1,10})",
    re.ASCII,
)
_TAKEOVER = re.compile(
    r"(?P<folder>[a-zA-Z0-9._-]{1,232}-[A-Za-z0-9_-]{22}/(0|[1-9][0-9]{0,9})/)"
    r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})-(?P<broker>-1|[0-9]{1,10})\.takeover",
    re.ASCII,
)
_POSITION = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKey:
    """A parsed key. `topic_label` is the first 232 characters of the topic's name."""

    topic_label: str
    topic_id: str
    partition: int
    base_offset: int
    segment_id: str
    suffix: str

    @property
    def stem(self) -> str:
        """The key without its suffix; both objects of a segment share it."""
        return (
            f"{self.topic_label}-{self.topic_id}/{self.partition}/"
            f"{self.base_offset:020d}-{self.segment_id}"
        )

    def __str__(self) -> str:
        return self.stem + self.suffix


class Takeover(NamedTuple):
    """Records that a broker took a partition over from another broker, and below which offset the
    other broker's segments count.

    The segments of the other broker that are accepted end below `end_offset`. A segment does not
    count if another broker copied it under an earlier leader epoch and it ends at or above
    `end_offset`, because it was finished after the takeover. The object is empty: its key contains
    all fields, so a listing of the partition shows them.
    """

    end_offset: int
    leader_epoch: int
    broker_id: int

    def leaves_out(self, metadata: RemoteLogSegmentMetadata, claim_epoch: int | None) -> bool:
        """Return whether a segment that was copied under the leader epoch `claim_epoch` does not
        count. A segment without a claim epoch (of older versions, or with rebuilt `.indexes`)
        always counts."""
        return (
            claim_epoch is not None
            and claim_epoch < self.leader_epoch
            and metadata.broker_id != self.broker_id
            and metadata.end_offset >= self.end_offset
        )


def takeover_key(partition: TopicIdPartition, takeover: Takeover) -> str:
    """Return the key of the object that records `takeover`."""
    return (
        f"{partition_prefix(partition)}{takeover.end_offset:020d}-"
        f"{takeover.leader_epoch:010d}-{takeover.broker_id}.takeover"
    )


def parse_takeover(key: str) -> tuple[str, Takeover] | None:
    """Return the partition's folder, with its trailing slash, and the takeover that `key` records.
    Return None if `key` is not the key of a takeover."""
    match = _TAKEOVER.fullmatch(key) if key.endswith(".takeover") else None
    if match is None:
        return None
    takeover = Takeover(int(match["offset"]), int(match["epoch"]), int(match["broker"]))
    return match["folder"], takeover


def partition_prefix(partition: TopicIdPartition) -> str:
    """Return the folder of all objects of `partition`, with its trailing slash."""
    return f"{topic_prefix(partition.topic, partition.topic_id)}{partition.partition}/"


def topic_prefix(topic: str, topic_id: str) -> str:
    """Return the folder of all objects of a topic, with its trailing slash."""
    return f"{topic[:MAX_TOPIC_LABEL]}-{topic_id}/"


def log_key(metadata: RemoteLogSegmentMetadata) -> str:
    """Return the key of the segment's `.log` object."""
    return _stem(metadata) + LOG_SUFFIX


def log_key_of(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    """Return `log_key` for a segment without metadata."""
    return _stem_of(segment_id, start_offset) + LOG_SUFFIX


def indexes_key(metadata: RemoteLogSegmentMetadata) -> str:
    """Return the key of the segment's `.indexes` object."""
    return _stem(metadata) + INDEXES_SUFFIX


def _stem(metadata: RemoteLogSegmentMetadata) -> str:
    return _stem_of(metadata.segment_id, metadata.start_offset)


def _stem_of(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    return f"{partition_prefix(segment_id.topic_id_partition)}{start_offset:020d}-{segment_id.id}"


def parse_key(key: str) -> ObjectKey:
    """Return the parts of a segment object's key; raise ValueError for any other key."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"not the key of a segment object: {key[:200]!r}")
    parsed = ObjectKey(
        topic_label=match["label"],
        topic_id=match["topic_id"],
        partition=int(match["partition"]),
        base_offset=int(match["offset"]),
        segment_id=match["segment_id"],
        suffix=match["suffix"],
    )
    # These calls refuse names and ids that no partition can have, so that only keys of tierlog
    # parse.
    check_kafka_uuid(parsed.segment_id)
    TopicIdPartition(
        topic_id=parsed.topic_id,
        topic=check_topic_name(parsed.topic_label),
        partition=parsed.partition,
    )
    if len(parsed.topic_label) > MAX_TOPIC_LABEL or parsed.base_offset > _MAX_INT64:
        raise ValueError(f"not the key of a segment object: {key[:200]!r}")
    return parsed


def is_segment_key(key: str) -> bool:
    """Return whether `parse_key` accepts the key."""
    try:
        parse_key(key)
    except ValueError:
        return False
    return True


def is_marker(key: str) -> bool:
    """Return whether the object records a fact about the store instead of a segment."""
    if key == CLUSTER_KEY or _TOPIC_ID_MARKER.fullmatch(key) is not None:
        return True
    return _CLAIM.fullmatch(key) is not None or parse_takeover(key) is not None


# -- RDI


def encode_rdi(metadata: RemoteLogSegmentMetadata, position: int) -> bytes:
    """Return the RDI of the batch at byte `position` of the segment's `.log` object."""
    if not 0 <= position < metadata.segment_size_bytes:
        raise ValueError(
            f"{metadata.segment_id}: expected a position below {metadata.segment_size_bytes}, "
            f"found {position}"
        )
    return f"{log_key(metadata)}:{position}".encode("ascii")


def parse_rdi(rdi: bytes, partition: TopicIdPartition) -> tuple[ObjectKey, int]:
    """Return the key of the `.log` object and the byte position in it, from untrusted bytes.

    Raises CorruptDataError unless `encode_rdi` could have written these bytes for `partition`.
    """
    expected = "1 to 1,024 bytes"
    if 1 <= len(rdi) <= MAX_RDI_BYTES:
        text = bytes(rdi).decode("ascii", errors="replace")
        name, _, position = text.rpartition(":")
        expected = f"<key beneath {partition_prefix(partition)}>.log:<byte position>"
        if name.startswith(partition_prefix(partition)) and _POSITION.fullmatch(position):
            key = _log_key_or_none(name)
            if key is not None and int(position) <= _MAX_INT64:
                return key, int(position)
    raise CorruptDataError(
        reason="bad_rdi",
        position=0,
        expected=expected,
        found=f"{len(rdi)} bytes {bytes(rdi[:80])!r}",
    )


def is_foreign_data_id(data_id: bytes) -> bool:
    """Return whether a remote data id has a scheme (``hdfs://...:0``). Such an id belongs to
    another storage manager, which alone can interpret it; tierlog's own ids have no scheme."""
    return b"://" in bytes(data_id)


def split_data_id(data_id: bytes, partition: TopicIdPartition) -> tuple[str, int]:
    """Return the object name and the byte position that a remote data id contains.

    The names of other storage managers are not checked. Raises CorruptDataError for tierlog's own
    id of an object outside `partition`.
    """
    if not is_foreign_data_id(data_id):
        key, position = parse_rdi(data_id, partition)
        return str(key), position
    text = bytes(data_id).decode("utf-8", errors="surrogateescape")
    name, _, digits = text.rpartition(":")
    if _POSITION.fullmatch(digits) and int(digits) <= _MAX_INT64:
        return name, int(digits)
    return text, 0


def _log_key_or_none(name: str) -> ObjectKey | None:
    try:
        key = parse_key(name)
    except ValueError:
        return None
    return key if key.suffix == LOG_SUFFIX else None


# -- cluster marker


def claim_cluster(store: ObjectStore, cluster_id: str) -> None:
    """Mark `store` as the store of `cluster_id`. The call may be repeated.

    Raises ConfigError when the store belongs to another cluster, and CorruptDataError when the
    existing marker cannot be read.
    """
    if not cluster_id or not cluster_id.isprintable():
        raise ConfigError(f"expected a printable cluster id, found {cluster_id[:80]!r}")
    marker = {"cluster_id": cluster_id, "format_version": _MARKER_VERSION}
    text = json.dumps(marker, sort_keys=True).encode("utf-8")
    if store.put_if_absent(CLUSTER_KEY, text):
        return
    owner = read_cluster_id(store)
    if owner != cluster_id:
        raise ConfigError(
            f"{store.url} belongs to cluster {owner}, not to {cluster_id} ({CLUSTER_KEY}); "
            "give every cluster its own prefix"
        )


def read_cluster_id(store: ObjectStore) -> str:
    """Return the id of the cluster that `store` belongs to.

    Raises RemoteResourceNotFoundError when the store has no marker, and CorruptDataError when the
    marker is damaged.
    """
    path = f"{store.url}/{CLUSTER_KEY}"
    size_bytes = store.head(CLUSTER_KEY).size_bytes
    if not 0 < size_bytes <= _MAX_MARKER_BYTES:
        raise _bad_marker(path, f"{size_bytes} bytes")
    try:
        fields = json.loads(bytes(store.get_range(CLUSTER_KEY, 0, size_bytes)))
    except (ValueError, RecursionError) as error:
        raise _bad_marker(path, str(error)) from None
    if not isinstance(fields, dict) or fields.get("format_version") != _MARKER_VERSION:
        raise _bad_marker(path, f"{str(fields)[:80]}")
    cluster_id = fields.get("cluster_id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise _bad_marker(path, f"cluster_id {str(cluster_id)[:80]!r}")
    return cluster_id


def _bad_marker(path: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        reason="bad_cluster_marker",
        path=path,
        position=0,
        expected=f"JSON with cluster_id and format_version {_MARKER_VERSION}",
        found=found,
        hint="if the store is yours, write the marker again; else choose another prefix",
    )
