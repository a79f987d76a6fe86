"""Segments whose files go to the disk together: the rows and bytes of one after the other, whatever
is wrong with some of them and wherever the process is killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kill import dies
from tests.proofs import usually
from tests.remote.store.killing import Killer, there
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.tools.rebuild.index import (
    RebuildPlan,
    RebuildReport,
    RebuildTask,
    plan_rebuild,
    rebuild_report,
    rebuild_task,
)
from tierlog.tools.rebuild.segment import Outcome

STEP = usually(7, thorough=1)


def planned(source: Path, target: Path) -> RebuildPlan:
    return plan_rebuild(str(source), target=str(target), dry_run=False, now_ms=0)


def together(plan: RebuildPlan) -> RebuildReport:
    task = RebuildTask(parts=tuple(part for each in plan.tasks for part in each.parts))
    return rebuild_report(plan, rebuild_task(task))


def one_by_one(plan: RebuildPlan, patch: pytest.MonkeyPatch) -> RebuildReport:
    """Every chain alone, and every segment's files as soon as they are made."""
    patch.setattr("tierlog.tools.rebuild.log_dir._FILES_AT_ONCE", 1)
    chains = [chain for task in plan.tasks for chain in task.chains()]
    assert len(chains) > 3
    outcomes = [one for chain in chains for one in rebuild_task(RebuildTask.of(chain))]
    patch.undo()
    return rebuild_report(plan, outcomes)


def told(report: RebuildReport, target: Path) -> str:
    return repr((report.segments, report.findings)).replace(str(target), "<target>")


def logs(source: Path) -> Iterator[Path]:
    yield from sorted(source.glob("*-*/*.log"))


def corrupt(source: Path, _target: Path) -> None:
    for number, log in enumerate(logs(source)):
        if number % 4 == 1 and log.stat().st_size > 100:
            overwrite(log, 61, bytes(byte ^ 255 for byte in log.read_bytes()[61:64]))


def wrong_offsets_and_epochs(source: Path, _target: Path) -> None:
    """What no checksum covers."""
    for number, log in enumerate(logs(source)):
        if log.stat().st_size > 100 and number % 3 < 2:
            overwrite(log, 7 if number % 3 else 15, b"\x55")


def truncated_empty_and_gone(source: Path, _target: Path) -> None:
    for number, log in enumerate(logs(source)):
        if number % 5 == 1:
            os.truncate(log, log.stat().st_size // 2)
        elif number % 5 == 2:
            os.truncate(log, 0)
        elif number % 5 == 3:
            log.unlink()


def links_and_folders(source: Path, _target: Path) -> None:
    for number, log in enumerate(logs(source)):
        if number % 3 == 1:
            os.rename(log, source / f"elsewhere-{number}")
            log.symlink_to(source / f"elsewhere-{number}")
        elif number % 7 == 2:
            log.unlink()
            log.mkdir()


def no_snapshots(source: Path, _target: Path) -> None:
    for path in source.glob("*-*/*.snapshot"):
        path.unlink()


def others_are_there(source: Path, target: Path) -> None:
    for number, log in enumerate(logs(source)):
        folder = target / log.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        if number % 3 == 0:
            (folder / f"{log.stem}.index").write_bytes(b"other")
        elif number % 3 == 1:
            (folder / f"{log.stem}.txnindex").write_bytes(b"stale")


def some_are_there(source: Path, target: Path) -> None:
    together(planned(source, target))
    for number, path in enumerate(sorted(target.rglob("*.*index"))):
        if number % 3 == 0:
            path.unlink()


def no_folder_where_one_is_wanted(source: Path, target: Path) -> None:
    """A file in its place, and a link."""
    first, second, *_ = sorted({log.parent.name for log in logs(source)})
    target.mkdir()
    (target / first).write_bytes(b"in the way")
    (target.parent / "outside").mkdir()
    (target / second).symlink_to(target.parent / "outside")


@pytest.mark.parametrize("when", ["before the plan", "after it"])
@pytest.mark.parametrize(
    "damage",
    [
        corrupt,
        wrong_offsets_and_epochs,
        truncated_empty_and_gone,
        links_and_folders,
        no_snapshots,
        others_are_there,
        some_are_there,
        no_folder_where_one_is_wanted,
    ],
)
def test_the_same_as_one_by_one(
    damage: Callable[[Path, Path], None],
    when: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for way in ("together", "alone"):
        place = tmp_path / way
        place.mkdir()
        source, target = copy_log_dir(place, "unclean/disk1"), place / "to"
        if when == "after it":
            plan = planned(source, target)
            damage(source, target)
        else:
            damage(source, target)
            plan = planned(source, target)
        report = together(plan) if way == "together" else one_by_one(plan, monkeypatch)
        found.append((told(report, target).replace(str(place), ""), there(target)))
        outcomes = {row.outcome for row in report.segments}
        # Links that were there before are none of a log's files, and the rest is written.
        assert outcomes != {Outcome.WRITTEN} or damage in (no_snapshots, links_and_folders)
        assert outcomes & {Outcome.WRITTEN, Outcome.SAME, Outcome.CONFLICT}
        assert not (place / "outside").exists() or not any((place / "outside").iterdir())
    assert found[0] == found[1]


def test_killed_at_every_call(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0", "epochs-0")
    together(planned(source, tmp_path / "whole"))
    whole = there(tmp_path / "whole")
    number, killed, seen = 1 - STEP, True, set()
    while killed:
        number += STEP
        target = tmp_path / str(number)
        plan = planned(source, target)
        killed = dies(Killer(number).install, partial(together, plan))
        left = there(target)
        seen.add(len(left))
        assert left.items() <= whole.items()
        report = together(plan)
        assert report.ok
        assert there(target) == whole
        made = {Outcome.SAME} if not killed else {Outcome.SAME, Outcome.WRITTEN}
        assert {row.outcome for row in report.segments} <= made
    # Before any has its name, between two of them, and when all of them have.
    assert len(seen) > 3
    assert {0, len(whole)} <= seen
