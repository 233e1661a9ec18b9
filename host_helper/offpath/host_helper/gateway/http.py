"""The gateway's HTTP/1.1 server: bodies are received where they are used, one request at a time per connection.

asyncio's usual way hands a body over in pieces, and joining them costs more than all the rest. A `BufferedProtocol`
receives a head into a small buffer and the body into one of its length.

Whatever a peer can make large or long is bounded: heads, bodies and their sum, connections, the time for a head and the
rate of a body. Before a valid token nothing of a body is read, and nothing is said of what there is.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, Final, cast

from offpath.bindings.certificates import tenant_of
from offpath.bindings.errors import PlaceUnusable
from offpath.host_helper.gateway import routes
from offpath.host_helper.gateway.config import GatewayFile
from offpath.host_helper.gateway.errors import Refused, too_large, unavailable
from offpath.host_helper.gateway.heads import MOST_HEAD_BYTES, Head, parse
from offpath.host_helper.gateway.responses import Response, head_of, refusal
from offpath.host_helper.gateway.tenants import Tenant, Tenants

logger = logging.getLogger(__name__)
HEAD_S: Final = 10.0
"""For a head, from its first byte; for a first one, and for a handshake."""
LEAST_BYTES_PER_S: Final = 64 * 1024
"""Of a body, and of an answer that is taken."""
LINGER_S: Final = 2.0
"""How long what a refused peer still sends is thrown away, so that it reads the answer."""
MOST_UNIDENTIFIED: Final = 256
"""Connections without a valid token."""
_SWEEP_S: Final = 1.0
_UNREAD_BYTES: Final = 64 * 1024
_KEPT_BYTES: Final = 8 << 20
"""Largest buffer that a connection keeps from request to request."""
_BUG: Final = Response(500, (b'{"error":"internal error; the gateway\'s log has it"}',))


class HttpServer:
    """Serves tenants' clients. `start` listens, `close` stops."""

    def __init__(self, config: GatewayFile, tenants: Tenants, tls: ssl.SSLContext | None) -> None:
        self.config, self.tenants = config, tenants
        self.held_bytes = 0
        """Of bodies, of all connections."""
        self._tls = tls
        self._all: dict[Connection, None] = {}
        self._unidentified: dict[Connection, None] = {}
        """Connections without a valid token so far, the oldest first."""
        self._of: dict[Tenant, dict[Connection, None]] = {}
        """Connections of each tenant, the one that was used last at the end."""
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._all)

    async def start(self) -> None:
        """Raises: PlaceUnusable: the address is taken, or not this machine's."""
        host, _, port = self.config.http.rpartition(":")
        loop = asyncio.get_running_loop()
        given = {"ssl": self._tls, "ssl_handshake_timeout": HEAD_S} if self._tls is not None else {}
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host.strip("[]"), int(port), backlog=512, **cast(Any, given)
            )
        except (OSError, OverflowError) as fault:
            raise PlaceUnusable(f"http: {self.config.http}: {getattr(fault, 'strerror', None) or fault}") from None
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)

    async def close(self) -> None:
        """Idempotent. Requests under way end."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._all):
            connection.cut()
        await asyncio.sleep(0)

    # -- called by connections ------------------------------------------------------------------------------------
    def opened(self, connection: Connection) -> bool:
        """False: there are too many. To make room, the oldest without a token goes first, then the one that the tenant
        with the most connections has not used for the longest time."""
        is_full = len(self._all) >= self.config.connections
        if is_full or len(self._unidentified) >= MOST_UNIDENTIFIED:
            leaves = next(iter(self._unidentified), None) or self._idle()
            if leaves is None:
                return False
            self.closed(leaves)
            leaves.cut()
        self._all[connection] = None
        self._unidentified[connection] = None
        return True

    def _idle(self) -> Connection | None:
        most = max(self._of.values(), key=len, default={})
        return next((each for each in most if each.is_idle), None)

    def known(self, connection: Connection, tenant: Tenant) -> None:
        """A valid token of the tenant came on it."""
        self._unidentified.pop(connection, None)
        if connection.tenant is not tenant and connection.tenant is not None:
            self._forget(connection, connection.tenant)
        connections = self._of.setdefault(tenant, {})
        connections.pop(connection, None)
        connections[connection] = None

    def closed(self, connection: Connection) -> None:
        """It is gone. Idempotent."""
        self._all.pop(connection, None)
        self._unidentified.pop(connection, None)
        if connection.tenant is not None:
            self._forget(connection, connection.tenant)

    def _forget(self, connection: Connection, tenant: Tenant) -> None:
        connections = self._of.get(tenant, {})
        connections.pop(connection, None)
        if not connections:
            self._of.pop(tenant, None)

    def hold(self, nbytes: int) -> None:
        """Take room for a body. Raises: Refused: bodies fill the gateway's memory."""
        if self.held_bytes + nbytes > self.config.memory_bytes:
            raise unavailable("the gateway's memory for requests is in use")
        self.held_bytes += nbytes

    def release(self, nbytes: int) -> None:
        """Give it back."""
        self.held_bytes -= nbytes

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in [each for each in self._all if each.until_s <= now_s]:
            connection.late()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)


