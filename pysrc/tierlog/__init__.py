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
    from tierlog.clock import Clock, ManualClock, SystemClock
    from tierlog.columns import BinaryColumn, HeaderColumn, Record, RecordColumns
    from tierlog.config import (
        Config,
        LogConfig,
        PluginConfig,
        QuotaConfig,
        RemoteIndexConfig,
        RemoteLogConfig,
        TierConfig,
        load_config,
    )
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
    from tierlog.log.eligibility import StableOffset, StableSource
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
    from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
    from tierlog.remote.segment.bucket import bucket_metadata
    from tierlog.remote.segment.log_index import (
        RemoteLogIndexEntries,
        decode_remote_log_index,
        encode_remote_log_index,
    )
    from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
    from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
    from tierlog.remote.urls import open_store
    from tierlog.sidecar import Sidecar
    from tierlog.tiering.local_log import LocalLog, LogView, TopicSettings
    from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
    from tierlog.tiering.partition_work import ManagerListener
    from tierlog.tools.audit.rows import AuditRules
    from tierlog.tools.audit.store import StoreAudit, audit_store
    from tierlog.tools.progress import Progress
    from tierlog.tools.rebuild.index import (
        plan_rebuild,
        rebuild_report,
        rebuild_task,
        remote_index_task,
        scan_task,
    )
    from tierlog.types import StopReason, TopicIdPartition

    __version__: str

__all__ = [
    "AuditRules",
    "BatchTable",
    "BinaryColumn",
    "CacheStats",
    "Clock",
    "ClosedError",
    "Config",
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
    "LogConfig",
    "LogView",
    "ManagerListener",
    "ManagerOptions",
    "ManualClock",
    "MetadataNotReadyError",
    "ObjectInfo",
    "ObjectStorageManager",
    "ObjectStore",
    "OffsetAnswer",
    "OutOfRangeError",
    "PartitionData",
    "PluginConfig",
    "Progress",
    "QuotaConfig",
    "QuotaManager",
    "QuotaSensor",
    "QuotaSnapshot",
    "RebuiltIndexes",
    "Record",
    "RecordColumns",
    "RemoteIndexCache",
    "RemoteIndexConfig",
    "RemoteLogConfig",
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
    "Sidecar",
    "SpecialTimestamp",
    "SqliteRemoteLogMetadataManager",
    "StableOffset",
    "StableSource",
    "StopReason",
    "StoreAudit",
    "SystemClock",
    "TierConfig",
    "TierlogError",
    "TopicIdPartition",
    "TopicSettings",
    "audit_store",
    "bucket_metadata",
    "decode_records",
    "decode_remote_log_index",
    "encode_remote_log_index",
    "load_config",
    "open_fetcher",
    "open_log_dir",
    "open_reader",
    "open_store",
    "plan_rebuild",
    "read",
    "read_async",
    "rebuild_indexes",
    "rebuild_report",
    "rebuild_task",
    "remote_index_task",
    "scan_segment",
    "scan_task",
]

# Where each name lives. Loaded when first asked for: the command must not pay for numpy and the
# object store client before it knows that it needs them.
_HOMES = {
    "AuditRules": "tools.audit.rows",
    "BatchTable": "batches",
    "BinaryColumn": "columns",
    "CacheStats": "_hot",
    "Clock": "clock",
    "ClosedError": "errors",
    "Config": "config",
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
    "LogConfig": "config",
    "LogView": "tiering.local_log",
    "ManagerListener": "tiering.partition_work",
    "ManagerOptions": "tiering.manager",
    "ManualClock": "clock",
    "MetadataNotReadyError": "errors",
    "ObjectInfo": "remote.store.object_store",
    "ObjectStorageManager": "remote.segment.storage",
    "ObjectStore": "remote.store.object_store",
    "OffsetAnswer": "fetch.offsets",
    "OutOfRangeError": "errors",
    "PartitionData": "reader.types",
    "PluginConfig": "config",
    "Progress": "tools.progress",
    "QuotaConfig": "config",
    "QuotaManager": "quota",
    "QuotaSensor": "_hot",
    "QuotaSnapshot": "_hot",
    "RebuiltIndexes": "log.rebuild",
    "Record": "columns",
    "RecordColumns": "columns",
    "RemoteIndexCache": "remote.index_cache.cache",
    "RemoteIndexConfig": "config",
    "RemoteLogConfig": "config",
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
    "Sidecar": "sidecar",
    "SpecialTimestamp": "fetch.offsets",
    "SqliteRemoteLogMetadataManager": "remote.metadata.sqlite",
    "StableOffset": "log.eligibility",
    "StableSource": "log.eligibility",
    "StopReason": "types",
    "StoreAudit": "tools.audit.store",
    "SystemClock": "clock",
    "TierConfig": "config",
    "TierlogError": "errors",
    "TopicIdPartition": "types",
    "TopicSettings": "tiering.local_log",
    "audit_store": "tools.audit.store",
    "bucket_metadata": "remote.segment.bucket",
    "decode_records": "log.records",
    "decode_remote_log_index": "remote.segment.log_index",
    "encode_remote_log_index": "remote.segment.log_index",
    "load_config": "config",
    "open_fetcher": "fetch.setup",
    "open_log_dir": "log.log_dir",
    "open_reader": "reader.open",
    "open_store": "remote.urls",
    "plan_rebuild": "tools.rebuild.index",
    "read": "reader.open",
    "read_async": "reader.open",
    "rebuild_indexes": "log.rebuild",
    "rebuild_report": "tools.rebuild.index",
    "rebuild_task": "tools.rebuild.index",
    "remote_index_task": "tools.rebuild.index",
    "scan_segment": "log.segment",
    "scan_task": "tools.rebuild.index",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        # Here, since the import takes 40 ms.
        from importlib.metadata import version

        value = version("tierlog")
    elif name in _HOMES:
        value = getattr(import_module(f"tierlog.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'tierlog' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
