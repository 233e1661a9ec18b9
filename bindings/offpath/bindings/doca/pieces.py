"""Frames of a session as messages of Comch, whose size the device bounds: one byte says what a message is, the rest is
a piece of a frame. No I/O, no clock."""

from __future__ import annotations

from typing import Final

from offpath.bindings.channel.session import HEAD_BYTES
from offpath.bindings.errors import HostMessageError
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

LAST: Final = 0
MORE: Final = 1
BEAT: Final = 2
HEARTBEAT: Final = bytes([BEAT])
"""Says that its sender lives; not part of any frame."""
MOST_BYTES: Final = 4080
"""Of one message, if the device takes more: what DOCA's own samples use."""
LEAST_BYTES: Final = 64
"""A device that takes less is none that we know how to use."""
_FRAME_BYTES: Final = HEAD_BYTES + MAX_MESSAGE_BYTES


def cut(frame: bytes, most_bytes: int) -> list[bytes]:
    """A frame as messages of ``most_bytes`` at most; almost always one."""
    room = most_bytes - 1
    parts = [frame[at : at + room] for at in range(0, len(frame), room)]
    return [*(bytes([MORE]) + part for part in parts[:-1]), bytes([LAST]) + parts[-1]]


def most_pieces(most_bytes: int) -> int:
    """Of one frame."""
    return -(-_FRAME_BYTES // (most_bytes - 1))


class Assembly:
    """Puts one sender's pieces together."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def add(self, piece: bytes) -> bytes | None:
        """The frame that this piece ends, or None. Raises: HostMessageError: no piece, or too much for a frame."""
        if piece == HEARTBEAT:
            return None
        if len(piece) < 2 or piece[0] not in (LAST, MORE):
            raise HostMessageError("frame", f"no piece: {piece[:1].hex() or 'nothing'}")
        if len(self._parts) + len(piece) - 1 > _FRAME_BYTES:
            raise HostMessageError("too_long", str(len(self._parts) + len(piece) - 1))
        if piece[0] == MORE:
            self._parts += piece[1:]
            return None
        frame = bytes(self._parts) + piece[1:] if self._parts else piece[1:]
        self._parts.clear()
        return frame
