"""Large reads reuse pooled buffers, and no view ever shows the bytes of another read."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fetch.tier import Later
from tierlog import _core
from tierlog.reader.memory import FetchMemory

MIB = 1 << 20
SIZE_BYTES = 3 * MIB + 12_345


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(5).randbytes(SIZE_BYTES)


@pytest.fixture
def descriptor(tmp_path: Path, content: bytes) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("position", "size"),
    [(0, SIZE_BYTES), (1, MIB), (SIZE_BYTES - 10, MIB), (SIZE_BYTES, 5), (10 * MIB, 5), (7, 0)],
)
def test_read_returns_the_bytes_of_the_file(
    descriptor: int, content: bytes, position: int, size: int
) -> None:
    # The read may reuse the buffer of these bytes.
    memoryview(_core.join_pooled([b"\xff" * SIZE_BYTES], SIZE_BYTES)).release()
    view = memoryview(_core.read_pooled(descriptor, position, size))
    assert view == content[position : position + size]
    assert view.readonly
    with pytest.raises(TypeError):
        view[:1] = b"x"


def test_failed_read_names_the_reason(descriptor: int, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="directory") as caught:
        _core.read_pooled(folder, 0, MIB)
    os.close(folder)
    assert caught.value.errno == errno.EISDIR
    with pytest.raises(OSError, match="descriptor"):
        _core.read_pooled(-1, 0, MIB)
    with pytest.raises(OSError, match="memory"):
        _core.read_pooled(descriptor, 0, 1 << 55)
    for position, size in ((-1, 5), (0, -1)):
        with pytest.raises(OverflowError):
            _core.read_pooled(descriptor, position, size)


def test_ranges_are_joined(content: bytes) -> None:
    view = memoryview(content)
    pieces: list[Any] = [
        view[:10],
        bytearray(view[10:20]),
        np.frombuffer(view[20:MIB], np.uint8),
        b"",
    ]
    assert memoryview(_core.join_pooled(pieces, MIB)) == content[:MIB]
    assert memoryview(_core.join_pooled(iter(pieces), 2 * MIB)) == content[:MIB]
    assert memoryview(_core.join_pooled([], 100)).nbytes == 0
    with pytest.raises(ValueError, match="at most 19 bytes"):
        _core.join_pooled(pieces, 19)
    with pytest.raises(TypeError):
        _core.join_pooled(["text"], 100)  # type: ignore[list-item]

    def broken() -> Iterator[bytes]:
        yield b"some"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        _core.join_pooled(broken(), 100)


def test_buffer_is_reused_only_after_its_last_view(descriptor: int, content: bytes) -> None:
    """A view is a slice, an array of a slice, or memory that a permit holds."""
    memory = FetchMemory(64 * MIB)

    def read() -> memoryview:
        return memoryview(_core.read_pooled(descriptor, 0, SIZE_BYTES))

    permit = memory.acquire(SIZE_BYTES, 0)
    assert permit is not None
    views: list[Any] = [read()[5:], np.frombuffer(read(), np.uint8)[5:], permit.hold(read())[5:]]
    views.append(memoryview(views[1]).cast("B"))
    del permit
    for number in range(20):
        other = _core.join_pooled([bytes([number]) * SIZE_BYTES], SIZE_BYTES)
        assert bytes(memoryview(other)[-3:]) == bytes([number]) * 3
        del other
    assert all(bytes(view) == content[5:] for view in views)
    assert memory.used_bytes == SIZE_BYTES
    views.clear()
    assert memory.used_bytes == 0
    # All of it was idle or was evicted.
    assert _core.release_pooled_memory() >= SIZE_BYTES


def test_threads_never_see_the_bytes_of_other_reads(descriptor: int, content: bytes) -> None:
    """Threads read and release views; some views are released on another thread."""
    left: list[tuple[int, memoryview]] = []
    lock = threading.Lock()

    def churn(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            position, size = chance.randrange(SIZE_BYTES), chance.choice((1, 70_000, 130_000, MIB))
            view = memoryview(_core.read_pooled(descriptor, position, size))
            with lock:
                left.append((position, view))
                position, view = left.pop(chance.randrange(len(left)))
                if len(left) < 20:
                    left.append((position, view))
            assert view == content[position : position + view.nbytes]

    for worker in [Later(lambda seed=seed: churn(seed)) for seed in range(4)]:  # type: ignore[misc]
        worker.result()
    assert all(view == content[at : at + view.nbytes] for at, view in left)
