"""``tierlog reassign`` on three real brokers, beside Kafka's own tool."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import KafkaBroker, wait_until
from tests.kafka_tools.clusters import Cluster, three_brokers
from tests.reassign.running import (
    BATCH_BYTES,
    Placed,
    Ran,
    create_topics,
    is_clear,
    lines,
    move_back,
    remove_topics,
    run_tierlog,
    throttles,
    wait_for_line,
    write_plan,
)
from tests.reassign.writer import writing
from tierlog.admin import AdminError, ClusterAdmin, Resource, ResourceKind, SettingsChange
from tierlog.clock import ManualClock
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import Assignment, Placement
from tierlog.tools.reassign.moves import start_moves
from tierlog.tools.reassign.throttles import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from tierlog.tools.reassign.watch import STUCK_MS, MoveWatch

# The client library leaves a socket of each refused connection to the garbage collector.
pytestmark = pytest.mark.integration

# A response holds one batch, so that a low throttle stops a move after it.
SLOW = {"replica.fetch.response.max.bytes": 20_000, "replica.fetch.max.bytes": 20_000}
STUCK = 2_000
"""A throttle in B/s under which a batch moves in ten seconds."""
BATCHES = 40
"""More than can move under it while a test runs on a busy machine."""


AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    racks = {1: "a", 2: "b", 3: "c"}
    properties = {n: {"broker.rack": rack, **SLOW} for n, rack in racks.items()}
    with three_brokers(root, properties, log_dirs={3: 2}) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[ClusterAdmin]:
    with ClusterAdmin(cluster.bootstrap) as client:
        yield client


@pytest.fixture
def tierlog(cluster: Cluster) -> Callable[..., Ran]:
    return partial(run_tierlog, "reassign", "--bootstrap", cluster.bootstrap)


@pytest.fixture
def topics(cluster: Cluster, admin: ClusterAdmin) -> Iterator[Callable[..., None]]:
    """Creates topics with many batches in each partition; ends all moves and deletes them."""
    made: set[str] = set()

    def create(placed: Placed, batches: int = BATCHES) -> None:
        made.update(placed)
        create_topics(cluster.bootstrap, placed, batches)

    yield create
    remove_topics(cluster.bootstrap, admin, made)


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Writes a plan; the flag and its file."""
    return partial(write_plan, tmp_path / "plan.json")


