"""Each fault of docs/METRICS.md happens to a real sidecar: its expression holds within one interval
and no longer when the fault is over."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.metrics.promtool import find_promtool
from tests.sidecar.configs import tier_config
from tests.sidecar.faults import INTERVAL_MS, Faulty, Scrape
from tests.sidecar.two_brokers import sidecar_of
from tests.tools.golden_copy import overwrite
from tierlog.config import Config, QuotaConfig, RemoteIndexConfig, RemoteLogConfig
from tierlog.metrics.alerts import ALERTS, Alert
from tierlog.metrics.definitions import METRICS
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.claims import StoreClaims
from tierlog.remote.store.object_store import storage_error
from tierlog.types import TopicIdPartition

PROMTOOL = find_promtool()
NAME = re.compile(r"\b(?:kafka|tierlog)_\w+")
BY_NAME = {alert.name: alert for alert in ALERTS}
# Rates are over five minutes.
PASSES_AFTER = 12
BASELINE = 1
LATER_EPOCH = 100
INDEXES = "indexes"


@dataclass(frozen=True)
class Case:
    """A fault: ``begin`` makes it happen, before the pass unless it scrapes by itself; ``end`` ends
    it. ``also``: further alerts that it may raise."""

    alert: str
    begin: Callable[[Faulty], None]
    end: Callable[[Faulty], None]
    config: Config = field(default_factory=Config)
    also: frozenset[str] = frozenset()


def answer_all(world: Faulty) -> None:
    world.refuse()


def refusing(*points: str) -> Callable[[Faulty], None]:
    """The store refuses these requests while two segments wait for their copy."""

    def begin(world: Faulty) -> None:
        world.add_segments()
        world.refuse(*points)

    return begin


def unreachable(world: Faulty) -> None:
    world.refuse("put", "claim", "get", "head", "list", "delete")


def unmount(world: Faulty) -> None:
    world.store_dir.rename(world.folder / "aside")
    world.store_dir.mkdir()


def mount(world: Faulty) -> None:
    world.store_dir.rmdir()
    (world.folder / "aside").rename(world.store_dir)


def taking(duration_ms: int, point: str) -> Callable[[Faulty], None]:
    """The first such request of the store takes that long; the scrape is in its middle."""

    def begin(world: Faulty) -> None:
        def reach(at: str) -> None:
            if at == point:
                world.reach = lambda _: None
                world.clock.advance(duration_ms)
                world.scrape()

        world.add_segments()
        world.reach = reach

    return begin


def nothing(_: Faulty) -> None:
    """The fault is over by itself."""


def full(world: Faulty) -> None:
    def reach(point: str) -> None:
        if point == "put":
            raise storage_error(f"{world.store.url}: [Errno 28] No space left on device")

    world.add_segments()
    world.reach = reach


def lose_claim(world: Faulty) -> None:
    """A new leadership, whose claim is not in the listing."""
    world.store.hides_claims = True
    world.broker.leader_epoch = LATER_EPOCH


def list_claims(world: Faulty) -> None:
    world.store.hides_claims = False


def damage_segment(world: Faulty) -> None:
    world.add_segments()
    path = world.partition_dir / f"{146:020d}.log"
    sound = path.read_bytes()
    (world.folder / "sound").write_bytes(sound)
    overwrite(path, len(sound) - 1, bytes([sound[-1] ^ 0xFF]))


def mend_segment(world: Faulty) -> None:
    path = world.partition_dir / f"{146:020d}.log"
    overwrite(path, 0, (world.folder / "sound").read_bytes())


def misplace_segment(world: Faulty) -> None:
    """A segment of another log: its batches lie below its name."""
    world.add_segments()
    path = world.partition_dir / f"{146:020d}.log"
    (world.folder / "sound").write_bytes(path.read_bytes())
    path.write_bytes((world.partition_dir / f"{0:020d}.log").read_bytes())


def put_segment_back(world: Faulty) -> None:
    path = world.partition_dir / f"{146:020d}.log"
    path.write_bytes((world.folder / "sound").read_bytes())


def lose_object(world: Faulty) -> None:
    """The broker has deleted the segment by its retention; then an operator deletes the object."""
    for path in world.partition_dir.glob(f"{0:020d}.*"):
        path.rename(world.folder / path.name)
    world.objects(".log")[0].rename(world.folder / "backup")


def restore_object(world: Faulty) -> None:
    (world.folder / "backup").rename(world.objects(".indexes")[0].with_suffix(".log"))


def use_quota_up(world: Faulty) -> None:
    world.add_segments()


def silence(world: Faulty) -> None:
    world.broker.is_silent = True


def break_silence(world: Faulty) -> None:
    world.broker.is_silent = False


def lose_leader(world: Faulty) -> None:
    world.broker.leader_id = None


def regain_leader(world: Faulty) -> None:
    world.broker.leader_id = world.node_id


def change_cluster(world: Faulty) -> None:
    world.broker.is_foreign = True


def change_cluster_back(world: Faulty) -> None:
    world.broker.is_foreign = False


def remove_disk(world: Faulty) -> None:
    world.disk.rename(world.folder / "aside")


def return_disk(world: Faulty) -> None:
    (world.folder / "aside").rename(world.disk)


def lock_metadata(world: Faulty) -> None:
    """Another process holds the lock of the database: nothing can be written."""
    metadata = world.sidecar.metadata
    assert isinstance(metadata, SqliteRemoteLogMetadataManager)
    metadata._file.connection.execute("PRAGMA busy_timeout = 0")
    world.other_process = sqlite3.connect(metadata.path, isolation_level=None)
    world.other_process.execute("BEGIN IMMEDIATE")
    world.add_segments()


def unlock_metadata(world: Faulty) -> None:
    assert world.other_process is not None
    world.other_process.close()


def depose(world: Faulty) -> None:
    """A later leader claims the partition, and the broker still says that this one leads."""
    world.add_segments()
    claims = StoreClaims(world.store, broker_id=7, clock=world.clock)
    claims.claim(the_partition(world), LATER_EPOCH)


def lead_again(world: Faulty) -> None:
    world.broker.leader_epoch = LATER_EPOCH + 1


def the_partition(world: Faulty) -> TopicIdPartition:
    (partition,) = world.sidecar.metadata.partitions()
    return partition


def stop_leaders_sidecar(world: Faulty) -> None:
    """Another broker leads, and its sidecar does not run: what is rolled now is not copied."""
    world.broker.leader_id = 7
    world.add_segments()


def start_leaders_sidecar(world: Faulty) -> None:
    with sidecar_of(world.other_log_dir) as other:
        assert other.run_once().ok


def block_index_files(world: Faulty) -> None:
    """A file stands where the partition's folder has to be, when a new leadership opens it."""
    folder = index_folder(world)
    folder.rename(world.folder / "aside")
    folder.touch()
    world.broker.leader_epoch = LATER_EPOCH


