"""``make histories``: three real brokers, a sidecar beside each, and one store.

Brokers and sidecars are killed, stopped, paused and started again, leaders move, and unclean
elections lose records. Idempotent and transactional producers go on meanwhile. A ledger records
every ack and the end of every transaction. What stock consumers read from the cluster, the readers
of tierlog have to read from the archive and the leader's directory, byte for byte; a seed draws
what happens.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.histories import checks
from tests.histories.checks import BreachError
from tests.histories.cluster import (
    PARTITIONS,
    PATIENCE_S,
    RISKY,
    SAFE,
    HistoryCluster,
    made_cluster,
)
from tests.histories.consumers import (
    ISOLATIONS,
    Row,
    Tail,
    end_offsets,
    read_archive,
    read_cat,
    read_cluster,
)
from tests.histories.producers import (
    Fate,
    IdempotentWriter,
    TransactionalWriter,
    TransactionLedger,
    Writer,
)
from tests.histories.readers import Consumed, Readers
from tests.integration.ledger import Ledger, Partition
from tests.integration.tier_process import LED, run
from tests.kafka_tools.support import wait_until

__all__ = ["BreachError", "Figures", "History", "run_history"]

# How far the copies of a partition may be behind before its producers wait, in records. The broker
# deletes what it has beyond some 4,000.
MAX_BEHIND = 1_200


@dataclass
class Figures:
    """What a history did."""

    steps: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    lost_unclean: int = 0
    doomed: int = 0
    stored_twice: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    compared: int = 0
    borders: int = 0
    gaps: int = 0
    live_checks: int = 0
    segments: int = 0
    duration_s: float = 0

    def rows(self, seed: int) -> list[str]:
        """The table of docs/RELIABILITY.md."""
        steps = ", ".join(f"{name} {count}" for name, count in sorted(self.steps.items()))
        transactions = (
            f"{self.committed:,} committed, {self.aborted:,} aborted, {self.unknown:,} unknown"
        )
        found = {
            "seed": str(seed),
            "duration": f"{self.duration_s:.0f} s",
            "steps": steps,
            "records acked": f"{self.acked:,}",
            "of these lost by unclean elections": f"{self.lost_unclean:,}",
            "unclean elections that lost a segment of the store": f"{self.doomed:,}",
            "records that the client stored twice": f"{self.stored_twice:,}",
            "transactions": transactions,
            "segments in the store": f"{self.segments:,}",
            "partitions read from the store meanwhile": f"{self.live_checks:,}",
            "records compared with those of stock consumers": f"{self.compared:,}",
            "reads over a border between the tiers": f"{self.borders:,}",
            "stores that lacked a segment": f"{self.gaps:,}",
            "differences": "0",
        }
        return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in found.items())]


class Backlog:
    """Holds a partition back while the store is far behind what was acked."""

    def __init__(self, store: Path, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._lock = threading.Lock()
        self._seen_acks = 0
        self._last: dict[Partition, int] = {}
        self._stored: dict[Partition, tuple[float, int]] = {}

    def may_send(self, partition: Partition) -> bool:
        """Return whether the copies of `partition` keep up. Any thread."""
        with self._lock:
            acks = self._ledger.acks
            while self._seen_acks < len(acks):
                ack = acks[self._seen_acks]
                self._last[ack.partition] = max(ack.offset, self._last.get(ack.partition, 0))
                self._seen_acks += 1
            at_s, stored = self._stored.get(partition, (0.0, 0))
            if time.monotonic() - at_s > 1:
                stored = self._stored_base(partition)
                self._stored[partition] = time.monotonic(), stored
            return self._last.get(partition, 0) - stored < MAX_BEHIND

    def _stored_base(self, partition: Partition) -> int:
        topic, number = partition
        found = self._store.glob(f"{topic}-*/{number}/*.indexes")
        return max((int(path.name[:20]) for path in found), default=0)


class History:
    """One run. Each step is a method, drawn by `steps`."""

    def __init__(self, cluster: HistoryCluster, seed: int, say: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.ledger = Ledger()
        self.transactions = TransactionLedger()
        self.figures = Figures()
        # The number of acks when the last unclean election of a partition was over.
        self.unclean: dict[Partition, int] = {}
        self._say = say
        self._writers: list[Writer] = []
        self._tails: dict[str, Tail] = {}
        self._seed = seed
        # What the consumers had read in the end.
        self._consumed: list[Consumed] = []

    @contextmanager
    def load(self) -> Iterator[None]:
        """Producers and consumers at work."""
        bootstrap, store = self.cluster.bootstrap, self.cluster.store
        may_send = Backlog(store, self.ledger).may_send
        orders = [one for one in SAFE if one[0] == "orders"]
        for number, (name, partitions) in enumerate((("orders", orders), ("risky", RISKY))):
            self._writers.append(
                IdempotentWriter(
                    name,
                    bootstrap,
                    self.ledger,
                    partitions,
                    seed=self._seed + number,
                    may_send=may_send,
                    settings={"compression.type": ("lz4", "none")[number]},
                )
            )
        self._writers.append(
            TransactionalWriter(
                "money",
                bootstrap,
                self.ledger,
                SAFE,
                seed=self._seed + 2,
                may_send=may_send,
                settings={
                    "transactional.id": "money",
                    "transaction.timeout.ms": 300_000,
                    "compression.type": "zstd",
                },
                transactions=self.transactions,
            )
        )
        for isolation in ISOLATIONS:
            self._tails[isolation] = Tail(bootstrap, SAFE, isolation)
        for thread in self._threads():
            thread.start()
        try:
            yield
        finally:
            for tail in self._tails.values():
                tail.stop()
            for writer in self._writers:
                if writer.is_alive():
                    writer.stop()

    # -- steps

    def steps(self) -> Iterator[Callable[[], None]]:
        """Yield what happens next, without end: every kind once, then at random."""
        kinds = [
            self.kill_broker,
            self.stop_broker,
            self.kill_sidecar,
            self.stop_sidecar,
            self.pause_sidecar,
            self.lose_state,
            self.elect_uncleanly,
            self.roll_all,
        ]
        first = kinds.copy()
        self.random.shuffle(first)
        yield from first
        while True:
            yield self.random.choice(kinds)

    def do(self, step: Callable[[], None]) -> None:
        """Do one step, let the load go on, and check what can be checked meanwhile."""
        name = step.__name__
        self._say(f"{name} ...")
        began_s = time.monotonic()
        step()
        self.figures.steps[name] += 1
        if self.random.random() < 0.5:
            self.cluster.elect_preferred()
        self.wait_for_acks(200)
        self._require_sound_threads()
        self.check_live()
        self._say(f"{name}: {time.monotonic() - began_s:.0f} s, {len(self.ledger.acks)} acked")

    def kill_broker(self) -> None:
        """SIGKILL a broker; it comes back after some load."""
        self._restart_broker(self._any_broker(), clean=False)

    def stop_broker(self) -> None:
        """Stop a broker cleanly; it comes back after some load."""
        self._restart_broker(self._any_broker(), clean=True)

    def kill_sidecar(self) -> None:
        """SIGKILL a sidecar; it comes back after some load."""
        self._restart_sidecar(self._any_broker(), clean=False)

    def stop_sidecar(self) -> None:
        """End a sidecar with SIGTERM; it comes back after some load."""
        self._restart_sidecar(self._any_broker(), clean=True)

    def pause_sidecar(self) -> None:
        """A sidecar sleeps while the partitions of its broker get other leaders."""
        number = self._any_broker()
        self.cluster.tiers[number].signal(signal.SIGSTOP)
        self._restart_broker(number, clean=self.random.random() < 0.5)
        self.cluster.tiers[number].signal(signal.SIGCONT)

    def lose_state(self) -> None:
        """A sidecar loses its state directory."""
        number = self._any_broker()
        self.cluster.tiers[number].kill()
        self.cluster.remove_state(number)
        self.cluster.tiers[number].start()

    def roll_all(self) -> None:
        """Restart every broker and every sidecar, one after the other."""
        for number in self.random.sample((1, 2, 3), 3):
            self._restart_broker(number, clean=True)
            self._restart_sidecar(number, clean=True)

    def elect_uncleanly(self) -> None:
        """A follower that was away becomes the leader: what it lacks is lost."""
        partition = self.random.choice(RISKY)
        leader, follower = self.cluster.take_risk(
            partition, meanwhile=lambda: self._wait_for_doomed_segment(partition)
        )
        self.unclean[partition] = len(self.ledger.acks)
        # Until then the store alone cannot tell which leader won.
        wait_until(
            lambda: self._is_ill() or self.cluster.has_rolled_in_last_epoch(partition),
            PATIENCE_S,
            what=f"a segment of {partition} after its unclean election",
            interval_s=0.3,
        )
        self._say(f"unclean election of {partition}: broker {follower} after broker {leader}")

    def _wait_for_doomed_segment(self, partition: Partition) -> None:
        """Wait until the store has a segment of records that the coming election loses."""
        end = max(self.ledger.acked_at(partition), default=-1)
        wait_until(
            lambda: self._is_ill() or self.cluster.last_stored_base(partition) > end,
            PATIENCE_S,
            what=f"a segment of {partition} after {end}",
            interval_s=0.2,
        )
        self.figures.doomed += 1

    def _any_broker(self) -> int:
        return self.random.choice((1, 2, 3))

    def _restart_broker(self, number: int, *, clean: bool) -> None:
        broker = self.cluster.brokers[number]
        if clean:
            broker.stop()
        else:
            broker.kill()
        self.wait_for_acks(self.random.randrange(50, 300))
        broker.start()
        self.cluster.wait_in_sync()

    def _restart_sidecar(self, number: int, *, clean: bool) -> None:
        tier = self.cluster.tiers[number]
        if clean:
            self._end_sidecar(number)
        else:
            tier.kill()
        self.wait_for_acks(self.random.randrange(50, 300))
        tier.start()

    def _end_sidecar(self, number: int) -> None:
        tier = self.cluster.tiers[number]
        # Before that it has no handler of SIGTERM yet.
        wait_until(lambda: tier.metric(LED) is not None, PATIENCE_S, what="metrics of a sidecar")
        code = tier.end()
        if code != 0 or tier.has_said("Traceback"):
            raise BreachError(f"sidecar {number} ended with {code}: " + "\n".join(tier.stderr))

    def wait_for_acks(self, count: int) -> None:
        """Let the load go on until `count` more records are acked."""
        goal = len(self.ledger.acks) + count
        wait_until(
            lambda: len(self.ledger.acks) >= goal or self._is_ill(),
            PATIENCE_S,
            what=f"{count} more acks",
        )
        self._require_sound_threads()

    def _threads(self) -> list[Writer | Tail]:
        return [*self._writers, *self._tails.values()]

    def _is_ill(self) -> bool:
        return any(one.error is not None for one in self._threads())

    def _require_sound_threads(self) -> None:
        for thread in self._threads():
            if thread.error is not None:
                raise BreachError(f"{thread.name} ended: {thread.error!r}")

    # -- checks

    def check_live(self) -> None:
        """Read one partition from the store while everything goes on."""
        partition = self.random.choice(PARTITIONS)
        acked = self.acked_at(partition)
        committed = self.transactions.records(Fate.COMMITTED)
        aborted = self.transactions.records(Fate.ABORTED)
        plain, stable = (
            read_archive(self.cluster.store_url, partition, isolation) for isolation in ISOLATIONS
        )
        for rows in (plain, stable):
            checks.require_once(f"{partition} in the store", rows)
        self.figures.live_checks += 1
        if partition in self.unclean:
            return
        end = plain[-1].offset if plain else -1
        within = {offset: found for offset, found in acked.items() if offset <= end}
        checks.require_acked(f"{partition} in the store", plain, within)
        checks.require_none_of(f"{partition} in the store, committed", stable, aborted)
        end = stable[-1].offset if stable else -1
        within = {
            offset: found & committed
            for offset, found in acked.items()
            if offset <= end and found & committed
        }
        checks.require_acked(f"{partition} in the store, committed", stable, within)

    def acked_at(self, partition: Partition) -> dict[int, set[int]]:
        """Return what was acked at each offset and may not be lost."""
        first = self.unclean.get(partition)
        if first is None:
            return self.ledger.acked_at(partition)
        return {
            ack.offset: {ack.digest}
            for ack in self.ledger.acks[first:]
            if ack.partition == partition
        }

    def check_all(self) -> None:
        """Compare each partition as consumers read it with what tierlog reads."""
        for writer in self._writers:
            writer.stop()
        self.cluster.wait_in_sync()
        ends = end_offsets(self.cluster.bootstrap, PARTITIONS)
        self.cluster.wait_until_copied()
        for tail in self._tails.values():
            tail.wait_for({one: ends[one] for one in SAFE})
        self._require_sound_threads()
        for partition in PARTITIONS:
            read = {name: self._expected(partition, name, ends) for name in ISOLATIONS}
            self._check_ledger(partition, read)
            rows = read["read_uncommitted"]
            one = Consumed(
                partition=partition,
                log_dir=self.cluster.leader_dir(partition),
                store=self.cluster.store,
                rows=read,
                rolled_end=self.cluster.active_base(partition),
                settled_before=partial(self.transactions.first_unsettled, rows),
            )
            self._consumed.append(one)
            self._check_cat(one)
        self.check_readers()
        self._check_store()

    def check_readers(self) -> None:
        """Compare what the readers return with what the consumers had read."""
        readers = Readers(self.cluster.scratch)
        for one in self._consumed:
            readers.check(one)
        self.figures.compared += readers.compared
        self.figures.borders += readers.borders
        self.figures.gaps += readers.gaps

    def _expected(
        self, partition: Partition, isolation: str, ends: dict[Partition, int]
    ) -> list[Row]:
        """What stock consumers read: all the time, or now what no retention deletes."""
        if partition in SAFE:
            return self._tails[isolation].rows[partition]
        return read_cluster(self.cluster.bootstrap, partition, isolation, ends[partition])

    def _check_cat(self, one: Consumed) -> None:
        for isolation, expected in one.rows.items():
            what = f"{one.partition}, {isolation}, tierlog cat"
            printed, _ = read_cat(one.log_dir, one.partition, isolation, one.store.as_uri())
            checks.require_same(what, printed, expected)
            self.figures.compared += len(printed)

    def _check_ledger(self, partition: Partition, read: dict[str, list[Row]]) -> None:
        plain, stable = (read[isolation] for isolation in ISOLATIONS)
        committed = self.transactions.records(Fate.COMMITTED)
        acked = self.acked_at(partition)
        checks.require_acked(f"{partition}, ledger", plain, acked)
        kept = {offset: one & committed for offset, one in acked.items() if one & committed}
        checks.require_acked(f"{partition}, ledger, committed", stable, kept)
        aborted = self.transactions.records(Fate.ABORTED)
        checks.require_none_of(f"{partition}, committed", stable, aborted)
        self.figures.stored_twice += checks.count_twins(plain)
        there = {row.digest for row in plain}
        acks = [ack for ack in self.ledger.acks if ack.partition == partition]
        self.figures.lost_unclean += sum(ack.digest not in there for ack in acks)

    def _check_store(self) -> None:
        run("verify", self.cluster.store_url, "--deep")
        for number in self.cluster.tiers:
            self._end_sidecar(number)
        self.figures.segments = self.cluster.count_segments()
        count = self.transactions.count
        self.figures.acked = len(self.ledger.acks)
        self.figures.committed = count(Fate.COMMITTED)
        self.figures.aborted, self.figures.unknown = count(Fate.ABORTED), count(Fate.UNKNOWN)


def run_history(
    root: Path,
    seed: int,
    minutes: float,
    say: Callable[[str], None],
    max_steps: int = 10**9,
    afterwards: Callable[[History], None] = lambda _: None,
) -> Figures:
    """Run one history below `root`; BreachError when a promise is broken. ``afterwards`` is called
    while the brokers are still there."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        cluster = stack.enter_context(made_cluster(root))
        history = History(cluster, seed, say)
        stack.enter_context(history.load())
        history.wait_for_acks(200)
        say("the load is on")
        end_s = time.monotonic() + 60 * minutes
        for number, step in enumerate(history.steps()):
            if number >= max_steps or time.monotonic() >= end_s:
                break
            history.do(step)
        say("comparing")
        history.check_all()
        afterwards(history)
    history.figures.duration_s = time.monotonic() - began_s
    return history.figures


def main() -> int:
    """Run one history and print its figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--keep", type=Path, help="keep all files in this new directory")
    given = parser.parse_args()
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:6.0f} s  {text}", flush=True)

    # As tests/conftest.py has it: a JVM of a history is gone before it could be faster.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    say(f"seed {given.seed}")
    with ExitStack() as stack:
        root = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = run_history(root, given.seed, given.minutes, say)
    print("\n".join(figures.rows(given.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
