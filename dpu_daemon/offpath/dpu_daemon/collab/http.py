"""Devices by HTTP/1.1: ``POST /v1/checkin`` and ``POST /v1/result``, JSON both ways; ``GET`` or ``HEAD /healthz``.

httptools parses; everything that a peer can make large is bounded here: the bytes of a message, pipelined messages, the
time for a message, idle connections, and their number. A connection counts as unidentified until a valid token came on
it, and each invalid one ends it. A connection has one message in work at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, cast

import httptools

from offpath.bindings.errors import ControlError, PlaceUnusable
from offpath.bindings.open_files import allow_files
from offpath.bindings.wire import control
from offpath.bindings.wire.collab import CHECK_IN, MOST_MESSAGE_BYTES, RESULT, Answer, CheckIn, Refusal, Result, body_of
from offpath.dpu_daemon.collab.config import HttpTable
from offpath.dpu_daemon.collab.devices import Devices, code_of
from offpath.dpu_daemon.collab.offers import Parser
from offpath.dpu_daemon.listening.accepting import Acceptor, Unidentified, address_of

logger = logging.getLogger(__name__)
MOST_UNIDENTIFIED: Final = 1_024
MESSAGE_S: Final = 10.0
"""For a whole message, from its first byte on; also for a first message, and for an answer to be taken."""
HANDSHAKE_S: Final = 5.0
SWEEP_S: Final = 1.0
MOST_HEAD_BYTES: Final = 8 * 1024
MOST_PIPELINED: Final = 16
_BACKLOG: Final = 512
_SPARE_FILES: Final = 256
"""Descriptors beside those of devices' connections."""
_MOST_UNREAD_BYTES: Final = 16 * 1024
_PATHS: Final[dict[bytes, Callable[[bytes], CheckIn | Result]]] = {
    b"/v1/checkin": partial(control.decode, CHECK_IN), b"/v1/result": partial(control.decode, RESULT),
}  # fmt: skip
_STATUS: Final = {
    "forged": b"401 Unauthorized", "no_lease": b"409 Conflict", "replayed": b"409 Conflict",
    "device_rate": b"429 Too Many Requests", "busy": b"503 Service Unavailable", "too_long": b"413 Content Too Large",
    "timeout": b"408 Request Timeout", "path": b"404 Not Found", "method": b"405 Method Not Allowed",
}  # fmt: skip
_ENDS: Final = frozenset({"forged", "too_long", "http", "pipelined"})
"""After these refusals the connection is closed."""


