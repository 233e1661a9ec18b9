"""Serves stream connections from untrusted peers, one task each: `asyncio.start_server` with bounds.

asyncio's servers accept without bound, do not count connections during their TLS handshake, and stop or spin when the
process runs out of descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from offpath.dpu_daemon.listening.accepting import Acceptor, Unidentified, address_of

HANDSHAKE_S: Final = 5.0
Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamListener:
    """Listens on ``sock``, which it owns; ``converse`` is called for each connection and closes its writer."""

    def __init__(
        self, name: str, sock: socket.socket, converse: Conversation, waiting: Unidentified, *, limit: int = 65536,
        exhausted: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``waiting`` holds each connection from accept to `identified`; listeners may share it. ``exhausted`` is
        called each time the process runs out of descriptors."""
        self._sock = sock
        self._converse = converse
        self._waiting = waiting
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keys: dict[asyncio.StreamWriter, object] = {}
        self._is_closing = False
        self.context: ssl.SSLContext | None = None
        """If set, each connection starts with a TLS handshake. A new value applies to later connections."""
        self.acceptor = Acceptor(name, self._take, self._refuse, waiting, exhausted)

    def open(self) -> None:
        """Start accepting."""
        self.acceptor.open(self._sock.fileno())

    def replace(self, sock: socket.socket) -> None:
        """Listen on another socket, after accepting the connections that wait at the old one."""
        before = self._sock
        with contextlib.suppress(OSError):
            while self._take():
                pass
        self._sock = sock
        self.acceptor.open(sock.fileno())
        before.close()

    def identified(self, writer: asyncio.StreamWriter) -> None:
        """The peer is identified: it can no longer be evicted."""
        self._waiting.remove(self._keys.get(writer))

    def is_waiting(self, writer: asyncio.StreamWriter) -> bool:
        """True if the peer is neither identified nor evicted."""
        return self._keys.get(writer) in self._waiting

    async def close(self) -> None:
        """Stop listening and cancel every connection's task."""
        self._is_closing = True
        self.acceptor.close()
        self._sock.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Stop accepting; accepted connections stay until `close`."""
        self.acceptor.close()
        self._sock.close()

    def _accepted(self) -> socket.socket | None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        return sock

    def _refuse(self) -> bool:
        sock = self._accepted()
        if sock is not None:
            sock.close()
        return sock is not None

    def _take(self) -> bool:
        sock = self._accepted()
        if sock is None:
            return False
        try:
            sock.setblocking(False)
            address = address_of(sock)
        except OSError:  # it has disconnected already
            sock.close()
            return True
        key = object()  # not the descriptor's number, which the next connection may reuse
        self._waiting.add(key, address, lambda: _cut(sock))
        task = self._loop.create_task(self._serve(sock, key), name="peer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _serve(self, sock: socket.socket, key: object) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader = asyncio.StreamReader(limit=self._limit, loop=self._loop)
            protocol = _Stream(reader, loop=self._loop)
            timeout_s = HANDSHAKE_S if self.context is not None else None
            try:
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: protocol, sock, ssl=self.context, ssl_handshake_timeout=timeout_s
                )
            except OSError:  # it disconnected or its handshake failed: no reply is possible
                sock.close()
                return
            writer = protocol.writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            self._keys[writer] = key
            await self._converse(reader, writer)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
        finally:
            self._waiting.remove(key)
            if writer is not None:
                del self._keys[writer]


class _Stream(asyncio.StreamReaderProtocol):
    """Its conversation learns of a lost connection by reading or writing, and does not wait for the connection's end:
    the fault is taken here, or the loop would report it as one that nobody has seen."""

    writer: asyncio.StreamWriter | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Before there is a conversation, a fault is an end like others."""
        super().connection_lost(exc if self.writer is not None else None)
        if self.writer is not None:
            with contextlib.suppress(StopIteration, OSError):
                self.writer.wait_closed().send(None)  # it has ended, so nothing waits
            self.writer = None


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection to a server; what was not sent yet is dropped. A fault of the connection is no news here."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def prime() -> None:
    """Have uvloop open its reserve descriptor now, with a first stream, and not later under load."""
    local, remote = socket.socketpair()
    remote.close()
    local.setblocking(False)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, local)
    transport.abort()


def _cut(sock: socket.socket) -> None:
    """Shut the socket down, so that its reader or handshake sees the end of the stream."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
