"""Reading back: stores and directories give what a consumer of the real broker got."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kafka_tools.golden import DATA_DIR, manifest, truth_records
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.columns import RecordColumns
from tierlog.errors import CorruptDataError, OutOfRangeError, RemoteResourceNotFoundError
from tierlog.log.log_dir import open_log_dir
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import LogReader
from tierlog.reader.open import open_reader, read
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.segment.bucket import Problem, bucket_metadata
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar

# Above this the stored truth has size and digest only.
LARGE_BYTES = 1024
CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
PARTITIONS = [
    (row["topic"], row["partition"])
    for row in manifest()["data_sets"]["clean"]["partitions"]
    if not row["topic"].startswith("__")
]


@pytest.fixture(scope="module")
def store_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every segment of the golden logs that may be copied, compacted ones too."""
    folder = tmp_path_factory.mktemp("store")
    state = tmp_path_factory.mktemp("state")
    with Sidecar(
        CLEAN,
        folder.as_uri(),
        state_dir=str(state),
        config=tier_config(include_compacted_topics=True),
        clock=ManualClock(),
    ) as sidecar:
        assert sidecar.run_once().ok
    return folder


@pytest.fixture(scope="module")
def store(store_dir: Path) -> LogReader:
    return open_reader(store_dir.as_uri())


@pytest.fixture(scope="module")
def local() -> LogReader:
    return LocalReader(open_log_dir(*CLEAN))


def rows_of(pieces: Iterator[RecordColumns]) -> list[dict[str, Any]]:
    return [
        {
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            "key": text(key),
            "value": text(value),
            "headers": [[name.decode(), text(content)] for name, content in headers],
        }
        for piece in pieces
        for offset, timestamp_ms, key, value, headers in zip(
            piece.offset.tolist(),
            piece.timestamp_ms.tolist(),
            piece.keys,
            piece.values,
            piece.headers,
            strict=True,
        )
    ]


def text(data: bytes | None) -> str | dict[str, Any] | None:
    """Bytes in the form of the stored truth: large ones as size and digest."""
    if data is None:
        return None
    if len(data) > LARGE_BYTES:
        return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return base64.b64encode(data).decode()


def truth(topic: str, partition: int) -> list[dict[str, Any]]:
    """What a consumer got, in the form of `rows_of`."""
    names = ("offset", "timestamp_ms", "key", "value", "headers")
    return [{name: row[name] for name in names} for row in truth_records("clean", topic, partition)]


@pytest.mark.parametrize(("topic", "partition"), PARTITIONS)
def test_a_directory_reads_as_a_consumer_did(topic: str, partition: int, local: LogReader) -> None:
    assert rows_of(local.read(topic, partition, 0)) == truth(topic, partition)


@pytest.mark.parametrize(("topic", "partition"), PARTITIONS)
def test_a_store_reads_as_a_consumer_did(topic: str, partition: int, store: LogReader) -> None:
    try:
        start, end = store.bounds(topic, partition)
    except OutOfRangeError:
        # Every segment of it is active or held back by an open transaction.
        assert all(one.topic != topic for one in store.partitions())
        return
    log = open_log_dir(*CLEAN).partition(topic, partition)
    first = max(start, log.log_start_offset or 0)
    expected = [row for row in truth(topic, partition) if first <= row["offset"] < end]
    assert rows_of(store.read(topic, partition, 0)) == expected


