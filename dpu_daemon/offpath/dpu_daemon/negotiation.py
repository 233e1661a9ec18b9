"""The daemon's side of the negotiation: one protocol, two carriers (Unix socket, TCP with TLS 1.3).

Who is let in `admission` decides; the regions are made only when the ticket is redeemed (`doors`). A connection that
says nothing for five seconds, or too much, is closed; a welcomed one lives as long as its session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from offpath.bindings.errors import ControlError, FrameError, NegotiationRefused, PeerGone, PlaceUnusable
from offpath.bindings.loopback.fabric import LoopbackFabricListener, LoopbackFabricSession
from offpath.bindings.loopback.sockets import listening_socket
from offpath.bindings.ports import FabricSession
from offpath.bindings.wire import control
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.admission import Admission, Carrier, Grant
from offpath.dpu_daemon.config import DaemonConfig, TenantTable, server_context
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.doors import Door, FabricDoor

logger = logging.getLogger(__name__)
HELLO_TIMEOUT_S: Final = 5.0
MAX_PENDING: Final = 256
_SAN_PREFIX: Final = "offpath://tenant/"


@dataclass(slots=True)
class Endpoints:
    """Where the daemon listens. A socket that was handed down listens there already; its file is not ours to remove."""

    negotiate: str
    fabric: str
    tls: tuple[str, int] | None = None
    negotiate_socket: socket.socket | None = None
    fabric_socket: socket.socket | None = None


class StreamPeer:
    """Implements `offpath.dpu_daemon.admission.Peer` over a stream; one with 256 KiB of unread messages is cut off."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def say(self, message: BaseModel) -> None:
        """See `Peer.say`."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > 262_144:
            transport.abort()
            return
        self._writer.write(frame(control.encode(message)))

    def hang_up(self) -> None:
        """See `Peer.hang_up`."""
        self._writer.close()


class Negotiator:
    """Lets requesters in. `start` listens, `close` stops."""

    def __init__(self, daemon: Daemon, config: DaemonConfig, endpoints: Endpoints) -> None:
        self._daemon = daemon
        self._config = config
        self.endpoints = endpoints
        self.make_fabric: Callable[..., FabricSession]
        self._door: Door
        if config.datapath.fabric == "verbs":
            self._open_verbs()
        else:
            self._open_loopback()
        self._servers: list[asyncio.Server] = []
        self._tls_socket: socket.socket | None = None
        self._tls_server: asyncio.Server | None = None
        self._pending: dict[asyncio.StreamWriter, None] = {}  # who has not said hello yet, longest first
        self._is_closing = False
        self.accepted = 0
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def _open_loopback(self) -> None:
        listener = LoopbackFabricListener(self.endpoints.fabric, self.endpoints.fabric_socket)
        offer = control.FabricOffer(carrier="loopback", address=self.endpoints.fabric)
        self.admission = Admission(self._daemon, self._config, listener, offer)
        self.make_fabric = LoopbackFabricSession
        self._door = FabricDoor(self._daemon, self.admission, listener)

    def _open_verbs(self) -> None:
        """Raises: VerbsMissing, VerbsError: no port to use."""
        from offpath.bindings.verbs.copy import VerbsCopyEngine
        from offpath.bindings.verbs.exchange import VerbsListener
        from offpath.bindings.verbs.fabric import VerbsFabricSession
        from offpath.dpu_daemon.verbs_door import RdmaPort, VerbsDoor

        engine = self._daemon.engine
        port = RdmaPort(self._config.rdma)
        listener = VerbsListener(engine.taken if isinstance(engine, VerbsCopyEngine) else None)
        offer = control.FabricOffer(carrier="verbs", address=str(port.device.choice.gid.address))
        self.admission = Admission(self._daemon, self._config, listener, offer)
        self.make_fabric = VerbsFabricSession
        self._door = VerbsDoor(self._daemon, self.admission, listener, port)

    async def start(self) -> None:
        """Listen on every configured carrier. Raises: PlaceUnusable, OSError: it cannot be had."""
        sock = self.endpoints.negotiate_socket or listening_socket(self.endpoints.negotiate, socket.SOCK_STREAM)
        self.set_modes(self._config)
        if sys.version_info >= (3, 13):  # it would remove the file even of a socket that was handed down
            server = await asyncio.start_unix_server(self._unix_peer, sock=sock, cleanup_socket=False)
        else:
            server = await asyncio.start_unix_server(self._unix_peer, sock=sock)
        self._servers.append(server)
        tls = self._config.tls
        if tls is not None:
            try:
                self._tls_socket = _tcp_listener(tls.listen)
            except OSError as fault:  # a port is no file, so the error does not name it
                raise PlaceUnusable(f"tls.listen: {tls.listen}: {fault.strerror or fault}") from None
            self.endpoints.tls = self._tls_socket.getsockname()[:2]
            await self.renew_tls(server_context(tls))
        self._door.open()

    async def renew_tls(self, context: ssl.SSLContext) -> None:
        """Handshakes from here on use these keys and this authority; connections that stand are left alone.

        The new server listens on the same socket before the old one stops, so nobody is turned away.
        """
        assert self._tls_socket is not None, "the carrier is on since the start, or not at all"
        before = self._tls_server
        self._tls_server = await asyncio.start_server(
            self._tls_peer, sock=self._tls_socket.dup(), ssl=context, ssl_handshake_timeout=5.0
        )
        if before is not None:
            before.close()

    def reload(self, config: DaemonConfig, known: Mapping[str, tuple[TenantTable, str | None]]) -> None:
        """Another configuration is in force; its keys come by `renew_tls`."""
        self._config = config
        self.admission.reload(config, known)

    def fabric_paths(self) -> tuple[str, ...]:
        """The fabric's sockets in the file system."""
        return (self.endpoints.fabric,) if self._config.datapath.fabric == "loopback" else ()

    def set_modes(self, config: DaemonConfig) -> None:
        """Other users may connect only if one of them is listed; who they are is checked for each connection.

        Raises: OSError: a socket's file is gone.
        """
        is_open = any(uid != os.getuid() for t in config.tenant for uid in t.uids)
        for path in (self.endpoints.negotiate, *self.fabric_paths()):
            if os.stat(path).st_uid == os.geteuid():  # else its maker, a service manager, decides who may connect
                os.chmod(path, 0o666 if is_open else 0o600)

    async def close(self) -> None:
        """Stop listening, tell every peer, forget unredeemed tickets."""
        self._is_closing = True
        for server in (*self._servers, *([self._tls_server] if self._tls_server else ())):
            server.close()
        if self._tls_socket is not None:
            self._tls_socket.close()
        self.admission.close()
        self._door.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._servers and self.endpoints.negotiate_socket is None and os.path.exists(self.endpoints.negotiate):
            os.unlink(self.endpoints.negotiate)

    # -- carriers -------------------------------------------------------------------------------------------------
    async def _unix_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        sock = writer.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        await self._owned(self._talk(Carrier(uid=struct.unpack("3i", raw)[1]), reader, writer))

    async def _tls_peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certified = _tenant_of(writer.get_extra_info("peercert"))
        await self._owned(self._talk(Carrier(certified=certified), reader, writer))

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

    async def _talk(self, carrier: Carrier, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection from hello to goodbye."""
        grant: Grant | None = None
        peer = StreamPeer(writer)
        is_goodbye = False
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
            self._door.check()
            grant = self.admission.admit(carrier, message, peer)
            self._pending.pop(writer, None)
            while True:
                said = control.decode(control.TO_DAEMON, await _next_frame(reader, frames, rest))
                if isinstance(said, control.Goodbye):
                    is_goodbye = True
                    return
                if isinstance(said, control.Redeem):
                    await self._door.redeem(grant, said, peer, writer.get_extra_info("socket").fileno())
                    continue
                raise ControlError("out_of_turn", said.kind)
        except NegotiationRefused as refused:
            peer.say(control.Refused(code=refused.code, detail=refused.detail, retry_after_ms=refused.retry_after_ms))
        except (ControlError, FrameError) as broken:
            self._daemon.counters["violations"] += 1
            peer.say(control.Refused(code=broken.code, detail=broken.detail[:500]))
        except (PeerGone, TimeoutError, OSError):
            pass  # nobody is left to answer; what it held is given back below
        finally:
            self._pending.pop(writer, None)
            if grant is not None:
                self.admission.peer_left(grant, peer, is_goodbye=is_goodbye)
            writer.close()


async def _next_frame(reader: asyncio.StreamReader, frames: FrameReader, held: list[bytes]) -> bytes:
    """The next whole frame. Raises: PeerGone: the stream ended. FrameError."""
    while not held:
        data = await reader.read(16384)
        if not data:
            raise PeerGone("the peer closed")
        held += frames.feed(data)
    return held.pop(0)


def _tcp_listener(listen: str) -> socket.socket:
    """A socket that listens on HOST:PORT. Raises: OSError: the address is taken, or none of this machine."""
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


def _tenant_of(certificate: dict[str, Any] | None) -> str | None:
    """The one ``offpath://tenant/NAME`` among the certificate's URI names; two make none."""
    names = (certificate or {}).get("subjectAltName", ())
    tenants = [v[len(_SAN_PREFIX) :] for k, v in names if k == "URI" and v.startswith(_SAN_PREFIX)]
    return tenants[0] if len(tenants) == 1 else None
