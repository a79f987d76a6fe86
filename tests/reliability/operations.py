"""What a manager, a sidecar and its notes do, as operations in which each file call may fail.

An operation has a state on disk, the step that is watched, and what must be so once the fault is
over. `Outcome` says what the step raised and reported.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from tests.reliability.compare import differences, violations
from tests.reliability.disk import paused
from tests.reliability.episode import LONG_MS, TOPICS, prepare, script, write
from tests.reliability.host import Host, OwnedLog
from tests.reliability.ledger import Ledger
from tests.reliability.world import World
from tests.tools.golden_copy import copy_log_dir
from tierlog.broker import BrokerAnswer
from tierlog.cli import main as tierlog
from tierlog.cli.settings import read_config
from tierlog.errors import TierlogError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.store.local_store import LocalStore
from tierlog.sidecar import Sidecar
from tierlog.sidecar.last_answers import LastAnswers
from tierlog.testing.segments import uuid_of
from tierlog.types import TopicIdPartition

__all__ = ["EPISODES", "OPERATIONS", "Operation", "Outcome", "spare_the_host"]

Watch = contextlib.AbstractContextManager[None]


@dataclass(slots=True)
class Outcome:
    """What a step raised, and what its tasks and warnings reported."""

    errors: list[BaseException] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def is_quiet(self) -> bool:
        return not self.errors and not self.told

    def untyped(self) -> Iterator[str]:
        """The errors that no caller is told to expect."""
        for error in self.errors:
            if not isinstance(error, TierlogError | OSError):
                yield f"not a typed error: {error!r}"


class Operation:
    """One step, of a process that starts with the state at `root`."""

    name: str
    # The folders of which a power cut loses nothing: the broker's disk, and the test's.
    safe = ("host", "ledger", "kafka", "drafts", "threads")

    def is_safe(self, path: str) -> bool:
        """Whether nothing of this path is ever lost."""
        return path.split("/")[0] in self.safe

    def prepare(self, root: Path) -> None:
        """Make the state."""
        raise AssertionError

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        """Do the step, its calls in `watch`. Also return how the same process goes on, which
        returns what is wrong then; None where it must be started again."""
        raise AssertionError

    def start_again(self, root: Path) -> list[str]:
        """What is wrong after the next start and a pass."""
        raise AssertionError


# -- the manager


class ManagerOperation(Operation):
    """A step of a manager over the crash matrix's world."""

    def __init__(
        self,
        name: str,
        step: Callable[[World], None],
        *,
        ready: Callable[[World], None] = lambda _: None,
        tiered: bool = True,
        drafts: bool = False,
    ) -> None:
        self.name = name
        self._step = step
        self._ready = ready
        self._tiered = tiered
        self._drafts = drafts

    def prepare(self, root: Path) -> None:
        root.mkdir()
        if self._drafts:
            (root / "drafts").touch()
        rng = random.Random(self.name)
        world = World(root)
        for topic in ("by-time", "by-size", "doomed"):
            partition = TopicIdPartition(topic_id=uuid_of(topic), topic=topic, partition=0)
            world.host.topic(partition, TOPICS[topic])
        world.lead_all()
        for topic in ("by-time", "by-size", "doomed"):
            for _ in range(2):
                write(world, topic, rng)
        if self._tiered:
            world.run()
        world.close()

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        world = World(root)
        world.lead_all()
        self._ready(world)
        outcome = Outcome()
        try:
            with watch:
                self._step(world)
        except Exception as error:  # noqa: BLE001 - judged by the caller
            outcome.errors.append(error)
        outcome.errors += world.failures.errors
        outcome.told += [*world.failures.told, *map(str, world.failures.refused)]
        if _is_refused(world.metadata) or outcome.errors[:1] != world.failures.errors[:1]:
            # A metadata file that failed, or a caller that saw the error: the process ends.
            world.close()
            return outcome, None
        return outcome, lambda: _go_on(world)

    def start_again(self, root: Path) -> list[str]:
        world = World(root)
        problems = [f"before anything was mended: {one}" for one in violations(world)]
        if problems:
            world.close()
            return problems
        world.lead_all()
        return _go_on(world)


def _is_refused(metadata: RemoteLogMetadataManager) -> bool:
    """Whether the file takes no more changes: the process has to end."""
    return isinstance(metadata, SqliteRemoteLogMetadataManager) and metadata.failure is not None


def _go_on(world: World) -> list[str]:
    """Passes without a fault, with new views of the logs as a broker makes them now and then; the
    retry of a failed task comes within an interval."""
    world.failures.told.clear()
    for log in world.host.logs.values():
        log.forget_view()
    for _ in range(3):
        world.run()
    problems = differences(world)
    world.close()
    return problems


