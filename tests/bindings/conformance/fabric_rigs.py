"""Rigs of the fabric port: how a test makes both ends of a session."""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from offpath.bindings.errors import PeerGone, TicketRefused
from offpath.bindings.loopback.fabric import LoopbackFabricListener, LoopbackFabricSession, redeem_ticket
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import FabricListener, FabricSession, RequesterSession
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.exchange import VerbsListener
from offpath.bindings.verbs.fabric import Seal, VerbsFabricSession, VerbsRequesterSession
from offpath.bindings.verbs.link import End, LivenessChannel
from offpath.bindings.verbs.queue import Address


class FabricRig(ABC):
    """What tests use. An adapter's rig says how a ticket is shown and how it is taken."""

    bound_s = 10.0
    """How long what must happen may take."""
    ticket_s = 5.0
    """How long a ticket is good, unless a test says otherwise."""
    listener: FabricListener

    def __init__(self) -> None:
        self._held: list[FabricSession | RequesterSession] = []
        self._sizes = 4, 10_000, 5_000

    def offer(
        self,
        ticket: str,
        *,
        slots: int = 4,
        payload_bytes: int = 10_000,
        result_bytes: int = 5_000,
        ttl_s: float | None = None,
    ) -> None:
        self._sizes = slots, payload_bytes, result_bytes
        expires_ns = time.monotonic_ns() + int((self.ticket_s if ttl_s is None else ttl_s) * 1e9)
        self.listener.offer(ticket, slots, payload_bytes, result_bytes, expires_ns)

    @abstractmethod
    def redeem(self, ticket: str) -> RequesterSession:
        """The requester's way in; blocks until `serve` ran, so it belongs into another thread or process."""

    @abstractmethod
    def serve(self) -> FabricSession:
        """Let the next peer in. Raises: TicketRefused, PeerGone."""

    @abstractmethod
    def stop_listening(self) -> None:
        """Nobody is let in any more."""

    def pair(self, **sizes: int) -> tuple[FabricSession, RequesterSession]:
        """Both ends in this process; both may ring."""
        self.offer("a-ticket-for-the-pair", **sizes)
        with ThreadPoolExecutor(1) as thread:
            redeemed = thread.submit(self.redeem, "a-ticket-for-the-pair")
            session = self.serve()
            self._held.append(requester := redeemed.result())
        return session, requester

    def refusal(self, ticket: str) -> tuple[BaseException | None, BaseException | None]:
        """What the daemon's and the requester's side raise when ``ticket`` is shown."""
        with ThreadPoolExecutor(1) as thread:
            redeemed = thread.submit(self.redeem, ticket)
            ours: BaseException | None = None
            try:
                self.serve()
            except Exception as fault:
                ours = fault
            theirs = redeemed.exception()
            if theirs is None:
                redeemed.result().close()
        return ours, theirs

    def read_slots(self, session: FabricSession, offset: int, nbytes: int) -> bytes:
        """The daemon's view of the slots, as its copy engine would read them."""
        assert isinstance(session.slots, Region)
        return bytes(session.slots.view[offset : offset + nbytes])

    def close(self) -> None:
        """Everything that was made."""
        for held in reversed(self._held):
            held.close()


class LoopbackFabricRig(FabricRig):
    """Tickets are redeemed on a Unix socket; `serve` plays the daemon's shell for one peer."""

    listener: LoopbackFabricListener

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = str(folder / "fabric.sock")
        self.listener = LoopbackFabricListener(self.path)

    def redeem(self, ticket: str) -> RequesterSession:
        """The requester's way in; blocks until `serve` ran, so it belongs into another thread or process."""
        return redeem_ticket(self.path, ticket)

    def serve(self) -> FabricSession:
        """Let the next peer in. Raises: TicketRefused, PeerGone."""
        peer = self._await(self.listener.accept)
        os.set_blocking(peer.fileno(), True)
        _, offer = self.listener.take_ticket(peer, time.monotonic_ns())
        with peer:
            session = LoopbackFabricSession(offer.slots, offer.payload_bytes, offer.result_bytes)
            self._held.append(session)
            session.hand_over(peer)
        return session

    def stop_listening(self) -> None:
        self.listener.close()

    def close(self) -> None:
        super().close()
        self.listener.close()

    def _await(self, accept: Callable[[], socket.socket | None]) -> socket.socket:
        end = time.monotonic() + 10
        while (peer := accept()) is None:
            assert time.monotonic() < end, "nobody came"
            time.sleep(0.0005)
        return peer


class VerbsFabricRig(FabricRig):
    """Ends are exchanged over a Unix socket, which is the line then: the daemon's on rxe0, the requester's on rxe1."""

    bound_s = ticket_s = 120.0  # emulated, on a machine that may be busy: even a fork has taken more than five seconds
    seal: Seal = "pd"
    listener: VerbsListener

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = str(folder / "exchange.sock")
        self.listener = VerbsListener()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(self.path)
        self._door.listen()
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The daemon's."""
        if self._device is None:
            self._device = Device(choose(device="rxe0"))
        return self._device

    def redeem(self, ticket: str) -> RequesterSession:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(self.path)
        except OSError as fault:
            sock.close()
            raise PeerGone(str(fault)) from None
        session = VerbsRequesterSession(Device(choose(device="rxe1")), *self._sizes)
        try:
            sock.send(orjson.dumps({"ticket": ticket, "end": asdict(session.end())}))
            said = sock.recv(65536)
            if not said:
                raise TicketRefused("the ticket was not taken")
            session.connect(_end(orjson.loads(said)), LivenessChannel(sock.fileno(), sock.close))
        except BaseException:
            session.close()
            sock.close()
            raise
        return session

    def serve(self) -> FabricSession:
        self._door.settimeout(self.bound_s)
        peer, _ = self._door.accept()
        try:
            said = orjson.loads(peer.recv(65536))
            end = _end(said["end"])
            offer = self.listener.claim(said["ticket"].encode(), end, time.monotonic_ns())
        except BaseException:
            peer.close()
            raise
        session = VerbsFabricSession(offer.slots, offer.payload_bytes, offer.result_bytes)
        self._held.append(session)
        peer.send(
            orjson.dumps(asdict(session.open(self.device, end, LivenessChannel(peer.fileno(), peer.close), self.seal)))
        )
        return session

    def pair(self, **sizes: int) -> tuple[FabricSession, RequesterSession]:
        session, requester = super().pair(**sizes)
        until = time.monotonic() + self.bound_s
        while not session.ring(0):  # its peer has not said yet that it may
            assert time.monotonic() < until
            session.poll()
        requester.wait(self.bound_s)
        return session, requester

    def stop_listening(self) -> None:
        self._door.close()

    def close(self) -> None:
        super().close()
        self._door.close()
        if self._device is not None:
            self._device.close()


class WindowedFabricRig(VerbsFabricRig):
    """The same; the requester's key is that of a memory window."""

    seal: Seal = "mw"


def _end(said: dict[str, Any]) -> End:
    return End(Address(**said.pop("address")), **said)