def test_a_plan_does_what_kafkas_tool_does(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    """Lines, settings and assignments, field for field: moves, changes of order, a partition that
    stays, a topic that only changes its order, a new replica in a chosen log directory."""
    disk = str(cluster.log_dirs[3][1])
    before: Placed = {"foo": {0: [1, 2], 1: [2, 1], 2: [1, 2]}, "bar": {0: [1]}, "baz": {0: [1, 2]}}
    topics(before)
    file = plan(
        {"foo": {0: [3, 2], 1: [1, 2], 2: [1, 2]}, "bar": {0: [3]}, "baz": {0: [2, 1]}},
        {"bar": [disk]},
    )
    limits = ("--throttle", str(STUCK), "--replica-alter-log-dirs-throttle", "5000")
    seen: dict[str, list[Any]] = {}
    tools: dict[str, Callable[..., str]] = {
        "kafka": cluster.reassign,
        "tierlog": lambda *args: tierlog(*args).out,
    }
    names = ("foo", "bar", "baz")
    for who, tool in tools.items():
        started = lines(tool("--execute", *file, *limits))
        listed = lines(tool("--list"))
        # Brokers may create a replica in the other directory first.
        verified = lines(wait_for_line(tool, "replica bar-0-3 completed", file))
        state = (throttles(admin, *names), admin.reassignments(), admin.partitions(names))
        cancelled = lines(tool("--cancel", *file))
        assert is_clear(admin, *names)
        wait_until(
            lambda: not admin.replicas([TopicPartition("bar", 0)], [3]), 60, what="no replica left"
        )
        # Kafka's tool takes a replica that was cancelled for one on a disk that is offline, and
        # keeps the throttles for it.
        verified_after = [line for line in lines(tool("--verify", *file)) if "eassign" in line]
        after = verified_after, lines(tool("--list"))
        again = lines(tool("--cancel", *file))
        seen[who] = [started, listed, verified, state, cancelled, after, again]
        # A changed order is not cancelled, and cancelling a move changes the order, too.
        move_back(admin, before)
    for ours, kafkas in zip(seen["tierlog"], seen["kafka"], strict=True):
        assert ours == kafkas


def test_what_generate_proposes_is_what_kafkas_tool_reads(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    tierlog: Callable[..., Ran],
    tmp_path: Path,
) -> None:
    topics({"foo": {0: [1, 2], 1: [2, 1]}, "bar": {0: [1, 2], 1: [3, 2]}})
    wanted = tmp_path / "topics.json"
    wanted.write_text('{"version":1,"topics":[{"topic":"foo"},{"topic":"bar"}]}')
    kafkas = cluster.reassign(
        "--generate", "--topics-to-move-json-file", str(wanted), "--broker-list", "2,3"
    )
    path = tmp_path / "proposed.json"
    ran = tierlog("--generate", "--topics", "foo,bar", "--brokers", "2,3", "--output", str(path))
    assert lines(ran.out)[:3] == lines(kafkas)[:3], "the same present assignment and heads"
    assert path.read_text() == f"{lines(ran.out)[3]}\n"
    # Three partitions have a replica on broker 1; the other stays as it is.
    assert "MoveRatio 0.750: 3 of 4 partitions move" in ran.err
    proposed = json.loads(lines(ran.out)[3])["partitions"]
    assert [one["replicas"] for one in proposed] == [[3, 2], [3, 2], [3, 2], [2, 3]]
    document = json.loads(
        tierlog(
            "--generate", "--kafka", "--topics", "foo", "--brokers", "2,3", "--format", "json"
        ).out
    )
    assert {tuple(sorted(one["replicas"])) for one in document["proposed"]["partitions"]} == {
        (2, 3)
    }
    cluster.reassign("--execute", "--reassignment-json-file", str(path))
    ran = tierlog("--watch", "--reassignment", str(path), "--interval", "0.1")
    assert ran.code == 0
    assert tierlog("--verify", "--reassignment", str(path)).code == 0
    assert {state.replicas for state in admin.partitions(["foo", "bar"]).values()} == {
        (3, 2),
        (2, 3),
    }


def test_a_move_waits_reports_and_leaves_no_throttle(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
    tmp_path: Path,
) -> None:
    topics({"foo": {0: [1, 2], 1: [1, 2]}}, batches=4)
    page = tmp_path / "page.html"
    ran = tierlog(
        *("--execute", *plan({"foo": {0: [3, 2], 1: [1, 3]}}), "--throttle", "50K", "--wait"),
        *("--sample", "0.2", "--interval", "0.1", "--html", str(page)),
    )
    assert ran.code == 0
    assert "Reassignment of partition foo-1 is completed." in ran.out
    assert "Clearing topic-level throttles on topic foo" in ran.out
    assert re.search(r"0 moving, 2 done: 156\.\d KiB of 156\.\d KiB \(100 %\)", ran.out)
    assert "Every partition moved" in page.read_text()
    assert page.read_text().count("<polyline") >= 3
    assert is_clear(admin, "foo")
    for number, (new, old) in enumerate([(3, 2), (3, 1)]):
        copies = [
            (log_dir / f"foo-{number}" / f"{0:020}.log").read_bytes()
            for broker in (new, old)
            for log_dir in cluster.log_dirs[broker]
            if (log_dir / f"foo-{number}").is_dir()
        ]
        assert len(copies) == 2
        assert copies[0] == copies[1] != b""


def test_watch_follows_a_move_and_says_when_it_is_stuck(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [1, 2]}})
    file = plan({"foo": {0: [1, 3]}})
    assert tierlog("--execute", *file, "--throttle", str(STUCK), "--sample", "0").code == 0
    clock = ManualClock()
    watch = MoveWatch(admin, clock)
    first = watch.measure()
    assert (first.partitions_moving, first.move_bytes) == (1, BATCHES * BATCH_BYTES)
    wait_until(lambda: watch.measure().moved_bytes > 0, 60, what="the first batch")
    clock.advance(STUCK_MS)
    stuck = watch.measure()
    assert not stuck.is_lag_falling
    assert 0 < stuck.sum_replica_lag_bytes < BATCHES * BATCH_BYTES
    assert stuck.suggested_throttle == 2 * STUCK
    leader, follower = stuck.brokers
    assert (leader.broker_id, leader.leader_throttle_bytes_per_second) == (1, STUCK)
    assert (follower.broker_id, follower.replica_lag_bytes) == (3, stuck.sum_replica_lag_bytes)
    assert stuck.seconds_left_estimated == (stuck.move_bytes - stuck.moved_bytes) / STUCK
    # The same plan with another throttle changes it in flight.
    assert tierlog("--execute", *file, "--throttle", "10M", "--sample", "0").code == 0
    wait_until(lambda: watch.measure().is_done, 60, what="the move to end")
    done = watch.measure()
    assert (done.partitions_done, done.moved_bytes) == (1, done.move_bytes)
    ran = tierlog("--watch", "--format", "json")
    assert json.loads(ran.out)["partitions_moving"] == 0


