"""Opens a reader of a store, of a broker's log directory, or of both as one log."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from tierlog.arguments import (
    FUNCTION,
    FUNCTION_OR_WORD,
    INTEGER,
    PATH,
    TEXT,
    having,
    instance_of,
    optional,
    takes,
)
from tierlog.columns import RecordColumns
from tierlog.config import Config
from tierlog.errors import ConfigError, CorruptDataError, GapError
from tierlog.log.log_dir import open_log_dir
from tierlog.quota import QuotaManager
from tierlog.reader.charges import FetchQuota
from tierlog.reader.damage import LostRecords, OnCorrupt, damage_handler
from tierlog.reader.gaps import OnGap, gap_handler
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import LogReader
from tierlog.reader.types import IsolationLevel
from tierlog.remote.segment.bucket import Problem
from tierlog.remote.segment.kafka_layout import KAFKA_SCHEME
from tierlog.remote.segment.layout import MAX_TOPIC_LABEL, ObjectKey, parse_key
from tierlog.remote.segment.storage import RemoteStorageManager

if TYPE_CHECKING:
    from tierlog.quota import Transfer
    from tierlog.reader.store_reader import StoreReader
    from tierlog.remote.index_cache.cache import RemoteIndexCache

__all__ = ["open_reader", "read", "read_async"]

Isolation = Literal["read_uncommitted", "read_committed"]

_INDEX_CACHE = having("a RemoteIndexCache", "find", "close")
_FETCH_QUOTA = having("a QuotaManager", "is_limited", "record", "try_charge", "transfer")
_SOURCE_KINDS = {
    "source": PATH,
    "store": optional(TEXT),
    "topic": optional(TEXT),
    "partition": optional(INTEGER),
    "on_problem": optional(FUNCTION),
    "index_cache": optional(_INDEX_CACHE),
    "fetch_quota": optional(_FETCH_QUOTA),
    "isolation_level": TEXT,
    "config": optional(instance_of("a Config", Config)),
    "on_gap": FUNCTION_OR_WORD,
    "on_corrupt": FUNCTION_OR_WORD,
}
_READ_KINDS = {
    **_SOURCE_KINDS,
    "topic": TEXT,
    "partition": INTEGER,
    "start_offset": INTEGER,
    "end_offset": optional(INTEGER),
    "timestamp_ms": optional(INTEGER),
}


@takes(**_SOURCE_KINDS)
def open_reader(
    source: str | os.PathLike[str],
    *,
    store: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    on_problem: Callable[[Problem], object] | None = None,
    index_cache: RemoteIndexCache | None = None,
    fetch_quota: FetchQuota | None = None,
    isolation_level: Isolation = "read_uncommitted",
    config: Config | None = None,
    on_gap: OnGap = "fail",
    on_corrupt: OnCorrupt = "fail",
) -> LogReader:
    """Return a reader of a store URL (``s3://...``, ``file:///...``) or of a broker's log
    directory. With ``store``, the reader joins the directory and the store to which it is tiered to
    one log.

    The store is listed once. The store is listed again when the directory has deleted segments that
    the first listing did not have. Each segment takes one request. With ``topic`` (name or id) and
    ``partition``, only segments of this topic and partition are requested and can be read.
    ``on_problem`` receives objects that are not whole segments. If ``on_problem`` is None, an
    object that hides a segment is an error, because the segment's records would be missing
    silently. If an ``index_cache`` of that store is given, each index is requested once. Reads of
    `.log` objects wait while ``fetch_quota`` is exceeded. See `read` for the other parameters.

    ``config`` sets the fetch quota (unless ``fetch_quota`` is given), the memory and the threads of
    reads from a store, and the largest decompressed size of one batch. ``on_gap`` decides what
    happens at offsets that the store should have but lacks, and ``on_corrupt`` at damaged records
    and, without ``on_problem``, at segments that damage hides; see `read`.
    """
    text, isolation = os.fspath(source), _isolation(isolation_level)
    quota = fetch_quota or (None if config is None else QuotaManager.for_fetches(config.quota))
    options: dict[str, Any] = {
        "index_cache": index_cache,
        "fetch_quota": quota,
        "isolation_level": isolation,
        "config": config,
        "on_corrupt": on_corrupt,
    }

    def remote(url: str) -> StoreReader:
        return _store_reader(
            url,
            lambda adopted: _wanted(topic, partition, adopted),
            on_problem or _problem_handler(on_corrupt),
            gap_handler(on_gap),
            options,
            beside_directory=store is not None,
        )

    if "://" in text:
        if store is not None:
            raise ConfigError(f"{text}: a store beside a store; the first is to be a log directory")
        return remote(text)
    log = None if config is None else config.log
    logs = open_log_dir(text)
    local = LocalReader(logs, isolation_level=isolation, config=log, on_corrupt=on_corrupt)
    if store is None:
        return local
    from tierlog.reader.tiered_reader import TieredReader

    return TieredReader(
        local,
        remote(store),
        isolation_level=isolation,
        look_again=lambda: remote(store),
        same_owner=store.startswith(KAFKA_SCHEME),
        on_gap=on_gap,
    )


def _store_reader(
    url: str,
    wanted_of: Callable[[Mapping[str, str]], Callable[[ObjectKey], bool]],
    on_problem: Callable[[Problem], object] | None,
    report_gap: Callable[[GapError], object],
    options: dict[str, Any],
    *,
    beside_directory: bool,
) -> StoreReader:
    """Return the reader of a store URL, through the managers that the settings name."""
    # The managers' modules are imported only for a store.
    from tierlog.reader.store_listing import StoreListing
    from tierlog.reader.store_reader import StoreReader
    from tierlog.remote.plugins import make_metadata_manager, make_storage_manager
    from tierlog.remote.segment.topic_ids import adopted_topic_ids
    from tierlog.remote.urls import open_store

    store, config = open_store(url), options["config"]
    storage = make_storage_manager(config, store)
    # In the directory, a topic may have an id that it got after it was archived.
    adopted = adopted_topic_ids(store) if beside_directory else {}
    known = make_metadata_manager(config, url)
    if known is not None:
        return StoreReader(storage, known, on_gap=report_gap, adopted=adopted, **options)
    _require_listable(storage)
    listing = StoreListing(store, wanted_of(adopted), on_problem)

    def report(error: GapError) -> None:
        if not listing.has_reported(error):
            report_gap(error)

    return StoreReader(
        storage,
        listing.metadata,
        on_gap=report,
        has_unfinished=listing.has_unfinished,
        adopted=adopted,
        **options,
    )


def _require_listable(storage: RemoteStorageManager) -> None:
    if storage.store is None:
        raise ConfigError(
            f"{storage.url}: this storage manager cannot list its segments; name the metadata "
            "manager that knows them in remote.log.metadata.manager.class.name"
        )


def _problem_handler(on_corrupt: OnCorrupt) -> Callable[[Problem], object] | None:
    """Return the function to call with objects that are not whole segments; None to refuse such
    objects."""
    if on_corrupt == "fail":
        return None
    report = damage_handler(on_corrupt)

    def note(problem: Problem) -> None:
        if problem.hides_segment:
            key = parse_key(problem.key)
            error = CorruptDataError(
                reason=problem.reason.value,
                path=problem.key,
                position=0,
                expected=problem.expected,
                found=problem.found,
            )
            lost = LostRecords(
                topic=key.topic_label,
                partition=key.partition,
                first_offset=key.base_offset,
                last_offset=None,
                error=error,
            )
            report(lost)

    return note


def _isolation(text: str) -> IsolationLevel:
    try:
        return IsolationLevel[text.upper()]
    except KeyError:
        names = " or ".join(one.name.lower() for one in IsolationLevel)
        raise ConfigError(f"isolation level: expected {names}, found {text!r}") from None


def _wanted(
    topic: str | None, partition: int | None, adopted: Mapping[str, str]
) -> Callable[[ObjectKey], bool]:
    """Return a function that says whether a key belongs to the topic and partition. None stands for
    any topic or partition."""

    def wanted(key: ObjectKey) -> bool:
        ids = key.topic_id, adopted.get(key.topic_id)
        named = topic is None or topic in ids or topic[:MAX_TOPIC_LABEL] == key.topic_label
        return named and partition in (None, key.partition)

    return wanted


@takes(**_READ_KINDS)
def read(
    source: str | os.PathLike[str],
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int | None = None,
    *,
    store: str | None = None,
    timestamp_ms: int | None = None,
    on_problem: Callable[[Problem], object] | None = None,
    index_cache: RemoteIndexCache | None = None,
    fetch_quota: FetchQuota | None = None,
    isolation_level: Isolation = "read_uncommitted",
    config: Config | None = None,
    on_gap: OnGap = "fail",
    on_corrupt: OnCorrupt = "fail",
) -> Iterator[RecordColumns]:
    """Yield the records of one partition of a store URL or log directory, as verified columns.

        for records in tierlog.read("/var/lib/kafka/data", "orders", 0, store="s3://bucket/kafka"):
            for record in records.records(): ...

    The read begins at `start_offset`. If `timestamp_ms` is given, the read begins at the first
    record with this or a later timestamp. It ends before `end_offset`. The read yields a few MiB at
    a time. It skips offsets that have no record for readers, because the record was compacted away
    or is a control record.

    With ``store`` both tiers are read: offsets that the directory has deleted come from the store,
    even if they are deleted during the read. The next chunks of a slow store are fetched ahead.

    If the isolation level is ``read_committed``, the read leaves out the records of aborted
    transactions and ends before the oldest open transaction. If only a store is read, a transaction
    whose end is not in the store counts as open.

    Reads of stores that share a `fetch_quota` wait while it is exceeded, and raise ClosedError when
    it is closed. For a damaged segment of the partition, the read raises CorruptDataError. If
    `on_problem` is given, it is called with the segment, and the other segments are read. If the
    store lacks offsets that it should have, the read raises GapError after the records before the
    gap. If `on_gap` is "skip", the read skips the gap. If `on_gap` is a function, the read calls it
    with the error and then skips the gap. At damaged records, the read raises CorruptDataError
    after the records before the damage. If `on_corrupt` is "skip", the read continues at the next
    sound batch. If `on_corrupt` is a function, the read calls it with the lost records and then
    continues. For other errors see `LogReader`.
    """
    reader = open_reader(
        source,
        store=store,
        topic=topic,
        partition=partition,
        on_problem=on_problem,
        index_cache=index_cache,
        fetch_quota=fetch_quota,
        isolation_level=isolation_level,
        config=config,
        on_gap=on_gap,
        on_corrupt=on_corrupt,
    )
    if timestamp_ms is not None:
        found = reader.offset_for_timestamp(topic, partition, timestamp_ms)
        if found is None:
            return iter(())
        start_offset = max(start_offset, found)
    return reader.read(topic, partition, start_offset, end_offset)


@takes(**{**_READ_KINDS, "fetch_quota": optional(instance_of("a QuotaManager", QuotaManager))})
async def read_async(
    source: str | os.PathLike[str],
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int | None = None,
    *,
    store: str | None = None,
    timestamp_ms: int | None = None,
    on_problem: Callable[[Problem], object] | None = None,
    index_cache: RemoteIndexCache | None = None,
    fetch_quota: QuotaManager | None = None,
    isolation_level: Isolation = "read_uncommitted",
    config: Config | None = None,
    on_gap: OnGap = "fail",
    on_corrupt: OnCorrupt = "fail",
) -> AsyncIterator[RecordColumns]:
    """Yield what `read` yields, inside an event loop. A thread reads each part.

    A cancelled read stops waiting for the quota and drops the part that is being read. So
    `fetch_quota` must be a `QuotaManager` here, because its waits can be cancelled.
    """

    # asyncio takes long to import, and most readers are synchronous.
    import asyncio

    def next_piece() -> RecordColumns | None:
        return next(pieces, None)

    if fetch_quota is None and config is not None:
        fetch_quota = QuotaManager.for_fetches(config.quota)
    waits = None if fetch_quota is None else _Abandonable(fetch_quota)
    try:
        pieces = await asyncio.to_thread(
            read,
            source,
            topic,
            partition,
            start_offset,
            end_offset,
            store=store,
            timestamp_ms=timestamp_ms,
            on_problem=on_problem,
            index_cache=index_cache,
            fetch_quota=waits,
            isolation_level=isolation_level,
            config=config,
            on_gap=on_gap,
            on_corrupt=on_corrupt,
        )
        while (piece := await asyncio.to_thread(next_piece)) is not None:
            yield piece
    finally:
        if waits is not None:
            waits.abandon()


class _Abandonable:
    """A quota whose waits end when the read is cancelled."""

    def __init__(self, quota: QuotaManager) -> None:
        self._quota = quota
        self._abandoned = False

    @property
    def is_limited(self) -> bool:
        """See `QuotaManager.is_limited`."""
        return self._abandoned or self._quota.is_limited

    def record(self, size_bytes: int) -> None:
        """See `QuotaManager.record`."""
        self._quota.record(size_bytes)

    def try_charge(self, size_bytes: int) -> int:
        """See `QuotaManager.try_charge`."""
        return self._quota.try_charge(size_bytes)

    def transfer(self, size_bytes: int) -> AbstractContextManager[Transfer]:
        """See `QuotaManager.transfer`."""
        return self._quota.transfer(size_bytes, cancelled=lambda: self._abandoned)

    def abandon(self) -> None:
        """End a waiting read with a QuotaWaitCancelledError."""
        self._abandoned = True
        self._quota.wake()
