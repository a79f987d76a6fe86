"""The log of one partition: what it accepts, where it rolls, what is left after a crash."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import build, compression
from tests.oracle.model import Record
from tierlog import scan_segment
from tierlog.clock import ManualClock
from tierlog.config.topic import TimestampType, TopicConfig, topic_config
from tierlog.errors import ConfigError, OutOfRangeError
from tierlog.log.log_dir import open_log_dir
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.partition import PartitionWriter, WriterOptions
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.log.writer.validation import AppendOrigin
from tierlog.types import StopReason

HOUR_MS = 3_600_000


def batch(count: int = 1, *, size_bytes: int = 10, at_ms: int = NOW_MS, **more: int) -> bytes:
    records = [
        Record(offset=row, timestamp_ms=at_ms, key=b"k", value=bytes(size_bytes))
        for row in range(count)
    ]
    return build.batch(records, **more)  # type: ignore[arg-type]


def of_producer(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> bytes:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def append(writer: PartitionWriter, data: bytes, epoch: int = 0) -> int:
    return writer.append(data, leader_epoch=epoch).base_offset


def refusal(writer: PartitionWriter, data: bytes, epoch: int = 0) -> Refusal:
    end_offset = writer.log_end_offset
    with pytest.raises(AppendRefusedError) as caught:
        writer.append(data, leader_epoch=epoch)
    assert writer.log_end_offset == end_offset
    return caught.value.code


# -- what is appended


def test_offsets_and_epoch_are_assigned(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    assert [append(writer, batch(3)), append(writer, batch(2), 4), append(writer, batch(1), 4)] == [
        0,
        3,
        5,
    ]
    table = scan_segment(tmp_path / f"{0:020d}.log")
    assert table.base_offset.tolist() == [0, 3, 5]
    assert table.leader_epoch.tolist() == [0, 4, 4]
    assert [tuple(one) for one in writer.leader_epochs] == [(0, 0), (4, 3)]
    assert refusal(writer, batch(), 3) is Refusal.FENCED_LEADER_EPOCH


def test_offsets_may_be_read_during_an_append(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    count, appends = 20, 200
    rows = (Record(offset=row, timestamp_ms=NOW_MS, key=None, value=b"") for row in range(count))
    data = b"".join(build.batch([row]) for row in rows)
    is_done = threading.Event()

    def read_offsets() -> set[int]:
        seen = set()
        while not is_done.is_set():
            seen |= {writer.log_end_offset, writer.last_stable_offset}
        return seen

    # Several readers: one of them waits for the interpreter whenever an append lets go of it.
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_offsets) for _ in range(3)]
        try:
            for _ in range(appends):
                append(writer, data)
        finally:
            is_done.set()
    # Never a part of an append: its index entries may not be written yet.
    whole = set(range(0, count * appends + 1, count))
    assert all(reader.result() <= whole for reader in readers)


def leaves_to_a_thread(writer: PartitionWriter, data: bytes, epoch: int = 0) -> bool:
    end_offset = writer.log_end_offset
    with pytest.raises(BlockingIOError):
        writer.append_at_once(data, leader_epoch=epoch)
    return writer.log_end_offset == end_offset


@pytest.mark.parametrize(
    "data",
    [
        b"",
        batch() + batch(),
        batch()[:-1] + b"?",
        batch(70, size_bytes=1000),
        batch(2, size_bytes=600_000, codec=1),
    ],
    ids=["nothing", "two batches", "damage", "a large batch", "a batch that opens to much"],
)
def test_only_a_sound_small_batch_is_appended_at_once(data: bytes, tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "orders-0")
    append(writer, batch())
    assert leaves_to_a_thread(writer, data)
    assert writer.append_at_once(batch(2, codec=1), leader_epoch=0).base_offset == 1


def test_an_append_at_once_waits_for_nothing(tmp_path: Path) -> None:
    data, late = batch(3), batch(3, at_ms=NOW_MS + 2 * HOUR_MS)
    topic = TopicConfig(segment_ms=HOUR_MS, flush_messages=12, message_timestamp_after_max_ms=2**62)
    writer = open_writer(tmp_path / "orders-0", topic)
    # The first batch of an epoch is appended after the epoch is synced.
    assert leaves_to_a_thread(writer, data)
    append(writer, data)
    assert writer.append_at_once(data, leader_epoch=0).last_offset == 5
    assert leaves_to_a_thread(writer, data, 1)
    with ThreadPoolExecutor(1) as pool, writer._lock:
        assert pool.submit(leaves_to_a_thread, writer, data).result()
    # A batch that needs a new segment.
    assert leaves_to_a_thread(writer, late)
    writer.append_at_once(data, leader_epoch=0)
    # A batch after which the log is synced.
    assert leaves_to_a_thread(writer, data)
    append(writer, data)
    assert writer.append_at_once(data, leader_epoch=0).base_offset == 12


def test_append_time_is_set_with_its_checksum(tmp_path: Path) -> None:
    topic = TopicConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    writer = open_writer(tmp_path, topic)
    appended = writer.append(batch(2, at_ms=5), leader_epoch=0)
    assert appended.append_time_ms == NOW_MS
    table = scan_segment(tmp_path / f"{0:020d}.log")
    assert len(table) == 1, table.stop_reason
    assert table.max_timestamp_ms.tolist() == [NOW_MS]
    assert table.is_log_append_time.tolist() == [True]


def test_a_wrong_largest_timestamp_is_corrected(tmp_path: Path) -> None:
    records = [Record(offset=0, timestamp_ms=NOW_MS - 5, key=None, value=b"x")]
    payload = build.record_payload(records, 0, NOW_MS - 5)
    lies = build.seal(
        payload,
        base_offset=0,
        last_offset_delta=0,
        base_timestamp_ms=NOW_MS - 5,
        max_timestamp_ms=NOW_MS + 9,
        record_count=1,
    )
    append(writer := open_writer(tmp_path), lies)
    assert scan_segment(tmp_path / f"{0:020d}.log").max_timestamp_ms.tolist() == [NOW_MS - 5]
    writer.close()


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", Refusal.INVALID_RECORD),
        (b"\0" * 5, Refusal.CORRUPT_MESSAGE),
        (flipped(batch(3), 80), Refusal.CORRUPT_MESSAGE),
        (batch(3)[:-1], Refusal.CORRUPT_MESSAGE),
        (batch(1, size_bytes=2_000_000), Refusal.MESSAGE_TOO_LARGE),
        (batch(at_ms=NOW_MS + 2 * HOUR_MS), Refusal.INVALID_TIMESTAMP),
        (batch(1, control=True, producer_id=1, producer_epoch=0), Refusal.INVALID_RECORD),
        (batch(1, last_offset=4), Refusal.INVALID_RECORD),
        (batch(1, producer_id=1, producer_epoch=0), Refusal.INVALID_RECORD),
        (batch(1, transactional=True), Refusal.INVALID_RECORD),
        (
            build.legacy_message(0, NOW_MS, b"k", b"v", magic=1),
            Refusal.INVALID_RECORD,
        ),
    ],
)
def test_what_a_broker_refuses_is_refused(data: bytes, code: Refusal, tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    assert refusal(writer, data) is code
    assert append(writer, batch()) == 0


def test_records_with_other_offsets_are_refused(tmp_path: Path) -> None:
    records = [Record(offset=n, timestamp_ms=NOW_MS, key=None, value=b"x") for n in (0, 2, 1)]
    payload = build.record_payload(records, 0, NOW_MS)
    data = build.seal(
        payload,
        base_offset=0,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
        last_offset_delta=2,
        record_count=3,
    )
    assert refusal(open_writer(tmp_path), data) is Refusal.INVALID_RECORD


def test_every_codec_is_accepted(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    for codec in (compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD):
        append(writer, batch(5, codec=codec))
    assert writer.log_end_offset == 20


# -- segments


def bases(writer: PartitionWriter) -> list[int]:
    return [one.base_offset for one in writer.view().segments]


def test_a_segment_rolls_by_size(tmp_path: Path) -> None:
    size_bytes = len(batch())
    writer = open_writer(tmp_path, TopicConfig(internal_segment_bytes=3 * size_bytes))
    for _ in range(7):
        append(writer, batch())
    assert bases(writer) == [0, 3, 6]
    assert refusal(writer, batch(1, size_bytes=4 * size_bytes)) is Refusal.RECORD_LIST_TOO_LARGE


def test_a_segment_rolls_by_time(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, TopicConfig(segment_ms=1000))
    for at_ms in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001, NOW_MS + 500):
        append(writer, batch(at_ms=at_ms))
    assert bases(writer) == [0, 2]


def test_a_segment_rolls_when_its_index_is_full(tmp_path: Path) -> None:
    topic = TopicConfig(index_interval_bytes=0, segment_index_bytes=36)
    writer = open_writer(tmp_path, topic)
    # Every batch but the first has an entry; of three time entries one is kept for the end.
    for row in range(8):
        append(writer, batch(at_ms=NOW_MS + row))
    assert bases(writer) == [0, 3, 6]


def test_the_view_equals_a_listing(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "orders-0"
    writer = open_writer(folder, TopicConfig(internal_segment_bytes=300))
    for _ in range(20):
        append(writer, batch())
    listed = open_log_dir(folder.parent).partition("orders", 0)
    for ours, theirs in zip(writer.view().segments, listed.segments, strict=True):
        assert ours == theirs
    assert writer.view() is writer.view()


def test_truncation_keeps_whole_batches_below(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, TopicConfig(internal_segment_bytes=300))
    for _ in range(10):
        append(writer, batch(2))
    writer.truncate_to(9)
    # Offsets 8 and 9 are of one batch.
    assert writer.log_end_offset == 8
    assert append(writer, batch(2), 1) == 8
    assert [tuple(one) for one in writer.leader_epochs] == [(0, 0), (1, 8)]
    writer.truncate_to(0)
    assert (writer.log_end_offset, bases(writer)) == (0, [0])


def test_deleted_records_move_the_log_start(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, TopicConfig(internal_segment_bytes=300))
    for _ in range(10):
        append(writer, batch())
    with pytest.raises(OutOfRangeError, match="above the high watermark"):
        writer.raise_log_start_offset(11)
    writer.raise_log_start_offset(7)
    last = max(one for one in bases(writer) if one <= 7)
    assert writer.delete_segments_below(7) > 0
    assert (bases(writer)[0], writer.log_start_offset) == (last, 7)
    assert [tuple(one) for one in writer.leader_epochs] == [(0, 7)]
    assert {int(one.stem) for one in tmp_path.glob("*.log")} == set(bases(writer))


def test_retention_by_size_and_by_time(tmp_path: Path) -> None:
    size_bytes = len(batch())
    clock = ManualClock(NOW_MS)
    topic = TopicConfig(internal_segment_bytes=size_bytes, retention_bytes=3 * size_bytes)
    writer = open_writer(tmp_path, topic, clock=clock)
    for row in range(6):
        append(writer, batch(at_ms=NOW_MS + row))
    assert (writer.apply_retention(), bases(writer)) == (3, [3, 4, 5])
    writer.configure(TopicConfig(internal_segment_bytes=size_bytes, retention_ms=HOUR_MS))
    clock.advance(HOUR_MS + 5)
    assert (writer.apply_retention(), bases(writer)) == (2, [5])
    # The active segment goes by time, when it is the last one.
    clock.advance(1)
    assert (writer.apply_retention(), bases(writer)) == (1, [6])
    assert (writer.log_start_offset, append(writer, batch())) == (6, 6)


# -- producers


def test_a_repeated_batch_gets_its_old_offset(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    append(writer, batch(4))
    offsets = [append(writer, of_producer(sequence, 2)) for sequence in range(0, 12, 2)]
    assert offsets == [4, 6, 8, 10, 12, 14]
    again = writer.append(of_producer(2, 2), leader_epoch=0)
    assert (again.base_offset, again.last_offset, again.is_duplicate) == (6, 7, True)
    # Five batches are remembered; the first one is not.
    assert refusal(writer, of_producer(0, 2)) is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert writer.log_end_offset == 16


def test_sequences_must_follow(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    # A producer that is new here may begin anywhere: its records may have been deleted.
    append(writer, of_producer(2**31 - 1))
    append(writer, of_producer(0))
    assert refusal(writer, of_producer(2)) is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(writer, of_producer(5, epoch=1)) is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(writer, of_producer(0, epoch=1))
    assert refusal(writer, of_producer(1, epoch=0)) is Refusal.INVALID_PRODUCER_EPOCH


def end_transaction(writer: PartitionWriter, producer_id: int, *, commit: bool) -> None:
    data = build.end_transaction_marker(
        commit=commit,
        offset=0,
        timestamp_ms=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
    )
    writer.append(data, leader_epoch=0, origin=AppendOrigin.COORDINATOR)


def test_open_transactions_hold_the_last_stable_offset(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)

    def transactional(producer_id: int, sequence: int) -> bytes:
        return batch(
            2,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    assert refusal(writer, transactional(1, 0)) is Refusal.INVALID_TXN_STATE
    for producer_id in (1, 2):
        for other in (ProducerEpoch(producer_id, 1), ProducerEpoch(3 - producer_id, 0)):
            with pytest.raises(AppendRefusedError, match="not part of a transaction"):
                writer.append(transactional(producer_id, 0), leader_epoch=0, transaction_of=other)
        allowed = ProducerEpoch(producer_id, 0)
        writer.append(transactional(producer_id, 0), leader_epoch=0, transaction_of=allowed)
    assert writer.last_stable_offset == 0
    assert refusal(writer, of_producer(2, producer_id=1)) is Refusal.INVALID_TXN_STATE
    end_transaction(writer, 1, commit=True)
    assert writer.last_stable_offset == 2
    end_transaction(writer, 2, commit=False)
    assert writer.last_stable_offset == writer.log_end_offset == 6
    assert (tmp_path / f"{0:020d}.txnindex").stat().st_size == 34
    writer.close()
    again = open_writer(tmp_path, is_clean=False)
    assert again.last_stable_offset == 6
    assert (tmp_path / f"{0:020d}.txnindex").stat().st_size == 34


def test_deleted_records_of_an_open_transaction_hold_nothing(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    opened = batch(2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    writer.append(opened, leader_epoch=0, transaction_of=ProducerEpoch(1, 0))
    append(writer, batch(3))
    assert writer.last_stable_offset == 0
    writer.raise_log_start_offset(1)
    assert writer.last_stable_offset == 1


# -- after a crash


def copy_of(folder: Path, target: Path) -> Path:
    """The folder as a crash leaves it: nothing was closed."""
    shutil.copytree(folder, target)
    return target


@pytest.mark.parametrize("cut", [1, 17, 60, 75])
def test_a_torn_tail_is_cut_and_everything_else_stays(cut: int, tmp_path: Path) -> None:
    topic = TopicConfig(internal_segment_bytes=600, index_interval_bytes=100)
    writer = open_writer(tmp_path / "log", topic)
    for sequence in range(30):
        append(writer, of_producer(sequence))
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    last = sorted(crashed.glob("*.log"))[-1]
    append(writer, of_producer(30))
    whole = of_producer(30)
    with last.open("ab") as file:
        file.write(whole[:cut])
    again = open_writer(crashed, topic, is_clean=False)
    assert (again.log_end_offset, again.cut_bytes) == (30, cut)
    for path in sorted((tmp_path / "log").glob("*.*index"))[:-2]:
        assert (crashed / path.name).read_bytes() == path.read_bytes(), path.name
    assert append(again, whole) == 30
    assert again.append(of_producer(29), leader_epoch=0).is_duplicate
    table = scan_segment(again.view().segments[-1].log_path)
    assert (table.stop_reason, table.last_offset[-1]) == (StopReason.END, 30)


def test_damage_above_the_recovery_point_ends_the_log(tmp_path: Path) -> None:
    topic = TopicConfig(internal_segment_bytes=600)
    writer = open_writer(tmp_path / "log", topic)
    for _ in range(30):
        append(writer, batch())
    found = bases(writer)
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    path = crashed / f"{found[1]:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(batch()) + 70] ^= 1
    path.write_bytes(data)
    again = open_writer(crashed, topic, is_clean=False)
    assert again.log_end_offset == found[1] + 1
    assert bases(again) == found[:2]
    assert append(again, batch()) == found[1] + 1
    # Below the recovery point nothing is scanned, as after a clean stop.
    crashed = copy_of(tmp_path / "log", tmp_path / "flushed")
    (crashed / path.name).write_bytes(data)
    again = open_writer(crashed, topic, is_clean=False, recovery_point=found[2])
    assert again.log_end_offset == 30


def test_lost_indexes_and_snapshots_are_made_again(tmp_path: Path) -> None:
    topic = TopicConfig(internal_segment_bytes=600, index_interval_bytes=100)
    writer = open_writer(tmp_path / "log", topic)
    for sequence in range(30):
        append(writer, of_producer(sequence))
    writer.close()
    kept = {one.name: one.read_bytes() for one in (tmp_path / "log").iterdir()}
    for pattern in ("*.index", "*.snapshot"):
        for path in (tmp_path / "log").glob(pattern):
            path.unlink()
    again = open_writer(tmp_path / "log", topic)
    again.close()
    assert {one.name: one.read_bytes() for one in (tmp_path / "log").iterdir()} == kept


# -- a disk that fails


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_failing_disk_stops_the_partition(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    options = WriterOptions(on_failure=lambda path, error: said.append(f"{path}: {error}"))
    writer = open_writer(tmp_path / "log", options=options)
    append(writer, batch())

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    code = refusal(writer, batch(), 1 if call == "fsync" else 0)
    assert code is Refusal.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    # What the disk holds is unknown now, so that no later append may succeed.
    assert refusal(writer, batch()) is Refusal.KAFKA_STORAGE_ERROR
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert not writer.close()
    again = open_writer(tmp_path / "log", is_clean=False)
    assert append(again, batch(), 1) == 1


def test_settings_of_a_topic_are_checked() -> None:
    assert topic_config({"retention.ms": "5", "cleanup.policy": "delete"}).retention_ms == 5
    for settings, text in (
        ({"retention.mss": "5"}, "did you mean retention.ms"),
        ({"retention.ms": "x"}, "expected a whole number"),
        ({"cleanup.policy": "compress"}, "expected delete, compact or both, found compress"),
        (
            {"cleanup.policy": "compact,delete", "remote.storage.enable": "true"},
            "a compacted topic cannot be tiered",
        ),
        (
            {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms, 6, is larger than max.compaction.lag.ms, 5",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            topic_config(settings)


def test_a_look_without_waiting_ends_while_the_log_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    append(writer, batch(3))
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append(writer.view_at_once().high_watermark)
        except BlockingIOError as error:
            seen.append(error.errno)

    def sync(_directory: str) -> None:
        """Look from another thread while this one holds the log."""
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(60)

    look()
    monkeypatch.setattr("tierlog.log.writer.partition.sync_directory", sync)
    writer.flush()
    assert seen == [3, errno.EAGAIN]


def test_files_of_deleted_segments_go_after_their_delay(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    topic = topic_config({"internal.segment.bytes": "100", "file.delete.delay.ms": "5000"})
    writer = open_writer(tmp_path, topic, clock=clock)
    for _ in range(3):
        append(writer, batch())

    def renamed() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("*.deleted"))

    assert writer.delete_segments_below(1) == 1
    assert f"{0:020d}.log.deleted" in renamed()
    assert not (tmp_path / f"{0:020d}.log").exists()
    clock.advance(4999)
    writer.unlink_renamed()
    assert renamed()
    clock.advance(1)
    writer.unlink_renamed()
    assert renamed() == []
    # A start does not wait for the delay, and does not find the segment again.
    assert writer.delete_segments_below(2) == 1
    assert renamed()
    writer.close()
    again = open_writer(tmp_path, topic, clock=clock)
    assert renamed() == []
    assert again.local_log_start_offset == 2
    again.close()


def test_a_new_index_interval_counts_from_the_next_segment_on(tmp_path: Path) -> None:
    few, many = ({"index.interval.bytes": text} for text in ("100000", "1"))
    writer = open_writer(tmp_path, topic_config(few))
    for number in range(2):
        for sequence in range(10):
            append(writer, of_producer(10 * number + sequence))
        writer.configure(topic_config(many))
        writer.roll()
    sizes = [(tmp_path / f"{base:020d}.index").stat().st_size // 8 for base in (0, 10)]
    assert sizes == [0, 9]
    # The producer is known across the change.
    assert refusal(writer, of_producer(30)) is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(writer, of_producer(20)) == 20
    writer.close()
