"""`tierlog index rebuild` of log directories: what Kafka says of its files; what damage does."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.kafka_tools.tools import dump_log_segments
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.errors import ConfigError, TierlogError
from tierlog.log.checkpoint import LEADER_EPOCHS, parse_leader_epochs
from tierlog.log.log_dir import open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.tools.findings import Severity
from tierlog.tools.rebuild.index import (
    RebuildReport,
    RebuildTask,
    _Workers,
    plan_rebuild,
    rebuild_index,
    rebuild_report,
    rebuild_task,
)
from tierlog.tools.rebuild.log_dir import LogChain, plan_log_chains
from tierlog.tools.rebuild.segment import Outcome
from tierlog.tools.rebuild.tasks import pack_chains, pack_tasks

DISKS = tuple(
    DATA_DIR / name / disk for name in ("clean", "unclean") for disk in ("disk1", "disk2")
)
TRANSACTIONS = "crash-transactions-0"
SECOND = "00000000000000000100"


def rebuild(source: Path, target: Path | None, **more: object) -> RebuildReport:
    where = None if target is None else str(target)
    return rebuild_index(str(source), target=where, now_ms=0, **more)  # type: ignore[arg-type]


def tree(folder: Path) -> dict[str, bytes]:
    """All files but the hidden halves that a killed worker may leave."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def outcomes(report: RebuildReport, topic: str) -> dict[int, Outcome]:
    return {row.base_offset: row.outcome for row in report.segments if row.topic == topic}


@pytest.mark.parametrize("disk", DISKS, ids=lambda disk: f"{disk.parent.name}-{disk.name}")
def test_kafka_accepts_every_file(disk: Path, tmp_path: Path) -> None:
    before = tree(disk)
    report = rebuild(disk, tmp_path)
    assert report.ok
    assert {row.outcome for row in report.segments} == {Outcome.WRITTEN}
    indexes = sorted(
        path for path in tmp_path.rglob("*") if path.suffix in (".index", ".timeindex")
    )
    assert len(indexes) == 2 * report.summary.segments
    for row in report.segments:
        # A broker cuts the torn tail of an active segment off before it looks at indexes.
        log = Path(row.path)
        sound = log.read_bytes()[: scan_segment(log).stop_position]
        (tmp_path / log.parent.name / log.name).write_bytes(sound)
    checked = dump_log_segments(indexes, "--index-sanity-check")
    assert checked.count("passed sanity check.") + checked.count("is empty.") == len(indexes)
    # And entry by entry, against the logs.
    told = dump_log_segments(indexes, "--verify-index-only")
    assert "Mismatches" not in told
    assert "not found" not in told
    assert "out of order" not in told
    states = [path for path in tmp_path.rglob("*") if path.suffix in (".snapshot", ".txnindex")]
    assert dump_log_segments(states).count("Dumping ") == len(states) >= report.summary.segments
    assert tree(disk) == before


def test_processes_and_tasks_do_not_show_in_the_bytes(tmp_path: Path) -> None:
    source = DATA_DIR / "unclean" / "disk1"
    alone, pooled, cut = (tmp_path / name for name in ("alone", "pooled", "cut"))
    first = rebuild(source, alone)
    second = rebuild(source, pooled, jobs=2)
    assert first.segments == second.segments
    chains = list(
        plan_log_chains(
            open_log_dir(source).partitions(),
            str(cut),
            index_interval_bytes=4096,
            chain_bytes=lambda _: 1,
        )
    )
    assert len(chains) > first.summary.partitions
    for chain in reversed(chains):
        rebuild_task(RebuildTask.of(chain))
    assert tree(alone) == tree(pooled) == tree(cut)


