"""Rigs of the host-channel port: how a test makes the daemon's and the host's ends, honest and hostile ones.

A further adapter is one more class here and one more param of the fixture ``channel_rig``.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import zmq

from offpath.bindings.doca.channel import ComchConnector, ComchListener
from offpath.bindings.doca.comch import ComchClient, Received
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.load import load
from offpath.bindings.errors import PeerGone
from offpath.bindings.loopback.channel import LoopbackChannelListener, LoopbackConnector
from offpath.bindings.ports import HostConnection, HostConnector, HostEnd, HostListener
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.bindings.zeromq.connection import ZmqConnector
from offpath.bindings.zeromq.keys import make_keys, read_allowed, read_public, read_secret
from offpath.bindings.zeromq.listener import ZmqListener

from ...support.doca import emulator, environment, on_the_dpu
from ...support.processes import BOUND_S


class ChannelRig(Protocol):
    """What the promises need to know of an adapter, and how they make ends of it."""

    carries_descriptors: bool
    knows_processes: bool
    """It tells a process from the connection that the process holds."""
    keeps_last_words: bool
    """What a process sent is on its way even if it ends at once, without hanging up."""
    loss_s: float | None
    """A peer that stands still is noticed within so long; None: never, by the channel."""
    listener: HostListener

    def connect(self) -> HostEnd:
        """The host's end; the caller's own when it runs in a child."""

    def accept(self) -> HostConnection:
        """The daemon's end of the next connection."""

    def pair(self) -> tuple[HostConnection, HostEnd]:
        """(daemon's end, host's end), both in this process."""

    def receive(self, connection: HostConnection) -> tuple[bytes, tuple[int, ...]]:
        """The next message within the bound."""

    def readable(self, connection: HostConnection, timeout_s: float = BOUND_S) -> bool:
        """Did its descriptor become readable, while the listener was served as a loop does?"""

    def attacks(self) -> dict[str, Callable[[], object]]:
        """What a hostile peer does, each to be run in a child; it may end, or go on until killed."""

    def close(self) -> None:
        """Everything that was made."""


class _Rig:
    """What all rigs do alike."""

    def __init__(self, listener: HostListener, connector: HostConnector) -> None:
        self.listener = listener
        self.connector = connector
        self._pid = os.getpid()
        self._accepted: deque[HostConnection] = deque()
        self._held: list[HostConnection] = []

    def connect(self) -> HostEnd:
        if os.getpid() != self._pid:
            return self.connector.connect()
        with ThreadPoolExecutor(1) as aside:  # who connects may wait for the daemon, which is us
            coming = aside.submit(self.connector.connect)
            while not coming.done():
                self._serve()
                time.sleep(0.0005)
        self._held.append(made := coming.result())
        return made

    def _serve(self) -> None:
        if self.listener.fileno() >= 0 and (connection := self.listener.accept()) is not None:
            self._held.append(connection)
            self._accepted.append(connection)

    def accept(self) -> HostConnection:
        end = time.monotonic() + BOUND_S
        while not self._accepted:
            assert time.monotonic() < end, "nobody came"
            self._serve()
            time.sleep(0.0005)
        return self._accepted.popleft()

    def pair(self) -> tuple[HostConnection, HostEnd]:
        theirs = self.connect()
        return self.accept(), theirs

    def receive(self, connection: HostConnection) -> tuple[bytes, tuple[int, ...]]:
        end = time.monotonic() + BOUND_S
        while (got := connection.receive()) is None:
            if time.monotonic() > end:
                raise PeerGone("no message within the bound")
            time.sleep(0.0005)
        return got

    def readable(self, connection: HostConnection, timeout_s: float = BOUND_S) -> bool:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if self.listener.fileno() >= 0:
            poll.register(self.listener.fileno(), select.POLLIN)
        end = time.monotonic() + timeout_s
        while True:
            ready = {fd for fd, _ in poll.poll(max(0.0, end - time.monotonic()) * 1e3)}
            if connection.fileno() in ready:
                return True
            if self.listener.fileno() in ready:
                self._serve()
            if time.monotonic() >= end:
                return False

    def close(self) -> None:
        for held in reversed(self._held):
            held.close()
        self.listener.close()


class LoopbackChannelRig(_Rig):
    """SEQPACKET sockets; the daemon listens, host processes connect."""

    carries_descriptors = True
    knows_processes = True
    keeps_last_words = True
    loss_s = None

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "channel.sock")
        super().__init__(LoopbackChannelListener(self.path, frozenset({os.getuid()})), LoopbackConnector(self.path))

    def attacks(self) -> dict[str, Callable[[], object]]:
        return {"garbage": self._garbage, "oversize": self._oversize, "flood": self._flood}

    def _raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(self.path)
        return sock

    def _garbage(self) -> None:
        sock = self._raw()
        for n in range(1, 100):
            sock.send(os.urandom(41 * n))

    def _oversize(self) -> None:
        self._raw().send(bytes(MAX_MESSAGE_BYTES + 1))

    def _flood(self) -> None:
        sock = self._raw()
        while True:
            sock.send(b"\xff" * MAX_MESSAGE_BYTES)