def test_a_move_under_way_is_not_disturbed(
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [1, 2]}, "bar": {0: [1, 2]}})
    assert tierlog("--execute", *plan({"foo": {0: [1, 3]}}), "--throttle", str(STUCK)).code == 0
    before = throttles(admin, "foo", "bar")
    other = plan({"bar": {0: [2, 3]}})
    refused = tierlog("--execute", *other, "--throttle", "2000")
    assert refused.code == 2
    assert "Use --additional to override" in refused.err
    assert throttles(admin, "foo", "bar") == before
    assert tierlog("--execute", *other, "--throttle", str(STUCK), "--additional").code == 0
    wait_until(lambda: "topic bar" in throttles(admin, "bar"), 60, what="lists of bar")
    assert throttles(admin, "foo", "bar")["topic foo"] == before["topic foo"]
    # Throttles stay while anything moves, also when the plan's own move has ended.
    cancelled = tierlog("--cancel", *other)
    assert "Successfully cancelled partition reassignment for: bar-0" in cancelled.out.replace(
        "reassignments for", "reassignment for"
    )
    assert "Clearing" not in cancelled.out
    assert "Clearing" not in tierlog("--verify", *other).out
    assert throttles(admin, "foo")["broker 1"] == before["broker 1"]


def test_throttles_of_others_are_preserved_on_request(
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [1, 2], 1: [2, 1]}})
    admin.change_settings(
        [
            SettingsChange(resource=Resource(ResourceKind.BROKER, "1"), set={LEADER_RATE: "777"}),
            SettingsChange(
                resource=Resource(ResourceKind.TOPIC, "foo"), set={LEADER_REPLICAS: "1:2"}
            ),
        ]
    )
    wait_until(lambda: len(throttles(admin, "foo")) == 2, 60, what="settings")
    file = plan({"foo": {0: [1, 3]}})
    preserve = "--preserve-throttles"
    assert (
        tierlog("--execute", *file, "--throttle", str(STUCK), "--sample", "0", preserve).code == 0
    )
    wait_until(lambda: len(throttles(admin, "foo")) == 4, 60, what="more settings")
    found = throttles(admin, "foo")
    assert found["broker 1"] == {LEADER_RATE: "777", FOLLOWER_RATE: str(STUCK)}
    assert found["topic foo"] == {LEADER_REPLICAS: "0:1,0:2,1:2", FOLLOWER_REPLICAS: "0:3"}
    assert tierlog("--cancel", *file, preserve).code == 0
    assert "Clearing" not in tierlog("--verify", *file, preserve).out
    assert throttles(admin, "foo") == found


class CrashError(Exception):
    """Ends a command between two steps."""


@pytest.mark.parametrize("last_step", ["inter-broker throttle", "started partition reassignment"])
def test_a_crash_between_two_steps_is_completed_or_cleared(
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
    last_step: str,
) -> None:
    topics({"foo": {0: [1, 2]}})
    target = {TopicPartition("foo", 0): Placement((1, 3))}

    def crash(text: str, _: Assignment) -> None:
        if last_step in text:
            raise CrashError

    with pytest.raises(CrashError):
        start_moves(admin, target, throttle_bytes_per_second=STUCK, on_step=crash)
    wait_until(lambda: len(throttles(admin, "foo")) == 4, 60, what="throttles")
    file = plan({"foo": {0: [1, 3]}})
    if not admin.reassignments():
        # Nothing moves, so --verify clears what was set.
        assert tierlog("--verify", *file).code == 1
        assert is_clear(admin, "foo")
    args = (*file, "--throttle", "10M", "--sample", "0", "--wait", "--interval", "0.1")
    assert tierlog("--execute", *args).code == 0
    assert admin.partitions(["foo"])[TopicPartition("foo", 0)].replicas == (1, 3)
    assert is_clear(admin, "foo")


