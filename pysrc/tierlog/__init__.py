"""tierlog: tiered storage for Apache Kafka logs.

Scan, decode and rebuild log segments; tier them to an object store; read them back with or
without a broker. ``docs/ARCHITECTURE.md`` has the map, ``tierlog --help`` the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierlog._hot import CacheStats, IndexCache, QuotaSensor, QuotaSnapshot, Reservation
    from tierlog.batches import BatchTable
    from tierlog.columns import BinaryColumn, HeaderColumn, Record, RecordColumns
    from tierlog.errors import (
        ClosedError,
        ConfigError,
        CorruptDataError,
        FencedLeaderError,
        GapError,
        MetadataNotReadyError,
        OutOfRangeError,
        RemoteMetadataError,
        RemoteResourceNotFoundError,
        RemoteStorageError,
        TierlogError,
    )
    from tierlog.fetch.fetcher import Fetcher
    from tierlog.fetch.offsets import OffsetAnswer, SpecialTimestamp
    from tierlog.fetch.setup import open_fetcher
    from tierlog.log.log_dir import open_log_dir
    from tierlog.log.rebuild import RebuiltIndexes, rebuild_indexes
    from tierlog.log.records import decode_records
    from tierlog.log.segment import scan_segment
    from tierlog.quota import QuotaManager
    from tierlog.reader.open import open_reader, read, read_async
    from tierlog.reader.types import (
        FetchError,
        FetchHost,
        FetchPartition,
        FetchRequest,
        FetchResponse,
        FetchSource,
        FetchView,
        IsolationLevel,
        PartitionData,
    )
    from tierlog.remote.index_cache.cache import RemoteIndexCache
    from tierlog.remote.metadata.manager import (
        RemoteLogMetadataManager,
        RemoteLogSegmentMetadata,
        RemoteLogSegmentMetadataUpdate,
        RemoteLogSegmentState,
    )
    from tierlog.remote.segment.log_index import (
        RemoteLogIndexEntries,
        decode_remote_log_index,
        encode_remote_log_index,
    )
    from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
    from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
    from tierlog.remote.urls import open_store
    from tierlog.tiering.local_log import LocalLog, LogView, TopicSettings
    from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
    from tierlog.tiering.partition_work import ManagerListener
    from tierlog.types import StopReason, TopicIdPartition

__all__ = [
    "BatchTable",
    "BinaryColumn",
    "CacheStats",
    "ClosedError",
    "ConfigError",
    "CorruptDataError",
    "FencedLeaderError",
    "FetchError",
    "FetchHost",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchSource",
    "FetchView",
    "Fetcher",
    "GapError",
    "HeaderColumn",
    "IndexCache",
    "IsolationLevel",
    "LocalLog",
    "LogView",
    "ManagerListener",
    "ManagerOptions",
    "MetadataNotReadyError",
    "ObjectInfo",
    "ObjectStorageManager",
    "ObjectStore",
    "OffsetAnswer",
    "OutOfRangeError",
    "PartitionData",
    "QuotaManager",
    "QuotaSensor",
    "QuotaSnapshot",
    "RebuiltIndexes",
    "Record",
    "RecordColumns",
    "RemoteIndexCache",
    "RemoteLogIndexEntries",
    "RemoteLogManager",
    "RemoteLogMetadataManager",
    "RemoteLogSegmentMetadata",
    "RemoteLogSegmentMetadataUpdate",
    "RemoteLogSegmentState",
    "RemoteMetadataError",
    "RemoteResourceNotFoundError",
    "RemoteStorageError",
    "RemoteStorageManager",
    "Reservation",
    "SpecialTimestamp",
    "StopReason",
    "TierlogError",
    "TopicIdPartition",
    "TopicSettings",
    "decode_records",
    "decode_remote_log_index",
    "encode_remote_log_index",
    "open_fetcher",
    "open_log_dir",
    "open_reader",
    "open_store",
    "read",
    "read_async",
    "rebuild_indexes",
    "scan_segment",
]

# Where each name lives. Loaded when first asked for: the command must not pay for numpy and the
# object store client before it knows that it needs them.
_HOMES = {
    "BatchTable": "batches",
    "BinaryColumn": "columns",
    "CacheStats": "_hot",
    "ClosedError": "errors",
    "ConfigError": "errors",
    "CorruptDataError": "errors",
    "FencedLeaderError": "errors",
    "FetchError": "reader.types",
    "FetchHost": "reader.types",
    "FetchPartition": "reader.types",
    "FetchRequest": "reader.types",
    "FetchResponse": "reader.types",
    "FetchSource": "reader.types",
    "FetchView": "reader.types",
    "Fetcher": "fetch.fetcher",
    "GapError": "errors",
    "HeaderColumn": "columns",
    "IndexCache": "_hot",
    "IsolationLevel": "reader.types",
    "LocalLog": "tiering.local_log",
    "LogView": "tiering.local_log",
    "ManagerListener": "tiering.partition_work",
    "ManagerOptions": "tiering.manager",
    "MetadataNotReadyError": "errors",
    "ObjectInfo": "remote.store.object_store",
    "ObjectStorageManager": "remote.segment.storage",
    "ObjectStore": "remote.store.object_store",
    "OffsetAnswer": "fetch.offsets",
    "OutOfRangeError": "errors",
    "PartitionData": "reader.types",
    "QuotaManager": "quota",
    "QuotaSensor": "_hot",
    "QuotaSnapshot": "_hot",
    "RebuiltIndexes": "log.rebuild",
    "Record": "columns",
    "RecordColumns": "columns",
    "RemoteIndexCache": "remote.index_cache.cache",
    "RemoteLogIndexEntries": "remote.segment.log_index",
    "RemoteLogManager": "tiering.manager",
    "RemoteLogMetadataManager": "remote.metadata.manager",
    "RemoteLogSegmentMetadata": "remote.metadata.manager",
    "RemoteLogSegmentMetadataUpdate": "remote.metadata.manager",
    "RemoteLogSegmentState": "remote.metadata.manager",
    "RemoteMetadataError": "errors",
    "RemoteResourceNotFoundError": "errors",
    "RemoteStorageError": "errors",
    "RemoteStorageManager": "remote.segment.storage",
    "Reservation": "_hot",
    "SpecialTimestamp": "fetch.offsets",
    "StopReason": "types",
    "TierlogError": "errors",
    "TopicIdPartition": "types",
    "TopicSettings": "tiering.local_log",
    "decode_records": "log.records",
    "decode_remote_log_index": "remote.segment.log_index",
    "encode_remote_log_index": "remote.segment.log_index",
    "open_fetcher": "fetch.setup",
    "open_log_dir": "log.log_dir",
    "open_reader": "reader.open",
    "open_store": "remote.urls",
    "read": "reader.open",
    "read_async": "reader.open",
    "rebuild_indexes": "log.rebuild",
    "scan_segment": "log.segment",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tierlog' has no attribute {name!r}")
    value = getattr(import_module(f"tierlog.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