class HttpServer:
    """Serves ``table.listen``. `start` listens, `close` stops. ``exhausted``: no descriptor was left to accept one."""

    def __init__(
        self, table: HttpTable, devices: Devices, tls: ssl.SSLContext | None,
        exhausted: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.devices, self.table = devices, table
        self._tls = tls
        allow_files(table.connections + _SPARE_FILES)  # before the bound of `Unidentified`, a part of the limit
        self._loop = asyncio.get_running_loop()
        self._waiting = Unidentified(MOST_UNIDENTIFIED, self._evicted)
        self._known: dict[Connection, None] = {}
        """Connections with a valid token, the longest silent first."""
        self._all: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sock: socket.socket | None = None
        self._acceptor = Acceptor("collab http", self._take, self._refuse, self._waiting, exhausted)
        self._sweeper: asyncio.TimerHandle | None = None
        self.address: tuple[str, int] = ("", 0)
        self.evicted = 0

    @property
    def is_tls(self) -> bool:
        """Connections are encrypted here, not by a proxy."""
        return self._tls is not None

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._all)

    def start(self) -> None:
        """Raises: PlaceUnusable: the address is taken or not this machine's."""
        host, port = self.table.place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as fault:
            sock.close()
            raise PlaceUnusable(f"{self.table.listen}: {fault.strerror or fault}") from None
        self._sock, self.address = sock, sock.getsockname()[:2]
        self._acceptor.open(sock.fileno())
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def reload(self, table: HttpTable, tls: ssl.SSLContext | None) -> None:
        """Bounds and certificate for what comes from here on. The address stays, and whether TLS is used."""
        self.table, self._tls = table, tls
        allow_files(table.connections + _SPARE_FILES)
        while len(self._known) > table.connections:
            self._evict_longest()

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        if self._sock is None:
            return
        self._acceptor.close()
        self._sock.close()
        self._sock = None
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self._all):
            connection.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- connections ----------------------------------------------------------------------------------------------
    def opened(self, connection: Connection) -> None:
        """Called by a connection."""
        self._all.add(connection)

    def closed(self, connection: Connection) -> None:
        """Called by a connection."""
        self._all.discard(connection)
        self._known.pop(connection, None)
        self._waiting.remove(connection.key)

    def identified(self, connection: Connection) -> None:
        """A valid token came on it: it is the last one to be closed for others."""
        if connection not in self._known:
            self._waiting.remove(connection.key)
            if len(self._known) >= self.table.connections:
                self._evict_longest()
        self._known.pop(connection, None)
        self._known[connection] = None

    def _evict_longest(self) -> None:
        longest = next(iter(self._known))
        self._evicted()
        longest.cut()
        self._known.pop(longest, None)

    def _evicted(self) -> None:
        self.evicted += 1

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for connection in [each for each in self._all if each.until_s <= now_s]:
            connection.late()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _accepted(self) -> socket.socket | None:
        assert self._sock is not None
        try:
            return self._sock.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return None

    def _refuse(self) -> bool:
        if (sock := self._accepted()) is not None:
            sock.close()
        return sock is not None

    def _take(self) -> bool:
        if (sock := self._accepted()) is None:
            return False
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = address_of(sock)
        except OSError:  # it has disconnected already
            sock.close()
            return True
        key = object()
        self._waiting.add(key, address, partial(_shut, sock))
        task = self._loop.create_task(self._connect(sock, key), name="collab-http")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _connect(self, sock: socket.socket, key: Hashable) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: Connection(self, key), sock, ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_S if self._tls is not None else None,
            )  # fmt: skip
        except OSError:  # it disconnected, or its handshake failed: no answer is possible
            self._waiting.remove(key)
            sock.close()