def test_ctrl_c_leaves_move_and_throttle_and_says_so(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
    tmp_path: Path,
) -> None:
    topics({"foo": {0: [1, 2]}})
    file = plan({"foo": {0: [1, 3]}})
    assert tierlog("--execute", *file, "--throttle", str(STUCK), "--sample", "0").code == 0
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "tierlog", "reassign", "--bootstrap", cluster.bootstrap]
    command += ["--watch", "--format", "json", "--interval", "0.1", "--html", str(page)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert first["partitions_moving"] == 1
    assert process.returncode == 130
    assert err == (
        "interrupted: the moves go on, and their throttle stays until tierlog reassign --verify "
        "finds them done\n"
    )
    assert "The move goes on" in page.read_text()
    assert list(admin.reassignments()) == [TopicPartition("foo", 0)]
    assert throttles(admin)["broker 1"] == {LEADER_RATE: str(STUCK), FOLLOWER_RATE: str(STUCK)}


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ({"foo": {0: [1, 9]}}, "broker 9 is unknown or down; live brokers: 1, 2, 3"),
        ({"nosuch": {0: [1]}}, "nosuch-0: no such topic in the cluster"),
        ({"foo": {7: [1, 2]}}, "foo-7: no such partition in the cluster"),
        ({"foo": {0: [3, 3]}}, "broker 3 occurs twice"),
    ],
)
def test_a_bad_plan_changes_nothing(
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
    placed: Placed,
    message: str,
) -> None:
    topics({"foo": {0: [1, 2]}})
    ran = tierlog("--execute", *plan(placed), "--throttle", "1M", "--sample", "0")
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") < 8
    assert "Successfully" not in ran.out
    assert throttles(admin, "foo") == {}
    assert admin.reassignments() == {}


def test_the_number_of_replicas_may_be_kept(
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [1, 2]}})
    file = plan({"foo": {0: [1, 2, 3]}})
    ran = tierlog("--execute", *file, "--disallow-replication-factor-change")
    assert ran.code == 2
    assert "foo-0: expected 2 replicas, as now, found 3 in the plan" in ran.err
    assert admin.reassignments() == {}
    assert tierlog("--execute", *file).code == 0
    assert tierlog("--watch", *file, "--interval", "0.1").code == 0
    assert admin.partitions(["foo"])[TopicPartition("foo", 0)].replicas == (1, 2, 3)


def test_an_unknown_log_directory_changes_nothing(
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [1, 2]}})
    file = plan({"foo": {0: [1, 3]}}, {"foo": ["any", "/no/disk"]})
    ran = tierlog("--execute", *file, "--throttle", "1M", "--sample", "0")
    assert ran.code == 2
    assert "broker 3 has no log directory /no/disk; it has " in ran.err
    assert throttles(admin, "foo") == {}


def test_a_throttle_that_never_ends_is_refused(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [1, 2]}})
    file = plan({"foo": {0: [1, 3]}})
    with writing(cluster, "foo", partitions=1, bytes_per_second=200_000):
        ran = tierlog("--execute", *file, "--throttle", "100K", "--sample", "1.5")
        assert ran.code == 2
        assert "the move never ends under a throttle of 102400 B/s: nothing was changed" in ran.err
        assert throttles(admin, "foo") == {}
        forced = tierlog(
            "--execute", *file, "--throttle", "100K", "--sample", "1.5", "--force", "--network", "1"
        )
    assert forced.code == 0
    assert "KIP-73 wants T < N - IN/R" in forced.err
    assert TopicPartition("foo", 0) in admin.reassignments()


