"""The rules of every object store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tierlog.errors import RemoteResourceNotFoundError, RemoteStorageError
from tierlog.remote.store.object_store import LARGE_READ_BYTES
from tierlog.remote.urls import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HOSTILE_KEYS", "MIB", "StoreConformance", "patterned", "pieces"]

MIB = 1 << 20
# A little more than one part of a multipart upload.
LARGE_BYTES = 9 * MIB + 12_345

HOSTILE_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../up",
    "a/../../b",
    "a/..",
    "a/./b",
    "a//b",
    "a/",
    "nul\0byte",
    "line\nbreak",
    "tab\there",
    "escape\x1b[2J",
    "delete\x7f",
    "back\\slash",
    "e\u0301-not-nfc",
    "lone-surrogate-\udc80",
    "x" * 256,
    "é" * 128,
    "/".join(["d" * 200] * 6),
    ".tierlog-0123.tmp",
    "folder/.tierlog-0123.tmp",
]


def pieces(data: bytes, size: int = MIB) -> Iterator[bytes]:
    for position in range(0, len(data), size):
        yield data[position : position + size]


def patterned(size: int) -> bytes:
    """Return bytes in which every position differs from the same position of the adjacent parts."""
    return b"".join(number.to_bytes(8, "big") for number in range(size // 8 + 1))[:size]


class RefusedError(Exception):
    """Raised by a source of chunks in the middle of an upload."""


class StoreConformance:
    """Takes the fixture `store`: an empty store."""

    def test_round_trip(self, store: ObjectStore) -> None:
        store.put_bytes("a/b.log", b"0123456789")
        assert bytes(store.get_range("a/b.log", 0, 10)) == b"0123456789"
        assert bytes(store.get_range("a/b.log", 3, 4)) == b"3456"

    def test_any_buffer_goes_in(self, store: ObjectStore) -> None:
        buffers: tuple[Buffer, ...] = (b"xyz", bytearray(b"xyz"), memoryview(b"wxyz")[1:])
        for number, data in enumerate(buffers):
            store.put_bytes(f"buffer/{number}", data)
            assert bytes(store.get_range(f"buffer/{number}", 0, 3)) == b"xyz"

    def test_range_is_short_at_the_end_and_an_error_past_it(self, store: ObjectStore) -> None:
        store.put_bytes("short", b"0123456789")
        assert bytes(store.get_range("short", 8, 100)) == b"89"
        assert bytes(store.get_range("short", 9, 8 * MIB)) == b"9"
        for start, size in product((10, 11, 1 << 40), (1, MIB)):
            with pytest.raises(RemoteStorageError, match="short") as caught:
                store.get_range("short", start, size)
            assert not isinstance(caught.value, RemoteResourceNotFoundError)

    def test_a_large_range_is_like_a_small_one(self, store: ObjectStore) -> None:
        data = random.Random(3).randbytes(2 * MIB)
        store.put_bytes("large", data)
        for size in (LARGE_READ_BYTES - 1, LARGE_READ_BYTES, LARGE_READ_BYTES + 1, MIB + 1):
            found = store.get_range("large", 5, size)
            assert memoryview(found) == data[5 : 5 + size]
            assert (
                memoryview(store.get_range("large", len(data) - size // 2, size))
                == (data[-(size // 2) :])
            )
            # The bytes that have arrived do not change, whatever is read afterwards.
            assert memoryview(found) == data[5 : 5 + size]
        with pytest.raises(RemoteStorageError, match="missing"):
            store.get_range("missing", 0, MIB)

    def test_folders(self, store: ObjectStore) -> None:
        assert list(store.folders()) == []
        for key in ("a/b/c", "a/d", "e/f", "g"):
            store.put_bytes(key, b"1")
        assert sorted(store.folders()) == ["a", "e"]
        assert sorted(store.folders("a")) == ["b"]
        assert list(store.folders("nothing")) == []

    @pytest.mark.parametrize(("start", "size"), [(-1, 5), (0, 0), (0, -1)])
    def test_impossible_range(self, store: ObjectStore, start: int, size: int) -> None:
        store.put_bytes("k", b"0123456789")
        with pytest.raises(ValueError, match="range"):
            store.get_range("k", start, size)

    def test_missing_object(self, store: ObjectStore) -> None:
        store.put_bytes("there/x", b"1")
        for missing in ("there/y", "not/there", "there/x/below"):
            with pytest.raises(RemoteStorageError, match=missing):
                store.get_range(missing, 0, 1)
            with pytest.raises(RemoteStorageError, match=missing):
                store.head(missing)
        with pytest.raises(RemoteResourceNotFoundError):
            store.get_range("there/y", 0, 1)
        with pytest.raises(RemoteResourceNotFoundError):
            store.head("there/y")

    def test_empty_object(self, store: ObjectStore) -> None:
        store.put_bytes("empty", b"")
        assert store.head("empty").size_bytes == 0
        with pytest.raises(RemoteStorageError):
            store.get_range("empty", 0, 1)

    def test_head(self, store: ObjectStore) -> None:
        store.put_bytes("k", b"0123456789")
        info = store.head("k")
        assert (info.key, info.size_bytes) == ("k", 10)
        assert info.etag
        assert info.last_modified_ms > 1_600_000_000_000
        store.put_bytes("k", b"9876543210", overwrite=True)
        assert store.head("k").etag != info.etag

    def test_put_never_replaces(self, store: ObjectStore) -> None:
        store.put_bytes("k", b"first")
        with pytest.raises(RemoteStorageError, match="k") as caught:
            store.put_bytes("k", b"other")
        assert not caught.value.retriable
        with pytest.raises(RemoteStorageError):
            store.put_stream("k", iter([b"other"]), 5)
        assert bytes(store.get_range("k", 0, 99)) == b"first"

    def test_put_of_the_same_bytes_again_is_a_lost_answer(self, store: ObjectStore) -> None:
        store.put_bytes("k", b"first")
        store.put_bytes("k", b"first")
        assert bytes(store.get_range("k", 0, 99)) == b"first"

    def test_put_replaces_when_told(self, store: ObjectStore) -> None:
        store.put_bytes("k", b"first")
        assert bytes(store.get_range("k", 0, 99)) == b"first"
        store.put_bytes("k", b"second", overwrite=True)
        assert bytes(store.get_range("k", 0, 99)) == b"second"
        store.put_stream("k", iter([b"thi", b"rd"]), 5, overwrite=True)
        assert bytes(store.get_range("k", 0, 99)) == b"third"

    def test_put_if_absent(self, store: ObjectStore) -> None:
        assert store.put_if_absent("marker", b"one") is True
        assert store.put_if_absent("marker", b"two") is False
        assert bytes(store.get_range("marker", 0, 99)) == b"one"

    def test_put_if_absent_has_one_winner(self, store: ObjectStore) -> None:
        (winner,) = self.claim_at_once(store)
        assert bytes(store.get_range("claims/one", 0, 9)) == str(winner).encode()

    def claim_at_once(self, store: ObjectStore) -> list[int]:
        """Let six threads claim one key; return the numbers of those that succeeded."""
        barrier = threading.Barrier(6)
        won: list[int] = []

        def claim(number: int) -> None:
            barrier.wait()
            if store.put_if_absent("claims/one", str(number).encode()):
                won.append(number)

        threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return won

    @pytest.mark.parametrize("size", [0, 1, MIB, LARGE_BYTES])
    def test_stream(self, store: ObjectStore, size: int) -> None:
        data = patterned(size)
        store.put_stream("streams/one.log", pieces(data), size)
        assert store.head("streams/one.log").size_bytes == size
        if size:
            assert bytes(store.get_range("streams/one.log", 0, size)) == data

    def test_stream_does_not_replace_large_objects_either(self, store: ObjectStore) -> None:
        data = patterned(LARGE_BYTES)
        store.put_stream("big", pieces(data), len(data))
        with pytest.raises(RemoteStorageError):
            store.put_stream("big", pieces(data[::-1]), len(data))
        assert bytes(store.get_range("big", 0, 64)) == data[:64]

    @pytest.mark.parametrize("size", [100, LARGE_BYTES])
    def test_what_the_source_raises_comes_out_and_nothing_stays(
        self, store: ObjectStore, size: int
    ) -> None:
        for failure in (
            RefusedError("half way"),
            FileNotFoundError("source"),
            ValueError("source"),
        ):

            def broken(error: Exception = failure) -> Iterator[bytes]:
                yield bytes(size - 1)
                raise error

            with pytest.raises(type(failure), match=str(failure)):
                store.put_stream("broken", broken(), size)
            with pytest.raises(RemoteResourceNotFoundError):
                store.head("broken")
        assert list(store.list()) == []

    @pytest.mark.parametrize("size", [100, LARGE_BYTES])
    @pytest.mark.parametrize("off_by", [-1, 1])
    def test_announced_size_must_be_right(self, store: ObjectStore, size: int, off_by: int) -> None:
        with pytest.raises(ValueError, match="announced"):
            store.put_stream("sized", pieces(bytes(size + off_by)), size)
        assert list(store.list()) == []

    def test_list(self, store: ObjectStore) -> None:
        keys = {"a/1", "a/b/2", "a/b/3", "a-b/4", "ab/5", "c"}
        for key in keys:
            store.put_bytes(key, key.encode())
        assert {info.key for info in store.list()} == keys
        assert {info.key for info in store.list("a")} == {"a/1", "a/b/2", "a/b/3"}
        assert {info.key for info in store.list("a/")} == {"a/1", "a/b/2", "a/b/3"}
        assert {info.key for info in store.list("a/b")} == {"a/b/2", "a/b/3"}
        assert {info.key for info in store.list("nothing/here")} == set()
        assert {info.size_bytes for info in store.list("a/b")} == {5}
        assert all(info.last_modified_ms > 1_600_000_000_000 for info in store.list())

    def test_list_goes_over_many_pages(self, store: ObjectStore) -> None:
        keys = {f"pages/{number // 300}/{number:05}" for number in range(1_205)}
        for key in keys:
            store.put_bytes(key, b"x")
        listed = [info.key for info in store.list("pages")]
        assert len(listed) == len(keys)
        assert set(listed) == keys

    def test_delete_may_be_repeated(self, store: ObjectStore) -> None:
        store.put_bytes("d/1", b"x")
        assert bytes(store.get_range("d/1", 0, 1)) == b"x"
        store.delete("d/1")
        store.delete("d/1")
        store.delete("never/was")
        with pytest.raises(RemoteResourceNotFoundError):
            store.get_range("d/1", 0, 1)
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: ascii(key)[:24])
    def test_hostile_keys(self, store: ObjectStore, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put_bytes(key, b"x"),
            lambda: store.put_stream(key, iter([b"x"]), 1),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.get_range(key, 0, 1),
            lambda: store.head(key),
            lambda: store.delete(key),
        ]
        if key not in ("", "/"):
            calls.append(lambda: list(store.list(key + "/x")))
        for call in calls:
            with pytest.raises(ValueError, match="object key"):
                call()
        assert list(store.list()) == []

    def test_ordinary_names_pass(self, store: ObjectStore) -> None:
        for key in ("a b", "x+y=z%41", "ünïcode/é", "-dash/_x", "a:b", "x" * 255, "..a", "a..b"):
            store.put_bytes(key, b"x")
            assert bytes(store.get_range(key, 0, 1)) == b"x"
            assert key in {info.key for info in store.list()}

    def test_url_and_repr_name_the_place(self, store: ObjectStore) -> None:
        assert store.url in repr(store) or store.url.removeprefix("file://") in repr(store)
