"""What a fetch leaves in the metrics: who read how much, and what the index cache had to fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fetch.two_tiers import TwoTiers, boundaries
from tierlog.clock import ManualClock
from tierlog.config import Config
from tierlog.fetch.setup import open_fetcher
from tierlog.metrics import RemoteEvent, RemoteLogMetrics
from tierlog.reader.types import FetchPartition, FetchRequest, FetchSource


@pytest.mark.parametrize("max_clients", [0, 2])
def test_remote_bytes_by_client_and_what_the_cache_fetched(
    tmp_path: Path, max_clients: int
) -> None:
    tiers = TwoTiers(tmp_path)
    partition = tiers.add("clean", "codec-none-0")
    whole = tiers.views[partition]
    border = boundaries(whole)[2]
    tiers.drop_local(partition, border)
    metrics = RemoteLogMetrics(ManualClock())
    settings = {"tierlog.metrics.max.clients": str(max_clients)}
    read = {"reports": 0, "search": 0, "invented": 0}
    with open_fetcher(
        tiers,
        tiers.storage,
        tiers.metadata,
        config=Config.from_properties(settings),
        index_cache=tiers.cache,
        metrics=metrics,
    ) as fetcher:
        for offset in (0, boundaries(whole)[1], border):
            for client_id in read:
                asked = FetchPartition(partition=partition, fetch_offset=offset)
                request = FetchRequest(partitions=(asked,), client_id=client_id)
                (answer,) = fetcher.fetch_sync(request).partitions
                if answer.source is FetchSource.REMOTE:
                    read[client_id] += answer.size_bytes
    found = metrics.snapshot()
    assert read["reports"] > 0
    assert found.totals[RemoteEvent.FETCH_BYTES].count == sum(read.values())
    counted = {name: read[name] for name in ("reports", "search")[:max_clients]}
    assert found.client_fetched_bytes == counted, "the third one finds no place"
    assert found.fetch_seconds is not None
    assert found.fetch_seconds.counts_up_to[-1] == found.totals[RemoteEvent.FETCH_REQUESTS].count
    assert fetcher._remote is not None
    ahead = fetcher._remote.stats()
    assert found.read_ahead == (ahead.bytes, ahead.wasted_bytes)
    assert found.index_cache == tiers.cache.stats()
    assert found.index_cache.fetched_bytes == tiers.cache.size_bytes > 0
    tiers.close()