@pytest.mark.parametrize("topic", ["codec-lz4", "epochs", "transactions", "compacted"])
def test_from_every_offset_to_every_later_one(topic: str, store: LogReader) -> None:
    expected = [row["offset"] for row in truth(topic, 0)]
    end = store.bounds(topic, 0)[1]
    expected = [offset for offset in expected if offset < end]
    for start in range(0, end, max(1, end // 60)):
        for stop in (start, start + 1, start + 37, end, None):
            found = [
                offset
                for piece in store.read(topic, 0, start, stop)
                for offset in piece.offset.tolist()
            ]
            wanted = [one for one in expected if one >= start and (stop is None or one < stop)]
            assert found == wanted, (start, stop)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_offsets_by_time(data: st.DataObject, store: LogReader, local: LogReader) -> None:
    topic = data.draw(st.sampled_from(["times-shuffled", "times-appended", "codec-gzip"]))
    rows = truth(topic, 0)
    times = [row["timestamp_ms"] for row in rows]
    wanted = data.draw(st.integers(min(times) - 5, max(times) + 5))
    expected = next((row["offset"] for row in rows if row["timestamp_ms"] >= wanted), None)
    assert local.offset_for_timestamp(topic, 0, wanted) == expected
    end = store.bounds(topic, 0)[1]
    in_store = expected if expected is not None and expected < end else None
    assert store.offset_for_timestamp(topic, 0, wanted) == in_store


def test_one_request_per_piece_and_small_pieces_join(store_dir: Path) -> None:
    opened = open_store(store_dir.as_uri())
    reader = StoreReader(ObjectStorageManager(opened), bucket_metadata(opened), fetch_bytes=1)
    pieces = list(reader.read("codec-none", 0, 0))
    assert [row["offset"] for row in rows_of(iter(pieces))] == [
        row["offset"] for row in rows_of(open_reader(store_dir.as_uri()).read("codec-none", 0, 0))
    ]


def test_read_is_the_short_way(store_dir: Path) -> None:
    pieces = list(read(store_dir.as_uri(), "codec-gzip", 0, 100, 150))
    assert [offset for piece in pieces for offset in piece.offset.tolist()] == list(range(100, 150))
    by_time = read(CLEAN[0], "codec-none", 0, timestamp_ms=1_700_000_000_000)
    assert int(next(by_time).offset[0]) == 0
    assert list(read(CLEAN[0], "codec-none", 0, timestamp_ms=2**60)) == []


def test_only_the_wanted_segments_are_asked_about(store_dir: Path, tmp_path: Path) -> None:
    """A damaged object of another topic is not even read; the wanted one is found by name or id."""
    url = damaged_copy(store_dir, tmp_path, "codec-gzip-*/0/*.indexes", 20)
    problems: list[Problem] = []
    reader = open_reader(url, topic="codec-none", partition=0, on_problem=problems.append)
    assert [one.topic for one in reader.partitions()] == ["codec-none"]
    assert problems == []
    topic_id = reader.partitions()[0].topic_id
    assert topic_id is not None
    by_id = open_reader(url, topic=topic_id)
    assert [one.topic for one in by_id.partitions()] == ["codec-none"]
    open_reader(url, on_problem=problems.append)
    assert len(problems) == 1


def test_topics_go_by_name_or_id(store: LogReader) -> None:
    one = next(one for one in store.partitions() if one.topic == "codec-gzip")
    assert one.topic_id is not None
    assert store.bounds(one.topic_id, 0) == store.bounds("codec-gzip", 0)
    with pytest.raises(OutOfRangeError, match="no-such-topic"):
        store.bounds("no-such-topic", 0)


def damaged_copy(store_dir: Path, folder: Path, name: str, position: int) -> str:
    """A copy of the store with one byte of the first matching object changed."""
    import shutil

    target = folder / "damaged"
    shutil.copytree(store_dir, target)
    (victim, *_) = sorted(target.glob(name))
    data = bytearray(victim.read_bytes())
    data[position] ^= 0x01
    victim.write_bytes(data)
    return target.as_uri()


def test_a_flipped_byte_in_the_store_is_never_served(store_dir: Path, tmp_path: Path) -> None:
    url = damaged_copy(store_dir, tmp_path, "codec-none-*/0/*.log", 300)
    with pytest.raises(CorruptDataError, match=r"codec-none-.*\.log: bad_crc at byte \d+"):
        rows_of(open_reader(url).read("codec-none", 0, 0))


def test_a_damaged_remote_index_costs_a_walk_not_records(
    store_dir: Path, store: LogReader, tmp_path: Path
) -> None:
    url = damaged_copy(store_dir, tmp_path, "codec-none-*/0/*.indexes", -10)
    opened = open_store(url)
    alarms: list[Exception] = []
    reader = StoreReader(ObjectStorageManager(opened), bucket_metadata(opened), alarm=alarms.append)
    assert rows_of(reader.read("codec-none", 0, 0)) == rows_of(store.read("codec-none", 0, 0))
    assert "BATCH_CHECKSUM" in str(alarms[0])
    assert isinstance(alarms[0], CorruptDataError)


def test_a_vanished_object_is_an_error_not_the_end(store_dir: Path, tmp_path: Path) -> None:
    import shutil

    target = tmp_path / "holed"
    shutil.copytree(store_dir, target)
    reader = open_reader(target.as_uri())
    for path in target.glob("codec-none-*/0/*.log"):
        path.unlink()
    with pytest.raises(RemoteResourceNotFoundError):
        rows_of(reader.read("codec-none", 0, 0))
