"""One pass over the directories of real brokers: what is copied, what is not, and why."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.golden import DATA_DIR, GoldenSegment, golden_segments, manifest
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError
from tierlog.log.eligibility import INTERNAL_TOPICS
from tierlog.sidecar import Outcome, Progress, Sidecar, TierReport

CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
UNCLEAN = [str(DATA_DIR / "unclean" / name) for name in ("disk1", "disk2")]


def tier(dirs: list[str], folder: Path, state: str = "state", **options: Any) -> TierReport:
    (folder / "store").mkdir(exist_ok=True)
    with Sidecar(
        dirs,
        (folder / "store").as_uri(),
        state_dir=str(folder / state),
        clock=ManualClock(),
        **options,
    ) as sidecar:
        return sidecar.run_once()


def copied(report: TierReport) -> set[tuple[str, int, int]]:
    return {(row.topic, row.partition, row.base_offset) for row in report.of(Outcome.COPIED)}


def expected(data_set: str, *, compacted: bool = False) -> set[tuple[str, int, int]]:
    """Rolled, above the log start, below the last stable offset that the broker itself gave."""
    partitions = {
        (row["topic"], row["partition"]): row
        for row in manifest()["data_sets"][data_set]["partitions"]
    }

    def eligible(segment: GoldenSegment) -> bool:
        if segment.topic in INTERNAL_TOPICS:
            return False
        row = partitions[(segment.topic, segment.partition)]
        return (
            segment.rolled
            and segment.size_bytes > 0
            and segment.next_base_offset > row["log_start_offset"]
            and segment.next_base_offset <= row["last_stable_offset"]
            and (compacted or "compact" not in row["config"].get("cleanup.policy", ""))
        )

    return {
        (segment.topic, segment.partition, segment.base_offset)
        for segment in golden_segments(data_set=data_set)
        if eligible(segment)
    }


def fingerprint(dirs: list[str]) -> dict[str, tuple[int, int, str]]:
    """Everything about every file below `dirs` that writing, locking or renaming would change."""
    found = {}
    for root in dirs:
        for path in sorted(Path(root).rglob("*")):
            stat = path.stat()
            data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = (stat.st_mtime_ns, stat.st_mode, data)
    return found


@pytest.mark.parametrize("compacted", [False, True])
def test_a_stopped_brokers_eligible_segments_and_no_others(compacted: bool, tmp_path: Path) -> None:
    report = tier(CLEAN, tmp_path, config=tier_config(include_compacted_topics=compacted))
    assert report.ok, [row for row in report.rows if row.outcome is Outcome.REFUSED]
    assert copied(report) == expected("clean", compacted=compacted)
    assert all(row.text for row in report.of(Outcome.SKIPPED))


def test_a_killed_brokers_directories(tmp_path: Path) -> None:
    """Its high watermark checkpoint lags: less is copied than its broker would allow, not more."""
    report = tier(UNCLEAN, tmp_path)
    assert report.ok
    assert copied(report) <= expected("unclean")
    assert copied(report)


def test_nothing_of_the_brokers_is_touched(tmp_path: Path, broker_copy: list[str]) -> None:
    before = fingerprint(broker_copy)
    tier(broker_copy, tmp_path)
    assert fingerprint(broker_copy) == before


def test_a_read_only_directory_is_enough(tmp_path: Path, broker_copy: list[str]) -> None:
    for root, folders, files in os.walk(broker_copy[0]):
        for name in (*folders, *files):
            path = Path(root, name)
            path.chmod(0o555 if path.is_dir() else 0o444)
    assert tier([broker_copy[0]], tmp_path).ok


def test_a_second_pass_has_nothing_to_do(tmp_path: Path) -> None:
    first = tier(CLEAN, tmp_path)
    second = tier(CLEAN, tmp_path)
    assert copied(second) == set()
    reasons = {row.base_offset: row.reason for row in second.rows if row.topic == "codec-none"}
    assert reasons[0] == "copied"
    again = tier(CLEAN, tmp_path, state="lost")
    assert copied(again) == set()
    assert again.of(Outcome.SKIPPED) == second.of(Outcome.SKIPPED)
    assert len(first.rows) == len(second.rows)


def test_a_damaged_segment_is_reported_and_does_not_stop_the_others(
    tmp_path: Path, broker_copy: list[str]
) -> None:
    victim = Path(broker_copy[0]) / "codec-none-0" / "00000000000000000000.log"
    data = bytearray(victim.read_bytes())
    data[200] ^= 1
    victim.write_bytes(data)
    report = tier(broker_copy, tmp_path)
    (row,) = report.of(Outcome.REFUSED)
    assert (row.topic, row.base_offset) == ("codec-none", 0)
    assert "bad_crc at byte 0" in row.text
    assert str(victim) in row.text
    assert copied(report) == expected("clean") - {("codec-none", 0, 0)}
    assert not report.ok
    assert victim.read_bytes() == bytes(data)


def test_a_damaged_checkpoint_is_a_problem_and_its_partition_waits(
    tmp_path: Path, broker_copy: list[str]
) -> None:
    epochs = Path(broker_copy[0]) / "codec-none-0" / "leader-epoch-checkpoint"
    epochs.write_text("0\n7\n0 0\n")
    report = tier(broker_copy, tmp_path)
    assert not report.ok
    assert str(epochs) in str(report.problems[0])
    assert copied(report) == {one for one in expected("clean") if one[0] != "codec-none"}


def test_what_is_not_a_segment_is_left_out_with_a_reason(
    tmp_path: Path, broker_copy: list[str]
) -> None:
    folder = Path(broker_copy[0]) / "codec-none-0"
    os.mkfifo(folder / "00000000000000099000.log")
    (folder / "00000000000000099001.log").symlink_to("/etc/passwd")
    (Path(broker_copy[0]) / "..-0").mkdir()
    report = tier(broker_copy, tmp_path)
    shown = " ".join(str(skipped) for skipped in report.skipped_files)
    assert "00000000000000099000.log" in shown
    assert "00000000000000099001.log" in shown
    assert "..-0" in shown
    assert report.ok


def test_progress_reaches_the_planned_bytes(tmp_path: Path) -> None:
    seen: list[Progress] = []
    (tmp_path / "store").mkdir()
    with Sidecar(CLEAN, (tmp_path / "store").as_uri(), state_dir=str(tmp_path / "state")) as one:
        report = one.run_once(seen.append)
    total = sum(row.size_bytes for row in report.of(Outcome.COPIED))
    assert seen[-1].total_bytes == seen[-1].done_bytes == total
    assert [progress.row for progress in seen if progress.row] == list(report.rows)


def test_state_inside_the_brokers_directory_is_refused(broker_copy: list[str]) -> None:
    with pytest.raises(ConfigError, match="must not lie inside"):
        Sidecar(broker_copy, "memory:///x", state_dir=f"{broker_copy[0]}/state")


def test_a_store_of_another_cluster_is_refused(tmp_path: Path, broker_copy: list[str]) -> None:
    tier(CLEAN, tmp_path)
    for path in broker_copy:
        properties = Path(path) / "meta.properties"
        text = properties.read_text()
        properties.write_text(re.sub("(?m)^cluster.id=.*$", "cluster.id=" + "B" * 22, text))
    with pytest.raises(ConfigError, match="belongs to cluster"):
        tier(broker_copy, tmp_path, state="other")


def test_one_topic_only(tmp_path: Path) -> None:
    report = tier(CLEAN, tmp_path, config=tier_config(topics=("codec-lz4",)))
    assert {topic for topic, _, _ in copied(report)} == {"codec-lz4"}


def test_what_a_silent_broker_never_said_is_not_copied(tmp_path: Path) -> None:
    silent = tier_config(bootstrap_servers="127.0.0.1:1")
    report = tier(CLEAN, tmp_path, config=silent, broker_timeout_s=0.5)
    assert any("does not answer" in warning for warning in report.warnings)
    assert copied(report) == set()
    reasons = {row.reason for row in report.of(Outcome.SKIPPED)}
    assert reasons == {"compaction_unknown", "cluster_metadata", "internal_topic"}
    silent = tier_config(bootstrap_servers="127.0.0.1:1", include_compacted_topics=True)
    report = tier(CLEAN, tmp_path, config=silent, broker_timeout_s=0.5)
    assert copied(report) == set()
    assert "leader_unknown" in {row.reason for row in report.of(Outcome.SKIPPED)}