class Restart(ManagerOperation):
    """The start of a process: metadata and index files are opened, interrupted work goes on."""

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        outcome = Outcome()
        self._break(root)
        try:
            with watch:
                world = World(root)
                world.lead_all()
                world.run()
        except Exception as error:  # noqa: BLE001 - judged by the caller
            outcome.errors.append(error)
            return outcome, None
        outcome.errors += world.failures.errors
        outcome.told += [*world.failures.told, *map(str, world.failures.refused)]
        if _is_refused(world.metadata):
            world.close()
            return outcome, None
        return outcome, lambda: _go_on(world)

    def _break(self, root: Path) -> None:
        pass


class LostIndexes(Restart):
    """The same where the remote index files are lost or torn."""

    def _break(self, root: Path) -> None:
        shutil.rmtree(next((root / "index").glob("by-size*")))
        (torn,) = list((root / "index").rglob("by-time*/**/*.remoteLogIndex"))[-1:]
        os.truncate(torn, torn.stat().st_size - 20)


class Episode(ManagerOperation):
    """The crash matrix's script of that seed, from the very first start."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"episode {seed}", World.run)
        self._seed = seed

    def is_safe(self, path: str) -> bool:
        # The test's world makes these two, and syncs neither.
        return path in ("store", "index") or super().is_safe(path)

    def prepare(self, root: Path) -> None:
        root.mkdir()

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        root.rmdir()
        with watch:
            prepare(root, self._seed, World)
            script(root, self._seed, World)
        return Outcome(), None


def _expire(world: World) -> None:
    world.run()


def _delete(world: World) -> None:
    world.delete_topic(world.host.logs["doomed-0"])
    world.run()


def _cut(world: World) -> None:
    """An unclean leader: it cuts what was tiered and writes on."""
    log = world.host.logs["by-size-0"]
    world.manager.stop_partition(log.partition)
    offsets = [one for one in log.batch_offsets() if one > log.bases[0]]
    log.truncate_to(offsets[-2])
    world.lead(log)
    write(world, "by-size", random.Random(1))
    world.run()


def _grow(world: World) -> None:
    for topic in ("by-time", "by-size"):
        write(world, topic, random.Random(topic))
    world.run()


def spare_the_host() -> None:
    """From now on the calls that change the local log and the ledger never fail: they are the
    broker's and the test's. For good: only in a process of the test."""
    changes = {
        OwnedLog: (
            "configure begin_epoch append roll truncate_to delete_records begin_deletion delete "
            "advance_log_start_offset delete_local_segments close batch_offsets"
        ),
        Host: "__init__ topic write_checkpoints",
        Ledger: "__init__ write close",
    }
    for kind, names in changes.items():
        for name in names.split():
            setattr(kind, name, _spared(getattr(kind, name)))


def _spared(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def spared(*arguments: Any, **options: Any) -> Any:
        with paused():
            return call(*arguments, **options)

    return spared


# -- the sidecar


class Tier(Operation):
    """``tierlog tier --once`` over a broker's directory."""

    _expected: dict[str, list[bytes]]

    def __init__(self, name: str, *flags: str, passes: int = 0, lose_state: bool = False) -> None:
        self.name = name
        self._flags = flags
        self._passes = passes
        self._lose_state = lose_state

    def prepare(self, root: Path) -> None:
        root.mkdir()
        copy_log_dir(root / "kafka", "clean/disk1", "epochs-0", "codec-none-0")
        for _ in range(self._passes):
            assert self._run(root)[0] == 0
        if self._lose_state:
            shutil.rmtree(root / "state")
        undisturbed = root.with_name(f"{root.name} undisturbed")
        shutil.copytree(root, undisturbed)
        assert self._run(undisturbed, *self._flags)[0] == 0
        self._expected = _objects(undisturbed)
        shutil.rmtree(undisturbed)

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        with watch:
            code, text = self._run(root, *self._flags)
        outcome = Outcome()
        if "Traceback" in text or code not in (0, 1):
            outcome.errors.append(AssertionError(f"exit code {code}: {text}"))
        elif code == 1 or "warning" in text:
            outcome.told.append(text)
        return outcome, None

    def start_again(self, root: Path) -> list[str]:
        code, text = self._run(root, *self._flags)
        problems = [f"next pass: exit code {code}: {text}"] if code else []
        _, text = self._run(root, *self._flags)
        if "0 segments copied" not in text:
            problems.append(f"the pass after it still copied: {text}")
        code, text = _command("verify", (root / "store").as_uri(), "--deep")
        problems += [f"verify: exit code {code}: {text}"] if code else []
        return [*problems, *self._wrong_objects(root)]

    def _run(self, root: Path, *flags: str) -> tuple[int, str]:
        os.environ["TIERLOG_REMOTE_INDEX_DIR"] = str(root / "index")
        store, state = (root / "store").as_uri(), str(root / "state")
        log_dir = str(root / "kafka" / "disk1")
        return _command("tier", log_dir, "--to", store, "--state-dir", state, "--once", *flags)

    def _wrong_objects(self, root: Path) -> Iterator[str]:
        """Objects other than those of an undisturbed run; files that were left over."""
        found = _objects(root)
        for name in sorted(self._expected.keys() | found.keys()):
            if self._expected.get(name) != found.get(name):
                yield f"lost, superfluous or not the same bytes: {name}"
            folder, number, base = name.split("/")
            topic = folder[: -len(uuid_of("any")) - 1]
            segment = root / "kafka" / "disk1" / f"{topic}-{number}" / f"{base}.log"
            if found.get(name, []) not in ([], [segment.read_bytes()]):
                yield f"not the segment's bytes, or twice: {name}"
        for area in ("store", "state", "index"):
            for path in sorted((root / area).rglob("*.tmp")):
                # One beside a document that is written again and again is a known limit.
                if path.parent.name == "0":
                    yield f"left over: {path.relative_to(root)}"