def test_again_nothing_changes(tmp_path: Path) -> None:
    source = DATA_DIR / "clean" / "disk2"
    rebuild(source, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.*")}
    again = rebuild(source, tmp_path)
    assert again.ok
    assert again.summary.same == again.summary.segments > 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_what_an_interrupted_run_left_is_completed(tmp_path: Path) -> None:
    source = DATA_DIR / "clean" / "disk2"
    rebuild(source, tmp_path)
    whole = tree(tmp_path)
    for number, path in enumerate(sorted(tmp_path.rglob("*.*index"))):
        if number % 3 == 0:
            path.unlink()
    assert rebuild(source, tmp_path).ok
    assert tree(tmp_path) == whole


def test_a_dry_run_reads_all_and_writes_nothing(tmp_path: Path) -> None:
    source = DATA_DIR / "clean" / "disk1"
    planned = rebuild(source, None, dry_run=True)
    assert set(outcomes(planned, "headers").values()) == {Outcome.WOULD_WRITE}
    rebuild(source, tmp_path / "to", dry_run=True)
    assert not (tmp_path / "to").exists()


def test_damage_is_quarantined_and_the_rest_is_done(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "unclean/disk1")
    healthy, damaged = tmp_path / "healthy", tmp_path / "damaged"
    rebuild(source, healthy)
    log = source / TRANSACTIONS / f"{SECOND}.log"
    overwrite(log, 5000, bytes(b ^ 255 for b in log.read_bytes()[5000:5001]))
    report = rebuild(source, damaged, jobs=2)
    assert not report.ok
    (found,) = [one for one in report.findings if one.what == "bad_crc"]
    assert found.path == str(log)
    assert 0 < (found.position or 0) <= 5000
    (row,) = [one for one in report.segments if one.outcome is Outcome.QUARANTINED]
    assert (row.base_offset, row.crc, row.findings) == (100, "bad", ("bad_crc",))
    # The broker's own snapshot says what the next segment begins with.
    missing = {f"{TRANSACTIONS}/{SECOND}.{kind}" for kind in ("index", "timeindex", "txnindex")}
    missing.add(f"{TRANSACTIONS}/00000000000000000176.snapshot")
    expected = {name: data for name, data in tree(healthy).items() if name not in missing}
    assert tree(damaged) == expected


def test_segments_that_are_gone_or_others_since_the_plan(tmp_path: Path) -> None:
    """One has vanished, one is empty, one is a link: the others are done."""
    source = copy_log_dir(tmp_path, "clean/disk1", "epochs-0", "headers-0")
    rebuild(source, tmp_path / "healthy")
    plan = plan_rebuild(str(source), target=str(tmp_path / "to"), dry_run=False, now_ms=0, slots=2)
    *bad, active = sorted((source / "epochs-0").glob("*.log"))
    gone, empty, link = bad
    gone.unlink()
    os.truncate(empty, 0)
    link.unlink()
    link.symlink_to(source / "headers-0" / f"{0:020d}.log")
    report = rebuild_report(plan, [one for task in plan.tasks for one in rebuild_task(task)])
    found = outcomes(report, "epochs")
    assert [found[int(path.stem)] for path in bad] == [Outcome.QUARANTINED] * 3
    assert found[int(active.stem)] is Outcome.WRITTEN
    assert set(outcomes(report, "headers").values()) == {Outcome.WRITTEN}
    written, whole = tree(tmp_path / "to"), tree(tmp_path / "healthy")
    assert written.items() < whole.items()
    assert f"epochs-0/{active.stem}.index" in written


def test_unknown_producers_are_not_guessed(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "unclean/disk1", TRANSACTIONS)
    for snapshot in (source / TRANSACTIONS).glob("*.snapshot"):
        snapshot.unlink()
    overwrite(source / TRANSACTIONS / f"{SECOND}.log", 40, b"\xff\xff\xff")
    report = rebuild(source, tmp_path / "to")
    unknown = [row for row in report.segments if "producer_state_unknown" in row.findings]
    assert [row.base_offset for row in unknown] == [176, 273, 343, 418]
    written = {Path(name).name for name in tree(tmp_path / "to")}
    assert f"{176:020d}.index" in written
    assert not [name for name in written if name.endswith(".snapshot") and int(name[:20]) > 100]
    assert f"{176:020d}.txnindex" not in written


def test_a_chain_of_logs_alone_gives_what_snapshots_give(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "idempotent-0")
    with_snapshots, alone = tmp_path / "with", tmp_path / "alone"
    rebuild(source, with_snapshots)
    for snapshot in (source / "idempotent-0").glob("*.snapshot"):
        snapshot.unlink()
    assert rebuild(source, alone).ok
    assert tree(alone) == tree(with_snapshots)


def test_nothing_there_is_replaced(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0")
    target = tmp_path / "to"
    (target / "headers-0").mkdir(parents=True)
    (target / "headers-0" / f"{76:020d}.index").write_bytes(b"other")
    (target / "headers-0" / f"{0:020d}.txnindex").write_bytes(b"stale")
    report = rebuild(source, target)
    assert outcomes(report, "headers") == {0: Outcome.CONFLICT, 76: Outcome.CONFLICT}
    assert not report.ok
    assert tree(target)[f"headers-0/{76:020d}.index"] == b"other"


def test_never_into_a_broker(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path / "broker", "clean/disk1", "headers-0")
    other = copy_log_dir(tmp_path / "other", "clean/disk1", "headers-0")
    (other / "meta.properties").unlink()
    link = tmp_path / "link"
    link.symlink_to(source, target_is_directory=True)
    places = (source, source / "new", source.parent, link / "new", other)
    elsewhere = DATA_DIR / "clean" / "disk2"
    for place in (*places, elsewhere, elsewhere / "new"):
        with pytest.raises(ConfigError, match="expected a folder"):
            rebuild(source, place)
    with pytest.raises(ConfigError, match="expected a folder for the index files"):
        rebuild(source, None)
    assert not (source / "new").exists()


def checkpoints(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.rglob(LEADER_EPOCHS)}


@pytest.mark.parametrize("disk", DISKS, ids=lambda disk: f"{disk.parent.name}-{disk.name}")
def test_leader_epochs_come_from_the_broker_or_else_the_batches(disk: Path, tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, f"{disk.parent.name}/{disk.name}")
    told = checkpoints(source)
    rebuild(source, tmp_path / "kept")
    kept = checkpoints(tmp_path / "kept")
    assert len(kept) >= 4
    assert kept == {name: told[name] for name in kept}
    for path in source.rglob(LEADER_EPOCHS):
        path.unlink()
    report = rebuild(source, tmp_path / "lost")
    assert report.ok
    # Whoever makes it must see all segments.
    logs = open_log_dir(source).partitions()
    chains = list(plan_log_chains(logs, None, index_interval_bytes=4096, chain_bytes=lambda _: 1))
    assert len(chains) == report.summary.partitions < report.summary.segments
    for name, data in checkpoints(tmp_path / "lost").items():
        ends = [row.end_offset for row in report.segments if f"{row.topic}-{row.partition}" == name]
        end = max(offset for offset in ends if offset is not None)
        # A leader that has not written anything yet is known to the broker only.
        expected = [one for one in parse_leader_epochs(told[name]) if one.start_offset <= end]
        found = list(parse_leader_epochs(data))
        if "compacted" in name or "deleted" in name:
            # Where the log begins only batches still tell.
            expected[0], found[0] = (
                one._replace(start_offset=0) for one in (expected[0], found[0])
            )
        assert found == expected, name


def test_leader_epochs_are_not_guessed(tmp_path: Path) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    overwrite(source / "epochs-0" / LEADER_EPOCHS, 0, b"7")
    logs = sorted((source / "epochs-0").glob("*.log"))
    overwrite(logs[1], 70, b"\xff\xff\xff")
    unreadable = tmp_path / "to"
    report = rebuild(source, unreadable)
    assert checkpoints(unreadable) == {}
    assert "leader_epochs_unknown" in {found.what for found in report.findings}
    # A segment that is there and is none of ours to follow.
    logs[1].unlink()
    logs[1].symlink_to(logs[0])
    report = rebuild(source, tmp_path / "beside")
    assert report.summary.written == len(logs) - 1
    assert checkpoints(tmp_path / "beside") == {}


@pytest.mark.parametrize("enough_bytes", [1, 8_000, 20_000, 1 << 40])
def test_chains_end_where_they_are_long_enough(enough_bytes: int) -> None:
    logs = open_log_dir(DATA_DIR / "clean" / "disk1").partitions()
    seen: list[int] = []

    def chain_bytes(seen_bytes: int) -> int:
        seen.append(seen_bytes)
        return enough_bytes

    chains = list(plan_log_chains(logs, None, index_interval_bytes=4096, chain_bytes=chain_bytes))
    assert seen[-1] == sum(chain.size_bytes for chain in chains)
    assert len(seen) == len([log for log in logs if log.segments])
    for chain in chains:
        *others, last = chain.log.segments
        assert sum(one.size_bytes for one in others) < enough_bytes
        if not last.is_active:
            assert chain.size_bytes >= enough_bytes
    assert [one.log_path for chain in chains for one in chain.log.segments] == [
        one.log_path for log in logs for one in log.segments
    ]


class Killer:
    """Kills a worker whenever a task is done."""

    def __init__(self, kills: int) -> None:
        self.kills = kills

    def start(self, total_bytes: int) -> None:
        assert total_bytes > 0

    def advance(self, size_bytes: int, now_at: str = "") -> None:
        workers = multiprocessing.active_children()
        if self.kills and workers and workers[0].pid is not None:
            self.kills -= 1
            os.kill(workers[0].pid, signal.SIGKILL)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every segment's cost fills a task."""
    monkeypatch.setattr("tierlog.tools.rebuild.tasks._SMALLEST_TASK_BYTES", 1)


@pytest.mark.usefixtures("small_tasks")
def test_killed_workers_do_not_show(tmp_path: Path) -> None:
    source = DATA_DIR / "clean" / "disk2"
    report = rebuild(source, tmp_path / "whole")
    killer = Killer(2)
    again = rebuild(source, tmp_path / "killed", jobs=2, process_bytes=0, progress=killer)
    assert killer.kills == 0
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    assert len(again.segments) == len(report.segments)
    assert again.ok


@pytest.mark.usefixtures("small_tasks")
def test_workers_that_keep_dying_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TierlogError, match=r"killed 4 times.*fewer jobs"):
        rebuild(
            DATA_DIR / "clean" / "disk1", tmp_path, jobs=2, process_bytes=0, progress=Killer(100)
        )


@pytest.mark.usefixtures("small_tasks")
def test_a_small_directory_starts_no_process(tmp_path: Path) -> None:
    """A process takes longer to start than a gigabyte takes to scan."""
    killer = Killer(1)
    source = DATA_DIR / "clean" / "disk1"
    report = rebuild(source, tmp_path / "threads", jobs=2, progress=killer)
    assert killer.kills == 1
    assert len(rebuild(source, tmp_path / "one", jobs=1).segments) == len(report.segments)
    assert tree(tmp_path / "threads") == tree(tmp_path / "one")


def at_an_interrupt(_task: RebuildTask) -> list[object]:
    return [signal.getsignal(signal.SIGINT)]


def test_an_interrupt_ends_workers_without_a_word() -> None:
    """The command itself says what there is to say; what a killed worker leaves does not show."""
    with _Workers(2, in_threads=False) as workers:
        told = [
            one
            for _, row in workers.run(at_an_interrupt, [RebuildTask(parts=())] * 2)
            for one in row
        ]
    assert told == [signal.SIG_DFL] * 2


@pytest.mark.parametrize("name", ["cleaner-offset-checkpoint", "headers-0/leader-epoch-checkpoint"])
def test_a_checkpoint_that_cannot_be_read_is_noted(name: str, tmp_path: Path) -> None:
    """What it would say, the batches have to say alone."""
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0")
    (source / name).write_bytes(b"\xff\n")
    report = rebuild(source, tmp_path / "to")
    assert report.ok
    (found,) = report.findings
    assert (found.severity, found.path) == (Severity.NOTE, str(source / name))


def chain_of(size_bytes: int) -> LogChain:
    """A chain of one segment that says it has so many bytes."""
    (log, *_) = open_log_dir(DATA_DIR / "clean" / "disk1").listing().partitions
    segment = replace(log.segments[0], size_bytes=size_bytes)
    return LogChain(log=replace(log, segments=(segment,)), target=None, index_interval_bytes=4096)


def slot_ends(tasks: Sequence[RebuildTask], slots: int) -> list[int]:
    """When each of the slots is done, if each takes the next task whenever it is free."""
    ends = [0] * slots
    for task in tasks:
        ends[ends.index(min(ends))] += task.size_bytes
    return sorted(ends)


def packed(chains: Sequence[LogChain], slots: int, **bounds: int) -> tuple[RebuildTask, ...]:
    """Tasks of chains, in the two steps of a plan; no chain is lost, and none is there twice."""
    tasks = pack_tasks(pack_chains(chains, slots, **bounds), slots, **bounds)
    assert sum(task.size_bytes for task in tasks) == sum(chain.size_bytes for chain in chains)
    assert sum(len([*task.chains()]) for task in tasks) == len(chains)
    return tasks


@pytest.mark.parametrize("slots", [2, 3, 7])
@pytest.mark.parametrize(("chains", "size_bytes"), [(64, 256 << 20), (64, 268_767_232), (5000, 1)])
def test_all_slots_are_done_at_about_the_same_time(
    chains: int, size_bytes: int, slots: int
) -> None:
    tasks = packed([chain_of(size_bytes)] * chains, slots, max_bytes=1 << 30)
    first, last = slot_ends(tasks, slots)[:: slots - 1]
    assert last - first <= max(size_bytes, chains * size_bytes // 100)
    assert max(task.size_bytes for task in tasks) <= (1 << 30) * 17 // 16
    assert len(tasks) <= 16 * slots


@pytest.mark.parametrize("size_bytes", [(256 << 20) - 1, 256 << 20, 268_767_232])
def test_a_task_of_1_gib_has_four_segments_of_256_mib(size_bytes: int) -> None:
    """As Kafka rolls them, or a little longer, whatever a segment costs besides its bytes."""
    tasks = packed([chain_of(size_bytes)] * 64, 2, max_bytes=1 << 30)
    assert [len([*task.chains()]) for task in tasks[:12]] == [4] * 12


def test_no_task_but_the_last_is_smaller_than_what_is_worth_one() -> None:
    chains = [chain_of(1 << 20)] * 1000
    tasks = packed(chains, 8, min_bytes=64 << 20)
    # A segment costs a MiB besides its own.
    assert min(len([*task.chains()]) for task in tasks[:-1]) == 32
    smaller = packed(chains, 8)
    assert min(len([*task.chains()]) for task in smaller[:-1]) == 2
    # The largest size that is asked for counts more.
    assert len(packed(chains, 8, min_bytes=64 << 20, max_bytes=2 << 20)) == 1000


def test_a_small_rest_does_not_wait_for_a_large_chain() -> None:
    """Whatever comes between them: a chain that is large is alone, small ones share a task."""
    tasks = packed([chain_of(1), chain_of(1 << 30), chain_of(2)], 2)
    assert [[chain.size_bytes for chain in task.chains()] for task in tasks] == [[1 << 30], [2, 1]]


def test_nothing_to_pack() -> None:
    assert packed([], 2) == ()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0", "epochs-0")
    command = ["index", "rebuild", str(source), "--to", str(tmp_path / "to"), "--jobs", "1"]
    assert main([*command, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["summary"]["written"] == told["summary"]["segments"] == 6
    epochs = [row for row in told["segments"] if row["topic"] == "epochs"]
    assert sum(size for row in epochs for _, size in row["bytes_per_epoch"]) == sum(
        row["size_bytes"] for row in epochs
    )
    overwrite(source / "headers-0" / f"{76:020d}.log", 30, b"\0\0\0\0")
    assert main(command) == 1
    shown = capsys.readouterr().out
    assert "quarantined" in shown
    assert "bad_" in shown
    assert main(["index", "rebuild", str(source)]) == 2
