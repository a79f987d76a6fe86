"""The store on HDFS against a real cluster: the conformance suite, then what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.remote.hdfs_cluster import HdfsCluster, running_hdfs
from tests.remote.store_conformance import StoreConformance
from tierlog.remote.store import ObjectStore


@pytest.fixture(scope="module")
def hdfs() -> Iterator[HdfsCluster]:
    with running_hdfs() as cluster:
        yield cluster


@pytest.mark.integration
class TestHdfsStore(StoreConformance):
    @pytest.fixture
    def store(self, hdfs: HdfsCluster) -> ObjectStore:
        return hdfs.new_store()

    def test_list_goes_over_many_pages(self, store: ObjectStore) -> None:
        """The NameNode of these tests sends 50 names at a time."""
        keys = {f"pages/{number // 110}/{number:05}" for number in range(130)}
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: store.put_bytes(key, b"x"), keys))
        listed = [info.key for info in store.list("pages")]
        assert len(listed) == len(keys)
        assert set(listed) == keys
