"""Made by ``python -m tests.public_stub``."""

from tierlog._hot import CacheStats, IndexCache, QuotaSensor, QuotaSnapshot, Reservation
from tierlog.batches import BatchTable
from tierlog.clock import Clock, ManualClock, SystemClock
from tierlog.columns import BinaryColumn, HeaderColumn, Record, RecordColumns
from tierlog.config import (
    Config,
    GroupConfig,
    LogConfig,
    NodeConfig,
    PluginConfig,
    QuotaConfig,
    RemoteIndexConfig,
    RemoteLogConfig,
    TierConfig,
    TransactionConfig,
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
    "GroupConfig",
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
    "NodeConfig",
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
    "TransactionConfig",
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
]
