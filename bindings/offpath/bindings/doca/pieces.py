"""Splits a session's frames into Comch messages, whose size the device bounds: one byte is the message's type, the rest
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
"""Shows that its sender is alive; not part of any frame."""
MOST_BYTES: Final = 4080
"""Limit of one message if the device allows more: as in DOCA's own samples."""
LEAST_BYTES: Final = 64
"""Devices with a smaller limit are not supported."""
_FRAME_BYTES: Final = HEAD_BYTES + MAX_MESSAGE_BYTES


def cut(frame: bytes, most_bytes: int) -> list[bytes]:
    """Split a frame into messages of at most ``most_bytes``; almost always one."""
    room = most_bytes - 1
    parts = [frame[at : at + room] for at in range(0, len(frame), room)]
    return [*(bytes([MORE]) + part for part in parts[:-1]), bytes([LAST]) + parts[-1]]


def most_pieces(most_bytes: int) -> int:
    """Pieces of the largest frame."""
    return -(-_FRAME_BYTES // (most_bytes - 1))


class Assembly:
    """Joins one sender's pieces."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def add(self, piece: bytes) -> bytes | None:
        """The frame that this piece completes, or None. Raises: HostMessageError: not a piece, or too long for a
        frame."""
        if piece == HEARTBEAT:
            return None
        if len(piece) < 2 or piece[0] not in (LAST, MORE):
            raise HostMessageError("frame", f"not a piece: {piece[:1].hex() or 'nothing'}")
        if len(self._parts) + len(piece) - 1 > _FRAME_BYTES:
            raise HostMessageError("too_long", str(len(self._parts) + len(piece) - 1))
        if piece[0] == MORE:
            self._parts += piece[1:]
            return None
        frame = bytes(self._parts) + piece[1:] if self._parts else piece[1:]
        self._parts.clear()
        return frame