def test_replicas_move_between_log_directories(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [3, 1]}})
    (now,) = (
        one.log_dir for one in admin.replicas([TopicPartition("foo", 0)], [3]) if not one.is_future
    )
    (other,) = (str(path) for path in cluster.log_dirs[3] if str(path) != now)
    file = plan({"foo": {0: [3, 1]}}, {"foo": [other, "any"]})
    ran = tierlog("--execute", *file, "--disk-throttle", "1G")
    assert ran.code == 0
    assert "The replica-alter-dir throttle limit was set to 1073741824 B/s" in ran.out
    wait_until(
        lambda: "replica foo-0-3 completed" in tierlog("--verify", *file).out, 60, what="the move"
    )
    assert (Path(other) / "foo-0").is_dir()
    assert is_clear(admin, "foo")


def test_a_topic_deleted_while_it_moves(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    from kafka.admin import KafkaAdminClient

    topics({"foo": {0: [1, 2]}})
    file = plan({"foo": {0: [1, 3]}})
    assert tierlog("--execute", *file, "--throttle", str(STUCK), "--sample", "0").code == 0
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    client.delete_topics(["foo"])
    client.close()
    wait_until(lambda: not admin.partitions(["foo"]), 60, what="the deletion")
    assert tierlog("--watch", *file).code == 0
    ran = tierlog("--verify", *file)
    assert ran.code == 1
    assert "There is no partition foo-0: its topic was deleted." in ran.out
    assert is_clear(admin)


def test_the_leader_dies_while_its_partition_moves(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    """The move goes on from the other replica, and its origin, a broker that is down, is no
    obstacle to a second one; its throttle is named, and removed when it is back."""
    topics({"foo": {0: [2, 1]}})
    file = plan({"foo": {0: [3, 1]}})
    assert tierlog("--execute", *file, "--throttle", str(STUCK), "--sample", "0").code == 0
    cluster.brokers[2].kill()
    try:
        wait_until(
            lambda: [one.broker_id for one in admin.brokers()] == [1, 3], 60, what="broker 2 gone"
        )
        ran = tierlog("--execute", *file, "--throttle", "10M", "--sample", "0")
        assert ran.code == 0, ran.err
        assert "broker 2 is down: its throttle was not set" in ran.err
        assert tierlog("--watch", *file, "--interval", "0.2").code == 0
        down = tierlog("--execute", *plan({"foo": {0: [2, 1]}}), "--throttle", "1M")
        assert down.code == 2
        assert "broker 2 is unknown or down; live brokers: 1, 3" in down.err
    finally:
        cluster.brokers[2].start()
    wait_until(lambda: len(admin.brokers()) == 3, 60, what="broker 2 back")
    assert tierlog("--verify", *plan({"foo": {0: [3, 1]}})).code == 0
    assert is_clear(admin, "foo")


def test_no_broker_answers() -> None:
    """In a process of its own, since the client leaves its sockets to the garbage collector."""
    command = [sys.executable, "-m", "tierlog", "reassign", "--bootstrap", "127.0.0.1:1", "--list"]
    ran = subprocess.run([*command, "--timeout", "1"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("tierlog: cluster 127.0.0.1:1: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "expected one of --generate, --execute"),
        (("--generate", "--execute"), "expected one of --generate, --execute"),
        (("--execute",), "--execute needs --reassignment FILE"),
        (("--verify", "--throttle", "1M"), "--throttle is valid only with --execute"),
        (("--list", "--replication-quota", "1M"), "--throttle is valid only with --execute"),
        (("--generate", "--brokers", "1"), "--generate needs --topics"),
        (("--generate", "--topics", "a"), "--generate needs --brokers"),
        (("--generate", "--topics", "a", "--brokers", "1,1"), "expected different broker ids"),
        (("--generate", "--topics", "a,", "--brokers", "1"), "expected names separated by commas"),
        (("--generate", "--topics", "nosuch", "--brokers", "1"), "topic nosuch does not exist"),
        (("--generate", "--topics", "a", "--brokers", "8"), "broker 8 is unknown or down"),
        (("--execute", "--throttle", "10 parsecs"), "expected bytes as in 10485760"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    tierlog: Callable[..., Ran], args: tuple[str, ...], message: str
) -> None:
    ran = tierlog(*args)
    assert ran.code == 2
    assert message in ran.err


def test_the_controller_is_away_for_a_while(
    cluster: Cluster,
    admin: ClusterAdmin,
    topics: Callable[..., None],
    plan: Callable[..., tuple[str, str]],
    tierlog: Callable[..., Ran],
) -> None:
    topics({"foo": {0: [2, 1]}})
    file = plan({"foo": {0: [2, 3]}})
    assert tierlog("--execute", *file, "--throttle", str(STUCK), "--sample", "0").code == 0
    cluster.brokers[1].kill()
    try:
        other = [sys.executable, "-m", "tierlog", "reassign", "--bootstrap"]
        other += [cluster.brokers[2].bootstrap_servers, "--timeout", "2"]
        ran = subprocess.run([*other, "--watch"], capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert ran.stderr.startswith("tierlog: cluster 127.0.0.1:")
        assert ran.stderr.count("\n") == 1
    finally:
        cluster.brokers[1].start()
    wait_until(lambda: len(admin.brokers()) == 3, 60, what="broker 1 back")
    assert tierlog("--execute", *file, "--throttle", "10M", "--sample", "0", "--wait").code == 0
    assert is_clear(admin, "foo")


def test_no_permission_leaves_nothing_half_set(
    tmp_path: Path, plan: Callable[..., tuple[str, str]]
) -> None:
    """The settings of topics and brokers may be changed, the replicas may not."""
    with KafkaBroker(tmp_path / "kafka", properties=AUTHORIZER) as broker:
        broker.create_topic("foo")
        create_acls(broker, acl("ALL", "ALLOW"), acl("ALTER", "DENY"))
        target = ("--execute", *plan({"foo": {0: [1]}}), "--throttle", "1M", "--sample", "0")
        ran = run_tierlog("reassign", "--bootstrap", broker.bootstrap_servers, *target)
        assert ran.code == 1
        assert "CLUSTER_AUTHORIZATION_FAILED" in ran.err.splitlines()[-1]
        assert "Successfully" not in ran.out
        with ClusterAdmin(broker.bootstrap_servers) as admin:
            resources = [Resource(ResourceKind.BROKER, "1"), Resource(ResourceKind.TOPIC, "foo")]
            wait_until(lambda: not any(admin.settings(resources).values()), 60, what="nothing set")


def test_a_refused_setting_takes_the_others_back(
    tmp_path: Path, plan: Callable[..., tuple[str, str]]
) -> None:
    """Settings of one topic may be changed, those of the other not. Neither keeps a list."""
    with KafkaBroker(tmp_path / "kafka", properties=AUTHORIZER) as broker:
        broker.create_topic("bar")
        broker.create_topic("foo")
        create_acls(broker, acl("ALL", "ALLOW", "foo"), acl("ALTER_CONFIGS", "DENY", "foo"))
        target = ("--execute", *plan({"bar": {0: [1]}, "foo": {0: [1]}}), "--throttle", "1M")
        bootstrap = ("reassign", "--bootstrap", broker.bootstrap_servers)
        ran = run_tierlog(*bootstrap, *target, "--sample", "0")
        assert ran.code == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in ran.err.splitlines()[-1]
        with ClusterAdmin(broker.bootstrap_servers) as admin:
            topics = [Resource(ResourceKind.TOPIC, name) for name in ("bar", "foo")]
            wait_until(lambda: not any(admin.settings(topics).values()), 60, what="nothing set")
        create_acls(broker, acl("ALL", "ALLOW"), acl("DESCRIBE", "DENY"))
        ran = run_tierlog(*bootstrap, *target, "--sample", "0")
        assert ran.code == 1
        assert ran.err == (
            f"tierlog: cluster {broker.bootstrap_servers}: CLUSTER_AUTHORIZATION_FAILED: Returned "
            "by the broker when the client is not authorized to use an inter-broker or "
            "administrative API.\n"
        )
        with (
            ClusterAdmin(broker.bootstrap_servers) as admin,
            pytest.raises(AdminError, match="broker 1 does not show its log directories"),
        ):
            admin.log_dirs([1])


def create_acls(broker: KafkaBroker, *acls: Any) -> None:
    from kafka.admin import KafkaAdminClient

    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    client.create_acls(acls)
    client.close()


def acl(operation: str, permission: str, topic: str = "") -> Any:
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

    kind, name = (ResourceType.TOPIC, topic) if topic else (ResourceType.CLUSTER, "kafka-cluster")
    return ACL(
        principal="User:ANONYMOUS",
        host="*",
        operation=ACLOperation[operation],
        permission_type=ACLPermissionType[permission],
        resource_pattern=ResourcePattern(kind, name),
    )
