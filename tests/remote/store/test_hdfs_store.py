"""The store on HDFS against a real cluster: the conformance suite, lost answers, dead nodes, and
whole partitions there and back. Hadoop's own shell says what lies there."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tests.kafka_tools.support import LOOPBACK, free_ports, wait_until
from tests.remote.hdfs_cluster import HdfsCluster, running_hdfs
from tests.remote.hdfs_proxy import Fault, NameNodeProxy
from tierlog.cli import main
from tierlog.clock import ManualClock, SystemClock
from tierlog.errors import ConfigError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import log_key, partition_prefix
from tierlog.remote.segment.log_index import decode_remote_log_index
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store import hdfs_client, hdfs_store
from tierlog.remote.store.hdfs_client import Failure, HdfsOptions
from tierlog.remote.urls import ObjectStore, open_store
from tierlog.sidecar import Sidecar
from tierlog.testing.stores import MIB, StoreConformance, patterned, pieces

CLEAN = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]
# Longer than any answer of a healthy cluster on a busy machine, short enough to wait for.
TIMEOUT_S = 3.0
# In which a call with its own deadline has failed on any machine; the store's default is longer.
SOON_MS = 15_000
_numbers = count()

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def hdfs() -> Iterator[HdfsCluster]:
    with running_hdfs() as cluster:
        yield cluster


@pytest.fixture
def proxy(hdfs: HdfsCluster) -> Iterator[NameNodeProxy]:
    with NameNodeProxy(hdfs.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def tier_url(hdfs: HdfsCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with every segment of the golden broker that may be copied."""
    url = f"{hdfs.url}/tier/kafka"
    state = tmp_path_factory.mktemp("state")
    with Sidecar(CLEAN, url, state_dir=str(state), clock=ManualClock()) as sidecar:
        assert sidecar.run_once().ok
    return url


def folder_of(store: ObjectStore) -> str:
    return "/" + store.url.split("/", 3)[3]


def hidden_files(hdfs: HdfsCluster, store: ObjectStore) -> list[str]:
    code, printed = hdfs.shell("-find", folder_of(store), "-name", ".tierlog-*")
    return printed.decode().split() if code == 0 else []


def took_ms(call: Callable[[], object], failure: type[Exception] = RemoteStorageError) -> int:
    """How long `call` took to fail, and that it may be tried again."""
    clock = SystemClock()
    begin_ms = clock.monotonic_ms()
    with pytest.raises(failure) as caught:
        call()
    assert getattr(caught.value, "retriable", True)
    return clock.monotonic_ms() - begin_ms


def failure_of(call: Callable[[], object]) -> str:
    with pytest.raises(RemoteStorageError) as caught:
        call()
    return str(caught.value)


class TestHdfsStore(StoreConformance):
    @pytest.fixture
    def store(self, hdfs: HdfsCluster) -> ObjectStore:
        return hdfs.new_store()

    def test_list_goes_over_many_pages(self, store: ObjectStore) -> None:
        """The NameNode of these tests sends 50 names at a time."""
        keys = {f"pages/{number // 110}/{number:05}" for number in range(130)}
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: store.put_bytes(key, b"x"), keys))
        listed = [info.key for info in store.list("pages")]
        assert len(listed) == len(keys)
        assert set(listed) == keys


