"""Last stable offsets without a broker: what is remembered never changes what is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.tools.golden_copy import copy_log_dir
from tierlog.broker import BrokerAnswer
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.eligibility import StableSource
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.sidecar.stable import StableOffsets

LOGS = [
    log
    for disk in ("disk1", "disk2")
    for log in open_log_dir(DATA_DIR / "clean" / disk).partitions()
    if log.topic in ("transactions", "compacted-transactions", "epochs", "producers")
    or "transaction" in log.topic
]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_look_after_look_as_if_each_were_the_first(log: PartitionLog) -> None:
    ends = [segment.next_base_offset for segment in log.rolled_segments]
    known = StableOffsets()
    last = max([log.high_watermark or 0, *(end for end in ends if end is not None)])
    for high_watermark in range(0, last + 20, 7):
        now = replace(log, high_watermark=high_watermark)
        assert known.of(now, None) == StableOffsets().of(now, None)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_a_broker_that_went_away_has_said_enough(log: PartitionLog) -> None:
    """From its last answer on the search finds what one of the whole log would."""

    def answered(high_watermark: int) -> int:
        found = StableOffsets().of(replace(log, high_watermark=high_watermark), None).value
        assert found is not None
        return found

    last = log.segments[-1].base_offset + 20
    for before in range(1, last, 29):
        answer = BrokerAnswer(
            leader_id=1, last_stable_offset=answered(before), compacted=False, leader_epoch=1
        )
        for now in range(0, last, 31):
            known = StableOffsets()
            known.of(replace(log, high_watermark=before), answer)
            found = known.of(replace(log, high_watermark=now), None).value
            assert found == max(answered(before), answered(now)), (before, now)


def test_an_answer_from_before_a_cut_does_not_count(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    log = open_log_dir(log_dir).partition("epochs", 0)
    answer = BrokerAnswer(leader_id=1, last_stable_offset=480, compacted=False)
    known = StableOffsets()
    known.of(log, answer)
    behind = replace(log, high_watermark=200)
    assert known.of(behind, None).value == 480
    cut = replace(behind, leader_epochs=LeaderEpochs((EpochEntry(0, 0), EpochEntry(9, 190))))
    assert known.of(cut, None).value == 200


def test_some_transactions_are_open() -> None:
    assert len(LOGS) >= 3
    sources = {
        StableOffsets().of(replace(log, high_watermark=offset), None).source
        for log in LOGS
        for offset in range(0, 400, 5)
    }
    assert sources == {StableSource.TRANSACTIONS, StableSource.CHECKPOINT}


def test_what_lies_below_the_high_watermark_is_read_once(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    log = open_log_dir(log_dir).partition("epochs", 0)
    known = StableOffsets()
    first = known.of(log, None)
    assert first.value is not None
    for segment in log.rolled_segments:
        Path(segment.log_path).unlink()
    assert known.of(log, None) == first
    # Another leader may have written other records in files of the same sizes.
    other = replace(log, leader_epochs=LeaderEpochs((EpochEntry(9, 0),)))
    assert known.of(other, None).source is StableSource.UNKNOWN


def test_the_brokers_answer_needs_no_look_at_the_log(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    log = open_log_dir(log_dir).partition("epochs", 0)
    for segment in log.segments:
        Path(segment.log_path).unlink()
    answer = BrokerAnswer(leader_id=1, last_stable_offset=300, compacted=False)
    assert StableOffsets().of(log, answer).value == 300
