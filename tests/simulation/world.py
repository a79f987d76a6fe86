"""A cluster, its sidecars, one store, readers, and what may happen to them.

A run is a setup and a list of actions. Each action has a seed of its own for all that chance
decides while it runs, so that a run without some of its actions is a run, too.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.sidecar.configs import tier_config
from tests.simulation.archive import Archive, BreachError
from tests.simulation.cluster import Cluster, Partition
from tests.simulation.damage import damage_store
from tests.simulation.readers import read_and_check, stored_now
from tests.simulation.sidecars import (
    KilledError,
    Process,
    SharedMetadata,
    SimulatedBroker,
    SimulatedSidecar,
)
from tests.simulation.store import Objects, SimulatedStore, simulated_error
from tests.simulation.truth import Truth, bits
from tierlog.clock import ManualClock
from tierlog.config import Config, RemoteLogConfig
from tierlog.errors import RemoteMetadataError, TierlogError

__all__ = ["Action", "Setup", "World", "make_actions"]

BROKERS = 3
ACTIONS = 50
INTERVAL_MS = 30_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
MAX_SLEEPERS = 3


class Action(NamedTuple):
    """One action by its name, and the seed of what chance decides in it."""

    name: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a run has. Rates are per hundred requests, moodiness per twelve questions. Each
    partition begins with some rolled segments, drawn from ``past_seed``; sidecars may have copied
    them."""

    topics: tuple[tuple[str, int], ...]
    past_segments: int = 0
    past_seed: int = 0
    past_is_archived: bool = False
    error_rate: int
    kill_rate: int
    sleep_rate: int
    moodiness: int
    retention_ms: int
    retention_bytes: int
    deleted_topic_retention_ms: int
    max_deleted_ratio: float
    shares_metadata: bool
    weights: dict[str, int]

    @classmethod
    def draw(cls, chance: random.Random) -> Setup:
        pick = chance.choice
        retention = pick(["no", "no", "no", "ms", "bytes"])
        shares = pick([True] + [False] * 7)
        usual = {name: weight for name, (_, weight, _) in ACTS.items()}
        weights = {name: weight * pick(ACTS[name][2]) for name, weight in usual.items()}
        return cls(
            topics=pick([(("a", 2),), (("a", 1), ("b", 1)), (("a", 1),)]),
            past_segments=pick([0, 2, 4]),
            past_seed=chance.getrandbits(32),
            past_is_archived=pick([False, True]),
            error_rate=pick([0, 1, 4, 12]),
            kill_rate=pick([0, 0, 2, 4]),
            sleep_rate=pick([0, 3, 5, 8]),
            moodiness=pick([0, 3, 6]),
            retention_ms=pick([6 * HOUR_MS, 2 * DAY_MS]) if retention == "ms" else -1,
            retention_bytes=pick([300, 1500]) if retention == "bytes" else -1,
            deleted_topic_retention_ms=pick([-1, -1, -1, 1, DAY_MS]),
            max_deleted_ratio=pick([0.5, 1.0, 1.0]),
            shares_metadata=shares,
            weights={name: weight for name, weight in weights.items() if weight},
        )

    def config(self) -> Config:
        base = Config(
            remote_log=RemoteLogConfig(retention_max_deleted_ratio=self.max_deleted_ratio)
        )
        return tier_config(
            base,
            bootstrap_servers="simulated:1",
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            deleted_topic_retention_ms=self.deleted_topic_retention_ms,
        )


def make_actions(chance: random.Random, setup: Setup, count: int = ACTIONS) -> list[Action]:
    names = chance.choices(list(setup.weights), list(setup.weights.values()), k=count)
    return [Action(name, chance.getrandbits(32)) for name in names]


