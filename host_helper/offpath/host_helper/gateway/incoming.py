"""A body in chunks on its way into one buffer.

Data is received where it stays; what is between the chunks comes into the connection's small buffer, with the beginning
of the data behind it. The buffer of the body grows as sizes of chunks are read, each time before their data comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offpath.host_helper.gateway.buffers import AT_ONCE_BYTES, Buffer, Buffers
from offpath.host_helper.gateway.chunks import Chunks
from offpath.host_helper.gateway.errors import Refused, too_large

SLICE_BYTES: Final = 256 * 1024
"""Of a body, received at once: 4 MiB would keep the loop for a millisecond."""
_GROWTH: Final = 4
"""How much longer the next buffer is."""


class ChunkedBody:
    """One body. ``hold``: takes room for so many bytes more, or raises Refused. ``most``: the longest body."""

    def __init__(self, buffers: Buffers, hold: Callable[[int], None], most: int) -> None:
        """Raises: Refused: there is no room."""
        hold(AT_ONCE_BYTES)
        self.buffer: Buffer = buffers.take(AT_ONCE_BYTES)
        self.filled = 0
        """Bytes of the body in the buffer."""
        self._buffers, self._hold, self._most = buffers, hold, most
        self._length = AT_ONCE_BYTES
        self._chunks = Chunks()

    @property
    def is_whole(self) -> bool:
        """Whether its end has come."""
        return self._chunks.is_over

    def room(self, received: bytearray, behind: int) -> memoryview:
        """Where the next bytes belong: ``received`` is the small buffer, with ``behind`` bytes in it. Never empty."""
        if not self._chunks.left:
            return memoryview(received)[behind:]
        return memoryview(self.buffer)[self.filled : self.filled + min(self._chunks.left, SLICE_BYTES)]

    def took(self, received: bytearray, behind: int, nbytes: int) -> int:
        """So many bytes came into that room. Returns how many are in the small buffer then: a part of what is between
        chunks, or what follows the body. Raises: Refused: they are no body in chunks, or it is too long, or there is
        no room."""
        if self._chunks.left:
            self.filled += nbytes
            self._chunks.took(nbytes)
            return behind
        at, end = 0, behind + nbytes
        while at < end and not self._chunks.is_over:
            if self._chunks.left:
                piece = received[at : min(end, at + self._chunks.left)]
                self.buffer[self.filled : self.filled + len(piece)] = piece
                self.filled += len(piece)
                self._chunks.took(len(piece))
                at += len(piece)
                continue
            length = self._chunks.read(received, at, end)
            if not length:
                break
            at += length
            self._reserve(self.filled + self._chunks.left)
        rest = received[at:end]
        received[: len(rest)] = rest
        return len(rest)

    def _reserve(self, nbytes: int) -> None:
        """Room for a body of so many bytes. Raises: Refused: that is too long, or there is none."""
        if nbytes > self._most:
            raise too_long(self._most)
        if nbytes <= self._length:
            return
        length = min(max(nbytes, _GROWTH * self._length), self._most)
        self._hold(length - self._length)
        former, self.buffer = self.buffer, self._buffers.take(length)
        self.buffer[: self.filled] = memoryview(former)[: self.filled]
        self._buffers.give_back(former)
        self._length = length


def too_long(most: int) -> Refused:
    """A body is longer than ``most``."""
    return too_large(f"a body has at most {most} bytes here")
