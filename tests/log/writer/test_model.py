"""A log and a model of it go through the same steps, crashes and restarts included."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.writer.writing import NOW_MS, open_writer
from tests.oracle import batches as oracle
from tests.oracle import build
from tests.oracle.model import Record
from tests.proofs import usually
from tierlog.config.topic import TopicConfig
from tierlog.log.writer.partition import PartitionWriter
from tierlog.log.writer.refusal import AppendRefusedError, Refusal

TOPIC = TopicConfig(internal_segment_bytes=700, index_interval_bytes=150)
PRODUCERS = (3, 4)

Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from((-1, *PRODUCERS)), st.integers(1, 5)),
        st.tuples(st.just("skip"), st.sampled_from(PRODUCERS), st.integers(1, 3)),
        st.tuples(st.just("repeat"), st.just(0), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("delete"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.booleans().map(int), st.integers(0, 80)),
    ),
    max_size=25,
)


class Model:
    """What the log must hold: (first offset, last offset, producer, first sequence, value)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int, bytes]] = []
        self.start = 0
        self.end = 0

    def last_sequence(self, producer: int) -> int | None:
        found = [one for one in self.batches if one[2] == producer]
        return None if not found else found[-1][3] + found[-1][1] - found[-1][0]

    def truncate(self, offset: int) -> None:
        self.batches = [one for one in self.batches if one[1] < offset]
        if offset < self.end:
            # The log ends with its last whole batch; below its start nothing is kept.
            self.end = self.batches[-1][1] + 1 if self.batches else 0
            if self.end < self.start:
                self.batches, self.end = [], self.start


def batch_of(value: bytes, count: int, producer: int, sequence: int) -> bytes:
    records = [
        Record(offset=row, timestamp_ms=NOW_MS, key=None, value=value) for row in range(count)
    ]
    if producer < 0:
        return build.batch(records)
    return build.batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence)


def stored(writer: PartitionWriter) -> list[tuple[int, int, int, int]]:
    return [
        (one.base_offset, one.last_offset, one.producer_id, one.base_sequence)
        for segment in writer.view().segments
        for one in oracle.scan(Path(segment.log_path).read_bytes())[0]
    ]


def take(step: Step, writer: PartitionWriter, model: Model, value: bytes) -> None:
    kind, first, second = step
    if kind == "append":
        last = model.last_sequence(first) if first >= 0 else None
        sequence = 0 if last is None else last + 1
        data = batch_of(value, second, first, sequence)
        assert writer.append(data, leader_epoch=0).base_offset == model.end
        stored_sequence = sequence if first >= 0 else -1
        model.batches.append((model.end, model.end + second - 1, first, stored_sequence, value))
        model.end += second
    elif kind == "skip":
        last = model.last_sequence(first)
        if last is not None:
            refused = batch_of(value, 1, first, last + 1 + second)
            with pytest.raises(AppendRefusedError) as caught:
                writer.append(refused, leader_epoch=0)
            assert caught.value.code is Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
    elif kind == "repeat":
        own = [one for one in model.batches if one[2] == PRODUCERS[0]][-1:]
        for low, high, producer, sequence, old in own:
            again = writer.append(batch_of(old, high - low + 1, producer, sequence), leader_epoch=0)
            assert (again.base_offset, again.is_duplicate) == (low, True)
    elif kind == "truncate":
        writer.truncate_to(max(first, model.start))
        model.truncate(max(first, model.start))
    elif kind == "delete":
        model.start = max(model.start, min(first, model.end))
        writer.raise_log_start_offset(min(first, model.end))
    elif kind == "roll":
        writer.roll()


@settings(max_examples=usually(40, thorough=1000), deadline=None)
@given(STEPS)
def test_a_log_does_what_the_model_does(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "orders-0"
        model, numbers = Model(), itertools.count()
        writer = open_writer(folder, TOPIC)
        for step in steps:
            if step[0] == "restart":
                _, is_clean, torn = step
                if is_clean:
                    writer.close()
                else:
                    writer._close_files()
                    with Path(writer.view().segments[-1].log_path).open("ab") as file:
                        file.write(batch_of(b"torn", 2, -1, -1)[:torn])
                writer = open_writer(
                    folder, TOPIC, is_clean=bool(is_clean), log_start_offset=model.start
                )
            else:
                take(step, writer, model, b"%d" % next(numbers))
            assert (writer.log_end_offset, writer.log_start_offset) == (model.end, model.start)
        assert stored(writer) == [one[:4] for one in model.batches]
        writer.close()
