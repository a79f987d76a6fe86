"""Opening files that belong to somebody else, and noticing what becomes of them."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tierlog.errors import ClosedError
from tierlog.log.files import FileChange, SegmentHandle, open_regular, printable


def test_a_handle_tells_what_became_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "1.log"

    def change(name: str) -> FileChange:
        path.unlink(missing_ok=True)
        path.write_bytes(b"0123456789")
        with SegmentHandle(path) as handle:
            if name == "rename":
                path.rename(tmp_path / "1.log.deleted")
            elif name == "replace":
                (tmp_path / "new").write_bytes(b"0123456789")
                os.replace(tmp_path / "new", path)
            elif name == "truncate":
                os.truncate(path, 3)
            elif name == "append":
                path.write_bytes(b"0123456789x")
            elif name == "rewrite":
                os.utime(path, ns=(0, 0))
            return handle.recheck()

    assert change("nothing") is FileChange.UNCHANGED
    assert change("rename") is FileChange.GONE
    assert change("replace") is FileChange.REPLACED
    assert change("truncate") is FileChange.TRUNCATED
    assert change("append") is FileChange.GROWN
    assert change("rewrite") is FileChange.MODIFIED


def test_a_handle_reads_on_after_a_delete(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    path.write_bytes(b"0123456789")
    handle = SegmentHandle(path)
    path.rename(tmp_path / "1.log.deleted")
    (tmp_path / "1.log.deleted").unlink()
    assert handle.read_at(4, 3) == b"456"
    assert handle.read_at(8, 30) == b"89"
    assert handle.read_at(10, 5) == b""
    assert handle.size_bytes == 10
    handle.close()
    handle.close()
    with pytest.raises(ClosedError):
        handle.read_at(0, 1)


def test_opening_refuses_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "1.log").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file-link").symlink_to(tmp_path / "real" / "1.log")
    for name in ("fifo", "real", "file-link"):
        with pytest.raises(OSError, match="expected a regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        open_regular(tmp_path / "link" / "1.log")
    with pytest.raises(OSError, match="a character device"):
        open_regular("/dev/null")


def test_printable_escapes_what_a_terminal_would_obey() -> None:
    assert printable("orders-0") == "orders-0"
    assert printable(os.fsdecode(b"a\xffb\x1b[31m\n")) == r"a\xffb\x1b[31m\n"
    assert printable("a\ud800b\n") == r"a\ud800b\n"


def test_a_name_that_changes_its_kind_while_it_is_opened(tmp_path: Path) -> None:
    """Checking and opening are two steps; what comes in between must neither fool nor block."""
    name, spare = tmp_path / "1.log", tmp_path / "spare"
    (tmp_path / "secret").write_bytes(b"secret")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            spare.write_bytes(b"segment")
            os.replace(spare, name)
            spare.symlink_to(tmp_path / "secret")
            os.replace(spare, name)
            os.mkfifo(spare)
            os.replace(spare, name)

    name.write_bytes(b"segment")
    swapper = threading.Thread(target=swap)
    swapper.start()
    read: set[bytes] = set()
    refused: set[int | None] = set()
    try:
        for _ in range(3000):
            try:
                with SegmentHandle(name) as handle:
                    read.add(handle.read_at(0, 100))
            except OSError as error:
                refused.add(error.errno)
    finally:
        stop.set()
        swapper.join()
    assert read <= {b"segment"}
    assert refused <= {errno.ELOOP, errno.EINVAL}
