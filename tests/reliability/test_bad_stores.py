"""The manager over an S3 server that does what servers do on a bad day, until it is healed.

While the fault lasts nothing is lost and nothing wrong is read; afterwards all that was left undone
is done, and nothing of the bad day remains.
"""

from __future__ import annotations

import random

import pytest

from tests.proofs import usually
from tests.reliability.compare import differences, violations
from tests.reliability.conftest import WRITE_FAULTS, MakeLog, OpenWorld, heal
from tests.reliability.host import OwnedLog
from tests.reliability.ledger import Truth
from tests.reliability.points import watched
from tests.reliability.walk import walk
from tests.reliability.workload import append_some
from tests.reliability.world import World
from tests.remote.fault_proxy import Call, Fault, FaultProxy
from tierlog.testing.segments import DELETING

pytestmark = pytest.mark.integration

MINUTE_MS = 60_000
FOR_EVER = 1_000_000
# The first call that a fault strikes, and how many.
TIMES = [(1, 1), (2, 1), (1, FOR_EVER)]
READ_FAULTS = [
    Fault.STALL,
    Fault.RESET_BEFORE,
    Fault.FORBIDDEN,
    Fault.MISSING,
    Fault.UNAVAILABLE,
    Fault.SHORT_BODY,
    Fault.FLIPPED_BYTE,
    Fault.OTHER_BODY,
    Fault.RANGE_IGNORED,
]
STRIKES = [
    *((Call.PUT_OBJECT, fault) for fault in (*WRITE_FAULTS, Fault.ERROR_BODY)),
    *((Call.HEAD_OBJECT, fault) for fault in READ_FAULTS[:5]),
    *((Call.GET_OBJECT, fault) for fault in READ_FAULTS),
    *((Call.DELETE_OBJECT, fault) for fault in WRITE_FAULTS if fault is not Fault.MISSING),
]


def write(world: World, log: OwnedLog, seed: int) -> None:
    append_some(log, random.Random(seed), world.clock.now_ms(), batches=3)
    log.roll()


@pytest.mark.parametrize(("number", "times"), usually(TIMES[1:], thorough=TIMES))
@pytest.mark.parametrize(("call", "fault"), STRIKES)
def test_copy_and_expire_over_a_bad_store_and_over_a_healed_one(
    open_world: OpenWorld,
    proxy: FaultProxy,
    make_log: MakeLog,
    call: Call,
    fault: Fault,
    number: int,
    times: int,
) -> None:
    world = open_world()
    log = make_log(world, "bad-day", 2, retention_ms=10 * MINUTE_MS, local_retention_bytes=0)
    if call is Call.DELETE_OBJECT:
        heal(world, proxy)
    proxy.inject(call, fault, number=number, times=times)
    world.run()
    world.run()
    world.pass_time(12 * MINUTE_MS)
    write(world, log, 7)
    world.run()
    assert proxy.struck
    heal(world, proxy)
    assert violations(world) == []
    assert differences(world) == []


def test_a_store_that_stalls_for_ever_has_a_deadline_and_the_partition_resumes(
    open_world: OpenWorld, proxy: FaultProxy, make_log: MakeLog
) -> None:
    world = open_world()
    logs = [make_log(world, f"stalled-{number}", 2) for number in range(2)]
    for call in (Call.PUT_OBJECT, Call.HEAD_OBJECT, Call.DELETE_OBJECT):
        proxy.inject(call, Fault.STALL, times=FOR_EVER)
    world.run()
    assert len(world.failures.told) >= 2, "every partition got its error"
    assert len(proxy.struck) < 40, "bounded repeats"
    assert violations(world) == []
    assert [log.bases[0] for log in logs] == [0, 0]
    heal(world, proxy)
    assert differences(world) == []