class TestWhatLiesThere:
    def test_files_are_named_as_their_keys(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store(replication=1, block_size_bytes=MIB)
        data = patterned(2 * MIB + 77)
        store.put_stream("orders-x/0/one.log", pieces(data, 100_000), len(data))
        path = f"{folder_of(store)}/orders-x/0/one.log"
        assert hdfs.shell("-cat", path) == (0, data)
        assert hdfs.shell("-stat", "%n %b %r %o", path)[1] == b"one.log 2097229 1 1048576\n"
        assert hidden_files(hdfs, store) == []

    def test_what_hdfs_keeps_for_itself_is_encoded(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store()
        keys = {"a:b/c%3Ad", ".snapshot/x", ".reserved", "50%"}
        for key in keys:
            store.put_bytes(key, key.encode())
            assert store.get_range(key, 0, 99) == key.encode()
        assert {info.key for info in store.list()} == keys
        assert {info.key for info in store.list("a:b")} == {"a:b/c%3Ad"}
        _, printed = hdfs.shell("-ls", "-C", "-R", folder_of(store))
        names = {name.rpartition("/")[2] for name in printed.decode().split()}
        assert names >= {"c%253Ad", "%2Esnapshot", "%2Ereserved", "50%25"}
        store.delete("a:b/c%3Ad")
        assert {info.key for info in store.list("a:b")} == set()

    def test_what_others_put_there_is_passed_over(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store()
        store.put_bytes("ours", b"x")
        for name in ("%41", "%ff", ".tierlog-00.tmp", "tab%09"):
            assert hdfs.shell("-touchz", f"{folder_of(store)}/{name}")[0] == 0
        assert [info.key for info in store.list()] == ["ours"]

    def test_a_folder_is_no_object(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store()
        store.put_bytes("folder/x", b"1")
        with pytest.raises(RemoteResourceNotFoundError):
            store.head("folder")
        with pytest.raises(RemoteResourceNotFoundError):
            store.get_range("folder", 0, 1)
        calls: list[Callable[[], object]] = [
            lambda: store.put_bytes("folder", b"2"),
            lambda: store.put_bytes("folder/x/below", b"2"),
            lambda: store.delete("folder"),
        ]
        for call in calls:
            with pytest.raises(RemoteStorageError) as caught:
                call()
            assert not caught.value.retriable
        assert store.get_range("folder/x", 0, 1) == b"1"
        assert hidden_files(hdfs, store) == []

    def test_leftovers_of_crashes_go_after_a_day(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store()
        folder = folder_of(store)
        store.put_bytes("a/one", b"1")
        # Kafka's first release: as old as the files of others may get, and a fresh one of ours.
        for name in (".tierlog-0a.tmp", ".tierlog-not-ours", "z.log"):
            hdfs.shell("-touch", "-t", "20110101:000000", f"{folder}/a/{name}")
        hdfs.shell("-touch", f"{folder}/a/.tierlog-0b.tmp")
        store.put_bytes("a/two", b"2")
        assert len(self.names(hdfs, f"{folder}/a")) == 6
        open_store(store.url).put_bytes("a/three", b"3")
        expected = {".tierlog-0b.tmp", ".tierlog-not-ours", "z.log", "one", "two", "three"}
        wait_until(lambda: set(self.names(hdfs, f"{folder}/a")) == expected, 20)

    def names(self, hdfs: HdfsCluster, folder: str) -> list[str]:
        return [
            line.rpartition("/")[2] for line in hdfs.shell("-ls", "-C", folder)[1].decode().split()
        ]


class TestLostAnswers:
    def store(self, proxy: NameNodeProxy, **options: Any) -> ObjectStore:
        place = f"hdfs://{LOOPBACK}:{proxy.port}/lost/{next(_numbers)}"
        return open_store(place, timeout_s=TIMEOUT_S, **options)

    @pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.CUT_AFTER])
    def test_a_rename_that_happened_is_a_put_that_succeeded(
        self, hdfs: HdfsCluster, proxy: NameNodeProxy, fault: Fault
    ) -> None:
        store = self.store(proxy)
        puts: list[Callable[[], object]] = [
            lambda: store.put_bytes("a/1", b"xyz"),
            lambda: store.put_stream("a/2", iter([b"x", b"yz"]), 3),
            lambda: store.put_if_absent("a/3", b"xyz"),
        ]
        for put in puts:
            proxy.inject("rename2", fault)
            assert put() in (None, True)
        assert proxy.struck == ["rename2"] * 3
        assert {info.key: info.size_bytes for info in store.list()} == dict.fromkeys(
            ("a/1", "a/2", "a/3"), 3
        )
        assert hidden_files(hdfs, store) == []

    def test_a_rename_that_did_not_happen_is_made_again(
        self, hdfs: HdfsCluster, proxy: NameNodeProxy
    ) -> None:
        store = self.store(proxy)
        proxy.inject("rename2", Fault.CUT_BEFORE)
        assert store.put_if_absent("a/1", b"xyz") is True
        proxy.inject("rename2", Fault.CUT_BEFORE)
        with pytest.raises(RemoteStorageError, match="not stored") as caught:
            store.put_stream("a/2", iter([b"xyz"]), 3)
        assert caught.value.retriable
        assert [info.key for info in store.list()] == ["a/1"]
        assert hidden_files(hdfs, store) == []

    def test_a_late_rename_finds_nothing(self, hdfs: HdfsCluster, proxy: NameNodeProxy) -> None:
        store = self.store(proxy)
        proxy.inject("rename2", Fault.KEEP_BACK)
        with pytest.raises(RemoteStorageError, match="not stored"):
            store.put_stream("a/1", iter([b"xyz"]), 3)
        store.put_bytes("a/1", b"another")
        store.delete("a/1")
        proxy.release()
        assert proxy.delivered.wait(20)
        with pytest.raises(RemoteResourceNotFoundError):
            store.head("a/1")
        assert hidden_files(hdfs, store) == []

    def test_when_nobody_can_tell_the_same_put_again_tells(
        self, hdfs: HdfsCluster, proxy: NameNodeProxy
    ) -> None:
        store = self.store(proxy)
        store.put_bytes("a/0", b"")
        # The first look is at the closed file, the second one after the rename.
        proxy.inject("getFileInfo", Fault.LOSE_ANSWER, skip=1)
        proxy.inject("rename2", Fault.LOSE_ANSWER)
        with pytest.raises(RemoteStorageError, match="unknown") as caught:
            store.put_bytes("a/1", b"xyz")
        assert caught.value.retriable
        store.put_bytes("a/1", b"xyz")
        assert store.get_range("a/1", 0, 9) == b"xyz"
        assert hidden_files(hdfs, store) == []

    def test_a_file_that_is_opened_too_late_is_removed(
        self, hdfs: HdfsCluster, proxy: NameNodeProxy
    ) -> None:
        store = self.store(proxy)
        store.put_bytes("a/0", b"")
        proxy.inject("create", Fault.LOSE_ANSWER)
        assert took_ms(lambda: store.put_bytes("a/1", b"xyz")) < SOON_MS
        wait_until(lambda: hidden_files(hdfs, store) == [], 20)
        proxy.inject("create", Fault.KEEP_BACK)
        assert took_ms(lambda: store.put_bytes("a/1", b"xyz")) < SOON_MS
        proxy.release()
        assert proxy.delivered.wait(20)
        wait_until(lambda: hidden_files(hdfs, store) == [], 20)
        assert [info.key for info in store.list()] == ["a/0"]

    def test_a_silent_connection_is_left_behind(self, proxy: NameNodeProxy) -> None:
        store = self.store(proxy)
        for key in ("j", "k"):
            store.put_bytes(key, b"xyz")
        calls: dict[str, Callable[[], object]] = {
            "getBlockLocations": lambda: store.get_range("k", 0, 3),
            "getFileInfo": lambda: store.head("k"),
            "getListing": lambda: [info.key for info in store.list()],
            "delete": lambda: store.delete("j"),
        }
        for method in calls:
            proxy.inject(method, Fault.LOSE_ANSWER)
        with ThreadPoolExecutor(4) as threads:
            assert max(threads.map(took_ms, calls.values())) < SOON_MS
        for call in calls.values():
            call()
        assert set(proxy.struck) == set(calls)

    def test_a_broken_connection_is_made_again(self, proxy: NameNodeProxy) -> None:
        store = self.store(proxy)
        store.put_bytes("k", b"xyz")
        for method in ("getBlockLocations", "getFileInfo", "getListing", "create"):
            proxy.inject(method, Fault.CUT_BEFORE)
        assert store.get_range("k", 0, 3) == b"xyz"
        assert store.head("k").size_bytes == 3
        assert [info.key for info in store.list()] == ["k"]
        store.put_bytes("l", b"xyz")
        proxy.inject("delete", Fault.CUT_AFTER)
        store.delete("k")
        assert [info.key for info in store.list()] == ["l"]
        assert len(proxy.struck) == 5

    def test_a_listing_goes_on_where_it_broke(
        self, proxy: NameNodeProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hdfs_store, "_LIST_PAGE", 20)
        store = self.store(proxy)
        keys = {f"p/{number:03}" for number in range(60)}
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda key: store.put_bytes(key, b""), keys))
        listing = store.list()
        found = [next(listing).key]
        # hdfs-native itself asks once more.
        for _ in range(2):
            proxy.inject("getListing", Fault.CUT_AFTER)
        found += [info.key for info in listing]
        assert len(proxy.struck) == 2
        assert sorted(found) == sorted(keys)


class TestDeadlines:
    CALLS: tuple[Callable[[ObjectStore], object], ...] = (
        lambda store: store.put_bytes("k", b"x"),
        lambda store: store.put_stream("k", iter([b"x"]), 1),
        lambda store: store.put_if_absent("k", b"x"),
        lambda store: store.get_range("k", 0, 1),
        lambda store: store.head("k"),
        lambda store: list(store.list()),
        lambda store: store.delete("k"),
    )

    def test_a_closed_port(self) -> None:
        (port,) = free_ports(1)
        store = open_store(f"hdfs://{LOOPBACK}:{port}/x", timeout_s=0.4)
        for call in self.CALLS:
            assert took_ms(lambda call=call: call(store)) < SOON_MS  # type: ignore[misc]

    def test_a_closed_port_is_tried_a_few_times_only(self) -> None:
        (port,) = free_ports(1)
        store = open_store(f"hdfs://{LOOPBACK}:{port}/x")
        assert took_ms(lambda: store.head("k")) < 10_000

    def test_an_unknown_host(self) -> None:
        store = open_store("hdfs://no-such-host.invalid:8020/x", timeout_s=2)
        assert took_ms(lambda: store.head("k")) < SOON_MS

    def test_a_socket_that_says_nothing(self) -> None:
        with socket.create_server((LOOPBACK, 0)) as silent:
            place = f"hdfs://{LOOPBACK}:{silent.getsockname()[1]}/x"
            store = open_store(place, timeout_s=0.3)
            for call in self.CALLS:
                assert took_ms(lambda call=call: call(store)) < SOON_MS  # type: ignore[misc]

    def test_many_who_wait_are_told_at_the_same_time(self) -> None:
        with socket.create_server((LOOPBACK, 0)) as silent:
            place = f"hdfs://{LOOPBACK}:{silent.getsockname()[1]}/x"
            store = open_store(place, timeout_s=1)
            with ThreadPoolExecutor(16) as threads:
                waits = list(threads.map(lambda _: took_ms(lambda: store.head("k")), range(16)))
        assert max(waits) < SOON_MS, "one after the other"
        assert threading.active_count() < 50

    def test_calls_in_vain_do_not_pile_up(self) -> None:
        with socket.create_server((LOOPBACK, 0)) as silent:
            port = silent.getsockname()[1]
            store = open_store(f"hdfs://{LOOPBACK}:{port}/x", timeout_s=0.05)
            before = threading.active_count()
            for _ in range(60):
                took_ms(lambda: store.head("k"))
            with pytest.raises(RemoteStorageError, match="32 earlier calls still have no answer"):
                store.head("k")
            assert threading.active_count() <= before + 32
        # The NameNode has gone for good: those who waited for it end.
        wait_until(lambda: "earlier" not in failure_of(lambda: store.head("k")), 20)

    def test_a_namenode_that_stops_in_the_middle(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store(timeout_s=TIMEOUT_S)
        store.put_bytes("a/before", b"x")
        data = patterned(9 * MIB)

        def stopping(stopped: list[Any]) -> Iterator[bytes]:
            yield data[: 2 * MIB]
            stopped.append(hdfs.without_namenode())
            stopped[0].__enter__()
            yield data[2 * MIB :]

        stopped: list[Any] = []
        try:
            assert took_ms(lambda: store.put_stream("a/k", stopping(stopped), len(data))) < 30_000
            assert took_ms(lambda: store.get_range("a/before", 0, 1)) < 10_000
        finally:
            stopped[0].__exit__(None, None, None)
        assert [info.key for info in store.list()] == ["a/before"]
        store.put_stream("a/k", pieces(data), len(data))
        assert store.get_range("a/k", 0, len(data)) == data
        assert len(hidden_files(hdfs, store)) <= 1


class TestDataNodes:
    def test_one_is_gone_and_still_offered(self, hdfs: HdfsCluster) -> None:
        """A put begins anew until the NameNode offers another one; by bad luck it never does."""
        store = hdfs.new_store(replication=1)
        data = patterned(2 * MIB)
        failures = 0
        with hdfs.without_datanode(hdfs.datanodes()[0]):
            wanted = {f"large/{number}" for number in range(4)}
            while wanted:
                try:
                    store.put_stream(min(wanted), pieces(data), len(data))
                    wanted.remove(min(wanted))
                except RemoteStorageError as error:
                    if not error.retriable:
                        raise
                    failures += 1
        assert failures <= 3
        assert len(list(store.list())) == 4
        assert store.get_range("large/3", 0, len(data)) == data
        assert hidden_files(hdfs, store) == []

    @pytest.mark.parametrize("best_effort", [True, False])
    def test_one_goes_while_an_object_is_written(
        self, hdfs: HdfsCluster, best_effort: bool
    ) -> None:
        """Of three copies one stops growing; Hadoop's setting says whether two are enough."""
        setting = "dfs.client.block.write.replace-datanode-on-failure.best-effort"
        store = hdfs.new_store(replication=3, config={setting: str(best_effort).lower()})
        data = patterned(3 * MIB)
        gone: list[Any] = []

        def losing() -> Iterator[bytes]:
            yield data[:MIB]
            gone.append(hdfs.without_datanode(hdfs.datanodes()[1]))
            gone[0].__enter__()
            yield data[MIB:]

        try:
            if best_effort:
                store.put_stream("k", losing(), len(data))
                assert store.get_range("k", 0, len(data)) == data
            else:
                took_ms(lambda: store.put_stream("k", losing(), len(data)))
                assert list(store.list()) == []
        finally:
            gone[0].__exit__(None, None, None)
        assert hidden_files(hdfs, store) == []
        assert hdfs.shell("-cat", f"{folder_of(store)}/k")[1] == (data if best_effort else b"")

    def test_two_go_between_two_reads(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store(replication=3)
        data = patterned(5 * MIB)
        store.put_bytes("k", data)
        assert store.get_range("k", MIB, 100) == data[MIB : MIB + 100]
        first, second, _ = hdfs.datanodes()
        with hdfs.without_datanode(first), hdfs.without_datanode(second):
            for position in (0, MIB, 4 * MIB):
                assert store.get_range("k", position, MIB) == data[position : position + MIB]

    def test_all_are_gone(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store(timeout_s=TIMEOUT_S)
        store.put_bytes("k", b"xyz")
        first, second, third = hdfs.datanodes()
        with (
            hdfs.without_datanode(first),
            hdfs.without_datanode(second),
            hdfs.without_datanode(third),
        ):
            calls = (lambda: store.get_range("k", 0, 3), lambda: store.put_bytes("l", b"xyz"))
            with ThreadPoolExecutor(2) as threads:
                read_ms, put_ms = threads.map(took_ms, calls)
            assert read_ms < SOON_MS
            assert put_ms < SOON_MS
        assert store.get_range("k", 0, 3) == b"xyz"
        assert [info.key for info in store.list()] == ["k"]


class TestOpening:
    def test_options(self) -> None:
        for options, message in (
            ({"bogus": 1}, "unknown options .'bogus'.*timeout_s"),
            ({"timeout_s": 0}, "timeout_s"),
            ({"timeout_s": "30"}, "timeout_s"),
        ):
            with pytest.raises(ConfigError, match=message):
                open_store("hdfs://host:8020/x", **options)

    def test_a_name_service_of_the_settings(self, hdfs: HdfsCluster) -> None:
        """The first NameNode is down, the second one answers."""
        (closed,) = free_ports(1)
        settings = {
            "dfs.ha.namenodes.pair": "one,two",
            "dfs.namenode.rpc-address.pair.one": f"{LOOPBACK}:{closed}",
            "dfs.namenode.rpc-address.pair.two": f"{LOOPBACK}:{hdfs.port}",
        }
        store = open_store(f"hdfs://pair/pair/{next(_numbers)}", config=settings)
        store.put_bytes("k", b"xyz")
        assert store.get_range("k", 0, 9) == b"xyz"
        assert [info.key for info in store.list()] == ["k"]

    def test_without_the_extra(self) -> None:
        script = (
            "import sys; sys.modules['hdfs_native'] = None\n"
            "from tierlog.errors import ConfigError\n"
            "from tierlog.remote.urls import open_store\n"
            "try:\n    open_store('hdfs://host:8020/x')\n"
            "except ConfigError as error:\n    print(error)\n"
        )
        command = [sys.executable, "-c", script]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "pip install 'tierlog[hdfs]'" in shown

    def test_pickle(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store(timeout_s=7, replication=1)
        store.put_bytes("k", b"1")
        copy = pickle.loads(pickle.dumps(store))
        assert copy.get_range("k", 0, 1) == b"1"
        assert copy._options == HdfsOptions(timeout_s=7, replication=1)

    def test_nothing_of_the_settings_is_shown(self) -> None:
        store = open_store(
            "hdfs://host.invalid:8020/x",
            timeout_s=1,
            config={"hadoop.token": "hush"},
            kerberos_principal="someone@SECRET",
        )
        with pytest.raises(RemoteStorageError, match=r"^hdfs://host.invalid:8020/x: k: ") as caught:
            store.head("k")
        shown = str(caught.value) + repr(store) + repr(caught.value)
        assert "hush" not in shown
        assert "SECRET" not in shown

    def test_two_processes_claim_one_key(self, hdfs: HdfsCluster) -> None:
        store = hdfs.new_store()
        script = (
            "import sys; from tierlog.remote.urls import open_store; sys.stdin.readline();"
            "print(open_store(sys.argv[1]).put_if_absent('claim', sys.argv[2].encode()))"
        )
        claimants = [
            subprocess.Popen(
                [sys.executable, "-c", script, store.url, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("one", "two")
        ]
        for claimant in claimants:
            assert claimant.stdin is not None
            claimant.stdin.write("go\n")
            claimant.stdin.flush()
        answers = [claimant.communicate(timeout=60)[0].strip() for claimant in claimants]
        assert sorted(answers) == ["False", "True"]
        winner = b"one" if answers[0] == "True" else b"two"
        assert store.get_range("claim", 0, 9) == winner

    def test_a_fork_may_use_what_its_parent_only_opened(self, hdfs: HdfsCluster) -> None:
        script = f"""
import os, sys
from tierlog.errors import ConfigError
from tierlog.remote.urls import open_store
def in_child(work):
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def use():
    store.put_bytes("k" + str(os.getpid()), b"1")
    return 3
def refused():
    try:
        use()
    except ConfigError as error:
        return 7 if "forked" in str(error) else 8
store = open_store({hdfs.new_url()!r})
codes = [in_child(use)]
store.put_bytes("k", b"1")
codes.append(in_child(refused))
print(codes)
"""
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, timeout=60, check=True, capture_output=True, text=True)
        assert done.stdout == "[3, 7]\n"

    def test_stores_may_end_at_any_moment(self, hdfs: HdfsCluster) -> None:
        """Also while answers are under way, and so may the process."""
        script = f"""
from tierlog.remote.urls import open_store
for number in range(60):
    store = open_store({hdfs.new_url()!r}, timeout_s=20 + number % 7)
    store.put_bytes(str(number), b"x")
    store.get_range(str(number), 0, 1)
    del store
store = open_store({hdfs.new_url()!r}, timeout_s=0.001)
for _ in range(20):
    try:
        store.put_bytes("k", b"x")
    except Exception:
        pass
"""
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, timeout=120, check=True, capture_output=True, text=True)
        assert done.stderr == ""

    @pytest.mark.parametrize(
        ("error", "failure", "retriable", "text"),
        [
            (FileNotFoundError("no x\n\tat a.b"), Failure.ABSENT, False, "no x"),
            (FileExistsError("x"), Failure.EXISTS, False, "x"),
            (OSError("Connection refused"), Failure.LOST, True, "Connection refused"),
            (
                RuntimeError(r'RPCError("org.a.ipc.SafeModeException", "Name node\n\tat x")'),
                Failure.REFUSED,
                True,
                "SafeModeException: Name node",
            ),
            (
                RuntimeError('RPCError("a.b.AccessControlException", "Permission denied")'),
                Failure.REFUSED,
                False,
                "AccessControlException: Permission denied",
            ),
            (
                RuntimeError('RPCError("a.FSLimitException$PathComponentTooLongException", "x")'),
                Failure.REFUSED,
                False,
                "PathComponentTooLongException: x",
            ),
            (
                RuntimeError('DataTransferError("All DataNodes failed: [DatanodeInfo { ip")'),
                Failure.REFUSED,
                True,
                "DataTransferError: All DataNodes failed",
            ),
            (RuntimeError("ChecksumError"), Failure.REFUSED, True, "ChecksumError"),
            (RuntimeError("NoSASLMechanism"), Failure.REFUSED, False, "NoSASLMechanism"),
            (RuntimeError("InternalError(7)"), Failure.LOST, True, "InternalError: 7)"),
            (RuntimeError("x" * 999), Failure.REFUSED, True, "x" * 300 + "..."),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_errors(self, error: Exception, failure: Failure, retriable: bool, text: str) -> None:
        found = hdfs_client._to_call_error(error)
        assert (found.failure, found.retriable, found.text) == (failure, retriable, text)


class TestPartitions:
    """Whole partitions of the golden broker, there and back."""

    def test_the_bytes_are_kafkas(self, hdfs: HdfsCluster, tier_url: str) -> None:
        found = list(list_segments(open_store(tier_url)))
        golden = {
            (one.topic, one.partition, one.base_offset): one.path
            for one in golden_segments(data_set="clean")
        }
        assert len(found) > 20
        for metadata in found:
            partition = metadata.segment_id.topic_id_partition
            local = golden[partition.topic, partition.partition, metadata.start_offset]
            path = f"/tier/kafka/{log_key(metadata)}"
            assert hdfs.shell("-cat", path) == (0, local.read_bytes())

    def test_rdis_lead_to_batches_of_their_own_partition(self, tier_url: str) -> None:
        store = open_store(tier_url)
        for metadata in list_segments(store):
            index = ObjectStorageManager(store).fetch_indexes(metadata, [IndexKind.REMOTE_LOG])
            entries = decode_remote_log_index(index[IndexKind.REMOTE_LOG])
            position = 0
            for rdi, length in zip(entries.rdi, entries.data_length.tolist(), strict=True):
                assert rdi == f"{log_key(metadata)}:{position}".encode()
                partition = metadata.segment_id.topic_id_partition
                assert rdi.startswith(partition_prefix(partition).encode())
                position += length
            assert position == metadata.segment_size_bytes

    def test_records_come_back(self, tier_url: str) -> None:
        local = tierlog.read(CLEAN[0], "epochs", 0)
        expected = [row for piece in local for row in piece.values.to_list()]
        found = [
            row for piece in tierlog.read(tier_url, "epochs", 0) for row in piece.values.to_list()
        ]
        assert found == expected[: len(found)]
        assert len(found) > 100
        (later, *_) = tierlog.read(tier_url, "epochs", 0, 50)
        assert later.offset[0] == 50

    def test_the_command_line(
        self,
        tier_url: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert main(["tier", *CLEAN, "--to", tier_url, "--once"]) == 0
        assert capsys.readouterr().err.startswith("0 segments copied")
        assert main(["ls", tier_url, "--format", "json"]) == 0
        assert "epochs" in capsys.readouterr().out
        assert main(["verify", tier_url, "--deep"]) == 0
        assert "no problems" in capsys.readouterr().out
        assert main(["cat", tier_url, "epochs:0", "-o", "7", "-c", "3", "-f", "%o\n"]) == 0
        assert capsys.readouterr().out == "7\n8\n9\n"