def _objects(root: Path) -> dict[str, list[bytes]]:
    """The `.log` objects by partition and base offset."""
    found: dict[str, list[bytes]] = {}
    for path in sorted((root / "store").rglob("*.log")):
        name = f"{path.parts[-3]}/{path.parts[-2]}/{path.name[:20]}"
        found.setdefault(name, []).append(path.read_bytes())
    return found


def _command(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = tierlog(list(arguments))
    return code, out.getvalue() + err.getvalue()


class TierOn(Tier):
    """Two passes of one sidecar, as of one that goes on and on."""

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        outcome = Outcome()
        os.environ["TIERLOG_REMOTE_INDEX_DIR"] = str(root / "index")
        config = read_config(None, os.environ, {})
        store, state = (root / "store").as_uri(), str(root / "state")
        sidecar = None
        try:
            with watch:
                sidecar = Sidecar(
                    [str(root / "kafka" / "disk1")], store, state_dir=state, config=config
                )
                report = sidecar.run_once()
        except Exception as error:  # noqa: BLE001 - judged by the caller
            outcome.errors.append(error)
            if sidecar is not None:
                sidecar.close()
            return outcome, None
        outcome.told += [*report.failures, *report.warnings, *map(str, report.problems)]
        if not report.ok:
            outcome.told.append(f"{report.rows}")
        if _is_refused(sidecar.metadata):
            sidecar.close()
            return outcome, None
        return outcome, lambda: self._go_on(sidecar)

    def _go_on(self, sidecar: Sidecar) -> list[str]:
        sidecar.manager.copy_pool.hurry()
        sidecar.manager.expiration_pool.hurry()
        report = sidecar.run_once()
        sidecar.close()
        return [] if report.ok else [f"the next pass: {report}"]


# -- the sidecar's notes


class WriteNotes(Operation):
    """The notes of a broker's answers are replaced."""

    name = "notes"
    _partition = TopicIdPartition(topic_id=uuid_of("noted"), topic="noted", partition=0)

    def prepare(self, root: Path) -> None:
        (root / "state").mkdir(parents=True)
        assert self._note(root, leader_id=1) == []

    def act(self, root: Path, watch: Watch) -> tuple[Outcome, Callable[[], list[str]] | None]:
        outcome = Outcome()
        with watch:
            outcome.told += self._note(root, leader_id=2)
        return outcome, None

    def start_again(self, root: Path) -> list[str]:
        before = self._leader(root)
        problems = [] if before in (1, 2) else [f"the noted leader is {before}"]
        problems += self._note(root, leader_id=2)
        if self._leader(root) != 2:
            problems.append(f"the noted leader is {self._leader(root)}, not 2")
        return problems

    def _answers(self, root: Path, warnings: list[str]) -> LastAnswers:
        answers = LastAnswers(LocalStore(root / "state"), 1)
        answers.load(warnings.append)
        return answers

    def _note(self, root: Path, leader_id: int) -> list[str]:
        warnings: list[str] = []
        try:
            answers = self._answers(root, warnings)
        except TierlogError as error:
            return [str(error)]
        answer = BrokerAnswer(
            leader_id=leader_id, leader_epoch=3, last_stable_offset=None, compacted=False
        )
        answers.complete(self._partition, answer, 3)
        answers.save(warnings.append)
        return warnings

    def _leader(self, root: Path) -> int | None:
        return self._answers(root, []).complete(self._partition, None, 3).leader_id


OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        ManagerOperation("copy", World.run, tiered=False),
        ManagerOperation("copy through drafts", World.run, tiered=False, drafts=True),
        ManagerOperation("copy more", _grow),
        ManagerOperation("expire", _expire, ready=lambda world: world.pass_time(LONG_MS)),
        ManagerOperation("delete a topic", _delete),
        ManagerOperation("cut", _cut),
        Restart("restart", World.run),
        LostIndexes("restore index files", World.run),
        Tier("tier"),
        Tier("tier with lost state", passes=1, lose_state=True),
        Tier("tier and expire", "--retention-bytes", "40000", "--allow-deletion", passes=1),
        TierOn("tier on", passes=1, lose_state=True),
        TierOn("tier on from nothing"),
        WriteNotes(),
    )
}

# Both ways to copy; none works in threads.
EPISODES: dict[str, Operation] = {
    one.name: one for one in (Episode(seed) for seed in (4, 5, 6, 7, 8, 9))
}
