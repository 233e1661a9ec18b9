"""The fabric `verbs` in the shell: its port, and the door where a ticket becomes a connected queue pair.

Ends are exchanged on the negotiation that was given the ticket, so that only who negotiated can redeem it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Final, Literal, cast

from offpath.bindings.errors import (
    DeviceError,
    DeviceGone,
    NegotiationRefused,
    PortDown,
    RegionError,
    TicketRefused,
    VerbsError,
)
from offpath.bindings.verbs.devices import Choice, choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.verbs.exchange import VerbsListener, as_message, from_message
from offpath.bindings.verbs.fabric import VerbsFabricSession
from offpath.bindings.verbs.link import End, LivenessChannel
from offpath.bindings.verbs.neighbours import ipv4_of, is_known, resolve
from offpath.bindings.wire import control
from offpath.dpu_daemon.config import RdmaTable
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.ingress.admission import Admission, Grant, Peer
from offpath.dpu_daemon.ingress.fabric_acceptor import opened
from offpath.dpu_daemon.requests.sessions import Session

logger = logging.getLogger(__name__)
HOLD_S: Final = 1.0
"""A port that failed takes new connections again when it has been well for so long."""
_SWEEP_S: Final = 0.05
_LAST_S: Final = 0.5
_KNOWN_WITHIN_S: Final = 1.0
_KNOWN_LOOK_S: Final = 0.01
_LOOK_S: Final = 0.1
_AGAIN_MS: Final = 1000
"""What could not be connected now may be later: an address not known yet, memory short, a route changed."""
_DEVICE_EVENTS: Final = ("PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "DEVICE_FATAL", "LID_CHANGE", "CLIENT_REREGISTER")


def chosen(table: RdmaTable) -> Choice:
    """The port that the configuration means. Raises: NoRdmaDevice, PortDown, GidMissing."""
    return choose(device=table.device or None, netdev=table.netdev or None, near=table.near or None)


class RdmaPort:
    """The opened device with its health, by the device's own events; connections that were hung up are swept."""

    def __init__(self, table: RdmaTable) -> None:
        """Raises: VerbsMissing, VerbsError."""
        self._table = table
        self.device = Device(chosen(table))
        self.seal: Literal["pd", "mw"] = table.seal
        self._loop = asyncio.get_running_loop()
        self._fault = ""
        self._is_dead = False
        self.on_dead: Callable[[], None] = lambda: None
        self._well_since_s = -HOLD_S
        self._sweeping: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._loop.add_reader(self.device.fileno(), self._events)

    @property
    def address(self) -> IPv4Address:
        """That of the GID that we connect by."""
        found = self.device.choice.gid.ipv4
        assert found is not None, "`choose` takes no other"
        return found

    def why_shut(self) -> str:
        """Why no connection is made now; empty: they are."""
        if self._fault:
            return self._fault
        if time.monotonic() - self._well_since_s < HOLD_S:
            return "the port has come back, and has not held yet"
        return ""

    def sweep(self) -> None:
        """Close what was hung up and is quiet; again soon, if there is more."""
        if self._sweeping is None and self.device.sweep():
            self._sweeping = self._loop.call_later(_SWEEP_S, self._swept)

    def _swept(self) -> None:
        self._sweeping = None
        self.sweep()

    def _events(self) -> None:
        try:
            names = self.device.events()
        except DeviceGone as fault:
            self._loop.remove_reader(self.device.fileno())
            logger.error("RDMA device %s: %s", self.device.choice.port.device, fault, extra={"code": "rdma_event"})
            self._died()
            return
        for name in names:
            if name in _DEVICE_EVENTS:
                logger.warning("RDMA device %s: %s", self.device.choice.port.device, name, extra={"code": "rdma_event"})
                self._look()
            if name == "DEVICE_FATAL":
                self._died()

    def _died(self) -> None:
        """What we opened is dead, also if a device of its name comes back; its sessions may never be told by it."""
        self._is_dead = True
        self._fault = "the RDMA device failed; a restart of the daemon opens it anew"
        self.on_dead()

    def _look(self) -> None:
        """See what became of the port: its state, and its GID, whose index may be another now."""
        if self._is_dead:
            return
        before = self._fault
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        try:
            self._chose(chosen(self._table))
            self._fault = ""
        except VerbsError as fault:
            self._fault = str(fault)
            # An address that is given back later is no event of the device (rdma_rxe, seen).
            self._looking = self._loop.call_later(_LOOK_S, self._look)
        if before and not self._fault:
            self._well_since_s = time.monotonic()

    def _chose(self, choice: Choice) -> None:
        """Raises: PortDown: it is another port now, which we have not opened."""
        before, now = self.device.choice.port, choice.port
        if (before.device, before.number) != (now.device, now.number):
            raise PortDown(f"{before} is not what the configuration means any more: that is {now}; a restart takes it")
        self.device.choice = choice

    def close(self) -> None:
        """Let what was rung last arrive, for half a second at most; the loop ends."""
        until_s = time.monotonic() + _LAST_S
        while self.device.sweep() and time.monotonic() < until_s:
            time.sleep(0.005)
        for timer in (self._sweeping, self._looking):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self.device.fileno())
        self.device.close()


