"""Files of our own as read-only memory.

The pages go when the last view of them goes, wherever it is held; no descriptor stays open for
them, which is what the `mmap` module cannot do before Python 3.13: a cache of thousands of small
files would use up the process's descriptors.

Only for files that nobody else writes: whoever cuts a mapped file short kills its reader
(SIGBUS), and no checksum can help with that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

__all__ = ["map_descriptor"]

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def map_descriptor(descriptor: int, size_bytes: int, owner: object = None) -> memoryview:
    """The first `size_bytes` (at least 1) of an open file, read-only; it may then be closed.

    `owner` lives as long as the pages do. OSError when the system has no room for the pages; the
    file must be that long, which the caller has looked at.
    """
    address = _mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    pages = (ctypes.c_char * size_bytes).from_address(address)
    # Views hold `pages`; when it goes, nobody can reach the memory any more. Not at exit: the
    # process's end unmaps everything, and somebody may still be reading until then.
    weakref.finalize(pages, _unmap, address, size_bytes, owner).atexit = False
    return memoryview(pages).cast("B").toreadonly()


def _unmap(address: int, size_bytes: int, _owner: object) -> None:
    _munmap(address, size_bytes)
