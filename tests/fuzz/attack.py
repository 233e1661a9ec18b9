"""One hostile peer of every kind, at random but from a seed: what `eve` and strangers throw at a real daemon."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from random import Random

import orjson

from offpath.bindings.errors import PeerGone, ProtocolError
from offpath.bindings.loopback.channel import connect_channel
from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, immediate
from offpath.bindings.sockets import send_with_fds
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.header import HEADER_COPY_BYTES, pack_request
from offpath.host_helper import Tls

from ..support.peers import Peer, RawSession, hello
from ..support.processes import BOUND_S, until
from ..support.siege import Siege
from .engine import Case, corpus
from .mutate import REQUEST, Mutation, json_mutation, spoil, struct_mutation
from .targets import words_of

CODES = {
    "", "json", "version", "model", "hello", "frame_length", "out_of_turn", "denied", "memory", "payload_bytes",
    "result_bytes", "sessions",
}  # fmt: skip
"""What a daemon may answer a negotiation with; "" is a hang-up."""


class Attack:
    """`one` does one thing to the daemon, ``done`` counts them by kind, ``codes`` what negotiations were answered."""

    def __init__(self, siege: Siege, tls: Tls, address: tuple[str, int], seed: int) -> None:
        self.siege = siege
        self.done: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self._tls, self._address = tls, address
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.load_verify_locations(tls.ca_file)
        self._context.load_cert_chain(tls.cert_file, tls.key_file)
        self._noise = Random(seed)
        self._session: RawSession | None = None
        self._session_of = 0
        self._hello: Mutation = json_mutation(*words_of(negotiating.TO_DAEMON))
        self._host: Mutation = json_mutation(*words_of(control.HOST_TO_DAEMON))
        self._header = struct_mutation(REQUEST, 128, has_crc=True)
        self._hellos = [case for case in corpus("control_to_daemon") if case.data]
        self._hosts = [
            case
            for name in ("control_host_to_daemon", "parse_result", "parse_launch")
            for case in corpus(name)
            if 0 < len(case.data) <= 4000
        ]
        self._headers = corpus("parse_request")
        self._tickets = [case for case in corpus("ticket") if case.data]
        self._kinds: list[tuple[Callable[[], int], int]] = [
            (self.negotiation, 26), (self.tls_negotiation, 2), (self.tls_noise, 1), (self.crowd, 1), (self.ticket, 12),
            (self.headers, 30), (self.doorbells, 4), (self.stranger, 14),
        ]  # fmt: skip

    def run(self, messages: int) -> None:
        """Until so many were sent."""
        wanted = self.done.total() + messages
        steps, weights = zip(*self._kinds, strict=True)
        while self.done.total() < wanted:
            step = self._noise.choices(steps, weights)[0]
            self.done[step.__name__] += step()

    # -- negotiation ----------------------------------------------------------------------------------------------
    def _frames(self) -> list[bytes]:
        """One to four frames: kept or spoilt ones, eve's own hello among them, in any order."""
        noise = self._noise
        bodies = []
        for _ in range(noise.choice((1, 1, 1, 2, 4))):
            drawn = noise.random()
            if drawn < 0.35:
                bodies.append(orjson.dumps(hello("eve", slots=1, payload_bytes=4096, result_bytes=0)))
            elif drawn < 0.7:
                bodies.append(self._hello(noise, orjson.dumps(hello("eve")), ())[0] or b"x")
            else:
                case = noise.choice(self._hellos)
                bodies.append(self._hello(noise, case.data, ())[0] or b"x")
        return [struct.pack("<I", len(body)) + body for body in bodies]

    def _throw(self, peer: Peer) -> int:
        """Send frames in any pieces, perhaps spoilt, perhaps cut; perhaps listen, perhaps go."""
        noise = self._noise
        frames = self._frames()
        stream = b"".join(frames)
        drawn = noise.random()
        if drawn < 0.15:
            stream = spoil(noise, stream)
        elif drawn < 0.3:
            stream = stream[: noise.randrange(len(stream))]
        while stream:
            size = noise.choice((len(stream), len(stream), 1, 3, 5, 100, 4096))
            peer.send(stream[:size])
            stream = stream[size:]
        if noise.random() < 0.6:
            if not isinstance(peer.sock, ssl.SSLSocket):
                with contextlib.suppress(OSError):
                    peer.sock.shutdown(socket.SHUT_WR)
                self.codes[peer.hear_the_end()] += 1
            else:
                peer.send_message(kind="goodbye")  # a frame that ends whatever this was
                peer.send_message(kind="goodbye")
        return len(frames)

    def negotiation(self) -> int:
        with Peer(self.siege.cluster.address) as peer:
            return self._throw(peer)

    def tls_negotiation(self) -> int:
        """With eve's certificate, so that what follows the handshake is read."""
        plain = socket.create_connection(self._address, BOUND_S)
        with self._context.wrap_socket(plain, server_hostname=self._tls.server_name) as sock, Peer(sock) as peer:
            return self._throw(peer)

    def tls_noise(self) -> int:
        """No TLS at all, or half a handshake."""
        noise = self._noise
        with socket.create_connection(self._address, BOUND_S) as sock, contextlib.suppress(OSError):
            start = noise.choice((b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"))
            sock.sendall(start + noise.randbytes(noise.randrange(1, 300)))
        return 1

    def crowd(self) -> int:
        """Many connections at once, each with half a frame, gone together."""
        peers = [Peer(self.siege.cluster.address) for _ in range(20)]
        for peer in peers:
            stream = self._frames()[0]
            peer.send(stream[: self._noise.randrange(1, len(stream))])
        for peer in peers:
            peer.close()
        return len(peers)

    # -- tickets --------------------------------------------------------------------------------------------------
    def ticket(self) -> int:
        case = self._noise.choice(self._tickets)
        with self.siege.fabric_socket() as sock:
            with contextlib.suppress(OSError):  # a longer one than the socket takes
                sock.send(spoil(self._noise, case.data) or b"x")
            if self._noise.random() < 0.5:
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(16) in (b"refused", b"")
        return 1

    # -- a session ------------------------------------------------------------------------------------------------
    def _eve(self) -> RawSession:
        """Her session; a new one when the last was ended for what she did."""
        if self._session is None:
            self._session = until(self._one)
            self._session_of += 1
        return self._session

    def _one(self) -> RawSession | None:
        try:
            return self.siege.session(slots=4, payload_bytes=4096, result_bytes=4096)
        except AssertionError:  # her quota still holds what she dropped a moment ago
            return None

    def _gone(self) -> None:
        assert self._session is not None
        self._session.close()
        self._session = None

    def headers(self) -> int:
        """A request of any shape, and its answer; the third bad one in ten seconds ends the session."""
        noise, session = self._noise, self._eve()
        if noise.random() < 0.15:
            numbers = {"request_id": noise.getrandbits(63) | 1, "kernel_id": noise.choice((0, 1, 2, 99))}
            good = pack_request(
                **numbers, payload_bytes=noise.choice((0, 8, 4096)), demand=noise.choice((0, 7, 101, 200))
            )
            case = Case(good, (4096,))
        else:
            case = noise.choice(self._headers)
        data, _ = self._header(noise, case.data, (4096,))
        session.write(0, data[:HEADER_COPY_BYTES].ljust(HEADER_COPY_BYTES, b"\0"))
        if not session.ring(0) or session.rung() is None:
            self._gone()
        return 1

    def doorbells(self) -> int:
        """Immediates of every kind, half of them such as an honest requester sends."""
        noise, session = self._noise, self._eve()
        assert session.bell is not None
        for _ in range(8):
            slot = noise.randrange(1, 4)  # slot 0 is for `headers`, which waits for its answers
            kind = noise.choice((IMM_CREDIT, IMM_CANCEL))
            data = immediate(kind, slot).to_bytes(4, "little")
            if noise.random() < 0.02:
                data = noise.randbytes(noise.choice((1, 3, 4, 5, 64)))
            try:
                session.bell.send(data)
            except (BrokenPipeError, ConnectionResetError):
                self._gone()
                break
        return 8

    # -- the host channel -----------------------------------------------------------------------------------------
    def stranger(self) -> int:
        """Somebody of the daemon's own user who is neither its helper nor a worker it waits for."""
        noise = self._noise
        case = noise.choice(self._hosts)
        data = self._host(noise, case.data, ())[0] if case.data[:1] == b"{" else spoil(noise, case.data)
        try:
            connection = connect_channel(self.siege.cluster.channel)
        except PeerGone:  # its backlog is full while the daemon is busy with the last ones
            return 1
        try:
            with contextlib.suppress(PeerGone, ProtocolError, OSError):
                if noise.random() < 0.2:
                    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(noise.randrange(1, 6))]
                    try:
                        send_with_fds(connection._sock, data[:5000] or b"x", fds)
                    finally:
                        for fd in fds:
                            os.close(fd)
                else:
                    connection.send(data[:4080] or b"x")
            if noise.random() < 0.3:
                with contextlib.suppress(PeerGone, ProtocolError):
                    connection._sock.settimeout(BOUND_S)
                    connection.wait_message()
        finally:
            connection.close()
        return 1

    def close(self) -> None:
        if self._session is not None:
            self._gone()
