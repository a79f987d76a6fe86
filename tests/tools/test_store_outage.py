"""A store that answers 503 for longer than its client has patience: a rebuild, an audit and a read
of it. The outage is counted in requests and the client's pauses are milliseconds, so a minute of it
is over at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.remote.fault_proxy import Call, Fault, FaultProxy
from tests.remote.s3_server import S3Server, running_s3_server
from tests.spark.source import rows_of
from tierlog.errors import RemoteStorageError
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind
from tierlog.remote.store.obstore_store import ObstoreStore, open_cloud_store
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import audit_store
from tierlog.tools.rebuild.index import rebuild_index

pytestmark = pytest.mark.integration

LATER_MS = 1 << 50
# No healthy request takes so long on a busy machine.
HEALTHY_MS = 60_000
FOR_EVER = 1 << 30


@dataclass
class Place:
    """A bucket with the golden store, behind a proxy that all of tierlog reaches it through."""

    server: S3Server
    proxy: FaultProxy
    bucket: str

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/kafka"

    def contents(self, suffix: str) -> dict[str, bytes]:
        """Past the proxy, all objects whose keys end so."""
        client = self.server.client()
        listed = client.list_objects_v2(Bucket=self.bucket)["Contents"]
        keys = [one["Key"] for one in listed if one["Key"].endswith(suffix)]
        return {key: client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in keys}

    def put(self, contents: Mapping[str, bytes]) -> None:
        for key, data in contents.items():
            self.server.client().put_object(Bucket=self.bucket, Key=key, Body=data)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


@pytest.fixture
def place(server: S3Server, golden_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    def impatient(url: str, _: Mapping[str, Any]) -> ObstoreStore:
        return open_cloud_store(url, proxy.options(HEALTHY_MS))

    with FaultProxy(server) as proxy:
        monkeypatch.setattr("tierlog.remote.store.obstore_store.open_cloud_store", impatient)
        yield Place(server, proxy, server.bucket_of(golden_store, "kafka"))


def spoilt(data: bytes) -> bytes:
    """An `.indexes` object without its sections, from whose head it comes back byte for byte."""
    start = IndexesHeader.parse(data, path="object").section(IndexKind.OFFSET).position
    return data[:start] + bytes(len(data) - start)


@pytest.mark.parametrize("call", [Call.GET_OBJECT, Call.PUT_OBJECT])
def test_a_rebuild(place: Place, call: Call) -> None:
    """Some segments fall into the outage: they are told, the others are done, nothing is half."""
    whole = dict(list(place.contents(".indexes").items())[::4])
    broken = {key: spoilt(data) for key, data in whole.items()}
    place.put(broken)
    if call is Call.GET_OBJECT:
        # Behind the looks at all `.indexes` objects: the logs of some segments.
        looks = 1 + len(place.contents(".indexes"))
        place.proxy.inject(call, Fault.UNAVAILABLE, number=looks + 3, times=12)
    else:
        place.proxy.inject(call, Fault.UNAVAILABLE, number=3, times=12)
    report = rebuild_index(place.url, now_ms=LATER_MS)
    failed = [row for row in report.segments if "failed" in row.findings]
    assert failed
    assert not report.ok
    assert report.summary.written + len(failed) == len(whole)
    assert report.summary.written > 0
    found = place.contents(".indexes")
    assert all(found[key] in (whole[key], broken[key]) for key in whole)
    assert sum(found[key] == whole[key] for key in whole) == report.summary.written
    told = next(one for one in report.findings if one.what == "failed")
    assert "503" in told.found
    assert "again" in told.action

    place.proxy.heal()
    again = rebuild_index(place.url, now_ms=LATER_MS)
    assert again.ok
    assert again.summary.written == len(failed)
    assert whole.items() <= place.contents(".indexes").items()


@pytest.mark.parametrize("call", [Call.LIST_OBJECTS, Call.GET_OBJECT])
def test_whoever_only_reads_says_so_and_takes_nothing_for_missing(place: Place, call: Call) -> None:
    read = {"path": place.url, "subscribe": "epochs"}
    rules = AuditRules(now_ms=LATER_MS)
    audited, rows = audit_store(place.url, rules), rows_of(read)
    assert rows
    place.proxy.inject(call, Fault.UNAVAILABLE, times=FOR_EVER)
    for work in (
        lambda: audit_store(place.url, rules),
        lambda: rebuild_index(place.url, now_ms=LATER_MS),
        lambda: rows_of(read),
    ):
        with pytest.raises(RemoteStorageError, match="503"):
            work()
    place.proxy.heal()
    assert audit_store(place.url, rules) == audited
    assert rows_of(read) == rows


def test_a_read_that_falls_into_it(place: Place) -> None:
    """Records that were not fetched are an error, also where damage would be left out."""
    read = {"path": place.url, "subscribe": "epochs", "failOnDataLoss": "false"}
    rows = rows_of(read)
    before = len(place.proxy.passed)
    rows_of(read)
    requests = len(place.proxy.passed) - before
    place.proxy.inject(Call.GET_OBJECT, Fault.UNAVAILABLE, number=requests // 2, times=FOR_EVER)
    with pytest.raises(RemoteStorageError, match="503"):
        rows_of(read)
    place.proxy.heal()
    assert rows_of(read) == rows
