"""Generates, starts, verifies, cancels and lists moves of partitions.

A move is started in this order: the lists of throttled replicas, the rates, the reassignment. So no
traffic is unthrottled, even after a crash between two of these steps. After such a crash,
`verify_moves` removes the settings, or another `start_moves` completes the remaining steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tierlog.admin import (
    AdminError,
    ClusterAdmin,
    OngoingReassignment,
    PartitionState,
    Replica,
    Resource,
    ResourceKind,
    SettingsChange,
)
from tierlog.clock import Clock, SystemClock
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import (
    ANY_LOG_DIR,
    Assignment,
    Placement,
    partition_name,
)
from tierlog.tools.reassign.facts import current_assignment, require_brokers, require_partitions
from tierlog.tools.reassign.spread import Racks, spread_as_kafka, spread_minimally
from tierlog.tools.reassign.throttles import (
    BROKER_RATES,
    DISK_RATE,
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    REPLICA_LISTS,
    merge_replicas,
    throttled_replicas,
)

__all__ = [
    "ClearedThrottles",
    "DirMove",
    "Generated",
    "MoveStatus",
    "PartitionStatus",
    "Started",
    "Status",
    "cancel_moves",
    "clear_throttles",
    "generate_moves",
    "read_current",
    "start_moves",
    "verify_moves",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The current and the proposed assignment of the chosen topics."""

    current: Assignment
    proposed: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The result of `start_moves`. The brokers ``unthrottled_broker_ids`` are down, so their rates
    could not be set."""

    current: Assignment
    target: Assignment
    throttled_broker_ids: tuple[int, ...] = ()
    unthrottled_broker_ids: tuple[int, ...] = ()
    dir_moves: tuple[DirMove, ...] = ()

    def new_replicas(self) -> dict[TopicPartition, tuple[int, ...]]:
        """Return the brokers that get a replica of each partition."""
        return {
            partition: tuple(
                one for one in placement.replicas if one not in self.current[partition].replicas
            )
            for partition, placement in self.target.items()
        }


class MoveStatus(StrEnum):
    """The state of a partition's move."""

    DONE = "done"
    MOVING = "moving"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The status of one partition's move, the present replicas of the partition and the planned
    replicas."""

    partition: TopicPartition
    status: MoveStatus
    replicas: tuple[int, ...]
    target: tuple[int, ...]

    def __str__(self) -> str:
        name = partition_name(self.partition)
        if self.status is MoveStatus.DONE:
            return f"Reassignment of partition {name} is completed."
        if self.status is MoveStatus.MOVING:
            return f"Reassignment of partition {name} is still in progress."
        if not self.replicas:
            return f"There is no partition {name}: its topic was deleted."
        return (
            f"There is no active reassignment of partition {name}, but replica set is "
            f"{_ids(self.replicas)} rather than {_ids(self.target)}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirMove:
    """The move of a replica to another log directory of its broker. ``found`` is the directory that
    has the replica now; None if no directory has it. ``moving_to`` is the directory to which the
    broker is copying it."""

    partition: TopicPartition
    broker_id: int
    log_dir: str
    found: str | None = None
    moving_to: str | None = None

    @property
    def status(self) -> MoveStatus:
        """The state of the move."""
        if self.moving_to == self.log_dir:
            return MoveStatus.MOVING
        is_there = self.found == self.log_dir and self.moving_to is None
        return MoveStatus.DONE if is_there else MoveStatus.FAILED

    def started_text(self) -> str:
        """Return the text that Kafka's tool prints when the move starts."""
        return (
            f"Successfully started moving log directory to {self.log_dir} for replica "
            f"{partition_name(self.partition)} with broker {self.broker_id}"
        )

    def __str__(self) -> str:
        name = partition_name(self.partition)
        if self.status is MoveStatus.MOVING:
            return f"Reassignment of replica {name}-{self.broker_id} is still in progress."
        if self.status is MoveStatus.DONE:
            return f"Reassignment of replica {name}-{self.broker_id} completed successfully."
        if self.moving_to is not None:
            return (
                f"Partition {name} on broker {self.broker_id} is being moved to log dir "
                f"{self.moving_to} instead of {self.log_dir}."
            )
        if self.found is None:
            return (
                f"Partition {name} cannot be found in any live log directory on broker "
                f"{self.broker_id}."
            )
        return (
            f"Partition {name} on broker {self.broker_id} is not being moved from log dir "
            f"{self.found} to {self.log_dir}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedThrottles:
    """The brokers and topics whose throttles were removed. The brokers ``unreachable_broker_ids``
    are down and keep their throttles."""

    broker_ids: tuple[int, ...]
    topics: tuple[str, ...]
    unreachable_broker_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of all moves of a plan.

    ``is_moving`` says whether any partition of the cluster moves. ``is_moving`` also counts
    partitions that are not in the plan. ``cleared`` is None if the throttles were kept, because
    moves still need the throttles or the caller preserves them.
    """

    partitions: tuple[PartitionStatus, ...]
    dir_moves: tuple[DirMove, ...]
    is_moving: bool
    cleared: ClearedThrottles | None

    @property
    def is_done(self) -> bool:
        """Whether every replica is on the broker and in the log directory that the plan names."""
        return all(status is MoveStatus.DONE for status in self.statuses())

    def statuses(self) -> Iterator[MoveStatus]:
        """Yield the status of each partition, then of each move between log directories."""
        yield from (one.status for one in self.partitions)
        yield from (one.status for one in self.dir_moves)


def generate_moves(
    admin: ClusterAdmin,
    topics: Collection[str],
    broker_ids: Collection[int],
    *,
    minimal: bool = True,
    rack_aware: bool = True,
    draw: Callable[[int], int],
) -> Generated:
    """Propose an assignment of `topics` to these brokers. It changes nothing.

    With ``minimal``, few replicas move (`spread_minimally`). Otherwise the proposal is Kafka's own
    spread, for which ``draw(n)`` returns a random number below n. Raises ConfigError for an unknown
    topic or broker.
    """
    live = admin.brokers()
    require_brokers(live, broker_ids)
    racks: Racks = {
        one.broker_id: one.rack if rack_aware else None
        for one in live
        if one.broker_id in broker_ids
    }
    states = admin.partitions(topics)
    for topic in topics:
        if all(one.topic != topic for one in states):
            raise ConfigError(f"topic {topic} does not exist in the cluster")
    replicas = {partition: state.replicas for partition, state in states.items()}
    if minimal:
        proposed = spread_minimally(replicas, racks)
    else:
        proposed = spread_as_kafka(replicas, racks, draw)
    return Generated(
        current=read_current(admin, states),
        proposed={partition: Placement(some) for partition, some in sorted(proposed.items())},
    )


def read_current(
    admin: ClusterAdmin, states: Mapping[TopicPartition, PartitionState]
) -> dict[TopicPartition, Placement]:
    """Return the current replicas of partitions, with their log directories; ``any`` on brokers
    that are down."""
    live = {one.broker_id for one in admin.brokers()}
    asked = live & {one for state in states.values() for one in state.replicas}
    return current_assignment(states, admin.replicas(states, asked))


def start_moves(
    admin: ClusterAdmin,
    target: Assignment,
    *,
    throttle_bytes_per_second: int | None = None,
    disk_throttle_bytes_per_second: int | None = None,
    additional: bool = False,
    same_replica_count: bool = False,
    preserve_throttles: bool = False,
    on_step: Callable[[str, Assignment], None] = lambda text, current: None,
) -> Started:
    """Move partitions to `target`, under throttles if they are given.

    ``additional`` allows moves to start while other partitions move. Partitions that already move
    to the same replicas continue under the new throttle. ``same_replica_count`` refuses to change
    the number of a partition's replicas. ``preserve_throttles`` keeps the throttled replicas and
    the rates that are already set. ``on_step`` receives each completed step, in the words of
    Kafka's tool. Raises ConfigError, before any change, for unknown partitions, brokers or log
    directories, and AdminError when the cluster refuses.
    """
    states = admin.partitions({one.topic for one in target})
    require_partitions(states, target)
    live = admin.brokers()
    require_brokers(live, (one for placement in target.values() for one in placement.replicas))
    wanted_dirs = _wanted_dirs(target)
    _require_log_dirs(admin, wanted_dirs)
    ongoing = admin.reassignments()
    if not additional:
        _require_no_other(ongoing, target)
    current = read_current(admin, {partition: states[partition] for partition in target})
    whole, origins = _with_ongoing(target, current, ongoing)
    if same_replica_count:
        _require_same_count(target, origins)
    on_step("", current)
    settings = _ChangedSettings(admin)
    throttled: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    if throttle_bytes_per_second is not None or disk_throttle_bytes_per_second is not None:
        on_step(_VERIFY_WARNING, current)
    if throttle_bytes_per_second is not None:
        throttled, down = _involved(whole, origins, {one.broker_id for one in live})
        _throttle_topics(settings, whole, origins, preserve_throttles)
        names = (LEADER_RATE, FOLLOWER_RATE)
        _set_rates(settings, throttled, names, throttle_bytes_per_second, preserve_throttles)
        text = f"The inter-broker throttle limit was set to {throttle_bytes_per_second} B/s"
        on_step(text, current)
    if disk_throttle_bytes_per_second is not None:
        on_brokers = sorted({broker_id for _, broker_id in wanted_dirs})
        limit = disk_throttle_bytes_per_second
        _set_rates(settings, on_brokers, (DISK_RATE,), limit, preserve_throttles)
        on_step(f"The replica-alter-dir throttle limit was set to {limit} B/s", current)
    _place_new_replicas(admin, wanted_dirs, current)
    _reassign(admin, target, settings)
    on_step(_successfully("started partition reassignment", target, " for "), current)
    moves = _move_dirs(admin, wanted_dirs, current)
    for one in moves:
        on_step(one.started_text(), current)
    return Started(
        current=current,
        target=target,
        throttled_broker_ids=throttled,
        unthrottled_broker_ids=down,
        dir_moves=moves,
    )


def _require_no_other(
    ongoing: Mapping[TopicPartition, OngoingReassignment], target: Assignment
) -> None:
    """Raise ConfigError when a partition already moves to replicas that `target` does not give
    it."""
    for partition, one in ongoing.items():
        if partition not in target or one.target != target[partition].replicas:
            raise ConfigError(
                "Cannot execute because there is an existing partition assignment.  Use "
                "--additional to override this and create a new partition assignment in addition "
                "to the existing one. The --additional flag can also be used to change the "
                "throttle by resubmitting the current reassignment."
            )


def _involved(
    target: Assignment, origins: Mapping[TopicPartition, tuple[int, ...]], live_ids: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the brokers of a move: first those that are live, then those that are down."""
    found = {one for some in origins.values() for one in some}
    found.update(one for placement in target.values() for one in placement.replicas)
    return tuple(sorted(found & live_ids)), tuple(sorted(found - live_ids))


def _require_same_count(
    target: Assignment, origins: Mapping[TopicPartition, tuple[int, ...]]
) -> None:
    for partition, placement in target.items():
        before, after = len(origins[partition]), len(placement.replicas)
        if before != after:
            raise ConfigError(
                f"{partition_name(partition)}: expected {before} replicas, as now, found {after} "
                "in the plan"
            )


# Time for which the metadata cache of a broker may be behind the controller.
_CACHE_MS = 5_000
_VERIFY_WARNING = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the "
    "throttle is removed."
)