def unblock_index_files(world: Faulty) -> None:
    folder = index_folder(world)
    folder.unlink()
    (world.folder / "aside").rename(folder)


def index_folder(world: Faulty) -> Path:
    (folder,) = (world.folder / INDEXES).glob("epochs-*")
    return folder


EVERY_LOOK = tier_config(bootstrap_servers="faulty:1", store_check_interval_ms=INTERVAL_MS)
BEHIND = frozenset({"CopiesBehind"})
FAILS = BEHIND | {"CopiesFail"}
PLAIN = tier_config(bootstrap_servers="faulty:1")
SMALL_QUOTA = QuotaConfig(copy_max_bytes_per_second=500)
EXPIRING = replace(
    tier_config(bootstrap_servers="faulty:1", retention_bytes=1),
    remote_log=RemoteLogConfig(retention_max_deleted_ratio=1.0),
)
CASES = {
    "store unreachable": Case("StoreUnreachable", unreachable, answer_all),
    "store not mounted": Case("StoreUnreachable", unmount, mount),
    "store hangs": Case("StoreUnreachable", taking(11_000, "probe"), nothing, also=BEHIND),
    "store refuses writes": Case("CopiesFail", refusing("put"), answer_all, also=BEHIND),
    "store full": Case("CopiesFail", full, answer_all, also=BEHIND),
    "copies behind": Case("CopiesBehind", refusing("put"), answer_all, also=FAILS),
    "claim lost": Case("CopiesFail", lose_claim, list_claims),
    "store slow": Case("StoreSlow", taking(61_000, "put"), nothing, also=BEHIND),
    "task stuck": Case("TaskStuck", taking(600_001, "put"), nothing, also=BEHIND | {"StoreSlow"}),
    "damaged segment": Case("SegmentRefused", damage_segment, mend_segment, also=FAILS),
    "refused segment": Case("SegmentRefused", misplace_segment, put_segment_back, also=FAILS),
    "damaged object": Case("ObjectDamaged", lose_object, restore_object, EVERY_LOOK),
    "quota used up": Case(
        "CopyQuotaUsedUp", use_quota_up, nothing, replace(PLAIN, quota=SMALL_QUOTA), also=BEHIND
    ),
    "broker silent": Case("BrokerSilent", silence, break_silence),
    "no leader": Case("PartitionWithoutLeader", lose_leader, regain_leader),
    "disk removed": Case("LogDirectoryUnreadable", remove_disk, return_disk),
    "metadata locked": Case("MetadataUnwritable", lock_metadata, unlock_metadata, also=FAILS),
    "another cluster": Case("LookFails", change_cluster, change_cluster_back),
    "leader deposed": Case("LeaderDeposed", depose, lead_again, also=BEHIND),
    "deletion denied": Case("DeletionDenied", refusing("delete"), answer_all, EXPIRING),
    "follower lag": Case("FollowerLag", stop_leaders_sidecar, start_leaders_sidecar),
    "index files": Case("IndexFilesUnwritable", block_index_files, unblock_index_files),
}


