"""A compacted log against a dictionary, through kills at every step that touches the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tierlog
from tests.log.writer.power_cuts import PowerCutError, cut_at
from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import build
from tests.oracle.model import Record
from tests.proofs import usually
from tierlog import decode_records, scan_segment
from tierlog.clock import ManualClock
from tierlog.config.topic import TopicConfig
from tierlog.log.checkpoint import CLEANER_OFFSETS
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.partition import PartitionWriter
from tierlog.log.writer.refusal import AppendRefusedError
from tierlog.log.writer.validation import AppendOrigin

DAY_MS = 86_400_000
TOPIC = TopicConfig(
    cleanup_policy=("compact",),
    internal_segment_bytes=600,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=DAY_MS,
    message_timestamp_after_max_ms=2**62,
)
# Kafka's smallest table would take all keys; this one is full after 14.
SMALL_BUDGET_BYTES = 16 * 24
PRODUCER = ProducerEpoch(5, 0)


class Model:
    """The last record of each key: its offset, its value, and since when it is a tombstone."""

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        self.all: dict[int, tuple[bytes, bytes | None]] = {}
        self.end = 0
        # Offsets of the transaction that is open, and of those that were aborted.
        self.open: list[int] = []
        self.sequence = 0
        self.aborted: set[int] = set()
        # Tombstones that a reader had the time to see.
        self.seen_until_ms: dict[int, int] = {}

    def append(self, key: bytes, value: bytes | None, *, in_transaction: bool = False) -> None:
        self.all[self.end] = key, value
        if in_transaction:
            self.open.append(self.end)
            self.sequence += 1
        else:
            self.last[key] = self.end, value
        self.end += 1

    def finish(self, *, is_commit: bool) -> None:
        for offset in self.open:
            key, value = self.all[offset]
            if not is_commit:
                self.aborted.add(offset)
            elif offset > self.last.get(key, (-1, None))[0]:
                self.last[key] = offset, value
        self.open = []
        self.end += 1


def stored(folder: Path) -> dict[int, tuple[bytes | None, bytes | None]]:
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset = -1
    for path in sorted(folder.glob("*.log")):
        for one in decode_records(path).records():
            assert one.offset > offset
            offset = one.offset
            found[offset] = one.key, one.value
    return found


def committed(folder: Path) -> dict[int, tuple[bytes | None, bytes | None]]:
    """What a consumer of committed records sees."""
    (folder.parent / CLEANER_OFFSETS).write_text("0\n1\norders 0 1\n")
    pieces = tierlog.read(folder.parent, "orders", 0, isolation_level="read_committed")
    return {one.offset: (one.key, one.value) for piece in pieces for one in piece.records()}


def check(folder: Path, model: Model, now_ms: int) -> None:
    """Nothing is made up, the last record of each key is there, and a tombstone is there until its
    horizon."""
    found = stored(folder)
    for offset, row in found.items():
        assert model.all[offset] == row
    for key, (offset, value) in model.last.items():
        if value is not None:
            assert found.get(offset) == (key, value), (key, offset)
        elif offset not in found:
            # It was compacted a day ago, and no older value of its key is left.
            assert model.seen_until_ms[offset] <= now_ms
            unsettled = model.aborted | set(model.open)
            older = [row for row, one in found.items() if one[0] == key and row < offset]
            assert unsettled.issuperset(older), key
    for path in sorted(folder.glob("*.log")):
        table = scan_segment(path)
        rows = zip(table.base_offset.tolist(), table.last_offset.tolist(), strict=True)
        for base, last in rows:
            for offset in range(base, last + 1):
                if model.all.get(offset, (b"", b""))[1] is None:
                    model.seen_until_ms.setdefault(offset, 2**62)
        for place in table.has_delete_horizon.nonzero()[0].tolist():
            horizon_ms = int(table.base_timestamp_ms[place])
            for offset in range(int(table.base_offset[place]), int(table.last_offset[place]) + 1):
                model.seen_until_ms[offset] = horizon_ms


def check_committed(folder: Path, model: Model) -> None:
    """No record of an aborted transaction is seen, and each other record that is stored."""
    first_open = min(model.open, default=model.end)
    wanted = {
        offset: row
        for offset, row in stored(folder).items()
        if offset < first_open and offset not in model.aborted
    }
    assert committed(folder) == wanted


def append(
    writer: PartitionWriter,
    model: Model,
    keys: list[int],
    now_ms: int,
    *,
    in_transaction: bool = False,
) -> None:
    rows = [(b"key %d" % abs(key), None if key < 0 else b"%d" % model.end) for key in keys]
    records = [
        Record(offset=row, timestamp_ms=now_ms, key=key, value=value)
        for row, (key, value) in enumerate(rows)
    ]
    if in_transaction:
        batch = build.batch(
            records,
            producer_id=PRODUCER.producer_id,
            producer_epoch=PRODUCER.epoch,
            base_sequence=model.sequence,
            transactional=True,
        )
    else:
        batch = build.batch(records)
    writer.append(batch, leader_epoch=0, transaction_of=PRODUCER)
    for key, value in rows:
        model.append(key, value, in_transaction=in_transaction)


def finish(writer: PartitionWriter, model: Model, now_ms: int, *, is_commit: bool) -> None:
    """End the transaction that is open."""
    if not model.open:
        return
    marker = build.end_transaction_marker(
        offset=0,
        timestamp_ms=now_ms,
        producer_id=PRODUCER.producer_id,
        producer_epoch=PRODUCER.epoch,
        coordinator_epoch=0,
        commit=is_commit,
    )
    writer.append(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    model.finish(is_commit=is_commit)


def reopened(
    folder: Path, clock: ManualClock, cleaned: int | None, recovery_point: int = 0
) -> PartitionWriter:
    writer = open_writer(
        folder,
        TOPIC,
        clock=clock,
        is_clean=False,
        log_start_offset=0,
        recovery_point=recovery_point,
    )
    writer.cleaned_offset = cleaned
    return writer


Step = tuple[str, list[int], int]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.integers(-20, 20).filter(bool), min_size=1, max_size=6),
            st.just(0),
        ),
        st.tuples(st.just("append"), st.just([1, 2, -3]), st.just(0)),
        st.tuples(
            st.just("transaction"),
            st.lists(st.integers(-6, 6).filter(bool), min_size=1, max_size=4),
            st.sampled_from((0, 1, 2)),
        ),
        st.tuples(st.just("compact"), st.just([0]), st.sampled_from((0, 1))),
        st.tuples(st.just("killed"), st.just([0]), st.integers(0, 60)),
        st.tuples(st.just("wait"), st.just([0]), st.sampled_from((DAY_MS // 2, DAY_MS, 1))),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=usually(25, thorough=1500), deadline=None)
@given(STEPS)
def test_a_compacted_log_is_the_last_value_of_each_key(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder, clock, model = Path(root) / "orders-0", ManualClock(NOW_MS), Model()
        writer = open_writer(folder, TOPIC, clock=clock)
        for kind, keys, number in steps:
            if kind == "append":
                append(writer, model, keys, clock.now_ms())
            elif kind == "transaction":
                append(writer, model, keys, clock.now_ms(), in_transaction=True)
                if number:
                    finish(writer, model, clock.now_ms(), is_commit=number == 1)
            elif kind == "wait":
                clock.advance(number)
            elif kind == "compact":
                writer.compact(SMALL_BUDGET_BYTES if number else 1 << 20)
            else:
                cleaned = writer.cleaned_offset
                with cut_at(number):
                    try:
                        writer.compact(1 << 20)
                        cleaned = writer.cleaned_offset
                    except (PowerCutError, AppendRefusedError):
                        pass
                writer._close_files()
                writer = reopened(folder, clock, cleaned)
            assert writer.log_end_offset == model.end
            check(folder, model, clock.now_ms())
        finish(writer, model, clock.now_ms(), is_commit=False)
        append(writer, model, [1] * 20, clock.now_ms())
        writer.compact(1 << 20)
        check(folder, model, clock.now_ms())
        writer.close()
        check_committed(folder, model)


@pytest.mark.parametrize("rescans", [False, True])
def test_a_kill_at_every_call_loses_nothing(rescans: bool, tmp_path: Path) -> None:
    """Every call of one round, with groups of several segments and with transaction indexes."""
    template, clock, model = tmp_path / "template", ManualClock(NOW_MS), Model()
    # Smaller segments than a compacted one may be, so that several become one.
    writer = open_writer(template, replace(TOPIC, internal_segment_bytes=250), clock=clock)
    for turn in range(5):
        append(writer, model, [turn % 7 + 1, -(turn % 3 + 1), turn + 30], NOW_MS)
    add_aborted(writer, model)
    writer.flush_rolled()
    point = 0 if rescans else writer.recovery_point
    writer._close_files()
    number, is_done = 0, False
    while not is_done:
        folder = tmp_path / "orders-0"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        writer = reopened(folder, clock, None, point)
        with cut_at(number), suppress(PowerCutError):
            segments = len(writer.view().segments)
            writer.compact(1 << 20)
            is_done = True
            assert len(writer.view().segments) < segments
        writer._close_files()
        writer = reopened(folder, clock, None, point)
        assert writer.log_end_offset == model.end
        check(folder, model, NOW_MS)
        assert not [one for one in os.listdir(folder) if one.endswith((".cleaned", ".swap"))]
        writer.compact(1 << 20)
        check(folder, model, NOW_MS)
        assert all(key != b"aborted" for key, _ in stored(folder).values())
        writer._close_files()
        number += 1
    assert number > 40


def add_aborted(writer: PartitionWriter, model: Model) -> None:
    """A transaction that is aborted, in segments that are rolled."""
    for sequence in range(2):
        records = [Record(offset=0, timestamp_ms=NOW_MS, key=b"aborted", value=b"x" * 40)]
        data = build.batch(
            records, producer_id=9, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        writer.append(data, leader_epoch=0, transaction_of=ProducerEpoch(9, 0))
        model.all[model.end] = b"aborted", b"x" * 40
        model.end += 1
    marker = build.end_transaction_marker(
        offset=0,
        timestamp_ms=NOW_MS,
        producer_id=9,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=False,
    )
    writer.append(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    model.end += 1
    for turn in range(5):
        append(writer, model, [turn % 5 + 1], NOW_MS)
