"""An S3 store on a bad day: every call, every fault, at the first, a middle and the last request.

Whatever happens, a call does what it says or raises RemoteStorageError in time; once the fault is
over the same call works; nothing wrong is ever taken for the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kafka_tools import wait_until
from tests.remote.fault_proxy import HEALTHY_MS, Call, Fault, FaultProxy
from tests.remote.s3_server import S3Server, running_s3_server
from tierlog.errors import RemoteStorageError
from tierlog.remote.segment.bucket import bucket_metadata
from tierlog.remote.segment.layout import claim_cluster
from tierlog.remote.store.object_store import LARGE_READ_BYTES, ObjectStore
from tierlog.remote.urls import open_store

pytestmark = pytest.mark.integration

MIB = 1 << 20
# A deadline that is worth waiting for, where a request may stall.
STALLED_MS = 500
SMALL = bytes(range(256)) * 64
# Three parts: two of 8 MiB and a last one of 1 MiB.
LARGE = b"".join(number.to_bytes(4, "big") * 256 for number in range(17 * MIB // 1024))

WRITE_FAULTS = [
    Fault.DELAY,
    Fault.STALL,
    Fault.RESET_BEFORE,
    Fault.RESET_AFTER,
    Fault.FORBIDDEN,
    Fault.MISSING,
    Fault.CONFLICT,
    Fault.TOO_MANY,
    Fault.INTERNAL_ERROR,
    Fault.UNAVAILABLE,
    Fault.ERROR_BODY,
]
READ_FAULTS = [
    *(fault for fault in WRITE_FAULTS if fault is not Fault.ERROR_BODY),
    Fault.RANGE_IGNORED,
    Fault.SHORT_BODY,
]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(server) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.new_bucket()


@pytest.fixture
def store(proxy: FaultProxy, bucket: str, request: pytest.FixtureRequest) -> ObjectStore:
    """Impatient only where nothing else would end the fault: parts of 8 MiB may take a while."""
    stalls = request.node.callspec.params.get("fault") is Fault.STALL
    deadline_ms = STALLED_MS if stalls else HEALTHY_MS
    return open_store(f"s3://{bucket}/p", **proxy.options(deadline_ms))


def attempt(work: Callable[[], Any]) -> Any:
    """What it returns, or the only error it may raise."""
    try:
        return work()
    except RemoteStorageError as error:
        return error


def stored(server: S3Server, bucket: str, key: str) -> bytes | None:
    """The object as it lies in the server, None if there is none."""
    client = server.client()
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"p/{key}").get("Contents", [])
    if not listed:
        return None
    body: bytes = client.get_object(Bucket=bucket, Key=f"p/{key}")["Body"].read()
    return body


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_a_small_put(
    server: S3Server, proxy: FaultProxy, bucket: str, store: ObjectStore, fault: Fault
) -> None:
    proxy.inject(Call.PUT_OBJECT, fault)
    outcome = attempt(lambda: store.put_bytes("k", SMALL))
    assert proxy.struck == [(Call.PUT_OBJECT, fault)]
    assert stored(server, bucket, "k") in (None, SMALL)
    if outcome is None and fault is not Fault.ERROR_BODY:
        assert stored(server, bucket, "k") == SMALL
    proxy.heal()
    store.put_bytes("k", SMALL)
    assert stored(server, bucket, "k") == SMALL


@pytest.mark.parametrize("fault", WRITE_FAULTS)
@pytest.mark.parametrize(
    ("call", "number"),
    [
        (Call.HEAD_OBJECT, 1),
        (Call.CREATE_UPLOAD, 1),
        (Call.PUT_PART, 1),
        (Call.PUT_PART, 2),
        (Call.PUT_PART, 3),
        (Call.COMPLETE_UPLOAD, 1),
    ],
)
def test_an_upload_in_parts(
    server: S3Server,
    proxy: FaultProxy,
    bucket: str,
    store: ObjectStore,
    call: Call,
    number: int,
    fault: Fault,
) -> None:
    def upload(to: ObjectStore, overwrite: bool = False) -> None:
        pieces = (LARGE[at : at + MIB] for at in range(0, len(LARGE), MIB))
        to.put_stream("large.log", pieces, len(LARGE), overwrite=overwrite)

    proxy.inject(call, fault, number=number)
    outcome = attempt(lambda: upload(store))
    assert proxy.struck == [(call, fault)]
    found = stored(server, bucket, "large.log")
    assert found in (None, LARGE), "a part of an object became visible"
    assert outcome is not None or found == LARGE
    proxy.heal()
    upload(open_store(f"s3://{bucket}/p", **proxy.options(HEALTHY_MS)), overwrite=True)
    assert stored(server, bucket, "large.log") == LARGE
    # An upload nobody was told the name of cannot be ended; the bucket's own rules have to.
    lost = call is Call.CREATE_UPLOAD and fault in (Fault.RESET_AFTER, Fault.STALL)
    wait_until(lambda: len(server.open_uploads(bucket)) <= int(lost), 20, what="no upload open")


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_a_claim(
    server: S3Server, proxy: FaultProxy, bucket: str, store: ObjectStore, fault: Fault
) -> None:
    """Never is a claim believed that somebody else has; one's own may be in doubt, not lost."""
    proxy.inject(Call.PUT_OBJECT, fault)
    outcome = attempt(lambda: store.put_if_absent("claim", b"mine"))
    found = stored(server, bucket, "claim")
    assert found in (None, b"mine")
    if outcome is True and fault is not Fault.ERROR_BODY:
        assert found == b"mine"
    proxy.heal()
    again = store.put_if_absent("claim", b"mine")
    assert again is (found is None)
    assert store.put_if_absent("claim", b"other") is False
    assert stored(server, bucket, "claim") == b"mine"


