"""Several sidecars, their brokers, one store, chance from one seed; what must hold, holds.

    python -m tests.simulation.run --seeds 2000          # seeds 0 to 1999
    python -m tests.simulation.run --first 17 --seeds 1  # one seed again

A run is a list of actions. The first failing list is shortened as long as it fails, and printed.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.archive import BreachError
from tests.simulation.settling import settle_and_check
from tests.simulation.sidecars import open_simulated
from tests.simulation.world import Action, Setup, World, make_actions

__all__ = ["fails", "in_simulation", "plan", "run", "shorten", "simulate"]

CHUNK_SEEDS = 25


def plan(seed: int) -> tuple[Setup, list[Action]]:
    """The setup and the actions of a seed."""
    chance = random.Random(seed)
    setup = Setup.draw(chance)
    return setup, make_actions(chance, setup)


def simulate(seed: int) -> list[str]:
    """Run a seed; return what happened. BreachError when something does not hold."""
    return run(*plan(seed))


def run(setup: Setup, actions: Iterable[Action]) -> list[str]:
    """Run a list of actions, as `simulate` does."""
    place = Path(tempfile.mkdtemp(prefix="tierlog-simulation-", dir=_fast_folder()))
    world = World(place, setup)
    try:
        with in_simulation(world):
            world.begin()
            for action in actions:
                world.act(action)
                if action.name == "look":
                    world.archive.check()
            settle_and_check(world)
    except BreachError as error:
        error.add_note("\n".join(world.told))
        raise
    except Exception as error:
        # A defect of the product that no invariant names.
        breach = BreachError(f"unexpected {type(error).__name__}: {error}")
        breach.add_note("\n".join([*world.told, *traceback.format_exception(error)]))
        raise breach from error
    finally:
        world.close()
        shutil.rmtree(place, ignore_errors=True)
    return world.told


class InlineExecutor:
    """Runs each job in the caller's thread."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(job(*args))
        except Exception as error:  # noqa: BLE001 - the caller asks for it
            future.set_exception(error)
        return future


@contextmanager
def in_simulation(world: World) -> Iterator[None]:
    """Stores by URL, and times of directories, are those of the simulation; one thread."""
    with (
        patch("tierlog.reader.store_reader.ThreadPoolExecutor", InlineExecutor),
        patch("tierlog.remote.urls.find_store_opener", open_simulated),
        patch("tierlog.log.listing_memory._identity", world.cluster.disk.identity),
    ):
        yield


def _fast_folder() -> str | None:
    """A file system in memory, where syncing costs nothing."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def fails(setup: Setup, actions: Sequence[Action]) -> BreachError | None:
    try:
        run(setup, actions)
    except BreachError as error:
        return error
    return None


def _kind(error: BreachError | None) -> str | None:
    """What failed, without names and numbers."""
    if error is None:
        return None
    return re.sub(r"b?'[^']*'|[A-Za-z0-9_-]{22}|[0-9]+", "", str(error).rpartition(": ")[2])


def shorten(setup: Setup, actions: Sequence[Action]) -> list[Action]:
    """Leave out actions as long as the run fails in the same way, many at once first."""
    kept, size = list(actions), max(1, len(actions) // 2)
    kind = _kind(fails(setup, actions))
    while True:
        changed = False
        for start in range(len(kept) - size, -1, -size):
            fewer = kept[:start] + kept[start + size :]
            if _kind(fails(setup, fewer)) == kind:
                kept, changed = fewer, True
        if size == 1 and not changed:
            return kept
        size = max(1, size // 2)


def failing_seeds(seeds: Sequence[int]) -> list[tuple[int, str]]:
    """Run seeds; return those that fail, with the reason."""
    gc.disable()
    found = []
    for seed in seeds:
        error = fails(*plan(seed))
        if error is not None:
            found.append((seed, str(error)))
    gc.enable()
    gc.collect()
    return found


def run_seeds(first: int, count: int, jobs: int) -> int:
    """Run seeds in `jobs` processes, report on stderr; return how many failed."""
    began, failed, done = time.monotonic(), 0, 0
    shown = began
    chunks = [
        range(start, min(start + CHUNK_SEEDS, first + count))
        for start in range(first, first + count, CHUNK_SEEDS)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for chunk, found in zip(chunks, pool.map(failing_seeds, chunks), strict=True):
            done += len(chunk)
            for seed, text in found:
                failed += 1
                print(f"seed {seed}: {text}", flush=True)
                if failed == 1:
                    show_short(seed)
            now = time.monotonic()
            if now - shown > 10:
                shown = now
                print(f"{done} seeds, {failed} failed, {now - began:.0f} s", file=sys.stderr)
    print(f"{done} seeds, {failed} failed, {time.monotonic() - began:.1f} s")
    return failed


def show_short(seed: int) -> None:
    """Print the shortest list of actions that fails as the seed does."""
    setup, actions = plan(seed)
    kept = shorten(setup, actions)
    error = fails(setup, kept)
    print(f"seed {seed} with {len(kept)} of {len(actions)} actions: {error}")
    print(setup)
    for text in () if error is None else error.__notes__:
        print(text)
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    return min(run_seeds(given.first, given.seeds, given.jobs), 1)


if __name__ == "__main__":
    sys.exit(main())
