"""A `.log` object in the place of another one of the same size, offsets and timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tierlog
from tests.fetch.tier import FIRST_TIMESTAMP_MS, Tier, check, expected
from tests.oracle import batches as oracle
from tests.oracle.build import batch
from tests.oracle.model import Record
from tierlog.cli import main
from tierlog.errors import CorruptDataError
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind, encode_indexes

if TYPE_CHECKING:
    from typing_extensions import Buffer

COUNT = 400
NO_LIMIT = 2**60


def filled_batch(offset: int, size: int, fill: bytes) -> bytes:
    record = Record(
        offset=offset,
        timestamp_ms=FIRST_TIMESTAMP_MS + offset,
        key=None,
        value=fill * size,
        headers=(),
    )
    return batch([record], base_offset=offset)


def swapped_tier(folder: Path, size: int, first_foreign: int = 0) -> Tier:
    """A tier of two segments; the first one holds foreign batches from that row on."""
    tier = Tier(folder, remote_index_interval_bytes=32 << 10)
    for start in (0, COUNT):
        tier.add([filled_batch(start + one, size, b"a") for one in range(COUNT)])
    own = [filled_batch(one, size, b"a") for one in range(first_foreign)]
    foreign = [filled_batch(one, size, b"b") for one in range(first_foreign, COUNT)]
    path = tier.store.path(tier.keys(0)[0])
    data = b"".join(own + foreign)
    assert len(data) == path.stat().st_size
    path.write_bytes(data)
    return tier


@pytest.fixture(params=[60, 1000, 5000], ids=lambda size: f"{size} bytes")
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("is_slow", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("max_bytes", [1, 20_000])
def test_no_read_serves_a_foreign_record(
    size: int, max_bytes: int, is_slow: bool, tmp_path: Path
) -> None:
    tier = swapped_tier(tmp_path, size)
    if is_slow:
        tier.store.before_read = lambda _key: None
    with RemoteIndexCache(tier.storage, tmp_path / "cache") as cache:
        readers = [tier.reader(), tier.reader(index_cache=cache)]
        for reader in readers:
            for offset in range(0, COUNT, 7):
                with pytest.raises(CorruptDataError, match="wrong_batch"):
                    tier.read(reader, offset, max_bytes)
            wanted = expected(tier.truth, COUNT + 5, max_bytes, NO_LIMIT, True)
            check(tier.read(reader, COUNT + 5, max_bytes), wanted)
            reader.close()


def read_to_the_end(tier: Tier, reader: RemoteBatchReader) -> Iterator[bytes]:
    offset = 0
    while offset < COUNT:
        read = tier.read(reader, offset, 8 << 10)
        yield bytes(read.records)
        offset = read.next_offset


@pytest.mark.parametrize("window_bytes", [0, 1 << 20])
def test_a_sequential_reader_stops_at_the_first_foreign_batch_of_the_index(
    size: int, window_bytes: int, tmp_path: Path
) -> None:
    tier = swapped_tier(tmp_path, size, first_foreign=COUNT // 2)
    settings = ReadAheadSettings(chunk_bytes=16 << 10, max_window_bytes=window_bytes, slow_ms=0)
    reader = tier.reader(read_ahead=settings)
    served: list[bytes] = []
    with pytest.raises(CorruptDataError, match="wrong_batch"):
        served += read_to_the_end(tier, reader)
    reader.close()
    # The offset index points at one batch in each 4 KiB of log, so larger batches all have a
    # checksum, and smaller foreign ones are noticed within that distance.
    foreign = sum(records.count(b"b" * size) for records in served)
    assert foreign * size <= (4096 if size < 4096 else 0)


def test_the_commands_refuse_foreign_records(size: int, tmp_path: Path, capfdbinary: Any) -> None:
    tier = swapped_tier(tmp_path, size)
    url = (tmp_path / "store").as_uri()
    name = f"{tier.partition.topic}:{tier.partition.partition}"
    for offset in (0, 1, 123, COUNT - 1):
        with pytest.raises(CorruptDataError, match="copy this segment again"):
            next(iter(tierlog.read(url, tier.partition.topic, tier.partition.partition, offset)))
        assert main(["cat", url, name, "-o", str(offset), "-c", "1"]) == 1
        shown, said = capfdbinary.readouterr()
        assert shown == b""
        assert b"wrong_batch" in said


def test_objects_without_checksums_are_read(size: int, tmp_path: Path) -> None:
    tier = swapped_tier(tmp_path, size)
    path = tier.store.path(tier.keys(0)[1])
    data = path.read_bytes()
    header = IndexesHeader.parse(data, path="x", object_size_bytes=len(data))
    sections: dict[IndexKind, Buffer] = {
        kind: bytes(header.read_section(kind, data))
        for kind in IndexKind
        if kind not in (IndexKind.METADATA, IndexKind.BATCH_CHECKSUM)
    }
    metadata = header.description(header.read_section(IndexKind.METADATA, data)).metadata
    older = encode_indexes(SegmentDescription(metadata=metadata), sections)
    assert (data[8:10], older[8:10]) == (b"\0\2", b"\0\1")
    path.write_bytes(older)
    # Nothing tells the foreign batches apart: that is what the checksums are for.
    read = tier.read(tier.reader(), 7, 1)
    assert oracle.parse(bytes(read.records)).base_offset == 7


def test_checksums_that_do_not_fit_the_index_are_not_believed(tmp_path: Path) -> None:
    tier = swapped_tier(tmp_path, 1000, first_foreign=COUNT)
    path = tier.store.path(tier.keys(0)[1])
    data = path.read_bytes()
    header = IndexesHeader.parse(data, path="x", object_size_bytes=len(data))
    sections: dict[IndexKind, Buffer] = {
        kind: bytes(header.read_section(kind, data))
        for kind in IndexKind
        if kind is not IndexKind.METADATA
    }
    sections[IndexKind.BATCH_CHECKSUM] = bytes(8)
    metadata = header.description(header.read_section(IndexKind.METADATA, data)).metadata
    path.write_bytes(encode_indexes(SegmentDescription(metadata=metadata), sections))
    wanted = expected(tier.truth, 100, 3000, NO_LIMIT, True)
    check(tier.read(tier.reader(), 100, 3000), wanted)
    (alarm,) = tier.alarms
    assert "batch checksums" in str(alarm)