class Connection(asyncio.BufferedProtocol):
    """One peer. It is in one of these states: ``head`` (receives one, or waits for it), ``body``, ``work`` (the request
    is answered), ``linger`` (what comes is thrown away)."""

    def __init__(self, server: HttpServer) -> None:
        self.until_s = 0.0
        """What it waits for must have come then."""
        self.tenant: Tenant | None = None
        """Whose token came last."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._state = "head"
        self._received = bytearray(MOST_HEAD_BYTES)
        """A head, and what came behind it."""
        self._filled = 0
        self._body = bytearray()
        self._length = 0
        self._held = 0
        self._behind = 0
        """Bytes of the next head that came with this request, at the beginning of the head's buffer."""
        self._head: Head | None = None
        self._task: asyncio.Task[None] | None = None
        self._certified: str | None = None
        self._is_choked = False

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request."""
        return self._state == "head" and not self._filled

    # -- asyncio --------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it
        if not self._server.opened(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(_UNREAD_BYTES)
        self._certified = tenant_of(transport.get_extra_info("peercert"))
        self.until_s = self._loop.time() + HEAD_S

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`. The request under way is cancelled, at the daemon too."""
        self._transport = None
        self._server.closed(self)
        if self._task is not None:
            self._task.cancel()
        else:
            self._drop_body()

    def pause_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._is_choked = True

    def resume_writing(self) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._is_choked = False
        if self._state == "head":
            self._next()

    def eof_received(self) -> bool:
        """See `asyncio.BufferedProtocol`. False: it is closed."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        if self._state == "body":
            return memoryview(self._body)[self._filled : self._length]
        if self._state == "linger":
            return memoryview(self._received)
        return memoryview(self._received)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if self._state == "linger":
            return
        if self._state == "head" and not self._filled:
            self.until_s = self._loop.time() + HEAD_S
        self._filled += nbytes
        if self._state == "body":
            if self._filled == self._length:
                self._begin()
        elif self._state == "head":
            self._look()
        elif self._filled == MOST_HEAD_BYTES and self._transport is not None:
            self._transport.pause_reading()  # requests ahead of the answer: they wait in the kernel

    # -- a request ------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Whether a whole head is there."""
        end = self._received.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == MOST_HEAD_BYTES:
                self._refuse(Refused(431, "INVALID_ARGUMENT", f"a head has at most {MOST_HEAD_BYTES} bytes"))
            return
        try:
            head = parse(bytes(memoryview(self._received)[: end + 4]))
            response = None if head.length else routes.open_to_all(head, self._server.tenants.is_ready)
            if response is None:
                self._identify(head)
        except Refused as refused:
            self._refuse(refused)
            return
        self._head = head
        self._take_rest(end + 4)
        if response is not None:
            self._write(response, head.keeps)
            self._next()
            return
        if head.headers.get("expect", "").lower() == "100-continue" and self._filled < head.length:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not head.length or (self._state == "body" and self._filled == self._length):
            self._begin()

    def _identify(self, head: Head) -> None:
        """Raises: Refused: no tenant's, or a body that is too long."""
        tenant = self._server.tenants.identified(head.bearer, self._certified)
        self._server.known(self, tenant)
        self.tenant = tenant
        expects = head.headers.get("expect", "").lower()
        if expects not in ("", "100-continue"):
            raise Refused(417, "INVALID_ARGUMENT", "Expect: 100-continue is served")
        most = routes.most_body(tenant)
        if head.length > most:
            raise too_large(f"a body has at most {most} bytes here")
        self._hold(head.length)

    def _take_rest(self, at: int) -> None:
        """What came behind the head is the body's beginning, or the next head's."""
        assert self._head is not None
        rest = bytes(memoryview(self._received)[at : self._filled])
        length = self._head.length
        if not length:
            self._received[: len(rest)] = rest
            self._filled = len(rest)
            return
        if len(self._body) < length:
            self._body = bytearray(length)
        self._state, self._length = "body", length
        self._filled = min(len(rest), length)
        self._body[: self._filled] = rest[: self._filled]
        self._received[: len(rest) - self._filled] = rest[self._filled :]
        self._behind = len(rest) - self._filled
        self.until_s = self._loop.time() + HEAD_S + length / LEAST_BYTES_PER_S

    def _begin(self) -> None:
        assert self._head is not None
        assert self.tenant is not None
        if self._state == "body":
            self._filled, self._behind = self._behind, 0
        self._state = "work"
        self.until_s = float("inf")
        body = memoryview(self._body)[: self._head.length]
        self._task = self._loop.create_task(self._work(self.tenant, self._head, body))

    async def _work(self, tenant: Tenant, head: Head, body: memoryview) -> None:
        try:
            response = await routes.respond(tenant, head, body, self._hold)
        except Refused as refused:
            response = refusal(refused)
        except Exception:
            logger.exception("a request was not answered", extra={"code": "gateway_bug"})
            response = _BUG
        finally:
            self._task = None
            self._drop_body()
        self._state = "head"
        self._write(response, head.keeps)
        self._next()

    def _hold(self, nbytes: int) -> None:
        """Take room until `_drop_body`. Raises: Refused: there is none."""
        self._server.hold(nbytes)
        self._held += nbytes

    def _drop_body(self) -> None:
        self._server.release(self._held)
        self._held = 0
        if len(self._body) > _KEPT_BYTES:
            self._body = bytearray()

    def _next(self) -> None:
        """The next request, if a part of it is there and the last answer is taken."""
        if self._transport is None or self._state != "head" or self._is_choked:
            return
        self.until_s = self._loop.time() + (HEAD_S if self._filled else self._server.config.idle_s)
        self._transport.resume_reading()
        if self._filled:
            self._loop.call_soon(self._look_again)  # not at once: many requests may have come together

    def _look_again(self) -> None:
        if self._state == "head" and self._filled:
            self._look()

    # -- answers --------------------------------------------------------------------------------------------------
    def _refuse(self, refused: Refused) -> None:
        """The head is not served: the answer, then the end, because its body's place is not known or not wanted."""
        self._write(refusal(refused), keeps=False)

    def _write(self, response: Response, keeps: bool) -> None:
        if self._transport is None:
            return
        self.until_s = self._loop.time() + HEAD_S + response.nbytes / LEAST_BYTES_PER_S
        self._transport.writelines([head_of(response, keeps), *response.chunks])
        if not keeps:
            self._linger()

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _linger(self) -> None:
        """The answer is the last one. Unread bytes at the close would reset the connection, and the peer might lose
        the answer."""
        self._state = "linger"
        self._drop_body()
        if self._transport is None:
            return
        self.until_s = max(self.until_s, self._loop.time() + LINGER_S)
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    def late(self) -> None:
        """Its time has passed."""
        if self._state in ("head", "body") and self._filled and not self._is_choked:
            self._refuse(Refused(408, "DEADLINE_EXCEEDED", "the request did not come in time"))
        else:
            self.cut()

    def cut(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()