class ZmqChannelRig(_Rig):
    """A ROUTER on a TCP port of this machine, a DEALER for each process of the host; one listed key for all."""

    carries_descriptors = False
    knows_processes = False
    keeps_last_words = False
    loss_s = 1.0

    def __init__(self, folder: Path) -> None:
        self._raws: list[zmq.Socket[Any]] = []
        (folder / "hosts").mkdir(mode=0o700)
        self.key_file, _ = make_keys("host-a", str(folder / "hosts"))
        secret, self.server_key_file = make_keys("daemon", str(folder))
        listener = ZmqListener("tcp://127.0.0.1:*", read_secret(secret), read_allowed(str(folder / "hosts")))
        self.zmq_listener = listener
        super().__init__(listener, ZmqConnector(listener.address, self.key_file, self.server_key_file))

    def attacks(self) -> dict[str, Callable[[], object]]:
        return {"garbage": self._garbage, "oversize": self._oversize, "flood": self._flood}

    def raw(self, context: zmq.Context[Any], routing_id: bytes = b"") -> zmq.Socket[Any]:
        """A DEALER with the listed key that speaks no session of ours."""
        self._raws.append(dealer := context.socket(zmq.DEALER))
        if routing_id:
            dealer.setsockopt(zmq.ROUTING_ID, routing_id)
        secret = read_secret(self.key_file)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, read_public(self.server_key_file))
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))
        dealer.setsockopt(zmq.CURVE_SECRETKEY, secret)
        dealer.connect(self.listener.address)
        return dealer

    def close(self) -> None:
        for dealer in self._raws:
            dealer.close(0)
        super().close()

    def opened(self, context: zmq.Context[Any]) -> tuple[zmq.Socket[Any], bytes]:
        """(such a DEALER with a session, the session's nonce)"""
        dealer, nonce = self.raw(context), os.urandom(8)
        dealer.send(b"\x01\x01\x00\x00" + bytes(4) + nonce)
        dealer.recv()
        return dealer, nonce

    def _garbage(self) -> None:
        dealer, _ = self.opened(zmq.Context())
        for n in range(1, 99):
            dealer.send(os.urandom(41 * n))
        dealer.send_multipart([b"several", b"parts"])
        time.sleep(BOUND_S)

    def _oversize(self) -> None:
        dealer, nonce = self.opened(zmq.Context())
        dealer.send(b"\x03\x01\x00\x00" + bytes(4) + nonce + bytes(MAX_MESSAGE_BYTES + 1))
        time.sleep(BOUND_S)

    def _flood(self) -> None:
        dealer, nonce = self.opened(zmq.Context())
        while True:
            dealer.send(b"\x03\x01\x00\x00" + bytes(4) + nonce + b"\xff" * MAX_MESSAGE_BYTES)


class ComchChannelRig(_Rig):
    """DOCA's emulator: a server on the DPU's side, and a client of its own for each process of the host's side."""

    carries_descriptors = False
    knows_processes = False
    keeps_last_words = False
    loss_s = 3.0

    def __init__(self, folder: Path) -> None:
        self._side = ExitStack()
        self._side.enter_context(on_the_dpu())
        try:
            super().__init__(ComchListener(emulator()), ComchConnector(emulator()))
        except BaseException:
            self._side.close()
            raise

    def connect(self) -> HostEnd:
        with environment(DOCA_EMULATOR_SIDE="host"):
            return super().connect()

    def attacks(self) -> dict[str, Callable[[], object]]:
        return {"garbage": self._garbage, "oversize": self._oversize, "flood": self._flood}

    def _raw(self) -> tuple[ComchClient, int, bytes]:
        """(a client that speaks no pieces of ours but the first, its connection, the session's nonce)"""
        os.environ["DOCA_EMULATOR_SIDE"] = "host"
        doca = load(emulator())
        client = ComchClient(open_device(doca, Ability.CONNECT), Engine(doca), "offpath", 4080)
        while not (number := client.connection()):
            client.poll()
        nonce = os.urandom(8)
        self._send(client, number, b"\x00\x01\x01\x00\x00" + bytes(4) + nonce)
        while not any(isinstance(event, Received) for event in client.poll()):
            time.sleep(0.0005)
        return client, number, nonce

    @staticmethod
    def _send(client: ComchClient, number: int, piece: bytes) -> None:
        while not client.send(number, piece):
            client.poll()

    def _garbage(self) -> None:
        client, number, _ = self._raw()
        for n in range(1, 99):
            self._send(client, number, os.urandom(41 * n))
            client.poll()

    def _oversize(self) -> None:
        client, number, nonce = self._raw()
        self._send(client, number, b"\x01\x03\x01\x00\x00" + bytes(4) + nonce + bytes(4000))
        self._send(client, number, b"\x00" + bytes(MAX_MESSAGE_BYTES - 4000 + 1))
        client.poll()
        time.sleep(BOUND_S)

    def _flood(self) -> None:
        client, number, nonce = self._raw()
        while True:
            self._send(client, number, b"\x00\x03\x01\x00\x00" + bytes(4) + nonce + b"\xff" * 4000)
            client.poll()

    def close(self) -> None:
        super().close()
        self._side.close()
