"""Segments into a store and out again; what a bucket says by itself; every damage found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c
import pytest

from tests.remote.s3_server import S3Server
from tests.remote.segment.stored import SECTIONS, indexes_of
from tierlog.errors import (
    CorruptDataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import (
    Problem,
    ProblemReason,
    bucket_metadata,
    describe_segments,
    list_segments,
)
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import FIRST_READ_BYTES, IndexKind, encode_indexes
from tierlog.remote.segment.layout import CLUSTER_KEY, claim_cluster, indexes_key, log_key
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.store.object_store import ObjectInfo
from tierlog.remote.urls import LocalStore, ObjectStore, open_store
from tierlog.testing.segments import FINISHED, PARTITION, STARTED, partition_of, segment, uuid_of
from tierlog.testing.stores import MIB, patterned
from tierlog.types import RemoteLogSegmentId

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOG = patterned(2 * MIB + 77)
_numbers = count()


def described(name: str, start_offset: int = 0, log: bytes = LOG) -> RemoteLogSegmentMetadata:
    return segment(
        name,
        start_offset,
        start_offset + 9,
        size_bytes=len(log),
        log_crc32c=google_crc32c.value(log),
        bytes_per_epoch=((0, len(log)),),
    )


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(LOG)
    return path


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def manager(local: LocalStore) -> RemoteStorageManager:
    return ObjectStorageManager(local)


def copied(
    manager: RemoteStorageManager, log_file: Path, name: str = "a", start_offset: int = 0
) -> RemoteLogSegmentMetadata:
    metadata = described(name, start_offset)
    manager.copy_log_segment_data(metadata, log_file, indexes_of(metadata))
    return metadata


def store_path(local: LocalStore, key: str) -> Path:
    return Path(local.url.removeprefix("file://")) / key


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


class RoundTrip:
    """Takes the fixture `store`."""

    def test_a_segment_goes_and_comes_back(self, store: ObjectStore, log_file: Path) -> None:
        manager = ObjectStorageManager(store)
        metadata = copied(manager, log_file)
        assert {info.key for info in store.list()} == {log_key(metadata), indexes_key(metadata)}
        assert bytes(manager.fetch_log_segment(metadata, 0)) == LOG
        assert bytes(manager.fetch_log_segment(metadata, 5, 4_101)) == LOG[5:4_101]
        assert bytes(manager.fetch_log_segment(metadata, len(LOG) - 3, 1 << 40)) == LOG[-3:]
        found = manager.fetch_indexes(metadata)
        assert {kind: bytes(found[kind]) for kind in SECTIONS} == SECTIONS
        assert set(manager.fetch_indexes(metadata, [IndexKind.TIME])) == {IndexKind.TIME}
        assert manager.verify(metadata) == manager.verify(metadata, deep=True) == ()
        assert list(list_segments(store)) == [replace(metadata, state=FINISHED)]
        manager.delete_log_segment_data(metadata)
        manager.delete_log_segment_data(metadata)
        assert list(store.list()) == []
        assert [problem.reason for problem in manager.verify(metadata)] == ["missing", "missing"]

    def test_large_indexes_take_two_requests(self, store: ObjectStore, log_file: Path) -> None:
        manager = ObjectStorageManager(store)
        metadata = described("a")
        sections = {**SECTIONS, IndexKind.OFFSET: patterned(3 * FIRST_READ_BYTES)}
        manager.copy_log_segment_data(metadata, log_file, indexes_of(metadata, sections))
        found = manager.fetch_indexes(metadata)
        assert {kind: bytes(found[kind]) for kind in sections} == sections

    def test_whole_indexes_whatever_their_size(self, store: ObjectStore, log_file: Path) -> None:
        manager = ObjectStorageManager(store)
        for name, size in (("small", 10), ("large", 3 * FIRST_READ_BYTES)):
            metadata = described(name)
            indexes = indexes_of(metadata, {**SECTIONS, IndexKind.OFFSET: patterned(size)})
            manager.copy_log_segment_data(metadata, log_file, indexes)
            header, found, data = manager.fetch_whole_indexes(metadata)
            assert bytes(data) == indexes
            assert header.object_size_bytes == len(indexes)
            assert found.segment_id == metadata.segment_id

    def test_a_replaced_indexes_object_is_described_again(
        self, store: ObjectStore, log_file: Path
    ) -> None:
        """Others are not read again."""
        manager = ObjectStorageManager(store)
        first = copied(manager, log_file)
        second = copied(manager, log_file, "b", 10)
        known: dict[ObjectInfo, SegmentDescription] = {}

        def described_now() -> dict[RemoteLogSegmentId, SegmentDescription]:
            return {one.metadata.segment_id: one for one in describe_segments(store, known=known)}

        before = described_now()
        better = replace(before[first.segment_id], gap_start_offset=0)
        store.put_bytes(indexes_key(first), encode_indexes(better, SECTIONS), overwrite=True)
        again = described_now()
        assert again[first.segment_id] == better
        assert again[second.segment_id] is before[second.segment_id]
        store.delete(indexes_key(first))
        problems: list[object] = []
        list(describe_segments(store, known=known, on_problem=problems.append))
        assert [info.key for info in known] == [indexes_key(second)]

    def test_a_bucket_alone_gives_the_metadata(self, store: ObjectStore, log_file: Path) -> None:
        manager = ObjectStorageManager(store)
        claim_cluster(store, "cluster")
        segments = [copied(manager, log_file, f"s{n}", n * 10) for n in range(12)]
        problems: list[Problem] = []
        metadata = bucket_metadata(store, on_problem=problems.append)
        assert problems == []
        assert metadata.is_ready(PARTITION)
        expected = tuple(replace(known, state=FINISHED) for known in segments)
        assert metadata.list(PARTITION) == expected
        assert metadata.lookup(PARTITION, 0, 57) == expected[5]
        assert metadata.remote_log_size(PARTITION, 0) == 12 * len(LOG)


class TestOnFiles(RoundTrip):
    @pytest.fixture
    def store(self, local: LocalStore) -> ObjectStore:
        return local


class TestInMemory(RoundTrip):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store(f"memory:///storage/{next(_numbers)}")


@pytest.mark.integration
class TestOnS3(RoundTrip):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> ObjectStore:
        return open_store(f"s3://{s3_server.new_bucket()}/tier", **s3_server.options())


class TestCopy:
    def test_a_descriptor_is_read_in_place(
        self, manager: RemoteStorageManager, log_file: Path
    ) -> None:
        metadata = described("a")
        with log_file.open("rb") as file:
            file.seek(100)
            manager.copy_log_segment_data(metadata, file.fileno(), indexes_of(metadata))
            assert file.tell() == 100
        assert manager.verify(metadata, deep=True) == ()

    @pytest.mark.parametrize(
        "change",
        [
            lambda path: flip(path, 0),
            lambda path: flip(path, len(LOG) - 1),
            lambda path: flip(path, MIB),
            lambda path: os.truncate(path, len(LOG) - 1),
            lambda path: path.write_bytes(LOG + b"x"),
            lambda path: path.write_bytes(b""),
        ],
    )
    def test_a_changed_file_is_never_stored(
        self,
        manager: RemoteStorageManager,
        local: LocalStore,
        log_file: Path,
        change: Callable[[Path], object],
    ) -> None:
        change(log_file)
        with pytest.raises(CorruptDataError, match=log_file.name) as caught:
            copied(manager, log_file)
        assert caught.value.reason == "changed_during_copy"
        assert list(local.list()) == []

    @pytest.mark.parametrize(
        "change", [lambda path: os.truncate(path, MIB), lambda path: flip(path, 2 * MIB)]
    )
    def test_a_file_that_changes_meanwhile(
        self,
        manager: RemoteStorageManager,
        local: LocalStore,
        log_file: Path,
        change: Callable[[Path], object],
    ) -> None:
        metadata = described("a")
        changed: list[object] = []

        def before_chunk(_size_bytes: int) -> None:
            if not changed:
                changed.append(change(log_file))

        with log_file.open("rb") as file, pytest.raises(CorruptDataError) as caught:
            manager.copy_log_segment_data(
                metadata, file.fileno(), indexes_of(metadata), before_chunk=before_chunk
            )
        assert caught.value.reason == "changed_during_copy"
        assert list(local.list()) == []

    def test_only_regular_files(self, manager: RemoteStorageManager, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to(tmp_path / "pipe")
        for name in ("pipe", "link", "missing"):
            with pytest.raises(OSError, match=name):
                copied(manager, tmp_path / name)

    def test_pacing_sees_every_byte_first(
        self, manager: RemoteStorageManager, log_file: Path
    ) -> None:
        metadata = described("a")
        sizes: list[int] = []
        manager.copy_log_segment_data(
            metadata, log_file, indexes_of(metadata), before_chunk=sizes.append
        )
        assert sizes == [MIB, MIB, 77, len(indexes_of(metadata))]

    def test_pacing_may_stop_the_upload(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = described("a")
        sizes: list[int] = []

        def stop_at_second(size_bytes: int) -> None:
            sizes.append(size_bytes)
            if len(sizes) == 2:
                raise TimeoutError("quota")

        with pytest.raises(TimeoutError, match="quota"):
            manager.copy_log_segment_data(
                metadata, log_file, indexes_of(metadata), before_chunk=stop_at_second
            )
        assert list(local.list()) == []

    def test_indexes_must_be_of_this_segment(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = described("a")
        for other in (
            described("b"),
            replace(metadata, end_offset=99),
            replace(metadata, log_crc32c=7),
        ):
            with pytest.raises(ValueError, match="found those of"):
                manager.copy_log_segment_data(metadata, log_file, indexes_of(other))
        with pytest.raises(ValueError, match="expected a log checksum"):
            manager.copy_log_segment_data(
                replace(metadata, log_crc32c=None), log_file, indexes_of(metadata)
            )
        with pytest.raises(CorruptDataError):
            manager.copy_log_segment_data(metadata, log_file, indexes_of(metadata)[:-1])
        with pytest.raises(RemoteResourceNotFoundError):
            list(local.list())

    def test_half_a_copy_is_no_segment(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = described("a")
        local.put_bytes(indexes_key(metadata), b"in the way")
        with pytest.raises(RemoteStorageError, match="exists already"):
            copied(manager, log_file)
        assert local.head(log_key(metadata)).size_bytes == len(LOG)
        local.delete(indexes_key(metadata))
        problems: list[Problem] = []
        assert list(list_segments(local, on_problem=problems.append)) == []
        assert [problem.reason for problem in problems] == [ProblemReason.LOG_WITHOUT_INDEXES]

    def test_indexes_come_last_and_go_first(self, tmp_path: Path, log_file: Path) -> None:
        calls: list[str] = []

        class Watched(LocalStore):
            def put_stream(self, key: str, *args: object, **kwargs: object) -> None:
                calls.append(f"put {Path(key).suffix}")
                super().put_stream(key, *args, **kwargs)  # type: ignore[arg-type]

            def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
                calls.append(f"put {Path(key).suffix}")
                super().put_bytes(key, data, overwrite=overwrite)

            def delete(self, key: str) -> None:
                calls.append(f"delete {Path(key).suffix}")
                super().delete(key)

        manager = ObjectStorageManager(Watched(tmp_path / "watched"))
        manager.delete_log_segment_data(copied(manager, log_file))
        assert calls == ["put .log", "put .indexes", "delete .indexes", "delete .log"]


class TestFetch:
    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (len(LOG), None), (5, 5), (6, 5)])
    def test_impossible_ranges(
        self, manager: RemoteStorageManager, log_file: Path, start: int, end: int | None
    ) -> None:
        metadata = copied(manager, log_file)
        with pytest.raises(ValueError, match="expected a range"):
            manager.fetch_log_segment(metadata, start, end)

    def test_a_short_answer_is_an_error(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = copied(manager, log_file)
        os.truncate(store_path(local, log_key(metadata)), 1_000)
        with pytest.raises(RemoteStorageError, match=r"expected 2000 bytes .* got 1000"):
            manager.fetch_log_segment(metadata, 0, 2_000)
        with pytest.raises(RemoteStorageError, match="it has 1000 bytes"):
            manager.fetch_log_segment(metadata, 1_000, 2_000)

    def test_missing_objects(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = copied(manager, log_file)
        manager.delete_log_segment_data(metadata)
        with pytest.raises(RemoteResourceNotFoundError, match=log_key(metadata)):
            manager.fetch_log_segment(metadata, 0, 1)
        with pytest.raises(RemoteResourceNotFoundError, match=indexes_key(metadata)):
            manager.fetch_indexes(metadata)

    def test_indexes_of_another_segment_are_refused(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        one, other = copied(manager, log_file, "a"), copied(manager, log_file, "b")
        os.replace(store_path(local, indexes_key(other)), store_path(local, indexes_key(one)))
        with pytest.raises(CorruptDataError, match=uuid_of("b")) as caught:
            manager.fetch_indexes(one, [IndexKind.OFFSET])
        assert caught.value.reason == "wrong_segment"
        assert [problem.reason for problem in manager.verify(one)] == ["wrong_key"]
        problems: list[Problem] = []
        assert list(list_segments(local, on_problem=problems.append)) == []
        assert {problem.reason for problem in problems} == {"wrong_key", "log_without_indexes"}


class TestVerify:
    def reasons(
        self, manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, *, deep: bool
    ) -> list[str]:
        problems = manager.verify(metadata, deep=deep)
        assert all(problem.key in str(problem) for problem in problems)
        return [problem.reason.value for problem in problems]

    def test_sizes(self, manager: RemoteStorageManager, local: LocalStore, log_file: Path) -> None:
        metadata = copied(manager, log_file)
        os.truncate(store_path(local, log_key(metadata)), 1_000)
        os.truncate(store_path(local, indexes_key(metadata)), 1_000)
        assert self.reasons(manager, metadata, deep=False) == ["wrong_size", "corrupt_indexes"]
        os.truncate(store_path(local, indexes_key(metadata)), 0)
        assert self.reasons(manager, metadata, deep=False) == ["wrong_size", "corrupt_indexes"]

    @pytest.mark.parametrize("position", [0, MIB, len(LOG) - 1])
    def test_deep_finds_one_flipped_bit_of_the_log(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path, position: int
    ) -> None:
        metadata = copied(manager, log_file)
        flip(store_path(local, log_key(metadata)), position)
        assert self.reasons(manager, metadata, deep=False) == []
        assert self.reasons(manager, metadata, deep=True) == ["wrong_checksum"]

    def test_deep_finds_one_flipped_bit_of_any_index(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = copied(manager, log_file)
        path = store_path(local, indexes_key(metadata))
        flip(path, path.stat().st_size - 1)
        assert self.reasons(manager, metadata, deep=False) == []
        assert self.reasons(manager, metadata, deep=True) == ["corrupt_indexes"]
        flip(path, 30)
        assert self.reasons(manager, metadata, deep=False) == ["corrupt_indexes"]

    def test_right_after_a_copy_any_other_byte_in_front_is_found(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        metadata = copied(manager, log_file)
        sent, path = indexes_of(metadata), store_path(local, indexes_key(metadata))

        def reasons() -> list[str]:
            return [problem.reason.value for problem in manager.verify_copy(metadata, sent)]

        assert reasons() == []
        for position in (0, 30, len(sent) - 1):
            flip(path, position)
            assert reasons() == ["wrong_checksum"]
            flip(path, position)
        os.truncate(path, len(sent) - 1)
        assert reasons() == ["wrong_size"]
        os.truncate(store_path(local, log_key(metadata)), 5)
        assert reasons() == ["wrong_size", "wrong_size"]
        manager.delete_log_segment_data(metadata)
        assert reasons() == ["missing", "missing"]


class TestBucket:
    def test_everything_else_is_reported(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        claim_cluster(local, "cluster")
        good = copied(manager, log_file, "good")
        cut = copied(manager, log_file, "cut", 10)
        os.truncate(store_path(local, log_key(cut)), 5)
        damaged = copied(manager, log_file, "damaged", 20)
        flip(store_path(local, indexes_key(damaged)), 40)
        empty = copied(manager, log_file, "empty", 30)
        os.truncate(store_path(local, indexes_key(empty)), 0)
        alone = copied(manager, log_file, "alone", 40)
        local.delete(log_key(alone))
        moved = copied(manager, log_file, "moved", 50)
        elsewhere = log_key(moved).replace("/0/", "/1/")
        for key in (log_key(moved), indexes_key(moved)):
            target = store_path(local, key.replace("/0/", "/1/"))
            target.parent.mkdir(exist_ok=True)
            os.replace(store_path(local, key), target)
        local.put_bytes("readme.txt", b"not ours")
        problems: list[Problem] = []
        found = list(list_segments(local, on_problem=problems.append))
        assert [metadata.segment_id for metadata in found] == [good.segment_id]
        assert {(problem.key, problem.reason.value) for problem in problems} == {
            (log_key(cut), "wrong_size"),
            (indexes_key(damaged), "corrupt_indexes"),
            (indexes_key(empty), "corrupt_indexes"),
            (indexes_key(alone), "indexes_without_log"),
            (elsewhere.replace(".log", ".indexes"), "wrong_key"),
            ("readme.txt", "foreign_object"),
        }
        assert CLUSTER_KEY in {info.key for info in local.list()}

    def test_a_prefix_limits_the_listing(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        here = copied(manager, log_file)
        other = replace(
            here,
            segment_id=replace(here.segment_id, topic_id_partition=partition_of("payments", 3)),
        )
        manager.copy_log_segment_data(other, log_file, indexes_of(other))
        prefix = log_key(other).split("/")[0]
        assert [metadata.topic_id_partition for metadata in list_segments(local, prefix)] == [
            other.topic_id_partition
        ]
        assert set(bucket_metadata(local).partitions()) == {
            here.topic_id_partition,
            other.topic_id_partition,
        }

    def test_one_small_request_per_segment(self, tmp_path: Path, log_file: Path) -> None:
        reads: list[tuple[str, int, int]] = []

        class Watched(LocalStore):
            def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
                reads.append((Path(key).suffix, start_position, size_bytes))
                return super().get_range(key, start_position, size_bytes)

        store = Watched(tmp_path / "watched")
        manager = ObjectStorageManager(store)
        for number in range(40):
            copied(manager, log_file, str(number), number * 10)
        descriptions = list(describe_segments(store, parallel_reads=3))
        assert [known.metadata.start_offset for known in descriptions] == list(range(0, 400, 10))
        assert {known.record_count for known in descriptions} == {10}
        assert reads == [(".indexes", 0, FIRST_READ_BYTES)] * 40

    def test_what_vanishes_meanwhile_is_reported(self, tmp_path: Path, log_file: Path) -> None:
        class Vanishing(LocalStore):
            def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
                self.delete(key)
                return super().get_range(key, start_position, size_bytes)

        store = Vanishing(tmp_path / "store")
        copied(ObjectStorageManager(store), log_file)
        problems: list[Problem] = []
        assert list(list_segments(store, on_problem=problems.append)) == []
        assert [problem.reason for problem in problems] == [ProblemReason.MISSING]

    def test_a_store_that_fails_is_not_an_empty_one(self, tmp_path: Path, log_file: Path) -> None:
        class Failing(LocalStore):
            def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
                raise RemoteStorageError("no answer")

        store = Failing(tmp_path / "store")
        copied(ObjectStorageManager(store), log_file)
        with pytest.raises(RemoteStorageError, match="no answer"):
            bucket_metadata(store)
        with pytest.raises(RemoteResourceNotFoundError):
            bucket_metadata(LocalStore(tmp_path / "nowhere"))

    def test_a_listing_may_be_left_early(
        self, manager: RemoteStorageManager, local: LocalStore, log_file: Path
    ) -> None:
        for number in range(20):
            copied(manager, log_file, str(number), number * 10)
        listing: Iterator[RemoteLogSegmentMetadata] = list_segments(local, parallel_reads=2)
        assert next(listing).state is FINISHED
        assert described("x").state is STARTED
        del listing
        assert len(list(list_segments(local, parallel_reads=1))) == 20


def test_a_copy_adds_little_memory(tmp_path: Path) -> None:
    """256 MiB through the manager in a process of its own; peak memory grows by a few chunks."""
    script = """
import sys
import google_crc32c
from tierlog.testing.segments import segment
from tests.remote.segment.stored import indexes_of
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.urls import LocalStore
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
folder, size = sys.argv[1], 256 << 20
checksum = 0
with open(folder + "/big.log", "wb") as file:
    for number in range(256):
        chunk = bytes([number]) * (1 << 20)
        checksum = google_crc32c.extend(checksum, chunk)
        file.write(chunk)
metadata = segment("big", 0, 9, size_bytes=size, log_crc32c=checksum)
indexes = indexes_of(metadata)
manager = ObjectStorageManager(LocalStore(folder + "/store"))
before = peak()
manager.copy_log_segment_data(metadata, folder + "/big.log", indexes)
assert manager.verify(metadata, deep=True) == ()
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[3],
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 64 << 10
