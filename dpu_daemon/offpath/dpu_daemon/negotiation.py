"""The daemon's side of the negotiation: one protocol, two carriers (Unix socket, TCP with TLS 1.3).

Quotas are checked and reserved before anything is allocated; the regions are made only when the ticket is redeemed.
A connection that says nothing for five seconds, or too much, is closed; a welcomed one lives as long as its session.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, FrameError, NegotiationRefused, PeerGone, RegionError, TicketRefused
from offpath.bindings.loopback.fabric import LoopbackFabricListener, LoopbackFabricSession, slot_stride
from offpath.bindings.loopback.sockets import listening_socket
from offpath.bindings.wire import control
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.config import DaemonConfig, TenantTable, TlsTable, read_token
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.sessions import Session

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0
TICKET_TTL_S: Final = 5
RESUME_TTL_S: Final = 60
MAX_PENDING: Final = 256
_ACCEPTS: Final = 16  # in one turn of the loop: who only connects holds nobody up
MAX_PENDING_TICKETS: Final = 63  # the listener itself turns peers away from 64 on
_SAN_PREFIX: Final = "offpath://tenant/"


@dataclass(slots=True, eq=False)
class _Tenant:
    table: TenantTable
    token: str | None
    sessions: int = 0
    nbytes: int = 0


@dataclass(slots=True, eq=False)
class _Grant:
    """A welcomed peer: what it holds, from the welcome until its session ends."""

    tenant: _Tenant
    session: int
    ticket: str
    nbytes: int
    writer: asyncio.StreamWriter
    expiry: asyncio.TimerHandle | None = None
    live: Session | None = None
    is_over: bool = False


@dataclass(slots=True)
class _Carrier:
    """How a connection says who it is: the uid of a Unix peer, or the tenant of a certificate."""

    uid: int | None = None
    certified: str | None = None


@dataclass(slots=True)
class Endpoints:
    """Where the daemon listens."""

    negotiate: str
    fabric: str
    tls: tuple[str, int] | None = None


class Negotiator:
    """Lets requesters in. `start` listens, `close` stops."""

    def __init__(self, daemon: Daemon, config: DaemonConfig, endpoints: Endpoints) -> None:
        self._daemon = daemon
        self._config = config
        self.endpoints = endpoints
        self._tenants = {t.name: _Tenant(t, read_token(t.token_file) if t.token_file else None) for t in config.tenant}
        self._fabric = LoopbackFabricListener(endpoints.fabric)
        self._servers: list[asyncio.Server] = []
        self._grants: dict[int, _Grant] = {}
        self._by_ticket: dict[bytes, _Grant] = {}
        self._next_session = 1
        self._pending: dict[asyncio.StreamWriter, None] = {}  # who has not said hello yet, longest first
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: dict[socket.socket, asyncio.TimerHandle] = {}
        daemon.on_kernels_changed.append(self._tell_kernels)
        daemon.on_session_ended.append(self._session_ended)

    async def start(self) -> None:
        """Listen on every configured carrier. Raises: OSError, ssl.SSLError: an address or file is unusable."""
        sock = listening_socket(self.endpoints.negotiate, socket.SOCK_STREAM)
        os.chmod(self.endpoints.negotiate, 0o666 if self._any_other_uid() else 0o600)
        os.chmod(self.endpoints.fabric, 0o666 if self._any_other_uid() else 0o600)
        self._servers.append(await asyncio.start_unix_server(self._unix_peer, sock=sock))
        tls = self._config.tls
        if tls is not None:
            host, _, port = tls.listen.rpartition(":")
            server = await asyncio.start_server(
                self._tls_peer, host.strip("[]"), int(port), ssl=_server_context(tls), ssl_handshake_timeout=5.0
            )
            self._servers.append(server)
            self.endpoints.tls = server.sockets[0].getsockname()[:2]
        self._loop.add_reader(self._fabric.fileno(), self._fabric_accept)

    def _any_other_uid(self) -> bool:
        return any(uid != os.getuid() for t in self._config.tenant for uid in t.uids)

    async def close(self) -> None:
        """Stop listening, tell every peer, forget unredeemed tickets."""
        self._is_closing = True
        for server in self._servers:
            server.close()
        self._loop.remove_reader(self._fabric.fileno())
        for timer in self._drops.values():
            timer.cancel()
        for sock in list(self._drops):
            self._loop.remove_reader(sock.fileno())
        self._fabric.close()
        for grant in list(self._grants.values()):
            self._end(grant, control.Closing(code="daemon_ends", detail="the daemon ends"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if os.path.exists(self.endpoints.negotiate):
            os.unlink(self.endpoints.negotiate)

    # -- carriers -------------------------------------------------------------------------------------------------
    async def _unix_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        await self._owned(self._talk(_Carrier(uid=struct.unpack("3i", raw)[1]), reader, writer))

    async def _tls_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certified = _tenant_of(writer.get_extra_info("peercert"))
        await self._owned(self._talk(_Carrier(certified=certified), reader, writer))

    async def _owned(self, talk: Awaitable[None]) -> None:
        """The stream server made this task; remember it, so that `close` can end it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await talk
        except asyncio.CancelledError:
            if not self._is_closing:
                raise  # only `close` cancels on purpose, and the stream server would log that as a fault
        finally:
            self._tasks.discard(task)

    async def _talk(self, carrier: _Carrier, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from hello to goodbye."""
        grant: _Grant | None = None
        if len(self._pending) >= MAX_PENDING:
            # The longest silent makes room: an honest hello comes at once, turning the newest away would lock all out.
            silent = next(iter(self._pending))
            del self._pending[silent]
            silent.transport.abort()
        self._pending[writer] = None
        try:
            frames, rest = FrameReader(), list[bytes]()
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                body = await _next_frame(reader, frames, rest)
            message = control.decode(control.TO_DAEMON, body)
            if not isinstance(message, control.Hello):
                raise ControlError("hello", f"{message.kind} came first")
            grant = self._admit(carrier, message, writer)
            self._pending.pop(writer, None)
            while True:
                said = control.decode(control.TO_DAEMON, await _next_frame(reader, frames, rest))
                if isinstance(said, control.Goodbye):
                    return
                raise ControlError("out_of_turn", said.kind)
        except NegotiationRefused as refused:
            _say(
                writer, control.Refused(code=refused.code, detail=refused.detail, retry_after_ms=refused.retry_after_ms)
            )
        except (ControlError, FrameError) as broken:
            self._daemon.counters["violations"] += 1
            _say(writer, control.Refused(code=broken.code, detail=broken.detail[:500]))
        except (PeerGone, TimeoutError, OSError):
            pass  # nobody is left to answer; what it held is given back below
        finally:
            self._pending.pop(writer, None)
            if grant is not None:
                self._end(grant, None)
            writer.close()

    # -- admission ------------------------------------------------------------------------------------------------
    def _admit(self, carrier: _Carrier, hello: control.Hello, writer: asyncio.StreamWriter) -> _Grant:
        """Who, and how much; then the welcome. Raises: NegotiationRefused."""
        tenant = self._identify(carrier, hello)
        table = tenant.table
        if tenant.sessions >= table.max_sessions:
            raise NegotiationRefused("sessions", f"{table.max_sessions} sessions at most", 1000)
        if hello.payload_bytes > self._config.leasing.landing_bytes:
            raise NegotiationRefused("payload_bytes", f"{self._config.leasing.landing_bytes} at most per request")
        if hello.result_bytes > self._config.leasing.result_bytes:
            raise NegotiationRefused("result_bytes", f"{self._config.leasing.result_bytes} at most per request")
        slots = min(hello.slots, table.max_slots)
        nbytes = slots * (slot_stride(hello.payload_bytes) + slot_stride(hello.result_bytes))
        if tenant.nbytes + nbytes > table.max_bytes:
            raise NegotiationRefused("memory", f"{nbytes} bytes asked, {table.max_bytes - tenant.nbytes} left", 1000)
        tenant.sessions += 1
        tenant.nbytes += nbytes
        session = self._next_session
        self._next_session += 1
        ticket = secrets.token_urlsafe(32)
        grant = _Grant(tenant, session, ticket, nbytes, writer)
        expires_ns = self._daemon.now_ns() + TICKET_TTL_S * 1_000_000_000
        self._fabric.offer(ticket, slots, hello.payload_bytes, hello.result_bytes, expires_ns)
        self._by_ticket[ticket.encode()] = grant
        self._grants[session] = grant
        grant.expiry = self._loop.call_later(TICKET_TTL_S + 0.1, self._expired, grant)
        _say(
            writer,
            control.Welcome(
                session=session, tenant=table.name, lineage=self._daemon.lineage, slots=slots,
                payload_bytes=hello.payload_bytes, result_bytes=hello.result_bytes,
                resume_token=secrets.token_urlsafe(32), resume_ttl_s=RESUME_TTL_S, ticket=ticket,
                ticket_ttl_s=TICKET_TTL_S,
                fabric=control.FabricOffer(carrier="loopback", address=self.endpoints.fabric),
                kernels=self._daemon.kernels.infos(),
            ),
        )  # fmt: skip
        return grant

    def _identify(self, carrier: _Carrier, hello: control.Hello) -> _Tenant:
        """The tenant comes from the carrier, never from what the peer claims; every failure looks the same."""
        denied = NegotiationRefused("denied", "no tenant for these credentials")
        if carrier.uid is None:
            tenant = self._tenants.get(carrier.certified or "")
            if tenant is None or hello.tenant not in (None, tenant.table.name):
                raise denied
            return tenant
        tenant = self._tenants.get(hello.tenant or "")
        given = (hello.token or "").encode()
        # An unknown tenant costs the same comparison, so that names cannot be told apart by time.
        expected = tenant.token if tenant is not None and tenant.token is not None else secrets.token_urlsafe(32)
        is_right = hmac.compare_digest(expected.encode(), given)
        if tenant is None or tenant.token is None or not is_right:
            raise denied
        if carrier.uid not in (tenant.table.uids or [os.getuid()]):
            raise denied
        return tenant

    # -- tickets --------------------------------------------------------------------------------------------------
    def _fabric_accept(self) -> None:
        for _ in range(_ACCEPTS):
            if len(self._drops) >= MAX_PENDING_TICKETS:
                self._drop(next(iter(self._drops)))  # the longest silent, for the same reason as in `_talk`
            if (sock := self._fabric.accept()) is None:
                return
            self._drops[sock] = self._loop.call_later(TICKET_TTL_S, self._drop, sock)
            self._loop.add_reader(sock.fileno(), self._fabric_ticket, sock)

    def _drop(self, sock: socket.socket) -> None:
        timer = self._drops.pop(sock, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(sock.fileno())
        self._fabric.drop(sock)

    def _fabric_ticket(self, sock: socket.socket) -> None:
        self._drops.pop(sock).cancel()
        self._loop.remove_reader(sock.fileno())
        try:
            ticket, offer = self._fabric.take_ticket(sock, self._daemon.now_ns())
        except TicketRefused as refused:
            self._daemon.counters["violations"] += 1
            logger.info("ticket refused: %s", refused)
            return
        except PeerGone:
            return
        grant = self._by_ticket.pop(ticket, None)
        if grant is None or grant.is_over:
            sock.close()
            return
        if grant.expiry is not None:
            grant.expiry.cancel()
            grant.expiry = None
        made = self._loop.run_in_executor(
            None, LoopbackFabricSession, offer.slots, offer.payload_bytes, offer.result_bytes
        )
        made.add_done_callback(lambda future: self._fabric_made(sock, grant, future))

    def _fabric_made(self, sock: socket.socket, grant: _Grant, made: asyncio.Future[Any]) -> None:
        try:
            fabric: LoopbackFabricSession = made.result()
        except RegionError as fault:
            logger.warning("no memory for a session of %s: %s", grant.tenant.table.name, fault)
            sock.close()
            self._end(grant, control.Closing(code="memory", detail=str(fault)[:500]))
            return
        if grant.is_over:
            fabric.close()
            sock.close()
            return
        try:
            fabric.hand_over(sock)
        except OSError:
            fabric.close()
            self._end(grant, None)
            return
        finally:
            sock.close()
        grant.live = self._daemon.session_opened(grant.session, grant.tenant.table.name, fabric)

    def _expired(self, grant: _Grant) -> None:
        grant.expiry = None
        self._end(grant, control.Closing(code="ticket_expired", detail="the ticket was not redeemed in time"))

    # -- the end --------------------------------------------------------------------------------------------------
    def _session_ended(self, session: Session, code: str, detail: str) -> None:
        grant = self._grants.get(session.number)
        if grant is not None:
            self._end(grant, control.Closing(code=code, detail=detail[:500]))

    def _end(self, grant: _Grant, closing: control.Closing | None) -> None:
        """Give everything back, once, whoever noticed first."""
        if grant.is_over:
            return
        grant.is_over = True
        del self._grants[grant.session]
        self._by_ticket.pop(grant.ticket.encode(), None)
        self._fabric.withdraw(grant.ticket)
        grant.tenant.sessions -= 1
        grant.tenant.nbytes -= grant.nbytes
        if grant.expiry is not None:
            grant.expiry.cancel()
        if grant.live is not None:
            self._daemon.session_ended(grant.live, "peer_gone", "its negotiation ended")
        if closing is not None:
            _say(grant.writer, closing)
            grant.writer.close()

    def _tell_kernels(self) -> None:
        message = control.Kernels(kernels=self._daemon.kernels.infos())
        for grant in self._grants.values():
            _say(grant.writer, message)


async def _next_frame(reader: asyncio.StreamReader, frames: FrameReader, held: list[bytes]) -> bytes:
    """The next whole frame. Raises: PeerGone: the stream ended. FrameError."""
    while not held:
        data = await reader.read(16384)
        if not data:
            raise PeerGone("the peer closed")
        held += frames.feed(data)
    return held.pop(0)


def _say(writer: asyncio.StreamWriter, message: BaseModel) -> None:
    """Send without waiting; a peer that does not read is cut off at 256 KiB of unread messages."""
    transport = writer.transport
    if transport.is_closing():
        return
    if transport.get_write_buffer_size() > 262_144:
        transport.abort()
        return
    writer.write(frame(control.encode(message)))


def _server_context(tls: TlsTable) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(tls.ca_file)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    return context


def _tenant_of(certificate: dict[str, Any] | None) -> str | None:
    """The one ``offpath://tenant/NAME`` among the certificate's URI names; two make none."""
    names = (certificate or {}).get("subjectAltName", ())
    tenants = [v[len(_SAN_PREFIX) :] for k, v in names if k == "URI" and v.startswith(_SAN_PREFIX)]
    return tenants[0] if len(tenants) == 1 else None
