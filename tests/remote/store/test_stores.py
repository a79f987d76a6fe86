"""The stores: the shared conformance suite, then what is particular to each of them."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from obstore import exceptions as obstore_errors

from tests.descriptors import open_below
from tests.remote.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.remote.store import local_store, obstore_store
from tierlog.remote.store.object_store import file_chunks, open_regular_file
from tierlog.remote.store.obstore_store import ObstoreStore
from tierlog.remote.urls import LocalStore, ObjectStore, open_store
from tierlog.testing.stores import MIB, StoreConformance, patterned, pieces

_numbers = count()


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        store = open_store(f"file://{tmp_path}/not/there/yet")
        store.put_bytes("first", b"")
        store.delete("first")
        return store


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store(f"memory:///conformance/{next(_numbers)}")


@pytest.mark.integration
class TestS3Store(StoreConformance):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> ObjectStore:
        return open_store(f"s3://{s3_server.new_bucket()}/some/prefix", **s3_server.options())

    def test_put_if_absent_has_one_winner(  # type: ignore[override]
        self, store: ObjectStore, s3_server: S3Server
    ) -> None:
        won = self.claim_at_once(store)
        # versitygw looks for the object first and writes it then, so that two claims may pass.
        assert len(won) == 1 or (won and s3_server.kind == "versitygw")
        assert int(bytes(store.get_range("claims/one", 0, 9))) in won


class TestOpenStore:
    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("", "unknown kind of store"),
            ("/var/lib/tier", "unknown kind of store"),
            ("http://example.test/x", "unknown kind of store"),
            ("ftp://host/x", "expected one of file://, memory://, s3://, gs://, az://, hdfs://"),
            ("hdfs:///folder", "NameNode is missing, hdfs://host:port/folder"),
            ("hdfs://host:1/a/../b", "component"),
            ("hdfs://host:1/a:b", "colon"),
            ("hdfs://host:1/.snapshot/x", "snapshot"),
            ("hdfs://nameservice/x", "name a NameNode with its port"),
            ("file://relative/folder", "three slashes"),
            ("file:relative", "absolute"),
            ("file:///a%00b", "NUL"),
            ("file:///a?x=1", "cannot contain \\? or #"),
            ("memory://name", "three slashes"),
            ("memory:///a/../b", "component"),
            ("s3:///prefix", "bucket is missing"),
            ("s3://bucket/../other", "component"),
            ("s3://bucket/a%2F..%2Fb", "component"),
            ("s3://bucket/x?sig=1", "cannot contain \\? or #"),
            ("s3://[::1/x", "not a store URL"),
            ("s3a://bucket/x", "s3a:; .*write s3://bucket/prefix"),
            ("gcs://bucket/x", "write gs://bucket/prefix"),
            ("abfss://data@account.dfs.core.windows.net/x", "write az://container/prefix"),
            ("dbfs:/x", "write file:///dbfs/.* for a store, /dbfs/"),
            ("kafka+s3a://bucket/x", "write s3://bucket/prefix"),
        ],
    )
    def test_refusals(self, url: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            open_store(url)

    def test_credentials_in_the_url_are_refused_and_not_shown(self) -> None:
        with pytest.raises(ConfigError, match="credentials") as caught:
            open_store("s3://AKID:hush@bucket/prefix")
        assert "hush" not in str(caught.value)
        assert "AKID" not in str(caught.value)

    def test_unknown_options(self) -> None:
        with pytest.raises(ConfigError, match="bogus_key"):
            open_store("s3://bucket/x", bogus_key=1)
        with pytest.raises(ConfigError, match="no options"):
            open_store("file:///tmp", region="x")
        with pytest.raises(ConfigError, match="az://container"):
            open_store("az://container/prefix", account_key="not-shown-either")

    @pytest.mark.parametrize(
        "options",
        [
            {"timeout": "1s"},
            {"aws_timeout": "1s"},
            {"AWS_ALLOW_HTTP": True},
            {"config": {"timeout": "1s"}},
            {"client_options": {"bogus": 1}},
            {"client_options": 7},
            {"retry_config": {"bogus": 1}},
            {"retry_config": 5},
            {"client_options": {"timeout": "soon"}},
        ],
        ids=repr,
    )
    def test_misplaced_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="s3://bucket/x"):
            open_store("s3://bucket/x", **options)

    def test_memory_stores_go_by_name(self) -> None:
        name = f"shared-{next(_numbers)}"
        open_store(f"memory:///{name}").put_bytes("k", b"1")
        assert bytes(open_store(f"memory:///{name}/").get_range("k", 0, 1)) == b"1"
        assert list(open_store(f"memory:///other-{name}").list()) == []

    @pytest.mark.parametrize(
        ("url", "is_local"),
        [
            ("file:///folder", True),
            ("memory:///name", True),
            ("kafka+file:///folder", True),
            ("s3://bucket/prefix", False),
            ("kafka+s3://bucket/prefix", False),
            ("hdfs://namenode:8020/folder", False),
        ],
    )
    def test_whether_a_server_sends_the_objects(self, url: str, is_local: bool) -> None:
        assert open_store(url).is_local is is_local

    def test_paths_are_percent_decoded(self, tmp_path: Path) -> None:
        open_store(f"file://{tmp_path}/with%20blank").put_bytes("k", b"1")
        assert (tmp_path / "with blank" / "k").read_bytes() == b"1"
        assert open_store(f"file://{tmp_path}/with%20blank").url.endswith("/with%20blank")


class TestLocalStoreOnly:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "root"

    @pytest.fixture
    def store(self, root: Path) -> LocalStore:
        root.mkdir()
        return LocalStore(root)

    def test_a_missing_root_is_not_an_empty_store(self, root: Path) -> None:
        with pytest.raises(RemoteResourceNotFoundError, match="store's folder is missing"):
            list(LocalStore(root).list())
        with pytest.raises(RemoteResourceNotFoundError):
            LocalStore(root).head("k")
        assert not root.exists()

    def test_symbolic_links_are_never_followed(self, root: Path, store: LocalStore) -> None:
        outside = root.parent / "outside"
        outside.mkdir()
        (outside / "secret").write_bytes(b"secret")
        (root / "folder").symlink_to(outside)
        (root / "file").symlink_to(outside / "secret")
        for key in ("folder/secret", "file"):
            with pytest.raises(RemoteStorageError, match="symbolic link"):
                store.get_range(key, 0, 1)
        with pytest.raises(RemoteStorageError, match="symbolic link"):
            store.put_bytes("folder/new", b"x")
        with pytest.raises(RemoteResourceNotFoundError):
            store.head("file")
        with pytest.raises(RemoteStorageError, match="exists already"):
            store.put_bytes("file", b"x")
        with pytest.raises(RemoteStorageError, match="symbolic link"):
            store.delete("folder/secret")
        assert list(store.list()) == []
        assert sorted(path.name for path in outside.iterdir()) == ["secret"]
        assert (outside / "secret").read_bytes() == b"secret"

    def test_pipes_and_folders_are_no_objects(self, root: Path, store: LocalStore) -> None:
        os.mkfifo(root / "pipe")
        (root / "folder").mkdir()
        for key in ("pipe", "folder"):
            with pytest.raises(RemoteStorageError):
                store.get_range(key, 0, 1)
            with pytest.raises(RemoteResourceNotFoundError):
                store.head(key)
        assert list(store.list()) == []

    def test_half_written_objects_stay_hidden(self, root: Path, store: LocalStore) -> None:
        seen: list[list[str]] = []

        def watching() -> Iterator[bytes]:
            yield b"half"
            seen.append(os.listdir(root / "f"))
            yield b"rest"

        store.put_stream("f/k", watching(), 8)
        (hidden,) = seen[0]
        assert re.fullmatch(r"\.tierlog-[0-9a-f]{32}\.tmp", hidden)
        (root / "f" / ".tierlog-00.tmp").write_bytes(b"left by a crash")
        assert [info.key for info in store.list()] == ["f/k"]

    def test_names_that_no_key_can_have_are_passed_over(
        self, root: Path, store: LocalStore
    ) -> None:
        (root / "line\nbreak").write_bytes(b"x")
        Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_bytes(b"x")
        store.put_bytes("fine", b"x")
        assert [info.key for info in store.list()] == ["fine"]

    def test_everything_is_synced_before_it_shows(
        self, root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        real_fsync, real_rename = os.fsync, local_store.rename_new

        def fsync(descriptor: int) -> None:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            calls.append(f"fsync {os.path.relpath(target, root)}")
            real_fsync(descriptor)

        def rename(source: str, target: str, folder: int) -> None:
            calls.append(f"rename {target}")
            real_rename(source, target, folder)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(local_store, "rename_new", rename)
        store.put_bytes("a/b/k", b"x")
        assert calls[:3] == ["fsync ..", "fsync .", "fsync a"]
        assert re.fullmatch(r"fsync a/b/\.tierlog-[0-9a-f]{32}\.tmp", calls[3])
        assert calls[4:] == ["rename k", "fsync a/b"]

    @pytest.mark.parametrize("file_system_can", [True, False])
    def test_what_a_crash_left_goes_with_the_object(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, file_system_can: bool
    ) -> None:
        store = LocalStore(root)

        def dying() -> Iterator[bytes]:
            yield b"half"
            shutil.copytree(root, root.parent / "crashed")
            yield b"rest"

        store.put_stream("f/k", dying(), 8)
        crashed = LocalStore(root.parent / "crashed")
        assert len(os.listdir(root.parent / "crashed/f")) == 1
        if not file_system_can:
            monkeypatch.setattr(local_store, "_renameat2", lambda *_: -1)
        crashed.put_bytes("f/k", b"again")
        assert crashed.put_if_absent("f/k", b"other") is False
        assert len(os.listdir(root.parent / "crashed/f")) == 2
        crashed.delete("f/k")
        assert os.listdir(root.parent / "crashed/f") == []

    @pytest.mark.parametrize("call", ["write", "fsync", "rename_new"])
    def test_a_failing_disk_leaves_nothing(
        self, root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        store.put_bytes("f/before", b"x")

        def fail(*_args: object, **_kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(local_store if call == "rename_new" else os, call, fail)
            with pytest.raises(RemoteStorageError, match="f/k: No space left") as caught:
                store.put_bytes("f/k", b"x")
        assert caught.value.retriable
        assert os.listdir(root / "f") == ["before"]

    def test_a_removed_folder_is_made_again(self, root: Path, store: LocalStore) -> None:
        store.put_bytes("a/b/1", b"x")
        (root / "a/b/1").unlink()
        (root / "a/b").rmdir()
        (root / "a").rmdir()
        store.put_bytes("a/b/2", b"y")
        assert bytes(store.get_range("a/b/2", 0, 1)) == b"y"

    def test_open_files_are_bounded_and_let_go(self, root: Path) -> None:
        clock = ManualClock()
        store = LocalStore(root, clock=clock, max_open_files=3)
        for number in range(10):
            store.put_bytes(f"k{number}", b"x")
        assert open_below(root) == 0
        for number in range(10):
            store.get_range(f"k{number}", 0, 1)
        assert open_below(root) == 3
        # An object somebody else removed is noticed once the descriptor is a second old.
        (root / "k9").unlink()
        assert store.get_range("k9", 0, 1) == b"x"
        clock.advance(1_000)
        with pytest.raises(RemoteResourceNotFoundError):
            store.get_range("k9", 0, 1)
        del store
        assert open_below(root) == 0

    def test_reads_survive_eviction_by_other_threads(self, root: Path) -> None:
        store = LocalStore(root, clock=ManualClock(), max_open_files=1)
        contents = {f"k{number}": str(number).encode() * 64 for number in range(8)}
        for key, data in contents.items():
            store.put_bytes(key, data)
        wrong: list[str] = []

        def read(keys: list[str]) -> None:
            for _ in range(300):
                wrong.extend(key for key in keys if store.get_range(key, 0, 64) != contents[key])

        threads = [threading.Thread(target=read, args=(list(contents)[n:],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_a_huge_declared_length_allocates_nothing(self, store: LocalStore) -> None:
        store.put_bytes("k", b"0123456789")
        assert store.get_range("k", 2, 1 << 46) == b"23456789"

    def test_pickle(self, store: LocalStore) -> None:
        store.put_bytes("k", b"1")
        assert pickle.loads(pickle.dumps(store)).get_range("k", 0, 1) == b"1"

    def test_two_processes_claim_one_key(self, root: Path, store: LocalStore) -> None:
        script = (
            "import sys; from tierlog.remote.urls import open_store; sys.stdin.readline();"
            "print(open_store(sys.argv[1]).put_if_absent('claim', sys.argv[2].encode()))"
        )
        command = [sys.executable, "-c", script, store.url]
        claimants = [
            subprocess.Popen(
                [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name in ("one", "two")
        ]
        for claimant in claimants:
            assert claimant.stdin is not None
            claimant.stdin.write("go\n")
            claimant.stdin.flush()
        answers = [claimant.communicate(timeout=60)[0].strip() for claimant in claimants]
        assert sorted(answers) == ["False", "True"]
        assert (root / "claim").read_text() == ("one" if answers[0] == "True" else "two")


class TestFileChunks:
    def test_in_order_and_bounded(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_bytes(patterned(2_500_000))
        descriptor = open_regular_file(tmp_path / "f")
        try:
            chunks = list(file_chunks(descriptor, 2_400_001))
            assert [len(chunk) for chunk in chunks] == [MIB, MIB, 2_400_001 - 2 * MIB]
            assert b"".join(chunks) == patterned(2_400_001)
            assert sum(len(chunk) for chunk in file_chunks(descriptor, 9_999_999)) == 2_500_000
        finally:
            os.close(descriptor)

    def test_only_regular_files_open(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to(tmp_path / "pipe")
        for name in ("pipe", "link", "missing", "."):
            with pytest.raises(OSError, match=name if name != "." else str(tmp_path)):
                open_regular_file(tmp_path / name)


class TestObstoreErrors:
    def test_every_exception_class_is_mapped(self) -> None:
        known = {
            value
            for value in vars(obstore_errors).values()
            if isinstance(value, type) and issubclass(value, BaseException)
        }
        # obstore raises the builtin FileNotFoundError instead of this one.
        assert known - {obstore_errors.NotFoundError} == set(obstore_store._ERROR_RETRIABLE)

    @pytest.mark.parametrize("kind", list(obstore_store._ERROR_RETRIABLE), ids=lambda k: k.__name__)
    def test_mapping(self, kind: type[Exception]) -> None:
        store = ObstoreStore(None, "s3://bucket/p", secrets=["hush-hush"])  # type: ignore[arg-type]
        with pytest.raises(RemoteStorageError) as caught, store._storage_errors("some/key"):
            raise kind("PUT http://h/x?X-Amz-Signature=abc with hush-hush\n\nDebug source:\nhush")
        assert str(caught.value) == "s3://bucket/p: some/key: PUT http://h/x?... with ***"
        assert caught.value.retriable is obstore_store._ERROR_RETRIABLE[kind]
        assert caught.value.__suppress_context__

    def test_secrets_of_the_environment_are_masked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token")
        store = ObstoreStore(None, "s3://bucket/p")  # type: ignore[arg-type]
        with pytest.raises(RemoteStorageError, match=r"x \*\*\* y"), store._storage_errors("k"):
            raise obstore_errors.GenericError("x canary-token y")


@pytest.mark.integration
class TestS3Only:
    def test_failed_uploads_leave_no_parts(self, s3_server: S3Server) -> None:
        bucket = s3_server.new_bucket()
        store = open_store(f"s3://{bucket}/p", **s3_server.options())

        def broken() -> Iterator[bytes]:
            yield from pieces(patterned(20 * MIB))
            raise OSError("source went away")

        with pytest.raises(OSError, match="source went away"):
            store.put_stream("big.log", broken(), 30 * MIB)
        client = s3_server.client()
        assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
        assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0

    def test_the_environment_alone_is_enough(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        place = f"s3://{s3_server.new_bucket()}/p"
        with pytest.raises(ConfigError, match="set AWS_ALLOW_HTTP=true"):
            open_store(place)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        open_store(place).put_bytes("k", b"1")
        assert bytes(open_store(place).get_range("k", 0, 1)) == b"1"

    def test_keys_lie_beneath_the_prefix(self, s3_server: S3Server) -> None:
        bucket = s3_server.new_bucket()
        open_store(f"s3://{bucket}/p/q", **s3_server.options()).put_bytes("a/k", b"1")
        listed = s3_server.client().list_objects_v2(Bucket=bucket)["Contents"]
        assert [entry["Key"] for entry in listed] == ["p/q/a/k"]

    def test_errors_name_the_place_and_show_no_credentials(self, s3_server: S3Server) -> None:
        store = open_store("s3://no-such-bucket/p", **s3_server.options())
        for call in (
            lambda: store.put_bytes("k", b"x"),
            lambda: store.get_range("k", 0, 1),
            lambda: list(store.list("k")),
        ):
            with pytest.raises(RemoteStorageError, match=r"s3://no-such-bucket/p: .*k") as caught:
                call()
            shown = str(caught.value) + repr(caught.value) + repr(store)
            assert SECRET_KEY not in shown
            assert ACCESS_KEY not in shown
            assert "Debug source" not in shown

    def test_pickle(self, s3_server: S3Server) -> None:
        bucket = s3_server.new_bucket()
        store = open_store(f"s3://{bucket}/p", **s3_server.options())
        store.put_bytes("k", b"1")
        assert bytes(pickle.loads(pickle.dumps(store)).get_range("k", 0, 1)) == b"1"
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(open_store("memory:///pickled"))

    def test_a_silent_server_is_not_waited_for(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            store = open_store(
                "s3://bucket/p",
                endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}",
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
                client_options={"allow_http": True, "timeout": "300ms"},
                retry_config={"max_retries": 0},
            )
            with pytest.raises(RemoteStorageError) as caught:
                store.get_range("k", 0, 1)
            assert caught.value.retriable

    def test_a_fork_of_a_process_that_used_a_store_says_so(self, s3_server: S3Server) -> None:
        script = f"""
