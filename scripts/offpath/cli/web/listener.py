"""The page's listening socket: how many connections it has, and whose they are.

A peer without a session needs none to ask for the page's own files. So such peers have places of their own, and a new
one takes that of the oldest: an operator always gets in, and keeps a place from the first request with a session on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

MOST_STRANGERS: Final = 128
"""Accepted sockets without a request with a session or the token, also those in a TLS handshake. uvicorn's own bound
only changes the answer of a request: it closes no connection."""
MOST_KNOWN: Final = 64
"""Those with one."""
_ACCEPTS: Final = 16
"""In one turn of the loop: between two turns, a new connection's first request is read."""


class Listener(socket.socket):
    """A listening socket that closes the connections that were accepted first, where there are too many."""

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._strangers: dict[Any, socket.socket] = {}
        """By the peer's address, the oldest first."""
        self._known: dict[Any, socket.socket] = {}
        """The one that was used last at the end."""
        self._accepted = 0

    def accept(self) -> tuple[socket.socket, Any]:
        """As of `socket.socket`. Raises: BlockingIOError: also for now, where many came at once."""
        if self._accepted >= _ACCEPTS:
            raise BlockingIOError
        connection, address = super().accept()
        if not self._accepted:
            asyncio.get_running_loop().call_soon(self._new_turn)
        self._accepted += 1
        _make_room(self._strangers, MOST_STRANGERS)
        self._strangers[address[:2]] = connection
        return connection, address

    def identified(self, address: Any) -> None:
        """A request with a session, or with the token, came from this peer."""
        connection = self._strangers.pop(address, None) or self._known.pop(address, None)
        if connection is not None:
            _make_room(self._known, MOST_KNOWN)
            self._known[address] = connection

    def _new_turn(self) -> None:
        self._accepted = 0


def _make_room(held: dict[Any, socket.socket], most: int) -> None:
    """Forget those that are closed, and close the first one if there are as many as may be."""
    if len(held) < most:
        return
    for address in [address for address, each in held.items() if each.fileno() < 0]:
        del held[address]
    while len(held) >= most:
        connection = held.pop(next(iter(held)))
        with contextlib.suppress(OSError):  # its peer has left
            connection.shutdown(socket.SHUT_RDWR)  # asyncio reads the end, and closes it
