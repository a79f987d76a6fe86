"""The end of a run: all faults end, the sidecars get some passes, and then everything must be
copied, readable, expired and tidy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.archive import BreachError
from tests.simulation.readers import read_and_check
from tests.simulation.truth import bits
from tierlog.remote.segment.layout import LOG_SUFFIX

if TYPE_CHECKING:
    from tests.simulation.cluster import Partition
    from tests.simulation.truth import Truth
    from tests.simulation.world import World

__all__ = ["settle_and_check"]

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
MAX_ROUNDS = 14


def settle_and_check(world: World) -> None:
    _heal(world)
    _look_until_quiet(world)
    if "damage store" in world.setup.weights:
        world.damage_store_now()
    if world.needs_repair:
        for number in list(world.sidecars):
            world.stop(number)
        world.repairs = True
        _look_until_quiet(world)
    world.archive.check()
    for one in world.cluster.partitions.values():
        _check_copied(world, one)
    _check_readers(world)
    _check_lags(world)
    _check_followers(world)
    world.archive.check_tidy(strict=not world.forgetful and not world.archive.damaged)
    _check_expired(world)


def _heal(world: World) -> None:
    """End all faults: everything appended so far is committed and rolled, but the last segment."""
    world.faults = False
    cluster = world.cluster
    for broker in world.brokers.values():
        broker.is_honest = True
    for one in cluster.partitions.values():
        for number in cluster.dirs:
            cluster.bring_back(one, number)
        for replica in one.replicas.values():
            replica.heal()
        cluster.end_transactions(one)
        for number in cluster.dirs:
            cluster.replicate(one, number)
        one.advance()
    cluster.write_checkpoints()


def _look_until_quiet(world: World) -> None:
    before = _state(world)
    for _ in range(MAX_ROUNDS):
        world.advance(HOUR_MS)
        for number in world.cluster.dirs:
            world.look(number)
            if world.breach is not None:
                raise world.breach
        now = _state(world)
        if now == before:
            return
        before = now
    raise BreachError(f"the store still changes after {MAX_ROUNDS} passes of every sidecar")


def _state(world: World) -> object:
    """What a pass may change: the store, and what each sidecar knows of it."""
    known = {
        number: {one: sidecar.metadata.list(one) for one in sidecar.metadata.partitions()}
        for number, sidecar in world.sidecars.items()
    }
    return dict(world.objects), known


def _check_copied(world: World, one: Partition) -> None:
    """All rolled records of the leader are in the store, except those that retention may take."""
    leader, truth = one.lead(), one.truth
    start = max(leader.log_start, truth.deleted_below, truth.gone_below)
    must = bits(start, leader.rolled_end() - 1)
    missing = must & ~truth.present
    if missing:
        offset = (missing & -missing).bit_length() - 1
        raise BreachError(
            f"{one.name} ({one.topic_id}): offset {offset} of {leader.rolled_end()} is not stored, "
            f"leader {one.leader}, epoch {one.epoch}"
        )


def _check_readers(world: World) -> None:
    for truth in world.cluster.truths.values():
        has_transactions = any(one.producer_id >= 0 for one in truth.batches)
        for committed_only in (False, True) if has_transactions else (world.draw(2) == 0,):
            must_succeed = _is_readable(world, truth, committed_only)
            read_and_check(world, truth, committed_only=committed_only, must_succeed=must_succeed)
            if world.breach is not None:
                raise world.breach


def _is_readable(world: World, truth: Truth, committed_only: bool) -> bool:
    """Whether a reader must get to the end of a partition's archive."""
    held = 0
    for one in world.archive.counted():
        if (one.topic_id, one.number) == (truth.topic_id, truth.number):
            held |= bits(one.first, one.last)
    if truth.lost or (committed_only and truth.may_hide_an_end(held)):
        return False
    if truth.deleted_ms is None:
        return True
    # What brokers had not copied or mended when the topic was deleted is missing for ever.
    is_damaged = any(truth.topic_id in key for key in world.archive.damaged)
    return not is_damaged and held & (held + (held & -held)) == 0


def _check_lags(world: World) -> None:
    for number, sidecar in world.sidecars.items():
        sums = sidecar.manager.metrics.snapshot().total_sums
        leads = any(sidecar.manager.partitions().values())
        lags = {"copy": sums.copy_lag}
        if world.setup.max_deleted_ratio >= 1:
            lags["delete"] = sums.delete_lag
        for name, lag in lags.items():
            if any(lag or ()) or (leads and lag is None):
                raise BreachError(f"sidecar {number}: the {name} lag is {lag}, expected 0")


def _check_followers(world: World) -> None:
    """Every sidecar knows the segments that count, and no others, of what it leads or follows."""
    counted = world.archive.counted()
    lost = {key.removesuffix(LOG_SUFFIX) for key in world.archive.damaged}
    for number, sidecar in world.sidecars.items():
        for partition in sidecar.manager.partitions():
            known = {one.segment_id.id for one in sidecar.metadata.list(partition)}
            stored = {
                one.stem[-22:]
                for one in counted
                if (one.topic_id, one.number) == (partition.topic_id, partition.partition)
            }
            # What the store lost and no broker has any more is known, and reported as lost.
            known -= {stem[-22:] for stem in lost} - stored
            if known != stored:
                raise BreachError(
                    f"sidecar {number}: knows {known - stored} of {partition} that do not count, "
                    f"and not {stored - known}"
                )


def _check_expired(world: World) -> None:
    setup = world.setup
    keeps_topics = setup.deleted_topic_retention_ms < 0
    if setup.max_deleted_ratio < 1 or (setup.retention_ms < 0 and keeps_topics):
        return
    world.advance(max(setup.retention_ms, setup.deleted_topic_retention_ms) + 2 * DAY_MS)
    _look_until_quiet(world)
    world.archive.check()
    cutoff_ms = world.clock.now_ms() - setup.retention_ms
    alive = set(world.cluster.topic_ids.values())
    # A cluster that has none of the archived topics may be another one.
    keeps_topics |= not any(one.topic_id in alive for one in world.archive.counted())
    for one in world.archive.counted():
        truth = world.cluster.truths[one.topic_id, one.number]
        written_ms = max(batch.written_ms for batch in truth.between(one.first, one.last))
        if one.topic_id in alive and setup.retention_ms >= 0 and written_ms < cutoff_ms:
            raise BreachError(f"{one.stem} is kept beyond its retention")
        if one.topic_id not in alive and not keeps_topics:
            raise BreachError(f"{one.stem} of a deleted topic is kept beyond its retention")
    _check_readers(world)
