"""``tierlog reassign``: its arguments and its actions."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tierlog.cli.support import (
    EXIT_INTERRUPTED,
    EXIT_PROBLEMS,
    Parsed,
    cluster_timeout_option,
    echo,
    format_option,
    hint,
    interval_value,
    report_file,
    size_value,
)
from tierlog.errors import ConfigError

if TYPE_CHECKING:
    from tierlog.admin import ClusterAdmin
    from tierlog.log.checkpoint import TopicPartition
    from tierlog.tools.reassign.assignment import Assignment, Placement
    from tierlog.tools.reassign.estimate import Estimate
    from tierlog.tools.reassign.moves import ClearedThrottles
    from tierlog.tools.reassign.watch import MoveProgress

__all__ = ["reassign"]

_ACTIONS = ("generate", "execute", "verify", "cancel", "list", "watch")


def _names(text: str) -> list[str]:
    names = [one.strip() for one in text.split(",")]
    if not all(names):
        raise ValueError(f"expected names separated by commas, found {text!r}")
    return names


def _broker_ids(text: str) -> list[int]:
    ids = [int(one) if one.isascii() and one.isdigit() else -1 for one in _names(text)]
    if min(ids) < 0 or len(set(ids)) < len(ids):
        raise ValueError(f"expected different broker ids separated by commas, found {text!r}")
    return ids


@click.command()
@click.option("--bootstrap", "--bootstrap-server", required=True, metavar="HOST:PORT[,...]")
@click.option("--generate", is_flag=True, help="Propose an assignment; change nothing.")
@click.option("--execute", is_flag=True, help="Start the moves of --reassignment.")
@click.option(
    "--verify", is_flag=True, help="Show each move; clear throttles when no move is active."
)
@click.option("--cancel", is_flag=True, help="Cancel the active moves of --reassignment.")
@click.option("--list", "list_", is_flag=True, help="List all partitions that are moving.")
@click.option("--watch", is_flag=True, help="Follow the moves until they end.")
@click.option("--topics", type=Parsed("topics", _names), metavar="NAME,...", help="For --generate.")
@click.option(
    "--topics-to-move-json-file", metavar="FILE", help="For --generate: the topics as Kafka's JSON."
)
@click.option(
    "--brokers",
    "--broker-list",
    "broker_ids",
    type=Parsed("brokers", _broker_ids),
    metavar="ID,...",
    help="For --generate: the brokers that have the topics after the move.",
)
@click.option(
    "--minimal/--kafka",
    default=True,
    help="For --generate: move as little as possible, or use Kafka's own spread.  "
    "[default: minimal]",
)
@click.option("--disable-rack-aware", is_flag=True, help="For --generate: ignore racks.")
@click.option("--output", metavar="FILE", help="For --generate: write the proposal to this file.")
@click.option(
    "--reassignment",
    "--reassignment-json-file",
    "plan_path",
    metavar="FILE",
    help="The assignment, as Kafka's JSON.",
)
@click.option(
    "--throttle",
    "--replication-quota",
    "throttle",
    type=Parsed("size", size_value),
    metavar="BYTES",
    help="For --execute: maximum bytes per second that each broker sends and receives for the "
    "moves: 10485760, 10M or 10MiB. None by default.",
)
@click.option(
    "--disk-throttle",
    "--replica-alter-log-dirs-throttle",
    "disk_throttle",
    type=Parsed("size", size_value),
    metavar="BYTES",
    help="For --execute: maximum bytes per second for moves between log directories of a broker.",
)
@click.option(
    "--additional", is_flag=True, help="For --execute: start even while other moves are active."
)
@click.option(
    "--disallow-replication-factor-change",
    "same_replica_count",
    is_flag=True,
    help="For --execute: refuse a plan that changes the number of replicas.",
)
@click.option("--preserve-throttles", is_flag=True, help="Keep throttles that are already set.")
@click.option(
    "--network",
    type=Parsed("size", size_value),
    metavar="BYTES",
    help="For --execute: bytes per second of each broker's network, to check the throttle against.",
)
@click.option("--force", is_flag=True, help="For --execute: start even if the throttle is too low.")
@click.option("--wait", is_flag=True, help="For --execute: watch the moves, and verify at the end.")
@click.option(
    "--sample",
    "sample_ms",
    type=Parsed("seconds", interval_value),
    default="3",
    metavar="SECONDS",
    help="Time to measure the rate of the producers before an estimate.  [default: 3]",
)
@click.option(
    "--interval",
    "interval_ms",
    type=Parsed("seconds", interval_value),
    default="1",
    metavar="SECONDS",
    help="Time between two measurements of --watch.  [default: 1]",
)
@click.option("--html", "html_path", metavar="FILE", help="For --watch: write a page with plots.")
@cluster_timeout_option
@format_option("text", "json")
def reassign(**given: Any) -> int:
    """Move partitions between brokers under KIP-73's throttle.

    \b
    tierlog reassign --bootstrap HOST:PORT --generate --topics orders --brokers 2,3 --output FILE
    tierlog reassign --bootstrap HOST:PORT --execute --reassignment FILE --throttle 20MiB --wait
    tierlog reassign --bootstrap HOST:PORT --verify --reassignment FILE

    Flags, output and files are the same as those of Kafka's own tool. Estimates go to stderr.
    """
    given["list"] = given.pop("list_")
    chosen = [one for one in _ACTIONS if given[one]]
    if len(chosen) != 1:
        raise click.UsageError(f"expected one of {', '.join(f'--{one}' for one in _ACTIONS)}")
    _check_flags(chosen[0], given)
    from tierlog.admin import ClusterAdmin

    with ClusterAdmin(given["bootstrap"], timeout_s=given["timeout_ms"] / 1000) as admin:
        return _RUN[chosen[0]](admin, given)


_ONLY = {
    "topics": ("generate",),
    "topics_to_move_json_file": ("generate",),
    "broker_ids": ("generate",),
    "disable_rack_aware": ("generate",),
    "output": ("generate",),
    "throttle": ("execute",),
    "disk_throttle": ("execute",),
    "additional": ("execute",),
    "same_replica_count": ("execute",),
    "network": ("execute",),
    "force": ("execute",),
    "wait": ("execute",),
    "preserve_throttles": ("execute", "verify", "cancel"),
    "html_path": ("watch", "execute"),
    "plan_path": ("execute", "verify", "cancel", "watch"),
}
_FLAGS = {
    "broker_ids": "brokers",
    "plan_path": "reassignment",
    "html_path": "html",
    "same_replica_count": "disallow-replication-factor-change",
}


def _check_flags(action: str, given: dict[str, Any]) -> None:
    for name, actions in _ONLY.items():
        if given[name] and action not in actions:
            flag = _FLAGS.get(name, name).replace("_", "-")
            valid = " and ".join(f"--{one}" for one in actions)
            raise click.UsageError(f"--{flag} is valid only with {valid}")
    if action in ("execute", "verify", "cancel") and not given["plan_path"]:
        raise click.UsageError(f"--{action} needs --reassignment FILE")
    if action == "generate":
        if bool(given["topics"]) == bool(given["topics_to_move_json_file"]):
            raise click.UsageError("--generate needs --topics or --topics-to-move-json-file")
        if not given["broker_ids"]:
            raise click.UsageError("--generate needs --brokers")


def _generate(admin: ClusterAdmin, given: dict[str, Any]) -> int:
    from tierlog.clock import SystemClock
    from tierlog.tools.reassign.assignment import format_assignment, parse_topics, read_json
    from tierlog.tools.reassign.estimate import estimate_move
    from tierlog.tools.reassign.facts import measure_cluster
    from tierlog.tools.reassign.moves import generate_moves

    path = given["topics_to_move_json_file"]
    topics = parse_topics(read_json(path), path) if path else given["topics"]
    generated = generate_moves(
        admin,
        topics,
        given["broker_ids"],
        minimal=given["minimal"],
        rack_aware=not given["disable_rack_aware"],
        draw=secrets.randbelow,
    )
    facts = measure_cluster(admin, SystemClock(), sample_ms=0)
    estimate = estimate_move(facts, generated.proposed)
    current, proposed = map(format_assignment, (generated.current, generated.proposed))
    if given["shown"] == "json":
        echo(f'{{"current": {current},\n "proposed": {proposed},\n "estimate": {_json(estimate)}}}')
    else:
        echo(f"Current partition replica assignment\n{current}\n")
        echo(f"Proposed partition reassignment configuration\n{proposed}")
        _hint_at(estimate)
    if given["output"]:
        with report_file(given["output"]) as file:
            file.write(f"{proposed}\n")
    return 0


def _execute(admin: ClusterAdmin, given: dict[str, Any]) -> int:
    from tierlog.tools.reassign.assignment import format_assignment
    from tierlog.tools.reassign.moves import start_moves

    target = _plan(given)
    _refuse_endless(admin, target, given)
    is_text = given["shown"] == "text"

    def tell(text: str, current: Assignment) -> None:
        if text and is_text:
            echo(text)
        elif is_text:
            echo(f"Current partition replica assignment\n\n{format_assignment(current)}\n")
            echo("Save this to use as the --reassignment-json-file option during rollback")

    started = start_moves(
        admin,
        target,
        throttle_bytes_per_second=given["throttle"],
        disk_throttle_bytes_per_second=given["disk_throttle"],
        additional=given["additional"],
        same_replica_count=given["same_replica_count"],
        preserve_throttles=given["preserve_throttles"],
        on_step=tell,
    )
    for one in started.unthrottled_broker_ids:
        hint(f"broker {one} is down: its throttle was not set")
    if not is_text:
        before = format_assignment(started.current)
        echo(f'{{"current": {before},\n "target": {format_assignment(started.target)}}}')
    if not given["wait"]:
        return 0
    return _follow(admin, given, started.new_replicas()) or _verify(admin, given)


def _refuse_endless(admin: ClusterAdmin, target: Assignment, given: dict[str, Any]) -> None:
    """Show the estimate. Raises ConfigError when the move never ends under its throttle."""
    from tierlog.clock import SystemClock
    from tierlog.tools.reassign.estimate import check_throttle, estimate_move
    from tierlog.tools.reassign.facts import measure_cluster, require_partitions

    throttle = given["throttle"]
    sample_ms = 0 if throttle is None else given["sample_ms"]
    facts = measure_cluster(admin, SystemClock(), sample_ms=sample_ms)
    require_partitions(facts.partitions, target)
    estimate = estimate_move(facts, target, throttle)
    _hint_at(estimate)
    never, doubts = check_throttle(facts, estimate, given["network"])
    for text in doubts:
        hint(f"warning: {text}")
    for text in never:
        hint(text)
    if never and not given["force"]:
        raise ConfigError(
            f"the move never ends under a throttle of {throttle} B/s: nothing was changed; give "
            "a higher --throttle, or --force"
        )


def _verify(admin: ClusterAdmin, given: dict[str, Any]) -> int:
    from tierlog.tools.reassign.moves import MoveStatus, verify_moves

    status = verify_moves(admin, _plan(given), preserve_throttles=given["preserve_throttles"])
    if given["shown"] == "json":
        echo(_json(status))
    else:
        echo("Status of partition reassignment:")
        for one in (*status.partitions, *status.dir_moves):
            echo(str(one))
        echo("")
        _tell_cleared(status.cleared)
    return EXIT_PROBLEMS if MoveStatus.FAILED in status.statuses() else 0


def _cancel(admin: ClusterAdmin, given: dict[str, Any]) -> int:
    from tierlog.tools.reassign.moves import cancel_moves

    cancelled = cancel_moves(admin, _plan(given), preserve_throttles=given["preserve_throttles"])
    if given["shown"] == "json":
        echo(_json(cancelled))
        return 0
    for line in cancelled.lines():
        echo(line)
    _tell_cleared(cancelled.cleared)
    return 0


def _tell_cleared(cleared: ClearedThrottles | None) -> None:
    from tierlog.tools.reassign.report import cleared_text

    if cleared is not None:
        for line in cleared_text(cleared):
            echo(line)


def _list(admin: ClusterAdmin, given: dict[str, Any]) -> int:
    from tierlog.tools.reassign.assignment import partition_name

    ongoing = admin.reassignments()
    if given["shown"] == "json":
        echo(_json([{"partition": one, **asdict(move)} for one, move in sorted(ongoing.items())]))
        return 0
    if not ongoing:
        echo("No partition reassignments found.")
        return 0
    echo("Current partition reassignments:")
    for partition, move in sorted(ongoing.items()):
        parts = [f"replicas: {_ids(move.replicas)}."]
        parts += [f"adding: {_ids(move.adding)}."] if move.adding else []
        parts += [f"removing: {_ids(move.removing)}."] if move.removing else []
        echo(f"{partition_name(partition)}: {' '.join(parts)}")
    return 0


def _watch(admin: ClusterAdmin, given: dict[str, Any]) -> int:
    return _follow(admin, given, dict.fromkeys(_plan(given), ()) if given["plan_path"] else None)


def _follow(
    admin: ClusterAdmin,
    given: dict[str, Any],
    adding: dict[TopicPartition, tuple[int, ...]] | None,
) -> int:
    from tierlog.clock import SystemClock
    from tierlog.tools.reassign.report import report_html
    from tierlog.tools.reassign.screen import watch_on
    from tierlog.tools.reassign.watch import MoveWatch

    clock = SystemClock()
    watch = MoveWatch(admin, clock, adding)
    samples: list[MoveProgress] = []
    as_json = given["shown"] == "json"
    code = 0
    try:
        with watch_on(sys.stderr if as_json else sys.stdout) as show:
            while True:
                samples.append(watch.measure())
                if as_json:
                    echo(_json(samples[-1]))
                else:
                    show(samples[-1])
                if samples[-1].is_done:
                    break
                clock.sleep(given["interval_ms"])
    except KeyboardInterrupt:
        hint(
            "interrupted: the moves go on, and their throttle stays until tierlog reassign "
            "--verify finds them done"
        )
        code = EXIT_INTERRUPTED
    if given["html_path"] and samples:
        with report_file(given["html_path"]) as file:
            file.write(report_html(samples))
    return code


def _hint_at(estimate: Estimate) -> None:
    from tierlog.tools.reassign.report import estimate_text

    for line in estimate_text(estimate):
        hint(line)


def _plan(given: dict[str, Any]) -> dict[TopicPartition, Placement]:
    from tierlog.tools.reassign.assignment import parse_assignment, read_json

    path = given["plan_path"]
    return parse_assignment(read_json(path), path)


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))


def _json(value: Any) -> str:
    import json

    from tierlog.tools.reassign.report import plain_value

    return json.dumps(plain_value(value))


_RUN = {
    "generate": _generate,
    "execute": _execute,
    "verify": _verify,
    "cancel": _cancel,
    "list": _list,
    "watch": _watch,
}