class VerbsAcceptor:
    """Implements `FabricAcceptor`. Owns the port, which outlives the daemon's sessions."""

    def __init__(self, daemon: Daemon, admission: Admission, listener: VerbsListener, port: RdmaPort) -> None:
        self._daemon = daemon
        self._admission = admission
        self._listener = listener
        self._port = port
        daemon.closers.append(port.close)
        port.on_dead = self._device_died
        self._loop = asyncio.get_running_loop()

    def _device_died(self) -> None:
        for session in list(self._daemon.requests.sessions.by_number.values()):
            if session.is_attached:
                self._daemon.requests.sessions.lost(session, "the RDMA device failed")

    def open(self) -> None:
        """See `FabricAcceptor.open`: nobody is let in but over a negotiation."""

    def close(self) -> None:
        """See `FabricAcceptor.close`: with the negotiations."""

    def check(self) -> None:
        """See `FabricAcceptor.check`."""
        why = self._port.why_shut()
        if why:
            raise NegotiationRefused("fabric_down", why[:500], int(HOLD_S * 1000))

    async def redeem(self, grant: Grant, said: control.Redeem, peer: Peer, fd: int) -> None:
        """See `FabricAcceptor.redeem`. Raises: NegotiationRefused: the ticket is not this negotiation's; the end
        cannot be used, or not reached."""
        self.check()
        ends = [self._claim(grant, said)]
        liveness = LivenessChannel(fd, lambda: self._hung_up(ends, peer))
        try:
            await self._reach(ends[0])
            self._still(grant, peer)
            if grant.live is None:
                terms = grant.terms
                fabric = await self._loop.run_in_executor(
                    None, VerbsFabricSession, terms.slots, terms.payload_bytes, terms.result_bytes
                )
                self._first(grant, fabric, ends, liveness, peer)
            else:
                self._again(grant, grant.live, ends, liveness, peer)
        except (DeviceError, RegionError) as fault:
            self._listener.back(*ends)
            logger.warning(
                "no connection for a session of %s: %s", grant.tenant.table.name, fault, extra={"code": "no_connection"}
            )
            raise NegotiationRefused("fabric", str(fault)[:500], _AGAIN_MS) from None
        except BaseException:
            self._listener.back(*ends)
            raise

    def _claim(self, grant: Grant, said: control.Redeem) -> End:
        try:
            if said.ticket != grant.ticket:
                raise TicketRefused("it is not this negotiation's")
            end = from_message(said.end)
            self._listener.claim(said.ticket.encode(), end, self._daemon.requests.now_ns())
        except TicketRefused as refused:
            self._daemon.counters["violations"] += 1
            logger.info("ticket refused: %s", refused, extra={"code": "ticket_refused"})
            raise NegotiationRefused("ticket", str(refused)[:500]) from None
        if self._admission.redeem(said.ticket.encode()) is not grant:
            self._listener.back(end)
            raise NegotiationRefused("ticket", "the session is over")
        return end

    async def _reach(self, end: End) -> None:
        """Raises: VerbsError: nobody is there."""
        address = ipv4_of(end.address.gid)
        until_s = self._loop.time() + _KNOWN_WITHIN_S
        while not is_known(address):
            if self._loop.time() > until_s:
                raise VerbsError(
                    f"connect to {address}", "it does not answer", check="is the route there, its link up?"
                )
            resolve(address, self._port.address)
            await asyncio.sleep(_KNOWN_LOOK_S)

    @staticmethod
    def _still(grant: Grant, peer: Peer) -> None:
        """Raises: NegotiationRefused: meanwhile the session ended, or another connection came for it."""
        if grant.is_over or grant.peer is not peer:
            raise NegotiationRefused("ticket", "the session is over, or another connection has it")

    def _first(
        self, grant: Grant, fabric: VerbsFabricSession, ends: list[End], liveness: LivenessChannel, peer: Peer
    ) -> None:
        """Known, and journalled, before the peer has its memory: what it submits at once survives our death."""
        try:
            self._still(grant, peer)
            ours = self._connected(fabric, ends, liveness)
        except BaseException:
            fabric.close()
            raise

        def then() -> None:
            assert grant.live is not None
            peer.send(control.Redeemed(end=as_message(ours)))
            grant.live.attach()

        opened(self._daemon, self._admission, grant, fabric, then)

    def _again(self, grant: Grant, session: Session, ends: list[End], liveness: LivenessChannel, peer: Peer) -> None:
        """A peer that came back gets a new queue pair to the same memory."""
        session.detach()
        fabric = cast(VerbsFabricSession, session.fabric)  # this door makes no other
        ours = self._connected(fabric, ends, liveness)
        peer.send(control.Redeemed(end=as_message(ours)))
        self._admission.came_back(grant)
        session.attach()

    def _connected(self, fabric: VerbsFabricSession, ends: list[End], liveness: LivenessChannel) -> End:
        """Returns our end, which is added to ``ends``. Raises: VerbsError."""
        ours = fabric.open(self._port.device, ends[0], liveness, self._port.seal)
        if not self._listener.made(ours):
            fabric.hang_up()
            raise VerbsError("make a queue pair", "somebody named it as its own before we had it")
        ends.append(ours)
        return ours

    def _hung_up(self, ends: list[End], peer: Peer) -> None:
        self._listener.back(*ends)
        peer.hang_up()
        self._loop.call_soon(self._port.sweep)  # when the connection has been parted with
