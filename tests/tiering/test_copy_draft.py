"""Segments that are written to a file store while they are scanned."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from typing_extensions import Buffer

from tests.descriptors import open_below
from tests.kafka_tools.golden import DATA_DIR
from tests.tiering.copying import FailingStore, Tier, three_batches
from tests.tiering.hosts import GoldenLog
from tierlog._core import crc32c
from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import ClosedError, RemoteStorageError
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment_files import SegmentFiles
from tierlog.quota import QuotaManager
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.local_draft import LocalDraft, open_nameless
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import Draft
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import CopyFailedError, SegmentRefusedError, prepare
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager

KEY = "topic-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-BBBBBBBBBBBBBBBBBBBBBB.log"


@pytest.fixture(scope="module")
def logs() -> tuple[PartitionLog, ...]:
    return open_log_dir(str(DATA_DIR / "clean" / "disk1")).listing().partitions


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def drafted(
    tier: Tier, log: PartitionLog, segment: SegmentFiles, *, compacted: bool = False
) -> RemoteLogSegmentMetadata:
    segment_id = tier.copier.new_id()
    with segment.open() as handle, tier.copier.draft(log, segment, segment_id) as draft:
        assert draft is not None
        ready = prepare(log, segment, handle, allow_gaps=compacted, draft=draft)
        return tier.copier.copy(ready, handle, segment_id=segment_id, draft=draft).metadata


def files(folder: Path) -> list[str]:
    """Of every kind, hidden ones too."""
    return sorted(str(path) for path in folder.rglob("*") if not path.is_dir())


def written(draft: Draft, data: bytes) -> Draft:
    os.write(draft.fileno(), data)
    draft.wrote(len(data), crc32c(data))
    return draft


# -- the same copy


def test_the_same_objects_as_of_a_copy_that_reads_twice(
    logs: tuple[PartitionLog, ...], tier: Tier
) -> None:
    segments = [(log, segment) for log in logs for segment in log.rolled_segments]
    assert len(segments) > 20
    for log, segment in segments:
        one = drafted(tier, log, segment, compacted=True)
        data = Path(segment.log_path).read_bytes()
        assert bytes(tier.storage.fetch_log_segment(one, 0)) == data
        assert tier.storage.verify(one, deep=True) == ()
        with segment.open() as handle:
            two = tier.copier.copy(prepare(log, segment, handle, allow_gaps=True), handle).metadata
        first, second = (tier.storage.fetch_indexes(each) for each in (one, two))
        for kind in IndexKind:
            # Two of them name the object, which has another id.
            assert kind in (IndexKind.METADATA, IndexKind.REMOTE_LOG) or first[kind] == second[kind]
        assert (one.log_crc32c, one.bytes_per_epoch) == (two.log_crc32c, two.bytes_per_epoch)


def test_nothing_is_there_before_it_is_put(logs: tuple[PartitionLog, ...], tier: Tier) -> None:
    log = next(log for log in logs if log.rolled_segments)
    segment = log.rolled_segments[0]
    seen: list[list[str]] = []
    folder = Path(tier.store.url.removeprefix("file://"))
    segment_id = tier.copier.new_id()
    with segment.open() as handle, tier.copier.draft(log, segment, segment_id) as draft:
        ready = prepare(log, segment, handle, draft=draft)
        seen.append(files(folder))
        tier.copier.copy(
            ready,
            handle,
            segment_id=segment_id,
            draft=draft,
            gate=lambda _: seen.append(files(folder)),
        )
    before, announced, log_put = seen
    assert before == announced == []
    assert [Path(path).suffix for path in log_put] == [".log"]
    assert len(files(folder)) == 2


def test_the_gate_is_told_of_both_objects_and_may_stop_the_copy(
    logs: tuple[PartitionLog, ...], tier: Tier
) -> None:
    log = next(log for log in logs if log.rolled_segments)
    segment = log.rolled_segments[0]
    folder = Path(tier.store.url.removeprefix("file://"))
    pieces: list[int] = []

    def stop(size_bytes: int) -> None:
        pieces.append(size_bytes)
        raise ClosedError("stopped")

    segment_id = tier.copier.new_id()
    with segment.open() as handle, tier.copier.draft(log, segment, segment_id) as draft:
        ready = prepare(log, segment, handle, draft=draft)
        with pytest.raises(ClosedError):
            tier.copier.copy(ready, handle, segment_id=segment_id, draft=draft, gate=stop)
    assert pieces == [segment.size_bytes]
    assert files(folder) == []
    assert tier.states() == []


def test_a_file_that_changes_after_its_scan_does_not_matter(tier: Tier, tmp_path: Path) -> None:
    """What was scanned is what was written."""
    log, segment, data = three_batches(tmp_path)
    segment_id = tier.copier.new_id()
    with segment.open() as handle, tier.copier.draft(log, segment, segment_id) as draft:
        ready = prepare(log, segment, handle, draft=draft)
        Path(segment.log_path).write_bytes(bytes(len(data)))
        finished = tier.copier.copy(ready, handle, segment_id=segment_id, draft=draft).metadata
    assert bytes(tier.storage.fetch_log_segment(finished, 0)) == data


def test_a_damaged_segment_leaves_nothing(tier: Tier, tmp_path: Path) -> None:
    log, segment, data = three_batches(tmp_path)
    Path(segment.log_path).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SegmentRefusedError):
        drafted(tier, log, segment)
    assert files(Path(tier.store.url.removeprefix("file://"))) == []
    assert tier.states() == []


# -- crashes


KILLED = """
import os, signal, sys
from tierlog.remote.store.local_store import LocalStore
draft = LocalStore(sys.argv[1]).draft(sys.argv[2], 3 << 20)
os.write(draft.fileno(), bytes(3 << 20))
os.fsync(draft.fileno())
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), KEY], check=False)
    assert done.returncode == -signal.SIGKILL
    assert files(folder) == []


