"""Sealed shared memory: a memfd, sized first, then sealed against SHRINK, GROW and further SEAL.

The other owner of an unsealed region can truncate it and kill this process with SIGBUS (observed). Therefore only
sealed memory is mapped, of any origin. Copies between two mappings use ``memmove`` through ctypes where the GIL must
be released.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Final

from offpath.bindings.errors import RegionError, ResourceClosed

PAGE: Final = mmap.PAGESIZE
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_POPULATE_WRITE: Final = 23
_READ_AT_ONCE: Final = 256 * PAGE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.restype = ctypes.c_int


def round_to_page(nbytes: int) -> int:
    """Round up to a multiple of the system's page size (4 KiB here, 64 KiB on BlueField's kernel)."""
    return (nbytes + PAGE - 1) // PAGE * PAGE


def sealed_memfd(name: str, nbytes: int) -> int:
    """A sealed memfd of ``nbytes`` (whole pages). The caller owns the descriptor.

    Raises: RegionError: no memory or descriptor is left for it.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as fault:
        raise RegionError(f"memfd {name}: {fault.strerror}") from fault
    try:
        os.ftruncate(fd, round_to_page(nbytes))
        # Made with mode 0777: the receiver of a read-only descriptor could open it for writing by /proc/self/fd.
        os.fchmod(fd, 0o600)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except (OSError, OverflowError) as fault:  # OverflowError: a size above 2^63 does not reach the kernel
        os.close(fd)
        raise RegionError(f"memfd {name} of {nbytes} bytes: {fault}") from fault
    return fd


def memfd_name(fd: int) -> str:
    """The name that a memfd was made with; empty for another file. Raises: OSError: it is not open."""
    place = os.readlink(f"/proc/self/fd/{fd}")
    return place.removeprefix("/memfd:").removesuffix(" (deleted)") if place.startswith("/memfd:") else ""


def populates_pages() -> bool:
    """Whether the kernel prefaults by MADV_POPULATE_WRITE (Linux 5.14). Otherwise `Region.prefault` reads every
    page."""
    with mmap.mmap(-1, PAGE) as fresh:
        address = ctypes.addressof(view := ctypes.c_char.from_buffer(fresh))
        result: int = _libc.madvise(address, PAGE, _MADV_POPULATE_WRITE)
        del view
    return result == 0


class Region:
    """A mapped, sealed range. Owns its descriptor and mapping."""

    def __init__(self, fd: int, offset: int, nbytes: int) -> None:
        """Map ``nbytes`` at ``offset`` (a page multiple) of ``fd``, which the region owns from now on.

        Raises: RegionError: not sealed against shrinking, or too small; ``fd`` is then closed.
        """
        self._map: mmap.mmap | None = None
        self._fd = fd
        try:
            try:
                seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            except OSError as fault:
                raise RegionError("the descriptor is not sealable memory") from fault
            if not seals & fcntl.F_SEAL_SHRINK:
                raise RegionError("the region is not sealed against shrinking")
            size = os.fstat(fd).st_size
            if nbytes <= 0 or offset < 0 or offset % PAGE or offset + nbytes > size:
                raise RegionError(f"range {offset}+{nbytes} does not lie in a region of {size} bytes")
            try:
                self._map = mmap.mmap(fd, nbytes, offset=offset)
            except (OSError, ValueError) as fault:
                raise RegionError(f"cannot map {nbytes} bytes: {fault}") from fault
        except BaseException:
            os.close(fd)
            raise
        self._nbytes = nbytes
        self.on_close: list[Callable[[], None]] = []
        """Called before the unmap: a device must release the memory first."""
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, name: str, nbytes: int) -> Region:
        """Create and map a new region. Raises: RegionError."""
        return cls(sealed_memfd(name, nbytes), 0, round_to_page(nbytes))

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._nbytes

    @property
    def fd(self) -> int:
        """The descriptor to pass on; the region keeps ownership. Raises: ResourceClosed."""
        if self._map is None:
            raise ResourceClosed("region")
        return self._fd

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._map is None

    def prefault(self) -> None:
        """Touch every page now, so that no request pays for page faults. Blocks (15 ms for 20 MB, observed); releases
        the GIL.

        Keeps the contents: a requester that resumes its session maps slots and answers that are in use.
        """
        if self._map is None:
            raise ResourceClosed("region")
        if _libc.madvise(self.address, self._nbytes, _MADV_POPULATE_WRITE) != 0:  # kernels before 5.14
            for at in range(0, self._nbytes, _READ_AT_ONCE):  # reading a page of a memfd allocates and maps it
                self.view[at : at + _READ_AT_ONCE : PAGE].tobytes()

    def close(self) -> None:
        """Unmap and close. If exported views are still alive, the mapping lives as long as they do."""
        if self._map is None:
            return
        mapped, self._map = self._map, None
        while self.on_close:
            self.on_close.pop()()
        os.close(self._fd)
        # A view may be alive (an array over a result). The mapping then lives until it is released.
        with contextlib.suppress(BufferError):
            self.view.release()
            mapped.close()
