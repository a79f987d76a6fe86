"""What the readers of tierlog make of a partition, compared with what stock consumers read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.histories import checks
from tests.histories.checks import BreachError
from tests.histories.consumers import ISOLATIONS, Row, read_archive
from tests.integration.ledger import Partition
from tierlog.errors import GapError
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.segment.bucket import bucket_metadata
from tierlog.remote.segment.layout import indexes_key, log_key
from tierlog.remote.store.local_store import LocalStore

__all__ = ["Consumed", "Readers", "cut_directory", "without_segments_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """A partition at the end of a history: the records that consumers of each isolation level got.

    ``rolled_end`` is where the leader's active segment begins. ``settled_before`` returns the
    offset below which every transaction has ended that has a record at or below an offset.
    """

    partition: Partition
    log_dir: Path
    store: Path
    rows: Mapping[str, Sequence[Row]]
    rolled_end: int
    settled_before: Callable[[int], int]


class Readers:
    """Reads each partition over every combination of tiers that a user may have.

    The leader's directory alone holds most of a short history, so a second read takes a copy of it
    that begins half way: what local retention leaves. ``folder`` is for these copies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.compared = 0
        self.borders = 0
        self.gaps = 0

    def check(self, one: Consumed) -> None:
        """Compare all reads of a partition; BreachError when one differs."""
        shutil.rmtree(self._folder, ignore_errors=True)
        cut = cut_directory(one.log_dir, one.partition, self._folder / "cut")
        for isolation in ISOLATIONS:
            self._check_both(one, isolation, one.log_dir, "directory and store")
            if cut is not None:
                self._check_both(one, isolation, cut, "end of the directory, and store")
                self.borders += 1
            self._check_store(one, isolation)
        self._check_gap(one, cut)

    def _check_both(self, one: Consumed, isolation: str, log_dir: Path, tiers: str) -> None:
        what = f"{one.partition}, {isolation}, {tiers}"
        found = read_archive(str(log_dir), one.partition, isolation, one.store.as_uri())
        checks.require_once(what, found)
        checks.require_same(what, found, one.rows[isolation])
        self.compared += len(found)

    def _check_store(self, one: Consumed, isolation: str) -> None:
        """The store has the records up to the last rolled segment, or up to a transaction that is
        open there."""
        what = f"{one.partition}, {isolation}, store"
        expected = one.rows[isolation]
        found = read_archive(one.store.as_uri(), one.partition, isolation)
        checks.require_once(what, found)
        checks.require_same(what, found, expected[: len(found)])
        end = one.rolled_end
        if isolation == "read_committed":
            end = one.settled_before(end - 1)
        checks.require_up_to(what, found, expected, end)
        self.compared += len(found)

    def _check_gap(self, one: Consumed, cut: Path | None) -> None:
        """A segment in the middle of the store is missing: each read is an error."""
        rows = one.rows["read_uncommitted"]
        stored = [row.offset for row in rows if row.offset < one.rolled_end]
        if len(stored) < 3:
            return
        missing = stored[len(stored) // 4]
        holed = without_segments_of(one.store, one.partition, missing, self._folder / "holed")
        if holed is None:
            return
        sources: list[tuple[str, str | None]] = [(holed.as_uri(), None)]
        if cut is not None:
            sources.append((str(cut), holed.as_uri()))
        for isolation in ISOLATIONS:
            for source, store in sources:
                _require_gap(one, isolation, source, store, missing)
        self.gaps += 1


def _require_gap(
    one: Consumed, isolation: str, source: str, store: str | None, missing: int
) -> None:
    try:
        read_archive(source, one.partition, isolation, store)
    except GapError:
        return
    what = f"{one.partition}, {isolation}, {source}"
    raise BreachError(f"{what}: offset {missing} is missing, and the read passed over it")


def cut_directory(log_dir: Path, partition: Partition, target: Path) -> Path | None:
    """Copy a partition's directory without the first half of its segments; None when it has only
    one."""
    name = f"{partition[0]}-{partition[1]}"
    (target / name).mkdir(parents=True)
    for folder in (log_dir, log_dir / name):
        for path in folder.iterdir():
            if path.is_file():
                _copy(path, target / path.relative_to(log_dir))
    segments = open_log_dir(target).partition(*partition).segments
    if len(segments) < 2:
        return None
    begin = segments[(len(segments) + 1) // 2].base_offset
    for path in (target / name).iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < begin:
            path.unlink()
    return target


def _copy(path: Path, target: Path) -> None:
    try:
        shutil.copyfile(path, target)
    except FileNotFoundError:
        # The broker deletes old segments meanwhile.
        return


def without_segments_of(
    store: Path, partition: Partition, offset: int, target: Path
) -> Path | None:
    """Link the objects of a partition, but no segment that holds `offset`; None when no segment
    would be left before or after it."""
    metadata = bucket_metadata(LocalStore(store))
    segments = [
        one
        for known in metadata.partitions()
        if (known.topic, known.partition) == partition
        for one in metadata.list(known)
    ]
    left = [one for one in segments if not one.start_offset <= offset <= one.end_offset]
    newest = max((one.leader_epochs[-1][0] for one in left), default=None)
    is_after = any(one.start_offset > offset and one.leader_epochs[-1][0] == newest for one in left)
    if not is_after or all(one.start_offset > offset for one in left):
        return None
    for key in ["cluster.json", *(key(one) for one in left for key in (log_key, indexes_key))]:
        if (store / key).exists():
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            os.link(store / key, target / key)
    return target