def run_case(case: Case, folder: Path) -> list[Scrape]:
    """Scrapes: two without the fault, those with it, those after it."""
    config = case.config if case.config.tier.bootstrap_servers else PLAIN
    if case.alert == "IndexFilesUnwritable":
        config = replace(config, remote_index=RemoteIndexConfig(dir=str(folder / INDEXES)))
    world = Faulty(folder, config)
    with world.sidecar:
        for _ in range(BASELINE + 1):
            world.run_pass()
        case.begin(world)
        world.run_pass()
        case.end(world)
        for _ in range(PASSES_AFTER):
            world.run_pass()
    return world.scrapes


@pytest.mark.parametrize("name", CASES)
def test_metric_moves_within_one_interval_and_returns(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    scrapes = run_case(case, tmp_path)
    (metric,) = set(NAME.findall(BY_NAME[case.alert].expression))
    values = [value_of(scrape, metric) for scrape in scrapes]
    assert values[BASELINE] == values[BASELINE - 1], "it moves without the fault"
    assert values[BASELINE + 1] != values[BASELINE], "it does not move"
    if metric.endswith("_total"):
        assert values[-1] == values[-10], "it does not stop"
    else:
        assert values[-1] == values[BASELINE], "it does not return"
    if PROMTOOL is not None:
        judge(PROMTOOL, case, scrapes, tmp_path)


def value_of(scrape: Scrape, metric: str) -> float | None:
    """The sum of the metric's series, None without one."""
    found = [value for (name, _), value in scrape.items() if name == metric]
    return sum(found) if found else None


def judge(promtool: str, case: Case, scrapes: list[Scrape], folder: Path) -> None:
    """Evaluate all expressions over the scrapes: before, during and after the fault."""
    last = len(scrapes) - 1
    expected = [(alert, BASELINE, False) for alert in ALERTS]
    expected += [(alert, last, False) for alert in ALERTS]
    expected += [
        (alert, BASELINE + 1, alert.name == case.alert)
        for alert in ALERTS
        if alert.name not in case.also
    ]
    text = {
        "tests": [
            {
                "interval": f"{INTERVAL_MS // 1000}s",
                "input_series": input_series(scrapes),
                "promql_expr_test": [expectation(*one) for one in expected],
            }
        ]
    }
    path = folder / "alerts.test.json"
    path.write_text(json.dumps(text))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def input_series(scrapes: list[Scrape]) -> list[dict[str, str]]:
    """All series as promtool takes them; one that is gone from a scrape is stale."""
    return [
        {
            "series": name
            + "{"
            + ",".join(f"{label}={json.dumps(value)}" for label, value in labels)
            + "}",
            "values": " ".join(
                str(scrape[name, labels]) if (name, labels) in scrape else "stale"
                for scrape in scrapes
            ),
        }
        for name, labels in sorted({key for scrape in scrapes for key in scrape})
    ]


def expectation(alert: Alert, index: int, holds: bool) -> dict[str, object]:
    return {
        "expr": f"(count({alert.expression}) > bool 0) or vector(0)",
        "eval_time": f"{index * INTERVAL_MS // 1000}s",
        "exp_samples": [{"labels": "{}", "value": int(holds)}],
    }


def test_index_files_that_cannot_be_written_are_warned_of(tmp_path: Path) -> None:
    config = replace(PLAIN, remote_index=RemoteIndexConfig(dir=str(tmp_path / INDEXES)))
    world = Faulty(tmp_path, config)
    with world.sidecar:
        world.run_pass()
        assert world.warnings == []
        block_index_files(world)
        world.run_pass()
    assert any("remote index files not written" in text for text in world.warnings)


def test_every_alert_has_a_fault_and_a_metric() -> None:
    assert {case.alert for case in CASES.values()} == set(BY_NAME)
    known = {metric.name for metric in METRICS}
    for alert in ALERTS:
        assert set(NAME.findall(alert.expression)) <= known
