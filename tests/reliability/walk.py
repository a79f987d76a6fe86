"""A consumer's way through a log: fetch after fetch, from its start to its end, over both tiers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

from tests.oracle import batches as oracle
from tests.reliability.host import OwnedLog
from tests.reliability.world import World
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.pool import ReaderPool
from tierlog.fetch.quotas import FetchQuotas
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.memory import FetchMemory
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import FetchError, FetchPartition, FetchRequest, FetchView
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.types import TopicIdPartition

__all__ = ["walk"]

FETCH_BYTES = 1_500
WAIT_MS = 30_000


class _Host:
    """Shows the logs of a world to the fetch path."""

    def __init__(self, world: World) -> None:
        self._logs = {log.partition: log for log in world.host.logs.values()}

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        log = self._logs[partition]
        seen = log.view()
        if seen is None:
            return None
        return FetchView(
            log=seen.log,
            log_start_offset=log.log_start_offset,
            local_log_start_offset=max(log.log_start_offset, log.bases[0]),
            high_watermark=log.high_watermark,
            last_stable_offset=min(log.producers.last_stable_offset, log.high_watermark),
            log_end_offset=log.log_end_offset,
            leader_epoch=log.leader_epoch,
        )


def walk(world: World, log: OwnedLog) -> Iterator[tuple[int, str] | str]:
    """(base offset, sha256) of every batch in the order in which it came; a text for what was
    wrong, after which the walk ends."""
    remote = RemoteBatchReader(
        world.storage,
        world.metadata,
        memory=FetchMemory(64 << 20),
        index_files=partial(RemoteIndexFiles, world.index_dir, rotate_bytes=1 << 20, rotate_ms=-1),
    )
    pool = ReaderPool(1, 10)
    fetcher = Fetcher(
        _Host(world),
        remote,
        pool=pool,
        quotas=FetchQuotas(),
        transactions=TransactionReader(world.storage, world.metadata),
        # An answer without records is an error here, and the machine may be busy.
        max_remote_wait_ms=WAIT_MS,
    )
    try:
        yield from _steps(fetcher, log)
    finally:
        pool.close()
        remote.close()


def _steps(fetcher: Fetcher, log: OwnedLog) -> Iterator[tuple[int, str] | str]:
    offset = log.log_start_offset
    while offset < log.high_watermark:
        asked = FetchPartition(partition=log.partition, fetch_offset=offset, max_bytes=FETCH_BYTES)
        request = FetchRequest(partitions=(asked,), max_wait_ms=WAIT_MS)
        (answer,) = fetcher.fetch_sync(request).partitions
        if answer.error is not FetchError.NONE:
            yield f"fetch at {offset}: {answer.error.name}: {answer.text}"
            return
        found, reason, _ = oracle.scan(bytes(answer.records))
        if not found or reason != "end":
            yield f"fetch at {offset}: {len(found)} batches, then {reason}"
            return
        for batch in found:
            if batch.last_offset < offset:
                yield f"fetch at {offset}: an earlier batch, {batch.base_offset}"
                return
            yield batch.base_offset, hashlib.sha256(batch.data).hexdigest()
            offset = batch.last_offset + 1
