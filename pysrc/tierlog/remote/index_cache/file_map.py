"""Map this process's own files into memory, read-only.

The pages are unmapped when their last view is released. No descriptor stays open for the mapping.
Before Python 3.13, the `mmap` module keeps a descriptor open for each mapping, so a cache of
thousands of small files would exhaust the process's descriptors.

Map only files that no other process writes. When another process truncates a mapped file, its
readers are killed (SIGBUS), and a checksum cannot prevent that.
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
    """Map the first `size_bytes` (at least 1) of an open file. The caller may close the descriptor
    afterwards.

    `owner` stays alive as long as the pages. The caller has checked that the file has at least
    `size_bytes`. Raises OSError when the system cannot map the pages.
    """
    address = _mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    pages = (ctypes.c_char * size_bytes).from_address(address)
    # Views hold `pages`, so no view can reach the memory when the finalizer runs. The finalizer
    # does not run at exit: the end of the process unmaps everything, and a thread may read until
    # then.
    weakref.finalize(pages, _unmap, address, size_bytes, owner).atexit = False
    return memoryview(pages).cast("B").toreadonly()


def _unmap(address: int, size_bytes: int, _owner: object) -> None:
    _munmap(address, size_bytes)
