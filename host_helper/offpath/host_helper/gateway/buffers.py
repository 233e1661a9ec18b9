"""Memory for bodies: kept for the next one, and the reading process sees long ones without a copy.

A new buffer costs a page fault for each 4 KiB, and handing a body to another process through a pipe costs four copies,
most of them while Python's lock is held. So a long body lies in a memfd that both processes map.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from offpath.host_helper.gateway.errors import unavailable

AT_ONCE_BYTES: Final = 16 * 1024
"""A body that is not longer is read where it came: at most 2 ms."""
_SPARE_BYTES: Final = 32 << 20
_MOST_SPARE: Final = 64
"""Each takes two descriptors."""


class SharedBuffer(mmap.mmap):
    """Memory that `Place` opens in another process; its length cannot be changed. It goes with its last view."""

    descriptor: int
    readers: int
    """Jobs of the reading process that use it."""

    def __new__(cls, nbytes: int) -> Self:
        """Zeros, without memory until they are written. Raises: OSError: no descriptor, or no address space is left."""
        descriptor = os.memfd_create("offpath-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            made = super().__new__(cls, descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(made, os.close, descriptor)
        made.descriptor = descriptor
        made.readers = 0
        return made


Buffer = bytearray | SharedBuffer


class Buffers:
    """Gives memory for bodies, and keeps shared buffers for the next one: at most 32 MiB, and at most 64 of them."""

    def __init__(self) -> None:
        self._spare: list[SharedBuffer] = []
        """Those that were given back last are at the end."""

    @property
    def spare_bytes(self) -> int:
        """Of those that are kept."""
        return sum(map(len, self._spare))

    def take(self, nbytes: int) -> Buffer:
        """At least so long; what it holds is of no use. Lengths of shared buffers are powers of two, so that few
        lengths serve all. Raises: Refused: no memory, or no descriptor is left."""
        try:
            if nbytes <= AT_ONCE_BYTES:
                return bytearray(nbytes)
            length = 1 << (nbytes - 1).bit_length()
            for at in range(len(self._spare) - 1, -1, -1):
                if len(self._spare[at]) == length:
                    return self._spare.pop(at)
            return SharedBuffer(length)
        except (OSError, MemoryError):
            raise unavailable("the gateway has no memory for the body") from None

    def give_back(self, buffer: Buffer) -> None:
        """Nothing of this process refers to it any more. One that the reading process still uses is not kept."""
        if isinstance(buffer, SharedBuffer) and not buffer.readers:
            self._spare.append(buffer)
            while len(self._spare) > _MOST_SPARE or self.spare_bytes > _SPARE_BYTES:
                del self._spare[0]


@dataclass(frozen=True, slots=True)
class Place:
    """The first ``nbytes`` of a shared buffer, for another process of the same user. It holds only while the process
    that made the buffer has it."""

    pid: int
    descriptor: int
    nbytes: int

    @contextlib.contextmanager
    def opened(self) -> Iterator[memoryview]:
        """The bytes themselves. Raises: OSError: the process is gone, or another user's."""
        descriptor = os.open(f"/proc/{self.pid}/fd/{self.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = mmap.mmap(descriptor, self.nbytes)
        finally:
            os.close(descriptor)
        with mapped, memoryview(mapped) as seen:
            yield seen


def placed(body: memoryview) -> Place | bytes:
    """How another process gets the body: without a copy if it is the beginning of a shared buffer, as all of `Buffers`
    are used."""
    buffer = body.obj
    if isinstance(buffer, SharedBuffer) and body.nbytes:
        return Place(os.getpid(), buffer.descriptor, body.nbytes)
    return bytes(body)


def shared(data: bytes) -> memoryview:
    """The data where another process can have it; what is not long, as it is. Raises: Refused: no memory."""
    if len(data) <= AT_ONCE_BYTES:
        return memoryview(data)
    view = memoryview(Buffers().take(len(data)))[: len(data)]
    view[:] = data
    return view


@contextlib.contextmanager
def seen(source: Place | bytes) -> Iterator[memoryview]:
    """In the other process: the bytes. Raises: OSError: see `Place.opened`."""
    if isinstance(source, Place):
        with source.opened() as view:
            yield view
    else:
        yield memoryview(source)
