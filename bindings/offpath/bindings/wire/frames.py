"""Length-prefixed frames for control messages: u32 little-endian length, then that many bytes of JSON.

Sans-IO: takes received bytes, returns whole frames. Both carriers and both directions use it.
"""

from __future__ import annotations

import struct
from typing import Final

from offpath.bindings.errors import FrameError

MAX_FRAME_BYTES: Final = 64 * 1024
_LENGTH = struct.Struct("<I")


def frame(body: bytes) -> bytes:
    """Prefix ``body`` with its length. Raises: FrameError: empty or above 64 KiB."""
    if not 0 < len(body) <= MAX_FRAME_BYTES:
        raise FrameError("frame_length", str(len(body)))
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Splits a byte stream into frames. Holds less than one frame between calls."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the frames that are now complete.

        Raises: FrameError: a length of 0 or above 64 KiB. The connection is then unusable.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 0 < length <= MAX_FRAME_BYTES:
                raise FrameError("frame_length", str(length))
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return frames

    def at_boundary(self) -> bool:
        """True when no partial frame is held: only then may the stream end without an error."""
        return not self._buffer
