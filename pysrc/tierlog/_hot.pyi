"""The per-request look-ups at the lowest call cost; `_hot.pxd` is for Cython."""

from collections.abc import Callable, Container
from types import TracebackType
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    final,
)

from typing_extensions import Buffer

from tierlog._core import ReadFile, SegmentIndex

__all__ = [
    "ByteBudget",
    "CacheStats",
    "CachedIndex",
    "CachedOffsetIndex",
    "FileReads",
    "IndexCache",
    "KnownPlaces",
    "Permit",
    "Place",
    "PlaceTable",
    "QuotaSensor",
    "QuotaSnapshot",
    "ReadMarks",
    "Reservation",
    "native_key",
]

_Part: TypeAlias = str | bytes | int
_Key: TypeAlias = _Part | tuple[_Part, ...]
_Cause: TypeAlias = Literal["size", "expired", "explicit", "replaced", "closed"]

class _Clock(Protocol):
    def monotonic_ms(self) -> int: ...

@final
class CachedIndex:
    def __new__(cls, data: Buffer) -> Self: ...
    def __len__(self) -> int: ...
    def lookup(self, target_offset: int) -> tuple[int, int, int, int] | None: ...
    def lookup_position(self, target_offset: int) -> int: ...
    def rdi(self, position: int) -> bytes: ...

@final
class CachedOffsetIndex:
    def __new__(cls, data: Buffer, base_offset: int) -> Self: ...
    @property
    def base_offset(self) -> int: ...
    def lookup(self, target_offset: int) -> tuple[int, int]: ...

class QuotaSnapshot(NamedTuple):
    rate_bytes_per_second: float
    limit_bytes_per_second: int | None
    total_bytes: int
    window_bytes: int
    reserved_bytes: int
    throttled_ms: int
    overshoot_bytes: int

@final
class QuotaSensor:
    def __new__(
        cls,
        num_samples: SupportsIndex = 61,
        window_ms: SupportsIndex = 1000,
        limit_bytes_per_second: SupportsIndex | None = None,
        rate: Literal["window", "elapsed"] = "window",
    ) -> Self: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def window_ms(self) -> int: ...
    @property
    def rate_mode(self) -> Literal["window", "elapsed"]: ...
    @property
    def limit(self) -> int | None: ...
    def record(self, amount: SupportsIndex, now_ms: SupportsIndex | None = None) -> None: ...
    def record_and_throttle_ms(
        self, amount: SupportsIndex, now_ms: SupportsIndex | None = None
    ) -> int: ...
    def record_many(self, amounts: Buffer, now_ms: SupportsIndex | None = None) -> int: ...
    def rate(self, now_ms: SupportsIndex | None = None) -> float: ...
    def throttle_ms(self, now_ms: SupportsIndex | None = None) -> int: ...
    def set_limit(
        self, limit_bytes_per_second: SupportsIndex | None, now_ms: SupportsIndex | None = None
    ) -> None: ...
    def total(self) -> int: ...
    def snapshot(self, now_ms: SupportsIndex | None = None) -> QuotaSnapshot: ...
    def try_reserve(
        self, amount: SupportsIndex, now_ms: SupportsIndex | None = None
    ) -> Reservation | int: ...

