"""Encode and decode the immutable part of a segment's metadata as JSON.

Every `.indexes` object contains the JSON text of its segment. The text is UTF-8, its keys are
sorted, it has no blanks, and all its numbers are integers.

| Key | Value |
|---|---|
| ``format_version`` | 1 |
| ``topic``, ``topic_id``, ``partition`` | name, 22-character Kafka uuid, number |
| ``topic_id_derived`` | true when the cluster has no id for the topic; otherwise absent |
| ``segment_id`` | 22-character Kafka uuid |
| ``start_offset``, ``end_offset`` | both inclusive |
| ``max_timestamp_ms`` | largest record timestamp |
| ``leader_epochs`` | ``[[epoch, first offset], ...]`` ascending |
| ``bytes_per_epoch`` | ``[[epoch, bytes], ...]`` ascending, or null |
| ``log_size_bytes``, ``log_crc32c`` | of the `.log` object; the checksum may be null |
| ``broker_id``, ``created_ms`` | broker that copied it, and when the copy started |
| ``txn_index_empty`` | true, false |
| ``record_count``, ``batch_count`` | of the `.log` object, -1 when unknown |
| ``cluster_id`` | text, ``""`` when unknown |
| ``gap_start_offset`` | start of a gap of deleted, uncopied offsets before this segment; if any |
| ``claim_epoch`` | leader epoch of the claim (see `claims`) it was copied under; if any |

Unknown keys are ignored. A repeated key, a wrong type or another version is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from tierlog.errors import CorruptDataError
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, is_derived_topic_id

__all__ = ["FORMAT_VERSION", "SegmentDescription", "decode_segment", "encode_segment"]

FORMAT_VERSION = 1
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDescription:
    """A segment's metadata and the other facts in its `.indexes` object."""

    metadata: RemoteLogSegmentMetadata
    record_count: int = -1
    batch_count: int = -1
    cluster_id: str = ""
    gap_start_offset: int | None = None
    claim_epoch: int | None = None


def encode_segment(description: SegmentDescription) -> bytes:
    """Return the JSON text. The text leaves out the state and the custom metadata, because they
    change."""
    metadata = description.metadata
    partition = metadata.topic_id_partition
    fields: dict[str, object] = {
        "format_version": FORMAT_VERSION,
        "topic": partition.topic,
        "topic_id": partition.topic_id,
        "partition": partition.partition,
        "segment_id": metadata.segment_id.id,
        "start_offset": metadata.start_offset,
        "end_offset": metadata.end_offset,
        "max_timestamp_ms": metadata.max_timestamp_ms,
        "leader_epochs": metadata.leader_epochs,
        "bytes_per_epoch": metadata.bytes_per_epoch,
        "log_size_bytes": metadata.segment_size_bytes,
        "log_crc32c": metadata.log_crc32c,
        "broker_id": metadata.broker_id,
        "created_ms": metadata.event_timestamp_ms,
        "txn_index_empty": metadata.txn_index_empty,
        "record_count": description.record_count,
        "batch_count": description.batch_count,
        "cluster_id": description.cluster_id,
    }
    if description.gap_start_offset is not None:
        fields["gap_start_offset"] = description.gap_start_offset
    if description.claim_epoch is not None:
        fields["claim_epoch"] = description.claim_epoch
    if is_derived_topic_id(partition.topic_id):
        fields["topic_id_derived"] = True
    return _ENCODER.encode(fields).encode("utf-8")


def decode_segment(
    data: bytes,
    *,
    path: str,
    position: int,
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    changes: Mapping[str, Any] | None = None,
) -> SegmentDescription:
    """Decode the untrusted description `data`, which was read at byte `position` of the file
    `path`.

    `state` and `changes` (fields of RemoteLogSegmentMetadata from another source) replace the
    decoded values. Raises CorruptDataError when `data` does not describe a segment.
    """
    try:
        fields = _DECODER.decode(data.decode("utf-8"))
        if not isinstance(fields, _Fields):
            raise ValueError(f"a JSON {type(fields).__name__} instead of an object")
        return fields.description({"state": state, **(changes or {})})
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            reason="bad_metadata",
            path=path,
            position=position,
            expected=f"JSON that describes a segment, format version {FORMAT_VERSION}",
            found=str(error)[:200] or type(error).__name__,
        ) from None


class _Fields(dict[str, Any]):
    """A decoded JSON object; its methods check the values and raise ValueError."""

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"{name} is missing")

    def description(self, changes: Mapping[str, Any]) -> SegmentDescription:
        version = self.integer("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(f"format version {version}")
        partition = _shared_partition(
            self.text("topic_id"), self.text("topic"), self.integer("partition")
        )
        values: dict[str, Any] = {
            "segment_id": RemoteLogSegmentId(
                topic_id_partition=partition, id=self.text("segment_id")
            ),
            "start_offset": self.integer("start_offset"),
            "end_offset": self.integer("end_offset"),
            "max_timestamp_ms": self.integer("max_timestamp_ms"),
            "broker_id": self.integer("broker_id"),
            "event_timestamp_ms": self.integer("created_ms"),
            "segment_size_bytes": self.integer("log_size_bytes"),
            "leader_epochs": self.pairs("leader_epochs"),
            "txn_index_empty": self.boolean("txn_index_empty"),
            "bytes_per_epoch": self._or_null("bytes_per_epoch", self.pairs),
            "log_crc32c": self._or_null("log_crc32c", self.integer),
        }
        metadata = RemoteLogSegmentMetadata(**{**values, **changes})
        return SegmentDescription(
            metadata=metadata,
            record_count=self.integer("record_count"),
            batch_count=self.integer("batch_count"),
            cluster_id=self.text("cluster_id"),
            gap_start_offset=self.integer_or_none("gap_start_offset"),
            claim_epoch=self.integer_or_none("claim_epoch"),
        )

    def integer(self, name: str) -> int:
        return _integer(self[name], name)

    def integer_or_none(self, name: str) -> int | None:
        return self.integer(name) if name in self else None

    def text(self, name: str) -> str:
        value = self[name]
        if not isinstance(value, str):
            raise ValueError(f"{name} is not text")
        return value

    def boolean(self, name: str) -> bool:
        value = self[name]
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false")
        return value

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        value = self[name]
        if not isinstance(value, list):
            raise ValueError(f"{name} is not a list")
        return tuple(_pair(entry, name) for entry in value)

    def _or_null(self, name: str, read: Callable[[str], _Value]) -> _Value | None:
        return None if self[name] is None else read(name)


@lru_cache(maxsize=4096)
def _shared_partition(topic_id: str, topic: str, number: int) -> TopicIdPartition:
    """Return one shared object per partition, to save memory when many segments are decoded."""
    return TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)


def _integer(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is not an integer")
    if not _MIN_INT64 <= value <= _MAX_INT64:
        raise ValueError(f"{name} does not fit in 64 bits")
    return value


def _pair(entry: object, name: str) -> tuple[int, int]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ValueError(f"{name} has an entry that is not a pair")
    return _integer(entry[0], name), _integer(entry[1], name)


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> _Fields:
    fields = _Fields(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


# These objects are built once, because json.dumps and json.loads would build a new one in each
# call, which costs as much as the decoding.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant
)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)
