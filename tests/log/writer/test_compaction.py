"""When a log is compacted, what producers and readers see of it, and what ends a round."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import build
from tests.oracle.model import Record
from tierlog import decode_records
from tierlog.clock import ManualClock
from tierlog.config.topic import TopicConfig
from tierlog.errors import CorruptDataError
from tierlog.log.same_log import VanishedError
from tierlog.log.writer import cleaner
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.directory import LogDirWriter
from tierlog.log.writer.partition import PartitionWriter
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.log.writer.validation import AppendOrigin
from tierlog.reader.local_batches import LocalBatchReader
from tierlog.reader.types import FetchView

HOUR_MS = 3_600_000
MIB = 1 << 20
TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"


def topic(**more: object) -> TopicConfig:
    settings: dict[str, object] = {
        "cleanup_policy": ("compact",),
        "internal_segment_bytes": 500,
        "min_cleanable_dirty_ratio": 0.0,
        "message_timestamp_after_max_ms": 2**62,
    }
    return TopicConfig(**(settings | more))  # type: ignore[arg-type]


def write(
    writer: PartitionWriter, count: int, *, keys: int = 5, at_ms: int = NOW_MS, **producer: int
) -> None:
    """Append `count` batches of one record, each with one of some keys."""
    transaction_of = None
    for number in range(count):
        record = Record(
            offset=0,
            timestamp_ms=at_ms,
            key=b"%d" % (number % keys),
            value=b"%d at %d" % (number, writer.log_end_offset),
        )
        if "base_sequence" in producer:
            producer["base_sequence"] += number > 0
            transaction_of = ProducerEpoch(producer["producer_id"], producer["producer_epoch"])
        batch = build.batch([record], **producer)  # type: ignore[arg-type]
        writer.append(batch, leader_epoch=0, transaction_of=transaction_of)


def offsets(writer: PartitionWriter) -> list[int]:
    return [
        offset
        for segment in writer.view().segments
        for offset in decode_records(segment.log_path).offset.tolist()
    ]


# -- when


def test_a_log_is_due_when_enough_of_it_is_dirty(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, topic(min_cleanable_dirty_ratio=0.5))
    assert (writer.plan_compaction(), writer.compact(MIB)) == (None, None)
    write(writer, 100, keys=50)
    end = writer.view().segments[-1].base_offset
    assert writer.compact(MIB) == end == writer.cleaned_offset
    assert len(offsets(writer)) < 70
    assert writer.plan_compaction() is None
    clean_bytes = sum(one.size_bytes for one in writer.view().segments[:-1])
    while writer.plan_compaction() is None:
        write(writer, 1)
    dirty = [one for one in writer.view().segments[:-1] if one.base_offset >= end]
    dirty_bytes = sum(one.size_bytes for one in dirty)
    assert clean_bytes < dirty_bytes <= clean_bytes + 1000


def test_young_records_and_open_transactions_stay(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    lag = topic(min_compaction_lag_ms=HOUR_MS)
    writer = open_writer(tmp_path / "young", lag, clock=clock)
    write(writer, 30, at_ms=NOW_MS - 2 * HOUR_MS)
    writer.roll()
    old_end = writer.log_end_offset
    write(writer, 30)
    assert writer.compact(MIB) == old_end
    clock.advance(HOUR_MS + 1)
    assert writer.compact(MIB) == writer.view().segments[-1].base_offset

    writer = open_writer(tmp_path / "open", topic())
    write(writer, 30)
    write(writer, 1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    first_open = writer.last_stable_offset
    write(writer, 60)
    end = writer.compact(MIB)
    assert end is not None
    assert end <= first_open == 30
    assert set(range(30, 91)) <= set(offsets(writer))


def test_an_old_record_makes_a_log_due(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    slow = topic(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR_MS)
    writer = open_writer(tmp_path, slow, clock=clock)
    write(writer, 30)
    clock.advance(HOUR_MS)
    assert writer.compact(MIB) is None
    clock.advance(1)
    assert writer.compact(MIB) is not None
    # The active segment is rolled before its records are overdue.
    base = writer.view().segments[-1].base_offset
    write(writer, 1, at_ms=NOW_MS + HOUR_MS + 1)
    assert writer.view().segments[-1].base_offset > base


def test_a_log_with_many_keys_takes_several_rounds(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, topic())
    write(writer, 300, keys=100)
    wanted = writer.view().segments[-1].base_offset
    ends = []
    while (end := writer.compact(24 * 40)) is not None:
        ends.append(end)
    assert ends == sorted(ends)
    assert len(ends) > 4
    assert ends[-1] == wanted
    kept = [one for one in offsets(writer) if one < wanted]
    assert all(offset >= wanted - 100 for offset in kept[:-1])


# -- producers and retention


def test_records_without_a_key_are_refused(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, topic())
    data = build.batch([Record(offset=0, timestamp_ms=NOW_MS, key=None, value=b"x")])
    with pytest.raises(AppendRefusedError) as caught:
        writer.append(data, leader_epoch=0)
    assert caught.value.code is Refusal.INVALID_RECORD


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_goes_on_after_its_records_are_gone(is_clean: bool, tmp_path: Path) -> None:
    writer = open_writer(tmp_path, topic())
    producer = {"producer_id": 7, "producer_epoch": 3}
    write(writer, 4, **producer, base_sequence=0)
    write(writer, 60)
    assert writer.compact(MIB) is not None
    assert 3 not in offsets(writer)
    if is_clean:
        writer.close()
    else:
        writer._close_files()
    writer = open_writer(tmp_path, topic(), is_clean=is_clean, log_start_offset=0)
    with pytest.raises(AppendRefusedError) as caught:
        write(writer, 1, **producer, base_sequence=5)
    assert caught.value.code is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(writer, 1, **producer, base_sequence=4)


def test_retention_deletes_only_with_its_policy(tmp_path: Path) -> None:
    # Later than the files: an empty segment is as old as its file.
    now_ms = 4_000_000_000_000
    clock = ManualClock(now_ms)
    only = topic(retention_ms=HOUR_MS, retention_bytes=10)
    writer = open_writer(tmp_path, only, clock=clock)
    write(writer, 60, at_ms=now_ms)
    clock.advance(2 * HOUR_MS)
    assert writer.apply_retention() == 0
    writer.raise_log_start_offset(writer.view().segments[1].base_offset)
    assert writer.apply_retention() == 1
    writer.configure(
        topic(cleanup_policy=("compact", "delete"), retention_ms=HOUR_MS, retention_bytes=-1)
    )
    assert writer.compact(MIB) is not None
    assert writer.apply_retention() > 1


# -- what ends a round


@pytest.mark.parametrize("moment", ["scan_segment", "group_segments", "_Draft"])
def test_a_round_is_given_up_when_its_segments_go(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path, topic())
    write(writer, 60)
    real = getattr(cleaner, moment)

    def with_truncation(*arguments: object, **more: object) -> object:
        found = real(*arguments, **more)
        writer.truncate_to(20)
        return found

    monkeypatch.setattr(cleaner, moment, with_truncation)
    assert writer.compact(MIB) is None
    monkeypatch.undo()
    assert (writer.log_end_offset, writer.cleaned_offset) == (20, None)
    assert offsets(writer) == list(range(20))
    write(writer, 60)
    assert writer.compact(MIB) is not None


def test_a_full_disk_ends_the_round_and_not_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path, topic())
    write(writer, 60)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cleaner, "write_all", fail)
    with pytest.raises(OSError, match="No space left"):
        writer.compact(MIB)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.cleaned"))
    assert offsets(writer) == list(range(60))
    assert writer.compact(MIB) is not None


def test_a_damaged_log_is_reported_and_the_others_are_compacted(tmp_path: Path) -> None:
    logs = LogDirWriter(str(tmp_path), cluster_id="c", node_id=1, clock=ManualClock(NOW_MS))
    logs.open_all({("orders", number, TOPIC_ID): topic() for number in range(2)})
    for writer in logs.writers():
        write(writer, 60)
    bad, good = (logs.writer("orders", number) for number in range(2))
    path = Path(bad.view().segments[0].log_path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    told: list[tuple[PartitionWriter, Exception]] = []
    logs.compact(MIB, lambda log, error: told.append((log, error)))
    ((log, error),) = told
    assert log is bad
    assert isinstance(error, CorruptDataError)
    assert (error.path, error.position, error.reason) == (str(path), 0, "bad_crc")
    assert good.cleaned_offset == good.view().segments[-1].base_offset
    assert path.read_bytes() == data
    # The next owner of the directory knows the end of the round.
    end = good.cleaned_offset
    logs.close()
    logs = LogDirWriter(str(tmp_path), cluster_id="c", node_id=1, clock=ManualClock(NOW_MS))
    logs.open_all({("orders", 1, TOPIC_ID): topic()})
    assert logs.writer("orders", 1).cleaned_offset == end
    logs.close()


def test_a_reader_of_an_old_listing_notices_a_new_segment(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, topic())
    write(writer, 60)
    log = writer.view()
    view = FetchView(
        log=log,
        log_start_offset=0,
        local_log_start_offset=0,
        high_watermark=60,
        last_stable_offset=60,
        log_end_offset=60,
        leader_epoch=0,
        tiered=False,
    )
    reader = LocalBatchReader()
    assert reader.read_batches(view, 0, 100, 60, minimum_one=True).first_offset == 0
    assert writer.compact(MIB) is not None
    with pytest.raises(VanishedError):
        reader.read_batches(view, 0, 100, 60, minimum_one=True)


def test_the_marker_of_an_aborted_transaction_goes_last(tmp_path: Path) -> None:
    """First its records, then after delete.retention.ms the marker."""
    clock = ManualClock(NOW_MS)
    writer = open_writer(tmp_path, topic(delete_retention_ms=HOUR_MS), clock=clock)
    for producer_id in (7, 8):
        producer = {"producer_id": producer_id, "producer_epoch": 0}
        write(writer, 1, **producer, base_sequence=0, transactional=True)
        marker = build.end_transaction_marker(
            offset=0,
            timestamp_ms=NOW_MS,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            commit=producer_id == 8,
        )
        writer.append(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        write(writer, 1, **producer, base_sequence=1)
    aborted, committed = 0, 3
    found = []
    for _ in range(4):
        write(writer, 40)
        assert writer.compact(MIB) is not None
        path = tmp_path / f"{0:020d}.log"
        records = decode_records(path, include_control=True)
        found.append([one for one in records.offset.tolist() if one < 6])
        clock.advance(HOUR_MS)
    assert aborted not in found[0]
    assert committed not in found[0]
    # Both markers are there while a reader may need them, and gone later.
    assert {1, 4} <= set(found[0])
    assert not {1, 4} & set(found[3])
