"""Accepts HTTP connections. Each counts from then on, before TLS: one that never shakes hands has a descriptor too."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from offpath.bindings.errors import PlaceUnusable
from offpath.host_helper.gateway.connection import HEAD_S, Connection

logger = logging.getLogger(__name__)
_BACKLOG: Final = 512
_ACCEPTS: Final = 4
"""In one turn of the loop: each costs a part of a millisecond, for which others wait."""
_PAUSE_S: Final = 0.1
"""Without a descriptor, until the next try."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """``begin`` gets each accepted socket and returns its connection. `open` listens, `close` stops."""

    def __init__(self, tls: ssl.SSLContext | None, begin: Callable[[socket.socket], Connection]) -> None:
        self._tls, self._begin = tls, begin
        self._sockets: list[socket.socket] = []
        self._beginning = set[asyncio.Task[None]]()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._is_told = False

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    async def open(self, address: str) -> None:
        """Listen at HOST:PORT, at each address of the name. Raises: PlaceUnusable: it is in use, or not this
        machine's."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, place in dict.fromkeys(found):
                self._sockets.append(sock := socket.socket(family, kind, protocol))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setblocking(False)
                sock.bind(place)
                sock.listen(_BACKLOG)
        except (OSError, OverflowError) as fault:
            self.close()
            raise PlaceUnusable(f"http: {address}: {getattr(fault, 'strerror', None) or fault}") from None
        for sock in self._sockets:
            loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Idempotent. Connections stay, those in a handshake too."""
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)
            if sock in self._pauses:
                self._pauses.pop(sock).cancel()
            sock.close()
        self._sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS):
            try:
                sock, _ = listening.accept()
            except OSError as fault:
                if fault.errno in _EXHAUSTED:
                    self._pause(listening, fault)
                return  # or nobody waits any more, or who waited has left
            sock.setblocking(False)
            task = loop.create_task(self._serve(self._begin(sock), sock))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _serve(self, connection: Connection, sock: socket.socket) -> None:
        """Connect the protocol to the socket, after TLS."""
        with contextlib.suppress(OSError):  # of sockets that are not connected any more
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        timed = {} if self._tls is None else {"ssl_handshake_timeout": HEAD_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, **cast(Any, timed)
            )
        except OSError:  # the handshake failed, took too long, or had to make room
            connection.connection_lost(None)

    def _pause(self, listening: socket.socket, fault: OSError) -> None:
        """No descriptor is left: the kernel keeps those that wait. One line of the log for all times."""
        if not self._is_told:
            self._is_told = True
            logger.error("connections wait: %s", fault.strerror, extra={"code": "few_descriptors"})
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._pauses[listening] = loop.call_later(_PAUSE_S, self._again, listening)

    def _again(self, listening: socket.socket) -> None:
        del self._pauses[listening]
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)
