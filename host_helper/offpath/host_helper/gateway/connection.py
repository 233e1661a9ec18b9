"""One HTTP/1.1 connection: bodies are received where they are used, one request at a time.

asyncio's usual way hands a body over in pieces, and joining them costs more than all the rest. A `BufferedProtocol`
receives a head into a small buffer and the body into one of its length, or one that grows (`incoming`).

What follows a request waits in the head's buffer, and then in the kernel: nothing is read while that buffer is full,
and nothing is looked at while a request is answered or an answer is not taken. A peer that closes its half has left:
its request is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from functools import partial
from typing import Final, Protocol, cast

from offpath.bindings.certificates import tenant_of
from offpath.host_helper.gateway import routes
from offpath.host_helper.gateway.anonymous import address_of
from offpath.host_helper.gateway.buffers import Buffer, Buffers
from offpath.host_helper.gateway.errors import Refused
from offpath.host_helper.gateway.heads import MOST_HEAD_BYTES, Head, parse
from offpath.host_helper.gateway.incoming import SLICE_BYTES, ChunkedBody, too_long
from offpath.host_helper.gateway.responses import Response, head_of, refusal
from offpath.host_helper.gateway.tenants import Tenant, Tenants

logger = logging.getLogger(__name__)
HEAD_S: Final = 10.0
"""For a head, from its first byte; and for a handshake."""
LEAST_BYTES_PER_S: Final = 64 * 1024
"""Of a body, and of an answer that is taken."""
LINGER_S: Final = 2.0
"""How long what a refused peer still sends is thrown away, so that it reads the answer."""
_UNREAD_BYTES: Final = 64 * 1024
_BUG: Final = Response(500, (b'{"error":"internal error; the gateway\'s log has it"}',))


class Owner(Protocol):
    """The server, as far as a connection is concerned."""

    @property
    def tenants(self) -> Tenants:
        """Who clients are."""

    @property
    def idle_s(self) -> float:
        """How long a connection may wait for its next request."""

    def known(self, connection: Connection, tenant: Tenant) -> None:
        """A valid token of the tenant came on it. Raises: Refused: the tenant has as many connections as it may."""

    def closed(self, connection: Connection) -> None:
        """It is gone."""

    def hold(self, tenant: Tenant, nbytes: int) -> None:
        """Take room for bodies of the tenant. Raises: Refused: there is none."""

    def release(self, tenant: Tenant, nbytes: int) -> None:
        """Give it back."""

    @property
    def buffers(self) -> Buffers:
        """For bodies."""


class Connection(asyncio.BufferedProtocol):
    """One peer. It is in one of these states: ``head`` (receives one, or waits for it), ``body``, ``work`` (the request
    is answered), ``linger`` (what comes is thrown away)."""

    def __init__(self, owner: Owner, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self.until_s = self._loop.time() + HEAD_S
        """What it waits for must have come then; at first a handshake."""
        self.tenant: Tenant | None = None
        """Whose token came last."""
        self._owner = owner
        self._sock: socket.socket | None = sock
        """Until there is a transport."""
        self._is_cut = False
        self._transport: asyncio.Transport | None = None
        self._state = "head"
        self._received = bytearray(MOST_HEAD_BYTES)
        """A head, and what came behind it; of a body in chunks what is between them."""
        self._filled = 0
        """Bytes in it; in the state ``body`` those of the body."""
        self._behind = 0
        """Meanwhile the bytes in it."""
        self._body: Buffer = bytearray()
        self._unpacked: list[Buffer] = []
        self._length = 0
        """Of the body."""
        self._chunked: ChunkedBody | None = None
        """The body that comes in chunks."""
        self._begun_s = 0.0
        """When its head was there."""
        self._held: list[tuple[Tenant, int]] = []
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_worked_on = False
        self._who: tuple[str | None, str] = None, ""  # whom its certificate names, and its address
        self._is_choked = False
        self._is_paused = False

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request or for the rest of a head, and its last answer is on its way. A client that
        sends one byte of a head may keep no more places than one that sends none."""
        is_sent = self._transport is None or not self._transport.get_write_buffer_size()
        return self._state == "head" and is_sent

    # -- asyncio --------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        self._sock = None
        if self._is_cut:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(_UNREAD_BYTES)
        self._who = tenant_of(transport.get_extra_info("peercert")), address_of(transport)
        self.until_s = self._loop.time() + self._owner.idle_s

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`. The request under way is cancelled, at the daemon too. The listener calls it
        where TLS fails."""
        self._transport = self._sock = None
        self._owner.closed(self)
        if self._task is not None:
            self._task.cancel()
        if not self._is_worked_on:  # its task, if there is one, has not begun, and never will
            self._release()

    def pause_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._is_choked = True

    def resume_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._is_choked = False
        self._next()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`. Never empty: reading pauses before."""
        if self._state == "body":
            if self._chunked is not None:
                return self._chunked.room(self._received, self._behind)
            return memoryview(self._body)[self._filled : min(self._length, self._filled + SLICE_BYTES)]
        if self._state == "linger":
            return memoryview(self._received)
        return memoryview(self._received)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._state == "linger":
            return
        if self._chunked is not None:
            self._chunk(self._chunked, nbytes)
            return
        is_first = not self._filled
        self._filled += nbytes
        if self._state == "body":
            if self._filled == self._length:
                self._begin()
            elif nbytes == SLICE_BYTES:
                self._read_later()
                return
        elif self._state == "head" and not self._is_choked:
            if is_first:
                self.until_s = self._loop.time() + HEAD_S
            self._look()
        self._read_on()

    def _read_later(self) -> None:
        """After the others: libuv reads on while a buffer becomes full."""
        if self._transport is not None and not self._transport.is_closing() and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read exactly while there is room."""
        is_full = self._state in ("head", "work") and self._filled == MOST_HEAD_BYTES
        if self._transport is None or self._transport.is_closing() or is_full is self._is_paused:
            return
        self._is_paused = is_full
        (self._transport.pause_reading if is_full else self._transport.resume_reading)()

    # -- a request ------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Whether a whole head is there. An empty line before it is skipped (RFC 9112 §2.2)."""
        if self._filled >= 2 and self._received.startswith(b"\r\n"):
            self._filled -= 2
            self._received[: self._filled] = self._received[2 : self._filled + 2]
        end = self._received.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == MOST_HEAD_BYTES:
                self._refuse(Refused(431, "INVALID_ARGUMENT", f"a head has at most {MOST_HEAD_BYTES} bytes"))
            return
        self._head = None
        try:
            self._head = head = parse(bytes(memoryview(self._received)[: end + 4]))
            response = routes.open_to_all(head, self._owner.tenants.is_ready)
            waits = response is None and self._expect(head)
            if response is None or not head.has_body:  # without a token no body is read
                self._take_rest(end + 4)
        except Refused as refused:
            self._refuse(refused)
            return
        if response is not None:
            self._write(response, head.keeps and not head.has_body)
            self._next()
            return
        if waits and self._state == "body" and not (self._behind if self._chunked else self._filled):
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._chunked is not None:
            self._chunk(self._chunked, 0)
        elif self._state == "head" or self._filled == self._length:
            self._begin()

    def _identify(self, head: Head) -> Tenant:
        """Raises: Refused: no tenant's."""
        tenant = self._owner.tenants.identified(head.bearer, *self._who, head.host, head.origin, head.site)
        self._owner.known(self, tenant)
        self.tenant = tenant
        return tenant

    def _expect(self, head: Head) -> bool:
        """Whether the client waits for leave to send the body. Raises: Refused: no tenant's, or a body that is too
        long."""
        tenant = self._identify(head)
        waits = head.expects
        most = tenant.table.most_body
        if head.length > most:
            raise too_long(most)
        if head.is_chunked:
            self._chunked = ChunkedBody(self._owner.buffers, partial(self._hold, tenant), most)
        else:
            self._hold(tenant, head.length)
        return waits

    def _take_rest(self, at: int) -> None:
        """What came behind the head is the body's beginning, or the next head's. Raises: Refused: no memory."""
        assert self._head is not None
        rest = bytes(memoryview(self._received)[at : self._filled])
        length = self._head.length
        if not self._head.has_body:
            self._received[: len(rest)] = rest
            self._filled = len(rest)
            return
        self._state, self._length = "body", length
        if self._chunked is None:
            self._body = self._owner.buffers.take(length)
            self._filled = min(len(rest), length)
            self._body[: self._filled] = rest[: self._filled]
            rest = rest[self._filled :]
        self._received[: len(rest)] = rest
        self._behind = len(rest)
        self._begun_s = self._loop.time()
        self.until_s = self._begun_s + HEAD_S + length / LEAST_BYTES_PER_S

    def _chunk(self, body: ChunkedBody, nbytes: int) -> None:
        """So many bytes of a body in chunks have come, where `get_buffer` wanted them."""
        is_full = nbytes == body.room(self._received, self._behind).nbytes
        try:
            self._behind = body.took(self._received, self._behind, nbytes)
        except Refused as refused:
            self._refuse(refused)
            return
        self.until_s = self._begun_s + HEAD_S + body.filled / LEAST_BYTES_PER_S
        if body.is_whole:
            self._chunked = None
            self._body, self._length = body.buffer, body.filled
            self._begin()
        elif is_full:
            self._read_later()
            return
        self._read_on()

    def _begin(self) -> None:
        assert self._head is not None
        if self._state == "body":
            self._filled, self._behind = self._behind, 0
        try:
            tenant = self._identify(self._head)  # again: a body may take minutes, and a reload a moment
        except Refused as refused:
            self._refuse(refused)
            return
        self._state = "work"
        self.until_s = float("inf")
        body = memoryview(self._body)[: self._length]
        self._task = self._loop.create_task(self._work(tenant, self._head, body))

    async def _work(self, tenant: Tenant, head: Head, body: memoryview) -> None:
        self._is_worked_on = True
        is_over = False
        try:
            response = await routes.respond(tenant, head, body, partial(self._room, tenant))
            is_over = True
        except Refused as refused:
            response = refusal(refused)
            is_over = True
        except Exception:
            logger.exception("a request was not answered", extra={"code": "gateway_bug"})
            response = _BUG
        finally:
            self._task = None
            self._is_worked_on = False
            del body
            if is_over:  # else something may still use them
                for buffer in (self._body, *self._unpacked):
                    self._owner.buffers.give_back(buffer)
            self._body = bytearray()
            self._unpacked.clear()
            self._release()
        self._state = "head"
        self._write(response, head.keeps)
        self._next()

    def _room(self, tenant: Tenant, nbytes: int) -> Buffer:
        """Memory until the request has ended. Raises: Refused: there is none."""
        self._hold(tenant, nbytes)
        buffer = self._owner.buffers.take(nbytes)
        self._unpacked.append(buffer)
        return buffer

    def _hold(self, tenant: Tenant, nbytes: int) -> None:
        """Take room until `_release`. Raises: Refused: there is none."""
        self._owner.hold(tenant, nbytes)
        self._held.append((tenant, nbytes))

    def _release(self) -> None:
        while self._held:
            self._owner.release(*self._held.pop())

    def _next(self) -> None:
        """The next request, if a part of it is there and the last answer is taken."""
        if self._transport is None or self._state != "head" or self._is_choked:
            return
        self.until_s = self._loop.time() + (HEAD_S if self._filled else self._owner.idle_s)
        if self._filled:
            self._loop.call_soon(self._look_again)  # not at once: many requests may have come together
        self._read_on()

    def _look_again(self) -> None:
        if self._state == "head" and self._filled and not self._is_choked and self._transport is not None:
            self._look()
            self._read_on()

    # -- answers --------------------------------------------------------------------------------------------------
    def _refuse(self, refused: Refused) -> None:
        """The head is not served: the answer, then the end, because its body's place is not known or not wanted."""
        self._write(refusal(refused), keeps=False)

    def _write(self, response: Response, keeps: bool) -> None:
        if self._transport is None:
            return
        is_bare, self._head = self._head is not None and self._head.is_bare, None
        self.until_s = self._loop.time() + HEAD_S + response.nbytes / LEAST_BYTES_PER_S
        self._transport.writelines([head_of(response, keeps), *(() if is_bare else response.chunks)])
        if not keeps:
            self._linger(response.nbytes)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _linger(self, nbytes: int) -> None:
        """The answer of ``nbytes`` is the last one. Unread bytes at the close would reset the connection, and the peer
        might lose the answer."""
        self._state = "linger"
        self._body = bytearray()
        self._chunked = None
        self._release()
        if self._transport is None:
            return
        self.until_s = self._loop.time() + LINGER_S + nbytes / LEAST_BYTES_PER_S
        if not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.write_eof()
            self._read_on()

    def late(self) -> None:
        """Its time has passed."""
        if (self._state == "body" or (self._state == "head" and self._filled)) and not self._is_choked:
            self._refuse(Refused(408, "DEADLINE_EXCEEDED", "the request did not come in time"))
        else:
            self.cut()

    def cut(self) -> None:
        """At once."""
        self._is_cut = True
        if self._transport is not None:
            self._transport.abort()
        elif self._sock is not None:
            with contextlib.suppress(OSError):  # it is not connected any more
                self._sock.shutdown(socket.SHUT_RDWR)
