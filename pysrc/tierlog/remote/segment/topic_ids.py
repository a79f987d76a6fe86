"""Ids for the archives of topics that had no id: derived ids, and the ids that topics got later.

Brokers up to 2.7 give topics no ids. tierlog archives such a topic under an id that it derives from
the cluster id and the topic name (`tierlog.types.derived_topic_id`). When the cluster later gives
the topic an id, the archive keeps the derived id. Two small objects record this:

    topic-ids/<topic>-<derived id>.derived      the topic is archived under this derived id
    topic-ids/<topic>-<derived id>.adopted      the topic's own id, which it got later

Both objects are UTF-8 JSON, ``{"format_version": 1, "topic": text}``; the second object also has
``"topic_id"``. The objects are created with if-none-match and never change. A topic that is
recreated under the same name gets another id, and therefore its own archive.
"""

from __future__ import annotations

import json

from tierlog.errors import CorruptDataError
from tierlog.remote.segment.layout import MAX_TOPIC_LABEL, TOPIC_IDS_PREFIX, is_marker
from tierlog.remote.store.object_store import ObjectStore
from tierlog.types import check_kafka_uuid

__all__ = ["StoredTopicIds", "adopted_topic_ids"]

_DERIVED, _ADOPTED = ".derived", ".adopted"
_VERSION = 1
_MAX_BYTES = 4_096
_UUID_LENGTH = 22


class StoredTopicIds:
    """The derived ids of one store, as of the last `load`. Not thread-safe.

    ``adopted`` maps a derived id to the topic's own id.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.derived: set[str] = set()
        self.adopted: dict[str, str] = {}

    def load(self) -> None:
        """List the store and read new objects. Raises RemoteStorageError when the store fails."""
        for info in self._store.list(TOPIC_IDS_PREFIX):
            if not is_marker(info.key):
                continue
            name, _, suffix = info.key.rpartition(".")
            derived_id = name[-_UUID_LENGTH:]
            self.derived.add(derived_id)
            if f".{suffix}" == _ADOPTED and derived_id not in self.adopted:
                self.adopted[derived_id] = self._read_adopted_id(info.key, info.size_bytes)

    def mark_derived(self, topic: str, derived_id: str) -> None:
        """Record that the topic is archived under a derived id. The call may be repeated."""
        if derived_id not in self.derived:
            self._store.put_if_absent(_key(topic, derived_id, _DERIVED), _encode_json(topic=topic))
            self.derived.add(derived_id)

    def adopt(self, topic: str, derived_id: str, topic_id: str) -> str:
        """Record that the archive belongs to the topic `topic_id`; return the recorded id. If
        several sidecars record an id, the first id is kept."""
        key = _key(topic, derived_id, _ADOPTED)
        if self._store.put_if_absent(key, _encode_json(topic=topic, topic_id=topic_id)):
            self.adopted[derived_id] = topic_id
        else:
            self.adopted[derived_id] = self._read_adopted_id(key, self._store.head(key).size_bytes)
        return self.adopted[derived_id]

    def _read_adopted_id(self, key: str, size_bytes: int) -> str:
        """Return the topic's own id from an ``.adopted`` object."""
        try:
            if not 0 < size_bytes <= _MAX_BYTES:
                raise ValueError(f"{size_bytes} bytes")
            fields = json.loads(bytes(self._store.get_range(key, 0, size_bytes)))
            if not isinstance(fields, dict) or fields.get("format_version") != _VERSION:
                raise ValueError(repr(fields)[:80])
            return check_kafka_uuid(str(fields.get("topic_id")))
        except (ValueError, RecursionError) as error:
            raise CorruptDataError(
                reason="bad_topic_id",
                path=f"{self._store.url}/{key}",
                position=0,
                expected=f"JSON with topic, topic_id and format_version {_VERSION}",
                found=str(error),
                hint="remove the object if the topic of that name was never recreated",
            ) from None


def adopted_topic_ids(store: ObjectStore) -> dict[str, str]:
    """Return a dict from the derived id of an archive to the id that its topic got later."""
    stored = StoredTopicIds(store)
    stored.load()
    return stored.adopted


def _key(topic: str, derived_id: str, suffix: str) -> str:
    return f"{TOPIC_IDS_PREFIX}{topic[:MAX_TOPIC_LABEL]}-{derived_id}{suffix}"


def _encode_json(**fields: str) -> bytes:
    return json.dumps({"format_version": _VERSION, **fields}, sort_keys=True).encode("utf-8")
