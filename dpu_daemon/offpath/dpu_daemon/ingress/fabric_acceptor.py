"""Turns tickets into sessions: the interface of a fabric acceptor, and the loopback fabric's implementation.

A loopback peer presents a ticket and receives descriptors. A peer that sends nothing for five seconds is dropped. When
too many peers are silent, the one silent longest is dropped first, so that correct peers are not locked out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from offpath.bindings import faults
from offpath.bindings.errors import ControlError, PeerGone, RegionError, TicketRefused
from offpath.bindings.loopback.fabric import LoopbackFabricListener, LoopbackFabricSession
from offpath.bindings.ports import FabricSession
from offpath.bindings.wire import control, negotiating
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.ingress.admission import TICKET_TTL_S, Admission, Grant, Peer
from offpath.dpu_daemon.listening.accepting import Acceptor, Unidentified
from offpath.dpu_daemon.requests.sessions import Session, memory_name

logger = logging.getLogger(__name__)
STORE_WAIT_S: Final = 1.0
"""If the service manager accepts no message for so long, the session lives only as long as this process."""
MAX_PENDING_TICKETS: Final = 63  # the listener itself refuses peers from 64 on


class FabricAcceptor(Protocol):
    """Connects the sessions of one fabric."""

    def open(self) -> None:
        """Start accepting."""

    def close(self) -> None:
        """Stop accepting. The sessions are closed before."""

    def check(self) -> None:
        """Raises: NegotiationRefused: no session can be connected now."""

    async def redeem(self, grant: Grant, request: negotiating.Redeem, peer: Peer, fd: int) -> None:
        """Redeem a ticket that came on a negotiation connection with socket ``fd``.

        Raises: NegotiationRefused. ControlError: this fabric does not redeem tickets on the negotiation connection.
        """


def opened(
    daemon: Daemon,
    admission: Admission,
    grant: Grant,
    fabric: FabricSession,
    then: Callable[[], None],
    or_else: Callable[[], None] = lambda: None,
) -> None:
    """Open and journal a session at its first connection; with a service manager, its memory outlives this process.

    ``then`` is called once the memory is in the manager's queue, usually within this call, or after `STORE_WAIT_S`.
    Requests that the requester submits at once therefore survive this process. ``or_else`` is called if meanwhile the
    session ended or its requester resumed it on another negotiation, whose ticket connects it.
    """
    peer = grant.peer
    memory = [fabric.slots.fd, fabric.answers.fd]
    grant.live = daemon.requests.sessions.opened(grant.session, grant.tenant.table.name, fabric, grant.origin)
    is_called = False

    def proceed() -> None:
        nonlocal is_called
        if is_called:
            return
        is_called = True
        timer.cancel()
        if faults.armed:
            faults.hit("daemon.session")
        if grant.is_over or grant.peer is not peer:
            or_else()
        else:
            then()

    timer = asyncio.get_running_loop().call_later(STORE_WAIT_S, proceed)
    daemon.store.keep(memory_name(grant.session), memory, proceed, lambda: admission.held(grant))


class LoopbackAcceptor:
    """Implements `FabricAcceptor` for the loopback fabric. Owns and watches the listener."""

    def __init__(self, daemon: Daemon, admission: Admission, listener: LoopbackFabricListener) -> None:
        self._daemon = daemon
        self._admission = admission
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._drops: dict[socket.socket, asyncio.TimerHandle] = {}
        self._waiting = Unidentified(MAX_PENDING_TICKETS, partial(daemon.count, "connections_evicted"))
        self.acceptor = Acceptor(
            "fabric", self._accept, self._refuse, self._waiting, partial(daemon.count, "descriptors_exhausted")
        )

    def open(self) -> None:
        """See `FabricAcceptor.open`."""
        self.acceptor.open(self._listener.fileno())

    def replace(self, sock: socket.socket) -> None:
        """Listen on another socket, after accepting the connections that wait at the old one."""
        with contextlib.suppress(OSError):
            while self._accept():
                pass
        self.acceptor.open(sock.fileno())
        self._listener.replace(sock)

    def check(self) -> None:
        """See `FabricAcceptor.check`: a session can always be connected."""

    async def redeem(self, grant: Grant, request: negotiating.Redeem, peer: Peer, fd: int) -> None:
        """See `FabricAcceptor.redeem`: loopback tickets come on the fabric's own socket."""
        raise ControlError("out_of_turn", request.kind)

    def close(self) -> None:
        """See `FabricAcceptor.close`: waiting peers are dropped."""
        self.acceptor.close()
        for sock in list(self._drops):
            self._drop(sock)
        self._listener.close()

    def _accept(self) -> bool:
        if (sock := self._listener.accept()) is None:
            return False
        try:
            address = self._listener.address_of(sock)
        except OSError:
            self._listener.drop(sock)
            return True
        self._waiting.add(sock, address, lambda: self._drop(sock))
        self._drops[sock] = self._loop.call_later(TICKET_TTL_S, self._drop, sock)
        self._loop.add_reader(sock.fileno(), self._ticket, sock)
        return True

    def _refuse(self) -> bool:
        if (sock := self._listener.accept()) is None:
            return False
        self._listener.drop(sock)
        return True

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        self._listener.drop(sock)

    def _forget(self, sock: socket.socket) -> None:
        timer = self._drops.pop(sock, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(sock.fileno())
        self._waiting.remove(sock)

    def _ticket(self, sock: socket.socket) -> None:
        self._forget(sock)
        try:
            ticket, offer = self._listener.take_ticket(sock, self._daemon.requests.now_ns())
        except TicketRefused as refused:
            self._daemon.counters["violations"] += 1
            logger.info("ticket refused: %s", refused, extra={"code": "ticket_refused"})
            return
        except PeerGone:
            return
        grant = self._admission.redeem(ticket)
        if grant is None:
            sock.close()
            return
        if grant.live is not None:
            self._hand_over_again(sock, grant, grant.live)
            return
        made = self._loop.run_in_executor(
            None, LoopbackFabricSession, offer.slots, offer.payload_bytes, offer.result_bytes
        )
        made.add_done_callback(lambda future: self._made(sock, grant, future))

    def _made(self, sock: socket.socket, grant: Grant, made: asyncio.Future[Any]) -> None:
        try:
            fabric: LoopbackFabricSession = made.result()
        except RegionError as fault:
            logger.warning(
                "no memory for a session of %s: %s", grant.tenant.table.name, fault, extra={"code": "no_memory"}
            )
            sock.close()
            self._admission.end(grant, control.Closing(code="memory", detail=str(fault)[:500]))
            return
        if grant.is_over:
            fabric.close()
            sock.close()
            return
        # Before the peer has its memory, so that requests it submits at once survive this process.
        hand_over = partial(self._hand_over, sock, grant, fabric)
        opened(self._daemon, self._admission, grant, fabric, hand_over, sock.close)

    def _hand_over(self, sock: socket.socket, grant: Grant, fabric: LoopbackFabricSession) -> None:
        assert grant.live is not None
        try:
            fabric.hand_over(sock)
        except OSError:
            self._daemon.requests.sessions.ended(
                grant.live, "peer_gone", "it disconnected before it received its memory"
            )
            return
        finally:
            sock.close()
        grant.live.attach()

    def _hand_over_again(self, sock: socket.socket, grant: Grant, session: Session) -> None:
        """A resuming peer gets the same memory and a new doorbell."""
        fabric = cast(LoopbackFabricSession, session.fabric)  # this acceptor creates no other type
        try:
            fabric.hand_over(sock)
        except OSError:
            self._daemon.requests.sessions.lost(session, "it disconnected before it received its memory")
            return
        finally:
            sock.close()
        session.attach()
