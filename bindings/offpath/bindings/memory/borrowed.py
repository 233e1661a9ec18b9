"""Another process's sealed memory, mapped for copies out of it. The descriptor is not kept: the mapping suffices.

Unlike `Region` it can be mapped read-only, and no Python code sees the bytes: a device copies from its address.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from typing import Final

from offpath.bindings.errors import RegionError

_PROT_READ, _PROT_WRITE, _MAP_SHARED = 1, 2, 1
_FAILED: Final = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class BorrowedMemory:
    """A mapping of the first ``nbytes`` of a sealed descriptor, which the caller keeps and may close."""

    def __init__(self, fd: int, nbytes: int, *, is_writable: bool) -> None:
        """Raises: RegionError: not sealed against shrinking, too small, or it cannot be mapped."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as fault:
            raise RegionError("the descriptor is not sealable memory") from fault
        if not seals & fcntl.F_SEAL_SHRINK:  # else its owner could truncate it, and a copy would end this process
            raise RegionError("the region is not sealed against shrinking")
        size = os.fstat(fd).st_size
        if not 0 < nbytes <= size:
            raise RegionError(f"{nbytes} bytes do not lie in a region of {size}")
        access = _PROT_READ | (_PROT_WRITE if is_writable else 0)
        address = _libc.mmap(None, nbytes, access, _MAP_SHARED, fd, 0)
        if address == _FAILED or address is None:
            raise RegionError(f"cannot map {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
        self.address: int = address
        self.nbytes = nbytes

    def close(self) -> None:
        """Unmap it. The caller has waited for copies out of it. Idempotent."""
        if self.nbytes:
            _libc.munmap(self.address, self.nbytes)
            self.nbytes = 0