def _with_ongoing(
    target: Assignment, current: Assignment, ongoing: Mapping[TopicPartition, OngoingReassignment]
) -> tuple[dict[TopicPartition, Placement], dict[TopicPartition, tuple[int, ...]]]:
    """Return the targets and the original replicas of the plan and of all other moves. The lists of
    throttled replicas are made from both."""
    whole = {partition: Placement(one.target) for partition, one in ongoing.items()} | dict(target)
    origins = {
        partition: ongoing[partition].origin
        if partition in ongoing
        else current[partition].replicas
        for partition in whole
    }
    return whole, origins


class _ChangedSettings:
    """Changes settings, and remembers the old values to restore them when no partition could be
    moved."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._before: dict[Resource, dict[str, str | None]] = {}

    def read(self, resources: Iterable[Resource]) -> dict[Resource, dict[str, str]]:
        return self._admin.settings(resources)

    def change(
        self, before: Mapping[Resource, Mapping[str, str]], changes: Iterable[SettingsChange]
    ) -> None:
        """Make the changes. ``before`` has the current settings of the changed resources."""
        changes = list(changes)
        for one in changes:
            old = self._before.setdefault(one.resource, {})
            for name in one.set:
                old.setdefault(name, before[one.resource].get(name))
        try:
            self._admin.change_settings(changes)
        except AdminError:
            self.undo()
            raise

    def undo(self) -> None:
        """Restore the settings from before the first change."""
        self._admin.change_settings(
            SettingsChange(
                resource=resource,
                set={name: value for name, value in old.items() if value is not None},
                remove=tuple(name for name, value in old.items() if value is None),
            )
            for resource, old in self._before.items()
        )


def _reassign(admin: ClusterAdmin, target: Assignment, settings: _ChangedSettings) -> None:
    """Start the moves. If no move could be started, also restore the settings that were changed."""
    try:
        refused = admin.reassign({partition: one.replicas for partition, one in target.items()})
    except AdminError:
        settings.undo()
        raise
    if not refused:
        return
    first = min(refused)
    text = (
        f"the cluster refuses to move {len(refused)} of {len(target)} partitions, among them "
        f"{partition_name(first)}: {refused[first]}"
    )
    if len(refused) == len(target):
        settings.undo()
        raise AdminError(f"{text}; nothing was changed")
    raise AdminError(
        f"{text}; the other partitions move, and the throttles stay set: run --verify or --cancel"
    )


def _throttle_topics(
    settings: _ChangedSettings,
    target: Assignment,
    origins: Mapping[TopicPartition, tuple[int, ...]],
    preserve: bool,
) -> None:
    lists = throttled_replicas(origins, target)
    resources = {topic: Resource(ResourceKind.TOPIC, topic) for topic in lists}
    before = settings.read(resources.values())
    changes = []
    for topic, throttle in lists.items():
        known = before[resources[topic]] if preserve else {}
        values = {
            LEADER_REPLICAS: merge_replicas(known.get(LEADER_REPLICAS), throttle.leader),
            FOLLOWER_REPLICAS: merge_replicas(known.get(FOLLOWER_REPLICAS), throttle.follower),
        }
        changes.append(SettingsChange(resource=resources[topic], set=values))
    settings.change(before, changes)


def _set_rates(
    settings: _ChangedSettings,
    broker_ids: Iterable[int],
    names: Iterable[str],
    bytes_per_second: int,
    preserve: bool,
) -> None:
    resources = [Resource(ResourceKind.BROKER, str(one)) for one in broker_ids]
    before = settings.read(resources)
    settings.change(
        before,
        (
            SettingsChange(
                resource=one,
                set={
                    name: str(bytes_per_second)
                    for name in names
                    if not (preserve and name in before[one])
                },
            )
            for one in resources
        ),
    )


def _wanted_dirs(target: Assignment) -> dict[tuple[TopicPartition, int], str]:
    return {
        (partition, one): placement.log_dir_of(one)
        for partition, placement in target.items()
        for one in placement.replicas
        if placement.log_dir_of(one) != ANY_LOG_DIR
    }


def _require_log_dirs(
    admin: ClusterAdmin, wanted: Mapping[tuple[TopicPartition, int], str]
) -> None:
    if not wanted:
        return
    known = admin.log_dirs({broker_id for _, broker_id in wanted})
    for (partition, broker_id), path in wanted.items():
        if path not in known[broker_id]:
            raise ConfigError(
                f"{partition_name(partition)}: broker {broker_id} has no log directory {path}; it "
                f"has {', '.join(known[broker_id])}"
            )


def _place_new_replicas(
    admin: ClusterAdmin,
    wanted: Mapping[tuple[TopicPartition, int], str],
    current: Assignment,
) -> None:
    """Tell brokers in which log directories to create the replicas that they do not have yet. A
    broker that has no such replica yet answers with an error, which is ignored here."""
    admin.move_log_dirs(
        {key: path for key, path in wanted.items() if key[1] not in current[key[0]].replicas}
    )


def _move_dirs(
    admin: ClusterAdmin,
    wanted: Mapping[tuple[TopicPartition, int], str],
    current: Assignment,
) -> tuple[DirMove, ...]:
    """Start the moves between log directories of one broker. Return every log directory of the plan
    as a move."""
    moves = {
        key: path
        for key, path in wanted.items()
        if key[1] in current[key[0]].replicas and current[key[0]].log_dir_of(key[1]) != path
    }
    refused = admin.move_log_dirs(moves) if moves else {}
    for (partition, broker_id), text in refused.items():
        raise AdminError(
            f"replica {partition_name(partition)} of broker {broker_id}: the broker refuses to "
            f"move it to {moves[partition, broker_id]}: {text}"
        )
    return tuple(
        DirMove(partition=partition, broker_id=broker_id, log_dir=path)
        for (partition, broker_id), path in sorted(wanted.items())
    )


def verify_moves(
    admin: ClusterAdmin,
    target: Assignment,
    *,
    preserve_throttles: bool = False,
    clock: Clock | None = None,
) -> Status:
    """Return the status of each move of `target`.

    When no partition of the cluster moves, the call also removes the throttles of all brokers and
    of the plan's topics, unless ``preserve_throttles`` is set.
    """
    ongoing = admin.reassignments()
    clock = clock or SystemClock()
    give_up_ms = clock.monotonic_ms() + _CACHE_MS
    while True:
        states = admin.partitions({one.topic for one in target})
        partitions = tuple(
            _partition_status(one, placed.replicas, ongoing.get(one), states.get(one))
            for one, placed in sorted(target.items())
        )
        if clock.monotonic_ms() >= give_up_ms or not any(map(_may_be_behind, partitions)):
            break
        clock.sleep(_CACHE_MS // 10)
    dir_moves = _dir_moves(admin, target)
    is_moving = bool(ongoing) or any(one.status is MoveStatus.MOVING for one in dir_moves)
    cleared = None
    if not is_moving and not preserve_throttles:
        cleared = clear_throttles(admin, target)
    return Status(partitions=partitions, dir_moves=dir_moves, is_moving=is_moving, cleared=cleared)


def _may_be_behind(one: PartitionStatus) -> bool:
    """Return whether the broker may still list old replicas that are gone. For a moment after a
    move, the metadata cache of the broker is behind the controller."""
    return one.status is MoveStatus.FAILED and set(one.target) < set(one.replicas)


def _partition_status(
    partition: TopicPartition,
    target: tuple[int, ...],
    ongoing: OngoingReassignment | None,
    state: PartitionState | None,
) -> PartitionStatus:
    replicas = () if state is None else state.replicas
    if ongoing is not None:
        status = MoveStatus.MOVING
    else:
        status = MoveStatus.DONE if replicas == target else MoveStatus.FAILED
    return PartitionStatus(partition=partition, status=status, replicas=replicas, target=target)


def _dir_moves(admin: ClusterAdmin, target: Assignment) -> tuple[DirMove, ...]:
    wanted = _wanted_dirs(target)
    live = {one.broker_id for one in admin.brokers()}
    found = admin.replicas(
        {partition for partition, _ in wanted}, live & {broker_id for _, broker_id in wanted}
    )
    present = _by_replica(found, is_future=False)
    future = _by_replica(found, is_future=True)
    return tuple(
        DirMove(
            partition=partition,
            broker_id=broker_id,
            log_dir=path,
            found=present.get((partition, broker_id)),
            moving_to=future.get((partition, broker_id)),
        )
        for (partition, broker_id), path in sorted(wanted.items())
    )


def _by_replica(
    replicas: Iterable[Replica], *, is_future: bool
) -> dict[tuple[TopicPartition, int], str]:
    return {
        (one.partition, one.broker_id): one.log_dir
        for one in replicas
        if one.is_future == is_future
    }


def clear_throttles(admin: ClusterAdmin, target: Assignment) -> ClearedThrottles:
    """Remove the rates of all brokers and the throttled replicas of the plan's topics."""
    live = tuple(one.broker_id for one in admin.brokers())
    admin.change_settings(
        SettingsChange(
            resource=Resource(ResourceKind.BROKER, str(one)), set={}, remove=BROKER_RATES
        )
        for one in live
    )
    known = {one.topic for one in admin.partitions({one.topic for one in target})}
    topics = tuple(sorted(known))
    admin.change_settings(
        SettingsChange(resource=Resource(ResourceKind.TOPIC, one), set={}, remove=REPLICA_LISTS)
        for one in topics
    )
    planned = {one for placement in target.values() for one in placement.replicas}
    return ClearedThrottles(
        broker_ids=live,
        topics=topics,
        unreachable_broker_ids=tuple(sorted(planned - set(live))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The partitions and the replicas whose moves were cancelled."""

    partitions: tuple[TopicPartition, ...]
    dir_moves: tuple[DirMove, ...]
    cleared: ClearedThrottles | None

    def lines(self) -> Iterable[str]:
        """Yield the lines of Kafka's tool."""
        if self.partitions:
            yield _successfully("cancelled partition reassignment", self.partitions, " for: ")
        else:
            yield "None of the specified partition reassignments are active."
        if self.dir_moves:
            names = ",".join(
                f"{partition_name(one.partition)}-{one.broker_id}" for one in self.dir_moves
            )
            yield f"Successfully cancelled partition movement for: {names}"
        else:
            yield "None of the specified partition moves are active."


def cancel_moves(
    admin: ClusterAdmin, target: Assignment, *, preserve_throttles: bool = False
) -> Cancelled:
    """Cancel the active moves of `target`. Also remove the throttles, unless ``preserve_throttles``
    is set or other partitions still move."""
    ongoing = admin.reassignments()
    partitions = tuple(one for one in sorted(target) if one in ongoing)
    refused = admin.reassign(dict.fromkeys(partitions))
    if refused:
        first = min(refused)
        raise AdminError(f"the cluster refuses to cancel {partition_name(first)}: {refused[first]}")
    moving = tuple(one for one in _dir_moves(admin, target) if one.moving_to is not None)
    admin.move_log_dirs(
        {(one.partition, one.broker_id): one.found for one in moving if one.found is not None}
    )
    others = ongoing.keys() - set(partitions)
    cleared = None if preserve_throttles or others else clear_throttles(admin, target)
    return Cancelled(partitions=partitions, dir_moves=moving, cleared=cleared)


def _successfully(what: str, partitions: Collection[TopicPartition], before: str) -> str:
    plural = "" if len(partitions) == 1 else "s"
    names = ",".join(partition_name(one) for one in sorted(partitions))
    return f"Successfully {what}{plural}{before}{names}"


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))
