"""Tiering and reading through a store on a bad day: nothing lost, nothing wrong, nothing left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.remote.fault_proxy import Call, Fault, FaultProxy
from tests.remote.s3_server import S3Server, running_s3_server
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.errors import TierlogError
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import LogReader
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.segment.bucket import bucket_metadata, list_segments
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar, TierReport

pytestmark = pytest.mark.integration

CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
TOPIC = "epochs"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with FaultProxy(server) as running:
        behind = {"AWS_ENDPOINT_URL": running.options()["endpoint"]}
        for variable, value in (server.environment() | behind).items():
            monkeypatch.setenv(variable, value)
        yield running


def tier(url: str, state_dir: Path) -> TierReport:
    with Sidecar(
        CLEAN,
        url,
        state_dir=str(state_dir),
        config=tier_config(topics=(TOPIC,)),
        clock=ManualClock(),
    ) as sidecar:
        return sidecar.run_once()


def rows_of(reader: LogReader) -> list[tuple[int, bytes | None, bytes | None]]:
    begin, _ = reader.bounds(TOPIC, 0)
    return [
        (offset, key, value)
        for piece in reader.read(TOPIC, 0, begin)
        for offset, key, value in zip(piece.offset.tolist(), piece.keys, piece.values, strict=True)
    ]


@pytest.fixture(scope="module")
def truth() -> dict[int, tuple[bytes | None, bytes | None]]:
    rows = rows_of(LocalReader(open_log_dir(*CLEAN)))
    return {offset: (key, value) for offset, key, value in rows}


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize(
    ("call", "fault"),
    [
        *(
            (Call.PUT_OBJECT, fault)
            for fault in (
                Fault.RESET_BEFORE,
                Fault.RESET_AFTER,
                Fault.FORBIDDEN,
                Fault.MISSING,
                Fault.CONFLICT,
                Fault.ERROR_BODY,
            )
        ),
        *((Call.HEAD_OBJECT, fault) for fault in (Fault.FORBIDDEN, Fault.MISSING)),
        *((Call.GET_OBJECT, fault) for fault in (Fault.FORBIDDEN, Fault.FLIPPED_BYTE)),
    ],
)
def test_a_pass_over_a_bad_store_and_one_over_a_healed_one(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, call: Call, fault: Fault, number: int
) -> None:
    url = f"s3://{server.new_bucket()}/p"
    proxy.inject(call, fault, number=number)
    try:
        tier(url, tmp_path / "state")
    except TierlogError:
        # The claim of the store failed: nothing was begun.
        assert number == 1
    proxy.heal()
    report = tier(url, tmp_path / "state")
    assert report.ok, report
    store = open_store(url)
    storage = ObjectStorageManager(store)
    problems: list[Any] = []
    segments = list(list_segments(store, on_problem=problems.append))
    assert problems == []
    assert [storage.verify(one, deep=True) for one in segments] == [()] * len(segments)
    with Sidecar(CLEAN, url, state_dir=str(tmp_path / "state")) as sidecar:
        known = [
            one
            for partition in sidecar.metadata.partitions()
            for one in sidecar.metadata.list(partition)
        ]
    assert {one.state for one in known} == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}
    assert {one.segment_id for one in known} == {one.segment_id for one in segments}


@pytest.mark.parametrize(
    "fault",
    [
        Fault.FLIPPED_BYTE,
        Fault.OTHER_BODY,
        Fault.SHORT_BODY,
        Fault.RANGE_IGNORED,
        Fault.MISSING,
    ],
)
def test_what_is_read_is_right_or_an_error(
    server: S3Server,
    proxy: FaultProxy,
    tmp_path: Path,
    truth: dict[int, tuple[bytes | None, bytes | None]],
    fault: Fault,
) -> None:
    """The fault strikes every single read of a pass over the partition, one after the other."""
    url = f"s3://{server.new_bucket()}/p"
    assert tier(url, tmp_path / "state").ok
    store = open_store(url, **proxy.options())
    expected = len(rows_of(StoreReader(ObjectStorageManager(store), bucket_metadata(store))))
    wrong = number = 0
    while True:
        number += 1
        proxy.struck.clear()
        proxy.inject(Call.GET_OBJECT, fault, number=number)
        try:
            rows = rows_of(StoreReader(ObjectStorageManager(store), bucket_metadata(store)))
        except (TierlogError, LookupError):
            wrong += 1
        else:
            assert all(truth[offset] == (key, value) for offset, key, value in rows)
            assert len(rows) == expected, "something is missing, and nobody was told"
        proxy.heal()
        if not proxy.struck:
            break
    assert number > 6, "the fault struck every read of the pass"
    assert wrong or fault is Fault.SHORT_BODY
