"""The log directories of a real broker, read by us and told by Kafka itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tierlog.batches import BatchTable
from tierlog.log.eligibility import (
    CopyFacts,
    Coverage,
    Ineligible,
    StableOffset,
    copy_facts,
    decide_segments,
    last_stable_offset,
)
from tierlog.log.log_dir import LogDir, PartitionLog, SkipReason, open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.log.segment_checks import check_batches
from tierlog.log.transactions import OpenTransactions

DATA_DIR = Path(__file__).resolve().parent.parent / "data"
MANIFEST: dict[str, Any] = json.loads((DATA_DIR / "manifest.json").read_text())
SETS: dict[str, Any] = MANIFEST["data_sets"]
COMPACTED = {"compacted", "compacted-transactions"}


def opened(data_set: str) -> LogDir:
    return open_log_dir(*(DATA_DIR / data_set / disk for disk in SETS[data_set]["log_dirs"]))


def partitions(data_set: str) -> Iterator[tuple[PartitionLog, dict[str, Any]]]:
    """Every described partition, with what the restarted broker said of it."""
    log_dir = opened(data_set)
    for told in SETS[data_set]["partitions"]:
        yield log_dir.partition(told["topic"], told["partition"]), told


def tables(log: PartitionLog) -> Iterator[BatchTable]:
    for segment in log.segments:
        yield scan_segment(segment.log_path)


def stable_offset(log: PartitionLog, *, high_watermark: int | None) -> StableOffset:
    state = OpenTransactions()
    for table in tables(log):
        state = state.after(table, end_offset=high_watermark)
    return last_stable_offset(
        broker_last_stable_offset=None,
        high_watermark=high_watermark,
        transactions_known=True,
        first_open_transaction_offset=state.first_offset,
    )


@pytest.mark.parametrize("data_set", SETS)
def test_every_segment_is_listed(data_set: str) -> None:
    log_dir = opened(data_set)
    assert log_dir.cluster_id == SETS[data_set]["cluster_id"]
    assert log_dir.clean_shutdown == (SETS[data_set]["stop"] == "clean")
    listing = log_dir.listing()
    assert listing.problems == ()
    listed = {
        str(Path(segment.log_path).relative_to(DATA_DIR)): (
            segment.base_offset,
            segment.next_base_offset,
            segment.size_bytes,
        )
        for log in listing.partitions
        for segment in log.segments
    }
    assert listed == {
        told["path"]: (
            told["base_offset"],
            told["next_base_offset"] if told["rolled"] else None,
            told["size_bytes"],
        )
        for told in SETS[data_set]["segments"]
    }


@pytest.mark.parametrize("data_set", SETS)
def test_index_files_are_found(data_set: str) -> None:
    found: dict[str, list[str]] = {}
    for log in opened(data_set).partitions():
        for segment in log.segments:
            beside = (
                segment.offset_index_path,
                segment.time_index_path,
                segment.transaction_index_path,
                segment.start_snapshot_path,
            )
            found[segment.log_path] = sorted(Path(path).name for path in beside if path)
    for told in SETS[data_set]["segments"]:
        assert found[str(DATA_DIR / told["path"])] == sorted(told["files"]), told["path"]


@pytest.mark.parametrize("data_set", SETS)
def test_nothing_but_the_dumps_is_unknown(data_set: str) -> None:
    listing = opened(data_set).listing()
    reasons = {skipped.reason for skipped in listing.skipped}
    assert reasons <= {SkipReason.PARTITION_DELETED, SkipReason.UNKNOWN_NAME}
    for log in listing.partitions:
        assert log.problems == ()
        for skipped in log.skipped:
            if skipped.reason is not SkipReason.DELETED:
                assert ".dump.txt" in skipped.path


def test_what_a_broker_was_deleting() -> None:
    listing = opened("unclean").listing()
    (deleted,) = [s for s in listing.skipped if s.reason is SkipReason.PARTITION_DELETED]
    assert "crash-deleted-topic-0." in deleted.path
    log = opened("unclean").partition("crash-deleted-records", 0)
    assert SkipReason.DELETED in {skipped.reason for skipped in log.skipped}


@pytest.mark.parametrize("data_set", SETS)
def test_checkpoints_against_the_restarted_broker(data_set: str) -> None:
    for log, told in partitions(data_set):
        assert log.log_start_offset == told["log_start_offset"], log.name
        assert log.topic_id is not None
        assert log.compacted == (log.topic in COMPACTED), log.name
        if log.is_cluster_metadata:
            assert log.high_watermark is None
        elif SETS[data_set]["stop"] == "clean":
            assert log.high_watermark == told["high_watermark"], log.name
        else:
            assert log.high_watermark is not None
            assert log.high_watermark <= told["high_watermark"], log.name


@pytest.mark.parametrize("data_set", SETS)
def test_last_stable_offset_without_a_broker(data_set: str) -> None:
    """What the restarted broker answered, from the log and its high watermark alone."""
    for log, told in partitions(data_set):
        if not log.is_cluster_metadata:
            stable = stable_offset(log, high_watermark=told["high_watermark"])
            assert stable.value == told["last_stable_offset"], log.name
            ours = stable_offset(log, high_watermark=log.high_watermark)
            assert ours.value is not None
            assert ours.value <= told["last_stable_offset"], log.name


def test_the_golden_logs_hold_open_transactions() -> None:
    bounded = {
        log.topic
        for data_set in SETS
        for log, told in partitions(data_set)
        if told["last_stable_offset"] < told["high_watermark"]
    }
    assert {"transactions", "crash-transactions"} <= bounded


@pytest.mark.parametrize("data_set", SETS)
def test_batches_fit_their_segments(data_set: str) -> None:
    for log in opened(data_set).partitions():
        for segment, table in zip(log.segments, tables(log), strict=True):
            problems = check_batches(
                base_offset=table.base_offset,
                last_offset=table.last_offset,
                position=table.position,
                leader_epoch=table.leader_epoch,
                magic=table.magic,
                segment_base=segment.base_offset,
                next_base=segment.next_base_offset,
                lineage=log.leader_epochs,
                allow_gaps=log.topic in COMPACTED,
            )
            assert problems == [], segment.log_path


def test_a_compacted_log_has_gaps() -> None:
    log = opened("clean").partition("compacted", 0)
    table = scan_segment(log.segments[0].log_path)
    assert check_batches(
        base_offset=table.base_offset,
        last_offset=table.last_offset,
        position=table.position,
        leader_epoch=table.leader_epoch,
        segment_base=0,
        next_base=log.segments[0].next_base_offset,
        lineage=log.leader_epochs,
        allow_gaps=False,
    )


def reasons(facts: CopyFacts, log: PartitionLog) -> list[Ineligible | None]:
    return [decision.reason for decision in decide_segments(log.segments, facts)]


def test_what_may_be_copied() -> None:
    log_dir = opened("clean")

    def decide(topic: str) -> list[Ineligible | None]:
        log = log_dir.partition(topic, 0)
        stable = stable_offset(log, high_watermark=log.high_watermark)
        return reasons(copy_facts(log, stable, copied=Coverage()), log)

    assert decide("codec-none") == [None, None, None, None, Ineligible.ACTIVE]
    assert set(decide("compacted")) == {Ineligible.COMPACTED}
    assert set(decide("__transaction_state")) == {Ineligible.INTERNAL_TOPIC}
    assert set(decide("__cluster_metadata")) == {Ineligible.CLUSTER_METADATA}
    assert decide("empty") == [Ineligible.ACTIVE]
    # The log starts inside the first segment that is left: it still holds records to copy.
    assert decide("deleted-records")[0] is None
    transactions = decide("transactions")
    assert transactions[0] is None
    assert transactions[-2:] == [Ineligible.NOT_STABLE, Ineligible.ACTIVE]


def test_nothing_above_the_checkpointed_high_watermark() -> None:
    log = opened("unclean").partition("crash-burst", 0)
    stable = stable_offset(log, high_watermark=log.high_watermark)
    assert reasons(copy_facts(log, stable, copied=Coverage()), log) == [
        Ineligible.NOT_STABLE,
        Ineligible.ACTIVE,
    ]
