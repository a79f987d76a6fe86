"""Fixes of the product, taken back one at a time: the simulation must find each.

    python -m tests.simulation.reverted                # the first failing seed of each
    python -m tests.simulation.reverted NAME --seeds 20000

The names begin with the list of defects in which the fix stands: `A` nothing is passed over in
silence, `E` followers know the tier, `I` defects found by attack, `S` defects found by the
simulation itself. `OUT_OF_REACH` says what other test covers the rest.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from tests.simulation.run import CHUNK_SEEDS, fails, plan
from tierlog.sidecar import Sidecar

__all__ = ["FIRST_SEEDS", "OUT_OF_REACH", "REVERTED", "taken_back"]

_Patches = tuple[tuple[str, Callable[..., Any]], ...]


def _nothing(*_: object, **__: object) -> None:
    return None


def _true(*_: object, **__: object) -> bool:
    return True


def _false(*_: object, **__: object) -> bool:
    return False


def _no_gaps(*_: object, **__: object) -> list[object]:
    return []


_options = Sidecar._manager_options


def _options_without_claims(self: Sidecar, *args: Any) -> Any:
    return replace(_options(self, *args), claim_in_store=False)


@contextmanager
def _open_without_comparison(segment: Any) -> Iterator[Any]:
    with segment.open() as handle:
        yield handle


def _refuse_for_ever(*_: object) -> None:
    return None


def _delete_interrupted(work: Any, segment: Any) -> None:
    work.tier.copier.delete(segment, leader_epoch=work.leader_epoch)


def _ignore_own_epochs(_log: Any, lineage: Any, _segment: Any) -> Any:
    return lineage


def _first_finished(self: Any) -> Any:
    return self._finished()


def _is_silent_only(_self: Any, leader: Any, answer: Any, written_epoch: int) -> bool:
    old = leader.epoch is None or leader.epoch < written_epoch
    return answer.leader_id is None and leader.broker_id == _self._node_id and old


# What each name replaces.
REVERTED: dict[str, _Patches] = {
    "A1 missing offsets are no gap": (("tierlog.reader.gaps.missing_offsets", _no_gaps),),
    "A3 the store is never checked": (("tierlog.tiering.store_check.StoreCheck.is_due", _false),),
    "E followers learn nothing": (("tierlog.sidecar.learn.StoreLearner.follow", _false),),
    "I1 committed reads pass over gaps": (
        ("tierlog.reader.aborted.TransactionReader._check_gaps", _nothing),
        ("tierlog.reader.gaps.missing_offsets", _no_gaps),
    ),
    "I3 copies do not compare the file": (
        ("tierlog.tiering.copy_task.open_listed_segment", _open_without_comparison),
        ("tierlog.tiering.copy_task.require_same_topic", _nothing),
        ("tierlog.sidecar.watch._same_topic", _true),
    ),
    "I4 a missing leader is this broker": (("tierlog.sidecar.watch._leader_unknown", _nothing),),
    "I5 sidecars do not fence each other": (
        ("tierlog.sidecar.Sidecar._claims", _nothing),
        ("tierlog.sidecar.Sidecar._manager_options", _options_without_claims),
    ),
    "I8 a refused segment is never tried again": (
        ("tierlog.tiering.refusals.Refusal.retry", _refuse_for_ever),
    ),
    "S interrupted copies are forgotten": (
        ("tierlog.tiering.copy_task.CopyTask._resume_copy", _true),
    ),
    "S expiration removes whole interrupted copies": (
        ("tierlog.tiering.partition_work.PartitionWork.settle_copy", _delete_interrupted),
    ),
    "S the archive starts at finished copies": (
        ("tierlog.sidecar.host.SidecarLog._stored", _first_finished),
    ),
    "S epochs of deleted records are guessed": (
        ("tierlog.tiering.copy._known_epochs", _ignore_own_epochs),
    ),
    "S deposed leaders leave deletions undone": (
        ("tierlog.sidecar.strays.StraySettler._is_own_deletion", _false),
    ),
    "S an old answer makes a leader": (
        ("tierlog.sidecar.last_answers.LastAnswers._may_be_deposed", _is_silent_only),
    ),
}

# A seed that finds it and holds without it: what `python -m tests.simulation.reverted` printed.
FIRST_SEEDS: dict[str, int] = {
    "A1 missing offsets are no gap": 75,
    "A3 the store is never checked": 8,
    "E followers learn nothing": 0,
    "I1 committed reads pass over gaps": 75,
    "I3 copies do not compare the file": 630,
    "I4 a missing leader is this broker": 60,
    "I5 sidecars do not fence each other": 102,
    "I8 a refused segment is never tried again": 309,
    "S interrupted copies are forgotten": 25,
    "S expiration removes whole interrupted copies": 7,
    "S the archive starts at finished copies": 173,
    "S epochs of deleted records are guessed": 523,
    "S deposed leaders leave deletions undone": 591,
}

OUT_OF_REACH = {
    "A2 Spark drops corrupt batches": "tests/spark/test_datasource_damage.py",
    "A4 offsets from an unknown end": "tests/tools/cat/test_cat.py",
    "E index files of followers": "tests/sidecar/test_follow.py",
    "I2 memory of opened batches": "tests/test_memory_budget.py",
    "I6 look-alike objects in ranged reads": "tests/reader/test_swapped_objects.py",
    "I7 the state's disk fails": "tests/sidecar/test_failing_disk.py",
    "I9 indexes that are too large": "tests/sidecar/test_old_brokers.py",
    "I10 directories read short": "tests/reader/test_local_damage.py",
    "I11 a full store looks healthy": "tests/sidecar/test_failing_disk.py",
    "I12 bounds, URLs, schemas, loaders, hosts": "tests/remote/segment/test_indexes.py",
}


@contextmanager
def taken_back(name: str) -> Iterator[None]:
    """Run without the fix."""
    with ExitStack() as patches:
        for target, replacement in REVERTED[name]:
            patches.enter_context(patch(target, replacement))
        yield


def _first_failing(name: str, seeds: range) -> tuple[int, str] | None:
    with taken_back(name):
        found = [(seed, error) for seed in seeds if (error := fails(*plan(seed))) is not None]
    sound = ((seed, str(error)) for seed, error in found if fails(*plan(seed)) is None)
    return next(sound, None)


def find(name: str, seeds: int, jobs: int) -> tuple[int, str] | None:
    """The first seed that fails only without the fix, and how."""
    chunks = [range(start, start + CHUNK_SEEDS) for start in range(0, seeds, CHUNK_SEEDS)]
    pool = ProcessPoolExecutor(jobs)
    try:
        for found in pool.map(partial(_first_failing, name), chunks):
            if found is not None:
                return found
    finally:
        pool.shutdown(cancel_futures=True)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(REVERTED))
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    missed = 0
    for name in [given.name] if given.name else REVERTED:
        found = find(name, given.seeds, given.jobs)
        missed += found is None
        seed, text = found or (None, "")
        print(f'    "{name}": {seed},  # {text[:200]}', flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