class World:
    """One run below `root`."""

    def __init__(self, root: Path, setup: Setup) -> None:
        self.setup = setup
        self.root = root
        self._chance = random.Random(0)
        self.clock = ManualClock()
        self.cluster = Cluster(root, BROKERS, self.draw, self.clock.now_ms)
        self.objects = Objects()
        self.archive = Archive(self.objects, self.cluster)
        self.raw_store = SimulatedStore(self.objects)
        self.config = setup.config()
        self.brokers = {
            n: SimulatedBroker(self.cluster, setup.moodiness) for n in self.cluster.dirs
        }
        self.sidecars: dict[int, SimulatedSidecar] = {}
        self.processes: dict[int, Process] = {}
        self.shared = SharedMetadata(self._reach_running) if setup.shares_metadata else None
        self.running: list[Process] = []
        self.faults = True
        self.repairs = False
        self.needs_repair = False
        self.sleepers = 0
        self.told: list[str] = []
        self.breach: BreachError | None = None
        # Brokers whose state directory was lost: what they left unfinished has no owner.
        self.forgetful = False
        for topic, partitions in setup.topics:
            self.cluster.create_topic(topic, partitions)

    def begin(self) -> None:
        """Write what the logs hold when the run begins, and let all sidecars copy it in peace."""
        setup = self.setup
        self._chance.seed(setup.past_seed)
        for one in self.cluster.partitions.values():
            for _ in range(setup.past_segments):
                self._write_segment(one)
        self.cluster.write_checkpoints()
        if setup.past_is_archived and setup.past_segments:
            self._look_in_peace()

    def _write_segment(self, one: Partition) -> None:
        for _ in range(1 + self.draw(3)):
            if "transact" in self.setup.weights and self.draw(2):
                self.cluster.transact(one)
            else:
                self.cluster.append(one)
        one.lead().roll()
        for number in self.cluster.dirs:
            self.cluster.replicate(one, number)
        self._expire(one)

    def _look_in_peace(self) -> None:
        """One pass of every sidecar in which nothing fails."""
        self.faults = False
        for broker in self.brokers.values():
            broker.is_honest = True
        for number in self.cluster.dirs:
            self.look(number)
        for broker in self.brokers.values():
            broker.is_honest = False
        self.faults = True

    def draw(self, limit: int) -> int:
        return int(self._chance.random() * limit)

    def random_bytes(self, size: int) -> bytes:
        return self._chance.randbytes(size)

    def tell(self, text: str) -> None:
        self.told.append("  " * self.sleepers + text)

    # -- actions

    def act(self, action: Action) -> None:
        self._chance.seed(action.seed)
        self.tell(action.name)
        ACTS[action.name][0](self)
        if self.breach is not None:
            raise self.breach

    def _act_beside(self) -> None:
        """An action of others while a process sleeps."""
        weights = self.setup.weights
        name = self._chance.choices(list(weights), list(weights.values()))[0]
        self.tell(name)
        ACTS[name][0](self)

    def partition(self) -> Partition:
        names = sorted(self.cluster.partitions)
        return self.cluster.partitions[names[self.draw(len(names))]]

    def _broker(self) -> int:
        return 1 + self.draw(BROKERS)

    def append(self) -> None:
        one = self.partition()
        for _ in range(1 + self.draw(3)):
            self.cluster.append(one)
        self._expire(one)

    def transact(self) -> None:
        one = self.partition()
        for _ in range(1 + self.draw(3)):
            self.cluster.transact(one)
        self._expire(one)

    def roll(self) -> None:
        one = self.partition()
        if one.has_leader:
            one.lead().roll()

    def replicate(self) -> None:
        one = self.partition()
        for number in self.cluster.dirs:
            if self.draw(4):
                self.cluster.replicate(one, number)
        self._expire(one)
        self.cluster.write_checkpoints()

    def change_leader(self) -> None:
        self.cluster.change_leader(self.partition())

    def recreate_topic(self) -> None:
        if self.draw(3) == 0:
            topic, partitions = self.setup.topics[self.draw(len(self.setup.topics))]
            self.cluster.delete_topic(topic)
            self.cluster.create_topic(topic, partitions)

    def pass_time(self) -> None:
        self.advance((INTERVAL_MS, INTERVAL_MS, HOUR_MS, DAY_MS)[self.draw(4)])

    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        for one in self.cluster.truths.values():
            self._expire_truth(one)

    def look_once(self) -> None:
        free = [n for n in self.cluster.dirs if n not in {one.number for one in self.running}]
        if free:
            self.look(free[self.draw(len(free))])

    def restart(self) -> None:
        free = [n for n in self.sidecars if n not in {one.number for one in self.running}]
        if free:
            self.stop(free[self.draw(len(free))])

    def lose_state(self) -> None:
        number = self._broker()
        if self.draw(3) == 0 and number not in {one.number for one in self.running}:
            if number in self.sidecars:
                self.abandon(number)
            shutil.rmtree(self.root / f"state{number}", ignore_errors=True)
            self.forgetful = True

    def vanish(self) -> None:
        if self.draw(2) == 0:
            self.cluster.take_away(self.partition(), self._broker(), for_good=self.draw(2) == 0)

    def bring_back(self) -> None:
        one = self.partition()
        for number in self.cluster.dirs:
            self.cluster.bring_back(one, number)

    def delete_records(self) -> None:
        one = self.partition()
        if one.has_leader and self.draw(2) == 0:
            leader = one.lead()
            leader.start_at(min(one.high_watermark, leader.log_start + self.draw(12)))
            one.truth.deleted_below = max(one.truth.deleted_below, leader.log_start)
            if self.draw(2):
                self.cluster.write_checkpoints()

    def clean_local(self) -> None:
        """The broker deletes segments below its log start offset, and those that are archived."""
        one = self.partition()
        replica = one.replicas[self._broker()]
        if not replica.exists:
            return
        upto = replica.log_start
        if self.sleepers == 0 and self.draw(2):
            self.archive.check()
            while upto < one.high_watermark and one.truth.present >> upto & 1:
                upto += 1
        replica.clean(upto)
        one.truth.deleted_below = max(one.truth.deleted_below, replica.log_start)
        if self.draw(2):
            self.cluster.write_checkpoints()

    def damage_local(self) -> None:
        """A rolled segment is damaged on its broker's disk, or repaired there."""
        one = self.partition()
        replica = one.replicas[self._broker()]
        if not replica.exists:
            return
        if replica.damaged or len(replica.bases) < 2:
            replica.heal()
        elif self.draw(3) == 0:
            base = replica.bases[self.draw(len(replica.bases) - 1)]
            replica.damage(base, cut=self.draw(2) == 0, draw=self.draw)

    def damage_store(self) -> None:
        """The store loses an object or two, changes a byte, or swaps two objects."""
        if self.draw(2) or self.sleepers:
            return
        self.damage_store_now()

    def damage_store_now(self) -> None:
        self.archive.check()
        counted = sorted(self.archive.counted(), key=lambda one: one.stem)
        if counted and (damaged := damage_store(self, counted)) is not None:
            truth = self.cluster.truths[damaged.topic_id, damaged.number]
            read_and_check(self, truth, committed_only=self.draw(2) == 0)

    def read(self) -> None:
        keys = sorted(self.cluster.truths)
        key = keys[-1 - min(self.draw(len(keys)), self.draw(len(keys)))]
        read_and_check(self, self.cluster.truths[key], committed_only=self.draw(2) == 0)

    # -- retention

    def _expire(self, one: Partition) -> None:
        self._expire_truth(one.truth, one)

    def _expire_truth(self, truth: Truth, one: Partition | None = None) -> None:
        setup = self.setup
        ahead = 0
        if one is not None and one.has_leader and setup.retention_bytes >= 0:
            ahead = sum(len(b.data) for b in one.lead().batches if b.base_offset >= one.truth.end)
        truth.expire(
            now_ms=self.clock.now_ms(),
            retention_ms=setup.retention_ms,
            retention_bytes=setup.retention_bytes,
            ahead=ahead,
        )
        if truth.deleted_ms is not None and setup.deleted_topic_retention_ms >= 0:
            age_ms = self.clock.now_ms() - truth.deleted_ms
            truth.may_be_deleted |= age_ms >= setup.deleted_topic_retention_ms

    # -- sidecars

    def look(self, number: int) -> None:
        """One pass of a sidecar, which may fail or die."""
        process = self.processes.get(number)
        if process is None or not process.is_alive:
            process = self.processes[number] = Process(number, self.at_request)
        self.running.append(process)
        self.brokers[number].process = process
        told = len(self.told)
        try:
            if number not in self.sidecars:
                self.sidecars[number] = self._start(number, process)
            self.sidecars[number].run_once()
        except KilledError:
            pass
        except (TierlogError, OSError) as error:
            # A process that died ends with any error: its metadata is closed.
            if not self.faults and process.is_alive:
                self.breach = BreachError(f"sidecar {number} fails without a fault: {error}")
        finally:
            self.running.pop()
        if process.is_alive and number in self.sidecars and len(self.told) == told:
            self._check_lag(number)

    def _check_lag(self, number: int) -> None:
        """A sidecar that says that its copy lag is 0 has all rolled segments in the store."""
        sidecar = self.sidecars[number]
        metrics = sidecar.manager.metrics.snapshot()
        lag = metrics.total_sums.copy_lag
        if lag is None or any(lag) or metrics.copy_lag_unknown:
            return
        for partition, leads in sidecar.manager.partitions().items():
            one = self.cluster.partitions.get(f"{partition.topic}-{partition.partition}")
            if not leads or one is None or one.topic_id != partition.topic_id:
                continue
            replica, truth = one.replicas[number], one.truth
            if one.leader != number or not replica.exists:
                continue
            start = max(replica.log_start, truth.deleted_below, truth.gone_below)
            behind = bits(start, replica.rolled_end() - 1) & ~truth.lost
            if behind & ~stored_now(self, truth):
                self.breach = self.breach or BreachError(
                    f"sidecar {number} says that nothing lags behind, but {partition} is not stored"
                )

    def _start(self, number: int, process: Process) -> SimulatedSidecar:
        return SimulatedSidecar(
            self.cluster.dirs[number],
            SimulatedStore(self.objects, process.reach),
            self.brokers[number],
            state_dir=self.root / f"state{number}",
            config=self.config,
            clock=self.clock,
            random_bytes=self.random_bytes,
            shared=self.shared,
            repair=self.repairs,
        )

    def stop(self, number: int) -> None:
        """End a sidecar as its operator does."""
        process = self.processes[number]
        self.running.append(process)
        with suppress(TierlogError, OSError, KilledError):
            self.sidecars.pop(number).close()
        self.running.pop()
        process.is_alive = False

    def abandon(self, number: int) -> None:
        """The process is gone: what is durable stays, locks and descriptors go."""
        self.processes[number].is_alive = False
        left = self.sidecars.pop(number, None)
        if left is not None:
            left.metadata.close()

    def _reach_running(self, point: str) -> None:
        if self.running:
            self.running[-1].reach(point)

    def at_request(self, process: Process, point: str) -> None:
        """Called at each request of a process: to the store, the broker or shared metadata."""
        if not self.faults:
            return
        setup = self.setup
        what = self.draw(100)
        if what < setup.error_rate and not point.startswith("late"):
            if point.startswith("event"):
                raise RemoteMetadataError(f"simulated: {point}")
            raise simulated_error(point)
        what -= setup.error_rate
        if 0 <= what < setup.kill_rate and process.number:
            self.tell(f"(broker {process.number}'s sidecar is killed at {point})")
            self.abandon(process.number)
            return
        what -= setup.kill_rate
        if 0 <= what < setup.sleep_rate and self.sleepers < MAX_SLEEPERS:
            self.tell(f"(broker {process.number}'s process sleeps at {point})")
            self.sleepers += 1
            for _ in range(1 + self.draw(6)):
                self._act_beside()
            self.sleepers -= 1

    def close(self) -> None:
        for number in list(self.sidecars):
            self.abandon(number)


# What may happen, how often, and the factors of which a run draws one: 0 leaves it out.
ACTS: dict[str, tuple[Callable[[World], None], int, tuple[int, ...]]] = {
    "append": (World.append, 10, (1,)),
    "roll": (World.roll, 8, (1,)),
    "replicate": (World.replicate, 12, (1,)),
    "look": (World.look_once, 12, (1,)),
    "change leader": (World.change_leader, 3, (0, 1, 1, 2)),
    "pass time": (World.pass_time, 4, (1,)),
    "restart": (World.restart, 1, (0, 1, 2)),
    "lose state": (World.lose_state, 1, (0, 0, 1)),
    "recreate topic": (World.recreate_topic, 1, (0, 1, 2)),
    "transact": (World.transact, 6, (0, 1)),
    "vanish": (World.vanish, 2, (0, 0, 1)),
    "bring back": (World.bring_back, 2, (1,)),
    "delete records": (World.delete_records, 2, (0, 0, 1)),
    "clean local": (World.clean_local, 2, (0, 1)),
    "damage local": (World.damage_local, 2, (0, 0, 1)),
    "damage store": (World.damage_store, 3, (0, 0, 0, 1)),
    "read": (World.read, 2, (1,)),
}
