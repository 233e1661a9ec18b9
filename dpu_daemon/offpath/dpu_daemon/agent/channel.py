"""Sends and receives texts of any length over a host-channel connection; used by both ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError, PeerGone, ProtocolError
from offpath.bindings.ports import HostConnection
from offpath.bindings.wire import control, parts
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

MOST_WAITING_BYTES: Final = 8 << 20
"""Limit of bytes queued for a peer that does not read; then the connection is closed."""
_AGAIN_S: Final = 0.002
_READ_AT_ONCE: Final = 64


class AgentChannel:
    """Owns the connection. ``on_text`` gets each complete text. ``lost`` is called once with the reason, except after
    `close`."""

    def __init__(
        self, connection: HostConnection, on_text: Callable[[bytes], None], lost: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._on_text = on_text
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._joiner = parts.Joiner()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._again: asyncio.TimerHandle | None = None
        self._later: asyncio.Handle | None = None
        self.is_closed = False
        self._loop.add_reader(connection.fileno(), self._read)

    def send(self, message: BaseModel) -> None:
        """Sends in order, at once or when there is room. Errors are reported through ``lost``, not raised here."""
        if self.is_closed:
            return
        for part in parts.messages(control.encode(message), MAX_MESSAGE_BYTES):
            self._waiting.append(part)
            self._waiting_bytes += len(part)
        if self._again is None:
            self._flush()
        if self._waiting_bytes > MOST_WAITING_BYTES:
            self._lose("it does not read its messages")

    def _flush(self) -> None:
        self._again = None
        try:
            while self._waiting and self._connection.send(self._waiting[0]):
                self._waiting_bytes -= len(self._waiting.popleft())
        except (PeerGone, ProtocolError) as gone:
            self._lose(str(gone))
            return
        if self._waiting:  # polled: no descriptor signals new credit
            self._again = self._loop.call_later(_AGAIN_S, self._flush)

    def _read(self) -> None:
        try:
            for _ in range(_READ_AT_ONCE):
                if self.is_closed or (message := self._connection.receive_message()) is None:
                    return
                if (text := self._joiner.message(message)) is not None:
                    self._on_text(text)
        except (PeerGone, ProtocolError) as fault:
            self._lose(str(fault))

    def _lose(self, why: str) -> None:
        """Reports the loss in a later turn of the loop, so that a sender is not called back within its call."""
        if not self.is_closed and self._later is None:
            self._loop.remove_reader(self._connection.fileno())
            self._later = self._loop.call_soon(self._report_loss, why)

    def _report_loss(self, why: str) -> None:
        if not self.is_closed:
            self.close()
            self._lost(why)

    def refuse(self, fault: OffpathError) -> None:
        """Close the connection because of an invalid message; ``lost`` gets the reason."""
        self._lose(str(fault))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._again is not None:
            self._again.cancel()
        if self._later is not None:
            self._later.cancel()
        else:
            self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
