"""Implements the `verbs` fabric's acceptor: monitors the RDMA port, and turns tickets into connected queue pairs.

Endpoints are exchanged on the negotiation connection that received the ticket, so that no other peer can redeem it.
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
from offpath.bindings.wire import negotiating
from offpath.dpu_daemon.config import RdmaTable
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.ingress.admission import Admission, Grant, Peer
from offpath.dpu_daemon.ingress.fabric_acceptor import opened
from offpath.dpu_daemon.requests.sessions import Session

logger = logging.getLogger(__name__)
HOLD_S: Final = 1.0
"""A port that failed accepts new connections again after it has worked for so long."""
_SWEEP_S: Final = 0.05
_LAST_S: Final = 0.5
_KNOWN_WITHIN_S: Final = 1.0
_KNOWN_LOOK_S: Final = 0.01
_LOOK_S: Final = 0.1
_AGAIN_MS: Final = 1000
"""Retry delay after a failed connection. The cause may pass: unresolved address, short memory, changed route."""
_DEVICE_EVENTS: Final = ("PORT_ERR", "PORT_ACTIVE", "GID_CHANGE", "DEVICE_FATAL", "LID_CHANGE", "CLIENT_REREGISTER")


def chosen(table: RdmaTable) -> Choice:
    """The port that the configuration selects. Raises: NoRdmaDevice, PortDown, GidMissing."""
    return choose(device=table.device or None, netdev=table.netdev or None, near=table.near or None)


class RdmaPort:
    """The opened device. Tracks its health by the device's events and sweeps closed connections."""

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
        """The address of the GID used for connections."""
        found = self.device.choice.gid.ipv4
        assert found is not None, "`choose` takes no other"
        return found

    def why_shut(self) -> str:
        """The reason why no connection can be made now; empty: they can."""
        if self._fault:
            return self._fault
        if time.monotonic() - self._well_since_s < HOLD_S:
            return "the port has recovered and is not stable yet"
        return ""

    def sweep(self) -> None:
        """Close disconnected, idle connections; run again soon if any remain."""
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
        """The opened device is dead, even if a device of the same name returns. It may never report this to its
        sessions, so `on_dead` does."""
        self._is_dead = True
        self._fault = "the RDMA device failed; restart the daemon to open it again"
        self.on_dead()

    def _look(self) -> None:
        """Read the port again: its state, and its GID, whose index may have changed."""
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
            # The device sends no event when an address is restored later (seen with rdma_rxe).
            self._looking = self._loop.call_later(_LOOK_S, self._look)
        if before and not self._fault:
            self._well_since_s = time.monotonic()

    def _chose(self, choice: Choice) -> None:
        """Use the chosen port's GID. Raises: PortDown: the configuration selects another port, which is not open."""
        before, now = self.device.choice.port, choice.port
        if (before.device, before.number) != (now.device, now.number):
            raise PortDown(f"the configuration now selects {now}, not {before}; restart the daemon to use it")
        self.device.choice = choice

    def close(self) -> None:
        """Wait at most half a second for the last doorbells to arrive, then close. Blocks: the loop is ending."""
        until_s = time.monotonic() + _LAST_S
        while self.device.sweep() and time.monotonic() < until_s:
            time.sleep(0.005)
        for timer in (self._sweeping, self._looking):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self.device.fileno())
        self.device.close()


class VerbsAcceptor:
    """Implements `FabricAcceptor` for verbs. Owns the port, which outlives the daemon's sessions."""

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
        """See `FabricAcceptor.open`: peers come only through negotiation connections."""

    def close(self) -> None:
        """See `FabricAcceptor.close`: it ends with the negotiation connections."""

    def check(self) -> None:
        """See `FabricAcceptor.check`."""
        why = self._port.why_shut()
        if why:
            raise NegotiationRefused("fabric_down", why[:500], int(HOLD_S * 1000))

    async def redeem(self, grant: Grant, request: negotiating.Redeem, peer: Peer, fd: int) -> None:
        """See `FabricAcceptor.redeem`. Raises: NegotiationRefused: the ticket belongs to another negotiation; the
        peer's endpoint is unusable or unreachable."""
        self.check()
        ends = [self._claim(grant, request)]
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

    def _claim(self, grant: Grant, request: negotiating.Redeem) -> End:
        try:
            if request.ticket != grant.ticket:
                raise TicketRefused("it belongs to another negotiation")
            end = from_message(request.end)
            self._listener.claim(request.ticket.encode(), end, self._daemon.requests.now_ns())
        except TicketRefused as refused:
            self._daemon.counters["violations"] += 1
            logger.info("ticket refused: %s", refused, extra={"code": "ticket_refused"})
            raise NegotiationRefused("ticket", str(refused)[:500]) from None
        if self._admission.redeem(request.ticket.encode()) is not grant:
            self._listener.back(end)
            raise NegotiationRefused("ticket", "the session has ended")
        return end

    async def _reach(self, end: End) -> None:
        """Wait until the peer's address is resolved. Raises: VerbsError: it does not answer."""
        address = ipv4_of(end.address.gid)
        until_s = self._loop.time() + _KNOWN_WITHIN_S
        while not is_known(address):
            if self._loop.time() > until_s:
                raise VerbsError(f"connect to {address}", "it does not answer", check="check the route and the link")
            resolve(address, self._port.address)
            await asyncio.sleep(_KNOWN_LOOK_S)

    @staticmethod
    def _still(grant: Grant, peer: Peer) -> None:
        """Raises: NegotiationRefused: meanwhile the session ended or was resumed on another connection."""
        if grant.is_over or grant.peer is not peer:
            raise NegotiationRefused("ticket", "the session has ended or was resumed on another connection")

    def _first(
        self, grant: Grant, fabric: VerbsFabricSession, ends: list[End], liveness: LivenessChannel, peer: Peer
    ) -> None:
        """Open and journal the session before the peer has its memory, so that requests it submits at once survive this
        process."""
        try:
            self._still(grant, peer)
            local = self._connected(fabric, ends, liveness)
        except BaseException:
            fabric.close()
            raise

        def then() -> None:
            assert grant.live is not None
            peer.send(negotiating.Redeemed(end=as_message(local)))
            grant.live.attach()

        opened(self._daemon, self._admission, grant, fabric, then)

    def _again(self, grant: Grant, session: Session, ends: list[End], liveness: LivenessChannel, peer: Peer) -> None:
        """A resuming peer gets a new queue pair to the same memory."""
        session.detach()
        fabric = cast(VerbsFabricSession, session.fabric)  # this acceptor creates no other type
        local = self._connected(fabric, ends, liveness)
        peer.send(negotiating.Redeemed(end=as_message(local)))
        self._admission.came_back(grant)
        session.attach()

    def _connected(self, fabric: VerbsFabricSession, ends: list[End], liveness: LivenessChannel) -> End:
        """Returns the local endpoint, which is added to ``ends``. Raises: VerbsError."""
        local = fabric.open(self._port.device, ends[0], liveness, self._port.seal)
        if not self._listener.made(local):
            fabric.hang_up()
            raise VerbsError("create a queue pair", "another peer claimed its address first")
        ends.append(local)
        return local

    def _hung_up(self, ends: list[End], peer: Peer) -> None:
        self._listener.back(*ends)
        peer.hang_up()
        self._loop.call_soon(self._port.sweep)  # after the connection is closed
