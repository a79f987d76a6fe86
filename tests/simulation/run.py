"""Several sidecars, their brokers, one store, chance from one seed; what must hold, holds.

    python -m tests.simulation.run --seeds 2000          # seeds 0 to 1999
    python -m tests.simulation.run --first 17 --seeds 1  # one seed again

A run is a list of actions. A failing list is shortened as long as it fails, and printed.
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.oracle import batches as oracle
from tests.simulation.cluster import Cluster, Partition
from tests.simulation.sidecars import (
    KilledError,
    SimulatedBroker,
    SimulatedSidecar,
    SimulatedStore,
    simulated_error,
)
from tierlog.clock import ManualClock
from tierlog.errors import TierlogError
from tierlog.reader.open import read
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.layout import log_key, parse_takeover, partition_prefix
from tierlog.remote.store.local_store import LocalStore

__all__ = ["BreachError", "World", "simulate"]

BROKERS = 3
ACTIONS = 60
INTERVAL_MS = 30_000
QUIET_LOOKS = 12
LONG_MS = 86_400_000


class BreachError(AssertionError):
    """Something that must always hold does not."""


class World:
    """A cluster, its sidecars and the store, on disk below `root`."""

    def __init__(self, root: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self.cluster = Cluster(root / "cluster", BROKERS, self.draw)
        self.clock = ManualClock(self.cluster.now_ms)
        self.root = root
        (root / "store").mkdir()
        self.raw_store = LocalStore(str(root / "store"), max_open_files=0)
        self.brokers = {n: SimulatedBroker(self.cluster, n) for n in self.cluster.dirs}
        self.sidecars: dict[int, SimulatedSidecar] = {}
        self.busy: list[int] = []
        self.faults = False
        self.depth = 0
        self.told: list[str] = []
        self.cluster.create_topic("a", 2)

    def draw(self, limit: int) -> int:
        return self._chance.randrange(limit)

    # -- actions

    def act(self) -> None:
        """One action, chosen by chance."""
        chosen = self._chance.choices(_ACTIONS, _WEIGHTS)[0]
        self.told.append("  " * self.depth + chosen.__name__.strip("_"))
        chosen(self)

    def _partition(self) -> Partition | None:
        names = sorted(self.cluster.partitions)
        return self.cluster.partitions[names[self.draw(len(names))]] if names else None

    def _append(self) -> None:
        if one := self._partition():
            for _ in range(1 + self.draw(3)):
                self.cluster.append(one)

    def _roll(self) -> None:
        if one := self._partition():
            one.lead().roll()

    def _replicate(self) -> None:
        if one := self._partition():
            for number in self.cluster.dirs:
                if self.draw(4):
                    self.cluster.replicate(one, number)
            self.cluster.write_checkpoints()

    def _change_leader(self) -> None:
        if one := self._partition():
            self.cluster.change_leader(one)

    def _recreate_topic(self) -> None:
        if self.draw(4) == 0:
            self.cluster.delete_topic("a")
            self.cluster.create_topic("a", 2)

    def _pass_time(self) -> None:
        duration_ms = INTERVAL_MS if self.draw(3) else LONG_MS
        self.clock.advance(duration_ms)
        self.cluster.now_ms += duration_ms

    def _look(self) -> None:
        free = [number for number in self.cluster.dirs if number not in self.busy]
        if free:
            self.look(free[self.draw(len(free))])

    def _restart(self) -> None:
        free = [number for number in self.sidecars if number not in self.busy]
        if free:
            with suppress(TierlogError, OSError):
                self.sidecars.pop(free[self.draw(len(free))]).close()

    def _lose_state(self) -> None:
        number = 1 + self.draw(BROKERS)
        if number not in self.busy and self.draw(4) == 0:
            if number in self.sidecars:
                self._abandon(number)
            shutil.rmtree(self.root / f"state{number}", ignore_errors=True)

    # -- sidecars

    def look(self, number: int) -> None:
        """One pass of a sidecar, which may fail or die."""
        self.busy.append(number)
        try:
            if number not in self.sidecars:
                self.sidecars[number] = SimulatedSidecar(
                    self.cluster.dirs[number],
                    SimulatedStore(self.root / "store", self.reach),
                    self.brokers[number],
                    state_dir=self.root / f"state{number}",
                    clock=self.clock,
                )
            self.sidecars[number].run_once()
        except (TierlogError, OSError) as error:
            # A process that died ends with any error: its metadata is closed.
            if not self.faults and number in self.sidecars:
                raise BreachError(f"sidecar {number} fails without a fault: {error}") from error
        except KilledError:
            pass
        finally:
            self.busy.remove(number)

    def _abandon(self, number: int) -> None:
        """The process is gone: what is durable stays, locks and descriptors go."""
        left = self.sidecars.pop(number, None)
        if left is not None:
            left.metadata.close()

    def reach(self, point: str) -> None:
        """Called at each request of the store."""
        if not self.faults:
            return
        what = self.draw(100)
        if what < 4:
            raise simulated_error(point)
        if what < 6:
            self.told.append("  " * self.depth + f"(killed at {point})")
            self._abandon(self.busy[-1])
            raise KilledError
        if what < 10 and self.depth < 3:
            self.depth += 1
            self.told.append("  " * self.depth + f"(sleeps at {point})")
            for _ in range(1 + self.draw(6)):
                self.act()
            self.depth -= 1

    # -- what must hold

    def check_stored(self) -> None:
        """Every batch that counts in the store is a committed one of its own topic."""
        for segment in list_segments(self.raw_store):
            partition = segment.segment_id.topic_id_partition
            key = partition.topic_id, partition.partition
            committed = self.cluster.committed.get(key)
            if committed is None:
                raise BreachError(f"segment of an unknown topic {partition}")
            data = (self.root / "store" / log_key(segment)).read_bytes()
            for batch in oracle.scan(data)[0]:
                known = committed.get(batch.base_offset)
                found = data[batch.position : batch.position + batch.size_bytes]
                if known is None or known.data != found:
                    raise BreachError(
                        f"{partition}: the store has a batch at offset {batch.base_offset} that "
                        "was never committed there"
                    )

    def settle(self) -> None:
        """End all faults, and look until nothing changes."""
        self.faults = False
        for broker in self.brokers.values():
            broker.is_honest = True
        for one in self.cluster.partitions.values():
            # Everything appended so far is committed and rolled, but the last segment.
            for number in self.cluster.dirs:
                self.cluster.replicate(one, number)
            self.cluster.commit(one)
        self.cluster.write_checkpoints()
        for _ in range(QUIET_LOOKS):
            self.clock.advance(LONG_MS)
            for number in self.cluster.dirs:
                self.look(number)

    def check_complete(self) -> None:
        """After `settle`: every rolled offset is stored once and reads back as it was written."""
        held: set[tuple[str, int, int]] = set()
        copies: defaultdict[tuple[str, int, int, int], list[RemoteLogSegmentMetadata]]
        copies = defaultdict(list)
        for segment in list_segments(self.raw_store):
            partition = segment.segment_id.topic_id_partition
            name = partition.topic_id, partition.partition
            first, last = segment.start_offset, segment.end_offset
            copies[*name, first, last].append(segment)
            held.update((*name, offset) for offset in range(first, last + 1))
        # Brokers may roll at different offsets, so segments may overlap; none is there twice.
        for key, some in copies.items():
            if len(some) > 1 and not self._is_known_limit(some):
                raise BreachError(f"stored more than once: {key}")
        for one in self.cluster.partitions.values():
            self._check_partition(one, held)

    def _is_known_limit(self, copies: Sequence[RemoteLogSegmentMetadata]) -> bool:
        """Whether brokers copied the same hole below a takeover's offset (decision 0012)."""
        if len({one.broker_id for one in copies}) < len(copies):
            return False
        folder = partition_prefix(copies[0].segment_id.topic_id_partition)
        taken = filter(None, (parse_takeover(info.key) for info in self.raw_store.list()))
        end = copies[0].end_offset
        return any(place == folder and takeover.end_offset > end for place, takeover in taken)

    def _check_partition(self, one: Partition, held: set[tuple[str, int, int]]) -> None:
        rolled_end = one.lead().bases[-1]
        for offset in range(rolled_end):
            if (one.topic_id, one.number, offset) not in held:
                raise BreachError(
                    f"{one.name} ({one.topic_id}): offset {offset} of {rolled_end} is not stored, "
                    f"leader {one.leader}, epoch {one.epoch}"
                )
        if rolled_end == 0:
            return
        expected = {
            record.offset: record.value
            for batch in one.lead().batches
            if batch.base_offset < rolled_end
            for record in oracle.records(oracle.scan(batch.data)[0][0])
        }
        found: dict[int, bytes | None] = {}
        for records in read(self.raw_store.url, one.topic_id, one.number):
            for record in records.records():
                if record.offset in found:
                    raise BreachError(f"{one.name}: offset {record.offset} was read twice")
                found[record.offset] = record.value
        # Another broker may have rolled later, so the store may have more.
        differ = [offset for offset in expected if found.get(offset) != expected[offset]]
        if differ:
            raise BreachError(
                f"{one.name}: offset {differ[0]} reads as {found.get(differ[0])!r}, written was "
                f"{expected[differ[0]]!r}"
            )


