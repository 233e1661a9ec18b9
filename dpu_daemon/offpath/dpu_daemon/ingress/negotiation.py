"""Serves the negotiation protocol on two carriers: Unix socket, and TCP with TLS 1.3.

`admission` decides who is admitted; memory is created only when the ticket is redeemed (`fabric_acceptor`). A
connection that sends nothing for five seconds, or too much, is closed. The bound on pending connections includes those
in their TLS handshake. A welcomed connection lives as long as its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import BaseModel

from offpath.bindings.certificates import tenant_of
from offpath.bindings.errors import ControlError, FrameError, NegotiationRefused, PeerGone, PlaceUnusable
from offpath.bindings.loopback.fabric import LoopbackFabricListener, LoopbackFabricSession
from offpath.bindings.ports import FabricSession
from offpath.bindings.sockets import SocketFile, listening_socket, peer_credentials
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.config import DaemonConfig, TenantTable, server_context
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.ingress.admission import Admission, Carrier, Grant
from offpath.dpu_daemon.ingress.describing import Describing
from offpath.dpu_daemon.ingress.fabric_acceptor import FabricAcceptor, LoopbackAcceptor
from offpath.dpu_daemon.ingress.streams import Conversation, StreamListener, prime
from offpath.dpu_daemon.listening.accepting import Unidentified

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0
MAX_PENDING: Final = 256
_UNREAD_BYTES: Final = 65_536
"""Of one peer, before it gets no further news until it has read."""


@dataclass(slots=True)
class Endpoints:
    """Where the daemon listens. An inherited socket listens there already, and the daemon must not remove its file."""

    negotiate: str
    fabric: str
    tls: tuple[str, int] | None = None
    negotiate_socket: socket.socket | None = None
    fabric_socket: socket.socket | None = None


class StreamPeer:
    """Implements `admission.Peer` over a stream; a peer with 256 KiB of unread messages is disconnected."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(_UNREAD_BYTES)  # over TLS it would be more
        self._writer = writer
        self._newest: BaseModel | None = None
        self._renewing: asyncio.Task[None] | None = None

    def send(self, message: BaseModel) -> None:
        """See `Peer.send`."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > 262_144:
            transport.abort()
            return
        self._writer.write(frame(control.encode(message)))

    def renew(self, message: BaseModel) -> None:
        """See `Peer.renew`."""
        if self._renewing is None and self._writer.transport.get_write_buffer_size() <= _UNREAD_BYTES:
            self.send(message)
            return
        self._newest = message
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="renewal")

    async def _renew(self) -> None:
        try:
            with contextlib.suppress(OSError):  # it is gone
                await self._writer.drain()
        finally:
            self._renewing = None
        if self._newest is not None:
            self.send(self._newest)
            self._newest = None

    def hang_up(self) -> None:
        """See `Peer.hang_up`."""
        self._writer.close()


class Negotiator:
    """Accepts requesters from `start` to `close`."""

    def __init__(self, daemon: Daemon, config: DaemonConfig, endpoints: Endpoints) -> None:
        self._daemon = daemon
        self._config = config
        self.endpoints = endpoints
        self.make_fabric: Callable[..., FabricSession]
        self._fabric_acceptor: FabricAcceptor
        if config.datapath.fabric == "verbs":
            self._open_verbs()
        else:
            self._open_loopback()
        self._waiting = Unidentified(MAX_PENDING, partial(daemon.count, "connections_evicted"))
        self._unix: StreamListener | None = None
        self._tls: StreamListener | None = None
        self._file: SocketFile | None = None

    def _open_loopback(self) -> None:
        listener = LoopbackFabricListener(self.endpoints.fabric, self.endpoints.fabric_socket)
        offer = negotiating.FabricOffer(carrier="loopback", address=self.endpoints.fabric)
        self.admission = Admission(self._daemon, self._config, listener, offer)
        self.make_fabric = LoopbackFabricSession
        self._fabric_acceptor = acceptor = LoopbackAcceptor(self._daemon, self.admission, listener)
        self._daemon.places.add(listener.file, socket.SOCK_SEQPACKET, acceptor.replace)

    def _open_verbs(self) -> None:
        """Raises: VerbsMissing, VerbsError: no usable port."""
        from offpath.bindings.verbs.exchange import VerbsListener
        from offpath.bindings.verbs.fabric import VerbsFabricSession
        from offpath.dpu_daemon.ingress.verbs_acceptor import RdmaPort, VerbsAcceptor

        port = RdmaPort(self._config.rdma)
        listener = VerbsListener(self._daemon.requests.engine.ends_in_use)
        offer = negotiating.FabricOffer(carrier="verbs", address=str(port.device.choice.gid.address))
        self.admission = Admission(self._daemon, self._config, listener, offer)
        self.make_fabric = VerbsFabricSession
        self._fabric_acceptor = VerbsAcceptor(self._daemon, self.admission, listener, port)

    async def start(self) -> None:
        """Listen on every configured carrier. Raises: PlaceUnusable, OSError: an address is unavailable."""
        await prime()
        sock = self.endpoints.negotiate_socket or listening_socket(self.endpoints.negotiate, socket.SOCK_STREAM)
        self._unix = self._acceptor_on("negotiation", sock, self._unix_peer)
        self._file = SocketFile(self.endpoints.negotiate, is_own=self.endpoints.negotiate_socket is None)
        self._daemon.places.add(self._file, socket.SOCK_STREAM, self._unix.replace)
        self.set_modes(self._config)
        self._unix.open()
        tls = self._config.tls
        if tls is not None:
            try:
                sock = _tcp_listener(tls.listen)
            except OSError as fault:  # the error names only files, not ports
                raise PlaceUnusable(f"tls.listen: {tls.listen}: {fault.strerror or fault}") from None
            self.endpoints.tls = sock.getsockname()[:2]
            self._tls = self._acceptor_on("negotiation over TLS", sock, self._tls_peer)
            self.renew_tls(server_context(tls))
            self._tls.open()
        self._fabric_acceptor.open()

    def _acceptor_on(self, name: str, sock: socket.socket, serve: Conversation) -> StreamListener:
        exhausted = partial(self._daemon.count, "descriptors_exhausted")
        return StreamListener(name, sock, serve, self._waiting, exhausted=exhausted)

    def renew_tls(self, context: ssl.SSLContext) -> None:
        """Use these keys and this authority for later handshakes; established connections are unaffected."""
        assert self._tls is not None, "the carrier is on since the start, or not at all"
        self._tls.context = context

    @property
    def accepted(self) -> int:
        """Connections accepted on the Unix socket so far."""
        return self._unix.acceptor.taken if self._unix is not None else 0

    @property
    def fabric_accepted(self) -> int:
        """Connections accepted on the fabric's own socket so far."""
        return self._fabric_acceptor.acceptor.taken if isinstance(self._fabric_acceptor, LoopbackAcceptor) else 0

    def reload(self, config: DaemonConfig, known: Mapping[str, tuple[TenantTable, str | None]]) -> None:
        """Apply another configuration; `renew_tls` sets its keys."""
        self._config = config
        self.admission.reload(config, known)

    def fabric_paths(self) -> tuple[str, ...]:
        """The fabric's sockets in the file system."""
        return (self.endpoints.fabric,) if self._config.datapath.fabric == "loopback" else ()

    def set_modes(self, config: DaemonConfig) -> None:
        """Let other users connect only if the configuration lists one; each connection's uid is checked as well."""
        self._daemon.places.look()
        is_open = any(uid != os.getuid() for t in config.tenant for uid in t.uids)
        for path in (self.endpoints.negotiate, *self.fabric_paths()):
            with contextlib.suppress(FileNotFoundError):  # `places` could not create it again, and has logged why
                if os.stat(path).st_uid == os.geteuid():  # else its creator, a service manager, sets the mode
                    os.chmod(path, 0o666 if is_open else 0o600)

    async def close(self) -> None:
        """Stop listening, notify every peer, withdraw unredeemed tickets."""
        acceptors = [acceptor for acceptor in (self._unix, self._tls) if acceptor is not None]
        if self._file is not None:
            self._file.remove()
        for acceptor in acceptors:
            acceptor.stop()
        self.admission.close()
        self._fabric_acceptor.close()
        for acceptor in acceptors:
            await acceptor.close()

    # -- carriers -------------------------------------------------------------------------------------------------
    async def _unix_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._unix is not None
        _, uid, _ = peer_credentials(writer.get_extra_info("socket"))
        await self._serve(Carrier(uid=uid), self._unix, reader, writer)

    async def _tls_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._tls is not None
        certified = tenant_of(writer.get_extra_info("peercert"))
        await self._serve(Carrier(certified=certified), self._tls, reader, writer)

    async def _serve(
        self, carrier: Carrier, acceptor: StreamListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection from hello to goodbye."""
        grant: Grant | None = None
        peer = StreamPeer(writer)
        is_goodbye = False
        try:
            frames, rest = FrameReader(), list[bytes]()
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                body = await _next_frame(reader, frames, rest)
            message = control.decode(negotiating.TO_DAEMON, body)
            if not isinstance(message, negotiating.Hello):
                raise ControlError("hello", f"received {message.kind} first")
            self._fabric_acceptor.check()
            grant = self.admission.admit(carrier, message, peer)
            acceptor.identified(writer)
            describing = Describing(self._daemon.host.kernels.described)
            while True:
                request = control.decode(negotiating.TO_DAEMON, await _next_frame(reader, frames, rest))
                if isinstance(request, control.Goodbye):
                    is_goodbye = True
                    return
                if isinstance(request, negotiating.Redeem):
                    await self._fabric_acceptor.redeem(grant, request, peer, writer.get_extra_info("socket").fileno())
                    continue
                if isinstance(request, negotiating.Describe):
                    peer.send(describing.answer(request))
                    await asyncio.sleep(0)  # one read may hold many questions: other connections get their turn
                    continue
                raise ControlError("out_of_turn", request.kind)
        except NegotiationRefused as refused:
            peer.send(
                negotiating.Refused(code=refused.code, detail=refused.detail, retry_after_ms=refused.retry_after_ms)
            )
        except (ControlError, FrameError) as broken:
            self._daemon.counters["violations"] += 1
            peer.send(negotiating.Refused(code=broken.code, detail=broken.detail[:500]))
        except (PeerGone, TimeoutError, OSError):
            pass  # no peer to answer; its grant is released below
        finally:
            if grant is not None:
                self.admission.peer_left(grant, peer, is_goodbye=is_goodbye)
            writer.close()


async def _next_frame(reader: asyncio.StreamReader, frames: FrameReader, held: list[bytes]) -> bytes:
    """The next whole frame. Raises: PeerGone: the stream ended. FrameError."""
    while not held:
        data = await reader.read(16384)
        if not data:
            raise PeerGone("the peer closed the connection")
        held += frames.feed(data)
    return held.pop(0)


def _tcp_listener(listen: str) -> socket.socket:
    """A socket that listens on HOST:PORT. Raises: OSError: the address is in use or not one of this machine."""
    host, _, port = listen.rpartition(":")
    family, kind, protocol, _, address = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(100)
    except BaseException:
        sock.close()
        raise
    return sock