import os, sys
from tierlog.errors import ConfigError
from tierlog.remote.urls import open_store
options = {s3_server.options()!r}
store = open_store("s3://{s3_server.new_bucket()}/p", **options)
store.put_bytes("k", b"1")
child = os.fork()
if child == 0:
    try:
        open_store("s3://other/p", **options)
    except ConfigError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 7

    def test_memory_in_flight_is_bounded(self, s3_server: S3Server) -> None:
        script = f"""
import sys
from tierlog.remote.urls import open_store
store = open_store("s3://{s3_server.new_bucket()}/p", **{s3_server.options()!r})
store.put_stream("warm", (bytes(1 << 20) for _ in range(16)), 16 << 20)
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
before = peak()
store.put_stream("big", (bytes(1 << 20) for _ in range(256)), 256 << 20)
print(peak() - before)
"""
        done = subprocess.run(
            [sys.executable, "-c", script], timeout=300, capture_output=True, text=True, check=True
        )
        assert int(done.stdout) <= 64 << 10


def test_hints_to_the_disk_are_only_hints(tmp_path: Path) -> None:
    """They reach the kernel for a real file, change no byte, and are harmless for a closed one."""
    path = tmp_path / "f"
    with path.open("wb") as file:
        assert local_store._fallocate(file.fileno(), 0, 0, 4096) in (0, -1)
        file.write(b"x" * 4096)
        file.flush()
        assert local_store._sync_file_range(file.fileno(), 0, 4096, 2) == 0
    assert path.read_bytes() == b"x" * 4096
    assert local_store._sync_file_range(-1, 0, 4096, 2) == -1
    assert local_store._fallocate(-1, 0, 0, 4096) == -1


def test_who_was_first_leaves_the_hidden_file_of_the_next_alone(tmp_path: Path) -> None:
    """Writers of one object share its hidden name one after the other."""
    store = LocalStore(str(tmp_path))

    def put(number: int, together: threading.Barrier, key: str) -> bool:
        together.wait()
        return store.put_if_absent(key, b"%d" % number)

    with ThreadPoolExecutor(4) as threads:
        for round_number in range(300):
            together, key = threading.Barrier(4), f"a/{round_number}"
            won = list(threads.map(put, range(4), [together] * 4, [key] * 4))
            assert sorted(won) == [False, False, False, True]
            assert store.get_range(key, 0, 1) == b"%d" % won.index(True)
    assert [name for name in os.listdir(tmp_path / "a") if name.startswith(".")] == []