_CHOICES: dict[Callable[[World], None], int] = {
    World._append: 10,
    World._roll: 8,
    World._replicate: 12,
    World._look: 12,
    World._change_leader: 3,
    World._pass_time: 4,
    World._restart: 1,
    World._lose_state: 1,
    World._recreate_topic: 1,
}
_ACTIONS, _WEIGHTS = tuple(_CHOICES), tuple(_CHOICES.values())


def simulate(seed: int, *, actions: int = ACTIONS, root: Path | None = None) -> list[str]:
    """Run a seed; return what happened. BreachError when something does not hold."""
    place = Path(tempfile.mkdtemp(prefix="tierlog-simulation-", dir=_fast_folder(root)))
    world = World(place, seed)
    try:
        world.faults = True
        for _ in range(actions):
            world.act()
            if world.told[-1] == "look":
                world.check_stored()
        world.settle()
        world.check_stored()
        world.check_complete()
    except BreachError as error:
        error.add_note("\n".join(world.told))
        raise
    finally:
        for left in world.sidecars.values():
            with suppress(TierlogError, OSError):
                left.close()
        shutil.rmtree(place, ignore_errors=True)
    return world.told


def _fast_folder(root: Path | None) -> str | None:
    """A file system in memory, where syncing costs nothing."""
    if root is not None:
        return str(root)
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def failures(seeds: Sequence[int]) -> Iterator[tuple[int, BreachError]]:
    """Run seeds; yield those that fail."""
    for seed in seeds:
        try:
            simulate(seed)
        except BreachError as error:
            yield seed, error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    gc.disable()
    started, failed = time.monotonic(), 0
    for seed, error in failures(range(given.first, given.first + given.seeds)):
        failed += 1
        print(f"seed {seed}: {error}")
        if failed == 1:
            print("\n".join(error.__notes__))
    print(f"{given.seeds} seeds, {failed} failed, {time.monotonic() - started:.1f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