# -- drafts by themselves


def test_a_draft_never_replaces_an_object(store: LocalStore) -> None:
    with store.draft(KEY, 1) as draft:  # type: ignore[union-attr]
        store.put_bytes(KEY, b"here first")
        with pytest.raises(RemoteStorageError, match="exists already"):
            written(draft, b"too late").put()
    assert bytes(store.get_range(KEY, 0, 100)) == b"here first"


def test_a_draft_that_did_not_arrive_whole_is_not_put(store: LocalStore, tmp_path: Path) -> None:
    with store.draft(KEY, 3) as draft:  # type: ignore[union-attr]
        written(draft, b"abc")
        os.ftruncate(draft.fileno(), 2)
        with pytest.raises(RemoteStorageError, match="3 bytes written, 2 arrived"):
            draft.put()
    assert files(tmp_path) == []


def test_only_what_was_written_to_its_end_is_put(store: LocalStore, tmp_path: Path) -> None:
    draft = store.draft(KEY, 3)
    assert draft is not None
    os.write(draft.fileno(), b"abc")
    with pytest.raises(ValueError, match="expected a call of wrote"):
        draft.put()
    draft.close()
    draft.close()
    with pytest.raises(ClosedError, match="draft is closed"):
        draft.put()
    assert files(tmp_path) == []


def test_a_draft_of_other_bytes_is_not_taken(
    logs: tuple[PartitionLog, ...], tier: Tier, tmp_path: Path
) -> None:
    """Whatever goes wrong between scan and copy: size, checksum and key have to fit."""
    log, segment, data = three_batches(tmp_path)
    segment_id, other_id = tier.copier.new_id(), tier.copier.new_id()
    with segment.open() as handle:
        ready = prepare(log, segment, handle)
        for given, content in ((other_id, data), (segment_id, data[:-1] + b"?")):
            with tier.copier.draft(log, segment, given) as draft:
                assert draft is not None
                written(draft, content)
                with pytest.raises(ValueError, match="expected a draft of"):
                    tier.copier.copy(ready, handle, segment_id=segment_id, draft=draft)
    assert files(Path(tier.store.url.removeprefix("file://"))) == []


class FullDraft:
    """A draft on a disk without room."""

    def __init__(self, inner: Draft) -> None:
        self._inner = inner
        self._full = os.open("/dev/full", os.O_WRONLY)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def fileno(self) -> int:
        return self._full

    def close(self) -> None:
        os.close(self._full)


def test_a_full_disk_is_an_error_of_the_store(tier: Tier, tmp_path: Path) -> None:
    log, segment, _ = three_batches(tmp_path)
    segment_id = tier.copier.new_id()
    with segment.open() as handle, tier.copier.draft(log, segment, segment_id) as inner:
        assert inner is not None
        full: Draft = FullDraft(inner)  # type: ignore[assignment]
        with pytest.raises(RemoteStorageError, match="No space left") as caught:
            prepare(log, segment, handle, draft=full)
        full.close()
    assert caught.value.retriable
    assert segment_id in str(caught.value)


# -- stores without drafts


