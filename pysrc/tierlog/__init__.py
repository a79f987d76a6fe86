"""tierlog: tiered storage for Apache Kafka logs.

Scan, decode and rebuild log segments; tier them to an object store; read them back with or
without a broker. ``docs/ARCHITECTURE.md`` has the map, ``tierlog --help`` the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The public names of each module. ``__init__.pyi`` is made from this table for type checkers:
# ``python -m tests.public_stub``.
_NAMES = {
    "_hot": "CacheStats IndexCache QuotaSensor QuotaSnapshot Reservation",
    "batches": "BatchTable",
    "clock": "Clock ManualClock SystemClock",
    "columns": "BinaryColumn HeaderColumn Record RecordColumns",
    "config": (
        "Config GroupConfig LogConfig NodeConfig PluginConfig QuotaConfig RemoteIndexConfig "
        "RemoteLogConfig TierConfig TransactionConfig load_config"
    ),
    "errors": (
        "ClosedError ConfigError CorruptDataError FencedLeaderError GapError "
        "MetadataNotReadyError OutOfRangeError RemoteMetadataError RemoteResourceNotFoundError "
        "RemoteStorageError TierlogError"
    ),
    "fetch.fetcher": "Fetcher",
    "fetch.offsets": "OffsetAnswer SpecialTimestamp",
    "fetch.setup": "open_fetcher",
    "log.eligibility": "StableOffset StableSource",
    "log.log_dir": "open_log_dir",
    "log.rebuild": "RebuiltIndexes rebuild_indexes",
    "log.records": "decode_records",
    "log.segment": "scan_segment",
    "quota": "QuotaManager",
    "reader.open": "open_reader read read_async",
    "reader.types": (
        "FetchError FetchHost FetchPartition FetchRequest FetchResponse FetchSource FetchView "
        "IsolationLevel PartitionData"
    ),
    "remote.index_cache.cache": "RemoteIndexCache",
    "remote.metadata.manager": (
        "RemoteLogMetadataManager RemoteLogSegmentMetadata RemoteLogSegmentMetadataUpdate "
        "RemoteLogSegmentState"
    ),
    "remote.metadata.sqlite": "SqliteRemoteLogMetadataManager",
    "remote.segment.bucket": "bucket_metadata",
    "remote.segment.log_index": (
        "RemoteLogIndexEntries decode_remote_log_index encode_remote_log_index"
    ),
    "remote.segment.storage": "ObjectStorageManager RemoteStorageManager",
    "remote.store.object_store": "ObjectInfo ObjectStore",
    "remote.urls": "open_store",
    "sidecar": "Sidecar",
    "tiering.local_log": "LocalLog LogView TopicSettings",
    "tiering.manager": "ManagerOptions RemoteLogManager",
    "tiering.partition_work": "ManagerListener",
    "tools.audit.rows": "AuditRules",
    "tools.audit.store": "StoreAudit audit_store",
    "tools.progress": "Progress",
    "tools.rebuild.index": "plan_rebuild rebuild_report rebuild_task remote_index_task",
    "types": "StopReason TopicIdPartition",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: ``tierlog -V`` needs neither numpy nor an object store."""
    value: Any
    if name == "__version__":
        # Imported here, since the import takes 40 ms.
        from importlib.metadata import version

        value = version("tierlog")
    elif name in _MODULES:
        value = getattr(import_module(f"tierlog.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'tierlog' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