class Connection(asyncio.Protocol):
    """One peer. Its methods named on_… are called by its parser (implements `offers.Calls`)."""

    def __init__(self, server: HttpServer, key: Hashable) -> None:
        self.key = key
        self.until_s = 0.0
        """It is closed then, unless something happens before."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = Parser(self)
        self._nbytes = 0
        self._body = b""
        self._expects = False
        self._waiting: deque[tuple[bytes, bytes, bytes, bool]] = deque()
        self._is_busy = False
        self._is_bare = False
        """The answer in work has no body: its message is HEAD."""
        self._is_paused = False
        self._is_choked = False
        """The peer does not take its answers: no message is read or worked on until it does."""
        self._is_over = False

    # -- asyncio --------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        self._transport.set_write_buffer_limits(_MOST_UNREAD_BYTES)
        self.until_s = self._loop.time() + MESSAGE_S
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._is_over = True
        self._transport = None
        self._waiting.clear()
        self._server.closed(self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_choked = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_choked = False
        self._next()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._is_over:
            return
        if not self._nbytes and not self._is_busy:
            self.until_s = self._loop.time() + MESSAGE_S
        self._nbytes += len(data)
        try:
            self._parser.feed(data, lambda: len(self._waiting) > MOST_PIPELINED)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end("http", "not an HTTP/1.1 request that is served here")
            return
        if self._nbytes > MOST_HEAD_BYTES + MOST_MESSAGE_BYTES:
            self._end("too_long", f"a message has at most {MOST_MESSAGE_BYTES} bytes")
        elif len(self._waiting) > MOST_PIPELINED:
            self._end("pipelined", f"more than {MOST_PIPELINED} messages at once")
        else:
            self._next()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`. False: the connection is closed; an answer to a half-closed one would be lost."""
        return False

    # -- the parser -----------------------------------------------------------------------------------------------
    def on_header(self, name: bytes, value: bytes) -> None:
        """Only one header is looked at."""
        self._expects |= name.lower() == b"expect" and value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """A client that waits for leave to send the body gets it."""
        if self._expects and self._transport is not None and not self._is_busy:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects = False

    def on_body(self, body: bytes) -> None:
        """A part of the body. `data_received` bounds their sum."""
        self._body += body

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._waiting.append((self._parser.method, self._parser.url, self._body, self._parser.keeps))
        self._nbytes, self._body = 0, b""

    # -- requests -------------------------------------------------------------------------------------------------
    def _next(self) -> None:
        while self._waiting and not (self._is_busy or self._is_choked or self._is_over):
            method, url, body, stays = self._waiting.popleft()
            self._is_busy = True
            self._request(method, url.partition(b"?")[0], body, stays)
        pauses = bool(self._waiting) or self._is_choked
        if self._transport is not None and not self._is_over and pauses is not self._is_paused:
            self._is_paused = pauses
            (self._transport.pause_reading if pauses else self._transport.resume_reading)()

    def _request(self, method: bytes, path: bytes, body: bytes, stays: bool) -> None:
        devices = self._server.devices
        read = _PATHS.get(path)
        self._is_bare = method == b"HEAD"
        if read is None:
            if path == b"/healthz" and method in (b"GET", b"HEAD"):
                self._respond(b"200 OK", b'{"status":"ok"}', stays)
            else:
                self._answered(devices.refusal("path", "POST /v1/checkin or /v1/result"), stays)
        elif method != b"POST":
            self._answered(devices.refusal("method", "POST"), stays)
        elif len(body) > MOST_MESSAGE_BYTES:
            self._answered(devices.refusal("too_long", f"a message has at most {MOST_MESSAGE_BYTES} bytes"), stays)
        else:
            try:
                message = read(body)
            except ControlError as fault:
                self._answered(devices.refusal(code_of(fault), fault.detail), stays)
                return
            devices.answer(message, partial(self._device_answered, stays))

    def _device_answered(self, stays: bool, answer: Answer, is_valid: bool) -> None:
        if is_valid and not self._is_over:
            self._server.identified(self)
        self._answered(answer, stays)
        self._next()

    def _answered(self, answer: Answer, stays: bool) -> None:
        status = b"200 OK"
        if isinstance(answer, Refusal):
            status = _STATUS.get(answer.code, b"400 Bad Request")
            stays &= answer.code not in _ENDS
        self._respond(status, body_of(answer), stays)

    def _respond(self, status: bytes, body: bytes, stays: bool) -> None:
        self._is_busy = False
        if self._transport is None or self._is_over:
            return
        end = b"" if stays else b"connection: close\r\n"
        self._transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
            % (status, end, len(body), b"" if self._is_bare else body)
        )
        self.until_s = self._loop.time() + self._server.table.idle_s
        if not stays:
            self._close()

    def _end(self, code: str, detail: str) -> None:
        """Refuse what cannot be read further, after answers that are due."""
        if self._is_busy or self._waiting:
            self.cut()
        else:
            self._answered(self._server.devices.refusal(code, detail), False)

    def late(self) -> None:
        """Its time has passed. A message in work waits for the disk, and not for the peer."""
        if self._is_busy:
            self.until_s = self._loop.time() + MESSAGE_S
        elif self._nbytes and not (self._is_over or self._is_choked):
            self._end("timeout", f"a message takes at most {MESSAGE_S:g} s")
        else:
            self.cut()

    def _close(self) -> None:
        """After what was written has been sent, or after `MESSAGE_S`."""
        self._is_over = True
        self.until_s = self._loop.time() + MESSAGE_S
        self._is_busy = False
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """At once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()


def _shut(sock: socket.socket) -> None:
    """So that its reader or handshake sees the end of the stream."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