@pytest.fixture(params=["flag", "kernel", "proc"])
def nowhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without nameless files: the flag is unknown, refused, or there is no /proc."""
    if request.param == "flag":
        monkeypatch.delattr(os, "O_TMPFILE")
    elif request.param == "kernel":
        # What an old kernel makes of it: a folder, opened for writing.
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    else:
        monkeypatch.setattr(
            "tierlog.remote.store.local_draft._descriptor_path", lambda _: "/proc/none"
        )


@pytest.mark.usefixtures("nowhere")
def test_no_drafts_where_files_must_have_names(tier: Tier, tmp_path: Path) -> None:
    log, segment, data = three_batches(tmp_path)
    folder = os.open(tmp_path, os.O_RDONLY)
    open_before = open_below(tmp_path)
    assert open_nameless(folder) is None
    assert open_below(tmp_path) == open_before
    os.close(folder)
    with tier.copier.draft(log, segment, tier.copier.new_id()) as draft:
        assert draft is None
    assert bytes(tier.storage.fetch_log_segment(tier.copy(log, segment), 0)) == data


def test_a_system_that_names_no_drafts_is_asked_once(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, segment, data = three_batches(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CopyFailedError, match="not permitted"):
        drafted(tier, log, segment)
    assert files(Path(tier.store.url.removeprefix("file://"))) == []
    with tier.copier.draft(log, segment, tier.copier.new_id()) as draft:
        assert draft is None
    assert bytes(tier.storage.fetch_log_segment(tier.copy(log, segment), 0)) == data


def test_a_folder_removed_on_the_way_fails_one_copy_only(tier: Tier, tmp_path: Path) -> None:
    log, segment, data = three_batches(tmp_path)
    folder = Path(tier.store.url.removeprefix("file://"))
    segment_id = tier.copier.new_id()
    with segment.open() as handle, tier.copier.draft(log, segment, segment_id) as draft:
        ready = prepare(log, segment, handle, draft=draft)
        shutil.rmtree(folder)
        with pytest.raises(CopyFailedError):
            tier.copier.copy(ready, handle, segment_id=segment_id, draft=draft)
    finished = drafted(tier, log, segment)
    assert bytes(tier.storage.fetch_log_segment(finished, 0)) == data


def test_what_stands_before_a_store_is_not_passed_by(tmp_path: Path) -> None:
    log, segment, _ = three_batches(tmp_path)
    real = open_store((tmp_path / "store").as_uri())
    for store in (FailingStore(real, "put_stream", 1, after=False), open_store("memory:///drafts")):
        tier = Tier(tmp_path / "store", store)
        with tier.copier.draft(log, segment, tier.copier.new_id()) as draft:
            assert draft is None
    with pytest.raises(CopyFailedError):
        Tier(tmp_path / "store", FailingStore(real, "put_stream", 1, after=False)).copy(
            log, segment
        )


def test_descriptors_are_given_back(store: LocalStore, tmp_path: Path) -> None:
    for number in range(5):
        with store.draft(KEY.replace("BBBB.log", f"BBB{number}.log"), 3) as draft:  # type: ignore[union-attr]
            if number:
                written(draft, b"abc").put()
    assert open_below(tmp_path) == 0
    assert len(list(store.list())) == 4


# -- the manager


class CountingStore(LocalStore):
    """How the `.log` objects came."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.drafts = self.streams = 0

    def draft(self, key: str, size_bytes: int) -> LocalDraft | None:
        self.drafts += 1
        return super().draft(key, size_bytes)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        self.streams += 1
        super().put_stream(key, chunks, size_bytes, overwrite=overwrite)


@pytest.mark.parametrize("limit", [None, 1 << 30])
@pytest.mark.parametrize("mode", QuotaMode)
def test_a_manager_writes_while_it_scans_unless_it_paces(
    mode: QuotaMode, limit: int | None, tmp_path: Path
) -> None:
    clock = ManualClock()
    quota = QuotaManager.for_copies(
        QuotaConfig(copy_max_bytes_per_second=limit, copy_quota_mode=mode), clock
    )
    store = CountingStore(tmp_path / "store")
    log = GoldenLog(tmp_path, "codec-none-0")
    manager = RemoteLogManager(
        ObjectStorageManager(store),
        InMemoryRemoteLogMetadataManager(),
        broker_id=1,
        clock=clock,
        options=ManagerOptions(copy_quota=quota),
    )
    manager.become_leader(log.partition, 0, log)
    manager.run_until_idle()
    manager.close()
    stored = list(store.list())
    segments = len(log.log.rolled_segments)
    assert len(stored) == 2 * segments
    paced = mode is QuotaMode.PACE and limit is not None
    assert (store.drafts, store.streams) == ((0, segments) if paced else (segments, 0))
    # A draft counts as much as what is sent piece by piece.
    assert quota.snapshot().total_bytes == sum(info.size_bytes for info in stored)
