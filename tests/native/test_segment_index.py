"""A read of one segment by its own index: where its batches lie, and which of them answer."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from tests.fetch.tier import made_batch
from tests.oracle import indexes as oracle
from tierlog import _core

REACH = 64 << 10
START = 100


class Made:
    """A segment of so many batches of so many bytes, and its offset index."""

    def __init__(self, path: Path, count: int, size: int, interval: int = 4096) -> None:
        self.batches = [made_batch(START + 2 * row, size=size, records=2) for row in range(count)]
        self.entries: list[tuple[int, int]] = []
        position = since = 0
        for row, batch in enumerate(self.batches):
            if since > interval:
                self.entries.append((START + 2 * row + 1, position))
                since = 0
            position += len(batch)
            since += len(batch)
        self.path, self.size_bytes, self.end_offset = path, position, START + 2 * count - 1
        path.write_bytes(b"".join(self.batches))
        data = b"".join(struct.pack(">ii", one - START, at) for one, at in self.entries)
        self.index = _core.SegmentIndex(data, b"", START, self.end_offset, position)

    def expected(self, offset: int, max_bytes: int, last_offset: int) -> bytes:
        """Of what begins at or after the first entry, as `minimum_one` has it."""
        found = b""
        for row, batch in enumerate(self.batches):
            last = START + 2 * row + 1
            if last < offset:
                continue
            if last > last_offset or (found and len(found) + len(batch) > max_bytes):
                break
            found += batch
        return found


@pytest.fixture(params=[(300, 100), (60, 1700), (40, 6_000), (12, 30_000)], ids=str)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    count, size = request.param
    return Made(tmp_path / "segment.log", count, size)


@pytest.fixture
def file(made: Made) -> _core.ReadFile:
    descriptor = os.open(made.path, os.O_RDONLY)
    file = _core.ReadFile(descriptor)
    os.close(descriptor)
    return file


def test_where_a_batch_may_lie(made: Made) -> None:
    for offset in range(START, made.end_offset + 1, 3):
        last_offset, position = oracle.lookup_offset(made.entries, offset, START)
        following = oracle.lookup_upper_bound(made.entries, (0, position), 1)
        latest = covers = made.size_bytes
        if following is not None:
            latest = following[1]
            after = oracle.lookup_upper_bound(made.entries, (0, latest), 1)
            covers = min(latest + REACH, made.size_bytes) if after is None else after[1]
        assert made.index.span(offset, REACH) == (last_offset, position, latest, covers)


@pytest.mark.parametrize("max_bytes", [0, 1, 5_000, 100_000])
def test_a_file_answers_with_what_is_asked_for(
    made: Made, file: _core.ReadFile, max_bytes: int
) -> None:
    first_indexed = made.entries[0][0]
    for offset in range(START, made.end_offset + 1):
        for last_offset in (made.end_offset, offset + 5):
            records, position, first_offset, next_offset, read_bytes = made.index.read(
                file, REACH, offset, last_offset, max_bytes, True
            )
            if offset < first_indexed:
                # The offset index has no word about the first batch.
                assert (records, read_bytes) == (None, 0)
                continue
            wanted = made.expected(offset, max_bytes, last_offset)
            assert records is not None or not wanted
            if records is not None:
                assert records == wanted
                assert len(records) <= read_bytes
                assert made.path.read_bytes()[position:].startswith(records)
                assert first_offset == (offset if offset % 2 == START % 2 else offset - 1)
                assert next_offset == first_offset + 2 * (len(wanted) // len(made.batches[0]))


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_batches_of_all_sizes_in_any_order(seed: int, gap: int, tmp_path: Path) -> None:
    """What the read before has brought is a hint where to look, never an answer."""
    chance = random.Random(seed)
    rows: list[tuple[int, int, bytes]] = []
    entries: list[tuple[int, int]] = []
    position, since, offset = 0, 0, START
    for _ in range(250):
        records = chance.choice((1, 2, 20))
        size = chance.choice((20, 300, 4_000, 9_000, 40_000)) // records
        batch = made_batch(offset, size=size, records=records)
        if since > 4096:
            entries.append((offset + records - 1, position))
            since = 0
        rows.append((offset, offset + records - 1, batch))
        position, since = position + len(batch), since + len(batch)
        offset += records + chance.randrange(gap + 1)
    path = tmp_path / "segment.log"
    path.write_bytes(b"".join(batch for _, _, batch in rows))
    data = b"".join(struct.pack(">ii", one - START, at) for one, at in entries)
    index = _core.SegmentIndex(data, b"", START, rows[-1][1], position)
    with path.open("rb") as opened:
        file = _core.ReadFile(opened.fileno())
    for _ in range(2_000):
        offset, most = chance.randrange(entries[0][0], rows[-1][1] + 1), chance.choice((0, 9_000))
        wanted, first = b"", -1
        for base, last, batch in rows:
            if last < offset:
                continue
            if wanted and len(wanted) + len(batch) > most:
                break
            wanted, first = wanted + batch, base if first < 0 else first
        found = index.read(file, REACH, offset, rows[-1][1], most, True)
        assert found[0] == wanted
        assert found[2] == first


def test_bytes_at_hand_answer_as_the_file_does(made: Made, file: _core.ReadFile) -> None:
    data = made.path.read_bytes()
    for offset in range(made.entries[0][0], made.end_offset + 1, 3):
        last_offset, position, _latest, covers = made.index.span(offset, REACH)
        part = data[position : covers + 5_000 + 17]
        asked = (offset, made.end_offset, 5_000, True)
        found = made.index.answer(part, position, last_offset, *asked)
        assert found is not None
        start, end, first_offset, next_offset = found
        *read, _read_bytes = made.index.read(file, REACH, *asked)
        assert read == [part[start:end], position + start, first_offset, next_offset]


def test_whatever_is_odd_is_left_to_others(made: Made, file: _core.ReadFile) -> None:
    """Every byte of a read that is flipped: the same answer, if it was none of its own, or none."""
    offset = made.end_offset - 4
    asked = (offset, made.end_offset, 1, True)
    sound, start, *_ = made.index.read(file, REACH, *asked)
    assert sound is not None
    data = made.path.read_bytes()
    _, position, _, covers = made.index.span(offset, REACH)
    step = max(1, (covers - position) // 500)
    for at in {*range(position, min(position + 70, covers)), *range(position, covers, step)}:
        made.path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        found, *_ = made.index.read(file, REACH, *asked)
        in_answer = start <= at < start + len(sound)
        in_epoch = in_answer and 12 <= at - start < 16
        assert found is None or found == sound or in_epoch
        assert found is None or not in_answer or in_epoch


def test_what_it_refuses(made: Made, file: _core.ReadFile) -> None:
    end = made.end_offset
    with pytest.raises(ValueError, match="max_bytes of 0 or more, found -1"):
        made.index.read(file, REACH, end, end, -1, True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.ReadFile(-1)
    # More than one small read.
    records = made.index.read(file, REACH, made.entries[0][0], end, 10 << 20, True)[0]
    assert records is None or made.size_bytes < 256 << 10
    os.truncate(made.path, made.size_bytes - 1)
    assert made.index.read(file, REACH, end, end, 1, True)[0] is None
    assert file.fileno() > 2