@final
class Reservation:
    @property
    def amount(self) -> int: ...
    def settle(self, actual: SupportsIndex, now_ms: SupportsIndex | None = None) -> None: ...
    def cancel(self, now_ms: SupportsIndex | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class ByteBudget:
    guarded: bool
    closed: bool
    def __new__(
        cls,
        limit_bytes: SupportsIndex,
        ahead_limit_bytes: SupportsIndex,
        on_return: Callable[[], object],
    ) -> Self: ...
    def set_limits(self, limit_bytes: SupportsIndex, ahead_limit_bytes: SupportsIndex) -> None: ...
    def take(
        self, size_bytes: SupportsIndex, ahead: bool = False, waited: bool = False
    ) -> Permit | None: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def ahead_limit_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def ahead_bytes(self) -> int: ...
    @property
    def most_bytes(self) -> int: ...

@final
class Permit:
    @property
    def size_bytes(self) -> int: ...
    @property
    def ahead(self) -> bool: ...
    def release(self) -> None: ...
    def hold(self, data: Buffer) -> memoryview: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# The metadata of a segment, the lineage of a partition and its name belong to the layers above.
class _Partition(Protocol):
    @property
    def topic_id(self) -> str: ...
    @property
    def partition(self) -> int: ...

@final
class Place:
    def __new__(cls, segment: Any, first_offset: int, last_offset: int, log_key: str) -> Self: ...
    @property
    def segment(self) -> Any: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def log_key(self) -> str: ...
    @property
    def index_key(self) -> tuple[str, int, str]: ...
    def holds(self, offset: int) -> bool: ...
    def is_of(self, other: Place) -> bool: ...

@final
class KnownPlaces:
    def __new__(cls, change: int, lineage: object, places: tuple[Place, ...]) -> Self: ...
    @property
    def change(self) -> int: ...
    @property
    def lineage(self) -> Any: ...
    @property
    def places(self) -> tuple[Place, ...]: ...
    def at(self, offset: int) -> Place | None: ...

@final
class PlaceTable:
    def __new__(cls, changes: Callable[[Any], int], most: int) -> Self: ...
    def current(self, partition: _Partition, lineage: object) -> KnownPlaces: ...
    def keep(self, partition: _Partition, known: KnownPlaces) -> None: ...
    def forget(self, partition: _Partition) -> None: ...

@final
class ReadMarks:
    def __new__(cls, most: int) -> Self: ...
    def __len__(self) -> int: ...
    def put(
        self,
        topic_id: str,
        partition: int,
        offset: int,
        place: Place,
        position: int,
        now_ms: int,
    ) -> None: ...
    def take(self, topic_id: str, partition: int, offset: int) -> tuple[Place, int, int] | None: ...
    def clear(self) -> None: ...

_Answer = TypeVar("_Answer", bound=tuple[Any, ...])

@final
class FileReads(Generic[_Answer]):
    closed: bool
    def __new__(
        cls,
        answer: type[_Answer],
        places: PlaceTable,
        index_of: Callable[[Place], SegmentIndex | None],
        cache: IndexCache | None,
        distrusted: Container[object],
        open_file: Callable[[str], ReadFile | None],
        budget: ByteBudget,
        streams: Container[tuple[str, int, int]],
        marks: ReadMarks,
        now_ms: Callable[[], int] | None,
        reach_bytes: int,
    ) -> Self: ...
    def read(
        self,
        partition: _Partition,
        lineage: object,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        minimum_one: bool,
    ) -> _Answer | None: ...

class CacheStats(NamedTuple):
    hits: int
    misses: int
    loads: int
    failed_loads: int
    load_ms: int
    removed_size: int
    removed_expired: int
    removed_explicit: int
    removed_replaced: int
    removed_closed: int
    entries: int
    weight_bytes: int

def native_key(key: _Key) -> bytes: ...

@final
class IndexCache:
    def __new__(
        cls,
        max_bytes: SupportsIndex,
        ttl_ms: SupportsIndex = 900_000,
        clock: _Clock | None = None,
        on_removal: Callable[[Any, Any, _Cause], object] | None = None,
        record_stats: bool = False,
    ) -> Self: ...
    def get(self, key: _Key, default: Any = None) -> Any: ...
    def lookup_position(self, key: _Key, target_offset: int) -> int | None: ...
    def put(self, key: _Key, value: Any, weight_bytes: SupportsIndex) -> None: ...
    def get_or_load(
        self,
        key: _Key,
        loader: Callable[[Any], tuple[Any, SupportsIndex]],
        timeout_ms: SupportsIndex | None = None,
    ) -> Any: ...
    def __contains__(self, key: object) -> bool: ...
    def remove(self, key: _Key) -> bool: ...
    def remove_if(self, predicate: Callable[[Any], object]) -> int: ...
    def sweep(self, now_ms: SupportsIndex | None = None) -> int: ...
    def resize(self, max_bytes: SupportsIndex) -> None: ...
    def set_ttl(self, ttl_ms: SupportsIndex) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def stats(self) -> CacheStats: ...
    def __len__(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def ttl_ms(self) -> int: ...
    @property
    def closed(self) -> bool: ...
