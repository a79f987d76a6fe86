"""A large segment goes up in parts, over an S3 server that fails at the first, a middle or the last
one until it is healed: then the segment is there, and no upload is left open."""

from __future__ import annotations

import random

import pytest

from tests.kafka_tools import wait_until
from tests.reliability.compare import differences, violations
from tests.reliability.conftest import WRITE_FAULTS, MakeLog, OpenWorld, heal
from tests.reliability.workload import append_large
from tests.remote.fault_proxy import Call, Fault, FaultProxy
from tests.remote.s3_server import S3Server

pytestmark = pytest.mark.integration

# One upload in three parts: two of 8 MiB, and what is left.
LARGE_BYTES = 17 << 20


@pytest.mark.parametrize("fault", [*WRITE_FAULTS, Fault.ERROR_BODY])
@pytest.mark.parametrize(
    ("call", "number"),
    [
        (Call.CREATE_UPLOAD, 1),
        (Call.PUT_PART, 1),
        (Call.PUT_PART, 2),
        (Call.PUT_PART, 3),
        (Call.COMPLETE_UPLOAD, 1),
    ],
)
def test_an_upload_in_parts(
    server: S3Server,
    open_world: OpenWorld,
    proxy: FaultProxy,
    make_log: MakeLog,
    call: Call,
    number: int,
    fault: Fault,
) -> None:
    world = open_world()
    log = make_log(world, "large", 0)
    append_large(log, random.Random(1), world.clock.now_ms(), batches=1, value_bytes=LARGE_BYTES)
    log.roll()
    proxy.inject(call, fault, number=number, times=4)
    world.run()
    assert proxy.struck
    heal(world, proxy)
    assert violations(world) == []
    assert differences(world) == []
    # An upload whose id never arrived cannot be ended by whoever began it.
    lost = call is Call.CREATE_UPLOAD and fault in (Fault.RESET_AFTER, Fault.STALL)
    bucket = world.store.url.split("/")[2]
    if not lost:
        wait_until(lambda: server.open_uploads(bucket) == [], 20, what="no upload open")
