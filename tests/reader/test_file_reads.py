"""A small read of a local store takes the open file, and no request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fetch.tier import Tier, check, expected, made_batch
from tierlog.errors import ClosedError, CorruptDataError, RemoteResourceNotFoundError
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore

COUNT, NO_LIMIT = 200, 2**60
# Offsets before the first entry of the offset index take a request.
FIRST = 50


class CountingPayer:
    """Counts bytes and has no limit."""

    is_limited = False
    charge = charge_ahead = staticmethod(lambda _size_bytes: True)

    def __init__(self) -> None:
        self.size_bytes = 0

    def count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    tier = Tier(tmp_path)
    tier.add([made_batch(2 * row, size=500, records=2) for row in range(COUNT)])
    return tier


@pytest.fixture
def storage(tier: Tier) -> ObjectStorageManager:
    """The same objects in a store that lends its files; requests are counted."""

    class Counting(ObjectStorageManager):
        requests = 0

        def fetch_log_segment(self, *place: object) -> object:  # type: ignore[override]
            self.requests += 1
            return super().fetch_log_segment(*place)  # type: ignore[arg-type]

    tier.storage = Counting(LocalStore(tier.store.root))
    return tier.storage


@pytest.fixture
def reader(tier: Tier, storage: ObjectStorageManager) -> Iterator[RemoteBatchReader]:
    assert storage is tier.storage
    reader = tier.reader()
    # The index and the place of the segment are known afterwards.
    tier.read(reader, 0, 1)
    storage.requests = 0  # type: ignore[attr-defined]
    yield reader
    reader.close()
    assert tier.memory.used_bytes == 0


def test_a_random_read_takes_no_request(
    tier: Tier, storage: ObjectStorageManager, reader: RemoteBatchReader
) -> None:
    for offset in range(2 * COUNT - 1, FIRST, -7):
        for limit in (0, 3_000):
            read = tier.read(reader, offset, limit)
            check(read, expected(tier.truth, offset, limit, NO_LIMIT, True))
            assert read.requests == 1
            assert tier.memory.used_bytes == memoryview(read.records).nbytes
            del read
    assert storage.requests == 0  # type: ignore[attr-defined]


def test_every_byte_that_is_asked_of_the_file_is_counted(
    tier: Tier, reader: RemoteBatchReader
) -> None:
    payer = CountingPayer()
    read = tier.read(reader, 301, 1, payer=payer)
    assert memoryview(read.records).nbytes <= payer.size_bytes <= 64 << 10


def test_no_read_is_larger_than_the_memory(tier: Tier, reader: RemoteBatchReader) -> None:
    tier.memory.resize(3_000)
    read = tier.read(reader, 301, 1 << 20)
    check(read, expected(tier.truth, 301, 3_000, NO_LIMIT, True))


def test_readers_are_known_by_their_last_reads(tier: Tier, storage: ObjectStorageManager) -> None:
    settings = ReadAheadSettings(max_streams=5)
    reader = tier.reader(read_ahead=settings)
    ends = [tier.read(reader, offset, 1).next_offset for offset in range(60, 380, 10)]
    for end in ends[-5:]:
        tier.read(reader, end, 1)
    assert reader.stats().streams == 5
    reader.close()
    assert storage.is_local


def test_a_damaged_file_is_examined_batch_by_batch(tier: Tier, reader: RemoteBatchReader) -> None:
    tier.store.damage(tier.keys()[0], tier.segments[0].segment_size_bytes - 10)
    with pytest.raises(CorruptDataError, match="bad_crc"):
        tier.read(reader, 2 * COUNT - 1, 1)


def test_a_closed_reader_reads_no_file(tier: Tier, reader: RemoteBatchReader) -> None:
    reader.close()
    with pytest.raises(ClosedError):
        tier.read(reader, 301, 1)


def test_a_reader_that_is_closed_during_a_read_returns_nothing(
    tier: Tier, reader: RemoteBatchReader
) -> None:
    payer = CountingPayer()
    payer.count = lambda size_bytes: reader.close()  # type: ignore[method-assign]
    with pytest.raises(ClosedError):
        tier.read(reader, 301, 1, payer=payer)


def test_a_removed_object_is_reported(tier: Tier, reader: RemoteBatchReader) -> None:
    tier.store.path(tier.keys()[0]).unlink()
    # A store of its own, which has no file open yet.
    reader.storage = ObjectStorageManager(LocalStore(tier.store.root))
    with pytest.raises(RemoteResourceNotFoundError):
        tier.read(reader, 301, 1)