def test_deletions_denied_for_ever(
    open_world: OpenWorld, proxy: FaultProxy, make_log: MakeLog
) -> None:
    """The log start advances, what waits for its deletion is bounded, copies go on; and once the
    right is given, all of it goes."""
    world = open_world()
    log = make_log(world, "denied", 15, retention_ms=10 * MINUTE_MS, local_retention_bytes=0)
    heal(world, proxy)
    old_end_offset = log.log_end_offset
    proxy.inject(Call.DELETE_OBJECT, Fault.FORBIDDEN, times=FOR_EVER)
    world.pass_time(30 * MINUTE_MS)
    for number in range(3):
        write(world, log, number)
        world.run()
        segments = world.metadata.list(log.partition)
        waiting = [one for one in segments if one.state is DELETING]
        assert 0 < len(waiting) <= 10
    assert log.log_start_offset == old_end_offset
    assert violations(world) == []
    lag = world.manager.metrics.snapshot().total_sums.delete_lag
    assert lag is not None
    assert lag.segments >= 10, "the operator sees it"
    heal(world, proxy)
    assert differences(world) == []
    assert len(world.metadata.list(log.partition)) == 3


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_an_interrupted_copy_is_not_adopted_on_the_word_of_a_store_that_lies(
    open_world: OpenWorld, proxy: FaultProxy, make_log: MakeLog, fault: Fault
) -> None:
    """The process died before COPY_SEGMENT_FINISHED; the next one asks the store what is there."""

    class DiedError(BaseException):
        """Nothing catches it."""

    def die(name: str) -> None:
        if name == "metadata.copy_finished.before":
            raise DiedError

    world = open_world()
    make_log(world, "adopted", 1, local_retention_bytes=0)
    with watched(die):
        while "DiedError" not in str(world.failures.told):
            world.run()
    world = open_world()
    world.lead_all()
    proxy.inject(Call.GET_OBJECT, fault, times=FOR_EVER)
    world.run()
    heal(world, proxy)
    assert violations(world) == []
    assert differences(world) == []


@pytest.mark.parametrize("seed", range(4))
def test_any_day_of_faults_ends_with_a_lag_of_nothing(
    open_world: OpenWorld, proxy: FaultProxy, make_log: MakeLog, seed: int
) -> None:
    """Random faults at random calls through random passes with restarts in between."""
    rng = random.Random(seed)
    world = open_world()
    settings = {"retention_ms": 10 * MINUTE_MS, "local_retention_bytes": 2_000}
    names = [make_log(world, f"day-{number}", 2, **settings).name for number in range(2)]
    for number in range(12):
        for _ in range(rng.randrange(4)):
            call, fault = rng.choice(STRIKES)
            if fault is not Fault.STALL or rng.random() < 0.2:
                proxy.inject(call, fault, number=rng.randrange(1, 8), times=rng.randrange(1, 5))
        write(world, world.host.logs[rng.choice(names)], seed * 100 + number)
        world.pass_time(rng.randrange(3) * MINUTE_MS)
        world.run()
        if rng.random() < 0.2:
            world = open_world()
            world.lead_all()
        if rng.random() < 0.3:
            proxy.heal()
    heal(world, proxy)
    assert violations(world) == []
    assert differences(world) == []


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_what_a_consumer_gets_is_right_or_an_error(
    open_world: OpenWorld, proxy: FaultProxy, make_log: MakeLog, fault: Fault
) -> None:
    """The fault strikes every single read of a consumer's way through the log, one after the
    other."""
    world = open_world()
    log = make_log(world, "consumed", 3, local_retention_bytes=0)
    heal(world, proxy)
    assert log.bases == [log.log_end_offset], "only the tier has it"
    known = Truth.read(world.ledger_path).partitions[log.name]
    whole = [batch.first_offset for batch in known.required(0)]
    number = 0
    while True:
        number += 1
        proxy.struck.clear()
        proxy.inject(Call.GET_OBJECT, fault, number=number, times=3)
        walked = list(walk(world, log))
        proxy.heal()
        came = [one for one in walked if isinstance(one, tuple)]
        assert all(known.allows(*one) for one in came), "wrong bytes were served"
        if len(came) == len(walked):
            assert [offset for offset, _ in came] == whole, "some are missing, and nobody was told"
        if not proxy.struck:
            break
    assert number > 4, "the fault struck every read of the way"