@pytest.mark.parametrize("size", [1000, 3 * LARGE_READ_BYTES])
@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_ranged_read(proxy: FaultProxy, store: ObjectStore, fault: Fault, size: int) -> None:
    data = (SMALL * (4 * LARGE_READ_BYTES // len(SMALL)))[100:]
    store.put_bytes("k", data)
    proxy.inject(Call.GET_OBJECT, fault)
    outcome = attempt(lambda: bytes(store.get_range("k", 100, size)))
    assert proxy.struck == [(Call.GET_OBJECT, fault)]
    assert isinstance(outcome, RemoteStorageError) or outcome == data[100 : 100 + size]
    proxy.heal()
    assert bytes(store.get_range("k", 100, size)) == data[100 : 100 + size]


@pytest.mark.parametrize("fault", [one for one in READ_FAULTS if one is not Fault.SHORT_BODY])
def test_a_head(proxy: FaultProxy, store: ObjectStore, fault: Fault) -> None:
    store.put_bytes("k", SMALL)
    proxy.inject(Call.HEAD_OBJECT, fault)
    outcome = attempt(lambda: store.head("k").size_bytes)
    assert isinstance(outcome, RemoteStorageError) or outcome == len(SMALL)
    proxy.heal()
    assert store.head("k").size_bytes == len(SMALL)


@pytest.mark.parametrize("fault", [Fault.EMPTY_LISTING, Fault.ERROR_BODY])
def test_an_empty_listing_is_not_an_empty_store(
    proxy: FaultProxy, store: ObjectStore, fault: Fault
) -> None:
    """The client library takes an error page in place of a listing for one without objects."""
    claim_cluster(store, "cluster")
    proxy.inject(Call.LIST_OBJECTS, fault)
    with pytest.raises(RemoteStorageError, match=r"lacks cluster\.json") as caught:
        bucket_metadata(store)
    assert caught.value.retriable
    assert bucket_metadata(store).partitions() == ()


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_a_listing(proxy: FaultProxy, store: ObjectStore, fault: Fault) -> None:
    for number in range(3):
        store.put_bytes(f"folder/{number}", SMALL)
    proxy.inject(Call.LIST_OBJECTS, fault)
    outcome = attempt(lambda: sorted(one.key for one in store.list("folder")))
    every = [f"folder/{number}" for number in range(3)]
    assert isinstance(outcome, RemoteStorageError) or outcome == every
    proxy.heal()
    assert sorted(one.key for one in store.list("folder")) == every


@pytest.mark.parametrize("fault", [*WRITE_FAULTS[:-1], Fault.DROPPED])
def test_a_delete(
    server: S3Server, proxy: FaultProxy, bucket: str, store: ObjectStore, fault: Fault
) -> None:
    store.put_bytes("k", SMALL)
    proxy.inject(Call.DELETE_OBJECT, fault)
    outcome = attempt(lambda: store.delete("k"))
    assert proxy.struck == [(Call.DELETE_OBJECT, fault)]
    left = stored(server, bucket, "k")
    assert left in (None, SMALL)
    # A 404 says that the object is not there, which is all that a delete wants.
    told_wrong = fault in (Fault.DROPPED, Fault.MISSING)
    assert isinstance(outcome, RemoteStorageError) or left is None or told_wrong
    proxy.heal()
    store.delete("k")
    assert stored(server, bucket, "k") is None


@pytest.mark.parametrize("fault", [Fault.STALL, Fault.RESET_BEFORE, Fault.UNAVAILABLE])
@pytest.mark.parametrize(
    ("call", "work"),
    [
        (Call.PUT_OBJECT, lambda store: store.put_bytes("other", SMALL)),
        (Call.GET_OBJECT, lambda store: store.get_range("k", 0, 10)),
        (Call.HEAD_OBJECT, lambda store: store.head("k")),
        (Call.LIST_OBJECTS, lambda store: list(store.list(""))),
        (Call.DELETE_OBJECT, lambda store: store.delete("k")),
    ],
)
def test_a_fault_that_stays_is_an_error_in_time(
    proxy: FaultProxy,
    store: ObjectStore,
    call: Call,
    work: Callable[[ObjectStore], Any],
    fault: Fault,
) -> None:
    store.put_bytes("k", SMALL)
    proxy.inject(call, fault, times=99)
    with pytest.raises(RemoteStorageError) as caught:
        work(store)
    assert caught.value.retriable
    assert 1 <= len(proxy.struck) <= 3, "repeats are bounded"
    proxy.heal()
    work(store)
